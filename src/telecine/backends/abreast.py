"""Which runs of a plan two decoders can work on at the same time, and the doing of it.

A decoder with frame threads is never quite busy: at the start of a run it waits for the key picture, and at its end for
the last one. Two decoders with half of the threads each fill each other's gaps: docs/performance.md.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence

from telecine.backends import DecodeRequest
from telecine.bitstream.nal import NalUnits
from telecine.errors import Cancelled
from telecine.index import PacketIndex
from telecine.limits import Deadline
from telecine.plan import Run

__all__ = ["Progress", "apart", "two_at_a_time"]

_LENGTHS_AT = {"h264": 4, "hevc": 21}
_SETS = {"h264": (0, 0x1F, {7, 8, 13, 15}), "hevc": (1, 0x3F, {32, 33, 34})}
"""How to find the type in the first byte of a NAL unit, and the types of parameter sets."""
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


def apart(request: DecodeRequest) -> bool:
    """Whether two decoders can share the runs of a request, each run being decoded as if it were the only one.

    A run begins where nothing is looked back at. What else a decoder may know from before are parameter sets, which
    must then all be in the header of the container; and there must be no need to read the file in order. Where one run
    is most of the work, a decoder with all of the threads is faster.
    """
    runs, index = request.plan.runs, request.index
    if not runs or index.packets is None or 2 * max(len(run.packets) for run in runs) > request.plan.packets_fed:
        return False
    if index.codec in _SELF_CONTAINED:
        return True
    if index.codec not in _SETS or not index.exact_start:
        return False
    context = request.demuxer.stream.codec_context
    units = NalUnits(bytes(context.extradata or b""), _LENGTHS_AT[index.codec])
    return bool(units.length_size) and not any(_has_sets(index, units, run) for run in runs)


def _has_sets(index: PacketIndex, units: NalUnits, run: Run) -> bool:
    assert index.packets is not None
    shift, mask, kinds = _SETS[index.codec]
    return any(
        unit and unit[0] >> shift & mask in kinds
        for ordinal in run.packets.tolist()
        for unit in units(memoryview(index.packets[ordinal]))
    )


def two_at_a_time(
    runs: Sequence[Run], decoders: tuple[Callable[[Run], bool], Callable[[Run], bool]], progress: Progress
) -> list[bool]:
    """Decode runs with two decoders, each taking the next one whenever it is free.

    Args:
        runs: in the order in which they are begun.
        decoders: decode a run, and say whether all of it was sound. The first works in this thread.
        progress: is ended when one of them fails.

    Returns:
        For each run, what its decoder said.

    Raises:
        TelecineError: of the decoder that failed first; the other one has stopped then.
    """
    sound = [False] * len(runs)
    numbers = itertools.count()  # taking the next number is one step of the interpreter
    failures: list[BaseException] = []

    def work(decode: Callable[[Run], bool]) -> None:
        try:
            while not failures and (number := next(numbers)) < len(runs):
                sound[number] = decode(runs[number])
        except BaseException as error:
            failures.append(error)
            progress.end()

    first, second = decoders
    # a daemon, as the threads of a pool: the end of the interpreter waits for neither
    other = threading.Thread(target=work, args=(second,), name="telecine-decode", daemon=True)
    other.start()
    work(first)
    other.join()
    if failures:
        raise failures[0]
    return sound
