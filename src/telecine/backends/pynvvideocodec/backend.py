"""NVIDIA's PyNvVideoCodec: its low-level decoder executes the plan, packet by packet.

Its ``SimpleDecoder`` takes files, and its frames know no more of their time than how many came before them. The decoder
beneath takes packets, with a time that is ours to choose, and its frames come with the time of theirs. That is how a
frame is known here, and no file, container or demuxer of the library's is needed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from telecine.backends.base import BackendStatus, Decoded, DecodeRequest
from telecine.backends.cuda_output import PIXEL_FORMATS, device_number, extension, inexact, unconvertible
from telecine.backends.parser_order import IN_ORDER, Watch, labels
from telecine.backends.pynvvideocodec.decoder_pool import Decoder, Decoders, Refusal
from telecine.backends.pynvvideocodec.surfaces import SurfaceRows, as_frame, surface_of
from telecine.backends.remux.output_buffers import HostRows
from telecine.backends.remux.remux import cut, doubtful
from telecine.bitstream import RandomAccess, allows_fields, scanner_for
from telecine.bitstream.annexb import ByteStream
from telecine.errors import BackendUnavailable, UnsupportedVideoError
from telecine.plan.decode_plan import DecodeRange
from telecine.validation import Option

__all__ = ["PyNvVideoCodecBackend"]

_INSTALL = "pip install 'telecine[pynvvideocodec]'"
_CODECS = {"h264": "H264", "hevc": "HEVC", "vp8": "VP8", "vp9": "VP9", "av1": "AV1", "vc1": "VC1"}
"""The library's names of codecs by FFmpeg's."""
_SHUFFLED = frozenset({"vp8", "vp9", "av1"})
"""Codecs of which it gives a frame the time of another one, where there are hidden frames."""
_ON_NVDEC = frozenset({"h264", "hevc", "vp8", "vp9"})
"""Codecs that the nvdec backend has as well."""
_BATCH = 32
"""Packets that are made ready at a time: between them, calls of the library come back without much Python."""
_DEINTERLACES = "it deinterlaces, where frames are due as they are, with both fields"
_log = logging.getLogger("telecine.backends.pynvvideocodec.backend")


class PyNvVideoCodecBackend:
    """Decodes with PyNvVideoCodec, on an NVIDIA GPU.

    Pictures are taken as decoded, and converted by the rule: for the CPU by FFmpeg, for the GPU by the kernel of nvdec.
    """

    options: Mapping[str, Option] = {
        "hw_decoders": Option(int, None, "hardware decoders at a time, in this process; the first value holds", 1, 64),
        "max_width": Option(int, 0, "the widest picture that a decoder makes room for; 0 is the video's own", 0, 16384),
        "max_height": Option(int, 0, "the highest one, likewise", 0, 16384),
    }
    differences: Mapping[str, str] = {
        "noise": "PyNvVideoCodec does not tell; the frames are as the hardware leaves them, and differ from run to run"
    }

    def __init__(self) -> None:
        self._decoders = Decoders()

    def status(self) -> BackendStatus:
        """See :class:`telecine.backends.base.Backend`."""
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
        """See :class:`telecine.backends.base.Backend`."""
        library = _library()
        _require(request)
        rows = HostRows(request) if request.device == "cpu" else SurfaceRows(request)
        with self._decoders.place(request):
            work = _Work(library, self._decoders, request, rows)
            for runs in cut(request.plan.ranges):
                work.decode(runs)
        if work.silent and request.index.codec in _SHUFFLED:
            raise _refused(f"it gives no frame of {request.info.pixel_format} in {request.index.codec}")
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


def _refused(reason: str, codec: str = "") -> UnsupportedVideoError:
    """The error that sends a user elsewhere; to nvdec as well where it has the codec."""
    also = " or 'nvdec'" if codec in _ON_NVDEC else ""
    return UnsupportedVideoError(f"pynvvideocodec: {reason}; use backend='pyav'{also}")


def _require(request: DecodeRequest) -> None:
    """Refuse what is not decoded here, as far as it is known beforehand."""
    info, codec = request.info, request.index.codec
    reason = inexact(codec)
    if reason is None and codec not in _CODECS:
        reason = f"it decodes {', '.join(_CODECS)}, not {codec}"
    if reason is None and info.interlaced:
        raise _refused(_DEINTERLACES, codec)
    if reason is None and request.device != "cpu":
        reason = unconvertible(info, request.geometry)
    reason = reason or _lacking(request)
    if reason is not None:
        raise _refused(reason)


def _lacking(request: DecodeRequest) -> str | None:
    """Why the GPU has no decoder for a video, if so: of some kinds the library says nothing, and gives nothing.

    The library's own answer to this makes a CUDA context beside torch's, so the extension is asked, where there is one.
    """
    info, geometry = request.info, request.geometry
    # chroma of the planes of RGB is that of 4:4:4
    stored = PIXEL_FORMATS.get(info.pixel_format.replace("gbrp", "yuv444p"))
    if stored is None or request.index.codec == "av1":  # which the extension does not know
        return None
    try:
        nvdec = extension()
    except BackendUnavailable:
        return None
    size = geometry.stored_width, geometry.stored_height
    gpu = 0 if request.device == "cpu" else device_number(request.device)
    try:
        reason: str | None = nvdec.refusal(gpu, request.index.codec, *stored, *size)
    except nvdec.NvdecError as error:
        _log.debug("the GPU was not asked what it decodes: %s", error.args[0])
        return None
    return reason


class _Packet(NamedTuple):
    """A packet that is ready to be fed."""

    at: int
    """Its position in its piece."""
    ordinal: int
    label: int
    data: bytes
    """For the parser."""


class _Batch(NamedTuple):
    """Packets that are made ready together, under the same headers."""

    packets: list[_Packet]
    stop: int
    """The position in the piece behind them."""
    sequence: tuple[bytes, ...]
    """The sequence headers."""
    watch: Watch
    """It has looked at them, and at those in front of them that are for the same decoder."""


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
        self, library: ModuleType, decoders: Decoders, request: DecodeRequest, rows: HostRows | SurfaceRows
    ) -> None:
        self._library, self._decoders = library, decoders
        self._request, self._rows, self._index = request, rows, request.index
        self._header = self._extradata = request.demuxer.extradata
        self._stream = ByteStream(self._index.codec, self._extradata)
        self._checked: tuple[bytes, ...] = ()  # sequence headers
        codec = self._index.codec
        self._scanner = scanner_for(codec, self._extradata) if codec in _SHUFFLED else None
        self._before = 0  # packets of the pieces that are done
        self._any = False
        self.failures: dict[str, None] = {}
        """What the library has said, each once."""

    @property
    def silent(self) -> bool:
        """Whether there was neither a frame nor a word."""
        return not self._any and not self.failures

    def decode(self, runs: tuple[DecodeRange, ...]) -> None:
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
            raise UnsupportedVideoError(f"pynvvideocodec: {refusal}") from refusal
        _log.debug("PyNvVideoCodec failed: %s", refusal)
        self.failures[str(refusal)] = None
        if stop > start:
            # what was decoded but not shown yet is gone with the decoder
            self._feed(piece, start, stop, fresh=True)
        closed = np.flatnonzero(self._index.random_access[piece.ordinals] == RandomAccess.CLOSED)
        later = closed[closed >= max(stop, start + 1)]
        return int(later[0]) if len(later) else len(piece.ordinals)

    def _feed(self, piece: _Piece, start: int, end: int, fresh: bool = False) -> Refusal | None:
        """Feed packets to one decoder, up to ``end`` or to one that needs another: there ``piece.at`` is left.

        Returns:
            What the library refused at ``piece.at``.
        """
        piece.at = end
        batches = self._batches(piece, start, end)
        first = next(batches, None)
        if first is None:
            return None
        reused = False
        try:
            with self._decoders.borrow(*self._needed(first.sequence), fresh) as decoder:
                reused = decoder.reused
                self._run(decoder, piece, chain((first,), batches))
        except Refusal as refusal:
            if not reused:
                return refusal
            _log.debug("PyNvVideoCodec failed in a decoder that was used before: %s", refusal)
        else:
            return None
        return self._feed(piece, start, end, fresh=True)

    def _batches(self, piece: _Piece, start: int, end: int) -> Iterator[_Batch]:
        """Make packets ready, and yield those that are whole: up to ``end``, or to one that needs another decoder."""
        request, index = self._request, self._index
        packets: list[_Packet] = []
        self._renew(index.extradata_at(int(piece.ordinals[start]), self._header))
        watch: Watch | None = None
        sequence: tuple[bytes, ...] = ()
        for at, (ordinal, packet) in enumerate(request.demuxer.read(index, piece.ordinals[start:end]), start):
            request.deadline.check("decoding", self._before + at, request.plan.packets_fed)
            renewed = ordinal in index.new_extradata
            if watch is not None and packets and (renewed or len(packets) == _BATCH):
                yield _Batch(packets, at, sequence, watch)
                packets = []
            if renewed:
                self._renew(bytes(index.new_extradata[ordinal]))
            data = None
            if not index.corrupt[ordinal]:
                data = self._stream(memoryview(packet), watch is None, bool(index.random_access[ordinal]))
            if data is None:
                piece.damaged.add(ordinal)
                continue
            self._look(packet, bool(index.key[ordinal]))
            if watch is None:
                watch, sequence = Watch(index.codec, self._extradata), self._stream.sequence
            elif self._stream.sequence != sequence:
                end = at
                break
            label = piece.labels[ordinal]
            if watch.look(ordinal, label, memoryview(packet), bool(index.key[ordinal])):
                piece.damaged.add(ordinal)
            packets.append(_Packet(at, ordinal, label, data))
        if watch is not None and packets:
            yield _Batch(packets, end, sequence, watch)

    def _renew(self, extradata: bytes) -> None:
        """Take the headers that the container has brought last; an earlier part may be fed once more."""
        if extradata != self._extradata:
            self._extradata = extradata
            self._stream.update_extradata(extradata)

    def _look(self, packet: Any, is_key: bool) -> None:
        """Refuse what comes out wrong, of which the beginning of the video need not have told."""
        codec = self._index.codec
        if self._stream.sequence != self._checked:
            self._checked = self._stream.sequence
            if any(allows_fields(codec, header) for header in self._checked):
                raise _refused(_DEINTERLACES, codec)
        if self._scanner is not None and not self._scanner.scan(memoryview(packet), is_key, want_order=False).plain:
            raise _refused(f"it gives frames of {codec} the times of others, where there are hidden frames", codec)

    def _run(self, decoder: Decoder, piece: _Piece, batches: Iterable[_Batch]) -> None:
        names: dict[int, int] = {}
        fed: list[int] = []
        for batch in batches:
            for at, ordinal, label, data in batch.packets:
                piece.at = at
                names.setdefault(label, ordinal)
                fed.append(ordinal)
                self._take(piece, names, decoder.decode(data, label))
            piece.at = batch.stop
        self._take(piece, names, decoder.drain())
        piece.unnamed |= batch.watch.exchanged()
        some = self._index.codec in IN_ORDER and len(names) < len(fed)
        if some and np.isin(list(names.values()), self._index.display_order).any():
            # if one frame has not come out, another one may have its time
            self.failures["a frame did not come out, and with it those around it are not believed"] = None
            piece.unnamed.update(fed)

    def _take(self, piece: _Piece, names: dict[int, int], frames: list[tuple[int, Any]]) -> None:
        """Copy what is wanted of the frames that came out: the next call makes their memory invalid."""
        try:
            for label, frame in frames:
                # a name is used up: what comes under it a second time is something else
                ordinal = names.pop(label, None)
                if ordinal is None:
                    continue
                self._any = True
                piece.seen.add(ordinal)
                if ordinal in piece.targets:
                    self._put(piece.targets[ordinal], frame)
        finally:
            if isinstance(self._rows, SurfaceRows):
                self._rows.flush()

    def _put(self, where: tuple[int, ...], frame: Any) -> None:
        surface = surface_of(self._request, frame)
        if isinstance(self._rows, SurfaceRows):
            self._rows.put(where, surface)
        else:
            self._rows.put_frame(where, as_frame(self._request, surface))

    def _needed(self, sequence: tuple[bytes, ...]) -> tuple[tuple[Any, ...], Callable[[], Decoder]]:
        """What a decoder must be made for that is fed with these sequence headers, and how it is made."""
        library, request, codec = self._library, self._request, self._index.codec
        on_device = isinstance(self._rows, SurfaceRows)
        gpu = self._rows.device if isinstance(self._rows, SurfaceRows) else 0
        room = request.options["max_width"], request.options["max_height"]
        stored = request.geometry.stored_width, request.geometry.stored_height
        # a decoder is reused for the very same sequence headers only: otherwise it may hold fewer pictures than the
        # stream refers to, which nobody would notice
        key = (gpu, on_device, codec, request.info.pixel_format, *stored, sequence, *room)
        arguments = {
            "gpuid": gpu,
            "codec": getattr(library.cudaVideoCodec, _CODECS[codec]),
            "cudacontext": 0,
            "cudastream": 0,
            "usedevicememory": on_device,
            "maxwidth": room[0],
            "maxheight": room[1],
            "outputColorType": library.OutputColorType.NATIVE,
        }
        return key, lambda: Decoder(library, key, arguments)
