#include "session.h"

#include <algorithm>

namespace telecine {
namespace {

// Surfaces beyond the parser's minimum, so that the video engine has pictures queued while an older one is mapped.
constexpr int kExtraSurfaces = 3;
constexpr int kMinSurfaces = 8;
constexpr int kOutputSurfaces = 2;

struct SizeClass {
    int width, height;
};
constexpr SizeClass kSizeClasses[] = {{960, 544}, {544, 960}, {1920, 1088}, {1088, 1920}, {4096, 2304}, {2304, 4096}};

int even(unsigned value) {
    return static_cast<int>((value + 1) & ~1u);
}

SurfaceFormat output_format(Chroma chroma, int depth) {
    if (chroma == Chroma::C444) {
        return depth > 8 ? SurfaceFormat::Yuv444_16 : SurfaceFormat::Yuv444;
    }
    if (chroma == Chroma::C422) {
        return depth > 8 ? SurfaceFormat::P216 : SurfaceFormat::Nv16;
    }
    return depth > 8 ? SurfaceFormat::P016 : SurfaceFormat::Nv12;
}

// Estimates the bytes of one picture; the driver aligns it and adds tables of its own.
size_t picture_bytes(const SessionKey& key, int width, int height) {
    const size_t luma = static_cast<size_t>((width + 63) & ~63) * static_cast<size_t>((height + 63) & ~63);
    const size_t samples = key.chroma == Chroma::C420 ? luma * 3 / 2 : key.chroma == Chroma::C422 ? luma * 2 : luma * 3;
    return samples * (key.depth > 8 ? 2 : 1);
}

}  // namespace

SessionKey session_key(const VideoFormat& format, const DecodeCaps& caps) {
    SessionKey key = {format.codec, format.chroma, 8 + format.bit_depth_luma_minus8, even(format.coded_width),
                      even(format.coded_height)};
    for (const SizeClass& size : kSizeClasses) {
        if (key.max_width <= size.width && key.max_height <= size.height &&
            static_cast<unsigned>(size.width) <= caps.max_width &&
            static_cast<unsigned>(size.height) <= caps.max_height) {
            key.max_width = size.width;
            key.max_height = size.height;
            break;
        }
    }
    return key;
}

void require_supported(const VideoFormat& format, const DecodeCaps& caps) {
    const int depth = 8 + format.bit_depth_luma_minus8;
    const auto refuse = [](const std::string& why) { throw Error(Failure::Unsupported, why); };
    if (format.chroma == Chroma::Monochrome || format.bit_depth_luma_minus8 != format.bit_depth_chroma_minus8) {
        refuse("there is no conversion on the GPU for this chroma format");
    }
    const auto output = static_cast<int>(output_format(format.chroma, depth));
    if (!caps.supported || !(caps.output_format_mask >> output & 1)) {
        refuse("the GPU's video decoder does not know this codec with this chroma format and " + std::to_string(depth) +
               " bits");
    }
    const unsigned width = format.coded_width;
    const unsigned height = format.coded_height;
    const std::string size = std::to_string(width) + "x" + std::to_string(height);
    if (width > caps.max_width || height > caps.max_height ||
        static_cast<uint64_t>(width) * height / 256 > caps.max_macroblocks) {
        refuse(size + " is above the maximum of the GPU's video decoder, " + std::to_string(caps.max_width) + "x" +
               std::to_string(caps.max_height));
    }
    if (width < caps.min_width || height < caps.min_height) {
        refuse(size + " is below the minimum of the GPU's video decoder, " + std::to_string(caps.min_width) + "x" +
               std::to_string(caps.min_height));
    }
    const auto& shown = format.display_area;
    if (shown.left < 0 || shown.top < 0 || shown.right <= shown.left || shown.bottom <= shown.top ||
        static_cast<unsigned>(shown.right) > width || static_cast<unsigned>(shown.bottom) > height) {
        refuse("the cropping of the stream is outside of the picture");
    }
}

Session::Session(Device& device, const SessionKey& key, const VideoFormat& format, int surfaces)
    : device_(device),
      key_(key),
      surfaces_(surfaces),
      width_(even(format.coded_width)),
      height_(even(format.coded_height)) {
    DecodeCreateInfo info = {};
    info.width = static_cast<unsigned long>(width_);
    info.height = static_cast<unsigned long>(height_);
    info.max_width = static_cast<unsigned long>(key.max_width);
    info.max_height = static_cast<unsigned long>(key.max_height);
    info.num_decode_surfaces = static_cast<unsigned long>(surfaces);
    info.codec = key.codec;
    info.chroma = key.chroma;
    info.creation_flags = kCreatePreferCuvid;
    info.bit_depth_minus8 = static_cast<unsigned long>(key.depth - 8);
    info.output_format = output_format(key.chroma, key.depth);
    info.deinterlace_mode = kDeinterlaceWeave;
    // the target is the coded size, so that the driver does not scale
    info.target_width = info.width;
    info.target_height = info.height;
    info.display_area = {0, 0, static_cast<short>(width_), static_cast<short>(height_)};
    info.num_output_surfaces = kOutputSurfaces;
    device.driver().check(device.driver().decoder_create(&handle_, &info), "creating a decoder session");
    bytes_ = picture_bytes(key, key.max_width, key.max_height) * static_cast<size_t>(surfaces + kOutputSurfaces);
}

Session::~Session() {
    device_.driver().decoder_destroy(handle_);
}

bool Session::has_size_of(const VideoFormat& format) const {
    return width_ == even(format.coded_width) && height_ == even(format.coded_height);
}

bool Session::has_surfaces_for(const VideoFormat& format) const {
    return format.min_num_decode_surfaces <= surfaces_;
}

void Session::reconfigure(const VideoFormat& format) {
    ReconfigureInfo info = {};
    width_ = even(format.coded_width);
    height_ = even(format.coded_height);
    info.width = info.target_width = static_cast<unsigned>(width_);
    info.height = info.target_height = static_cast<unsigned>(height_);
    info.num_decode_surfaces = static_cast<unsigned>(surfaces_);
    info.display_area = {0, 0, static_cast<short>(width_), static_cast<short>(height_)};
    device_.driver().check(device_.driver().decoder_reconfigure(handle_, &info),
                           "changing the size of a decoder session");
}

Surface Session::surface(CUdeviceptr address, unsigned pitch, const VideoFormat& format) const {
    Surface surface;
    surface.address = address;
    surface.pitch = static_cast<int>(pitch);
    surface.rows = height_;
    surface.left = format.display_area.left;
    surface.top = format.display_area.top;
    surface.width = format.display_area.right - format.display_area.left;
    surface.height = format.display_area.bottom - format.display_area.top;
    surface.depth = key_.depth;
    surface.chroma_shift_x = key_.chroma == Chroma::C444 ? 0 : 1;
    surface.chroma_shift_y = key_.chroma == Chroma::C420 ? 1 : 0;
    surface.interleaved = key_.chroma != Chroma::C444;
    return surface;
}

std::unique_ptr<Session> SessionPool::acquire(const VideoFormat& format) {
    const DecodeCaps caps = device_.caps(format.codec, format.chroma, 8 + format.bit_depth_luma_minus8);
    require_supported(format, caps);
    const SessionKey key = session_key(format, caps);
    std::unique_ptr<Session> found;
    std::unique_ptr<Session> too_small;
    {
        std::lock_guard<std::mutex> hold(mutex_);
        auto best = idle_.end();
        for (auto entry = idle_.begin(); entry != idle_.end(); ++entry) {
            if (!((*entry)->key() == key)) {
                continue;
            }
            if (!(*entry)->has_surfaces_for(format)) {
                too_small = std::move(*entry);
                idle_.erase(entry);
                break;
            }
            if (best == idle_.end() || (*entry)->has_size_of(format)) {
                best = entry;
                if ((*entry)->has_size_of(format)) {
                    break;
                }
            }
        }
        if (!too_small && best != idle_.end()) {
            found = std::move(*best);
            idle_.erase(best);
        }
    }
    if (too_small) {
        ++stats_.evicted;
        destroy(std::move(too_small));
    }
    if (!found) {
        return create(key, format);
    }
    ++stats_.reused;
    if (!found->has_size_of(format)) {
        try {
            found->reconfigure(format);
        } catch (...) {
            give_back(std::move(found), false);
            throw;
        }
        ++stats_.reconfigured;
    }
    return found;
}

std::unique_ptr<Session> SessionPool::create(const SessionKey& key, const VideoFormat& format) {
    const int surfaces = std::max(format.min_num_decode_surfaces + kExtraSurfaces, kMinSurfaces);
    const size_t needed =
        picture_bytes(key, key.max_width, key.max_height) * static_cast<size_t>(surfaces + kOutputSurfaces);
    if (needed > max_bytes_) {
        throw Error(Failure::Memory, "a decoder session for this video needs " + std::to_string(needed >> 20) +
                                         " MiB of GPU memory; the limit of all sessions together is " +
                                         std::to_string(max_bytes_ >> 20) + " MiB");
    }
    std::lock_guard<std::mutex> one_at_a_time(creating_);
    while (bytes_ + needed > max_bytes_ && evict_one()) {
    }
    for (bool retried = false;; retried = true) {
        try {
            auto session = std::make_unique<Session>(device_, key, format, surfaces);
            bytes_ += session->bytes();
            ++stats_.made;
            return session;
        } catch (const Error& error) {
            // free the idle sessions for this request
            if (retried || error.kind != Failure::Memory || idle() == 0) {
                throw;
            }
            clear();
        }
    }
}

bool SessionPool::evict_one() {
    std::unique_ptr<Session> oldest;
    {
        std::lock_guard<std::mutex> hold(mutex_);
        if (idle_.empty()) {
            return false;
        }
        oldest = std::move(idle_.back());
        idle_.pop_back();
    }
    ++stats_.evicted;
    destroy(std::move(oldest));
    return true;
}

void SessionPool::destroy(std::unique_ptr<Session> session) {
    bytes_ -= session->bytes();
    session.reset();
}

void SessionPool::give_back(std::unique_ptr<Session> session, bool healthy) {
    if (!session) {
        return;
    }
    if (!healthy) {
        ++stats_.destroyed_after_error;
        destroy(std::move(session));
        return;
    }
    {
        std::lock_guard<std::mutex> hold(mutex_);
        idle_.push_front(std::move(session));
    }
    while (idle() > max_idle_ || (bytes_ > max_bytes_ && idle() > 0)) {
        if (!evict_one()) {
            return;
        }
    }
}

void SessionPool::add_idle(const VideoFormat& format, int count) {
    std::list<std::unique_ptr<Session>> held;
    const auto give_all_back = [&] {
        for (auto& session : held) {
            give_back(std::move(session), true);
        }
    };
    try {
        for (int i = 0; i < count; ++i) {
            held.push_back(acquire(format));
        }
    } catch (...) {
        give_all_back();
        throw;
    }
    give_all_back();
}

void SessionPool::clear() {
    while (evict_one()) {
    }
}

void SessionPool::set_limits(size_t bytes, size_t idle) {
    max_bytes_ = bytes;
    max_idle_ = idle;
}

size_t SessionPool::idle() const {
    std::lock_guard<std::mutex> hold(mutex_);
    return idle_.size();
}

}  // namespace telecine
