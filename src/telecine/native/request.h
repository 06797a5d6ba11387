// The arguments and results of one call of decode(). Shared by the calling thread and the workers.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "driver.h"
#include "scaler.h"

namespace telecine {

enum PacketFlag : uint8_t {
    kClosed = 1,    // closed random access point: nothing after it refers to anything before, so damage ends here
    kRequired = 2,  // if it brings no reliable picture, the following pictures are unreliable
    kCorrupt = 4,   // the container reports missing bytes
    kOpen = 8,      // open random access point: leading pictures that follow may refer to pictures before it
    kLeading = 16,  // leading picture of the random access point before it
};

struct Packet {
    const uint8_t* data;
    size_t size;
    int64_t display_order;  // position in display order; distinct within a decode range
    uint8_t flags;
    int32_t target;  // index into Request::targets, or -1
};

enum class Loss : uint8_t { None = 0, Missing = 1, Damaged = 2, TimestampMismatch = 3, Failed = 4, Stopped = 5 };

// A wanted frame and the output rows that it fills.
struct Target {
    std::vector<int64_t> rows;
    Loss loss = Loss::Missing;
};

// The packets fed from one random access point up to the last frame wanted from it.
struct DecodeRange {
    int first, last;  // packets [first, last)
};

using Clock = std::chrono::steady_clock;

struct Request {
    VideoCodec codec;
    std::vector<uint8_t> extradata;
    std::vector<Packet> packets;
    std::vector<Target> targets;
    std::vector<DecodeRange> ranges;
    Geometry geometry;
    int64_t max_pixels = INT64_MAX;  // of a picture; its size may change at any random access point
    bool trust_references = true;    // false: no random access point is exact, so missing references are normal
    CUdeviceptr out = 0;
    int64_t row_bytes = 0;
    CUevent ready = nullptr;  // recorded on the caller's stream; the output may be written after it. Not owned
    Clock::time_point deadline = Clock::time_point::max();
    // Returns true if the request is cancelled; called by the calling thread every few milliseconds. May be empty.
    std::function<bool()> is_cancelled;

    std::atomic<bool> stop{false};  // set at cancellation, and by the first thread that sees the deadline pass
    std::atomic<int64_t> pictures{0}, mapped{0};

    // protected by the engine's mutex
    size_t next_range = 0, running = 0, finished = 0;
    bool failed = false;
    Failure failure = Failure::Driver;
    std::string failure_text;
    std::vector<Event> written;  // one for each range, recorded after its last write

    bool stopped() const { return stop.load(std::memory_order_relaxed) || Clock::now() >= deadline; }
};

}  // namespace telecine
