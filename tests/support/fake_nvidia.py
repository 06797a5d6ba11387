"""Stand-ins for the libraries that need an NVIDIA GPU: the same interface, with FFmpeg doing the work.

They were written from the wheels of PyNvVideoCodec 2.0.4 and 2.2.4 and of nvidia-deepstream-videodecode-cu13 9.0.2,
and they have the faults of those libraries where an adapter has to cope.
"""

from __future__ import annotations

import ctypes
import heapq
import io
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import av
import numpy as np
import pytest

from support.clips import read_number
from telecine.pixels.filter_graph import Converter
from telecine.pixels.geometry import Geometry

__all__ = ["FakeDeepStream", "FakePyNvVideoCodec", "Tensor", "fake_torch", "install"]


def install(monkeypatch: pytest.MonkeyPatch, **modules: Any) -> None:
    """Make ``import`` find these, until the test ends; two underscores in a name are a dot."""
    for name, module in modules.items():
        monkeypatch.setitem(__import__("sys").modules, name.replace("__", "."), module)


class _Stream(threading.local):
    """The copies that a thread has not waited for."""

    def __init__(self) -> None:
        self.unfinished: list[Callable[[], None]] = []

    def synchronize(self) -> None:
        while self.unfinished:
            self.unfinished.pop()()


_STREAM = _Stream()


class Tensor:
    """As much of a torch tensor as is used of one. A copy need not be complete before somebody waits for it."""

    def __init__(self, array: np.ndarray[Any, Any], pinned: bool = False) -> None:
        self.array, self.pinned = array, pinned

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def copy_(self, other: Tensor, non_blocking: bool = False) -> None:
        def copy() -> None:
            self.array[...] = other.array

        if non_blocking and self.pinned:
            _STREAM.unfinished.append(copy)
        else:
            copy()

    def numpy(self) -> np.ndarray[Any, Any]:
        return self.array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self.array[key], self.pinned)

    def __iter__(self) -> Iterator[Tensor]:
        return (Tensor(one) for one in self.array)


def fake_torch(gpus: int = 1) -> Any:
    """torch, as far as it says whether there is a GPU, pins memory, and waits for copies."""

    def empty(shape: tuple[int, ...], dtype: Any, pin_memory: bool = False) -> Tensor:
        return Tensor(np.empty(shape, dtype), pin_memory)

    module: Any = types.ModuleType("torch")
    module.uint8, module.empty, module.device = np.uint8, empty, lambda *name: name
    module.cuda = types.SimpleNamespace(
        is_available=lambda: gpus > 0, device_count=lambda: gpus, current_stream=lambda device: _STREAM
    )
    return module


class _Format(Enum):
    NV12 = 1
    P016 = 2
    YUV444 = 3
    YUV444_16Bit = 4
    NV16 = 5
    P216 = 6


class PyNvVCException(Exception):
    """Of the library; nothing but Exception is above it."""


class _Frame:
    """A decoded frame, whose memory is the decoder's. A device's memory is the host's here, as in the fake driver."""

    def __init__(self, picture: Any, pts: int) -> None:
        self._pts = pts
        depth = picture.format.components[0].bits
        kind = np.uint8 if depth == 8 else np.uint16
        planes = [
            np.frombuffer(memoryview(plane), np.uint8).reshape(plane.height, plane.line_size).view(kind)
            << (0 if depth == 8 else 16 - depth)
            for plane in picture.planes
        ]
        name, width = picture.format.name, picture.width
        if name.startswith(("yuv444p", "gbrp")):
            self.format = _Format.YUV444 if depth == 8 else _Format.YUV444_16Bit
            self.data = np.concatenate([plane[:, :width] for plane in planes])
            return
        formats = {("420", 8): _Format.NV12, ("420", 16): _Format.P016, ("422", 8): _Format.NV16}
        self.format = formats.get((name.strip("yuvj")[:3], 8 if depth == 8 else 16), _Format.P216)
        half = -(-width // 2)
        chroma = np.stack([planes[1][:, :half], planes[2][:, :half]], axis=-1).reshape(planes[1].shape[0], -1)
        # chroma makes an odd width even
        self.data = np.concatenate([planes[0][:, : 2 * half], chroma])

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.data.shape, 1)

    @property
    def strides(self) -> tuple[int, ...]:
        return (self.data.shape[1], 1, 1)

    def getPTS(self) -> int:
        return self._pts

    def GetPtrToPlane(self, plane: int) -> int:
        return int(self.data.ctypes.data)


class _PacketData:
    """A packet: its bytes are at an address, and whoever made it keeps them there until it is decoded."""

    __slots__ = ("bsl", "bsl_data", "decode_flag", "dts", "duration", "key", "pos", "pts")

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    def __setattr__(self, name: str, value: Any) -> None:
        if not isinstance(value, int):
            raise TypeError(f"(): incompatible function arguments: {name} is {value!r}")
        object.__setattr__(self, name, value)


class FakePyNvVideoCodec(types.ModuleType):
    """PyNvVideoCodec's low-level decoder. ``made`` are the arguments of its decoders, ``alive`` those that exist.

    Like the driver's parser it decodes a picture when the next one begins, takes the time of a frame from its packet,
    passes over what it cannot read, ends the stream with a packet without bytes, and can begin another one after that.
    What it gave is overwritten by the next call.

    Args:
        exchanges: whether it gives frames the times in ascending order, whoever they belong to, as the parser does
            where it thinks that they are wrong.
        unsupported: names of codecs that the GPU does not have.
        fails_at: packets after which a decoder fails; by number of the decoder.
        drops: numbers on pictures that do not come out.
        mute: names of codecs of which it gives nothing, and says nothing.
    """

    def __init__(
        self,
        exchanges: bool = False,
        unsupported: tuple[str, ...] = (),
        fails_at: dict[int, int] | None = None,
        drops: tuple[int, ...] = (),
        mute: tuple[str, ...] = (),
    ) -> None:
        super().__init__("PyNvVideoCodec")
        self.__version__ = "2.1.1"
        self.OutputColorType = Enum("OutputColorType", "NATIVE RGB RGBP")
        self.cudaVideoCodec = Enum("cudaVideoCodec", list(_CODECS))
        self.PacketData = _PacketData
        self.PyNvVCException = PyNvVCException
        self.made: list[dict[str, Any]] = []
        self.alive: weakref.WeakSet[Any] = weakref.WeakSet()
        self.most_alive = 0
        self.exchanges, self.unsupported, self.drops, self.mute = exchanges, unsupported, drops, mute
        self.fails_at = fails_at or {}

    def CreateDecoder(self, **arguments: Any) -> Any:
        assert arguments.keys() <= _ARGUMENTS
        return _NvDecoder(self, arguments)


_ARGUMENTS = {
    "gpuid", "codec", "cudacontext", "cudastream", "usedevicememory", "maxwidth", "maxheight", "outputColorType",
}  # fmt: skip
_CODECS = {
    "MPEG1": "mpeg1video", "MPEG2": "mpeg2video", "MPEG4": "mpeg4", "VC1": "vc1", "H264": "h264", "HEVC": "hevc",
    "VP8": "vp8", "VP9": "vp9", "AV1": "libdav1d",
}  # fmt: skip


class _NvDecoder:
    def __init__(self, library: FakePyNvVideoCodec, arguments: dict[str, Any]) -> None:
        self._library, self._arguments = library, arguments
        self._fails_at = library.fails_at.get(len(library.made))
        library.made.append(arguments)
        library.alive.add(self)
        library.most_alive = max(library.most_alive, len(library.alive))
        self._name = arguments["codec"].name
        # everything it knows of the stream must come in the packets
        self._context: Any = av.CodecContext.create(_CODECS[self._name], "r")
        self._context.thread_count = 1
        self._context.options = {"strict": "strict"}
        self._waiting: tuple[int, bytes] | None = None
        self._given: list[_Frame] = []
        self._times: list[int] = []
        self._size: tuple[int, int] | None = None
        self._packets = 0
        self._broken = False

    def Decode(self, packet: _PacketData) -> list[_Frame]:
        for frame in self._given:
            frame.data.view(np.uint8)[:] = 0xA5
        self._given = []
        if self._broken:
            raise PyNvVCException("the decoder was used after it had failed")
        if self._name in self._library.unsupported:
            self._fail("\nHandleVideoSequence : Codec not supported on this GPU at ../src/NvDecoder.cpp:264\n")
        if self._packets == self._fails_at:
            self._fail("HandlePictureDecode : m_api.cuvidDecodePicture(m_hDecoder, pPicParams) failed\n at line 7")
        self._packets += 1
        pictures = [] if self._name in self._library.mute else self._parse(self._waiting)
        self._waiting = None
        if packet.bsl:
            self._waiting = packet.pts, ctypes.string_at(packet.bsl_data, packet.bsl)
        else:
            pictures += self._decode(None)
            self._context.flush_buffers()
        for picture in pictures:
            self._resize(picture)
            pts = heapq.heappop(self._times) if self._library.exchanges else picture.pts
            if not (self._library.drops and read_number(_rgb(picture)) in self._library.drops):
                self._given.append(_Frame(picture, pts))
        if not packet.bsl:
            self._times.clear()
        return list(self._given)

    def _parse(self, waiting: tuple[int, bytes] | None) -> list[Any]:
        if waiting is None:
            return []
        # FFmpeg looks beyond the end, and PyAV does not see to it that there are zeros
        packet = av.Packet(memoryview(waiting[1] + bytes(64))[: len(waiting[1])])
        packet.pts = waiting[0]
        heapq.heappush(self._times, waiting[0])
        return self._decode(packet)

    def _decode(self, packet: Any) -> list[Any]:
        try:
            return list(self._context.decode(packet))
        except av.error.FFmpegError:
            return []

    def _resize(self, picture: Any) -> None:
        size = picture.width, picture.height
        self._size = self._size or size
        room = max(self._size[0], self._arguments["maxwidth"]), max(self._size[1], self._arguments["maxheight"])
        if size[0] > room[0] or size[1] > room[1]:
            self._fail("ReconfigureDecoder : Reconfigure Not supported when width/height > maxwidth/maxheight at x:1")

    def _fail(self, message: str) -> None:
        self._broken = True
        raise PyNvVCException(message)


def _rgb(picture: Any) -> np.ndarray[Any, Any]:
    image = np.empty((picture.height, picture.width, 3), np.uint8)
    Converter(Geometry(picture.height, picture.width, 0, False, picture.height, picture.width))(picture, image)
    return image


class FakeDeepStream(types.ModuleType):
    """The package ``nvidia.deepstream_videodecode``, with what was seen of it on an H200.

    A worker keeps its decoder while the hint on the codec stays the same, and goes wrong where another stream needs a
    larger one: here its pictures come in the wrong order then, for nobody promises that the count shows it. It takes
    colours by the primaries, and those of the stream that the decoder was made for.

    Args:
        dead: after so many calls a worker dies, and its caller waits for ever.
        drops: numbers on pictures that the decoder does not give.
        slow: every call ends with the library's own timeout.
        fails: every call ends with this error, before the first picture.
        leading: whether pictures in front of an open start of H.264 are shown, undecodable as they are.
    """

    def __init__(
        self,
        dead: int | None = None,
        drops: tuple[int, ...] = (),
        slow: bool = False,
        fails: str = "",
        leading: bool = False,
    ) -> None:
        super().__init__("nvidia.deepstream_videodecode")
        self.__version__ = "9.0.2"
        self.pools: list[Any] = []
        self.calls: list[dict[str, Any]] = []
        self.dead, self.drops, self.slow, self.fails, self.leading = dead, drops, slow, fails, leading
        library = self

        class DecodePool:
            def __init__(self, num_workers: int = 8, drop_interval: int = 0) -> None:
                self.num_workers = num_workers
                self.closed = False
                self.hint = ""
                self.made_for: tuple[bytes, Any] | None = None
                library.pools.append(self)

            def decode(self, data: bytes, **arguments: Any) -> Any:
                return library._decode(self, data, **arguments)

            def shutdown(self) -> None:
                self.closed = True

        self.DecodePool = DecodePool

    def _decode(
        self,
        pool: Any,
        data: bytes,
        target_indices: list[int],
        codec: str = "",
        max_frames: int = 8,
        timeout_sec: float = 30.0,
    ) -> Any:
        assert isinstance(data, bytes) and pool.num_workers == 1
        self.calls.append({"codec": codec, "indices": target_indices, "data": data, "timeout": timeout_sec})
        if self.dead is not None and len(self.calls) > self.dead and pool is self.pools[0]:
            threading.Event().wait()
        if self.slow:
            return self._result([], 0, f"timeout after {timeout_sec}s")
        if self.fails:
            return self._result([], 0, self.fails)
        pictures, sequence = _decoded(data, self.leading)
        primaries = int(pictures[0].color_primaries) if pictures else 2
        if pool.made_for is None or codec != pool.hint:
            pool.hint, pool.made_for = codec, (sequence, primaries)
        if pool.made_for[0] != sequence:
            pictures = [*pictures[1:], *pictures[:1]]
        kept: list[Any] = []
        total = 0
        for picture in pictures:
            image = _painted(picture, pool.made_for[1])
            if image is None:
                return self._result([], 1, "Internal data stream error.")
            if self.drops and read_number(image) in self.drops:
                continue
            total += 1
            if total - 1 in target_indices:
                kept.append(image)
            if len(kept) == max_frames:
                break
        return self._result(kept, total, "")

    @staticmethod
    def _result(kept: list[Any], total: int, error: str) -> Any:
        frames = Tensor(np.stack(kept)) if kept else None
        return types.SimpleNamespace(frames=frames, n_kept=len(kept), n_total=total, fps=0.0, error=error)


def _decoded(data: bytes, leading: bool) -> tuple[list[Any], bytes]:
    """The pictures of a file, and the first sequence parameter set in it."""
    pictures: list[Any] = []
    with av.open(io.BytesIO(data), "r") as file:
        context = file.streams.video[0].codec_context
        context.thread_count = 1
        if leading:
            context.flags2 |= av.codec.context.Flags2.show_all.value
        packets = list(file.demux(video=0))
        first = bytes(packets[0])
        for packet in packets:
            try:
                pictures += packet.decode()
            except av.error.FFmpegError:
                pass  # GStreamer's parser passes over what it cannot read
    units = (unit.rstrip(b"\0") for unit in first.split(b"\0\0\1")[1:])
    return pictures, next((unit for unit in units if unit[0] & 0x1F == 7 or unit[0] >> 1 == 33), b"")


def _painted(picture: Any, primaries: int) -> np.ndarray[Any, Any] | None:
    """In RGB, by the matrix that goes with the primaries; None where there is none that the converter knows."""
    matrices = {1: 1, 2: 5, 6: 5}
    if primaries not in matrices:
        return None
    picture.colorspace = matrices[primaries]
    return _rgb(picture)
