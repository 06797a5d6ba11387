// The worker threads of one GPU, and the queue of decode ranges between them and the callers.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "device.h"
#include "request.h"
#include "session.h"

namespace telecine {

struct EngineStats {
    int64_t requests = 0, ranges = 0, pictures = 0, frames = 0;
    int workers = 0, queued_ranges = 0, running_ranges = 0;
};

class Engine {
public:
    // Returns the engine of a device, which is made on first use. Its threads start with the first decode.
    static Engine& of(int ordinal);

    // Stops the threads of all engines. With `release`, also frees their GPU memory; without, the process ends and the
    // driver may be partly unloaded already. Returns true if all threads ended in time.
    static bool stop_all(bool release);

    // Decodes. Blocks until every range is finished, the deadline has passed or the request is cancelled. In all cases
    // no worker uses the request or its output afterwards. `stream` may use the output after the return.
    void decode(Request& request, CUstream stream);

    void warm_up(const VideoFormat& format, int count);
    void set_workers(int count);
    Device& device() { return device_; }
    SessionPool& pool() { return pool_; }
    EngineStats stats();

private:
    explicit Engine(Device& device) : device_(device), pool_(device) {}
    void start_workers();
    void work(bool loads_kernel);
    Request* next(std::unique_lock<std::mutex>& lock, DecodeRange& range);
    void execute(Request& request, const DecodeRange& range, CUstream stream);
    void wait_for(Request& request, std::unique_lock<std::mutex>& lock);
    void block_if_exiting(std::unique_lock<std::mutex>& lock);
    bool stop(bool release);

    Device& device_;
    SessionPool pool_;
    std::mutex mutex_;
    std::condition_variable work_available_;
    std::condition_variable work_done_;
    std::list<Request*> waiting_;  // requests with ranges that no worker has taken; served round robin
    std::vector<std::thread> threads_;
    int alive_ = 0;
    int requested_workers_ = 0;
    int callers_ = 0, blocked_callers_ = 0;  // threads in decode(), and those of them that never return
    bool stopping_ = false;
    bool exiting_ = false;
    EngineStats stats_;
};

}  // namespace telecine
