// The NVDECODE API. The bitstream has the NAL units of H.264 in Annex B. In a NAL unit every byte except the first has
// its top bit set and 7 bits of payload, so that it contains no start code. stream.py in this folder writes it:
//   SPS (7):      width, height, shown width, shown height (2 bytes each), chroma, depth, surfaces (1 byte each)
//   slice (1, 5): kind, number (2), order (2), count of references, their numbers (2 each)
// bits of kind: 1 intra, 2 reference, 4 field, 8 second field, 16 bad (decodes with an error), 32 ignored by the parser
#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "fake.h"

using namespace telecine;

namespace {

constexpr int kReordering = 2;  // pictures that are kept for reordering

struct Decoder {
    DecodeCreateInfo info;
    std::vector<int> number;  // of the picture in each surface
    std::vector<int> status;
    int mapped = 0;
    unsigned width, height;
};

thread_local bool t_in_sequence = false;

struct Waiting {
    int surface, order;
    long long timestamp;
};

struct Kept {
    int number, surface;
};

struct Parser {
    ParserParams params;
    VideoFormat format = {};
    bool announced = false;
    int surfaces = 0;
    std::vector<Waiting> waiting;
    std::deque<Kept> references;
    int last_surface = -1;
    int displayed = 0;
    bool exchange = false;

    int free_surface() const {
        for (int i = 1; i <= surfaces; ++i) {
            const int s = (last_surface + i) % surfaces;
            const bool used =
                std::any_of(waiting.begin(), waiting.end(), [&](auto& w) { return w.surface == s; }) ||
                std::any_of(references.begin(), references.end(), [&](auto& k) { return k.surface == s; });
            if (!used) {
                return s;
            }
        }
        return -1;
    }

    // Outputs the first picture in display order. Like the real parser, makes timestamps ascend if they do not.
    bool output() {
        auto first =
            std::min_element(waiting.begin(), waiting.end(), [](auto& a, auto& b) { return a.order < b.order; });
        auto earliest = std::min_element(waiting.begin(), waiting.end(),
                                         [](auto& a, auto& b) { return a.timestamp < b.timestamp; });
        if (earliest != first && (exchange || displayed < 16)) {
            exchange = true;
            std::swap(earliest->timestamp, first->timestamp);
        }
        DisplayInfo info = {};
        info.picture = first->surface;
        info.progressive_frame = 1;
        info.timestamp = first->timestamp;
        waiting.erase(first);
        ++displayed;
        return params.on_display(params.user, &info) != 0;
    }

    bool flush() {
        while (!waiting.empty()) {
            if (!output()) {
                return false;
            }
        }
        references.clear();
        return true;
    }
};

int seven(const unsigned char* at, int bytes) {
    int value = 0;
    for (int i = 0; i < bytes; ++i) {
        value = value << 7 | (at[i] & 127);
    }
    return value;
}

bool take_sps(Parser& parser, const unsigned char* p) {
    VideoFormat format = {};
    format.codec = parser.params.codec;
    format.coded_width = static_cast<unsigned>(seven(p, 2));
    format.coded_height = static_cast<unsigned>(seven(p + 2, 2));
    format.display_area = {0, 0, seven(p + 4, 2), seven(p + 6, 2)};
    format.chroma = static_cast<Chroma>(seven(p + 8, 1));
    format.bit_depth_luma_minus8 = format.bit_depth_chroma_minus8 = static_cast<unsigned char>(seven(p + 9, 1) - 8);
    format.min_num_decode_surfaces = static_cast<unsigned char>(seven(p + 10, 1));
    format.progressive_sequence = 1;
    if (parser.announced && memcmp(&format, &parser.format, sizeof(format)) == 0) {
        return true;
    }
    if (!parser.flush()) {
        return false;
    }
    parser.format = format;
    parser.announced = true;
    t_in_sequence = true;
    parser.surfaces = parser.params.on_sequence(parser.params.user, &parser.format);
    t_in_sequence = false;
    if (parser.surfaces > 1 && parser.surfaces < format.min_num_decode_surfaces) {
        fake::violation("fewer surfaces than the parser needs");
    }
    return parser.surfaces > 0;
}

bool take_slice(Parser& parser, int nal_type, const unsigned char* p, size_t size, long long timestamp) {
    const int kind = seven(p, 1);
    if ((kind & 32) != 0 || !parser.announced) {
        return true;
    }
    if (nal_type == 5 && (kind & 8) == 0 && !parser.flush()) {
        return false;
    }
    const int surface = (kind & 8) != 0 ? parser.last_surface : parser.free_surface();
    if (surface < 0) {
        fake::violation("the parser has run out of surfaces");
        return false;
    }
    parser.last_surface = surface;
    PictureParams params = {};
    params.picture = surface;
    params.field_picture = (kind & 4) != 0;
    params.second_field = (kind & 8) != 0;
    params.is_intra = kind & 1;
    params.is_reference = (kind & 2) != 0;
    params.data = p;
    params.data_length = static_cast<unsigned>(size);
    const int count = seven(p + 5, 1);
    for (int i = 0; i < 16; ++i) {
        H264DpbEntry entry = {-1, 0, 0, 0, 0, {0, 0}};
        if (i < count) {
            entry.frame_num = seven(p + 6 + 2 * i, 2);
            entry.used_for_reference = 3;
            entry.not_existing = 1;
            for (const Kept& kept : parser.references) {
                if (kept.number == entry.frame_num) {
                    entry.picture = kept.surface;
                    entry.not_existing = 0;
                }
            }
        }
        memcpy(params.codec_part + kH264Dpb + static_cast<size_t>(i) * sizeof(entry), &entry, sizeof(entry));
    }
    if (parser.params.on_decode(parser.params.user, &params) == 0) {
        return false;
    }
    if ((kind & 8) != 0) {
        return true;
    }
    parser.waiting.push_back({surface, seven(p + 3, 2), timestamp});
    if ((kind & 2) != 0) {
        parser.references.push_back({seven(p + 1, 2), surface});
        if (parser.references.size() > 2) {
            parser.references.pop_front();
        }
    }
    while (parser.waiting.size() > kReordering) {
        if (!parser.output()) {
            return false;
        }
    }
    return true;
}

// Returns a sample of a picture; the same as in stream.py.
int paint(int number, int plane, unsigned x, unsigned y, int depth) {
    const int value =
        plane == 0 ? 40 + (number * 29 + static_cast<int>(x) * 3 + static_cast<int>(y) * 5) % 160
                   : 98 + (number * (plane == 1 ? 13 : 17) + static_cast<int>(x) * 2 + static_cast<int>(y) * 3) % 60;
    return value << (depth - 8);
}

}  // namespace

EXPORT CUresult cuvidGetDecoderCaps(DecodeCaps* caps) {
    caps->supported = caps->codec != VideoCodec::Vc1 && caps->bit_depth_minus8 <= 4;
    caps->num_engines = static_cast<unsigned char>(fake::setting("engines"));
    caps->output_format_mask = 0xF;
    caps->max_width = caps->max_height = 4096;
    caps->max_macroblocks = 65536;
    caps->min_width = caps->min_height = 16;
    return kSuccess;
}

EXPORT CUresult cuvidCreateDecoder(CUvideodecoder* handle, DecodeCreateInfo* info) {
    if (fake::use_up("create_failures")) {
        return 999;
    }
    if (fake::use_up("create_out_of_memory")) {
        return kOutOfMemory;
    }
    if (info->target_width != info->width || info->width > info->max_width || info->height > info->max_height) {
        fake::violation("a decoder with an impossible size");
    }
    auto* decoder =
        new Decoder{*info, {}, {}, 0, static_cast<unsigned>(info->width), static_cast<unsigned>(info->height)};
    decoder->number.assign(info->num_decode_surfaces, -1);
    decoder->status.assign(info->num_decode_surfaces, kStatusInvalid);
    *handle = decoder;
    return fake::count("decoders", 1), fake::count("decoders_made", 1), kSuccess;
}

EXPORT CUresult cuvidDestroyDecoder(CUvideodecoder handle) {
    auto* decoder = static_cast<Decoder*>(handle);
    if (decoder->mapped != 0) {
        fake::violation("a decoder destroyed while a picture is mapped");
    }
    delete decoder;
    return fake::count("decoders", -1), kSuccess;
}

#ifndef FAKE_OLD_DRIVER
EXPORT CUresult cuvidReconfigureDecoder(CUvideodecoder handle, ReconfigureInfo* info) {
    auto* decoder = static_cast<Decoder*>(handle);
    if (!t_in_sequence) {
        fake::violation("a decoder reconfigured outside of the sequence callback");
    }
    if (info->width > decoder->info.max_width || info->height > decoder->info.max_height) {
        fake::violation("a decoder reconfigured beyond its size");
    }
    decoder->width = info->width;
    decoder->height = info->height;
    std::fill(decoder->number.begin(), decoder->number.end(), -1);
    return fake::use_up("reconfigure_failures") ? 999 : kSuccess;
}
#endif

EXPORT CUresult cuvidDecodePicture(CUvideodecoder handle, PictureParams* params) {
    auto* decoder = static_cast<Decoder*>(handle);
    fake::pause("slow_microseconds");
    const int number = seven(params->data + 1, 2);
    fake::count("pictures", 1);
    if (fake::setting("decode_error_at") == number + 1) {
        return 999;
    }
    const auto surface = static_cast<size_t>(params->picture);
    decoder->number[surface] = number;
    decoder->status[surface] = (seven(params->data, 1) & 16) != 0 ? kStatusErrorConcealed : kStatusSuccess;
    return kSuccess;
}

EXPORT CUresult cuvidGetDecodeStatus(CUvideodecoder handle, int surface, DecodeStatus* status) {
    auto* decoder = static_cast<Decoder*>(handle);
    fake::pause("slow_status_microseconds");
    if (fake::setting("status_unsupported") != 0) {
        return kNotSupported;
    }
    if (fake::use_up("status_failures")) {
        return 999;
    }
    status->status = fake::use_up("in_progress") ? kStatusInProgress : decoder->status[static_cast<size_t>(surface)];
    return kSuccess;
}

EXPORT CUresult cuvidMapVideoFrame64(CUvideodecoder handle, int surface, CUdeviceptr* pointer, unsigned* pitch,
                                     ProcessParams* params) {
    auto* decoder = static_cast<Decoder*>(handle);
    if (params->output_stream == nullptr) {
        fake::violation("a picture mapped on the default stream");
    }
    if (fake::use_up("map_failures")) {
        return 999;
    }
    if (++decoder->mapped > static_cast<int>(decoder->info.num_output_surfaces)) {
        fake::violation("more pictures mapped than there are output surfaces");
    }
    const int depth = 8 + static_cast<int>(decoder->info.bit_depth_minus8);
    const unsigned bytes = depth > 8 ? 2 : 1;
    const bool planar = decoder->info.chroma == Chroma::C444;
    const unsigned width = decoder->width;
    const unsigned height = decoder->height;
    *pitch = (width * bytes + 255) / 256 * 256;
    auto* memory = static_cast<unsigned char*>(malloc(size_t(*pitch) * height * 3));
    const int number = decoder->number[static_cast<size_t>(surface)];
    const auto put = [&](unsigned row, unsigned column, int value) {
        unsigned char* at = memory + size_t(row) * *pitch + size_t(column) * bytes;
        if (bytes == 1) {
            *at = static_cast<unsigned char>(value);
        } else {
            const auto wide = static_cast<uint16_t>(value << (16 - depth));
            memcpy(at, &wide, 2);
        }
    };
    for (unsigned y = 0; y < height; ++y) {
        for (unsigned x = 0; x < width; ++x) {
            put(y, x, paint(number, 0, x, y, depth));
            if (planar) {
                put(height + y, x, paint(number, 1, x, y, depth));
                put(2 * height + y, x, paint(number, 2, x, y, depth));
            } else if (y % 2 == 0 && x % 2 == 0) {
                put(height + y / 2, x, paint(number, 1, x / 2, y / 2, depth));
                put(height + y / 2, x + 1, paint(number, 2, x / 2, y / 2, depth));
            }
        }
    }
    *pointer = reinterpret_cast<CUdeviceptr>(memory);
    return fake::count("maps", 1), kSuccess;
}

EXPORT CUresult cuvidUnmapVideoFrame64(CUvideodecoder handle, CUdeviceptr pointer) {
    --static_cast<Decoder*>(handle)->mapped;
    free(reinterpret_cast<void*>(pointer));
    return kSuccess;
}

EXPORT CUresult cuvidCreateVideoParser(CUvideoparser* handle, ParserParams* params) {
    if (fake::use_up("parser_failures")) {
        return 999;
    }
    auto* parser = new Parser();
    parser->params = *params;
    *handle = parser;
    return fake::count("parsers", 1), kSuccess;
}

EXPORT CUresult cuvidDestroyVideoParser(CUvideoparser handle) {
    delete static_cast<Parser*>(handle);
    return fake::count("parsers", -1), kSuccess;
}

EXPORT CUresult cuvidParseVideoData(CUvideoparser handle, SourcePacket* packet) {
    auto* parser = static_cast<Parser*>(handle);
    const unsigned char* data = packet->data;
    bool had_picture = false;
    for (size_t at = 0; at + 4 < packet->size; ++at) {
        if (data[at] != 0 || data[at + 1] != 0 || data[at + 2] != 1) {
            continue;
        }
        size_t end = at + 3;
        while (end < packet->size && !(end + 3 <= packet->size && data[end] == 0 && data[end + 1] == 0)) {
            ++end;
        }
        const unsigned char* nal = data + at + 3;
        const size_t size = end - at - 3;
        const int type = nal[0] & 31;
        bool fine = true;
        if (type == 7 && size >= 12) {
            fine = take_sps(*parser, nal + 1);
        } else if ((type == 1 || type == 5) && size >= 7 && size >= 7 + 2 * static_cast<size_t>(seven(nal + 6, 1))) {
            // with the flag for a whole picture, a second picture is ignored
            if (!had_picture || (packet->flags & kPacketEndOfPicture) == 0) {
                fine = take_slice(*parser, type, nal + 1, size - 1, packet->timestamp);
            }
            had_picture = true;
        }
        if (!fine) {
            return 999;
        }
        at = end - 1;
    }
    if ((packet->flags & kPacketEndOfStream) != 0 && !parser->flush()) {
        return 999;
    }
    return kSuccess;
}
