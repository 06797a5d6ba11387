// A session: one hardware decoder instance. And the store in which they stay warm between runs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "device.h"

namespace telecine {

// What a session was made for. A video of another codec, chroma format, bit depth or size class needs another one. The
// part of the picture that is shown is not in here: sessions decode the whole coded picture, and the conversion crops
// it.
struct SessionKey {
    VideoCodec codec;
    Chroma chroma;
    int depth;
    int max_width, max_height;

    bool operator==(const SessionKey& other) const {
        return codec == other.codec && chroma == other.chroma && depth == other.depth && max_width == other.max_width &&
               max_height == other.max_height;
    }
};

class Session {
public:
    // Creates the decoder; throws Error. The context must be current, here and in all that follows.
    Session(Device& device, const SessionKey& key, const VideoFormat& format, int surfaces);
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    // Make it decode pictures of that size from now on. Only from a parser's sequence callback.
    void reconfigure(const VideoFormat& format);
    bool is_for(const VideoFormat& format) const;
    bool has_surfaces_for(const VideoFormat& format) const;

    // The surface of a mapped picture, cropped to what `format` shows.
    Surface surface(CUdeviceptr address, unsigned pitch, const VideoFormat& format) const;

    CUvideodecoder handle() const { return handle_; }
    const SessionKey& key() const { return key_; }
    int surfaces() const { return surfaces_; }
    size_t bytes() const { return bytes_; }
    Device& device() const { return device_; }

private:
    Device& device_;
    SessionKey key_;
    CUvideodecoder handle_ = nullptr;
    int surfaces_;
    int width_, height_;  // as configured: coded, made even
    size_t bytes_;
};

struct SessionStats {
    std::atomic<int64_t> made{0}, reused{0}, reconfigured{0}, evicted{0}, destroyed_after_error{0};
};

// The warm sessions of one device. Any worker may take any of them.
class SessionStore {
public:
    explicit SessionStore(Device& device) : device_(device) {}

    // A session for that format, warm or new; the caller has it alone until it gives it back. Throws Error.
    std::unique_ptr<Session> take(const VideoFormat& format);

    // `healthy` false: something failed in it, and it is destroyed.
    void give(std::unique_ptr<Session> session, bool healthy);

    void make_warm(const VideoFormat& format, int count);
    void clear();
    void set_limits(size_t bytes, size_t idle);
    size_t bytes() const { return bytes_.load(); }
    size_t idle() const;
    const SessionStats& stats() const { return stats_; }
    SessionStats& stats() { return stats_; }

private:
    std::unique_ptr<Session> create(const SessionKey& key, const VideoFormat& format);
    bool evict_one();
    void destroy(std::unique_ptr<Session> session);

    Device& device_;
    mutable std::mutex mutex_;
    std::mutex creating_;  // the driver makes one decoder at a time, and is slower when asked for several
    std::list<std::unique_ptr<Session>> idle_;  // most recently used first
    std::atomic<size_t> bytes_{0};
    size_t max_bytes_ = 4ull << 30;
    size_t max_idle_ = 16;
    SessionStats stats_;
};

// The key for a format: its size class is the smallest of a few common sizes that holds it, so that one session serves
// many clips.
SessionKey session_key(const VideoFormat& format, const DecodeCaps& caps);

// Throws Error(Unsupported) with the reason if the device cannot decode the format.
void require_supported(const VideoFormat& format, const DecodeCaps& caps);

}  // namespace telecine
