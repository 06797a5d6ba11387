"""The contract of a backend: the base class, the request that it gets, and the result that it returns.

There are two kinds of backends. A *packet backend* executes ``request.plan``: it feeds the planned packets, and no
others, to a decoder. A *file backend* uses a library that only reads files: it remuxes the planned packets into a file
in memory (:mod:`telecine.backends.remux.remux`). Both follow these rules:

- ``data[i]`` is frame ``plan.frames[i]``, converted to the size of ``geometry`` by the rule of
  :mod:`telecine.pixels.geometry`. A frame is identified by the packet it came from or by its time. If a library gives
  neither, the frame is identified by its position, and the number of decoded frames must prove that none is missing.
- A frame that cannot be decoded, or that refers to a damaged one, is left out: ``kept[i]`` is False, and the content of
  its row is undefined. It is never replaced by another frame.
- If nothing can be decoded, ``kept`` is False throughout, and the caller raises the error.
- ``request.deadline.check`` is called between small steps.
- Errors of the library are converted; only errors of :mod:`telecine.errors` come out.
- No thread is left behind except those of decoder libraries, and no reference to the returned frames is kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from telecine.container.demuxer import Demuxer
from telecine.deadline import Deadline
from telecine.errors import OptionsError
from telecine.frames import Layout
from telecine.index.packet_index import PacketIndex
from telecine.index.packet_scan import PACKET_BYTES
from telecine.index.video_info import VideoInfo
from telecine.limits import Limits
from telecine.notes import Note
from telecine.pixels.geometry import Geometry
from telecine.plan.decode_plan import DecodePlan, make_plan, split_frames
from telecine.plan.packet_reader import PacketReader
from telecine.source.source import Source
from telecine.system import usable_cores
from telecine.validation import Option

__all__ = ["SINGLE_THREADED_CODECS", "Backend", "BackendStatus", "DecodeRequest", "Decoded", "MemoryCost", "first_line"]

_PICTURES_PER_THREAD = 16
"""Decoded pictures that a decoder thread can hold: the reference pictures that H.264 and HEVC allow."""
_PICTURES_PER_SESSION = 20
"""Decoded pictures that a hardware decoder holds: at most 16 reference pictures, and a few in progress."""
_SESSION_HOST_BYTES = 64 << 20
"""Host memory that a hardware decoder takes: a batch of packets."""
SINGLE_THREADED_CODECS = frozenset({"mpeg4"})
"""Codecs of which FFmpeg, with several threads, returns a frame before it knows whether the frame is damaged."""
_MAX_THREADS = 16
"""Threads of a software decoder that are chosen by the number of cores."""
_MAX_GROUP_BYTES = 1 << 30
"""Frames that :meth:`Backend.decode_chunks` decodes at a time, unless a chunk is larger."""
_PADDING = (64, 128)
"""Rows and columns that FFmpeg allocates around a picture at most."""
_SAMPLES_PER_PIXEL = {"yuva": 4.0, **dict.fromkeys(("420", "411", "410"), 1.5), "422": 2.0, "444": 3.0, "nv12": 1.5,
                      "p010": 1.5, "gray": 1.0}  # fmt: skip
"""By a substring of the pixel format's name; the first match counts."""
_MAX_SAMPLES_PER_PIXEL = 4.0


def first_line(error: Exception, reason: object = None) -> str:
    """Return the first line of an error's message, or of ``reason``; the error's class if it is empty."""
    return next(iter(str(error if reason is None else reason).strip().splitlines()), type(error).__name__)


@dataclass(frozen=True)
class MemoryCost:
    """Memory that a decode takes at its peak, bytes."""

    host: int
    """Host memory."""
    device: int = 0
    """GPU memory."""

    def __add__(self, other: MemoryCost) -> MemoryCost:
        """Return the memory of two decodes at the same time."""
        return MemoryCost(self.host + other.host, self.device + other.device)


@dataclass(frozen=True, eq=False)
class DecodeRequest:
    """Everything that a backend knows of a request."""

    source: Source
    """The encoded bytes."""
    demuxer: Demuxer
    """Demuxer of the source, at any position. Packet backends read their packets from it."""
    index: PacketIndex
    """One row per packet of the video stream."""
    info: VideoInfo
    """Size, pixel format, colour and rate of the video."""
    plan: DecodePlan
    """The packets to feed and the frames to keep."""
    geometry: Geometry
    """Size and orientation of the pictures as stored and of the frames to return."""
    deadline: Deadline
    """Raises when the request has timed out or was cancelled."""
    device: str
    """Device of the returned frames: "cpu", "cuda" or "cuda:N"."""
    options: Mapping[str, Any]
    """Options of the backend: complete and checked if it declares them, else as the caller gave them."""
    max_pixels: int = Limits.max_pixels
    """Largest width times height of a picture: a stream may change its size at any key frame."""
    cores: int | None = None
    """Processor cores that the decode may keep busy; None for all that this process may use."""
    layout: Layout = "NHWC"
    """Layout that the caller gets. ``Decoded.data`` is ``[N, H, W, 3]`` in any case, but for "NCHW" a backend may make
    it a view of memory in that order, which then needs no copy."""

    @property
    def reader(self) -> PacketReader:
        """Reader of the planned packets."""
        return PacketReader(self.demuxer, self.index)

    @property
    def output_bytes(self) -> int:
        """Bytes of the frames to return."""
        return len(self.plan.frames) * self.geometry.height * self.geometry.width * 3

    @property
    def packet_bytes(self) -> int:
        """Bytes of the packets that the index holds in memory."""
        held = self.index.packets is not None
        return int(self.index.size.sum()) + PACKET_BYTES * self.index.num_packets if held else 0

    @property
    def picture_bytes(self) -> int:
        """Bytes of one decoded picture, with FFmpeg's padding."""
        name, depth = self.info.pixel_format, self.info.bit_depth
        samples = next((count for key, count in _SAMPLES_PER_PIXEL.items() if key in name), _MAX_SAMPLES_PER_PIXEL)
        return int(self._padded_pixels * samples * (1 if 0 < depth <= 8 else 2))

    @property
    def _padded_pixels(self) -> int:
        return (self.geometry.stored_height + _PADDING[0]) * (self.geometry.stored_width + _PADDING[1])

    def decoder_threads(self, requested: int | None = None, extra: int = 0) -> int:
        """Return the requested number of decoder threads; if None, one per core and ``extra`` ones, up to 16."""
        return requested if requested is not None else min(_MAX_THREADS, (self.cores or usable_cores()) + extra)

    def cpu_cost(self, threads: int) -> MemoryCost:
        """Return the memory of a decode on the CPU: frames, decoded pictures, and conversion to RGB."""
        conversion = 2 * 3 * (self._padded_pixels + self.geometry.height * self.geometry.width)
        pictures = threads * _PICTURES_PER_THREAD * self.picture_bytes
        return MemoryCost(self.output_bytes + pictures + conversion)

    def gpu_cost(self, on_host: bool = False) -> MemoryCost:
        """Return the memory of a decode by a hardware decoder: frames, decoded pictures, and packets to feed.

        Args:
            on_host: True if the frames are copied to host memory.
        """
        host = _SESSION_HOST_BYTES + (self.output_bytes if on_host else 0)
        return MemoryCost(host, self.output_bytes + _PICTURES_PER_SESSION * self.picture_bytes)


@dataclass(frozen=True, eq=False)
class Decoded:
    """The result of a decode."""

    data: Any
    """``uint8 [N, H, W, 3]`` RGB on the requested device."""
    kept: npt.NDArray[np.bool_]
    """``bool [N]``: True for the rows of ``data`` that hold their frame."""
    device: str
    """The device that ``data`` is on."""
    notes: tuple[Note, ...] = ()
    """Remarks for the report."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall time of stages of the decode by name: "convert", "copy"."""
    backend: str | None = None
    """Name of the backend that decoded; None if it is the requested one."""
    fallback_reason: str | None = None
    """Reason why another backend decoded; None if it is the requested one."""
    packets_fed: int | None = None
    """Packets fed to the decoder; None for all packets of the plan."""


@dataclass(frozen=True)
class BackendStatus:
    """State of a backend on this machine."""

    name: str
    """Name of the backend, as ``backend=`` takes it."""
    usable: bool
    """True if the backend works on this machine."""
    reason: str | None
    """Reason why it does not work, and what to do about it; None if it is usable."""
    version: str | None
    """Version of the library that decodes."""
    devices: tuple[str, ...] = ()
    """Types of the devices that frames can be put on: "cpu", "cuda"."""


class Backend(ABC):
    """Base class of all backends. Thread-safe: several decodes may run at once.

    A subclass needs a name, :meth:`status` and :meth:`decode`. The other attributes have defaults.
    """

    name: ClassVar[str]
    """Name in messages and reports."""
    devices: tuple[str, ...] = ("cpu",)
    """Types of the devices that frames can be put on: "cpu", "cuda". Others are refused before the source is opened."""
    options: Mapping[str, Option] | None = {}
    """Options by name, checked before the source is opened. None if any option is taken and :meth:`decode` checks."""
    detects_damage: bool = True
    """True if damage inside a picture is detected, so that the frames which refer to it are left out."""
    chunks_per_group: int = 1
    """Chunks that :meth:`decode_chunks` decodes together; more than 1 for hardware with several decoders."""
    tolerances: Mapping[str, int] = {}
    """Largest allowed difference of a pixel from the ffmpeg command line, by the name of a case of
    :mod:`telecine.testing`."""
    refused_cases: frozenset[str] = frozenset()
    """Names of the cases of :mod:`telecine.testing` that the backend may refuse."""

    @abstractmethod
    def status(self) -> BackendStatus:
        """Return whether this backend works on this machine; :meth:`make_status` builds the result. Never raises."""

    @abstractmethod
    def decode(self, request: DecodeRequest) -> Decoded:
        """Decode the frames of a request, by the rules of this module.

        Raises:
            UnsupportedVideoError: The backend cannot decode this codec, pixel format or size.
            BackendUnavailable: A library, a driver or the device is missing.
            OverloadedError: There is not enough memory.
            DeadlineError, Cancelled: From ``request.deadline``.
        """

    def decode_chunks(self, request: DecodeRequest, chunk_frames: int) -> Iterator[Decoded]:
        """Yield the frames of a request in chunks, in order, so that memory does not grow with the length of the video.

        By default, groups of frames are decoded one after another, each from a random access point. Decoder sessions
        that the backend keeps for reuse stay open between them. If a video has more than 1 GiB of frames between two
        random access points, the second GiB is decoded from the same point as the first.

        Args:
            request: of all frames; :attr:`DecodeRequest.output_bytes` does not fit in memory in general.
            chunk_frames: largest number of frames of a chunk.

        Raises:
            TelecineError: as :meth:`decode`.
        """
        frame_bytes = request.geometry.height * request.geometry.width * 3
        max_frames = max(1, _MAX_GROUP_BYTES // (frame_bytes * chunk_frames)) * chunk_frames
        min_frames = min(max_frames, self.chunks_per_group * chunk_frames)
        for group in split_frames(request.index, request.plan.frames, min_frames, max_frames):
            plan = make_plan(request.index, request.plan.frames[group])
            decoded = self.decode(replace(request, plan=plan))
            packets_fed = plan.packets_fed
            for start in range(0, len(plan.frames), chunk_frames):
                rows = slice(start, start + chunk_frames)
                data = decoded.data if len(plan.frames) <= chunk_frames else decoded.data[rows]
                yield replace(decoded, data=data, kept=decoded.kept[rows], packets_fed=packets_fed)
                packets_fed = 0

    def make_status(self, version: str | None, reason: str | None = None) -> BackendStatus:
        """Return a status: usable if there is no reason why not."""
        return BackendStatus(self.name, reason is None, reason, version, self.devices)

    def check_device(self, device: str, options: Mapping[str, Any]) -> None:
        """Refuse a device that frames cannot be put on; called before the source is opened.

        Args:
            device: "cpu", "cuda" or "cuda:N".
            options: Options of this backend, complete and checked.

        Raises:
            OptionsError: Frames cannot be put on devices of this type.
            BackendUnavailable: The machine has no such device.
        """
        if device.partition(":")[0] not in self.devices:
            allowed = " or ".join(f'"{kind}"' for kind in self.devices)
            raise OptionsError(
                f"device is {device!r}; {self.name} puts frames on {allowed} only; choose that, or another backend"
            )

    def decodes_on_cpu(self, device: str) -> bool:
        """Return True if a decode for this device keeps processor cores busy, so that a pool counts them."""
        return device == "cpu"

    def memory_cost(self, request: DecodeRequest) -> MemoryCost:
        """Estimate the memory that a decode takes at its peak, without the packets that the index holds.

        Decoder sessions, staging buffers and the returned frames are included.
        """
        if self.decodes_on_cpu(request.device):
            return request.cpu_cost(request.cores or usable_cores())
        return request.gpu_cost()

    def gauges(self) -> Mapping[str, float]:
        """Return the current values of the metrics that this backend reports, by name: docs/pool.md."""
        return {}
