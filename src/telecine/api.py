"""The public functions of telecine: load frames, read the facts of a video, list the backends."""

from __future__ import annotations

from typing import Any

from telecine.deadline import Deadline
from telecine.index.video_info import VideoInfo, look
from telecine.limits import Limits
from telecine.pipeline import load
from telecine.source.source import open_source

__all__ = ["load", "probe"]


def probe(source: Any, *, limits: Limits | None = None, timeout: float | Deadline | None = None) -> VideoInfo:
    """Read the facts of a video from its packets and headers, without decoding it.

    Args:
        source: path, bytes-like object, binary file object, ``data:`` or ``http(s)`` URL.
        limits: upper bounds of the request; the defaults of :class:`telecine.Limits` when omitted.
        timeout: seconds for the whole call, or a :class:`telecine.Deadline` to cancel or watch it.

    Raises:
        OptionsError: An argument is wrong.
        SourceError: The source cannot be read, or is no video.
        LimitError: The video exceeds a limit.
        DeadlineError: The timeout passed.
    """
    limits, deadline = Limits.of(limits), Deadline.of(timeout)
    with open_source(source, limits, deadline) as opened:
        return look(opened, limits, deadline)
