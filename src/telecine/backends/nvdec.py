"""The NVDEC backend: the planned packets go to the video engines of an NVIDIA GPU; only wanted frames are converted.

The engine is :mod:`telecine._nvdec`, in C++; docs/nvdec.md says how it works. Here is what Python does: check that the
hardware can do the video, cut the plan into stretches that different engines decode at the same time, give the packets
in batches, and hand out the memory for the frames.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from telecine.backends import BackendStatus, Decoded, DecodeRequest
from telecine.bitstream import Access
from telecine.errors import BackendUnavailable, DeadlineError, OptionsError
from telecine.index import PacketIndex
from telecine.options import Option
from telecine.plan import DecodePlan
from telecine.timing import NO_TIME

__all__ = ["OUT", "NvdecBackend", "stats", "upload", "warm_up"]

_CODECS = frozenset("h264 hevc vp8 vp9".split())
_INEXACT = frozenset("mpeg1video mpeg2video mpeg4".split())
"""Their inverse transform is not defined to the bit. NVDEC's differs from FFmpeg's: by up to 7 per channel (measured),
where the contract allows 3."""
_PIXEL_FORMATS = {
    f"yuv{full}{chroma}p{depth}": (chroma, int(depth.removesuffix("le") or 8))
    for full in ("", "j")
    for chroma in ("420", "422", "444")
    for depth in ("", "10le", "12le")
}
"""FFmpeg's names of what there is a conversion for: (chroma, bits)."""
_MATRICES = {
    "unknown": 2, "bt709": 1, "fcc": 4, "bt470bg": 5, "smpte170m": 6, "smpte240m": 7, "bt2020nc": 9, "bt2020c": 10,
}  # fmt: skip
"""Matrix coefficients of ITU-T H.273 by FFmpeg's names; others are not linear, or not YUV."""

_BATCH_BYTES = 64 << 20
"""Packets held at a time: a batch is decoded before the next one is read."""
_LEAST_RUN = 16
"""Packets below which a stretch is not cut once more: every run drains the decoder."""
_FAILED = 4
_REASONS = {1: "missing", 2: "damaged", 3: "with contradictory times", _FAILED: "not decoded because of an error"}


OUT = Option(
    str,
    "auto",
    "what the frames are: a torch tensor, an array with DLPack, or NumPy; torch where it is installed",
    choices=("auto", "torch", "array", "numpy"),
)


class NvdecBackend:
    """Executes a plan on a GPU."""

    options: Mapping[str, Option] = {"out": OUT}

    def status(self) -> BackendStatus:
        """See :class:`telecine.backends.Backend`."""
        try:
            nvdec = _extension()
        except ImportError as error:
            return BackendStatus("nvdec", False, str(error), None)
        try:
            nvdec.device_count()
            return BackendStatus("nvdec", True, None, f"CUDA {nvdec.driver_version()}")
        except nvdec.NvdecError as error:
            return BackendStatus("nvdec", False, str(error.args[0]), None)

    def decode(self, request: DecodeRequest) -> Decoded:
        """See :class:`telecine.backends.Backend`."""
        nvdec = _extension()
        out = _output(request)
        device = _device_number(request.device)
        try:
            _require(request, nvdec, device)
            return _decode(request, nvdec, device, out)
        except nvdec.NvdecError as error:
            raise BackendUnavailable(f"nvdec: {error.args[0]}") from error


def warm_up(
    codecs: Iterable[str] = ("h264", "hevc"),
    sizes: Iterable[tuple[int, int]] = ((1080, 1920),),
    *,
    count: int | None = None,
    depth: int = 8,
    device: str = "cuda",
) -> None:
    """Make sessions of the NVDEC engine now, so that the first requests do not wait for them.

    Args:
        codecs: FFmpeg's names.
        sizes: (height, width) of stored pictures; every video of the same size class can use the sessions.
        count: sessions for each codec and size; as many as the GPU has engines when omitted.
        depth: bits per component.
        device: "cuda" or "cuda:N".

    Raises:
        BackendUnavailable: it does not work here; the message says why.
    """
    nvdec = _extension()
    number = _device_number(device)
    wanted = list(sizes)
    try:
        for codec in codecs:
            each = count or nvdec.caps(number, codec, "420", depth)["num_engines"]
            for height, width in wanted:
                nvdec.warm_up(number, codec, "420", depth, width, height, each)
    except nvdec.NvdecError as error:
        raise BackendUnavailable(f"nvdec: {error.args[0]}") from error


def upload(frames: npt.NDArray[np.uint8], device: str, out: str) -> tuple[Any, str]:
    """Bring frames from the host to a GPU: (what ``out`` asks for, the device's full name).

    Raises:
        BackendUnavailable: there is no such device.
    """
    number = _device_number(device)
    if _form(out) == "torch":
        import torch

        try:
            return torch.from_numpy(frames).to(torch.device("cuda", number)), f"cuda:{number}"
        except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
            raise BackendUnavailable(f"device is {device!r}, but PyTorch cannot use it: {error}") from error
    nvdec = _extension()
    try:
        array = nvdec.DeviceArray(number, frames.shape)
        array.fill(frames)
    except nvdec.NvdecError as error:
        raise BackendUnavailable(f"device is {device!r}, but it cannot be used: {error.args[0]}") from error
    return array, f"cuda:{number}"


def stats(device: int = 0) -> dict[str, int]:
    """Counters of a GPU's engine: sessions made, reused and evicted, bytes they hold, runs waiting.

    Raises:
        BackendUnavailable: it does not work here; the message says why.
    """
    nvdec = _extension()
    try:
        return dict(nvdec.stats(device))
    except nvdec.NvdecError as error:
        raise BackendUnavailable(f"nvdec: {error.args[0]}") from error


def _extension() -> ModuleType:
    try:
        from telecine import _nvdec
    except ImportError as error:
        raise BackendUnavailable(
            f"the extension telecine._nvdec is missing ({error}); install telecine where a C++ compiler is"
        ) from error
    return _nvdec


def _output(request: DecodeRequest) -> str:
    out = str(request.options.get("out", "auto"))
    if request.device == "cpu":
        if out not in ("auto", "numpy"):
            raise OptionsError(f'out is {out!r}, but device is "cpu"; choose device="cuda" or out="numpy"')
        return "numpy"
    return _form(out)


def _form(out: str) -> str:
    if out == "auto":
        return "torch" if find_spec("torch") is not None else "array"
    return out


def _device_number(device: str) -> int:
    _, colon, number = device.partition(":")
    if colon:
        return int(number)
    if device == "cuda" and find_spec("torch") is not None:
        import torch

        # what torch means by "cuda" is the device that the caller has made current
        return int(torch.cuda.current_device()) if torch.cuda.is_initialized() else 0
    return 0


def _require(request: DecodeRequest, nvdec: ModuleType, device: int) -> None:
    """Raise BackendUnavailable with the reason if the hardware, or the conversion, cannot do this video."""
    info, geometry = request.info, request.geometry
    reason: str | None = None
    if info.codec in _INEXACT:
        reason = f"the GPU's decoder for {info.codec} gives other pictures than FFmpeg's, by more than 3 per channel"
    elif info.codec not in _CODECS:
        reason = f"{info.codec} is not decoded on the GPU"
    elif info.pixel_format not in _PIXEL_FORMATS:
        reason = f"there is no conversion from {info.pixel_format}"
    elif info.color_space not in _MATRICES:
        reason = f"there is no conversion from {info.color_space} colour"
    else:
        chroma, depth = _PIXEL_FORMATS[info.pixel_format]
        if chroma == "422" and geometry.quarter_turns % 2:
            reason = "turned 4:2:2 video is not converted on the GPU"
        else:
            size = geometry.stored_width, geometry.stored_height
            reason = nvdec.refusal(device, info.codec, chroma, depth, *size)
    if reason is not None:
        raise BackendUnavailable(f"nvdec: {reason}")


def _extradata(request: DecodeRequest) -> bytes:
    context: Any = request.demuxer.stream.codec_context
    return bytes(context.extradata or b"")


def _decode(request: DecodeRequest, nvdec: ModuleType, device: int, out: str) -> Decoded:
    count = len(request.plan.frames)
    started = time.perf_counter()
    memory = _Memory(nvdec, device, (count, request.geometry.height, request.geometry.width, 3), out)
    geometry = _geometry(request, nvdec)
    loss = np.ones(count, np.uint8)
    failures: dict[str, None] = {}
    fed = 0
    for batch in _batches(request):
        request.deadline.check("decoding", fed, request.plan.packets_fed)
        fed += len(batch.packets)
        result = nvdec.decode(
            device,
            request.index.codec,
            _extradata(request),
            batch.packets,
            batch.orders,
            batch.flags,
            batch.runs,
            batch.wanted,
            geometry,
            nvdec.Output(memory.pointer, count, memory.stream),
            timeout=request.deadline.remaining(),
            cancelled=lambda: request.deadline.cancelled,
            trust_references=request.index.exact_start,
            max_pixels=request.max_pixels,
        )
        if result.stopped:
            request.deadline.check("decoding", fed, request.plan.packets_fed)
            raise DeadlineError("the decode was stopped before its end")
        if result.failure is not None:
            if result.failure_kind != "driver":
                raise BackendUnavailable(f"nvdec: {result.failure}")
            failures[result.failure] = None
        loss[batch.wanted[:, 1]] = np.frombuffer(result.loss, np.uint8)
    decoding = time.perf_counter()
    data = memory.finish()
    seconds = {"gpu": decoding - started, "copy": time.perf_counter() - decoding}
    where = "cpu" if out == "numpy" else f"cuda:{device}"
    return Decoded(data, loss == 0, where, tuple(_notes(loss, failures)), seconds)


def _notes(loss: npt.NDArray[np.uint8], failures: dict[str, None]) -> Iterator[str]:
    for code, reason in _REASONS.items():
        rows = int((loss == code).sum())
        if rows:
            yield f"{rows} rows are {reason}"
    yield from failures


def _geometry(request: DecodeRequest, nvdec: ModuleType) -> Any:
    wanted, info = request.geometry, request.info
    return nvdec.Geometry(
        wanted.width,
        wanted.height,
        wanted.quarter_turns,
        wanted.mirrored,
        matrix=_MATRICES[info.color_space],
        full_range=info.color_range == "pc" or info.pixel_format.startswith("yuvj"),
        bicubic=not wanted.resizes,
    )


class _Memory:
    """The device memory that the frames are written to, and what becomes of it."""

    def __init__(self, nvdec: ModuleType, device: int, shape: tuple[int, int, int, int], out: str) -> None:
        self._nvdec, self._device, self._shape, self._out = nvdec, device, shape, out
        self.stream = 0
        self._frames: Any
        if out == "torch":
            import torch

            where = torch.device("cuda", device)
            # torch may give memory that was just freed: the engine waits for what this stream still does with it
            self._frames = torch.empty(shape, dtype=torch.uint8, device=where)
            self.stream = int(torch.cuda.current_stream(where).cuda_stream)
            self.pointer = int(self._frames.data_ptr())
        else:
            self._frames = nvdec.DeviceArray(device, shape)
            self.pointer = int(self._frames.pointer)

    def finish(self) -> Any:
        """The frames in the form asked for."""
        if self._out == "numpy":
            return self._nvdec.to_host(self._device, self.pointer, self._shape, self.stream)
        if self._out == "array":
            # its users have no stream of ours to wait on
            self._nvdec.synchronize(self._device, self.stream)
        return self._frames


@dataclass
class _Batch:
    """Arguments of one call of the engine."""

    packets: list[Any]
    orders: npt.NDArray[np.int64]
    flags: npt.NDArray[np.uint8]
    runs: npt.NDArray[np.int64]
    wanted: npt.NDArray[np.int64]


@dataclass
class _Stretch:
    """What one engine decodes by itself."""

    ordinals: npt.NDArray[np.int64]
    flags: npt.NDArray[np.uint8]
    targets: list[tuple[int, int]]
    """(position in ``ordinals``, output row)"""


def _batches(request: DecodeRequest) -> Iterator[_Batch]:
    """Read the planned packets and put them together, as many stretches at a time as :data:`_BATCH_BYTES` allows."""
    index = request.index
    waiting: list[_Stretch] = []
    size = 0
    for stretch in _stretches(index, request.plan):
        bytes_more = int(index.size[stretch.ordinals].sum())
        if waiting and size + bytes_more > _BATCH_BYTES:
            yield _read(request, waiting)
            waiting, size = [], 0
        waiting.append(stretch)
        size += bytes_more
    if waiting:
        yield _read(request, waiting)


def _read(request: DecodeRequest, stretches: list[_Stretch]) -> _Batch:
    packets: list[Any] = []
    flags = [stretch.flags for stretch in stretches]
    runs, wanted = [], []
    for stretch in stretches:
        start = len(packets)
        for position, (ordinal, packet) in enumerate(request.demuxer.read(request.index, stretch.ordinals)):
            packets.append(packet)
            if packet.is_corrupt:
                # a second field belongs to the picture of the packet in front of it
                stretch.flags[position - int(position > 0 and request.index.second_field[ordinal])] |= _CORRUPT
        runs.append((start, len(packets)))
        wanted += [(start + position, row) for position, row in stretch.targets]
    ordinals = np.concatenate([stretch.ordinals for stretch in stretches])
    return _Batch(
        packets,
        _orders(request.index, ordinals),
        np.concatenate(flags),
        np.array(runs, np.int64).reshape(-1, 2),
        np.array(wanted, np.int64).reshape(-1, 2),
    )


_RESTART, _NEEDED, _CORRUPT, _OPEN, _LEADING = 1, 2, 4, 8, 16
"""Packet flags of the engine."""


def _stretches(index: PacketIndex, plan: DecodePlan) -> Iterator[_Stretch]:
    """Cut the runs of a plan once more, at closed random access points: different engines can decode the parts."""
    for run in plan.runs:
        access = index.access[run.packets]
        flags = np.zeros(len(run.packets), np.uint8)
        flags[access == Access.CLOSED] |= _RESTART
        flags[access == Access.OPEN] |= _OPEN
        flags[index.leading[run.packets]] |= _LEADING
        flags[run.sound & ~index.disposable[run.packets] & index.exact_start] |= _NEEDED
        cuts = [0]
        for at in np.flatnonzero(access == Access.CLOSED).tolist():
            if at - cuts[-1] >= _LEAST_RUN:
                cuts.append(at)
        cuts.append(len(run.packets))
        for start, stop in pairwise(cuts):
            ordinals = run.packets[start:stop]
            targets = [(i, row) for i, p in enumerate(ordinals.tolist()) for row in run.targets.get(p, ())]
            if targets:
                yield _Stretch(ordinals, flags[start:stop], targets)


def _orders(index: PacketIndex, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """``int64`` the place of each packet in presentation order, as the engine's labels.

    NVDEC's parser insists on timestamps that ascend in display order: it exchanges them where they do not, and frames
    would change their names. So they are ranks, not decoding order, nor the container's times where those are rebuilt.
    """
    frame = np.full(index.num_packets, -1, np.int64)
    frame[index.order] = np.arange(index.num_frames)
    shown = frame[ordinals] >= 0
    keys = np.full(len(ordinals), NO_TIME, np.int64)
    keys[shown] = index.timeline.ticks[frame[ordinals[shown]]]
    timed = ~shown & (index.pts[ordinals] != NO_TIME) & (not index.synthetic_times)
    keys[timed] = index.pts[ordinals[timed]] - index.pts[index.order[0]]
    ranks = np.empty(len(ordinals), np.int64)
    ranks[np.lexsort((ordinals, keys))] = np.arange(len(ordinals))
    return ranks
