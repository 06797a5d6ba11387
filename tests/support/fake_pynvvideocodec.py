"""A fake of PyNvVideoCodec: the interface of 2.0.4 and 2.2.4 with their faults, and FFmpeg as the decoder."""

from __future__ import annotations

import ctypes
import heapq
import types
import weakref
from enum import Enum
from typing import Any

import av
import numpy as np

from support.clips import read_number
from support.fake_nvidia import to_rgb

__all__ = ["FakePyNvVideoCodec"]


class _Format(Enum):
    NV12 = 1
    P016 = 2
    YUV444 = 3
    YUV444_16Bit = 4
    NV16 = 5
    P216 = 6


class PyNvVCException(Exception):
    """The library's exception; its only base class is Exception."""


class _Frame:
    """A decoded frame in the decoder's memory. GPU memory is host memory, as in the fake driver."""

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
    """A packet with the address of its bytes, which the caller keeps valid until it is decoded."""

    __slots__ = ("bsl", "bsl_data", "decode_flag", "dts", "duration", "key", "pos", "pts")

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    def __setattr__(self, name: str, value: Any) -> None:
        if not isinstance(value, int):
            raise TypeError(f"(): incompatible function arguments: {name} is {value!r}")
        object.__setattr__(self, name, value)


class FakePyNvVideoCodec(types.ModuleType):
    """The low-level decoder of PyNvVideoCodec. ``made`` has the arguments of all decoders, ``alive`` those that exist.

    Like the driver's parser it decodes a picture when the next one begins, gives a frame the pts of its packet, skips
    what it cannot read, and ends the stream with an empty packet, after which another stream can begin. The memory of
    frames is overwritten by the next call. A picture larger than the decoder's first one is an error. In VP8 and VP9 it
    is none, but all pictures from there on are wrong.

    Args:
        exchanges: give frames their pts in ascending order, as the parser does if it considers them wrong.
        unsupported: names of codecs that the GPU does not decode.
        fails_at: packets after which a decoder fails, by number of the decoder.
        drops: numbers painted on pictures that are not returned.
        mute: names of codecs for which it returns neither frames nor errors.
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
        # it gets no extradata: parameter sets must be in the packets
        self._context: Any = av.CodecContext.create(_CODECS[self._name], "r")
        self._context.thread_count = 1
        self._context.options = {"strict": "strict"}
        self._waiting: tuple[int, bytes] | None = None
        self._given: list[_Frame] = []
        self._times: list[int] = []
        self._size: tuple[int, int] | None = None
        self._packets = 0
        self._broken = self._is_wrong = False

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
            if self._is_wrong:
                for plane in picture.planes:
                    plane.update(bytes(plane.buffer_size))
            if not (self._library.drops and read_number(to_rgb(picture)) in self._library.drops):
                self._given.append(_Frame(picture, pts))
        if not packet.bsl:
            self._times.clear()
        return list(self._given)

    def _parse(self, waiting: tuple[int, bytes] | None) -> list[Any]:
        if waiting is None:
            return []
        # FFmpeg reads beyond the end, where PyAV does not guarantee zeros
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
        if size[0] <= room[0] and size[1] <= room[1]:
            return
        if self._name in ("VP8", "VP9"):
            self._is_wrong = True
        else:
            self._fail("ReconfigureDecoder : Reconfigure Not supported when width/height > maxwidth/maxheight at x:1")

    def _fail(self, message: str) -> None:
        self._broken = True
        raise PyNvVCException(message)
