"""One hardware decoder of PyNvVideoCodec."""

from __future__ import annotations

import ctypes
from types import ModuleType
from typing import Any

from telecine.backends.session_pool import Session
from telecine.errors import BackendUnavailable, OverloadedError, TelecineError, UnsupportedVideoError

__all__ = ["DecoderSession", "LibraryFailure"]

_MAX_REASON_LENGTH = 200


class LibraryFailure(Exception):
    """The library raised an exception. The state of its decoder is unknown after that, so it is not used again."""

    def __init__(self, error: Exception) -> None:
        super().__init__(" ".join(str(error).split())[:_MAX_REASON_LENGTH] or type(error).__name__)
        self.unsupported = type(error).__name__.endswith("Unsupported") or "not supported" in str(self).lower()


class DecoderSession(Session):
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
            failure = LibraryFailure(error)
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
            raise LibraryFailure(error) from error
        return frames
