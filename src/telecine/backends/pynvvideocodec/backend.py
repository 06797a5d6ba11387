"""The PyNvVideoCodec backend: NVIDIA's library, whose low-level decoder executes the plan packet by packet.

The library's ``SimpleDecoder`` takes files, and its frames carry a frame count as their time. The low-level decoder
takes packets with a pts that the caller chooses, and returns it with the frame. So frames are identified by pts, and
the library's own demuxer is not used.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from types import ModuleType
from typing import Any

import numpy as np

from telecine.backends.base import Backend, BackendStatus, Decoded, DecodeRequest, MemoryCost, first_line
from telecine.backends.cuda_output import (
    check_gpu,
    codec_refusal,
    conversion_refusal,
    hardware_refusal,
    load_extension,
)
from telecine.backends.pynvvideocodec.batches import (
    DEINTERLACES,
    DISPLAYED_IN_DECODE_ORDER,
    BatchReader,
    PacketBatch,
    PassState,
    refusal,
)
from telecine.backends.pynvvideocodec.surfaces import GpuSurfaceOutput, HostSurfaceOutput, locate_surface
from telecine.backends.session_pool import Session, SessionPool
from telecine.errors import BackendUnavailable, OverloadedError, TelecineError, UnsupportedVideoError
from telecine.notes import Note
from telecine.plan.damage import unreliable_targets
from telecine.plan.ranges import DecodeRange, closed_points, output_rows, split_at_resets
from telecine.validation import Option

__all__ = ["PyNvVideoCodecBackend"]

_INSTALL = "pip install 'telecine[pynvvideocodec]'"
_CODECS = {"h264": "H264", "hevc": "HEVC", "vp8": "VP8", "vp9": "VP9", "av1": "AV1", "vc1": "VC1"}
"""The library's names of codecs, by FFmpeg's."""
_DEFAULT_SESSIONS = 2
"""Without the option ``hw_decoders``. Each session holds some 128 MiB of GPU memory."""
_MAX_REASON_LENGTH = 200
_Output = HostSurfaceOutput | GpuSurfaceOutput
_log = logging.getLogger("telecine.backends.pynvvideocodec.backend")


class PyNvVideoCodecBackend(Backend):
    """Decodes with PyNvVideoCodec, on an NVIDIA GPU.

    Pictures are taken as decoded. FFmpeg converts them to RGB for the CPU, the kernel of the nvdec backend for the GPU.
    """

    name = "pynvvideocodec"
    devices = ("cpu", "cuda")
    options: Mapping[str, Option] = {
        "hw_decoders": Option(int, low=1, high=64),
        "max_width": Option(int, 0, low=0, high=16384),
        "max_height": Option(int, 0, low=0, high=16384),
    }
    detects_damage = False
    refused_cases = frozenset({"interlaced", "odd-size"})

    def __init__(self) -> None:
        self._decoders: SessionPool[_DecoderSession] = SessionPool("hw_decoders", is_cleared_at_exit=True)

    def status(self) -> BackendStatus:
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
        super().check_device(device, options)
        if device != "cpu":
            load_extension()  # its kernel converts the pictures
            check_gpu(device, "auto")

    def memory_cost(self, request: DecodeRequest) -> MemoryCost:
        return request.gpu_cost(on_host=request.device == "cpu")

    def decode(self, request: DecodeRequest) -> Decoded:
        library = _library()
        _refuse_unsupported(request)
        output: _Output = HostSurfaceOutput(request) if request.device == "cpu" else GpuSurfaceOutput(request)
        with self._decoders.slot(request.options["hw_decoders"], _DEFAULT_SESSIONS, request.deadline):
            decoder = _PacketDecoder(library, self._decoders, request, output)
            for ranges in split_at_resets(request.plan.ranges):
                decoder.decode(ranges)
        if decoder.is_silent and request.index.codec in DISPLAYED_IN_DECODE_ORDER:
            raise refusal(f"it returns no frame of {request.info.pixel_format} in {request.index.codec}")
        return output.decoded(tuple(Note("engine", f"PyNvVideoCodec failed: {reason}") for reason in decoder.failures))


def _library() -> ModuleType:
    try:
        import PyNvVideoCodec
    except Exception as error:  # without the driver's encoder library it raises a RuntimeError of many lines
        reason = first_line(error)
        driver = "" if isinstance(error, ModuleNotFoundError) else (
            "; it needs the NVIDIA driver with libnvcuvid and libnvidia-encode, "
            "which containers have with NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"
        )  # fmt: skip
        raise BackendUnavailable(f"PyNvVideoCodec cannot be imported ({reason}): {_INSTALL}{driver}") from None
    library: ModuleType = PyNvVideoCodec
    return library


def _refuse_unsupported(request: DecodeRequest) -> None:
    """Raise UnsupportedVideoError with the reason if the video cannot be decoded, as far as is known in advance."""
    info, codec = request.info, request.index.codec
    reason = codec_refusal(codec, request.index.crops_left)
    if reason is None and codec not in _CODECS:
        reason = f"it decodes {', '.join(_CODECS)}, not {codec}"
    if reason is None and info.interlaced:
        raise refusal(DEINTERLACES, codec)
    if reason is None and request.device != "cpu":
        reason = conversion_refusal(info, request.geometry)
    reason = reason or hardware_refusal(request)
    if reason is not None:
        raise refusal(reason)


class _LibraryFailure(Exception):
    """The library raised an exception. The state of its decoder is unknown after that, so it is not used again."""

    def __init__(self, error: Exception) -> None:
        super().__init__(" ".join(str(error).split())[:_MAX_REASON_LENGTH] or type(error).__name__)
        self.unsupported = type(error).__name__.endswith("Unsupported") or "not supported" in str(self).lower()


class _DecoderSession(Session):
    """One hardware decoder, made with these arguments of the library's function."""

    def __init__(self, library: ModuleType, arguments: dict[str, Any]) -> None:
        self._library = library
        self._shapes: set[tuple[int, ...]] = set()  # of all frames so far
        # pts never repeat in the session's life: a late frame cannot be mistaken for one of the next stream
        self._first_pts = self._next_pts = 0
        self._decoder: Any = None
        try:
            self._decoder = library.CreateDecoder(**arguments)
        except Exception as error:
            failure = _LibraryFailure(error)
            kind: type[TelecineError] = UnsupportedVideoError if failure.unsupported else BackendUnavailable
            kind = OverloadedError if "OUT_OF_MEMORY" in str(failure) else kind
            raise kind(f"pynvvideocodec: no decoder could be made: {failure}") from error

    def decode(self, data: bytes, pts: int) -> list[tuple[int, Any]]:
        """Feed a packet. Return (pts, frame) in display order; frames are valid until the next call."""
        # the pts must ascend in display order, else the driver's parser exchanges those of frames
        packet = self._library.PacketData()
        packet.pts = self._first_pts + pts
        packet.bsl_data = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value
        packet.bsl = len(data)
        self._next_pts = max(self._next_pts, packet.pts + 1)
        return self._decode(packet)

    def drain(self) -> list[tuple[int, Any]]:
        """End the stream, so that another one can begin. Return the frames held back, as :meth:`decode` does."""
        frames = self._decode(self._library.PacketData())  # an empty packet ends the stream
        self._first_pts = self._next_pts
        return frames

    def close(self) -> None:
        self._decoder = None

    def _decode(self, packet: Any) -> list[tuple[int, Any]]:
        try:
            frames = [(int(frame.getPTS()) - self._first_pts, frame) for frame in self._decoder.Decode(packet)]
            self._shapes.update(tuple(int(side) for side in frame.shape) for _, frame in frames)
            # after frames of several sizes its buffers may have the smallest size
            self.is_reusable = len(self._shapes) <= 1
        except Exception as error:
            raise _LibraryFailure(error) from error
        return frames


class _PacketDecoder:
    """Executes the plan of one request. Not thread-safe."""

    def __init__(
        self, library: ModuleType, decoders: SessionPool[_DecoderSession], request: DecodeRequest, output: _Output
    ) -> None:
        self._library, self._decoders = library, decoders
        self._request, self._output, self._index = request, output, request.index
        self._reader = BatchReader(request)
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
        targets = output_rows(ranges)
        pts = dict(zip(ordinals.tolist(), self._index.display_positions(ordinals).tolist(), strict=True))
        decode_pass = PassState(ordinals, pts, targets)
        position = 0
        while position < len(ordinals):
            position = self._decode_from(decode_pass, position)
        self._reader.packets_done += len(ordinals)
        missing = set(ordinals.tolist()) - decode_pass.decoded
        lost = unreliable_targets(self._index, ranges, missing, decode_pass.damaged)
        lost |= decode_pass.ambiguous & targets.keys()
        self._output.kept[[row for ordinal in lost for row in targets[ordinal]]] = False

    def _decode_from(self, decode_pass: PassState, start: int) -> int:
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

    def _feed(self, decode_pass: PassState, start: int, end: int, new: bool = False) -> _LibraryFailure | None:
        """Feed packets to one session, up to ``end`` or to a packet that needs another session.

        Sets ``decode_pass.position`` to where it stops. Returns the failure that stopped it, if there was one.
        """
        decode_pass.position = end
        batches = self._reader.read(decode_pass, start, end)
        first = next(batches, None)
        if first is None:
            return None
        reused = False
        try:
            with self._decoders.session(*self._session_key(first.decoder_key), new) as session:
                reused = session.reused
                self._decode_batches(session, decode_pass, chain((first,), batches))
        except _LibraryFailure as failure:
            if not reused:
                return failure
            _log.debug("PyNvVideoCodec failed in a reused decoder: %s", failure)
        else:
            return None
        return self._feed(decode_pass, start, end, new=True)

    def _decode_batches(self, session: _DecoderSession, decode_pass: PassState, batches: Iterable[PacketBatch]) -> None:
        pending: dict[int, int] = {}  # ordinal by pts
        fed: list[int] = []
        for batch in batches:
            for position, ordinal, pts, data in batch.packets:
                decode_pass.position = position
                pending.setdefault(pts, ordinal)
                fed.append(ordinal)
                self._store(session, decode_pass, pending, session.decode(data, pts))
            decode_pass.position = batch.stop
        self._store(session, decode_pass, pending, session.drain())
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

    def _store(
        self, session: _DecoderSession, decode_pass: PassState, pending: dict[int, int], frames: list[tuple[int, Any]]
    ) -> None:
        """Copy the wanted ones of the frames that came out: the next call makes their memory invalid."""
        if not session.is_reusable and self._index.codec in DISPLAYED_IN_DECODE_ORDER:
            raise refusal("it gives wrong pictures if their size changes between key frames", self._index.codec)
        try:
            for pts, frame in frames:
                # a pts is used once: a second frame with it is another one
                ordinal = pending.pop(pts, None)
                if ordinal is None:
                    continue
                self._has_frames = True
                decode_pass.decoded.add(ordinal)
                if ordinal in decode_pass.targets:
                    surface = locate_surface(self._request, frame, decode_pass.frame_width)
                    self._output.write_surface(decode_pass.targets[ordinal], surface)
        finally:
            self._output.flush()

    def _session_key(
        self, decoder_key: tuple[object, ...]
    ) -> tuple[tuple[Any, ...], Callable[[_DecoderSession | None], _DecoderSession]]:
        """Return the key of sessions that can decode such a stream, and a function that creates one."""
        library, request, codec = self._library, self._request, self._index.codec
        max_size = request.options["max_width"], request.options["max_height"]
        stored = request.geometry.stored_width, request.geometry.stored_height
        # a session is reused only for the same sequence headers: otherwise it may hold fewer reference pictures than
        # the stream needs, and the library does not report that. Nor does it report larger pictures of VP9
        gpu = self._output.gpu, self._output.on_gpu
        key = (*gpu, codec, request.info.pixel_format, *stored, decoder_key, *max_size)
        arguments = {
            "gpuid": self._output.gpu,
            "codec": getattr(library.cudaVideoCodec, _CODECS[codec]),
            "cudacontext": 0,
            "cudastream": 0,
            "usedevicememory": self._output.on_gpu,
            "maxwidth": max_size[0],
            "maxheight": max_size[1],
            "outputColorType": library.OutputColorType.NATIVE,
        }

        def create(evicted: _DecoderSession | None) -> _DecoderSession:
            if evicted is not None:
                evicted.close()
            return _DecoderSession(library, arguments)

        return key, create
