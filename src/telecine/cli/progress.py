"""A line on the terminal that says how far the work is."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from telecine.deadline import ProgressCallback

__all__ = ["Progress"]

_PATIENCE = 1.0
"""Seconds of work before anything is shown."""
_UNITS = {"decoding": "packets", "writing the frames": "frames"}
"""Where the amounts mean something to a reader."""


class Progress:
    """Watches a request: what :class:`telecine.deadline.Deadline` calls between two small steps. One per request.

    Args:
        stream: where to write.
        interval: seconds between two updates.
        clock: a monotonic time in seconds.
    """

    def __init__(self, stream: TextIO, interval: float = 0.1, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._interval = interval
        self._clock = clock
        self._started = clock()
        self._due = self._started + _PATIENCE
        self._stages: list[str] = []
        self._shown = 0

    @classmethod
    @contextlib.contextmanager
    def shown(cls, wanted: bool | None) -> Iterator[ProgressCallback | None]:
        """Show progress on standard error while inside; None: only if that is a terminal."""
        if wanted is None:
            wanted = sys.stderr.isatty()
        progress = cls(sys.stderr, 0.1 if sys.stderr.isatty() else 1.0) if wanted else None
        try:
            yield progress
        finally:
            if progress is not None:
                progress.clear()

    def __call__(self, doing: str, done: int, total: int) -> None:
        now = self._clock()
        if now < self._due and doing in self._stages[-1:]:
            return
        if doing not in self._stages:
            self._stages.append(doing)
        # packets are read again while others are decoded: the line does not go back to a stage that is over
        if now < self._due or doing != self._stages[-1]:
            return
        self._due = now + self._interval
        self._show(self._line(doing, done, total, now - self._started))

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            self._show("")
            self._shown = 0

    def _line(self, doing: str, done: int, total: int, elapsed: float) -> str:
        if total <= 0:
            return f"{doing}  {elapsed:.0f} s"
        done = min(done, total)
        width = 30
        filled = width * done // total
        amount = f"  {done} of {total} {_UNITS[doing]}" if doing in _UNITS else ""
        return f"{doing}  [{'#' * filled}{'-' * (width - filled)}] {100 * done // total:3d}%{amount}"

    def _show(self, line: str) -> None:
        if not self._stream.isatty():
            if line:
                print(line, file=self._stream, flush=True)
            self._shown = 0
            return
        line = line[: shutil.get_terminal_size().columns - 1]
        # blanks instead of control sequences: any terminal understands them
        self._stream.write(f"\r{line:<{self._shown}}" + ("" if line else "\r"))
        self._stream.flush()
        self._shown = len(line)
