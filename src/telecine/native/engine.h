// The workers of one device, and the queue of runs between them and the callers.
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
    int64_t requests = 0, runs = 0, pictures = 0, frames = 0;
    int workers = 0, queued_runs = 0, running_runs = 0;
};

class Engine {
public:
    // The engine of a device, made on first use; its threads start with the first decode.
    static Engine& of(int ordinal);

    // Stop the threads of all engines. With `release`, also free what they hold on the GPU; without, leave it to the
    // end of the process, whose driver may be half gone already. Returns whether all threads ended in time.
    static bool stop_all(bool release);

    // Decode. Blocks until every run has its verdict, the deadline has passed or the request is cancelled; in all cases
    // no worker touches the request or its output afterwards. `stream` may use the output once this returns.
    void decode(Request& request, CUstream stream);

    void warm_up(const VideoFormat& format, int count);
    void set_workers(int count);
    Device& device() { return device_; }
    SessionStore& store() { return store_; }
    EngineStats stats();

private:
    explicit Engine(Device& device) : device_(device), store_(device) {}
    void start_workers();
    void work(bool loads_kernel);
    Request* next(std::unique_lock<std::mutex>& lock, Run& run);
    void execute(Request& request, const Run& run, CUstream stream);
    void wait_for(Request& request, std::unique_lock<std::mutex>& lock);
    void park_if_exiting(std::unique_lock<std::mutex>& lock);
    bool stop(bool release);

    Device& device_;
    SessionStore store_;
    std::mutex mutex_;
    std::condition_variable work_available_;
    std::condition_variable work_done_;
    std::list<Request*> waiting_;  // requests with runs that nobody has taken; served in turn
    std::vector<std::thread> threads_;
    int alive_ = 0;
    int wanted_workers_ = 0;
    int callers_ = 0, parked_ = 0;  // threads inside decode(), and those of them that never return
    bool stopping_ = false;
    bool exiting_ = false;
    EngineStats stats_;
};

}  // namespace telecine
