// What the files that make up the Python module share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

namespace telecine {

using Numbers = nanobind::ndarray<const int64_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

// DeviceArray, to_host and synchronize: module_memory.cpp.
void bind_memory(nanobind::module_& m);

}  // namespace telecine
