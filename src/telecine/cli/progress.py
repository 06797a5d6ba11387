"""Progress of a request as one line on standard error."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from telecine.deadline import ProgressCallback

__all__ = ["Progress"]

_DELAY_SECONDS = 1.0
"""Seconds of work before anything is shown."""
_UNITS = {"decoding": "packets", "writing the frames": "frames"}
"""Units of the stages whose amounts are shown."""


class Progress:
    """Progress display for one request, called by :class:`telecine.deadline.Deadline`.

    Args:
        stream: stream to write to.
        interval: seconds between two updates.
        clock: function that returns a monotonic time in seconds.
    """

    def __init__(self, stream: TextIO, interval: float = 0.1, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._interval = interval
        self._clock = clock
        self._started = clock()
        self._next_update = self._started + _DELAY_SECONDS
        self._stages: list[str] = []
        self._shown_length = 0

    @classmethod
    @contextlib.contextmanager
    def shown(cls, wanted: bool | None) -> Iterator[ProgressCallback | None]:
        """Show progress on standard error while inside; with None, only if that is a terminal."""
        is_terminal = sys.stderr.isatty()
        if not (is_terminal if wanted is None else wanted):
            yield None
            return
        progress = cls(sys.stderr, 0.1 if is_terminal else 1.0)
        try:
            yield progress
        finally:
            progress.clear()

    def __call__(self, doing: str, done: int, total: int) -> None:
        now = self._clock()
        if doing not in self._stages:
            self._stages.append(doing)
        # packets are also read while others are decoded: the line does not return to a finished stage
        if now < self._next_update or doing != self._stages[-1]:
            return
        self._next_update = now + self._interval
        self._show(_format_line(doing, done, total, now - self._started))

    def clear(self) -> None:
        """Remove the line."""
        if self._shown_length:
            self._show("")

    def _show(self, line: str) -> None:
        if not self._stream.isatty():
            print(line, file=self._stream, flush=True)
            return
        line = line[: shutil.get_terminal_size().columns - 1]
        # blanks instead of control sequences: any terminal understands them
        self._stream.write(f"\r{line:<{self._shown_length}}" + ("" if line else "\r"))
        self._stream.flush()
        self._shown_length = len(line)


def _format_line(doing: str, done: int, total: int, elapsed: float) -> str:
    if total <= 0:
        return f"{doing}  {elapsed:.0f} s"
    done = min(done, total)
    width = 30
    filled = width * done // total
    amount = f"  {done} of {total} {_UNITS[doing]}" if doing in _UNITS else ""
    return f"{doing}  [{'#' * filled}{'-' * (width - filled)}] {100 * done // total:3d}%{amount}"
