"""Export of the NVDEC engine's arrays by DLPack's protocol for Python, with the fake driver."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest

from support.fake_driver.double import Double, double_fixture, engine_fixture  # noqa: F401, fixtures

_IS_COPIED = 2
_CPU, _CUDA = 1, 2
_FRAMES = np.arange(72, dtype=np.uint8).reshape(2, 3, 4, 3)


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    )  # fmt: skip


def _pointer(capsule: Any, name: bytes) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.argtypes, get.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    return int(get(capsule, name))


def _versioned(capsule: Any) -> _Versioned:
    return _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))


def _pixels(tensor: _Tensor) -> np.ndarray:
    """Return a copy of an exported array; the fake driver's device memory is on the host."""
    shape, strides = (tuple(getattr(tensor, name)[: tensor.ndim]) for name in ("shape", "strides"))
    assert (tensor.code, tensor.bits, tensor.lanes, tensor.byte_offset) == (1, 8, 1, 0)
    size = 1 + sum((side - 1) * stride for side, stride in zip(shape, strides, strict=True))
    memory = np.frombuffer((ctypes.c_uint8 * size).from_address(tensor.data), np.uint8)
    return np.lib.stride_tricks.as_strided(memory, shape, strides).copy()


def _array(double: Double) -> Any:
    array = double.nvdec.DeviceArray(0, _FRAMES.shape)
    array.fill(_FRAMES)
    return array


def _views(array: Any) -> list[tuple[Any, np.ndarray]]:
    """Return an array and views of it, each with its pixels."""
    planes = array.permute((0, 3, 1, 2))
    return [
        (array, _FRAMES),
        (array[1], _FRAMES[1]),
        (planes, _FRAMES.transpose(0, 3, 1, 2)),
        (planes[1], _FRAMES[1].transpose(2, 0, 1)),
    ]


def test_a_consumer_of_version_1_gets_a_versioned_capsule_without_a_copy(double: Double) -> None:
    array = _array(double)
    for view, pixels in _views(array):
        for version in ((1, 0), (1, 3), (2, 0)):
            capsule = view.__dlpack__(stream=1, max_version=version)
            managed = _versioned(capsule)
            assert (managed.major, managed.flags) == (1, 0)
            assert (managed.tensor.device_type, managed.tensor.device_id) == (_CUDA, 0)
            assert array.pointer <= managed.tensor.data < array.pointer + 72
            assert np.array_equal(_pixels(managed.tensor), pixels)


@pytest.mark.parametrize("version", [None, (0, 8)])
def test_a_consumer_without_a_version_gets_a_capsule_without_one(double: Double, version: Any) -> None:
    for view, pixels in _views(_array(double)):
        capsule = view.__dlpack__(max_version=version)
        assert np.array_equal(_pixels(_Tensor.from_address(_pointer(capsule, b"dltensor"))), pixels)


@pytest.mark.parametrize("device", [None, (_CUDA, 0)])
def test_copy_true_exports_other_memory_and_says_that_it_is_a_copy(double: Double, device: Any) -> None:
    array = _array(double)
    for view, pixels in _views(array):
        capsule = view.__dlpack__(max_version=(1, 0), copy=True, dl_device=device)
        managed = _versioned(capsule)
        assert managed.flags == _IS_COPIED and managed.tensor.device_type == _CUDA
        assert not array.pointer <= managed.tensor.data < array.pointer + 72
        array.fill(np.zeros_like(_FRAMES))
        assert np.array_equal(_pixels(managed.tensor), pixels)
        array.fill(_FRAMES)
        del capsule


def test_copy_false_exports_the_memory_itself(double: Double) -> None:
    array = _array(double)
    capsule = array.__dlpack__(max_version=(1, 0), copy=False)
    assert _versioned(capsule).tensor.data == array.pointer and _versioned(capsule).flags == 0


def test_an_export_to_the_cpu_is_a_copy_in_host_memory(double: Double) -> None:
    array = _array(double)
    for view, pixels in _views(array):
        if np.lib.NumpyVersion(np.__version__) >= "2.1.0":  # NumPy takes a device since then
            assert np.array_equal(np.from_dlpack(view, device="cpu"), pixels)
        managed = _versioned(capsule := view.__dlpack__(max_version=(1, 0), dl_device=(_CPU, 0)))
        assert managed.flags == _IS_COPIED and managed.tensor.device_type == _CPU
        with pytest.raises(BufferError, match="copy is False"):
            view.__dlpack__(dl_device=(_CPU, 0), copy=False)
        del capsule


@pytest.mark.parametrize("device", [(_CUDA, 1), (_CPU, 1), (10, 0)])
def test_another_device_is_refused(double: Double, device: tuple[int, int]) -> None:
    with pytest.raises(BufferError, match="dl_device must be"):
        _array(double).__dlpack__(dl_device=device)


@pytest.mark.parametrize("stream", [None, -1, 1, 2, 0x7F0012345678])
def test_streams_that_the_protocol_defines_are_taken(double: Double, stream: int | None) -> None:
    array = _array(double)
    for view, pixels in _views(array):
        capsule = view.__dlpack__(stream=stream, max_version=(1, 0))
        assert np.array_equal(_pixels(_versioned(capsule).tensor), pixels)


@pytest.mark.parametrize("stream", [0, -2])
def test_streams_that_the_protocol_forbids_are_refused(double: Double, stream: int) -> None:
    for view, _ in _views(_array(double)):
        with pytest.raises(ValueError, match="stream must be"):
            view.__dlpack__(stream=stream)


def test_arguments_are_checked_and_by_keyword_only(double: Double) -> None:
    array = _array(double)
    for wrong in ({"stream": "a"}, {"max_version": 1}, {"copy": "yes"}, {"dl_device": "cuda"}, {"unknown": 1}):
        with pytest.raises(TypeError):
            array.__dlpack__(**wrong)
    with pytest.raises(TypeError):
        array.__dlpack__(1)


@pytest.mark.parametrize("options", [{}, {"max_version": (1, 0)}, {"copy": True}, {"dl_device": (_CPU, 0)}])
def test_an_export_keeps_its_memory_until_its_deleter_runs(double: Double, options: dict[str, Any]) -> None:
    before = double.count("memory")
    array = _array(double)
    capsule = array[1].__dlpack__(**options)
    del array
    gc.collect()
    versioned = "max_version" in options
    if versioned:
        assert np.array_equal(_pixels(_versioned(capsule).tensor), _FRAMES[1])
    del capsule  # not consumed, so the capsule runs the deleter itself
    gc.collect()
    assert double.count("memory") == before


def test_a_consumer_that_took_the_tensor_runs_the_deleter(double: Double) -> None:
    before = double.count("memory")
    array = _array(double)
    capsule = array.__dlpack__(max_version=(1, 0))
    managed = _versioned(capsule)
    ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), b"used_dltensor_versioned")
    del array, capsule
    gc.collect()
    assert double.count("memory") == before + 1 and np.array_equal(_pixels(managed.tensor), _FRAMES)
    address = ctypes.addressof(managed)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(managed.deleter)(address)
    assert double.count("memory") == before
