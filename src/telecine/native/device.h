// One GPU: its primary context, the conversion kernel, filter tables, and pinned host memory for results.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "driver.h"
#include "scaler.h"

namespace telecine {

// Makes a device's context current in this thread for the life of this object.
class ScopedContext {
public:
    ScopedContext(const Driver& driver, CUcontext context) : driver_(driver) {
        driver_.check(driver_.push_current(context), "using the GPU");
    }
    ~ScopedContext() {
        CUcontext popped = nullptr;
        driver_.pop_current(&popped);
    }
    ScopedContext(const ScopedContext&) = delete;
    ScopedContext& operator=(const ScopedContext&) = delete;

private:
    const Driver& driver_;
};

class Device;

// Memory on a device, freed with this object. The context must be current at that time.
class DeviceMemory {
public:
    DeviceMemory(Device& device, size_t size);
    ~DeviceMemory();
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;
    CUdeviceptr address() const { return address_; }
    size_t size() const { return size_; }

private:
    Device& device_;
    CUdeviceptr address_ = 0;
    size_t size_;
};

// A scale plan with its filter tables on the device.
struct DeviceScale {
    ScalePlan plan;
    Taps taps[4];
    std::unique_ptr<DeviceMemory> memory;
};

class Device {
public:
    // Returns a device, which is opened on first use and never closed: torch may use the same context for longer.
    static Device& open(int ordinal);

    const Driver& driver() const { return driver_; }
    CUcontext context() const { return context_; }
    int ordinal() const { return ordinal_; }
    std::string name() const;
    std::string pci_address() const;
    DecodeCaps caps(VideoCodec codec, Chroma chroma, int depth);

    // Loads the conversion kernel. The driver compiles it at its first use on a machine.
    void load_kernel();

    // Returns the filter tables for a surface and a geometry. They are uploaded on `stream`, completely on return.
    std::shared_ptr<DeviceScale> scale(const Surface& surface, const Geometry& geometry, CUstream stream);

    // Enqueues the conversion of a surface into `out` on `stream`.
    void convert(const Surface& surface, const Geometry& geometry, const DeviceScale& scale, CUdeviceptr out,
                 CUstream stream);

    // Returns a pinned buffer of at least `size` bytes, reused or new; nullptr if the system has none.
    void* acquire_pinned(size_t size, size_t& capacity);
    void return_pinned(void* buffer, size_t capacity);

    // Frees unused tables and pinned buffers. For tests.
    void trim();

private:
    Device(const Driver& driver, int ordinal);
    std::shared_ptr<DeviceScale> upload_scale(const Surface& surface, const Geometry& geometry, CUstream stream);

    const Driver& driver_;
    int ordinal_;
    CUdevice device_ = 0;
    CUcontext context_ = nullptr;
    std::mutex mutex_;  // not held while the GPU is waited for
    std::mutex kernel_mutex_;
    CUmodule module_ = nullptr;
    CUfunction kernel_ = nullptr;
    using ScaleKey = std::tuple<int, int, int, int, int, int, int, int, bool>;
    std::list<std::pair<ScaleKey, std::shared_ptr<DeviceScale>>> scales_;  // most recently used first
    std::map<std::tuple<int, int, int>, DecodeCaps> caps_;
    std::multimap<size_t, void*> pinned_;
    size_t pinned_bytes_ = 0;
};

}  // namespace telecine
