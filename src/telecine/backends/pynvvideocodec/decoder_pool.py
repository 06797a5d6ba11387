"""The hardware decoders of PyNvVideoCodec: so many at a time, and warm from one request to the next."""

from __future__ import annotations

import atexit
import ctypes
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from telecine.backends.base import DecodeRequest
from telecine.errors import BackendUnavailable, OverloadedError, TelecineError, UnsupportedVideoError

__all__ = ["Decoder", "Decoders", "Refusal"]

_DECODERS = 2
"""Hardware decoders at a time where nobody says. Each holds some 128 MiB of the GPU."""
_WAIT = 0.1
"""Seconds between two looks at the deadline while all decoders are busy."""
_REASON_LENGTH = 200
_log = logging.getLogger("telecine.backends.pynvvideocodec.backend")


class Refusal(Exception):
    """The library has raised something. What its decoder does after that is not known, so it is not used again.

    Args:
        error: what it was. The library's exceptions have no class in common but Exception.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(" ".join(str(error).split())[:_REASON_LENGTH] or type(error).__name__)
        self.unsupported = type(error).__name__.endswith("Unsupported") or "not supported" in str(self).lower()


class Decoder:
    """One hardware decoder, which outlives requests. Not thread-safe.

    Args:
        library: the module.
        key: what it is made for.
        arguments: of the library's function.

    Raises:
        UnsupportedVideoError: the GPU has no decoder for the codec or the pixel format.
        OverloadedError: the GPU has no memory left.
        BackendUnavailable: the library makes none for another reason.
    """

    def __init__(self, library: ModuleType, key: tuple[Any, ...], arguments: dict[str, Any]) -> None:
        self.key = key
        self.reused = False
        """Whether another stream was decoded with it before."""
        self.shapes: set[tuple[int, ...]] = set()
        """Of all frames so far."""
        self._library = library
        # no time comes twice in its life: a frame that is left over cannot be taken for one of the next stream
        self._base = self._end = 0
        self._decoder: Any = None
        try:
            self._decoder = library.CreateDecoder(**arguments)
        except Exception as error:
            refusal = Refusal(error)
            kind: type[TelecineError] = UnsupportedVideoError if refusal.unsupported else BackendUnavailable
            kind = OverloadedError if "OUT_OF_MEMORY" in str(refusal) else kind
            raise kind(f"pynvvideocodec: no decoder could be made: {refusal}") from error

    def decode(self, data: bytes, label: int) -> list[tuple[int, Any]]:
        """Give a packet; get frames, in order of presentation, that are valid until the next call.

        Args:
            data: as of :class:`telecine.bitstream.annexb.ByteStream`.
            label: what its frame is known by. The driver's parser exchanges labels that do not ascend in order of
                presentation.

        Returns:
            (label, frame) of each.

        Raises:
            Refusal: the library has failed.
        """
        packet = self._library.PacketData()
        packet.pts = self._base + label
        packet.bsl_data = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value
        packet.bsl = len(data)
        self._end = max(self._end, self._base + label + 1)
        return self._frames(packet)

    def drain(self) -> list[tuple[int, Any]]:
        """End the stream, so that another one can begin; get the frames that were held back, as of :meth:`decode`."""
        frames = self._frames(self._library.PacketData())  # without bytes, it is the end
        self._base = self._end
        return frames

    def close(self) -> None:
        """Free it now, whoever still refers to this object."""
        self._decoder = None

    def _frames(self, packet: Any) -> list[tuple[int, Any]]:
        try:
            frames = [(int(frame.getPTS()) - self._base, frame) for frame in self._decoder.Decode(packet)]
            self.shapes.update(tuple(int(side) for side in frame.shape) for _, frame in frames)
        except Exception as error:
            raise Refusal(error) from error
        return frames


class Decoders:
    """The decoders of a process. Thread-safe. To make one takes a tenth of a second, so idle ones are kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: threading.Semaphore | None = None
        self._count = 0
        self._warned = False
        self._idle: list[Decoder] = []
        self._busy = 0

    @contextmanager
    def place(self, request: DecodeRequest) -> Iterator[None]:
        """Held by a request: it may use one decoder at a time then."""
        wanted = request.options["hw_decoders"]
        with self._lock:
            if self._places is None:
                self._count = wanted or _DECODERS
                self._places = threading.Semaphore(self._count)
                atexit.register(self._idle.clear)  # while the driver is still there
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

    @contextmanager
    def borrow(self, key: tuple[Any, ...], make: Callable[[], Decoder], fresh: bool = False) -> Iterator[Decoder]:
        """A decoder for one stream, drained at the end; it is kept unless the block ends with an error.

        Args:
            key: an idle one of an equal key is as good as a new one.
            make: makes a new one.
            fresh: whether it must be a new one.
        """
        with self._lock:
            found = None if fresh else next((one for one in reversed(self._idle) if one.key == key), None)
            if found is None:
                over = max(0, len(self._idle) + self._busy + 1 - self._count)
            else:
                over = 0
                found.reused = True
                self._idle.remove(found)
            # those that were idle for longest make room
            gone, self._idle[:over] = self._idle[:over], []
            self._busy += 1
        for decoder in gone:  # outside of the lock, for it takes time
            decoder.close()
        taken, healthy = found, False
        try:
            taken = taken or make()
            yield taken
            # one that has met several sizes may have buffers for the smallest
            healthy = len(taken.shapes) <= 1
        finally:
            if taken is not None and not healthy:
                taken.close()
            with self._lock:
                self._busy -= 1
                if taken is not None and healthy:
                    self._idle.append(taken)
