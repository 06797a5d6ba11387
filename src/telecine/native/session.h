// Decoder sessions, each one hardware decoder instance, and the pool that keeps idle ones for reuse.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "device.h"

namespace telecine {

// The properties that a video must share to reuse a session. Cropping is not among them: a session decodes the whole
// coded picture, and the conversion crops it.
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
    // Creates the decoder; throws Error. The context must be current, here and in all other calls.
    Session(Device& device, const SessionKey& key, const VideoFormat& format, int surfaces);
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    // Changes the size of the pictures. Call it only in a parser's sequence callback.
    void reconfigure(const VideoFormat& format);
    bool has_size_of(const VideoFormat& format) const;
    bool has_surfaces_for(const VideoFormat& format) const;

    // Returns the surface of a mapped picture, cropped to the display area of `format`.
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
    int width_, height_;  // configured coded size, rounded up to even
    size_t bytes_;
};

struct SessionStats {
    std::atomic<int64_t> made{0}, reused{0}, reconfigured{0}, evicted{0}, destroyed_after_error{0};
};

// The sessions of one device. Thread-safe: any worker may use any idle session.
class SessionPool {
public:
    explicit SessionPool(Device& device) : device_(device) {}

    // Returns an idle or new session for a format, for exclusive use until give_back(). Throws Error.
    std::unique_ptr<Session> acquire(const VideoFormat& format);

    // With `healthy` false, after a failure, the session is destroyed.
    void give_back(std::unique_ptr<Session> session, bool healthy);

    // Creates `count` idle sessions in advance.
    void add_idle(const VideoFormat& format, int count);
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
    std::mutex creating_;  // the driver creates one decoder at a time, and is slower with concurrent calls
    std::list<std::unique_ptr<Session>> idle_;  // most recently used first
    std::atomic<size_t> bytes_{0};
    std::atomic<size_t> max_bytes_{4ull << 30};
    std::atomic<size_t> max_idle_{16};
    SessionStats stats_;
};

// Returns the key of a format. Its maximum size is the smallest of a few common sizes that holds it, so that many clips
// can share a session.
SessionKey session_key(const VideoFormat& format, const DecodeCaps& caps);

// Throws Error(Unsupported) with the reason if the device cannot decode the format.
void require_supported(const VideoFormat& format, const DecodeCaps& caps);

}  // namespace telecine
