#include "range_decoder.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace telecine {
namespace {

// A wanted picture is mapped after so many more are submitted: mapping waits for the video engine, which must not idle.
constexpr int64_t kMapDelay = 3;
constexpr size_t kMaxPending = 4;
constexpr size_t kMaxMapped = 1;  // besides the one being mapped; a session has two output surfaces
// Other pictures are queued while a status is awaited, so this interval costs no time.
constexpr auto kStatusPoll = std::chrono::microseconds(500);
constexpr auto kStatusTimeout = std::chrono::seconds(30);

// Returns true if a VP9 packet only shows an earlier picture (show_existing_frame, VP9 6.2).
bool shows_existing(const Packet& packet) {
    if (packet.size == 0 || packet.data[0] >> 6 != 2) {
        return false;
    }
    const bool profile_3 = (packet.data[0] & 0x30) == 0x30;
    return (packet.data[0] & (profile_3 ? 0x04 : 0x08)) != 0;
}

}  // namespace

RangeDecoder::RangeDecoder(Device& device, SessionPool& pool, CUstream stream, Request& request,
                           const DecodeRange& range)
    : device_(device),
      driver_(device.driver()),
      pool_(pool),
      stream_(stream),
      request_(request),
      range_(range),
      converter_(request.codec, request.extradata.data(), request.extradata.size()) {
    has_status_ = request.codec == VideoCodec::H264 || request.codec == VideoCodec::Hevc;
    ParserParams params = {};
    params.codec = request.codec;
    params.max_decode_surfaces = 1;  // the sequence callback returns how many
    params.error_threshold = 100;    // submit every picture; its status tells if it is damaged
    params.max_display_delay = 0;
    params.user = this;
    params.on_sequence = on_sequence;
    params.on_decode = on_decode;
    params.on_display = on_display;
    driver_.check(driver_.parser_create(&parser_, &params), "creating a parser");
}

RangeDecoder::~RangeDecoder() {
    if (parser_ != nullptr) {
        driver_.parser_destroy(parser_);
    }
    return_session(!error_ && pending_.empty());
}

bool RangeDecoder::reorders() const {
    return request_.codec != VideoCodec::Vp8 && request_.codec != VideoCodec::Vp9;
}

void RangeDecoder::execute() {
    feed_packets();
    if (!error_ && !stopped_) {
        SourcePacket end = {};
        end.flags = kPacketEndOfStream;
        parse(end);
        catch_errors([this] {
            write_pending(0);
            return 1;
        });
    }
    if (stopped_ && !error_) {
        catch_errors([this] {
            drain();
            return 1;
        });
    }
    if (stopped_) {
        request_.stop = true;
    }
    pending_.clear();
    const Loss reason = error_ ? Loss::Failed : stopped_ ? Loss::Stopped : Loss::Missing;
    for (int i = range_.first; i < range_.last; ++i) {
        const int target = request_.packets[i].target;
        if (target >= 0 && request_.targets[target].loss == Loss::Missing) {
            request_.targets[target].loss = reason;
        }
    }
    return_session(!error_);
    if (error_) {
        throw *error_;
    }
}

void RangeDecoder::feed_packets() {
    bool first = true;
    for (current_packet_ = range_.first; current_packet_ < range_.last && !error_; ++current_packet_) {
        if (request_.stopped()) {
            stopped_ = true;
            return;
        }
        const Packet& packet = request_.packets[current_packet_];
        const bool restart = (packet.flags & (kClosed | kOpen)) != 0;
        if (restart) {
            unreliable_before_open_ = unreliable_ && (packet.flags & kOpen) != 0;
            unreliable_ = false;
        }
        const ConvertedPacket& converted = converter_.convert(packet.data, packet.size, first || restart);
        pictures_in_packet_ = 0;
        is_packet_damaged_ = converted.damaged;
        size_t at = 0;
        for (size_t end : converted.picture_ends) {
            SourcePacket picture = {};
            picture.data = converted.data + at;
            picture.size = end - at;
            picture.timestamp = packet.display_order;
            picture.flags = (at == 0 ? kPacketTimestamp : 0) | (reorders() ? kPacketEndOfPicture : 0);
            parse(picture);
            at = end;
        }
        first = false;
        // pictures that refer to a lost hidden picture of VP8 or VP9 do not reveal that
        const bool required =
            (packet.flags & kRequired) != 0 || !(reorders() || packet.size == 0 || shows_existing(packet));
        if ((pictures_in_packet_ == 0 || converted.damaged) && required && request_.trust_references) {
            unreliable_ = true;
        }
        if (pictures_in_packet_ > 1 && reorders() && packet.target >= 0) {
            request_.targets[packet.target].loss = Loss::TimestampMismatch;
        }
    }
    current_packet_ = range_.last - 1;
}

void RangeDecoder::parse(SourcePacket& packet) {
    const CUresult result = driver_.parser_parse(parser_, &packet);
    // a callback that failed has stored a more specific error
    if (result != kSuccess && !error_) {
        error_ = std::make_unique<Error>(Failure::Driver, "parsing a packet: " + driver_.describe(result));
    }
}

template <typename Step>
int RangeDecoder::catch_errors(Step step) {
    if (error_) {
        return 0;
    }
    try {
        return step();
    } catch (const std::exception& error) {
        error_ = std::make_unique<Error>(to_error(error));
    }
    return 0;
}

int RangeDecoder::on_sequence(void* self, VideoFormat* format) {
    auto* decoder = static_cast<RangeDecoder*>(self);
    return decoder->catch_errors([&] { return decoder->sequence(*format); });
}

int RangeDecoder::on_decode(void* self, PictureParams* params) {
    auto* decoder = static_cast<RangeDecoder*>(self);
    return decoder->catch_errors([&] { return decoder->decode(*params); });
}

int RangeDecoder::on_display(void* self, DisplayInfo* info) {
    auto* decoder = static_cast<RangeDecoder*>(self);
    return info == nullptr ? 1 : decoder->catch_errors([&] { return decoder->display(*info); });
}

int RangeDecoder::sequence(const VideoFormat& format) {
    // the pictures so far have the old size
    write_pending(0);
    if (!pictures_.empty()) {
        check_up_to(static_cast<int>(pictures_.size()) - 1);
    }
    unmap(0);
    const int64_t width = format.display_area.right - format.display_area.left;
    const int64_t height = format.display_area.bottom - format.display_area.top;
    if (width * height > request_.max_pixels) {
        throw Error(Failure::Limit, "the picture grows to " + std::to_string(width) + "x" + std::to_string(height) +
                                        "; limits.max_pixels is " + std::to_string(request_.max_pixels));
    }
    const bool same_key =
        session_ && session_->key() == session_key(format, device_.caps(format.codec, format.chroma,
                                                                        8 + format.bit_depth_luma_minus8));
    if (session_ && !(same_key && session_->has_size_of(format) && session_->has_surfaces_for(format))) {
        return_session(true);
    }
    format_ = format;
    if (!session_) {
        session_ = pool_.acquire(format);
        picture_in_surface_.assign(static_cast<size_t>(session_->surfaces()), -1);
    }
    return session_->surfaces();
}

int RangeDecoder::decode(PictureParams& params) {
    const int surface = params.picture;
    if (!session_ || surface < 0 || surface >= session_->surfaces()) {
        throw Error(Failure::Driver, "the parser uses a surface that does not exist");
    }
    const bool second_field = params.second_field != 0 && picture_in_surface_[surface] >= 0;
    if (!second_field) {
        // the surface will be overwritten
        while (std::any_of(pending_.begin(), pending_.end(),
                           [&](const Pending& p) { return pictures_[p.picture].surface == surface; })) {
            write_pending(pending_.size() - 1);
        }
        if (picture_in_surface_[surface] >= 0) {
            check_up_to(picture_in_surface_[surface]);
        }
        Picture picture = {};
        picture.packet = current_packet_;
        picture.surface = surface;
        picture.intra = params.is_intra != 0;
        pictures_.push_back(picture);
        picture_in_surface_[surface] = static_cast<int>(pictures_.size()) - 1;
        ++pictures_in_packet_;
    }
    Picture& picture = pictures_[picture_in_surface_[surface]];
    picture.intra &= params.is_intra != 0;
    collect_references(params, picture);
    driver_.check(driver_.decode_picture(session_->handle(), &params), "decoding a picture");
    ++submitted_;
    request_.pictures.fetch_add(second_field ? 0 : 1, std::memory_order_relaxed);
    while (!pending_.empty() && (submitted_ - pending_.front().at >= kMapDelay || pending_.size() > kMaxPending)) {
        write_pending(pending_.size() - 1);
    }
    return 1;
}

int RangeDecoder::display(const DisplayInfo& info) {
    if (info.picture < 0 || static_cast<size_t>(info.picture) >= picture_in_surface_.size() ||
        picture_in_surface_[info.picture] < 0) {
        return 1;  // not decoded in this range
    }
    const int index = picture_in_surface_[info.picture];
    Picture& picture = pictures_[index];
    // VP8 and VP9 do not reorder, and a VP9 packet may show a picture of an earlier packet
    const int packet = reorders() ? picture.packet : current_packet_;
    const int target = request_.packets[packet].target;
    if (target < 0 || (reorders() && picture.displayed)) {
        return 1;
    }
    picture.displayed = true;
    Loss& loss = request_.targets[target].loss;
    // A picture is identified by the packet that brought it, and its timestamp is checked: if timestamps do not ascend
    // in display order, which happens if the file's times contradict the bitstream, the parser exchanges them.
    const bool matches = reorders() ? info.timestamp == request_.packets[packet].display_order
                                    : picture.packet == packet || shows_existing(request_.packets[packet]);
    if (!matches) {
        loss = Loss::TimestampMismatch;
    }
    if (loss == Loss::Missing) {
        pending_.push_back({index, packet, info, submitted_});
    }
    return 1;
}

void RangeDecoder::check_up_to(int picture) {
    for (; num_checked_ <= picture; ++num_checked_) {
        Picture& one = pictures_[num_checked_];
        const int status = status_of(num_checked_);
        bool reliable = status != kStatusError && status != kStatusErrorConcealed && status != kStatusInProgress;
        if (request_.trust_references && !one.intra) {
            reliable &= std::all_of(one.references.begin(), one.references.end(),
                                    [&](int r) { return r >= 0 && (r >= num_checked_ || pictures_[r].reliable); });
        }
        one.reliable = reliable && one.reliable;
    }
}

// Returns the final decode status of a picture: kStatusInvalid if the GPU has none for this codec, kStatusInProgress if
// the request is stopped before.
int RangeDecoder::status_of(int picture) {
    const auto timeout = Clock::now() + kStatusTimeout;
    while (has_status_) {
        if (request_.stopped()) {
            stopped_ = true;
            return kStatusInProgress;
        }
        DecodeStatus status = {};
        const CUresult result = driver_.decode_status(session_->handle(), pictures_[picture].surface, &status);
        if (result == kNotSupported && picture == 0) {
            has_status_ = false;
        } else if (result != kSuccess) {
            return kStatusError;  // nothing proves that this picture is good; the next one may have a status
        } else if (status.status != kStatusInProgress) {
            return status.status;
        } else if (Clock::now() >= timeout) {
            throw Error(Failure::Driver, "the video decoder has not finished a picture within 30 seconds");
        } else {
            std::this_thread::sleep_for(kStatusPoll);
        }
    }
    return kStatusInvalid;
}

void RangeDecoder::write_pending(size_t keep) {
    while (pending_.size() > keep) {
        const Pending pending = pending_.front();
        pending_.pop_front();
        write_out(pending);
    }
}

void RangeDecoder::write_out(const Pending& pending) {
    if (stopped_) {
        return;
    }
    unmap(kMaxMapped);
    ProcessParams process = {};
    process.progressive_frame = pending.info.progressive_frame;
    process.top_field_first = pending.info.top_field_first;
    process.unpaired_field = pending.info.repeat_first_field < 0;
    process.output_stream = stream_;
    CUdeviceptr address = 0;
    unsigned pitch = 0;
    driver_.check(driver_.map_frame(session_->handle(), pictures_[pending.picture].surface, &address, &pitch, &process),
                  "mapping a picture");
    const int32_t target = request_.packets[pending.packet].target;
    mapped_.push_back({address, target, nullptr});
    // mapping has waited for the picture and all before it, so their status is final
    check_up_to(pending.picture);
    if (stopped_) {
        return;
    }
    Loss& loss = request_.targets[target].loss;
    if (!pictures_[pending.picture].reliable || process.unpaired_field) {
        loss = Loss::Damaged;
        return;
    }
    convert(pending, address, pitch);
    loss = Loss::None;
}

void RangeDecoder::convert(const Pending& pending, CUdeviceptr address, unsigned pitch) {
    const Surface surface = session_->surface(address, pitch, format_);
    const auto scale = device_.scale(surface, request_.geometry, stream_);
    if (scales_.empty() || scales_.back() != scale) {
        scales_.push_back(scale);  // kept until its kernels are finished
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
        events_.push_back(make_event(driver_));
    }
    mapped_.back().converted = std::move(events_.back());
    events_.pop_back();
    driver_.check(driver_.event_record(mapped_.back().converted.get(), stream_), "marking a converted frame");
    request_.mapped.fetch_add(1, std::memory_order_relaxed);
}

// Unmaps all pictures except the last `keep`, each after its conversion. All of them also if one fails; its frame is lost.
void RangeDecoder::unmap(size_t keep) {
    CUresult converted = kSuccess;
    CUresult unmapped = kSuccess;
    while (mapped_.size() > keep) {
        Mapped mapped = std::move(mapped_.front());
        mapped_.pop_front();
        if (mapped.converted) {
            const CUresult result = driver_.event_synchronize(mapped.converted.get());
            if (result != kSuccess) {
                request_.targets[mapped.target].loss = Loss::Failed;
                converted = result;
            }
            events_.push_back(std::move(mapped.converted));
        }
        const CUresult result = driver_.unmap_frame(session_->handle(), mapped.address);
        unmapped = result == kSuccess ? unmapped : result;
    }
    driver_.check(converted, "converting a frame");
    driver_.check(unmapped, "unmapping a picture");
}

// Waits until the session has decoded everything, so that it can be reused.
void RangeDecoder::drain() {
    unmap(0);
    if (!session_ || pictures_.empty() || picture_in_surface_[pictures_.back().surface] < 0) {
        return;
    }
    ProcessParams process = {};
    process.output_stream = stream_;
    process.progressive_frame = 1;
    CUdeviceptr address = 0;
    unsigned pitch = 0;
    driver_.check(driver_.map_frame(session_->handle(), pictures_.back().surface, &address, &pitch, &process),
                  "finishing a decode range");
    driver_.check(driver_.unmap_frame(session_->handle(), address), "finishing a decode range");
}

void RangeDecoder::return_session(bool healthy) {
    if (!session_) {
        return;
    }
    try {
        unmap(0);
    } catch (const std::exception& error) {
        healthy = false;
        if (!error_) {
            error_ = std::make_unique<Error>(to_error(error));
        }
    }
    pool_.give_back(std::move(session_), healthy);
    picture_in_surface_.clear();
}

}  // namespace telecine
