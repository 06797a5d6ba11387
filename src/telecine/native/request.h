// What one call asks for, and what came of it. Shared by the calling thread and the workers.
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
    kRestart = 1,   // decoding can start here, and nothing after it refers to what lies before: damage ends here
    kNeeded = 2,    // if it brings no sound picture, what follows is not sound either
    kCorrupt = 4,   // the container says that bytes of it are missing
    kOpen = 8,      // decoding can start here, but for the leading pictures that follow
    kLeading = 16,  // may need what lies before the point of access in front of it
};

struct Packet {
    const uint8_t* data;
    size_t size;
    int64_t order;  // its place in presentation order; distinct within a run
    uint8_t flags;
    int32_t target;  // index into Request::targets, or -1
};

enum class Loss : uint8_t { None = 0, Missing = 1, Damaged = 2, Mislabelled = 3, Failed = 4, Stopped = 5 };

// A wanted frame and the output rows that it fills.
struct Target {
    std::vector<int64_t> rows;
    Loss loss = Loss::Missing;
};

struct Run {
    int first, last;  // packets [first, last)
};

using Clock = std::chrono::steady_clock;

struct Request {
    VideoCodec codec;
    std::vector<uint8_t> extradata;
    std::vector<Packet> packets;
    std::vector<Target> targets;
    std::vector<Run> runs;
    Geometry geometry;
    int64_t max_pixels = INT64_MAX;  // of a picture; a stream may change its size at any point of access
    bool trust_references = true;    // false: no point of access is exact, so missing references mean nothing
    CUdeviceptr out = 0;
    int64_t row_bytes = 0;
    CUevent ready = nullptr;  // the output may be written from here on
    Clock::time_point deadline = Clock::time_point::max();
    // Asked by the calling thread every few milliseconds: whether the request is withdrawn. May be empty.
    std::function<bool()> withdrawn;

    std::atomic<bool> stop{false};  // the caller gave up
    std::atomic<int64_t> pictures{0}, mapped{0};

    // guarded by the engine's mutex
    size_t next_run = 0, running = 0, finished = 0;
    bool failed = false;
    Failure failure = Failure::Driver;
    std::string failure_text;
    std::vector<CUevent> written;  // recorded after the last write of each run

    bool stopped() const { return stop.load(std::memory_order_relaxed) || Clock::now() >= deadline; }
};

}  // namespace telecine
