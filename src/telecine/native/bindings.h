// Declarations shared by the files of the Python module.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>

#include "interfaces.h"

namespace telecine {

using Numbers = nanobind::ndarray<const int64_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

// The output of frames: `rows` packed frames from device address `pointer` on; `stream` is the owner's CUDA stream.
struct Output {
    uint64_t pointer = 0;
    int64_t rows = 0;
    uint64_t stream = 0;
};

// Returns a chroma format by its name in Python; throws ValueError.
Chroma chroma_of(const std::string& name);

// DeviceArray, to_host and synchronize: module_memory.cpp.
void bind_memory(nanobind::module_& m);

// Surface and SurfaceConverter: module_surface.cpp.
void bind_surface(nanobind::module_& m);

}  // namespace telecine
