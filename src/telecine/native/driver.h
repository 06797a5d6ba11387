// The libraries of the NVIDIA driver, opened on first use.
#pragma once

#include <exception>
#include <memory>
#include <stdexcept>
#include <string>

#include "interfaces.h"

namespace telecine {

// The kind of a failure; Python gets its name as the second argument of NvdecError.
enum class Failure { Unusable, Unsupported, Limit, Memory, Threads, Driver };

class Error : public std::runtime_error {
public:
    Error(Failure kind, const std::string& text) : std::runtime_error(text), kind(kind) {}
    Failure kind;
};

// Returns an exception as Error: of kind Memory if the host has none left, of kind Driver if it is not known better.
Error to_error(const std::exception& error);

// X(member, symbol, parameters): one line for each function.
#define TELECINE_CUDA_FUNCTIONS(X)                                                                                   \
    X(init, cuInit, (unsigned))                                                                                      \
    X(driver_version, cuDriverGetVersion, (int*))                                                                    \
    X(device_count, cuDeviceGetCount, (int*))                                                                        \
    X(device_get, cuDeviceGet, (CUdevice*, int))                                                                     \
    X(device_name, cuDeviceGetName, (char*, int, CUdevice))                                                          \
    X(device_attribute, cuDeviceGetAttribute, (int*, int, CUdevice))                                                 \
    X(primary_retain, cuDevicePrimaryCtxRetain, (CUcontext*, CUdevice))                                              \
    X(push_current, cuCtxPushCurrent_v2, (CUcontext))                                                                \
    X(pop_current, cuCtxPopCurrent_v2, (CUcontext*))                                                                 \
    X(mem_alloc, cuMemAlloc_v2, (CUdeviceptr*, size_t))                                                              \
    X(mem_free, cuMemFree_v2, (CUdeviceptr))                                                                         \
    X(host_alloc, cuMemAllocHost_v2, (void**, size_t))                                                               \
    X(host_free, cuMemFreeHost, (void*))                                                                             \
    X(copy_to_host, cuMemcpyDtoHAsync_v2, (void*, CUdeviceptr, size_t, CUstream))                                    \
    X(copy_to_device, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void*, size_t, CUstream))                            \
    X(copy_on_device, cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                            \
    X(stream_create, cuStreamCreate, (CUstream*, unsigned))                                                          \
    X(stream_destroy, cuStreamDestroy_v2, (CUstream))                                                                \
    X(stream_synchronize, cuStreamSynchronize, (CUstream))                                                           \
    X(stream_wait, cuStreamWaitEvent, (CUstream, CUevent, unsigned))                                                 \
    X(event_create, cuEventCreate, (CUevent*, unsigned))                                                             \
    X(event_destroy, cuEventDestroy_v2, (CUevent))                                                                   \
    X(event_record, cuEventRecord, (CUevent, CUstream))                                                              \
    X(event_synchronize, cuEventSynchronize, (CUevent))                                                              \
    X(module_load, cuModuleLoadData, (CUmodule*, const void*))                                                       \
    X(module_unload, cuModuleUnload, (CUmodule))                                                                     \
    X(module_function, cuModuleGetFunction, (CUfunction*, CUmodule, const char*))                                    \
    X(launch, cuLaunchKernel,                                                                                        \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**, void**))  \
    X(error_name, cuGetErrorName, (CUresult, const char**))                                                          \
    X(error_string, cuGetErrorString, (CUresult, const char**))

#define TELECINE_CUVID_FUNCTIONS(X)                                                                                  \
    X(decoder_caps, cuvidGetDecoderCaps, (DecodeCaps*))                                                              \
    X(decoder_create, cuvidCreateDecoder, (CUvideodecoder*, DecodeCreateInfo*))                                      \
    X(decoder_destroy, cuvidDestroyDecoder, (CUvideodecoder))                                                        \
    X(decoder_reconfigure, cuvidReconfigureDecoder, (CUvideodecoder, ReconfigureInfo*))                              \
    X(decode_picture, cuvidDecodePicture, (CUvideodecoder, PictureParams*))                                          \
    X(decode_status, cuvidGetDecodeStatus, (CUvideodecoder, int, DecodeStatus*))                                     \
    X(map_frame, cuvidMapVideoFrame64, (CUvideodecoder, int, CUdeviceptr*, unsigned*, ProcessParams*))               \
    X(unmap_frame, cuvidUnmapVideoFrame64, (CUvideodecoder, CUdeviceptr))                                            \
    X(parser_create, cuvidCreateVideoParser, (CUvideoparser*, ParserParams*))                                        \
    X(parser_parse, cuvidParseVideoData, (CUvideoparser, SourcePacket*))                                             \
    X(parser_destroy, cuvidDestroyVideoParser, (CUvideoparser))

struct Driver {
#define X(member, symbol, parameters) CUresult(*member) parameters = nullptr;
    TELECINE_CUDA_FUNCTIONS(X)
    TELECINE_CUVID_FUNCTIONS(X)
#undef X

    // Throws Error if `result` is not success: "doing: CUDA_ERROR_... (explanation)".
    void check(CUresult result, const char* doing) const;
    std::string describe(CUresult result) const;
};

struct DestroyEvent {
    const Driver* driver = nullptr;
    void operator()(CUevent event) const { driver->event_destroy(event); }
};

// A CUDA event, destroyed with this object.
using Event = std::unique_ptr<void, DestroyEvent>;
Event make_event(const Driver& driver);

// Returns the driver, which is loaded and initialised on the first call. Throws Error(Unusable) with the reason if there
// is none, in every call, and in a forked child of a process that had loaded it: CUDA does not survive a fork.
const Driver& driver();

// For tests: sets the libraries to load instead of the driver's own. Call Engine::stop_all before.
void set_libraries(const std::string& cuda, const std::string& cuvid);

// Returns the number of changes of libraries, so that objects of different libraries are told apart.
int driver_generation();

}  // namespace telecine
