#include "driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <mutex>
#include <new>

namespace telecine {
namespace {

std::mutex g_mutex;
std::string g_cuda_path = "libcuda.so.1";
std::string g_cuvid_path = "libnvcuvid.so.1";
Driver* g_driver = nullptr;  // never freed: worker threads may outlive static destruction
pid_t g_pid = 0;
int g_generation = 0;

void* open_library(const std::string& path, const char* what) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char* reason = dlerror();
        throw Error(Failure::Unusable, std::string(what) + " (" + (reason != nullptr ? reason : path) + ")");
    }
    return library;
}

void* find_symbol(void* library, const char* symbol, const std::string& path) {
    void* address = dlsym(library, symbol);
    if (address == nullptr) {
        throw Error(Failure::Unusable, "the NVIDIA driver is too old: " + path + " has no " + symbol +
                                           "; telecine needs driver 470 or later");
    }
    return address;
}

Driver* load() {
    void* cuda = open_library(g_cuda_path, "no NVIDIA driver: libcuda.so.1 cannot be opened");
    void* cuvid =
        open_library(g_cuvid_path,
                     "the NVIDIA driver has no video decoding: libnvcuvid.so.1 cannot be opened; in a container "
                     "set NVIDIA_DRIVER_CAPABILITIES=compute,utility,video");
    auto table = Driver();
#define X(member, symbol, parameters) \
    table.member = reinterpret_cast<CUresult(*) parameters>(find_symbol(cuda, #symbol, g_cuda_path));
    TELECINE_CUDA_FUNCTIONS(X)
#undef X
#define X(member, symbol, parameters) \
    table.member = reinterpret_cast<CUresult(*) parameters>(find_symbol(cuvid, #symbol, g_cuvid_path));
    TELECINE_CUVID_FUNCTIONS(X)
#undef X
    CUresult result = table.init(0);
    if (result != kSuccess) {
        throw Error(Failure::Unusable, "the NVIDIA driver does not start: " + table.describe(result));
    }
    int count = 0;
    result = table.device_count(&count);
    if (result != kSuccess || count == 0) {
        throw Error(Failure::Unusable, "the NVIDIA driver finds no device (is CUDA_VISIBLE_DEVICES empty?)");
    }
    return new Driver(table);
}

}  // namespace

std::string Driver::describe(CUresult result) const {
    const char* name = nullptr;
    const char* text = nullptr;
    error_name(result, &name);
    error_string(result, &text);
    return std::string(name != nullptr ? name : "CUDA error " + std::to_string(result)) +
           (text != nullptr ? std::string(" (") + text + ")" : "");
}

void Driver::check(CUresult result, const char* doing) const {
    if (result == kSuccess) {
        return;
    }
    Failure kind = result == kOutOfMemory    ? Failure::Memory
                   : result == kNotSupported ? Failure::Unsupported
                                             : Failure::Driver;
    throw Error(kind, std::string(doing) + ": " + describe(result));
}

Error to_error(const std::exception& error) {
    if (const auto* known = dynamic_cast<const Error*>(&error)) {
        return *known;
    }
    if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
        return Error(Failure::Memory, "the process has no host memory left");
    }
    return Error(Failure::Driver, error.what());
}

Event make_event(const Driver& driver) {
    CUevent event = nullptr;
    driver.check(driver.event_create(&event, kEventDisableTiming), "creating an event");
    return Event(event, DestroyEvent{&driver});
}

const Driver& driver() {
    std::lock_guard<std::mutex> hold(g_mutex);
    if (g_driver == nullptr) {
        g_driver = load();
        g_pid = getpid();
    }
    if (g_pid != getpid()) {
        throw Error(Failure::Unusable,
                    "this process was forked from one that had used the GPU, and CUDA does not survive a fork; start "
                    "workers with the \"spawn\" or \"forkserver\" method");
    }
    return *g_driver;
}

int driver_generation() {
    std::lock_guard<std::mutex> hold(g_mutex);
    return g_generation;
}

void set_libraries(const std::string& cuda, const std::string& cuvid) {
    std::lock_guard<std::mutex> hold(g_mutex);
    if (cuda == g_cuda_path && cuvid == g_cuvid_path) {
        return;
    }
    g_cuda_path = cuda;
    g_cuvid_path = cuvid;
    g_driver = nullptr;  // current users keep the old one
    ++g_generation;
}

}  // namespace telecine
