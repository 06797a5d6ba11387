"""The result of a request in a pool."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from telecine.errors import Cancelled
from telecine.frames import Frames

__all__ = ["PoolFuture"]


class PoolFuture(Future[Frames]):
    """The frames of a request in a pool, as a :class:`concurrent.futures.Future`.

    ``result(timeout)`` waits for the frames and raises the error of the request, the same as :func:`telecine.load`
    raises. Its timeout only ends the wait, with :class:`TimeoutError`; the request continues. To bound the request
    itself, pass ``timeout`` to :meth:`telecine.Pool.submit`: then ``result()`` raises :class:`telecine.DeadlineError`.

    ``cancel()`` works until the result is there, also while the request is being decoded, unlike the futures of the
    standard library. The decode stops before the next packet. Afterwards ``result()`` raises
    :class:`concurrent.futures.CancelledError`.

    ``add_done_callback(function)`` calls ``function(future)`` in the thread that decoded. It may take its time: another
    thread takes over the next request.
    """

    def finish(self, frames: Frames | None, error: BaseException | None) -> None:
        """Set the result or the error, unless the future was cancelled. Called by the pool."""
        if self.set_running_or_notify_cancel():
            if error is None:
                self.set_result(frames)  # type: ignore[arg-type]  # there are frames if there is no error
            else:
                self.set_exception(error)

    def finish_in_child(self) -> None:
        """End the future in a forked child, where no thread works on it and another thread may have held its lock."""
        self._condition = threading.Condition()
        self._done_callbacks: list[Any] = []
        if not self.done():
            self.set_exception(Cancelled("the request belongs to the process that forked this one; ask again here"))
