"""NVIDIA's PyNvVideoCodec: its low-level decoder executes the plan, packet by packet.

Its ``SimpleDecoder`` takes files, and its frames know no more of their time than how many came before them. The decoder
beneath takes packets, with a time that is ours to choose, and its frames come with the time of theirs. That is how a
frame is known here, and no file, container or demuxer of the library's is needed.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from telecine.backends import BackendStatus, Decoded, DecodeRequest
from telecine.backends.bytestream import ByteStream, unpacked
from telecine.backends.labels import Watch, labels
from telecine.backends.placing import HostRows, TorchRows
from telecine.backends.warm import Decoder, Decoders, Refusal
from telecine.bitstream import Access
from telecine.errors import BackendUnavailable
from telecine.options import Option
from telecine.plan import Run
from telecine.reel import cut, doubtful

__all__ = ["PyNvVideoCodecBackend"]

_INSTALL = "pip install 'telecine[pynvvideocodec]'"
_CODECS = {
    "h264": "H264", "hevc": "HEVC", "vp8": "VP8", "vp9": "VP9", "av1": "AV1", "mpeg1video": "MPEG1",
    "mpeg2video": "MPEG2", "mpeg4": "MPEG4", "vc1": "VC1",
}  # fmt: skip
"""The library's names of codecs by FFmpeg's."""
_LAYOUTS = {"NV12": (2, 2, 8), "P016": (2, 2, 16), "NV16": (2, 1, 8), "P216": (2, 1, 16), "YUV444": (1, 1, 8),
            "YUV444_16Bit": (1, 1, 16)}  # fmt: skip
"""By the library's names of formats: columns and rows of a chroma sample, bits."""
_MATRICES = {
    "gbr": 0, "bt709": 1, "fcc": 4, "bt470bg": 5, "smpte170m": 6, "smpte240m": 7, "ycgco": 8, "bt2020nc": 9,
    "bt2020c": 10,
}  # fmt: skip
"""Matrix coefficients of ITU-T H.273 by FFmpeg's names; where there is none, they are unspecified."""
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
        self._decoders = Decoders()

    def status(self) -> BackendStatus:
        """See :class:`telecine.backends.Backend`."""
        try:
            library = _library()
        except BackendUnavailable as error:
            return BackendStatus("pynvvideocodec", False, str(error), None)
        try:
            installed = version("pynvvideocodec")  # what the module says of itself lags behind
        except PackageNotFoundError:
            installed = str(library.__version__)
        return BackendStatus("pynvvideocodec", True, None, installed)

    def decode(self, request: DecodeRequest) -> Decoded:
        """See :class:`telecine.backends.Backend`."""
        library = _library()
        if request.index.codec not in _CODECS:
            raise BackendUnavailable(
                f"{request.source.name}: pynvvideocodec decodes {', '.join(_CODECS)}, not {request.index.codec}; "
                "use backend='pyav'"
            )
        rows = _rows(request)
        with self._decoders.place(request):
            work = _Work(library, self._decoders, request, rows)
            for runs in cut(request.plan.runs):
                work.decode(runs)
        return rows.decoded(tuple(f"PyNvVideoCodec failed: {reason}" for reason in work.failures))


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
    if request.info.color_space in ("gbr", "ycgco"):
        raise BackendUnavailable(
            f"pynvvideocodec: on the GPU it takes {request.info.color_space} for other colours; use device='cpu'"
        )
    try:
        import torch
    except ImportError as error:
        raise BackendUnavailable('pynvvideocodec: device="cuda" needs PyTorch: pip install torch') from error
    try:
        return TorchRows(request, torch.device(request.device))
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise BackendUnavailable(f"device is {request.device!r}, but PyTorch cannot use it: {error}") from error


@dataclass
class _Piece:
    """Packets that are decoded without a restart in between, and what became of them."""

    ordinals: npt.NDArray[np.int64]
    labels: Mapping[int, int]
    """By ordinal: the place of its frame in order of presentation. A second field has that of its picture."""
    targets: Mapping[int, tuple[int, ...]]
    at: int = 0
    """Position of the packet that is fed."""
    seen: set[int] = field(default_factory=set)
    """Ordinals of the packets whose frame came out."""
    damaged: set[int] = field(default_factory=set)
    """Of those that are broken, or lack what they are built on."""
    unnamed: set[int] = field(default_factory=set)
    """Of those whose frame may bear the label of another one."""


class _Work:
    """Executes the plan of one request. Not thread-safe."""

    def __init__(
        self, library: ModuleType, decoders: Decoders, request: DecodeRequest, rows: HostRows | TorchRows
    ) -> None:
        self._library, self._decoders = library, decoders
        self._request, self._rows, self._index = request, rows, request.index
        context: Any = request.demuxer.stream.codec_context
        self._extradata = bytes(context.extradata or b"")
        self._stream = ByteStream(self._index.codec, self._extradata)
        self._before = 0  # packets of the pieces that are done
        self._any = False
        self.failures: dict[str, None] = {}
        """What the library has said, each once."""

    def decode(self, runs: tuple[Run, ...]) -> None:
        """Decode runs that need no restart in between, and withdraw what is not sound."""
        ordinals = np.concatenate([run.packets for run in runs])
        targets = {ordinal: rows for run in runs for ordinal, rows in run.targets.items()}
        piece = _Piece(ordinals, labels(self._index, ordinals), targets)
        at = 0
        while at < len(ordinals):
            at = self._stretch(piece, at)
        self._before += len(ordinals)
        lost = doubtful(self._index, runs, (set(ordinals.tolist()) - piece.seen) | piece.damaged)
        lost |= piece.unnamed & targets.keys()
        self._rows.kept[[row for ordinal in lost for row in targets[ordinal]]] = False

    def _stretch(self, piece: _Piece, start: int) -> int:
        """Decode from a packet on, as far as one decoder goes; say where to go on."""
        refusal = self._feed(piece, start, len(piece.ordinals))
        stop = piece.at
        if refusal is None:
            return stop
        if refusal.unsupported and not self._any:
            raise BackendUnavailable(f"pynvvideocodec: {refusal}") from refusal
        _log.debug("PyNvVideoCodec failed: %s", refusal)
        self.failures[str(refusal)] = None
        if stop > start:
            # what was decoded but not shown yet is gone with the decoder
            self._feed(piece, start, stop, fresh=True)
        closed = np.flatnonzero(self._index.access[piece.ordinals] == Access.CLOSED)
        later = closed[closed >= max(stop, start + 1)]
        return int(later[0]) if len(later) else len(piece.ordinals)

    def _feed(self, piece: _Piece, start: int, end: int, fresh: bool = False) -> Refusal | None:
        """Feed packets to one decoder, up to ``end`` or to one that needs another: there ``piece.at`` is left.

        Returns:
            What the library refused at ``piece.at``.
        """
        piece.at = end
        packets = self._packets(piece, start, end)
        first = next(packets, None)
        if first is None:
            return None
        reused = False
        try:
            with self._decoders.borrow(*self._needed(), fresh) as decoder:
                reused = decoder.reused
                self._run(decoder, piece, chain((first,), packets), end)
        except Refusal as refusal:
            if not reused:
                return refusal
            _log.debug("PyNvVideoCodec failed in a decoder that was used before: %s", refusal)
        else:
            return None
        return self._feed(piece, start, end, fresh=True)

    def _packets(self, piece: _Piece, start: int, end: int) -> Iterator[tuple[int, Any, bytes]]:
        """Yield (ordinal, packet, its bytes for the parser) of the packets that are whole."""
        request, index = self._request, self._index
        read = request.demuxer.read(index, piece.ordinals[start:end])
        starts = True
        for at, (ordinal, packet) in enumerate(unpacked(index.codec, request.demuxer.stream, read), start):
            request.deadline.check("decoding", self._before + at, request.plan.packets_fed)
            if packet.has_sidedata("new_extradata"):
                self._extradata = bytes(packet.get_sidedata("new_extradata"))
                self._stream.renew(self._extradata)
            data = None
            if not packet.is_corrupt:
                data = self._stream(memoryview(packet), starts, bool(index.access[ordinal]))
            if data is None:
                piece.damaged.add(ordinal - int(index.second_field[ordinal]))
                continue
            starts = False
            yield ordinal, packet, data

    def _run(self, decoder: Decoder, piece: _Piece, packets: Iterable[tuple[int, Any, bytes]], end: int) -> None:
        index, sequence = self._index, self._stream.sequence
        watch = Watch(index.codec, self._extradata)
        names: dict[int, int] = {}
        for ordinal, packet, data in packets:
            piece.at = int(np.searchsorted(piece.ordinals, ordinal))
            if self._stream.sequence != sequence:
                break
            label = piece.labels[ordinal]
            names.setdefault(label, ordinal)
            if watch.look(ordinal, label, memoryview(packet), bool(index.key[ordinal])):
                piece.damaged.add(ordinal)
            self._take(piece, names, decoder.decode(data, label))
        else:
            piece.at = end
        self._take(piece, names, decoder.drain())
        piece.unnamed |= watch.exchanged()

    def _take(self, piece: _Piece, names: dict[int, int], frames: list[tuple[int, Any]]) -> None:
        """Copy what is wanted of the frames that came out: the next call makes their memory invalid."""
        copied = False
        for label, frame in frames:
            # a name is used up: what comes under it a second time is something else
            ordinal = names.pop(label, None)
            if ordinal is None:
                continue
            self._any = True
            piece.seen.add(ordinal)
            if ordinal in piece.targets:
                copied = True
                self._put(piece.targets[ordinal], frame)
        if copied and isinstance(self._rows, TorchRows):
            import torch

            torch.cuda.current_stream(self._rows.data.device).synchronize()

    def _put(self, where: tuple[int, ...], frame: Any) -> None:
        if isinstance(self._rows, HostRows):
            self._rows.put_frame(where, _picture(self._request, frame))
            return
        import torch

        height, width = (int(side) for side in tuple(frame.shape)[:2])
        _allow(self._request, height, width)
        try:
            self._rows.put(where, torch.from_dlpack(frame))
        except (RuntimeError, BufferError, ValueError) as error:
            raise BackendUnavailable(f"pynvvideocodec: {Refusal(error)}") from error

    def _needed(self) -> tuple[tuple[Any, ...], Callable[[], Decoder]]:
        """What the decoder for the packet read last must be made for, and how it is made."""
        library, request, codec = self._library, self._request, self._index.codec
        on_device = isinstance(self._rows, TorchRows)
        gpu = int(self._rows.data.device.index or 0) if isinstance(self._rows, TorchRows) else 0
        room = request.options["max_width"], request.options["max_height"]
        stored = request.geometry.stored_width, request.geometry.stored_height
        # a decoder is reused for the very same sequence headers only: otherwise it may hold fewer pictures than the
        # stream refers to, which nobody would notice
        key = (gpu, on_device, codec, request.info.pixel_format, *stored, self._stream.sequence, *room)
        arguments = {
            "gpuid": gpu,
            "codec": getattr(library.cudaVideoCodec, _CODECS[codec]),
            "cudacontext": 0,
            "cudastream": 0,
            "usedevicememory": on_device,
            "maxwidth": room[0],
            "maxheight": room[1],
            "outputColorType": library.OutputColorType.RGB if on_device else library.OutputColorType.NATIVE,
        }
        return key, lambda: Decoder(library, key, arguments)


def _allow(request: DecodeRequest, height: int, width: int) -> None:
    if height * width > request.max_pixels:
        raise BackendUnavailable(
            f"pynvvideocodec: the picture grows to {width}x{height}, and {request.max_pixels} pixels are allowed"
        )


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
    _allow(request, height, width)
    if abs(width - request.geometry.stored_width) <= 1:  # chroma makes an odd width even
        width = request.geometry.stored_width
    planes = _planes(samples, height, width, across, down)
    if depth != bits:  # the engine puts the significant bits first
        planes = [plane >> (bits - depth) for plane in planes]
    # planes of RGB come in the order of FFmpeg's gbrp
    kind = "gbrp" if request.info.pixel_format.startswith("gbr") and family == "444" else f"yuv{family}p"
    picture = VideoFrame(width, height, kind + (f"{depth}le" if bits == 16 else ""))
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
