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

// Makes a device's context current for the life of this object.
class Current {
public:
    Current(const Driver& driver, CUcontext context) : driver_(driver) {
        driver_.check(driver_.push_current(context), "using the GPU");
    }
    ~Current() {
        CUcontext popped = nullptr;
        driver_.pop_current(&popped);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

private:
    const Driver& driver_;
};

class Device;

// Memory on a device, freed with this object. The context must be current then.
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

// A scale plan with its tables on the device.
struct DeviceScale {
    ScalePlan plan;
    Taps taps[4];
    std::unique_ptr<DeviceMemory> memory;
};

class Device {
public:
    // The device of that number, opened on first use and never closed: torch may outlive us in the same context.
    static Device& open(int ordinal);

    const Driver& driver() const { return driver_; }
    CUcontext context() const { return context_; }
    int ordinal() const { return ordinal_; }
    std::string name() const;
    std::string pci_address() const;
    DecodeCaps caps(VideoCodec codec, Chroma chroma, int depth);

    // Load the conversion kernel, which the driver compiles when it sees it for the first time on a machine.
    void load_kernel();

    // The tables for a surface and a geometry; `stream` carries their upload, which is complete on return.
    std::shared_ptr<DeviceScale> scale(const Surface& surface, const Geometry& geometry, CUstream stream);

    // Enqueue the conversion of a surface into `out` on `stream`.
    void convert(const Surface& surface, const Geometry& geometry, const DeviceScale& scale, CUdeviceptr out,
                 CUstream stream);

    // A pinned buffer of at least `size` bytes, from the pool or new; nullptr where the system gives none.
    void* take_pinned(size_t size, size_t& capacity);
    void give_pinned(void* buffer, size_t capacity);

    // Frees the tables and pinned buffers that nobody uses. For tests.
    void trim();

private:
    Device(const Driver& driver, int ordinal);

    const Driver& driver_;
    int ordinal_;
    CUdevice device_ = 0;
    CUcontext context_ = nullptr;
    std::mutex mutex_;
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
