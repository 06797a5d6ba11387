#include "engine.h"

#include <algorithm>
#include <map>

#include "run.h"

namespace telecine {
namespace {

// How often a waiting caller looks whether it was withdrawn.
constexpr auto kCancelPoll = std::chrono::milliseconds(20);
constexpr auto kStopPatience = std::chrono::seconds(5);
constexpr int kMaxWorkers = 16;

std::mutex g_engines_mutex;

std::map<Device*, Engine*>& engines() {
    static auto& map = *new std::map<Device*, Engine*>();  // outlives static destruction
    return map;
}

// A run that ended with an error: what has no verdict yet is lost.
void lose(Request& request, const Run& run) {
    for (int i = run.first; i < run.last; ++i) {
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
    wanted_workers_ = count;
}

// One worker for each decoding engine of the GPU, and one more that feeds an engine while another drains: on an H200 that
// is 3 to 4 % more than without it. Further ones cost CPU and give little.
void Engine::start_workers() {
    int count = wanted_workers_;
    if (count == 0) {
        for (VideoCodec codec : {VideoCodec::H264, VideoCodec::Hevc}) {
            const DecodeCaps caps = device_.caps(codec, Chroma::C420, 8);
            count = std::max(count, caps.supported ? static_cast<int>(caps.num_engines) : 0);
        }
        ++count;
    }
    count = std::max(1, std::min(count, kMaxWorkers));
    while (alive_ < count) {
        // the last one loads the kernel while the others make their sessions
        const bool last = alive_ + 1 == count;
        threads_.emplace_back([this, last] { work(last); });
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
            // whoever needs it tries again, and says what is wrong
        }
    }
    std::unique_lock<std::mutex> lock(mutex_);
    Run run = {};
    while (Request* request = next(lock, run)) {
        ++request->running;
        ++stats_.running_runs;
        lock.unlock();
        try {
            if (!ready) {
                throw Error(Failure::Driver, "a worker could not get a stream of the GPU");
            }
            execute(*request, run, stream);
            lock.lock();
        } catch (const std::exception& error) {
            const auto* ours = dynamic_cast<const Error*>(&error);
            lock.lock();
            lose(*request, run);
            if (!request->failed) {
                request->failed = true;
                request->failure = ours != nullptr ? ours->kind : Failure::Driver;
                request->failure_text = error.what();
            }
        }
        ++stats_.runs;
        --stats_.running_runs;
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

// The next run, taking one of each waiting request in turn: a long video does not hold up a short one.
Request* Engine::next(std::unique_lock<std::mutex>& lock, Run& run) {
    work_available_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (stopping_) {
        return nullptr;
    }
    Request* request = waiting_.front();
    waiting_.pop_front();
    run = request->runs[request->next_run++];
    if (request->next_run < request->runs.size()) {
        waiting_.push_back(request);
    }
    return request;
}

void Engine::execute(Request& request, const Run& run, CUstream stream) {
    const Driver& driver = device_.driver();
    if (request.ready != nullptr) {
        driver.check(driver.stream_wait(stream, request.ready, 0), "waiting for the output memory");
    }
    const auto mark_written = [&] {
        CUevent event = nullptr;
        driver.check(driver.event_create(&event, kEventDisableTiming), "making an event");
        {
            std::lock_guard<std::mutex> hold(mutex_);
            request.written.push_back(event);
        }
        driver.check(driver.event_record(event, stream), "marking the end of a run");
    };
    try {
        RunDecoder decoder(device_, store_, stream, request, run);
        decoder.execute();
    } catch (...) {
        mark_written();
        throw;
    }
    mark_written();
}

void Engine::wait_for(Request& request, std::unique_lock<std::mutex>& lock) {
    while (request.finished < request.runs.size()) {
        work_done_.wait_until(lock, std::min(request.deadline, Clock::now() + kCancelPoll));
        if (!stopping_ && request.withdrawn && request.finished < request.runs.size()) {
            // asked without the lock: the answer may need an interpreter that a thread waiting for us holds
            lock.unlock();
            request.stop = request.stop || request.withdrawn();
            lock.lock();
        }
        if (stopping_ || request.stopped()) {
            request.stop = true;
            waiting_.remove(&request);
            request.next_run = request.runs.size();
            // runs that are being decoded end at their next packet; the output is theirs until then
            work_done_.wait(lock, [&] { return request.running == 0; });
            return;
        }
    }
}

// At the end of the process only daemon threads are still here. Python would end them as soon as they ask for the
// interpreter, by unwinding through C++ that cannot be unwound; so they do not come back.
void Engine::park_if_exiting(std::unique_lock<std::mutex>& lock) {
    if (!exiting_) {
        return;
    }
    ++parked_;
    work_done_.notify_all();
    lock.unlock();
    while (true) {
        std::this_thread::sleep_for(std::chrono::hours(1));
    }
}

void Engine::decode(Request& request, CUstream stream) {
    const Driver& driver = device_.driver();
    Current current(driver, device_.context());
    if (request.out != 0) {
        driver.check(driver.event_create(&request.ready, kEventDisableTiming), "making an event");
        driver.check(driver.event_record(request.ready, stream), "marking the output memory");
    }
    {
        std::unique_lock<std::mutex> lock(mutex_);
        if (stopping_) {
            throw Error(Failure::Unusable, "the decoder threads are stopped");
        }
        ++stats_.requests;
        ++callers_;
        if (!request.runs.empty()) {
            start_workers();
            waiting_.push_back(&request);
            work_available_.notify_all();
            wait_for(request, lock);
        }
        park_if_exiting(lock);
        --callers_;
        work_done_.notify_all();
        stats_.pictures += request.pictures;
        stats_.frames += request.mapped;
    }
    CUresult result = kSuccess;
    for (CUevent event : request.written) {
        const CUresult waited = driver.stream_wait(stream, event, 0);
        result = result == kSuccess ? waited : result;
        driver.event_destroy(event);
    }
    if (request.ready != nullptr) {
        driver.event_destroy(request.ready);
    }
    driver.check(result, "handing the frames over");
}

void Engine::warm_up(const VideoFormat& format, int count) {
    Current current(device_.driver(), device_.context());
    store_.make_warm(format, count);
}

bool Engine::stop(bool release) {
    std::unique_lock<std::mutex> lock(mutex_);
    stopping_ = true;
    exiting_ = exiting_ || !release;
    work_available_.notify_all();
    work_done_.notify_all();
    const bool ended = work_done_.wait_for(lock, kStopPatience, [this] { return alive_ == 0 && parked_ == callers_; });
    for (std::thread& thread : threads_) {
        // a thread that the driver does not let go must not hold up the end of the process
        ended ? thread.join() : thread.detach();
    }
    threads_.clear();
    if (ended && release) {
        Current current(device_.driver(), device_.context());
        store_.clear();
        device_.trim();
        stopping_ = false;  // the next decode starts anew
    }
    return ended;
}

EngineStats Engine::stats() {
    std::lock_guard<std::mutex> hold(mutex_);
    EngineStats stats = stats_;
    stats.workers = alive_;
    stats.queued_runs = 0;
    for (const Request* request : waiting_) {
        stats.queued_runs += static_cast<int>(request->runs.size() - request->next_run);
    }
    return stats;
}

}  // namespace telecine
