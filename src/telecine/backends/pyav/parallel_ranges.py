"""Decoding the ranges of a plan with two decoders in parallel, where that is possible.

A decoder with frame threads is never fully busy: it waits for the key frame at the start of a range and for the last
picture at its end, and its threads wait for each other's rows. Two decoders fill these gaps: docs/performance.md.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from telecine.backends.base import DecodeRequest
from telecine.bitstream.nal import PARAMETER_SET_TYPES, NalSplitter, nal_type
from telecine.deadline import Deadline
from telecine.errors import Cancelled
from telecine.index.packet_index import PacketIndex
from telecine.plan.ranges import DecodeRange

__all__ = ["DecodeProgress", "decode_in_parallel", "split_threads"]

_CODECS_WITHOUT_PARAMETER_SETS = frozenset({"vp8", "vp9"})


class DecodeProgress:
    """Counts the packets fed by both decoders and checks the deadline. Thread-safe."""

    def __init__(self, deadline: Deadline, total: int) -> None:
        self._deadline, self._total = deadline, total
        self._lock = threading.Lock()
        self._done = 0
        self._is_cancelled = False

    def step(self) -> None:
        """Record that a packet is about to be fed. Raises if the deadline or the other decoder says so."""
        with self._lock:  # the progress callback is the user's code: it is called by one thread at a time
            if self._is_cancelled:
                raise Cancelled("another decoder of this request has failed")
            self._deadline.check("decoding", self._done, self._total)
            self._done += 1

    def cancel(self) -> None:
        """Make every later :meth:`step` raise."""
        self._is_cancelled = True


def split_threads(request: DecodeRequest, threads: int) -> tuple[int, int] | None:
    """Return how many decoder threads each of two decoders gets; None if one decoder must decode all ranges."""
    # the first decoder starts with the longest range. If that is most of the work, it needs most of the threads
    lengths = [len(range_.packets) for range_ in request.plan.ranges]
    if threads < 2 or len(lengths) < 2 or not _are_independent(request):
        return None
    longest = max(lengths) / sum(lengths)
    second = max(1, round(threads * min(0.5, 1 - longest)))
    # with one thread for the longest range, nothing would be gained
    return (threads - second, second) if threads > 2 or longest <= 0.5 else None


def _are_independent(request: DecodeRequest) -> bool:
    """Return True if each range can be decoded by a decoder that has not decoded the others."""
    # ranges start at random access points, so they need only the parameter sets from before. These must all be in the
    # container's extradata, and the packets must be in memory, because the file is read in order
    index = request.index
    if index.packets is None or index.new_extradata:
        return False
    if index.codec in _CODECS_WITHOUT_PARAMETER_SETS:
        return True
    if index.codec not in PARAMETER_SET_TYPES or not index.exact_random_access:
        return False
    splitter = NalSplitter(index.codec, request.demuxer.extradata)
    return bool(splitter.length_size) and not any(_has_parameter_sets(index, splitter, r) for r in request.plan.ranges)


def _has_parameter_sets(index: PacketIndex, splitter: NalSplitter, range_: DecodeRange) -> bool:
    assert index.packets is not None
    types = PARAMETER_SET_TYPES[index.codec]
    return any(
        unit and nal_type(index.codec, unit) in types
        for packet in range_.packets.tolist()
        for unit in splitter.split(memoryview(index.packets[packet]))
    )


def decode_in_parallel(
    ranges: Sequence[DecodeRange],
    decoders: tuple[Callable[[DecodeRange], bool], Callable[[DecodeRange], bool]],
    progress: DecodeProgress,
    close_second: Callable[[], None] = lambda: None,
) -> list[bool]:
    """Decode ranges with two decoders, each taking the longest one left whenever it is free.

    The first works in this thread and starts with the longest range. The second decoder is used and closed in a thread
    of its own, which has ended on return in any case. The result says which ranges were decoded without damage.
    """
    intact = [False] * len(ranges)
    longest, *others = sorted(range(len(ranges)), key=lambda number: -len(ranges[number].packets))
    waiting = iter(others)  # taking the next one is atomic
    failures: list[BaseException] = []

    def work(decode: Callable[[DecodeRange], bool], *first: int) -> None:
        try:
            for number in itertools.chain(first, waiting):
                if failures:
                    break
                intact[number] = decode(ranges[number])
        except BaseException as error:
            failures.append(error)
            progress.cancel()

    def work_and_close() -> None:
        work(decoders[1])
        close_second()

    # a daemon thread does not delay the end of the interpreter
    thread = threading.Thread(target=work_and_close, name="telecine-decode", daemon=True)
    try:
        with suppress(RuntimeError):  # the system allows no more threads: this one decodes everything
            thread.start()
        work(decoders[0], longest)
    except BaseException:  # a signal handler raised outside the decoder
        progress.cancel()
        raise
    finally:
        _join(thread, progress)
    if failures:
        raise failures[0]
    return intact


def _join(thread: threading.Thread, progress: DecodeProgress) -> None:
    """Wait for a thread also if signal handlers raise meanwhile; raise their last exception afterwards."""
    interrupt: BaseException | None = None
    while thread.is_alive():
        try:
            thread.join()
        except BaseException as error:
            interrupt = error
            progress.cancel()
    if interrupt is not None:
        raise interrupt
