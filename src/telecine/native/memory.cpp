#include "memory.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace telecine {

DeviceArray::DeviceArray(Device& device, const Shape& shape) : device_(device), shape_(shape) {
    ScopedContext scope(device.driver(), device.context());
    memory_ = std::make_unique<DeviceMemory>(device, std::max<size_t>(1, size()));
}

DeviceArray::~DeviceArray() {
    // at the exit of the process the context may be destroyed already, and the memory with it
    if (device_.driver().push_current(device_.context()) == kSuccess) {
        memory_.reset();
        CUcontext popped = nullptr;
        device_.driver().pop_current(&popped);
    } else {
        memory_.release();
    }
}

std::unique_ptr<DeviceArray> DeviceArray::rows(const int64_t* indices, size_t count) const {
    auto result =
        std::make_unique<DeviceArray>(device_, Shape{static_cast<int64_t>(count), shape_[1], shape_[2], shape_[3]});
    ScopedContext scope(device_.driver(), device_.context());
    const size_t row = row_bytes();
    for (size_t i = 0; i < count; ++i) {
        device_.driver().check(
            device_.driver().copy_on_device(result->address() + i * row,
                                            address() + static_cast<size_t>(indices[i]) * row, row, nullptr),
            "copying frames");
    }
    device_.driver().check(device_.driver().stream_synchronize(nullptr), "copying frames");
    return result;
}

void DeviceArray::fill(const void* frames) {
    ScopedContext scope(device_.driver(), device_.context());
    device_.driver().check(device_.driver().copy_to_device(address(), frames, size(), nullptr), "uploading frames");
    device_.driver().check(device_.driver().stream_synchronize(nullptr), "uploading frames");
}

HostCopy::HostCopy(Device& device, CUdeviceptr from, size_t size, CUstream stream) : device_(device) {
    size = std::max<size_t>(1, size);
    data_ = device.acquire_pinned(size, capacity_);
    pinned_ = data_ != nullptr;
    if (!pinned_) {
        data_ = malloc(size);
        if (data_ == nullptr) {
            throw std::bad_alloc();
        }
    }
    const Driver& driver = device.driver();
    CUresult result = driver.push_current(device.context());
    if (result == kSuccess) {
        result = driver.copy_to_host(data_, from, size, stream);
        const CUresult waited = driver.stream_synchronize(stream);
        result = result == kSuccess ? waited : result;
        CUcontext popped = nullptr;
        driver.pop_current(&popped);
    }
    if (result != kSuccess) {
        release();
        driver.check(result, "copying frames to the host");
    }
}

HostCopy::~HostCopy() {
    release();
}

void HostCopy::release() {
    if (data_ != nullptr) {
        pinned_ ? device_.return_pinned(data_, capacity_) : free(data_);
        data_ = nullptr;
    }
}

}  // namespace telecine
