"""Decoding a plan in chunks of frames, so that memory does not grow with the length of the video."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Protocol, runtime_checkable

from telecine.backends.base import Backend, Decoded, DecodeRequest
from telecine.plan.decode_plan import make_plan
from telecine.plan.frame_groups import split_frames

__all__ = ["ChunkBackend", "decode_chunks"]

_MAX_GROUP_BYTES = 1 << 30
"""Output of one group of frames at most, unless a chunk is larger."""


@runtime_checkable
class ChunkBackend(Protocol):
    """A backend that keeps one decoder open from chunk to chunk."""

    def decode_chunks(self, request: DecodeRequest, chunk_frames: int) -> Generator[Decoded]:
        """Yield the output rows of a request in chunks; see :func:`decode_chunks`."""
        ...


def decode_chunks(backend: Backend, request: DecodeRequest, chunk_frames: int) -> Generator[Decoded]:
    """Yield the output rows of a request, in order, in chunks of ``chunk_frames`` rows or fewer.

    A backend without a method of this name decodes group by group of frames, each from a random access point. The
    libraries of hardware decoders keep their sessions from group to group. A long video without random access points
    is decoded from its beginning for every :data:`_MAX_GROUP_BYTES` of output.

    Args:
        backend: that decodes.
        request: of all frames.
        chunk_frames: rows of a chunk at most.
    """
    if isinstance(backend, ChunkBackend):
        yield from backend.decode_chunks(request, chunk_frames)
        return
    frames = request.plan.frames
    frame_bytes = request.geometry.height * request.geometry.width * 3
    max_frames = max(1, _MAX_GROUP_BYTES // (frame_bytes * chunk_frames)) * chunk_frames
    for group in split_frames(request.index, frames, chunk_frames, max_frames):
        plan = make_plan(request.index, frames[group])
        decoded = backend.decode(replace(request, plan=plan))
        packets_fed = plan.packets_fed
        for start in range(0, len(plan.frames), chunk_frames):
            rows = slice(start, start + chunk_frames)
            data = decoded.data if len(plan.frames) <= chunk_frames else decoded.data[rows]
            yield replace(decoded, data=data, kept=decoded.kept[rows], packets_fed=packets_fed)
            packets_fed = 0
