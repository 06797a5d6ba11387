// The Python module `telecine._nvdec`. It checks all arguments; the other files rely on that.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "annexb.h"
#include "bindings.h"
#include "engine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace telecine {
namespace {

using Pairs = nb::ndarray<const int64_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

VideoCodec codec_of(const std::string& name) {
    static const std::map<std::string, VideoCodec> known = {
        {"h264", VideoCodec::H264}, {"hevc", VideoCodec::Hevc}, {"vp8", VideoCodec::Vp8},
        {"vp9", VideoCodec::Vp9},   {"vc1", VideoCodec::Vc1},
    };
    const auto found = known.find(name);
    if (found == known.end()) {
        throw Error(Failure::Unsupported, name + " is not decoded on the GPU");
    }
    return found->second;
}

const char* name_of(Failure kind) {
    switch (kind) {
        case Failure::Unusable: return "unusable";
        case Failure::Unsupported: return "unsupported";
        case Failure::Limit: return "limit";
        case Failure::Memory: return "memory";
        case Failure::Threads: return "threads";
        default: return "driver";
    }
}

struct Result {
    std::vector<uint8_t> loss;
    int64_t pictures = 0;
    bool stopped = false;
    std::optional<std::string> failure;
    std::string failure_kind;
};

// Views of Python buffers, held while a request is decoded.
class Buffers {
public:
    explicit Buffers(const nb::list& packets) : views_(nb::len(packets)) {
        for (size_t i = 0; i < views_.size(); ++i) {
            if (PyObject_GetBuffer(nb::handle(packets[i]).ptr(), &views_[i], PyBUF_SIMPLE) != 0) {
                throw nb::python_error();
            }
            ++held_;
        }
    }
    ~Buffers() {
        for (size_t i = 0; i < held_; ++i) {
            PyBuffer_Release(&views_[i]);
        }
    }
    Buffers(const Buffers&) = delete;
    Buffers& operator=(const Buffers&) = delete;
    const Py_buffer& operator[](size_t i) const { return views_[i]; }
    size_t size() const { return views_.size(); }

private:
    std::vector<Py_buffer> views_;
    size_t held_ = 0;
};

void fill_packets(Request& request, const Buffers& buffers, const Numbers& display_order, const Bytes& flags) {
    if (display_order.size() != buffers.size() || flags.size() != buffers.size()) {
        throw nb::value_error("display_order and flags must have one entry for each packet");
    }
    for (size_t i = 0; i < buffers.size(); ++i) {
        request.packets.push_back({static_cast<const uint8_t*>(buffers[i].buf), static_cast<size_t>(buffers[i].len),
                                   display_order(i), flags(i), -1});
    }
}

void fill_ranges(Request& request, const Pairs& ranges) {
    int64_t end = 0;
    for (size_t i = 0; i < ranges.shape(0); ++i) {
        if (ranges(i, 0) < end || ranges(i, 1) <= ranges(i, 0) ||
            ranges(i, 1) > static_cast<int64_t>(request.packets.size())) {
            throw nb::value_error("ranges must be ascending (start, stop) pairs of packets that do not overlap");
        }
        end = ranges(i, 1);
        request.ranges.push_back({static_cast<int>(ranges(i, 0)), static_cast<int>(end)});
    }
}

// Reads (packet, row) pairs, the output rows that each wanted packet fills.
void fill_targets(Request& request, const Pairs& targets, int64_t num_rows) {
    for (size_t i = 0; i < targets.shape(0); ++i) {
        const int64_t packet = targets(i, 0);
        const int64_t row = targets(i, 1);
        if (packet < 0 || packet >= static_cast<int64_t>(request.packets.size()) || row < 0 || row >= num_rows) {
            throw nb::value_error("targets must be (packet, row) pairs inside the packets and the output");
        }
        int32_t& target = request.packets[static_cast<size_t>(packet)].target;
        if (target < 0) {
            target = static_cast<int32_t>(request.targets.size());
            request.targets.emplace_back();
        }
        request.targets[static_cast<size_t>(target)].rows.push_back(row);
    }
}

// Returns a function for the waiting thread that handles Python signals and calls `cancelled`.
std::function<bool()> make_cancel_check(const nb::object& cancelled, std::exception_ptr& raised) {
    return [&cancelled, &raised] {
        nb::gil_scoped_acquire gil;
        try {
            if (PyErr_CheckSignals() != 0) {
                throw nb::python_error();
            }
            return !cancelled.is_none() && nb::cast<bool>(cancelled());
        } catch (...) {
            raised = std::current_exception();
            return true;
        }
    };
}

void register_exit_handler() {
    static const pid_t owner = getpid();
    static bool registered = false;
    if (registered) {
        return;
    }
    registered = true;
    nb::module_::import_("atexit").attr("register")(nb::cpp_function([] {
        // a forked child inherits this handler, but no thread
        if (getpid() == owner) {
            nb::gil_scoped_release release;
            Engine::stop_all(false);
        }
    }));
}

Result decode(int device, const std::string& codec, const nb::bytes& extradata, const nb::list& packets,
              const Numbers& display_order, const Bytes& flags, const Pairs& ranges, const Pairs& targets,
              const Geometry& geometry, const Output& output, std::optional<double> timeout,
              const nb::object& cancelled, bool trust_references, int64_t max_pixels) {
    if (geometry.width < 1 || geometry.height < 1 || geometry.width > 1 << 16 || geometry.height > 1 << 16) {
        throw nb::value_error("the output must have a width and a height from 1 to 65536");
    }
    Request request;
    request.codec = codec_of(codec);
    if (request.codec == VideoCodec::Vc1) {
        throw Error(Failure::Unsupported, "vc1 is not decoded on the GPU");
    }
    const auto* header = reinterpret_cast<const uint8_t*>(extradata.c_str());
    request.extradata.assign(header, header + extradata.size());
    const Buffers buffers(packets);
    fill_packets(request, buffers, display_order, flags);
    fill_ranges(request, ranges);
    fill_targets(request, targets, output.rows);
    request.geometry = geometry;
    request.trust_references = trust_references;
    request.max_pixels = max_pixels;
    request.out = request.targets.empty() ? 0 : output.pointer;
    if (!request.targets.empty() && output.pointer == 0) {
        throw nb::value_error("there are targets, but output has no address");
    }
    request.row_bytes = 3LL * geometry.width * geometry.height;
    if (timeout) {
        request.deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                              std::chrono::duration<double>(std::min(*timeout, 1e8)));
    }
    std::exception_ptr raised;
    request.is_cancelled = make_cancel_check(cancelled, raised);
    register_exit_handler();
    {
        nb::gil_scoped_release release;
        Engine::of(device).decode(request, reinterpret_cast<CUstream>(output.stream));
    }
    if (raised) {
        std::rethrow_exception(raised);
    }
    Result result;
    for (size_t i = 0; i < targets.shape(0); ++i) {
        const int32_t target = request.packets[static_cast<size_t>(targets(i, 0))].target;
        result.loss.push_back(static_cast<uint8_t>(request.targets[static_cast<size_t>(target)].loss));
    }
    result.pictures = request.pictures;
    result.stopped = request.stop;
    if (request.failed) {
        result.failure = request.failure_text;
        result.failure_kind = name_of(request.failure);
    }
    return result;
}

VideoFormat format_of(const std::string& codec, const std::string& chroma, int depth, int width, int height) {
    VideoFormat format = {};
    format.codec = codec_of(codec);
    format.chroma = chroma_of(chroma);
    format.bit_depth_luma_minus8 = format.bit_depth_chroma_minus8 = static_cast<unsigned char>(depth - 8);
    format.coded_width = static_cast<unsigned>(width);
    format.coded_height = static_cast<unsigned>(height);
    format.display_area = {0, 0, width, height};
    return format;
}

std::optional<std::string> refusal(int device, const std::string& codec, const std::string& chroma, int depth,
                                   int width, int height) {
    nb::gil_scoped_release release;
    try {
        const VideoFormat format = format_of(codec, chroma, depth, width, height);
        require_supported(format, Device::open(device).caps(format.codec, format.chroma, depth));
    } catch (const Error& error) {
        if (error.kind == Failure::Unsupported) {
            return error.what();
        }
        throw;
    }
    return std::nullopt;
}

nb::dict caps(int device, const std::string& codec, const std::string& chroma, int depth) {
    DecodeCaps found;
    {
        nb::gil_scoped_release release;
        found = Device::open(device).caps(codec_of(codec), chroma_of(chroma), depth);
    }
    nb::dict result;
    result["supported"] = found.supported != 0;
    result["num_engines"] = static_cast<int>(found.num_engines);
    result["min_size"] = nb::make_tuple(static_cast<int>(found.min_height), static_cast<int>(found.min_width));
    result["max_size"] = nb::make_tuple(found.max_height, found.max_width);
    result["output_formats"] = static_cast<int>(found.output_format_mask);
    return result;
}

nb::dict stats(int device) {
    EngineStats now;
    SessionPool* pool = nullptr;
    size_t idle = 0;
    {
        nb::gil_scoped_release release;
        Engine& engine = Engine::of(device);
        now = engine.stats();
        pool = &engine.pool();
        idle = pool->idle();
    }
    const SessionStats& sessions = pool->stats();
    nb::dict result;
    result["requests"] = now.requests;
    result["ranges"] = now.ranges;
    result["pictures"] = now.pictures;
    result["frames"] = now.frames;
    result["workers"] = now.workers;
    result["queued_ranges"] = now.queued_ranges;
    result["running_ranges"] = now.running_ranges;
    result["sessions_made"] = sessions.made.load();
    result["sessions_reused"] = sessions.reused.load();
    result["sessions_reconfigured"] = sessions.reconfigured.load();
    result["sessions_evicted"] = sessions.evicted.load();
    result["sessions_destroyed_after_error"] = sessions.destroyed_after_error.load();
    result["sessions_idle"] = idle;
    result["session_bytes"] = pool->bytes();
    return result;
}

void bind_types(nb::module_& m) {
    nb::class_<Geometry>(m, "Geometry")
        .def(
            "__init__",
            [](Geometry* self, int width, int height, int quarter_turns, bool mirrored, int matrix, bool full_range,
               bool bicubic) {
                new (self) Geometry{width, height, quarter_turns & 3, mirrored, matrix, full_range, bicubic};
            },
            "width"_a, "height"_a, "quarter_turns"_a = 0, "mirrored"_a = false, "matrix"_a = 2, "full_range"_a = false,
            "bicubic"_a = true);
    nb::class_<Output>(m, "Output")
        .def(
            "__init__",
            [](Output* self, uint64_t pointer, int64_t rows, uint64_t stream) {
                new (self) Output{pointer, rows, stream};
            },
            "pointer"_a, "rows"_a, "stream"_a = 0);
    nb::class_<Result>(m, "Result")
        .def_prop_ro("loss", [](const Result& r) { return nb::bytes(r.loss.data(), r.loss.size()); })
        .def_ro("pictures", &Result::pictures)
        .def_ro("stopped", &Result::stopped)
        .def_ro("failure", &Result::failure)
        .def_ro("failure_kind", &Result::failure_kind);
}

void bind_errors(nb::module_& m) {
    static nb::handle type;
    type = PyErr_NewException("telecine._nvdec.NvdecError", PyExc_RuntimeError, nullptr);
    m.attr("NvdecError") = type;
    nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
        try {
            std::rethrow_exception(thrown);
        } catch (const Error& error) {
            PyErr_SetObject(type.ptr(), nb::make_tuple(error.what(), name_of(error.kind)).ptr());
        } catch (const std::bad_alloc& error) {
            PyErr_SetObject(type.ptr(), nb::make_tuple(to_error(error).what(), name_of(Failure::Memory)).ptr());
        }
    });
}

}  // namespace

Chroma chroma_of(const std::string& name) {
    if (name == "400") return Chroma::Monochrome;
    if (name == "420") return Chroma::C420;
    if (name == "422") return Chroma::C422;
    if (name == "444") return Chroma::C444;
    throw nb::value_error("chroma must be \"400\", \"420\", \"422\" or \"444\"");
}

}  // namespace telecine

NB_MODULE(_nvdec, m) {
    using namespace telecine;
    bind_errors(m);
    bind_types(m);
    bind_memory(m);
    bind_surface(m);
    m.attr("CLOSED") = static_cast<int>(kClosed);
    m.attr("REQUIRED") = static_cast<int>(kRequired);
    m.attr("CORRUPT") = static_cast<int>(kCorrupt);
    m.attr("OPEN") = static_cast<int>(kOpen);
    m.attr("LEADING") = static_cast<int>(kLeading);
    m.def("load", &set_libraries, "cuda"_a, "cuvid"_a);
    // These call the driver, which may wait for the GPU.
    const nb::call_guard<nb::gil_scoped_release> without_gil;
    m.def(
        "device_count",
        [] {
            int count = 0;
            driver().check(driver().device_count(&count), "counting the GPUs");
            return count;
        },
        without_gil);
    m.def(
        "driver_version",
        [] {
            int version = 0;
            driver().check(driver().driver_version(&version), "querying the version of the driver");
            return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
        },
        without_gil);
    m.def("device_name", [](int device) { return Device::open(device).name(); }, "device"_a, without_gil);
    m.def("pci_address", [](int device) { return Device::open(device).pci_address(); }, "device"_a, without_gil);
    m.def("caps", &caps, "device"_a, "codec"_a, "chroma"_a, "depth"_a);
    m.def("refusal", &refusal, "device"_a, "codec"_a, "chroma"_a, "depth"_a, "width"_a, "height"_a);
    m.def("decode", &decode, "device"_a, "codec"_a, "extradata"_a, "packets"_a, "display_order"_a, "flags"_a,
          "ranges"_a, "targets"_a, "geometry"_a, "output"_a, "timeout"_a = nb::none(), "cancelled"_a = nb::none(),
          "trust_references"_a = true, "max_pixels"_a = INT64_MAX);
    m.def(
        "warm_up",
        [](int device, const std::string& codec, const std::string& chroma, int depth, int width, int height,
           int count) {
            const VideoFormat format = format_of(codec, chroma, depth, width, height);
            register_exit_handler();
            nb::gil_scoped_release release;
            Engine::of(device).warm_up(format, count);
        },
        "device"_a, "codec"_a, "chroma"_a, "depth"_a, "width"_a, "height"_a, "count"_a);
    m.def(
        "configure",
        [](int device, std::optional<int> workers, std::optional<size_t> session_bytes, size_t idle_sessions) {
            nb::gil_scoped_release release;
            Engine& engine = Engine::of(device);
            if (workers) {
                engine.set_workers(*workers);
            }
            engine.pool().set_limits(session_bytes.value_or(4ull << 30), idle_sessions);
        },
        "device"_a, "workers"_a = nb::none(), "session_bytes"_a = nb::none(), "idle_sessions"_a = 16);
    m.def("stats", &stats, "device"_a);
    m.def("shutdown", [] {
        nb::gil_scoped_release release;
        return Engine::stop_all(true);
    });
    m.def(
        "_convert_packet",
        [](const std::string& codec, const nb::bytes& extradata, const nb::bytes& packet, bool with_parameter_sets) {
            PacketConverter converter(codec_of(codec), reinterpret_cast<const uint8_t*>(extradata.c_str()),
                                 extradata.size());
            const ConvertedPacket& converted =
                converter.convert(reinterpret_cast<const uint8_t*>(packet.c_str()), packet.size(), with_parameter_sets);
            nb::list picture_ends;
            for (size_t end : converted.picture_ends) {
                picture_ends.append(end);
            }
            return nb::make_tuple(nb::bytes(converted.data, converted.size), picture_ends, converted.damaged);
        },
        "codec"_a, "extradata"_a, "packet"_a, "with_parameter_sets"_a);
}
