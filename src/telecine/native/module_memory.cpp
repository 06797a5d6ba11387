// Python bindings of memory: frames on a device, views of them, and copies on the host.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>
#include <vector>

#include "bindings.h"
#include "dlpack.h"
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

std::unique_ptr<DeviceArray> copy_rows(const DeviceArray& array, const int64_t* indices, size_t count) {
    nb::gil_scoped_release release;
    return array.rows(indices, count);
}

// A view of a DeviceArray without a copy: one frame, or all frames with their axes in another order.
class DeviceView {
public:
    // `axes` are those of the array, in the order of the view; without axis 0 the view is the frame `row`.
    DeviceView(nb::object array, std::vector<size_t> axes, int64_t row = 0)
        : array_(std::move(array)), axes_(std::move(axes)), row_(row) {}

    const DeviceArray& array() const { return nb::cast<const DeviceArray&>(array_); }
    const nb::object& owner() const { return array_; }
    const std::vector<size_t>& axes() const { return axes_; }
    bool is_frame() const { return axes_.size() == 3; }
    int ordinal() const { return array().device().ordinal(); }
    uint64_t address() const { return array().address() + static_cast<size_t>(row_) * array().row_bytes(); }

    std::vector<size_t> shape() const {
        std::vector<size_t> sides;
        for (size_t axis : axes_) {
            sides.push_back(static_cast<size_t>(array().shape()[axis]));
        }
        return sides;
    }

    std::vector<int64_t> strides() const {
        const auto& sides = array().shape();
        const int64_t all[4] = {sides[1] * sides[2] * sides[3], sides[2] * sides[3], sides[3], 1};
        std::vector<int64_t> steps;
        for (size_t axis : axes_) {
            steps.push_back(all[axis]);
        }
        return steps;
    }

    DeviceView permuted(const std::vector<size_t>& order) const {
        std::vector<bool> seen(axes_.size());
        std::vector<size_t> axes;
        for (size_t axis : order) {
            if (axis >= axes_.size() || seen[axis]) {
                break;
            }
            seen[axis] = true;
            axes.push_back(axes_[axis]);
        }
        if (axes.size() != axes_.size() || order.size() != axes_.size() || (!is_frame() && axes[0] != 0)) {
            throw nb::value_error("axes must name each axis once, and the axis of the frames first");
        }
        return DeviceView(array_, axes, row_);
    }

    // Returns the same view of a copy of its memory.
    DeviceView copied() const {
        std::vector<int64_t> rows;
        for (int64_t i = 0; i < (is_frame() ? 1 : array().shape()[0]); ++i) {
            rows.push_back(row_ + i);
        }
        return DeviceView(nb::cast(copy_rows(array(), rows.data(), rows.size())), axes_);
    }

    nb::object to_host() const {
        const auto& sides = array().shape();
        const int64_t count = is_frame() ? 1 : sides[0];
        nb::object host = nb::cast(telecine::to_host(ordinal(), address(), {count, sides[1], sides[2], sides[3]}, 0));
        nb::list order;
        for (size_t axis : axes_) {
            order.append(is_frame() ? axis - 1 : axis);
        }
        return (is_frame() ? nb::object(host[0]) : host).attr("transpose")(nb::tuple(order));
    }

private:
    nb::object array_;
    std::vector<size_t> axes_;
    int64_t row_;
};

DeviceView whole(nb::handle array) {
    return DeviceView(nb::borrow(array), {0, 1, 2, 3});
}

using Pair = std::pair<int64_t, int64_t>;

// Returns a DLPack capsule by the rules of the Python array API for __dlpack__. All writes of an array are finished when
// Python gets it, so its memory is ready for any stream, and nothing has to be enqueued on the consumer's.
nb::object to_dlpack(const DeviceView& view, std::optional<int64_t> stream, std::optional<Pair> max_version,
                     std::optional<Pair> dl_device, std::optional<bool> copy) {
    if (stream && (*stream == 0 || *stream < -1)) {
        throw nb::value_error("stream must be None, -1, 1 (default stream), 2 (per-thread) or the address of a stream");
    }
    const bool versioned = max_version && max_version->first >= 1;
    const auto export_memory = [&](uint64_t address, DlpackDevice device, int ordinal, nb::object owner, bool copied) {
        const std::vector<size_t> sides = view.shape();
        return make_dlpack_capsule({address, {sides.begin(), sides.end()}, view.strides(), device, ordinal,
                                    std::move(owner), copied}, versioned);
    };
    if (dl_device && *dl_device == Pair(static_cast<int64_t>(DlpackDevice::Cpu), 0)) {
        if (copy == false) {
            throw nb::buffer_error("the frames are on a GPU: an export to the CPU needs a copy, and copy is False");
        }
        nb::object host = view.to_host();
        const auto address = nb::cast<uint64_t>(host.attr("ctypes").attr("data"));
        return export_memory(address, DlpackDevice::Cpu, 0, host, true);
    }
    if (dl_device && *dl_device != Pair(static_cast<int64_t>(DlpackDevice::Cuda), view.ordinal())) {
        throw nb::buffer_error("dl_device must be the GPU that the frames are on, or (1, 0), the CPU");
    }
    const bool copied = copy.value_or(false);
    const DeviceView source = copied ? view.copied() : view;
    return export_memory(source.address(), DlpackDevice::Cuda, source.ordinal(), source.owner(), copied);
}

nb::dict cuda_array_interface(const DeviceView& view) {
    nb::dict result;
    result["shape"] = nb::tuple(nb::cast(view.shape()));
    result["typestr"] = "|u1";
    result["data"] = nb::make_tuple(view.address(), false);
    result["strides"] = nb::tuple(nb::cast(view.strides()));
    result["version"] = 3;
    return result;
}

// Returns one frame as a view, or some frames as a new array, by NumPy's rules for the key.
nb::object item(const DeviceView& view, const nb::object& key) {
    if (view.is_frame()) {
        throw nb::type_error("a single frame has no items");
    }
    nb::module_ numpy = nb::module_::import_("numpy");
    nb::object indices = numpy.attr("arange")(view.array().shape()[0]).attr("__getitem__")(key);
    if (nb::cast<int>(numpy.attr("ndim")(indices)) == 0) {
        return nb::cast(DeviceView(view.owner(), {view.axes().begin() + 1, view.axes().end()},
                                   nb::cast<int64_t>(nb::int_(indices))));
    }
    const auto rows = nb::cast<Numbers>(numpy.attr("ascontiguousarray")(indices, numpy.attr("int64")));
    nb::object array = nb::cast(copy_rows(view.array(), rows.data(), rows.size()));
    const bool reordered = view.axes() != std::vector<size_t>{0, 1, 2, 3};
    return reordered ? nb::cast(DeviceView(array, view.axes())) : array;
}

void bind_device_view(nb::module_& m) {
    nb::class_<DeviceView>(m, "DeviceView")
        .def_prop_ro("shape", [](const DeviceView& v) { return nb::tuple(nb::cast(v.shape())); })
        .def_prop_ro("device", &DeviceView::ordinal)
        .def("__len__", [](const DeviceView& v) { return v.shape()[0]; })
        .def("__getitem__", &item, "key"_a)
        .def("permute", &DeviceView::permuted, "axes"_a)
        .def("to_host", &DeviceView::to_host)
        .def("__dlpack_device__",
             [](const DeviceView& v) { return nb::make_tuple(nb::device::cuda::value, v.ordinal()); })
        .def("__dlpack__", &to_dlpack, nb::kw_only(), "stream"_a = nb::none(), "max_version"_a = nb::none(),
             "dl_device"_a = nb::none(), "copy"_a = nb::none())
        .def_prop_ro("__cuda_array_interface__", &cuda_array_interface);
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
                nb::gil_scoped_release release;
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
                return copy_rows(a, indices.data(), indices.size());
            },
            "indices"_a)
        .def(
            "__getitem__", [](nb::handle_t<DeviceArray> self, const nb::object& key) { return item(whole(self), key); },
            "key"_a)
        .def(
            "permute",
            [](nb::handle_t<DeviceArray> self, const std::vector<size_t>& axes) { return whole(self).permuted(axes); },
            "axes"_a)
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
        .def(
            "__dlpack__",
            [](nb::handle_t<DeviceArray> self, std::optional<int64_t> stream, std::optional<Pair> max_version,
               std::optional<Pair> dl_device, std::optional<bool> copy) {
                return to_dlpack(whole(self), stream, max_version, dl_device, copy);
            },
            nb::kw_only(), "stream"_a = nb::none(), "max_version"_a = nb::none(), "dl_device"_a = nb::none(),
            "copy"_a = nb::none())
        .def_prop_ro("__cuda_array_interface__",
                     [](nb::handle_t<DeviceArray> self) { return cuda_array_interface(whole(self)); });
}

}  // namespace

void bind_memory(nb::module_& m) {
    bind_device_array(m);
    bind_device_view(m);
    m.def("to_host", &to_host, "device"_a, "pointer"_a, "shape"_a, "stream"_a = 0);
    m.def(
        "synchronize",
        [](int device, uint64_t stream) {
            nb::gil_scoped_release release;
            Device& opened = Device::open(device);
            ScopedContext scope(opened.driver(), opened.context());
            opened.driver().check(opened.driver().stream_synchronize(reinterpret_cast<CUstream>(stream)),
                                  "waiting for the frames");
        },
        "device"_a, "stream"_a = 0);
}

}  // namespace telecine
