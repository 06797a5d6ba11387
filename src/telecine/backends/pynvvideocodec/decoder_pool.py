"""The decoder sessions of PyNvVideoCodec: a limited number per process, kept open from one request to the next."""

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

__all__ = ["DecoderPool", "DecoderSession", "LibraryFailure"]

_DEFAULT_SESSIONS = 2
"""Without the option ``hw_decoders``. Each session holds some 128 MiB of GPU memory."""
_POLL_SECONDS = 0.1
"""Time between two checks of the deadline while all sessions are in use."""
_MAX_REASON_LENGTH = 200
_log = logging.getLogger("telecine.backends.pynvvideocodec.backend")


class LibraryFailure(Exception):
    """The library raised an exception. The state of its decoder is unknown after that, so it is not used again."""

    def __init__(self, error: Exception) -> None:
        super().__init__(" ".join(str(error).split())[:_MAX_REASON_LENGTH] or type(error).__name__)
        self.unsupported = type(error).__name__.endswith("Unsupported") or "not supported" in str(self).lower()


class DecoderSession:
    """One hardware decoder, which outlives requests. Not thread-safe."""

    def __init__(self, library: ModuleType, key: tuple[Any, ...], arguments: dict[str, Any]) -> None:
        self.key = key
        self.reused = False
        """True if it has decoded another stream before."""
        self.shapes: set[tuple[int, ...]] = set()
        """Shapes of all frames so far."""
        self._library = library
        # pts never repeat in the session's life: a late frame cannot be mistaken for one of the next stream
        self._first_pts = self._next_pts = 0
        self._decoder: Any = None
        try:
            self._decoder = library.CreateDecoder(**arguments)
        except Exception as error:
            failure = LibraryFailure(error)
            kind: type[TelecineError] = UnsupportedVideoError if failure.unsupported else BackendUnavailable
            kind = OverloadedError if "OUT_OF_MEMORY" in str(failure) else kind
            raise kind(f"pynvvideocodec: no decoder could be made: {failure}") from error

    def decode(self, data: bytes, pts: int) -> list[tuple[int, Any]]:
        """Feed a packet. Return (pts, frame) in display order; frames are valid until the next call.

        The pts must ascend in display order, else the driver's parser exchanges those of frames.
        """
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
        """Free the decoder now, even if other references to this object exist."""
        self._decoder = None

    def _decode(self, packet: Any) -> list[tuple[int, Any]]:
        try:
            frames = [(int(frame.getPTS()) - self._first_pts, frame) for frame in self._decoder.Decode(packet)]
            self.shapes.update(tuple(int(side) for side in frame.shape) for _, frame in frames)
        except Exception as error:
            raise LibraryFailure(error) from error
        return frames


class DecoderPool:
    """The decoder sessions of a process. Thread-safe. Creating one takes 0.1 s, so idle ones are kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: threading.Semaphore | None = None
        self._size = 0
        self._has_warned = False
        self._idle: list[DecoderSession] = []
        self._num_busy = 0

    @contextmanager
    def slot(self, request: DecodeRequest) -> Iterator[None]:
        """Wait until the request may use a session. It may use one at a time while it holds the slot."""
        wanted = request.options["hw_decoders"]
        with self._lock:
            if self._slots is None:
                self._size = wanted or _DEFAULT_SESSIONS
                self._slots = threading.Semaphore(self._size)
                atexit.register(self._idle.clear)  # while the driver is still loaded
            elif wanted not in (None, self._size) and not self._has_warned:
                self._has_warned = True
                _log.warning("hw_decoders is %d; it stays %d, as the first request said", wanted, self._size)
            slots = self._slots
        while not slots.acquire(timeout=_POLL_SECONDS):
            request.deadline.check("waiting for a hardware decoder")
        try:
            yield
        finally:
            slots.release()

    @contextmanager
    def session(
        self, key: tuple[Any, ...], create: Callable[[], DecoderSession], new: bool = False
    ) -> Iterator[DecoderSession]:
        """Lend a session for one stream, which the caller drains. It is kept unless the block raises."""
        with self._lock:
            session = None if new else next((idle for idle in reversed(self._idle) if idle.key == key), None)
            if session is not None:
                session.reused = True
                self._idle.remove(session)
            # the sessions that have been idle for longest make room
            surplus = 0 if session is not None else max(0, len(self._idle) + self._num_busy + 1 - self._size)
            evicted, self._idle[:surplus] = self._idle[:surplus], []
            self._num_busy += 1
        for each in evicted:  # outside the lock: it takes time
            each.close()
        reusable = False
        try:
            session = session or create()
            yield session
            # after frames of several sizes its buffers may have the smallest size
            reusable = len(session.shapes) <= 1
        finally:
            if session is not None and not reusable:
                session.close()
            with self._lock:
                self._num_busy -= 1
                if session is not None and reusable:
                    self._idle.append(session)
