// The part of the Python module that hands out memory: frames on a device, and copies on the host.
#include <nanobind/stl/array.h>
#include <nanobind/stl/unique_ptr.h>

#include "bindings.h"
#include "memory.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace telecine {
namespace {

using HostFrames = nb::ndarray<const uint8_t, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using HostArray = nb::ndarray<nb::numpy, uint8_t, nb::ndim<4>>;

HostArray to_host(int device, uint64_t pointer, const DeviceArray::Shape& shape, uint64_t stream) {
    size_t size = 1;
    for (int64_t side : shape) {
        if (side < 0) {
            throw nb::value_error("shape must not be negative");
        }
        size *= static_cast<size_t>(side);
    }
    HostCopy* copy = nullptr;
    {
        nb::gil_scoped_release release;
        copy = new HostCopy(Device::open(device), pointer, size, reinterpret_cast<CUstream>(stream));
    }
    nb::capsule owner(copy, [](void* held) noexcept { delete static_cast<HostCopy*>(held); });
    const size_t sides[4] = {static_cast<size_t>(shape[0]), static_cast<size_t>(shape[1]),
                             static_cast<size_t>(shape[2]), static_cast<size_t>(shape[3])};
    return HostArray(copy->data(), 4, sides, owner);
}

// A DLPack capsule, which keeps the DeviceArray alive.
nb::object as_dlpack(nb::handle_t<DeviceArray> self) {
    const auto& array = nb::cast<const DeviceArray&>(self);
    const auto& shape = array.shape();
    const size_t sides[4] = {static_cast<size_t>(shape[0]), static_cast<size_t>(shape[1]),
                             static_cast<size_t>(shape[2]), static_cast<size_t>(shape[3])};
    return nb::cast(nb::ndarray<uint8_t, nb::ndim<4>, nb::device::cuda>(
        reinterpret_cast<void*>(array.address()), 4, sides, nb::borrow(self), nullptr, nb::dtype<uint8_t>(),
        nb::device::cuda::value, array.device().ordinal()));
}

void bind_device_array(nb::module_& m) {
    nb::class_<DeviceArray>(m, "DeviceArray")
        .def(
            "__init__",
            [](DeviceArray* self, int device, const DeviceArray::Shape& shape) {
                for (int64_t side : shape) {
                    if (side < 0 || side > 1LL << 32) {
                        throw nb::value_error("shape is out of range");
                    }
                }
                new (self) DeviceArray(Device::open(device), shape);
            },
            "device"_a, "shape"_a)
        .def_prop_ro("shape", [](const DeviceArray& a) { return nb::tuple(nb::cast(a.shape())); })
        .def_prop_ro("pointer", &DeviceArray::address)
        .def_prop_ro("device", [](const DeviceArray& a) { return a.device().ordinal(); })
        .def("__len__", [](const DeviceArray& a) { return static_cast<size_t>(a.shape()[0]); })
        .def(
            "rows",
            [](const DeviceArray& a, const Numbers& indices) {
                for (size_t i = 0; i < indices.size(); ++i) {
                    if (indices(i) < 0 || indices(i) >= a.shape()[0]) {
                        throw nb::index_error("there is no such frame");
                    }
                }
                return a.rows(indices.data(), indices.size());
            },
            "indices"_a)
        .def(
            "__getitem__",
            [](const DeviceArray& a, const nb::object& key) {
                // numpy's own rules, applied to the numbers of the frames
                nb::module_ numpy = nb::module_::import_("numpy");
                nb::object picked = numpy.attr("arange")(a.shape()[0]).attr("__getitem__")(key);
                const auto indices = nb::cast<Numbers>(
                    numpy.attr("ascontiguousarray")(numpy.attr("atleast_1d")(picked), numpy.attr("int64")));
                return a.rows(indices.data(), indices.size());
            },
            "key"_a)
        .def(
            "fill",
            [](DeviceArray& a, const HostFrames& frames) {
                if (frames.size() != a.size()) {
                    throw nb::value_error("the frames have another size than the array");
                }
                nb::gil_scoped_release release;
                a.fill(frames.data());
            },
            "frames"_a)
        .def("to_host", [](const DeviceArray& a) { return to_host(a.device().ordinal(), a.address(), a.shape(), 0); })
        .def("__dlpack_device__",
             [](const DeviceArray& a) { return nb::make_tuple(nb::device::cuda::value, a.device().ordinal()); })
        // the frames are complete, so there is no stream to wait for
        .def("__dlpack__", [](nb::handle_t<DeviceArray> self, const nb::kwargs&) { return as_dlpack(self); })
        .def_prop_ro("__cuda_array_interface__", [](const DeviceArray& a) {
            nb::dict result;
            result["shape"] = nb::tuple(nb::cast(a.shape()));
            result["typestr"] = "|u1";
            result["data"] = nb::make_tuple(a.address(), false);
            result["strides"] = nb::none();
            result["version"] = 3;
            return result;
        });
}

}  // namespace

void bind_memory(nb::module_& m) {
    bind_device_array(m);
    m.def("to_host", &to_host, "device"_a, "pointer"_a, "shape"_a, "stream"_a = 0);
    m.def(
        "synchronize",
        [](int device, uint64_t stream) {
            nb::gil_scoped_release release;
            Device& opened = Device::open(device);
            Current current(opened.driver(), opened.context());
            opened.driver().check(opened.driver().stream_synchronize(reinterpret_cast<CUstream>(stream)),
                                  "waiting for the frames");
        },
        "device"_a, "stream"_a = 0);
}

}  // namespace telecine
