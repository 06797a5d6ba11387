"""Which runs of a plan two decoders can work on at the same time, and the doing of it.

A decoder with frame threads is never quite busy: at the start of a run it waits for the key picture, at its end for the
last one, and in between threads wait for each other's rows. Two decoders fill each other's gaps: docs/performance.md.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence

from telecine.backends.base import DecodeRequest
from telecine.bitstream.nal import PARAMETER_SET_TYPES, NalSplitter, nal_type
from telecine.deadline import Deadline
from telecine.errors import Cancelled
from telecine.index.packet_index import PacketIndex
from telecine.plan.ranges import DecodeRange

__all__ = ["Progress", "shares", "two_at_a_time"]

_SELF_CONTAINED = frozenset({"vp8", "vp9"})


class Progress:
    """Counts the packets that were fed, and looks at the deadline. Thread-safe."""

    def __init__(self, deadline: Deadline, total: int) -> None:
        self._deadline, self._total = deadline, total
        self._lock = threading.Lock()
        self._done = 0
        self._over = False

    def step(self) -> None:
        """Note that a packet is about to be fed.

        Raises:
            TelecineError: as :meth:`Deadline.check`, or another thread of the request has failed.
        """
        with self._lock:  # whoever watches the deadline may make this thread wait, and then all have to
            if self._over:
                raise Cancelled("another part of the decode has failed")
            self._deadline.check("decoding", self._done, self._total)
            self._done += 1

    def end(self) -> None:
        """Have every later step fail."""
        self._over = True


def shares(request: DecodeRequest, threads: int) -> tuple[int, int] | None:
    """How many of the threads each of two decoders gets that share the runs of a request; None if one does them all.

    Two decoders need runs that can be decoded each as if it were the only one. The first decoder begins with the
    longest run, which may be most of the work, and then it needs most of the threads.
    """
    lengths = [len(run.packets) for run in request.plan.ranges]
    if threads < 2 or len(lengths) < 2 or not _independent(request):
        return None
    longest = max(lengths) / sum(lengths)
    second = max(1, round(threads * min(0.5, 1 - longest)))
    # with one thread for the longest run, nothing would be gained
    return (threads - second, second) if threads > 2 or longest <= 0.5 else None


def _independent(request: DecodeRequest) -> bool:
    """Whether no run needs anything of another one.

    A run begins where nothing is looked back at. What else a decoder may know from before are parameter sets, which
    must then all be in the header of the container; and there must be no need to read the file in order.
    """
    runs, index = request.plan.ranges, request.index
    if index.packets is None or index.new_extradata:
        return False
    if index.codec in _SELF_CONTAINED:
        return True
    if index.codec not in PARAMETER_SET_TYPES or not index.exact_random_access:
        return False
    units = NalSplitter(index.codec, request.demuxer.extradata)
    return bool(units.length_size) and not any(_has_sets(index, units, run) for run in runs)


def _has_sets(index: PacketIndex, units: NalSplitter, run: DecodeRange) -> bool:
    assert index.packets is not None
    kinds = PARAMETER_SET_TYPES[index.codec]
    return any(
        unit and nal_type(index.codec, unit) in kinds
        for ordinal in run.packets.tolist()
        for unit in units.split(memoryview(index.packets[ordinal]))
    )


def two_at_a_time(
    runs: Sequence[DecodeRange],
    decoders: tuple[Callable[[DecodeRange], bool], Callable[[DecodeRange], bool]],
    progress: Progress,
) -> list[bool]:
    """Decode runs with two decoders, each taking the longest one left whenever it is free.

    Args:
        runs: at least one.
        decoders: decode a run, and say whether all of it was sound. The first works in this thread, and begins with the
            longest run.
        progress: is ended when one of them fails.

    Returns:
        For each run, what its decoder said.

    Raises:
        TelecineError: of the decoder that failed first; the other one has stopped then.
    """
    sound = [False] * len(runs)
    longest, *others = sorted(range(len(runs)), key=lambda number: -len(runs[number].packets))
    left = iter(others)  # taking the next one is one step of the interpreter
    failures: list[BaseException] = []

    def work(decode: Callable[[DecodeRange], bool], *begin: int) -> None:
        try:
            for number in itertools.chain(begin, left):
                if failures:
                    break
                sound[number] = decode(runs[number])
        except BaseException as error:
            failures.append(error)
            progress.end()

    first, second = decoders
    # a daemon, as the threads of a pool: the end of the interpreter waits for neither
    other = threading.Thread(target=work, args=(second,), name="telecine-decode", daemon=True)
    try:
        other.start()
    except RuntimeError:  # the system has no thread left
        work(first, longest)
    else:
        work(first, longest)
        other.join()
    if failures:
        raise failures[0]
    return sound
