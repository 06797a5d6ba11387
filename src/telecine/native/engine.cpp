#include "engine.h"

#include <algorithm>
#include <map>
#include <system_error>

#include "range_decoder.h"

namespace telecine {
namespace {

// Interval at which a waiting caller checks for cancellation.
constexpr auto kCancelPoll = std::chrono::milliseconds(20);
constexpr auto kStopTimeout = std::chrono::seconds(5);
constexpr int kMaxWorkers = 16;

std::mutex g_engines_mutex;

std::map<Device*, Engine*>& engines() {
    static auto& map = *new std::map<Device*, Engine*>();  // outlives static destruction
    return map;
}

// Marks the targets of a range that ended with an error and that have no result yet.
void mark_failed(Request& request, const DecodeRange& range) {
    for (int i = range.first; i < range.last; ++i) {
        const int target = request.packets[i].target;
        if (target >= 0 && request.targets[target].loss == Loss::Missing) {
            request.targets[target].loss = Loss::Failed;
        }
    }
}

}  // namespace

Engine& Engine::of(int ordinal) {
    Device& device = Device::open(ordinal);
    std::lock_guard<std::mutex> hold(g_engines_mutex);
    auto found = engines().find(&device);
    if (found == engines().end()) {
        found = engines().emplace(&device, new Engine(device)).first;
    }
    return *found->second;
}

bool Engine::stop_all(bool release) {
    std::lock_guard<std::mutex> hold(g_engines_mutex);
    bool all = true;
    for (const auto& entry : engines()) {
        all &= entry.second->stop(release);
    }
    return all;
}

void Engine::set_workers(int count) {
    std::lock_guard<std::mutex> hold(mutex_);
    if (alive_ > 0) {
        throw Error(Failure::Driver, "the workers are running already; set their number before the first decode");
    }
    requested_workers_ = count;
}

// Starts one worker for each video engine of the GPU, and one more, which feeds an engine while another worker drains
// its session: 3 to 4 % more pictures per second on an H200. Further workers cost CPU time and gain little.
void Engine::start_workers() {
    int count = requested_workers_;
    if (count == 0) {
        for (VideoCodec codec : {VideoCodec::H264, VideoCodec::Hevc}) {
            const DecodeCaps caps = device_.caps(codec, Chroma::C420, 8);
            count = std::max(count, caps.supported ? static_cast<int>(caps.num_engines) : 0);
        }
        ++count;
    }
    count = std::max(1, std::min(count, kMaxWorkers));
    while (alive_ < count) {
        // the last worker loads the kernel while the others create their sessions
        const bool last = alive_ + 1 == count;
        try {
            threads_.emplace_back([this, last] { work(last); });
        } catch (const std::system_error& error) {
            if (alive_ > 0) {
                return;  // the next request tries again to start the others
            }
            throw Error(Failure::Threads, std::string("no thread can be started for decoding (") + error.what() +
                                              "); raise the limit of threads, or send fewer requests at once");
        }
        ++alive_;
    }
}

void Engine::work(bool loads_kernel) {
    const Driver& driver = device_.driver();
    CUstream stream = nullptr;
    const bool ready = driver.push_current(device_.context()) == kSuccess &&
                       driver.stream_create(&stream, kStreamNonBlocking) == kSuccess;
    if (ready && loads_kernel) {
        try {
            device_.load_kernel();
        } catch (const Error&) {
            // the first conversion tries again, and reports the error
        }
    }
    std::unique_lock<std::mutex> lock(mutex_);
    DecodeRange range = {};
    while (Request* request = next(lock, range)) {
        ++request->running;
        ++stats_.running_ranges;
        lock.unlock();
        try {
            if (!ready) {
                throw Error(Failure::Driver, "a worker could not get a stream of the GPU");
            }
            execute(*request, range, stream);
            lock.lock();
        } catch (const std::exception& error) {
            const Error failure = to_error(error);
            lock.lock();
            mark_failed(*request, range);
            if (!request->failed) {
                request->failed = true;
                request->failure = failure.kind;
                request->failure_text = failure.what();
            }
        }
        ++stats_.ranges;
        --stats_.running_ranges;
        --request->running;
        ++request->finished;
        work_done_.notify_all();
    }
    lock.unlock();
    if (stream != nullptr) {
        driver.stream_destroy(stream);
    }
    CUcontext popped = nullptr;
    driver.pop_current(&popped);
    lock.lock();
    --alive_;
    work_done_.notify_all();
}

// Waits for the next decode range, round robin over the waiting requests, so that a long video does not delay a short
// one. Returns nullptr if the engine stops.
Request* Engine::next(std::unique_lock<std::mutex>& lock, DecodeRange& range) {
    work_available_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (stopping_) {
        return nullptr;
    }
    Request* request = waiting_.front();
    waiting_.pop_front();
    range = request->ranges[request->next_range++];
    if (request->next_range < request->ranges.size()) {
        waiting_.push_back(request);
    }
    return request;
}

void Engine::execute(Request& request, const DecodeRange& range, CUstream stream) {
    const Driver& driver = device_.driver();
    if (request.ready != nullptr) {
        driver.check(driver.stream_wait(stream, request.ready, 0), "waiting for the output memory");
    }
    const auto mark_written = [&] {
        try {
            Event event = make_event(driver);
            driver.check(driver.event_record(event.get(), stream), "marking the end of a decode range");
            std::lock_guard<std::mutex> hold(mutex_);
            request.written.push_back(std::move(event));
        } catch (...) {
            driver.stream_synchronize(stream);  // without an event the caller's stream cannot wait for the last write
            throw;
        }
    };
    try {
        RangeDecoder decoder(device_, pool_, stream, request, range);
        decoder.execute();
    } catch (...) {
        mark_written();
        throw;
    }
    mark_written();
}

void Engine::wait_for(Request& request, std::unique_lock<std::mutex>& lock) {
    while (request.finished < request.ranges.size()) {
        work_done_.wait_until(lock, std::min(request.deadline, Clock::now() + kCancelPoll));
        if (!stopping_ && request.is_cancelled && request.finished < request.ranges.size()) {
            // without the lock: the check needs the GIL, and a thread that holds the GIL may wait for this lock
            lock.unlock();
            request.stop = request.stop || request.is_cancelled();
            lock.lock();
        }
        if (stopping_ || request.stopped()) {
            request.stop = true;
            waiting_.remove(&request);
            request.next_range = request.ranges.size();
            // ranges that are being decoded stop at their next packet, and may write the output until then
            work_done_.wait(lock, [&] { return request.running == 0; });
            return;
        }
    }
}

// Blocks forever at the exit of the process. Only daemon threads are still here then. Python would end them when they
// acquire the GIL, by unwinding C++ frames that cannot be unwound.
void Engine::block_if_exiting(std::unique_lock<std::mutex>& lock) {
    if (!exiting_) {
        return;
    }
    ++blocked_callers_;
    work_done_.notify_all();
    lock.unlock();
    while (true) {
        std::this_thread::sleep_for(std::chrono::hours(1));
    }
}

void Engine::decode(Request& request, CUstream stream) {
    const Driver& driver = device_.driver();
    ScopedContext scope(driver, device_.context());
    Event ready;
    if (request.out != 0) {
        ready = make_event(driver);
        driver.check(driver.event_record(ready.get(), stream), "recording an event for the output memory");
        request.ready = ready.get();
    }
    std::vector<Event> written;
    {
        std::unique_lock<std::mutex> lock(mutex_);
        if (stopping_) {
            throw Error(Failure::Unusable, "the decoder threads are stopped");
        }
        if (!request.ranges.empty()) {
            start_workers();
            waiting_.push_back(&request);
        }
        ++stats_.requests;
        ++callers_;  // nothing throws until it is decremented
        work_available_.notify_all();
        wait_for(request, lock);
        block_if_exiting(lock);
        --callers_;
        work_done_.notify_all();
        stats_.pictures += request.pictures;
        stats_.frames += request.mapped;
        written.swap(request.written);
    }
    CUresult result = kSuccess;
    for (const Event& event : written) {
        const CUresult waited = driver.stream_wait(stream, event.get(), 0);
        result = result == kSuccess ? waited : result;
    }
    driver.check(result, "waiting for the converted frames");
}

void Engine::warm_up(const VideoFormat& format, int count) {
    ScopedContext scope(device_.driver(), device_.context());
    pool_.add_idle(format, count);
}

bool Engine::stop(bool release) {
    std::unique_lock<std::mutex> lock(mutex_);
    stopping_ = true;
    exiting_ = exiting_ || !release;
    work_available_.notify_all();
    work_done_.notify_all();
    const bool ended =
        work_done_.wait_for(lock, kStopTimeout, [this] { return alive_ == 0 && blocked_callers_ == callers_; });
    for (std::thread& thread : threads_) {
        // a thread that is stuck in the driver must not block the exit of the process
        ended ? thread.join() : thread.detach();
    }
    threads_.clear();
    if (ended && release) {
        ScopedContext scope(device_.driver(), device_.context());
        pool_.clear();
        device_.trim();
        stopping_ = false;  // the next decode starts the threads again
    }
    return ended;
}

EngineStats Engine::stats() {
    std::lock_guard<std::mutex> hold(mutex_);
    EngineStats stats = stats_;
    stats.workers = alive_;
    stats.queued_ranges = 0;
    for (const Request* request : waiting_) {
        stats.queued_ranges += static_cast<int>(request->ranges.size() - request->next_range);
    }
    return stats;
}

}  // namespace telecine
