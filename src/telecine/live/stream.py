"""The public object of a live stream: iteration over segments, sync and async, by consumers that share captures."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any

from telecine.deadline import Deadline, Timeout
from telecine.errors import Cancelled
from telecine.live.capture import Capture, LiveOptions, Slot
from telecine.live.segments import Segment, State, Stats
from telecine.live.uris import LiveUri

__all__ = ["LiveStream"]

_POLL_SECONDS = 0.05
_captures: dict[tuple[str, LiveOptions], Capture] = {}
_lock = threading.RLock()


class LiveStream:
    """Segments of a live stream. An iterator and an async iterator; a context manager. Thread-safe.

    A consumer that is slower than the stream gets the newest segment, and in ``Segment.dropped_segments`` the number
    that it missed. Consumers of one URI with equal options share a connection and a decoder.
    """

    def __init__(self, uri: LiveUri, options: LiveOptions) -> None:
        self._slot, self._pid = Slot(), os.getpid()
        self._capture = _join(uri, options, self._slot)
        self._close = weakref.finalize(self, _leave, self._capture, (uri.uri, options), self._slot, self._pid)

    @property
    def name(self) -> str:
        """Name of the stream for messages, without credentials."""
        return self._capture.uri.name

    @property
    def state(self) -> State:
        """State of the connection: docs/live.md lists them."""
        return self._capture.state if self._close.alive else "closed"

    @property
    def stats(self) -> Stats:
        """Counters since the capture began."""
        return self._capture.stats

    @property
    def error(self) -> str | None:
        """Reason of the last failure, also if the stream has recovered; None if there was none."""
        error = self._capture.last_error
        return None if error is None else str(error)

    def get(self, timeout: Timeout = None) -> Segment | None:
        """Wait for the next segment. Returns None at the end of a recording, or if the stream is closed.

        Args:
            timeout: seconds to wait, or a :class:`telecine.Deadline`; without one, an outage is waited out.

        Raises:
            DeadlineError: no segment came in time. The stream goes on.
            TelecineError: the stream has failed for good; the message says why.
        """
        deadline = Deadline.of(timeout)
        while True:
            if (found := self._poll()) is not _NOTHING:
                return found  # type: ignore[no-any-return]
            deadline.check("waiting for a segment")
            with self._slot.condition:
                self._slot.condition.wait(_POLL_SECONDS)

    def _poll(self) -> Any:
        if self._pid != os.getpid():
            raise Cancelled("the stream belongs to the process that forked this one; open it again here")
        is_over = self._slot.is_over  # read first: what was offered before the end is still returned
        if (segment := self._slot.take()) is not None and self._close.alive:
            return segment
        if not self._close.alive:
            return None
        if is_over:
            if self._slot.error is not None:
                raise self._slot.error
            return None
        return _NOTHING

    def __iter__(self) -> Iterator[Segment]:
        return self

    def __next__(self) -> Segment:
        if (segment := self.get()) is None:
            raise StopIteration
        return segment

    def __aiter__(self) -> AsyncIterator[Segment]:
        return self

    async def __anext__(self) -> Segment:
        import asyncio

        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        self._slot.on_change = lambda: loop.call_soon_threadsafe(changed.set)
        while (found := self._poll()) is _NOTHING:
            await changed.wait()
            changed.clear()
        if found is None:
            raise StopAsyncIteration
        return found  # type: ignore[no-any-return]

    def close(self) -> None:
        """Leave the stream; the last consumer closes the connection. Waiting consumers end. May be called twice."""
        self._close()

    def __enter__(self) -> LiveStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> LiveStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import asyncio

        await asyncio.to_thread(self.close)

    def __repr__(self) -> str:
        return f"LiveStream({self.name!r}, {self.state})"


_NOTHING = object()


def _join(uri: LiveUri, options: LiveOptions, slot: Slot) -> Capture:
    key = (uri.uri, options)
    with _lock:
        capture = _captures.get(key)
        if uri.scheme == "file" or capture is None or not capture.join(slot):
            capture = Capture(uri, options, slot)
            _captures[key] = capture
        return capture


def _leave(capture: Capture, key: tuple[str, LiveOptions], slot: Slot, pid: int) -> None:
    if pid != os.getpid():
        return  # a forked child: the threads are in its parent
    is_last = capture.leave(slot)
    slot.end(None)
    with _lock:
        if is_last and _captures.get(key) is capture:
            del _captures[key]


def _after_fork() -> None:
    global _lock
    _captures.clear()
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
