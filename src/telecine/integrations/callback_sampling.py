"""Requests whose frames the code of an engine chooses, once the facts of the video are known."""

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
from telecine.sampling.policies import ClipFacts
from telecine.sampling.select import Sampling, select
from telecine.timeline import Timeline

__all__ = ["ChooseFrames", "load_with_callback", "processor_metadata"]

ChooseFrames: TypeAlias = "Callable[[VideoInfo, Timeline], tuple[Sequence[int] | npt.NDArray[np.int64], Size]]"
"""Returns the frame indices, in any order and with repeats, and the frame size."""


@dataclass(frozen=True, eq=False)
class _CallbackRequest(Request):
    """A request whose frames a function chooses, instead of the sampling options."""

    choose_frames: ChooseFrames

    def choose(self, index: PacketIndex, info: VideoInfo) -> tuple[npt.NDArray[np.int64], Size]:
        """Return what the function chooses; an index outside the video is an :class:`OptionsError`."""
        chosen, size = self.choose_frames(info, index.timeline)
        return select(Sampling(indices=np.asarray(chosen, np.int64)), index.timeline), size


def load_with_callback(
    pool: Pool, choose_frames: ChooseFrames, source: Any, *, timeout: Timeout = None, **options: Any
) -> Frames:
    """Decode the frames that a function chooses, in a pool.

    An exception of the function comes out unchanged: engines tell bad input from faults by their own classes.

    Args:
        pool: pool that runs the request.
        choose_frames: called once, in the thread that runs the request, before anything is decoded.
        source: as for :func:`telecine.load`.
        timeout: as for :func:`telecine.load`.
        **options: options of :func:`telecine.load` other than those that choose frames or their size.

    Raises:
        TelecineError: as for :func:`telecine.load`.
    """
    raised: list[Exception] = []

    def choose(info: VideoInfo, timeline: Timeline) -> Any:
        try:
            return choose_frames(info, timeline)
        except TelecineError:
            raise
        except Exception as error:
            raised.append(error)
            raise OptionsError("the frames could not be chosen") from error

    request = Request.of(source, **options)
    try:
        return pool.run_request(_CallbackRequest(**vars(request), choose_frames=choose), timeout=timeout)
    except TelecineError:
        if raised:
            raise raised[0] from None
        raise


def processor_metadata(frames: Frames) -> dict[str, Any]:
    """Return :meth:`Frames.metadata` with the nominal rate of a clip of constant rate: 24, not 24.0008 frames/s."""
    metadata = frames.metadata() | {"video_backend": "telecine"}
    if not frames.info.variable_frame_rate:
        metadata["fps"] = ClipFacts.of(frames.timeline).fps
    return metadata
