// The chip's limit: decode everything, keep nothing. One parser and one decoder a thread, straight on nvcuvid, with none
// of the engine's code between; bench/nvdec.py builds it and runs it beside the engine.
//
//   raw_limit PACKETS CODEC SESSIONS SECONDS
//
// PACKETS is a file of Annex-B packets, each behind its length in four little-endian bytes; CODEC is h264 or hevc.
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "driver.h"

using namespace telecine;

namespace {

struct Decoder {
    CUvideodecoder decoder = nullptr;
    CUvideoparser parser = nullptr;
    unsigned surfaces = 0;
    std::atomic<long> pictures{0};
};

std::mutex creation;

int on_sequence(void* user, VideoFormat* format) {
    auto* self = static_cast<Decoder*>(user);
    if (self->decoder) return static_cast<int>(self->surfaces);
    self->surfaces = format->min_num_decode_surfaces + 1u;
    DecodeCreateInfo info{};
    info.width = info.max_width = format->coded_width;
    info.height = info.max_height = format->coded_height;
    info.num_decode_surfaces = self->surfaces;
    info.codec = format->codec;
    info.chroma = format->chroma;
    info.bit_depth_minus8 = format->bit_depth_luma_minus8;
    info.creation_flags = kCreatePreferCuvid;
    info.display_area.right = static_cast<short>(format->coded_width);
    info.display_area.bottom = static_cast<short>(format->coded_height);
    info.output_format = format->bit_depth_luma_minus8 ? SurfaceFormat::P016 : SurfaceFormat::Nv12;
    info.deinterlace_mode = kDeinterlaceWeave;
    info.target_width = format->coded_width;
    info.target_height = format->coded_height;
    info.num_output_surfaces = 1;
    std::lock_guard<std::mutex> one_at_a_time(creation);
    if (driver().decoder_create(&self->decoder, &info) != kSuccess) return 0;
    return static_cast<int>(self->surfaces);
}

int on_decode(void* user, PictureParams* picture) {
    auto* self = static_cast<Decoder*>(user);
    ++self->pictures;
    return driver().decode_picture(self->decoder, picture) == kSuccess;
}

int on_display(void*, DisplayInfo*) { return 1; }

using Packets = std::vector<std::string>;

Packets read_packets(const char* path) {
    std::ifstream file(path, std::ios::binary);
    const std::string all((std::istreambuf_iterator<char>(file)), {});
    Packets packets;
    for (size_t at = 0; at + 4 <= all.size();) {
        unsigned size;
        std::memcpy(&size, all.data() + at, 4);
        packets.push_back(all.substr(at + 4, size));
        at += 4 + size;
    }
    if (packets.empty()) throw std::runtime_error("no packets");
    return packets;
}

void feed(Decoder& decoder, const Packets& packets) {
    for (const auto& packet : packets) {
        SourcePacket input{kPacketEndOfPicture, packet.size(), reinterpret_cast<const unsigned char*>(packet.data()), 0};
        driver().check(driver().parser_parse(decoder.parser, &input), "feeding the parser");
    }
    SourcePacket end{kPacketEndOfStream, 0, nullptr, 0};
    driver().check(driver().parser_parse(decoder.parser, &end), "draining the parser");
}

double processor_seconds() {
    rusage used;
    getrusage(RUSAGE_SELF, &used);
    return double(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + 1e-6 * double(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

}  // namespace

int main(int count, char** arguments) try {
    if (count != 5) throw std::runtime_error("usage: raw_limit PACKETS CODEC SESSIONS SECONDS");
    const Packets packets = read_packets(arguments[1]);
    const auto codec = std::string(arguments[2]) == "hevc" ? VideoCodec::Hevc : VideoCodec::H264;
    const int sessions = std::atoi(arguments[3]);
    const double seconds = std::atof(arguments[4]);
    const Driver& cuda = driver();
    CUcontext context;
    cuda.check(cuda.primary_retain(&context, 0), "retaining the context");

    std::vector<Decoder> decoders(static_cast<size_t>(sessions));
    std::atomic<int> ready{0};
    std::atomic<bool> go{false}, stop{false};
    std::vector<std::thread> threads;
    for (auto& decoder : decoders) {
        threads.emplace_back([&] {
            cuda.push_current(context);
            ParserParams params{};
            params.codec = codec;
            params.max_decode_surfaces = 1;
            params.error_threshold = 100;
            params.max_display_delay = 2;
            params.user = &decoder;
            params.on_sequence = on_sequence;
            params.on_decode = on_decode;
            params.on_display = on_display;
            cuda.check(cuda.parser_create(&decoder.parser, &params), "creating a parser");
            feed(decoder, packets);
            decoder.pictures = 0;
            ++ready;
            while (!go) std::this_thread::yield();
            while (!stop) feed(decoder, packets);
        });
    }
    while (ready < sessions) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const double cpu = processor_seconds();
    const auto begun = std::chrono::steady_clock::now();
    go = true;
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    // counted while all sessions are still busy
    long pictures = 0;
    for (const auto& decoder : decoders) pictures += decoder.pictures;
    const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    const double cores = (processor_seconds() - cpu) / wall;
    stop = true;
    for (auto& thread : threads) thread.join();
    std::printf("{\"sessions\": %d, \"pictures\": %ld, \"seconds\": %.4f, \"pictures_per_second\": %.1f, \"cores\": %.3f}\n",
                sessions, pictures, wall, double(pictures) / wall, cores);
    std::fflush(stdout);
    std::_Exit(0);
} catch (const std::exception& error) {
    std::fprintf(stderr, "raw_limit: %s\n", error.what());
    return 1;
}
