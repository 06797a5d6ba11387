#include "dlpack.h"

#include <memory>
#include <utility>

namespace nb = nanobind;

namespace telecine {
namespace {

// The structures of DLPack's C interface, version 1.0.
struct Tensor {
    void* data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t type_code, type_bits;
    uint16_t type_lanes;
    int64_t* shape;
    int64_t* strides;
    uint64_t byte_offset;
};

struct Unversioned {
    static constexpr const char* kName = "dltensor";
    Tensor tensor;
    void* context;
    void (*deleter)(Unversioned*);
};

struct Versioned {
    static constexpr const char* kName = "dltensor_versioned";
    uint32_t major, minor;
    void* context;
    void (*deleter)(Versioned*);
    uint64_t flags;
    Tensor tensor;
};

constexpr uint8_t kUnsignedInteger = 1;
constexpr uint64_t kIsCopied = 2;

template <typename Managed>
struct Export {
    Managed managed = {};
    DlpackSource source;
};

// Frees an export. A consumer may call it in any thread, and after Python has ended; then the memory is not freed.
template <typename Managed>
void free_export(Managed* managed) {
    if (Py_IsInitialized()) {
        nb::gil_scoped_acquire gil;
        delete static_cast<Export<Managed>*>(managed->context);
    }
}

// Frees the export of a capsule that no consumer has taken: a consumer renames it to "used_...".
template <typename Managed>
void free_capsule(PyObject* capsule) {
    if (PyCapsule_IsValid(capsule, Managed::kName)) {
        auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, Managed::kName));
        managed->deleter(managed);
    }
}

template <typename Managed>
nb::object make_capsule(DlpackSource&& source) {
    auto exported = std::make_unique<Export<Managed>>();
    exported->source = std::move(source);
    DlpackSource& held = exported->source;
    Managed& managed = exported->managed;
    managed.tensor = {reinterpret_cast<void*>(held.address), static_cast<int32_t>(held.device), held.ordinal,
                      static_cast<int32_t>(held.shape.size()), kUnsignedInteger, 8, 1, held.shape.data(),
                      held.strides.data(), 0};
    managed.context = exported.get();
    managed.deleter = free_export<Managed>;
    if constexpr (std::is_same_v<Managed, Versioned>) {
        managed.major = 1;
        managed.flags = held.is_copied ? kIsCopied : 0;
    }
    PyObject* capsule = PyCapsule_New(&managed, Managed::kName, free_capsule<Managed>);
    if (capsule == nullptr) {
        throw nb::python_error();
    }
    exported.release();  // freed with the capsule, or by its consumer
    return nb::steal(capsule);
}

}  // namespace

nb::object make_dlpack_capsule(DlpackSource source, bool versioned) {
    return versioned ? make_capsule<Versioned>(std::move(source)) : make_capsule<Unversioned>(std::move(source));
}

}  // namespace telecine
