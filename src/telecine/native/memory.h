// Memory for Python: frames on a device for programs without torch, and pinned host memory for results.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "device.h"

namespace telecine {

// Frames `uint8 [N, H, W, 3]` on a device, packed. All writes are finished when Python gets it.
class DeviceArray {
public:
    using Shape = std::array<int64_t, 4>;

    DeviceArray(Device& device, const Shape& shape);
    ~DeviceArray();

    // Returns a copy of some of the frames. The indices must be valid.
    std::unique_ptr<DeviceArray> rows(const int64_t* indices, size_t count) const;

    // Copies size() bytes of frames from host memory, completely on return.
    void fill(const void* frames);

    Device& device() const { return device_; }
    CUdeviceptr address() const { return memory_->address(); }
    const Shape& shape() const { return shape_; }
    size_t row_bytes() const { return static_cast<size_t>(shape_[1] * shape_[2] * shape_[3]); }
    size_t size() const { return row_bytes() * static_cast<size_t>(shape_[0]); }

private:
    Device& device_;
    Shape shape_;
    std::unique_ptr<DeviceMemory> memory_;
};

// A host copy of device memory: pinned memory from the device's pool, or pageable memory if there is none.
class HostCopy {
public:
    // Copies after all work on `stream` and waits.
    HostCopy(Device& device, CUdeviceptr from, size_t size, CUstream stream);
    ~HostCopy();
    HostCopy(const HostCopy&) = delete;
    HostCopy& operator=(const HostCopy&) = delete;
    void* data() const { return data_; }

private:
    void release();

    Device& device_;
    void* data_ = nullptr;
    size_t capacity_ = 0;
    bool pinned_ = false;
};

}  // namespace telecine
