// Export of arrays by DLPack's protocol for Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

namespace telecine {

enum class DlpackDevice : int32_t { Cpu = 1, Cuda = 2 };

// An array `uint8` to export. `owner` keeps its memory alive.
struct DlpackSource {
    uint64_t address;
    std::vector<int64_t> shape, strides;  // strides in elements
    DlpackDevice device;
    int ordinal;
    nanobind::object owner;
    bool is_copied;
};

// Returns a capsule: "dltensor_versioned" of DLPack 1.0, or "dltensor" for consumers that know no version.
nanobind::object make_dlpack_capsule(DlpackSource source, bool versioned);

}  // namespace telecine
