#include "run.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace telecine {
namespace {

// A wanted picture is mapped when so many more are submitted: mapping waits for the engine, which must not run dry.
constexpr int64_t kLag = 3;
constexpr size_t kMaxPending = 4;
constexpr size_t kMaxMapped = 1;  // beside the one being mapped; the session has two output surfaces
constexpr auto kPoll = std::chrono::microseconds(500);  // some pictures are always queued, so nothing waits for this

// Whether a VP9 packet says no more than "show that picture again" (VP9 bitstream, uncompressed header).
bool shows_existing(const Packet& packet) {
    if (packet.size == 0 || packet.data[0] >> 6 != 2) {
        return false;
    }
    const bool profile_3 = (packet.data[0] & 0x30) == 0x30;
    return (packet.data[0] & (profile_3 ? 0x04 : 0x08)) != 0;
}

}  // namespace

RunDecoder::RunDecoder(Device& device, SessionStore& store, CUstream stream, Request& request, const Run& run)
    : device_(device),
      driver_(device.driver()),
      store_(store),
      stream_(stream),
      request_(request),
      run_(run),
      feed_(request.codec, request.extradata.data(), request.extradata.size()) {
    has_status_ = request.codec == VideoCodec::H264 || request.codec == VideoCodec::Hevc;
    ParserParams params = {};
    params.codec = request.codec;
    params.max_decode_surfaces = 1;  // the sequence callback says how many
    params.error_threshold = 100;    // every picture is submitted; damage is seen in its status
    params.max_display_delay = 0;
    params.user = this;
    params.on_sequence = on_sequence;
    params.on_decode = on_decode;
    params.on_display = on_display;
    driver_.check(driver_.parser_create(&parser_, &params), "making a parser");
}

RunDecoder::~RunDecoder() {
    if (parser_ != nullptr) {
        driver_.parser_destroy(parser_);
    }
    leave_session(!error_ && pending_.empty());
    for (CUevent event : events_) {
        driver_.event_destroy(event);
    }
}

bool RunDecoder::reorders() const {
    return request_.codec != VideoCodec::Vp8 && request_.codec != VideoCodec::Vp9;
}

void RunDecoder::execute() {
    feed_all();
    if (!error_ && !stopped_) {
        SourcePacket end = {};
        end.flags = kPacketEndOfStream;
        parse(end);
        guarded([this] {
            write_pending(0);
            return 1;
        });
    }
    if (stopped_ && !error_) {
        guarded([this] {
            drain();
            return 1;
        });
    }
    pending_.clear();
    const Loss reason = error_ ? Loss::Failed : stopped_ ? Loss::Stopped : Loss::Missing;
    for (int i = run_.first; i < run_.last; ++i) {
        const int target = request_.packets[i].target;
        if (target >= 0 && request_.targets[target].loss == Loss::Missing) {
            request_.targets[target].loss = reason;
        }
    }
    leave_session(!error_);
    if (error_) {
        throw *error_;
    }
}

void RunDecoder::feed_all() {
    bool first = true;
    for (current_ = run_.first; current_ < run_.last && !error_; ++current_) {
        if (request_.stopped()) {
            stopped_ = true;
            return;
        }
        const Packet& packet = request_.packets[current_];
        const bool restart = (packet.flags & (kRestart | kOpen)) != 0;
        if (restart) {
            broken_before_ = broken_ && (packet.flags & kOpen) != 0;
            broken_ = false;
        }
        const Prepared& prepared = feed_.prepare(packet.data, packet.size, first || restart);
        in_packet_ = 0;
        size_t at = 0;
        for (size_t end : prepared.pieces) {
            SourcePacket piece = {};
            piece.data = prepared.data + at;
            piece.size = end - at;
            piece.timestamp = packet.order;
            piece.flags = (at == 0 ? kPacketTimestamp : 0) | (reorders() ? kPacketEndOfPicture : 0);
            parse(piece);
            at = end;
        }
        first = false;
        // a hidden picture of VP8 or VP9 that did not come is not noticed by what refers to it
        const bool needed =
            (packet.flags & kNeeded) != 0 || !(reorders() || packet.size == 0 || shows_existing(packet));
        if ((in_packet_ == 0 || prepared.damaged) && needed && request_.trust_references) {
            broken_ = true;
        }
        if (in_packet_ > 1 && reorders() && packet.target >= 0) {
            request_.targets[packet.target].loss = Loss::Mislabelled;
        }
    }
    current_ = run_.last - 1;
}

void RunDecoder::parse(SourcePacket& packet) {
    const CUresult result = driver_.parser_parse(parser_, &packet);
    // a callback that failed has left its own error, which says more
    if (result != kSuccess && !error_) {
        error_ = std::make_unique<Error>(Failure::Driver, "parsing a packet: " + driver_.describe(result));
    }
}

template <typename Step>
int RunDecoder::guarded(Step step) {
    if (error_) {
        return 0;
    }
    try {
        return step();
    } catch (const Error& error) {
        error_ = std::make_unique<Error>(error);
    } catch (const std::exception& error) {
        error_ = std::make_unique<Error>(Failure::Driver, error.what());
    }
    return 0;
}

int RunDecoder::on_sequence(void* self, VideoFormat* format) {
    auto* run = static_cast<RunDecoder*>(self);
    return run->guarded([&] { return run->sequence(*format); });
}

int RunDecoder::on_decode(void* self, PictureParams* params) {
    auto* run = static_cast<RunDecoder*>(self);
    return run->guarded([&] { return run->decode(*params); });
}

int RunDecoder::on_display(void* self, DisplayInfo* info) {
    auto* run = static_cast<RunDecoder*>(self);
    return info == nullptr ? 1 : run->guarded([&] { return run->display(*info); });
}

int RunDecoder::sequence(const VideoFormat& format) {
    // what was decoded so far is in the old shape
    write_pending(0);
    if (!pictures_.empty()) {
        judge_up_to(static_cast<int>(pictures_.size()) - 1);
    }
    unmap(0);
    const auto& shown = format.display_area;
    if (static_cast<int64_t>(shown.right - shown.left) * (shown.bottom - shown.top) > request_.max_pixels) {
        throw Error(Failure::Unsupported, "the picture grows to more pixels than the request allows");
    }
    const bool same_kind =
        session_ && session_->key() == session_key(format, device_.caps(format.codec, format.chroma,
                                                                        8 + format.bit_depth_luma_minus8));
    if (session_ && !(same_kind && session_->is_for(format) && session_->has_surfaces_for(format))) {
        leave_session(true);
    }
    format_ = format;
    if (!session_) {
        session_ = store_.take(format);
        occupant_.assign(static_cast<size_t>(session_->surfaces()), -1);
    }
    return session_->surfaces();
}

int RunDecoder::decode(PictureParams& params) {
    const int surface = params.picture;
    if (!session_ || surface < 0 || surface >= session_->surfaces()) {
        throw Error(Failure::Driver, "the parser names a surface that does not exist");
    }
    const bool second_field = params.second_field != 0 && occupant_[surface] >= 0;
    if (!second_field) {
        // the surface is about to be overwritten
        while (std::any_of(pending_.begin(), pending_.end(),
                           [&](const Pending& p) { return pictures_[p.picture].surface == surface; })) {
            write_pending(pending_.size() - 1);
        }
        if (occupant_[surface] >= 0) {
            judge_up_to(occupant_[surface]);
        }
        Picture picture = {};
        picture.packet = current_;
        picture.surface = surface;
        picture.intra = params.is_intra != 0;
        pictures_.push_back(picture);
        occupant_[surface] = static_cast<int>(pictures_.size()) - 1;
        ++in_packet_;
    }
    Picture& picture = pictures_[occupant_[surface]];
    picture.intra &= params.is_intra != 0;
    note_references(params, picture);
    driver_.check(driver_.decode_picture(session_->handle(), &params), "decoding a picture");
    ++submitted_;
    request_.pictures.fetch_add(second_field ? 0 : 1, std::memory_order_relaxed);
    while (!pending_.empty() && (submitted_ - pending_.front().at >= kLag || pending_.size() > kMaxPending)) {
        write_pending(pending_.size() - 1);
    }
    return 1;
}

int RunDecoder::display(const DisplayInfo& info) {
    if (info.picture < 0 || static_cast<size_t>(info.picture) >= occupant_.size() || occupant_[info.picture] < 0) {
        return 1;  // nothing that was decoded in this run
    }
    const int index = occupant_[info.picture];
    Picture& picture = pictures_[index];
    // VP8 and VP9 do not reorder, and VP9 may show a picture again that an earlier packet brought
    const int packet = reorders() ? picture.packet : current_;
    const int target = request_.packets[packet].target;
    if (target < 0 || (reorders() && picture.displayed)) {
        return 1;
    }
    picture.displayed = true;
    Loss& loss = request_.targets[target].loss;
    // The picture is known by the packet that brought it, and this is checked: where the parser thinks that timestamps
    // are not in display order it exchanges them. Ours are, unless the file's times contradict the stream.
    const bool labelled = reorders() ? info.timestamp == request_.packets[packet].order
                                     : picture.packet == packet || shows_existing(request_.packets[packet]);
    if (!labelled) {
        loss = Loss::Mislabelled;
    }
    if (loss == Loss::Missing) {
        pending_.push_back({index, packet, info, submitted_});
    }
    return 1;
}

void RunDecoder::judge_up_to(int picture) {
    for (; judged_ <= picture; ++judged_) {
        Picture& one = pictures_[judged_];
        const int status = status_of(judged_);
        bool sound = status != kStatusError && status != kStatusErrorConcealed;
        if (request_.trust_references && !one.intra) {
            sound &= std::all_of(one.references.begin(), one.references.end(),
                                 [&](int r) { return r >= 0 && (r >= judged_ || pictures_[r].sound); });
        }
        one.sound = sound && one.sound;
    }
}

int RunDecoder::status_of(int picture) {
    while (has_status_) {
        DecodeStatus status = {};
        const CUresult result = driver_.decode_status(session_->handle(), pictures_[picture].surface, &status);
        if (result != kSuccess) {
            has_status_ = false;  // this codec or GPU does not tell
        } else if (status.status != kStatusInProgress) {
            return status.status;
        } else {
            std::this_thread::sleep_for(kPoll);
        }
    }
    return kStatusInvalid;
}

void RunDecoder::write_pending(size_t keep) {
    while (pending_.size() > keep) {
        const Pending pending = pending_.front();
        pending_.pop_front();
        write_out(pending);
    }
}

void RunDecoder::write_out(const Pending& pending) {
    unmap(kMaxMapped);
    ProcessParams process = {};
    process.progressive_frame = pending.info.progressive_frame;
    process.top_field_first = pending.info.top_field_first;
    process.unpaired_field = pending.info.repeat_first_field < 0;
    process.output_stream = stream_;
    CUdeviceptr address = 0;
    unsigned pitch = 0;
    driver_.check(driver_.map_frame(session_->handle(), pictures_[pending.picture].surface, &address, &pitch, &process),
                  "reading a picture");
    mapped_.push_back({address, nullptr});
    // mapping has waited for the picture, and the engine works in order: its status and all before it are final
    judge_up_to(pending.picture);
    Loss& loss = request_.targets[request_.packets[pending.packet].target].loss;
    if (!pictures_[pending.picture].sound || process.unpaired_field) {
        loss = Loss::Damaged;
        return;
    }
    convert(pending, address, pitch);
    loss = Loss::None;
}

void RunDecoder::convert(const Pending& pending, CUdeviceptr address, unsigned pitch) {
    const Surface surface = session_->surface(address, pitch, format_);
    const auto scale = device_.scale(surface, request_.geometry, stream_);
    if (scales_.empty() || scales_.back() != scale) {
        scales_.push_back(scale);  // kept until its kernels are done
    }
    const Target& target = request_.targets[request_.packets[pending.packet].target];
    const CUdeviceptr first = request_.out + static_cast<CUdeviceptr>(target.rows[0] * request_.row_bytes);
    device_.convert(surface, request_.geometry, *scale, first, stream_);
    for (size_t i = 1; i < target.rows.size(); ++i) {
        const CUdeviceptr other = request_.out + static_cast<CUdeviceptr>(target.rows[i] * request_.row_bytes);
        const size_t size = static_cast<size_t>(request_.geometry.width) * request_.geometry.height * 3;
        driver_.check(driver_.copy_on_device(other, first, size, stream_), "repeating a frame");
    }
    if (events_.empty()) {
        CUevent event = nullptr;
        driver_.check(driver_.event_create(&event, kEventDisableTiming), "making an event");
        events_.push_back(event);
    }
    mapped_.back().converted = events_.back();
    events_.pop_back();
    driver_.check(driver_.event_record(mapped_.back().converted, stream_), "marking a converted frame");
    request_.mapped.fetch_add(1, std::memory_order_relaxed);
}

void RunDecoder::unmap(size_t keep) {
    while (mapped_.size() > keep) {
        const Mapped mapped = mapped_.front();
        mapped_.pop_front();
        CUresult waited = kSuccess;
        if (mapped.converted != nullptr) {
            waited = driver_.event_synchronize(mapped.converted);
            events_.push_back(mapped.converted);
        }
        const CUresult unmapped = driver_.unmap_frame(session_->handle(), mapped.address);
        driver_.check(waited, "converting a frame");
        driver_.check(unmapped, "giving a surface back");
    }
}

// Wait until the session has nothing in flight, so that it can be used again.
void RunDecoder::drain() {
    unmap(0);
    if (!session_ || pictures_.empty() || occupant_[pictures_.back().surface] < 0) {
        return;
    }
    ProcessParams process = {};
    process.output_stream = stream_;
    process.progressive_frame = 1;
    CUdeviceptr address = 0;
    unsigned pitch = 0;
    driver_.check(driver_.map_frame(session_->handle(), pictures_.back().surface, &address, &pitch, &process),
                  "finishing a run");
    driver_.check(driver_.unmap_frame(session_->handle(), address), "finishing a run");
}

void RunDecoder::leave_session(bool healthy) {
    if (!session_) {
        return;
    }
    try {
        unmap(0);
    } catch (const Error& error) {
        healthy = false;
        if (!error_) {
            error_ = std::make_unique<Error>(error);
        }
    }
    while (!mapped_.empty()) {
        driver_.unmap_frame(session_->handle(), mapped_.front().address);
        mapped_.pop_front();
    }
    store_.give(std::move(session_), healthy);
    occupant_.clear();
}

}  // namespace telecine
