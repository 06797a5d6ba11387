"""When pictures are shown: by the container's times where those can be believed, else by the order of the bitstream."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from telecine.bitstream import Leading, RandomAccess
from telecine.container.timestamps import NO_TIME, follows_points, rebuild, usable

__all__ = ["Presentation", "Told", "present"]

_Ticks = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Told:
    """What container and bitstream say of the packets of a video, in decoding order."""

    pts: _Ticks
    """``int64 [P]`` with :data:`telecine.container.timestamps.NO_TIME`."""
    dts: _Ticks
    """``int64 [P]`` likewise."""
    seen: _Flags
    """``bool [P]`` whether a viewer sees the packet's frame. The times of others may be anything."""
    random_access: npt.NDArray[np.uint8]
    """``uint8 [P]`` :class:`telecine.bitstream.RandomAccess`."""
    relation: npt.NDArray[np.int8]
    """``int8 [P]`` :class:`telecine.bitstream.Leading`."""
    unreferenced: _Flags
    """``bool [P]`` whether the bitstream says that no picture of the same layer refers to it."""
    packed: bool
    """Whether times belong to other pictures than those of their packets."""
    places: _Ticks | None
    """``int64 [S]`` the place in output order of each packet that is seen, where the bitstream was asked and tells."""

    @cached_property
    def orderly(self) -> bool:
        """Whether the times could be true."""
        return usable(self.pts[self.seen]) and follows_points(
            self.pts, self.seen, self.random_access == RandomAccess.OPEN, self.random_access == RandomAccess.CLOSED
        )

    @cached_property
    def suspicious(self) -> bool:
        """Whether times only rise though there are pictures that mostly are shown ahead of one decoded before: some
        containers keep decoding times alone, and FFmpeg makes presentation times of them."""
        pts = self.pts[self.seen]
        return len(pts) > 1 and bool((np.diff(pts) > 0).all()) and bool(self.unreferenced.any())

    @property
    def suffices(self) -> bool:
        """Whether it can be said when pictures are shown without asking the bitstream for their order."""
        return self.places is not None or (not (self.packed or self.suspicious) and self.orderly)


@dataclass(frozen=True, eq=False)
class Presentation:
    """When pictures are shown."""

    times: _Ticks
    """``int64 [P]`` those of packets that are not seen are the container's."""
    leading: _Flags
    """``bool [P]`` whether it needs what lies before the random access point in front of it in decoding order."""
    rebuilt: bool
    """Whether the times of the container were missing or nonsense."""


def present(told: Told, step: int) -> Presentation:
    """Say when pictures are shown.

    Args:
        told: what there is to go by.
        step: ticks between frames where nothing else says.
    """
    seen, places = told.seen, told.places
    untrue = told.packed or (told.suspicious and places is not None and bool((np.diff(places) < 0).any()))
    rebuilt = untrue or not told.orderly
    times = told.pts.copy()
    if rebuilt and seen.any():
        known = np.full_like(times, NO_TIME) if untrue else times
        times[seen] = rebuild(known[seen], told.dts[seen], places, step)
    return Presentation(times, _leading(told, times, untrue), rebuilt)


def _leading(told: Told, times: _Ticks, untrue: bool) -> _Flags:
    at = np.maximum.accumulate(np.where(told.random_access > 0, np.arange(len(times)), -1))
    point = np.maximum(at, 0)
    behind_open = (at >= 0) & (told.random_access[point] == RandomAccess.OPEN)
    # times may have been rebuilt for what is seen: where either is not, both are compared by the container's own
    own = times if untrue else told.pts
    both = (own != NO_TIME) & (own[point] != NO_TIME) & ~(told.seen & told.seen[point])
    earlier = np.where(both, own < own[point], (times < times[point]) & (times != NO_TIME))
    leading: _Flags = (told.relation == Leading.SKIPPED) | ((told.relation == Leading.UNKNOWN) & behind_open & earlier)
    return leading
