"""Number of threads of FFmpeg's software decoders."""

from __future__ import annotations

from telecine.backends.base import DecodeRequest
from telecine.system import usable_cores

__all__ = ["SINGLE_THREADED_CODECS", "decoder_threads"]

SINGLE_THREADED_CODECS = frozenset({"mpeg4"})
"""Codecs of which FFmpeg, with several threads, returns a frame before it knows whether the frame is damaged."""
_MAX_THREADS = 16


def decoder_threads(request: DecodeRequest, extra: int = 0) -> int:
    """Return one thread per core that the request may use, and ``extra`` ones, up to 16."""
    return min(_MAX_THREADS, (request.cores or usable_cores()) + extra)
