#include "device.h"

#include <cstdio>
#include <cstring>

extern "C" const char telecine_pixels_ptx[];  // pixels.ptx, zero-terminated: embed.cpp

namespace telecine {
namespace {

constexpr size_t kMaxScales = 64;
constexpr size_t kMaxPinnedBytes = 1ull << 30;  // kept for reuse; more is freed
constexpr size_t kPinnedGranularity = 1ull << 20;

}  // namespace

DeviceMemory::DeviceMemory(Device& device, size_t size) : device_(device), size_(size) {
    device.driver().check(device.driver().mem_alloc(&address_, size), "allocating GPU memory");
}

DeviceMemory::~DeviceMemory() {
    device_.driver().mem_free(address_);
}

Device& Device::open(int ordinal) {
    static std::mutex mutex;
    static auto& devices = *new std::map<std::pair<int, int>, Device*>();
    const Driver& loaded = telecine::driver();
    const std::pair<int, int> key(driver_generation(), ordinal);
    std::lock_guard<std::mutex> hold(mutex);
    auto found = devices.find(key);
    if (found == devices.end()) {
        found = devices.emplace(key, new Device(loaded, ordinal)).first;
    }
    return *found->second;
}

Device::Device(const Driver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {
    int count = 0;
    driver_.check(driver_.device_count(&count), "counting the GPUs");
    if (ordinal < 0 || ordinal >= count) {
        throw Error(Failure::Unusable,
                    "there is no GPU " + std::to_string(ordinal) + "; this process sees " + std::to_string(count));
    }
    driver_.check(driver_.device_get(&device_, ordinal), "opening the GPU");
    driver_.check(driver_.primary_retain(&context_, device_), "opening the GPU");
}

std::string Device::name() const {
    char text[256] = {};
    driver_.check(driver_.device_name(text, sizeof(text) - 1, device_), "reading the name of the GPU");
    return text;
}

std::string Device::pci_address() const {
    int domain = 0;
    int bus = 0;
    int slot = 0;
    driver_.device_attribute(&domain, kAttributePciDomain, device_);
    driver_.device_attribute(&bus, kAttributePciBus, device_);
    driver_.device_attribute(&slot, kAttributePciDevice, device_);
    char text[32];
    snprintf(text, sizeof(text), "%04x:%02x:%02x.0", domain, bus, slot);
    return text;
}

DecodeCaps Device::caps(VideoCodec codec, Chroma chroma, int depth) {
    const auto key = std::make_tuple(static_cast<int>(codec), static_cast<int>(chroma), depth);
    {
        std::lock_guard<std::mutex> hold(mutex_);
        const auto found = caps_.find(key);
        if (found != caps_.end()) {
            return found->second;
        }
    }
    DecodeCaps caps = {};
    caps.codec = codec;
    caps.chroma = chroma;
    caps.bit_depth_minus8 = static_cast<unsigned>(depth - 8);
    ScopedContext scope(driver_, context_);
    const CUresult result = driver_.decoder_caps(&caps);
    // a driver that does not know the codec at all returns an error
    if (result == kInvalidValue || result == kNotSupported) {
        caps.supported = 0;
    } else {
        driver_.check(result, "querying the capabilities of the video decoder");
    }
    std::lock_guard<std::mutex> hold(mutex_);
    caps_[key] = caps;
    return caps;
}

void Device::load_kernel() {
    std::lock_guard<std::mutex> hold(kernel_mutex_);
    if (kernel_ == nullptr) {
        driver_.check(driver_.module_load(&module_, telecine_pixels_ptx), "loading the conversion kernel");
        driver_.check(driver_.module_function(&kernel_, module_, "telecine_convert"), "loading the conversion kernel");
    }
}

std::shared_ptr<DeviceScale> Device::scale(const Surface& surface, const Geometry& geometry, CUstream stream) {
    const ScaleKey key(surface.width, surface.height, surface.depth, surface.chroma_shift_x, surface.chroma_shift_y,
                       geometry.width, geometry.height, geometry.quarter_turns & 1, geometry.bicubic);
    const auto find = [&]() -> std::shared_ptr<DeviceScale> {
        for (auto entry = scales_.begin(); entry != scales_.end(); ++entry) {
            if (entry->first == key) {
                scales_.splice(scales_.begin(), scales_, entry);
                return entry->second;
            }
        }
        return nullptr;
    };
    {
        std::lock_guard<std::mutex> hold(mutex_);
        if (auto found = find()) {
            return found;
        }
    }
    auto made = upload_scale(surface, geometry, stream);
    std::lock_guard<std::mutex> hold(mutex_);
    if (auto found = find()) {
        return found;  // another thread was faster
    }
    scales_.emplace_front(key, made);
    if (scales_.size() > kMaxScales) {
        scales_.pop_back();
    }
    return made;
}

std::shared_ptr<DeviceScale> Device::upload_scale(const Surface& surface, const Geometry& geometry, CUstream stream) {
    auto made = std::make_shared<DeviceScale>();
    made->plan = plan_scale(surface, geometry);
    if (!made->plan.direct) {
        std::vector<uint8_t> image;
        size_t offsets[4][2];
        for (int i = 0; i < 4; ++i) {
            const FilterTable& table = made->plan.tables[i];
            const auto append = [&image](const void* data, size_t size) {
                const size_t at = (image.size() + 15) & ~size_t(15);
                image.resize(at + size);
                memcpy(image.data() + at, data, size);
                return at;
            };
            offsets[i][0] = append(table.start.data(), table.start.size() * sizeof(int32_t));
            offsets[i][1] = append(table.weight.data(), table.weight.size() * sizeof(int16_t));
        }
        made->memory = std::make_unique<DeviceMemory>(*this, image.size());
        const CUdeviceptr base = made->memory->address();
        driver_.check(driver_.copy_to_device(base, image.data(), image.size(), stream), "uploading filter tables");
        driver_.check(driver_.stream_synchronize(stream), "uploading filter tables");
        for (int i = 0; i < 4; ++i) {
            made->taps[i] = {reinterpret_cast<const int32_t*>(base + offsets[i][0]),
                             reinterpret_cast<const int16_t*>(base + offsets[i][1]), made->plan.tables[i].count};
        }
    }
    return made;
}

void Device::convert(const Surface& surface, const Geometry& geometry, const DeviceScale& scale, CUdeviceptr out,
                     CUstream stream) {
    load_kernel();
    Conversion conversion = begin_conversion(surface, geometry, scale.plan);
    conversion.luma_across = scale.taps[0];
    conversion.luma_down = scale.taps[1];
    conversion.chroma_across = scale.taps[2];
    conversion.chroma_down = scale.taps[3];
    conversion.out = out;
    conversion.out_pitch = 3LL * geometry.width;
    constexpr unsigned kBlockX = 32;
    constexpr unsigned kBlockY = 4;
    const auto pairs = static_cast<unsigned>(geometry.width + 1) / 2;
    void* arguments[] = {&conversion};
    driver_.check(driver_.launch(kernel_, (pairs + kBlockX - 1) / kBlockX,
                                 (static_cast<unsigned>(geometry.height) + kBlockY - 1) / kBlockY, 1, kBlockX, kBlockY,
                                 1, 0, stream, arguments, nullptr),
                  "converting a frame");
}

void* Device::acquire_pinned(size_t size, size_t& capacity) {
    capacity = (size + kPinnedGranularity - 1) / kPinnedGranularity * kPinnedGranularity;
    {
        std::lock_guard<std::mutex> hold(mutex_);
        const auto found = pinned_.lower_bound(capacity);
        // keep a much larger buffer for larger requests
        if (found != pinned_.end() && found->first <= 2 * capacity) {
            void* buffer = found->second;
            capacity = found->first;
            pinned_bytes_ -= capacity;
            pinned_.erase(found);
            return buffer;
        }
    }
    ScopedContext scope(driver_, context_);
    void* buffer = nullptr;
    return driver_.host_alloc(&buffer, capacity) == kSuccess ? buffer : nullptr;
}

void Device::return_pinned(void* buffer, size_t capacity) {
    {
        std::lock_guard<std::mutex> hold(mutex_);
        if (pinned_bytes_ + capacity <= kMaxPinnedBytes) {
            pinned_.emplace(capacity, buffer);
            pinned_bytes_ += capacity;
            return;
        }
    }
    if (driver_.push_current(context_) == kSuccess) {
        driver_.host_free(buffer);
        CUcontext popped = nullptr;
        driver_.pop_current(&popped);
    }
}

void Device::trim() {
    std::lock_guard<std::mutex> hold(mutex_);
    std::lock_guard<std::mutex> hold_kernel(kernel_mutex_);
    ScopedContext scope(driver_, context_);
    scales_.clear();
    for (const auto& entry : pinned_) {
        driver_.host_free(entry.second);
    }
    pinned_.clear();
    pinned_bytes_ = 0;
    if (module_ != nullptr) {
        driver_.module_unload(module_);
        module_ = nullptr;
        kernel_ = nullptr;
    }
}

}  // namespace telecine
