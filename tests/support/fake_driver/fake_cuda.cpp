// The CUDA driver API: memory is on the host, streams execute synchronously, kernels run as C++.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fake.h"
#include "pixels.h"

using namespace telecine;

namespace fake {
namespace {

std::mutex g_mutex;
std::map<std::string, long> g_settings = {{"devices", 1}, {"engines", 3}, {"threads_left", -1}};
std::map<std::string, long> g_counts;
std::map<CUstream, int> g_waits;
thread_local int t_depth = 0;

}  // namespace

long setting(const char* name) {
    std::lock_guard<std::mutex> hold(g_mutex);
    return g_settings[name];
}

bool use_up(const char* name) {
    std::lock_guard<std::mutex> hold(g_mutex);
    long& left = g_settings[name];
    if (left <= 0) {
        return false;
    }
    --left;
    return true;
}

void count(const char* name, long change) {
    std::lock_guard<std::mutex> hold(g_mutex);
    g_counts[name] += change;
}

void pause(const char* name) {
    if (const long microseconds = setting(name)) {
        usleep(static_cast<unsigned>(microseconds));
    }
}

void violation(const char* what) {
    fprintf(stderr, "fake driver: %s\n", what);
    count("violations", 1);
}

}  // namespace fake

EXPORT void fake_set(const char* name, long value) {
    std::lock_guard<std::mutex> hold(fake::g_mutex);
    fake::g_settings[name] = value;
}

EXPORT long fake_count(const char* name) {
    std::lock_guard<std::mutex> hold(fake::g_mutex);
    return fake::g_counts[name];
}

EXPORT CUresult cuInit(unsigned) {
    return fake::setting("init_error") != 0 ? 999 : kSuccess;
}
EXPORT CUresult cuDriverGetVersion(int* version) {
    return *version = 13000, kSuccess;
}
EXPORT CUresult cuDeviceGetCount(int* n) {
    return *n = static_cast<int>(fake::setting("devices")), kSuccess;
}
EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    return *device = ordinal, kSuccess;
}
EXPORT CUresult cuDeviceGetName(char* name, int size, CUdevice) {
    return snprintf(name, size, "Fake GPU"), kSuccess;
}
EXPORT CUresult cuDeviceGetAttribute(int* value, int, CUdevice) {
    return *value = 1, kSuccess;
}
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
    return *context = reinterpret_cast<CUcontext>(0x1000), kSuccess;
}
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) {
    return kSuccess;
}
EXPORT CUresult cuCtxPushCurrent_v2(CUcontext) {
    return ++fake::t_depth, kSuccess;
}
EXPORT CUresult cuCtxPopCurrent_v2(CUcontext*) {
    return --fake::t_depth, kSuccess;
}
EXPORT CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
    return *free = *total = 1ull << 34, kSuccess;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t size) {
    if (fake::t_depth <= 0) {
        fake::violation("memory allocated without a context");
    }
    if (fake::use_up("memory_failures")) {
        return kOutOfMemory;
    }
    *pointer = reinterpret_cast<CUdeviceptr>(malloc(size));
    return fake::count("memory", 1), kSuccess;
}
EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
    free(reinterpret_cast<void*>(pointer));
    return fake::count("memory", -1), kSuccess;
}
EXPORT CUresult cuMemAllocHost_v2(void** pointer, size_t size) {
    if (fake::use_up("pinned_failures")) {
        return kOutOfMemory;
    }
    *pointer = malloc(size);
    return fake::count("pinned", 1), fake::count("pinned_made", 1), kSuccess;
}
EXPORT CUresult cuMemFreeHost(void* pointer) {
    return free(pointer), fake::count("pinned", -1), kSuccess;
}
EXPORT CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t size, CUstream) {
    return memcpy(to, reinterpret_cast<void*>(from), size), kSuccess;
}
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t size, CUstream) {
    return memcpy(reinterpret_cast<void*>(to), from, size), kSuccess;
}
EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream) {
    return memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), size), kSuccess;
}

EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned) {
    return *stream = malloc(1), fake::count("streams", 1), kSuccess;
}
EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
    return free(stream), fake::count("streams", -1), kSuccess;
}
EXPORT CUresult cuStreamSynchronize(CUstream) {
    fake::pause("slow_synchronize_microseconds");
    return fake::use_up("stream_synchronize_failures") ? 999 : kSuccess;
}
EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
    if (*static_cast<char*>(event) == 0) {
        fake::violation("a stream waits for an event that was never recorded");
    }
    std::lock_guard<std::mutex> hold(fake::g_mutex);
    ++fake::g_waits[stream];
    fake::g_counts[stream == reinterpret_cast<CUstream>(0x77) ? "caller_waits" : "worker_waits"] += 1;
    return kSuccess;
}
EXPORT CUresult cuEventCreate(CUevent* event, unsigned) {
    if (fake::use_up("event_create_failures")) {
        return 999;
    }
    return *event = calloc(1, 1), fake::count("events", 1), kSuccess;
}
EXPORT CUresult cuEventDestroy_v2(CUevent event) {
    return free(event), fake::count("events", -1), kSuccess;
}
EXPORT CUresult cuEventRecord(CUevent event, CUstream) {
    if (fake::use_up("event_record_failures")) {
        return 999;
    }
    return *static_cast<char*>(event) = 1, kSuccess;
}
EXPORT CUresult cuEventSynchronize(CUevent) {
    return fake::use_up("event_synchronize_failures") ? 999 : kSuccess;
}

EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    if (strstr(static_cast<const char*>(image), "telecine_convert") == nullptr) {
        fake::violation("the embedded PTX has no kernel");
    }
    return *module = malloc(1), fake::count("modules", 1), kSuccess;
}
EXPORT CUresult cuModuleUnload(CUmodule module) {
    return free(module), fake::count("modules", -1), kSuccess;
}
EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char*) {
    return *function = reinterpret_cast<CUfunction>(0x2000), kSuccess;
}
EXPORT CUresult cuLaunchKernel(CUfunction, unsigned gx, unsigned gy, unsigned, unsigned bx, unsigned by, unsigned,
                               unsigned, CUstream stream, void** parameters, void**) {
    {
        std::lock_guard<std::mutex> hold(fake::g_mutex);
        // work on the caller's own stream or on the default stream follows the caller's earlier work
        const bool is_callers = stream == nullptr || stream == reinterpret_cast<CUstream>(0x77);
        if (fake::g_waits[stream] == 0 && !is_callers) {
            fprintf(stderr, "fake driver: the output is written without waiting for its memory\n");
            fake::g_counts["violations"] += 1;
        }
    }
    const auto& conversion = *static_cast<const Conversion*>(parameters[0]);
    for (int y = 0; y < static_cast<int>(gy * by) && y < conversion.height; ++y) {
        for (int x = 0; x < static_cast<int>(2 * gx * bx) && x < conversion.width; x += 2) {
            convert_pair(conversion, x, y);
        }
    }
    return fake::count("launches", 1), kSuccess;
}
EXPORT CUresult cuGetErrorName(CUresult result, const char** name) {
    *name = result == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return kSuccess;
}
EXPORT CUresult cuGetErrorString(CUresult, const char** text) {
    return *text = "requested by the test", kSuccess;
}
