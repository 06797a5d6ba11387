"""Requests whose frames an engine's own code chooses, once the facts of the video are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from telecine.deadline import Timeout
from telecine.errors import OptionsError, TelecineError
from telecine.frames import Frames
from telecine.index.packet_index import PacketIndex
from telecine.index.video_info import VideoInfo
from telecine.pixels.geometry import Size
from telecine.pool import Pool
from telecine.request import Request
from telecine.sampling.select import Sampling, select
from telecine.timeline import Timeline

__all__ = ["Rule", "RuledRequest", "ask"]

Rule: TypeAlias = "Callable[[VideoInfo, Timeline], tuple[Sequence[int] | npt.NDArray[np.int64], Size]]"
"""Told what a video is, it names the frame indices, in any order and with repeats, and their size."""


@dataclass(frozen=True, eq=False)
class RuledRequest(Request):
    """A request that asks a function which frames it wants, in place of the sampling options."""

    rule: Rule

    @classmethod
    def by(cls, rule: Rule, source: Any, **options: Any) -> RuledRequest:
        """A request for what ``rule`` chooses.

        Args:
            rule: called once, in the thread that performs the request, before anything is decoded.
            source: as :func:`telecine.load` takes it.
            **options: of :func:`telecine.load`, but for those that choose frames or their size.

        Raises:
            OptionsError: an option is wrong.
        """
        plain = Request.of(source, **options)
        return cls(**vars(plain), rule=rule)

    def choose(self, index: PacketIndex, info: VideoInfo) -> tuple[npt.NDArray[np.int64], Size]:
        """What the rule says, checked: an index outside the video is an :class:`OptionsError`."""
        chosen, size = self.rule(info, index.timeline)
        return select(Sampling(indices=np.asarray(chosen, np.int64)), index.timeline), size


def ask(pool: Pool, rule: Rule, source: Any, *, timeout: Timeout = None, **options: Any) -> Frames:
    """Have a pool perform a ruled request, and wait.

    An error that the rule raises arrives as it was raised: engines tell bad input from faults by their own classes.

    Args:
        pool: that performs it.
        rule: see :class:`RuledRequest`.
        source: as :func:`telecine.load` takes it.
        timeout: likewise.
        **options: see :meth:`RuledRequest.by`.

    Raises:
        TelecineError: as :func:`telecine.load` says.
    """
    raised: list[Exception] = []

    def watched(info: VideoInfo, timeline: Timeline) -> Any:
        try:
            return rule(info, timeline)
        except TelecineError:
            raise
        except Exception as error:
            raised.append(error)
            raise OptionsError("the frames could not be chosen") from error

    try:
        return pool.run_request(RuledRequest.by(watched, source, **options), timeout=timeout)
    except TelecineError:
        if raised:
            raise raised[0] from None
        raise
