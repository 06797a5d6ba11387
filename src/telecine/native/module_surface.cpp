// Python bindings that convert pictures which another library has decoded into device memory.
#include <nanobind/stl/string.h>

#include <memory>
#include <vector>

#include "bindings.h"
#include "device.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace telecine {
namespace {

constexpr int kMaxSide = 1 << 16;

// Checks the arguments of a surface in NVDEC's layout: luma, then interleaved chroma, or two chroma planes for 4:4:4.
Surface surface_of(uint64_t address, int pitch, int rows, int width, int height, int depth, const std::string& name) {
    const Chroma chroma = chroma_of(name);
    if (chroma == Chroma::Monochrome) {
        throw nb::value_error("chroma must be \"420\", \"422\" or \"444\" for a surface");
    }
    if (depth != 8 && depth != 10 && depth != 12 && depth != 16) {
        throw nb::value_error("depth must be 8, 10, 12 or 16");
    }
    if (width < 1 || height < 1 || width > kMaxSide || height > kMaxSide || rows < height || rows > kMaxSide) {
        throw nb::value_error(
            "a surface must have a width and a height from 1 to 65536, and at least as many rows as its height");
    }
    Surface surface;
    surface.address = address;
    surface.pitch = pitch;
    surface.rows = rows;
    surface.width = width;
    surface.height = height;
    surface.depth = depth;
    surface.chroma_shift_x = chroma == Chroma::C444 ? 0 : 1;
    surface.chroma_shift_y = chroma == Chroma::C420 ? 1 : 0;
    surface.interleaved = chroma != Chroma::C444;
    const int sample_bytes = depth > 8 ? 2 : 1;
    const int across = surface.interleaved ? (width + 1) & ~1 : width;
    if (pitch < across * sample_bytes || pitch % sample_bytes != 0) {
        throw nb::value_error(
            "pitch must be a multiple of the sample size, and hold a row of luma and a row of chroma");
    }
    if (address == 0 || address % static_cast<uint64_t>(sample_bytes) != 0) {
        throw nb::value_error("address must be a multiple of the sample size, and not 0");
    }
    return surface;
}

// Converts surfaces into frames of an output, on the stream of its owner. Not thread-safe.
class SurfaceConverter {
public:
    SurfaceConverter(int device, const Geometry& geometry, const Output& output)
        : device_(Device::open(device)), geometry_(geometry), output_(output) {}

    ~SurfaceConverter() {
        nb::gil_scoped_release release;
        try {
            finish();
        } catch (const Error&) {
            // the GPU has failed, so no kernel uses the tables any more
        }
    }
    SurfaceConverter(const SurfaceConverter&) = delete;
    SurfaceConverter& operator=(const SurfaceConverter&) = delete;

    // Enqueues the conversion of a surface into the first of `rows`, and copies of it into the others.
    void put(const Surface& surface, const int64_t* rows, size_t count) {
        const Driver& driver = device_.driver();
        ScopedContext scope(driver, device_.context());
        const auto scale = device_.scale(surface, geometry_, stream());
        if (scales_.empty() || scales_.back() != scale) {
            scales_.push_back(scale);  // kept until its kernels are finished
        }
        device_.convert(surface, geometry_, *scale, row(rows[0]), stream());
        for (size_t i = 1; i < count; ++i) {
            driver.check(driver.copy_on_device(row(rows[i]), row(rows[0]), row_bytes(), stream()), "copying a frame");
        }
    }

    // Waits until all frames are written; after that the surfaces may be overwritten.
    void finish() {
        if (scales_.empty()) {
            return;
        }
        ScopedContext scope(device_.driver(), device_.context());
        // declared after `scope`, so that the tables are freed while the context is current
        const std::vector<std::shared_ptr<DeviceScale>> done = std::move(scales_);
        scales_.clear();
        device_.driver().check(device_.driver().stream_synchronize(stream()), "converting frames");
    }

    bool holds(int64_t row) const { return row >= 0 && row < output_.rows; }
    bool can_turn(const Surface& surface) const {
        return geometry_.quarter_turns % 2 == 0 || surface.chroma_shift_x == surface.chroma_shift_y;
    }

private:
    CUstream stream() const { return reinterpret_cast<CUstream>(output_.stream); }
    size_t row_bytes() const { return static_cast<size_t>(3) * geometry_.width * geometry_.height; }
    CUdeviceptr row(int64_t number) const { return output_.pointer + static_cast<CUdeviceptr>(number) * row_bytes(); }

    Device& device_;
    Geometry geometry_;
    Output output_;
    std::vector<std::shared_ptr<DeviceScale>> scales_;
};

void put(SurfaceConverter& self, const Surface& surface, const Numbers& rows) {
    if (rows.size() == 0) {
        throw nb::value_error("rows must have at least one row of the output");
    }
    for (size_t i = 0; i < rows.size(); ++i) {
        if (!self.holds(rows(i))) {
            throw nb::value_error("rows must be from 0 to the number of rows of the output");
        }
    }
    if (!self.can_turn(surface)) {
        throw nb::value_error("4:2:2 is not converted with a rotation by 90 or 270 degrees");
    }
    nb::gil_scoped_release release;
    self.put(surface, rows.data(), rows.size());
}

}  // namespace

void bind_surface(nb::module_& m) {
    nb::class_<Surface>(m, "Surface")
        .def(
            "__init__",
            [](Surface* self, uint64_t address, int pitch, int rows, int width, int height, int depth,
               const std::string& chroma) {
                new (self) Surface(surface_of(address, pitch, rows, width, height, depth, chroma));
            },
            "address"_a, "pitch"_a, "rows"_a, "width"_a, "height"_a, "depth"_a, "chroma"_a);
    nb::class_<SurfaceConverter>(m, "SurfaceConverter")
        .def(
            "__init__",
            [](SurfaceConverter* self, int device, const Geometry& geometry, const Output& output) {
                if (geometry.width < 1 || geometry.height < 1 || geometry.width > kMaxSide ||
                    geometry.height > kMaxSide) {
                    throw nb::value_error("the output must have a width and a height from 1 to 65536");
                }
                if (output.pointer == 0 || output.rows < 1) {
                    throw nb::value_error("output must have an address and at least one row");
                }
                nb::gil_scoped_release release;
                new (self) SurfaceConverter(device, geometry, output);
            },
            "device"_a, "geometry"_a, "output"_a)
        .def("put", &put, "surface"_a, "rows"_a)
        .def("finish", &SurfaceConverter::finish, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace telecine
