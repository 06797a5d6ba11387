"""NVIDIA's PyNvVideoCodec, given a reel as a file without a disk."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from telecine.backends import BackendStatus, Decoded, DecodeRequest
from telecine.backends.placing import HostRows, TorchRows
from telecine.errors import BackendUnavailable
from telecine.options import Option
from telecine.plan import Run
from telecine.reel import Reel, by_halves, chapters, cut, doubtful, from_closed, make_reel

__all__ = ["PyNvVideoCodecBackend"]

_INSTALL = "pip install 'telecine[pynvvideocodec]'"
_CHUNK = 8
"""Frames that are asked for at a time: each holds memory of the library's until it is copied."""
_DECODERS = 2
"""Hardware decoders at a time where nobody says. Each holds some 128 MiB of the GPU."""
_WAIT = 0.1
"""Seconds between two looks at the deadline while all decoders are busy."""
_TICKS = (16, 1, 1000)
"""What a millisecond may be in the times of frames: FFmpeg writes MP4 files in 1/16000 s where it is told 1/1000."""
_LAYOUTS = {"NV12": (2, 2, 8), "P016": (2, 2, 16), "NV16": (2, 1, 8), "P216": (2, 1, 16), "YUV444": (1, 1, 8),
            "YUV444_16Bit": (1, 1, 16)}  # fmt: skip
"""By the library's names of formats: columns and rows of a chroma sample, bits."""
_MATRICES = {"bt709": 1, "fcc": 4, "bt470bg": 5, "smpte170m": 6, "smpte240m": 7, "bt2020nc": 9, "bt2020c": 10}
_log = logging.getLogger("telecine.backends.pynvvideocodec")


class PyNvVideoCodecBackend:
    """Decodes with PyNvVideoCodec, on an NVIDIA GPU.

    For the CPU it takes pictures as decoded and converts them by the rule. On the GPU they are in the library's RGB.
    """

    options: Mapping[str, Option] = {
        "hw_decoders": Option(int, None, "hardware decoders at a time, in this process; the first value holds", 1, 64),
        "max_width": Option(int, 0, "the widest picture that a decoder makes room for; 0 is the video's own", 0, 16384),
        "max_height": Option(int, 0, "the highest one, likewise", 0, 16384),
    }
    differences: Mapping[str, str] = {
        "noise": "PyNvVideoCodec does not tell; the frames are as the hardware leaves them"
    }

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: threading.Semaphore | None = None
        self._count = 0
        self._warned = False

    def status(self) -> BackendStatus:
        """See :class:`telecine.backends.Backend`."""
        try:
            library = _library()
        except BackendUnavailable as error:
            return BackendStatus("pynvvideocodec", False, str(error), None)
        return BackendStatus("pynvvideocodec", True, None, str(library.__version__))

    def decode(self, request: DecodeRequest) -> Decoded:
        """See :class:`telecine.backends.Backend`."""
        library = _library()
        rows = _rows(request)
        with self._place(request):
            for runs in cut(request.plan.runs):
                if _decode(library, request, runs, rows):
                    continue
                for part in (part for run in runs for part in chapters(request.index, run)):
                    lost = by_halves(request.index, part, lambda run: _decode(library, request, (run,), rows))
                    rows.kept[[row for ordinal in lost for row in part.targets[ordinal]]] = False
        return rows.decoded()

    @contextmanager
    def _place(self, request: DecodeRequest) -> Iterator[None]:
        """Held while a hardware decoder is in use."""
        wanted = request.options["hw_decoders"]
        with self._lock:
            if self._places is None:
                self._count = wanted or _DECODERS
                self._places = threading.Semaphore(self._count)
            elif wanted not in (None, self._count) and not self._warned:
                self._warned = True
                _log.warning("hw_decoders is %d; it stays %d, as the first request said", wanted, self._count)
            places = self._places
        while not places.acquire(timeout=_WAIT):
            request.deadline.check("waiting for a hardware decoder")
        try:
            yield
        finally:
            places.release()


def _library() -> ModuleType:
    try:
        import PyNvVideoCodec
    except Exception as error:  # without the driver's encoder it raises a RuntimeError of many lines
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        driver = "" if isinstance(error, ModuleNotFoundError) else (
            "; it needs the NVIDIA driver with libnvcuvid and libnvidia-encode, "
            "which containers have with NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"
        )  # fmt: skip
        raise BackendUnavailable(f"PyNvVideoCodec cannot be imported ({reason}): {_INSTALL}{driver}") from None
    library: ModuleType = PyNvVideoCodec
    return library


def _rows(request: DecodeRequest) -> HostRows | TorchRows:
    if request.device == "cpu":
        return HostRows(request)
    try:
        import torch
    except ImportError as error:
        raise BackendUnavailable('pynvvideocodec: device="cuda" needs PyTorch: pip install torch') from error
    return TorchRows(request, torch.device(request.device))


def _decode(library: ModuleType, request: DecodeRequest, runs: tuple[Run, ...], rows: HostRows | TorchRows) -> bool:
    """Decode runs that need no restart in between; say whether all of it was there."""
    runs = from_closed(request.index, runs)
    reel = make_reel(request.demuxer, request.index, runs, request.deadline, "mp4")
    seen: set[int] = set()
    try:
        for position, frame in _frames(library, request, reel):
            if isinstance(rows, TorchRows):
                import torch

                rows.put(reel.targets[position], torch.from_dlpack(frame))
            else:
                rows.put_frame(reel.targets[position], _picture(request, frame))
            seen.add(position)
    except (RuntimeError, ValueError, IndexError) as error:
        if isinstance(error, BackendUnavailable):
            raise
        _log.debug("PyNvVideoCodec failed: %s", error)
    missing = {ordinal for run in runs for ordinal in run.targets if reel.position[ordinal] not in seen}
    lost = doubtful(request.index, runs, missing | reel.corrupt)
    rows.kept[[row for run in runs for ordinal in lost for row in run.targets.get(ordinal, ())]] = False
    return not lost


def _frames(library: ModuleType, request: DecodeRequest, reel: Reel) -> Iterator[tuple[int, Any]]:
    """Yield (position, frame) of wanted frames. A frame is known by its time, not by having been asked for."""
    number = {position: at for at, position in enumerate(reel.present())}
    wanted = [position for position in reel.targets if position in number]
    on_device = request.device != "cpu"
    with _file(reel.data) as path:
        decoder = library.SimpleDecoder(
            path,
            gpu_id=int(request.device.partition(":")[2] or 0),
            use_device_memory=on_device,
            max_width=request.options["max_width"],
            max_height=request.options["max_height"],
            output_color_type=library.OutputColorType.RGB if on_device else library.OutputColorType.NATIVE,
        )
        for first in range(0, len(wanted), _CHUNK):
            request.deadline.check("decoding", first, len(wanted))
            asked = wanted[first : first + _CHUNK]
            # ascending and without repeats, or it drops some and says so in a warning
            batch = decoder.get_batch_frames_by_index([number[position] for position in asked])
            times = [int(frame.getPTS()) for frame in batch]
            ticks = _ticks(reel, asked, times)
            for frame, when in zip(batch, times, strict=True):
                position = reel.at(when / ticks)
                if position in asked:
                    yield position, frame


def _ticks(reel: Reel, asked: list[int], times: list[int]) -> int:
    """What a millisecond is in these times: the unit in which most of them are what was asked for."""
    return max(_TICKS, key=lambda ticks: sum(reel.at(when / ticks) in asked for when in times))


@contextmanager
def _file(data: bytes) -> Iterator[str]:
    """The path of a file that is on no disk. Versions before 2.2 take nothing but paths."""
    descriptor = os.memfd_create("telecine", os.MFD_CLOEXEC)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _picture(request: DecodeRequest, frame: Any) -> Any:
    """A decoded frame in host memory as one of PyAV's, planar, as FFmpeg's own decoder would give it."""
    name = str(frame.format).rpartition(".")[2]
    if name not in _LAYOUTS:
        raise BackendUnavailable(f"pynvvideocodec: there is no conversion from its pixel format {name}")
    from av import VideoFrame

    across, down, bits = _LAYOUTS[name]
    depth = bits if bits == 8 else (request.info.bit_depth if request.info.bit_depth in (10, 12) else 16)
    family = {(2, 2): "420", (2, 1): "422", (1, 1): "444"}[across, down]
    samples = _samples(frame, bits)
    height, width = _size(samples.shape, down, across)
    if abs(width - request.geometry.stored_width) <= 1:  # chroma makes an odd width even
        width = request.geometry.stored_width
    planes = _planes(samples, height, width, across, down)
    if depth != bits:  # the engine puts the significant bits first
        planes = [plane >> (bits - depth) for plane in planes]
    picture = VideoFrame(width, height, f"yuv{family}p" + (f"{depth}le" if bits == 16 else ""))
    for target, plane in zip(picture.planes, planes, strict=True):
        view = np.frombuffer(memoryview(target), np.uint8).reshape(-1, target.line_size)
        raw = np.ascontiguousarray(plane).view(np.uint8).reshape(plane.shape[0], -1)
        view[: raw.shape[0], : raw.shape[1]] = raw
    picture.colorspace = _MATRICES.get(request.info.color_space, 2)
    picture.color_range = {"tv": 1, "pc": 2}.get(request.info.color_range, 0)
    return picture


def _samples(frame: Any, bits: int) -> npt.NDArray[Any]:
    """The samples of a frame in host memory, ``[rows, columns]``: luma first, chroma below."""
    # its shape may have a last axis of 1, and luma and chroma are one below the other
    tall, wide = (int(side) for side in tuple(frame.shape)[:2])
    kind = np.uint8 if bits == 8 else np.uint16
    pitch = wide * (bits // 8)
    memory = (ctypes.c_uint8 * (tall * pitch)).from_address(int(frame.GetPtrToPlane(0)))
    samples: npt.NDArray[Any] = np.ctypeslib.as_array(memory).view(kind).reshape(tall, wide)
    return samples


def _size(shape: tuple[int, ...], down: int, across: int) -> tuple[int, int]:
    """(height, width) of a picture whose planes are one below the other: it may differ from the first one's."""
    tall, wide = shape
    if across == 1:
        return tall // 3, wide
    return (tall * 2 // 3 if down == 2 else tall // 2), wide


def _planes(samples: npt.NDArray[Any], height: int, width: int, across: int, down: int) -> list[npt.NDArray[Any]]:
    if across == 1:
        rows = samples.shape[0] // 3
        return [samples[plane * rows : plane * rows + height, :width] for plane in range(3)]
    chroma_rows = -(-height // down)
    luma_rows = samples.shape[0] - chroma_rows
    chroma = samples[luma_rows:, : 2 * -(-width // across)]
    return [samples[:height, :width], chroma[:, 0::2], chroma[:, 1::2]]
