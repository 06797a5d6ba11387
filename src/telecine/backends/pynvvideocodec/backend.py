"""The PyNvVideoCodec backend: NVIDIA's library, whose low-level decoder executes the plan packet by packet.

The library's ``SimpleDecoder`` takes files, and its frames carry a frame count as their time. The low-level decoder
takes packets with a pts that the caller chooses, and returns it with the frame. So frames are identified by pts, and
the library's own demuxer is not used.
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

from telecine.backends.base import Backend, BackendStatus, Decoded, DecodeRequest, MemoryCost
from telecine.backends.cuda_output import (
    PIXEL_FORMATS,
    check_gpu,
    codec_refusal,
    conversion_refusal,
    load_extension,
    parse_device_index,
)
from telecine.backends.pynvvideocodec.decoder_pool import DecoderPool, DecoderSession, LibraryFailure
from telecine.backends.pynvvideocodec.parser_check import DISPLAYED_IN_DECODE_ORDER, ParserCheck
from telecine.backends.pynvvideocodec.surfaces import GpuSurfaceRows, HostSurfaceRows, locate_surface
from telecine.bitstream import can_contain_fields, scanner_for
from telecine.bitstream.annexb import AnnexBConverter
from telecine.errors import BackendUnavailable, UnsupportedVideoError
from telecine.plan.damage import unreliable_targets
from telecine.plan.ranges import DecodeRange, closed_points, split_at_resets
from telecine.validation import Option

__all__ = ["PyNvVideoCodecBackend"]

_INSTALL = "pip install 'telecine[pynvvideocodec]'"
_CODECS = {"h264": "H264", "hevc": "HEVC", "vp8": "VP8", "vp9": "VP9", "av1": "AV1", "vc1": "VC1"}
"""The library's names of codecs, by FFmpeg's."""
_CODECS_WITH_HIDDEN_FRAMES = frozenset({"vp8", "vp9", "av1"})
"""Codecs of which the library returns frames with the pts of others if the stream has hidden frames."""
_NVDEC_CODECS = frozenset({"h264", "hevc", "vp8", "vp9"})
"""Codecs that the nvdec backend decodes too."""
_BATCH_PACKETS = 32
"""Packets that are prepared together: calls of the library then return with little Python in between."""
_DEINTERLACES = "it deinterlaces, but frames must come out as they are, with both fields"
_log = logging.getLogger("telecine.backends.pynvvideocodec.backend")


class PyNvVideoCodecBackend(Backend):
    """Decodes with PyNvVideoCodec, on an NVIDIA GPU.

    Pictures are taken as decoded. FFmpeg converts them to RGB for the CPU, the kernel of the nvdec backend for the GPU.
    """

    name = "pynvvideocodec"
    devices = ("cpu", "cuda")
    options: Mapping[str, Option] = {
        "hw_decoders": Option(int, None, "hardware decoders at a time, in this process; the first value holds", 1, 64),
        "max_width": Option(int, 0, "maximum picture width that decoders allocate for; 0: the video's own", 0, 16384),
        "max_height": Option(int, 0, "maximum picture height that decoders allocate for, likewise", 0, 16384),
    }
    detects_damage = False
    differences: Mapping[str, str] = {
        "noise": "PyNvVideoCodec reports no errors; frames are as the hardware leaves them and differ between runs"
    }

    def __init__(self) -> None:
        self._decoders = DecoderPool()

    def status(self) -> BackendStatus:
        """See :meth:`telecine.backends.Backend.status`."""
        try:
            library = _library()
        except BackendUnavailable as error:
            return self.make_status(None, str(error))
        try:
            installed = version("pynvvideocodec")  # the module's own version attribute lags behind
        except PackageNotFoundError:
            installed = str(library.__version__)
        return self.make_status(installed)

    def check_device(self, device: str, options: Mapping[str, Any]) -> None:
        """See :meth:`telecine.backends.Backend.check_device`."""
        super().check_device(device, options)
        if device != "cpu":
            load_extension()  # its kernel converts the pictures
            check_gpu(device, "auto")

    def memory_cost(self, request: DecodeRequest) -> MemoryCost:
        """See :meth:`telecine.backends.Backend.memory_cost`."""
        return request.gpu_cost(on_host=request.device == "cpu")

    def decode(self, request: DecodeRequest) -> Decoded:
        """See :meth:`telecine.backends.Backend.decode`."""
        library = _library()
        _refuse_unsupported(request)
        rows = HostSurfaceRows(request) if request.device == "cpu" else GpuSurfaceRows(request)
        with self._decoders.slot(request):
            decoder = _PlanDecoder(library, self._decoders, request, rows)
            for ranges in split_at_resets(request.plan.ranges):
                decoder.decode(ranges)
        if decoder.is_silent and request.index.codec in _CODECS_WITH_HIDDEN_FRAMES:
            raise _refusal(f"it returns no frame of {request.info.pixel_format} in {request.index.codec}")
        return rows.decoded(tuple(f"PyNvVideoCodec failed: {reason}" for reason in decoder.failures))


def _library() -> ModuleType:
    try:
        import PyNvVideoCodec
    except Exception as error:  # without the driver's encoder library it raises a RuntimeError of many lines
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        driver = "" if isinstance(error, ModuleNotFoundError) else (
            "; it needs the NVIDIA driver with libnvcuvid and libnvidia-encode, "
            "which containers have with NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"
        )  # fmt: skip
        raise BackendUnavailable(f"PyNvVideoCodec cannot be imported ({reason}): {_INSTALL}{driver}") from None
    library: ModuleType = PyNvVideoCodec
    return library


def _refusal(reason: str, codec: str = "") -> UnsupportedVideoError:
    """Return an error that names backends to use instead: pyav, and nvdec if it decodes the codec."""
    also = " or 'nvdec'" if codec in _NVDEC_CODECS else ""
    return UnsupportedVideoError(f"pynvvideocodec: {reason}; use backend='pyav'{also}")


def _refuse_unsupported(request: DecodeRequest) -> None:
    """Raise UnsupportedVideoError with the reason if the video cannot be decoded, as far as is known in advance."""
    info, codec = request.info, request.index.codec
    reason = codec_refusal(codec)
    if reason is None and codec not in _CODECS:
        reason = f"it decodes {', '.join(_CODECS)}, not {codec}"
    if reason is None and info.interlaced:
        raise _refusal(_DEINTERLACES, codec)
    if reason is None and request.device != "cpu":
        reason = conversion_refusal(info, request.geometry)
    reason = reason or _hardware_refusal(request)
    if reason is not None:
        raise _refusal(reason)


def _hardware_refusal(request: DecodeRequest) -> str | None:
    """Return the reason why the GPU cannot decode a video; None if it can, or if it is not known.

    For some unsupported formats the library returns neither frames nor an error. Its own query of the capabilities
    creates a CUDA context beside torch's, so the extension is asked instead, if it is installed.
    """
    info, geometry = request.info, request.geometry
    # planes of RGB are stored as 4:4:4
    stored = PIXEL_FORMATS.get(info.pixel_format.replace("gbrp", "yuv444p"))
    if stored is None or request.index.codec == "av1":  # the extension does not know AV1
        return None
    try:
        nvdec = load_extension()
    except BackendUnavailable:
        return None
    size = geometry.stored_width, geometry.stored_height
    gpu = 0 if request.device == "cpu" else parse_device_index(request.device)
    try:
        reason: str | None = nvdec.refusal(gpu, request.index.codec, *stored, *size)
    except nvdec.NvdecError as error:
        _log.debug("the GPU was not asked what it decodes: %s", error.args[0])
        return None
    return reason


class _PacketBatch(NamedTuple):
    """Packets that are prepared together, under the same parameter sets."""

    packets: list[tuple[int, int, int, bytes]]
    """(position in the decode pass, ordinal, pts, data for the driver's parser)."""
    stop: int
    """The position in the decode pass after them."""
    sequence: tuple[bytes, ...]
    """The sequence headers that are active."""
    check: ParserCheck
    """The check of output order; it has seen all packets for this decoder session so far."""


@dataclass
class _DecodePass:
    """Packets that are decoded without a reset in between, and the results."""

    ordinals: npt.NDArray[np.int64]
    pts: Mapping[int, int]
    """By ordinal: the position of the packet's frame in display order. A second field has that of its picture."""
    targets: Mapping[int, tuple[int, ...]]
    position: int = 0
    """Of the packet that is fed."""
    decoded: set[int] = field(default_factory=set)
    """Ordinals of the packets whose frame came out."""
    damaged: set[int] = field(default_factory=set)
    """Ordinals of packets that are corrupt, or follow a gap."""
    ambiguous: set[int] = field(default_factory=set)
    """Ordinals of packets whose frame may have the pts of another one."""


class _PlanDecoder:
    """Executes the plan of one request. Not thread-safe."""

    def __init__(
        self, library: ModuleType, decoders: DecoderPool, request: DecodeRequest, rows: HostSurfaceRows | GpuSurfaceRows
    ) -> None:
        self._library, self._decoders = library, decoders
        self._request, self._rows, self._index = request, rows, request.index
        self._header = self._extradata = request.demuxer.extradata
        self._stream = AnnexBConverter(self._index.codec, self._extradata)
        self._checked_sequence: tuple[bytes, ...] = ()
        codec = self._index.codec
        self._scanner = scanner_for(codec, self._extradata) if codec in _CODECS_WITH_HIDDEN_FRAMES else None
        self._packets_done = 0  # in the decode passes before this one
        self._has_frames = False
        self.failures: dict[str, None] = {}
        """The library's error messages, each once, in order."""

    @property
    def is_silent(self) -> bool:
        """True if the library returned neither a frame nor an error."""
        return not self._has_frames and not self.failures

    def decode(self, ranges: tuple[DecodeRange, ...]) -> None:
        """Decode the ranges of one decode pass, and mark the rows of unreliable frames as not kept."""
        ordinals = np.concatenate([range_.packets for range_ in ranges])
        targets = {ordinal: rows for range_ in ranges for ordinal, rows in range_.targets.items()}
        pts = dict(zip(ordinals.tolist(), self._index.display_positions(ordinals).tolist(), strict=True))
        decode_pass = _DecodePass(
            ordinals,
            pts,
            targets,
        )
        position = 0
        while position < len(ordinals):
            position = self._decode_from(decode_pass, position)
        self._packets_done += len(ordinals)
        bad = (set(ordinals.tolist()) - decode_pass.decoded) | decode_pass.damaged
        lost = unreliable_targets(self._index, ranges, bad) | (decode_pass.ambiguous & targets.keys())
        self._rows.kept[[row for ordinal in lost for row in targets[ordinal]]] = False

    def _decode_from(self, decode_pass: _DecodePass, start: int) -> int:
        """Decode from a position as far as one decoder session goes. Return the position to continue at."""
        failure = self._feed(decode_pass, start, len(decode_pass.ordinals))
        stop = decode_pass.position
        if failure is None:
            return stop
        if failure.unsupported and not self._has_frames:
            raise UnsupportedVideoError(f"pynvvideocodec: {failure}") from failure
        _log.debug("PyNvVideoCodec failed: %s", failure)
        self.failures[str(failure)] = None
        if stop > start:
            # frames that were decoded but not returned yet are lost with the session: decode them again
            self._feed(decode_pass, start, stop, new=True)
        closed = closed_points(self._index, decode_pass.ordinals)
        later = closed[closed >= max(stop, start + 1)]
        return int(later[0]) if len(later) else len(decode_pass.ordinals)

    def _feed(self, decode_pass: _DecodePass, start: int, end: int, new: bool = False) -> LibraryFailure | None:
        """Feed packets to one session, up to ``end`` or to a packet that needs another session.

        Sets ``decode_pass.position`` to where it stops. Returns the failure that stopped it, if there was one.
        """
        decode_pass.position = end
        batches = self._prepare_batches(decode_pass, start, end)
        first = next(batches, None)
        if first is None:
            return None
        reused = False
        try:
            with self._decoders.session(*self._session_key(first.sequence), new) as session:
                reused = session.reused
                self._decode_batches(session, decode_pass, chain((first,), batches))
        except LibraryFailure as failure:
            if not reused:
                return failure
            _log.debug("PyNvVideoCodec failed in a reused decoder: %s", failure)
        else:
            return None
        return self._feed(decode_pass, start, end, new=True)

    def _prepare_batches(self, decode_pass: _DecodePass, start: int, end: int) -> Iterator[_PacketBatch]:
        """Yield the packets that are not corrupt, up to ``end`` or to one that needs another session."""
        request, index = self._request, self._index
        packets: list[tuple[int, int, int, bytes]] = []
        self._update_extradata(index.extradata_at(int(decode_pass.ordinals[start]), self._header))
        check: ParserCheck | None = None
        sequence: tuple[bytes, ...] = ()
        for position, (ordinal, packet) in enumerate(request.reader.read(decode_pass.ordinals[start:end]), start):
            request.deadline.check("decoding", self._packets_done + position, request.plan.packets_fed)
            is_updated = ordinal in index.new_extradata
            if check is not None and packets and (is_updated or len(packets) == _BATCH_PACKETS):
                yield _PacketBatch(packets, position, sequence, check)
                packets = []
            if is_updated:
                self._update_extradata(bytes(index.new_extradata[ordinal]))
            data = None
            if not index.corrupt[ordinal]:
                data = self._stream.convert(memoryview(packet), check is None, bool(index.random_access[ordinal]))
            if data is None:
                decode_pass.damaged.add(ordinal)
                continue
            self._refuse_misreported(packet, bool(index.key[ordinal]))
            if check is None:
                check, sequence = ParserCheck(index.codec, self._extradata), self._stream.sequence_headers
            elif self._stream.sequence_headers != sequence:
                end = position
                break
            pts = decode_pass.pts[ordinal]
            if check.add_packet(ordinal, pts, memoryview(packet), bool(index.key[ordinal])):
                decode_pass.damaged.add(ordinal)
            packets.append((position, ordinal, pts, data))
        if check is not None and packets:
            yield _PacketBatch(packets, end, sequence, check)

    def _update_extradata(self, extradata: bytes) -> None:
        """Set the extradata that apply to the next packet; a position may be fed a second time with earlier ones."""
        if extradata != self._extradata:
            self._extradata = extradata
            self._stream.update_extradata(extradata)

    def _refuse_misreported(self, packet: Any, is_key: bool) -> None:
        """Raise UnsupportedVideoError at packets whose frames the library changes or gives the wrong pts."""
        codec = self._index.codec
        if self._stream.sequence_headers != self._checked_sequence:
            self._checked_sequence = self._stream.sequence_headers
            if any(can_contain_fields(codec, header) for header in self._checked_sequence):
                raise _refusal(_DEINTERLACES, codec)
        if self._scanner is None:
            return
        if not self._scanner.scan(memoryview(packet), is_key, with_order=False).has_single_shown_frame:
            raise _refusal(f"it gives frames of {codec} the pts of others if there are hidden frames", codec)

    def _decode_batches(
        self, session: DecoderSession, decode_pass: _DecodePass, batches: Iterable[_PacketBatch]
    ) -> None:
        pending: dict[int, int] = {}  # ordinal by pts
        fed: list[int] = []
        for batch in batches:
            for position, ordinal, pts, data in batch.packets:
                decode_pass.position = position
                pending.setdefault(pts, ordinal)
                fed.append(ordinal)
                self._store(decode_pass, pending, session.decode(data, pts))
            decode_pass.position = batch.stop
        self._store(decode_pass, pending, session.drain())
        decode_pass.ambiguous |= batch.check.exchanged_packets()
        some_decoded = len(pending) < len(fed)
        if (
            self._index.codec in DISPLAYED_IN_DECODE_ORDER
            and some_decoded
            and np.isin(list(pending.values()), self._index.display_order).any()
        ):
            # one frame did not come out: another one may have its pts
            self.failures["a frame did not come out, so the frames around it are left out too"] = None
            decode_pass.ambiguous.update(fed)

    def _store(self, decode_pass: _DecodePass, pending: dict[int, int], frames: list[tuple[int, Any]]) -> None:
        """Copy the wanted ones of the frames that came out: the next call makes their memory invalid."""
        try:
            for pts, frame in frames:
                # a pts is used once: a second frame with it is another one
                ordinal = pending.pop(pts, None)
                if ordinal is None:
                    continue
                self._has_frames = True
                decode_pass.decoded.add(ordinal)
                if ordinal in decode_pass.targets:
                    self._rows.put_surface(decode_pass.targets[ordinal], locate_surface(self._request, frame))
        finally:
            self._rows.flush()

    def _session_key(self, sequence: tuple[bytes, ...]) -> tuple[tuple[Any, ...], Callable[[], DecoderSession]]:
        """Return the key of sessions that can decode these sequence headers, and a function that creates one."""
        library, request, codec = self._library, self._request, self._index.codec
        max_size = request.options["max_width"], request.options["max_height"]
        stored = request.geometry.stored_width, request.geometry.stored_height
        # a session is reused only for the same sequence headers: otherwise it may hold fewer reference pictures than
        # the stream needs, and the library does not report that
        key = (self._rows.gpu, self._rows.on_gpu, codec, request.info.pixel_format, *stored, sequence, *max_size)
        arguments = {
            "gpuid": self._rows.gpu,
            "codec": getattr(library.cudaVideoCodec, _CODECS[codec]),
            "cudacontext": 0,
            "cudastream": 0,
            "usedevicememory": self._rows.on_gpu,
            "maxwidth": max_size[0],
            "maxheight": max_size[1],
            "outputColorType": library.OutputColorType.NATIVE,
        }
        return key, lambda: DecoderSession(library, key, arguments)
