"""Packet indexes of made-up streams, written as one letter per packet."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from telecine.bitstream import RandomAccess
from telecine.index.packet_index import PacketIndex
from telecine.timeline import Timeline


@dataclass
class Stream:
    """Packets in decode order. Each refers to every earlier packet that its kind may refer to."""

    letters: str = ""
    """One letter per packet: ``I`` closed and ``i`` open random access point, ``P`` reference picture, ``b`` disposable
    picture, ``L`` leading reference picture, ``l`` leading disposable picture, ``h`` hidden reference picture, ``2``
    second field of the packet before it."""
    references: list[set[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        before: set[int] = set()  # references of leading pictures: the packets before their random access point
        here: set[int] = set()
        leading: set[int] = set()
        for at, letter in enumerate(self.letters):
            if letter in "Ii":
                before, here, leading = (here if letter == "i" else set()), {at}, set()
                self.references.append(set())
            elif letter in "Ll":
                self.references.append(before | here | leading)
                leading |= {at} if letter == "L" else set()
            else:
                self.references.append(set(here))
                here |= {at} if letter in "Ph2" else set()

    def index(self, skips_leading: bool = False, shuffle: int = 0) -> PacketIndex:
        """Return the packet index. Frame indices are assigned at random, since the plan must not depend on them."""
        count = len(self.letters)
        letters = np.array(list(self.letters))
        points = np.isin(letters, ["I", "i"])
        access = np.where(
            letters == "I", RandomAccess.CLOSED, np.where(letters == "i", RandomAccess.OPEN, RandomAccess.NONE)
        )
        first = int(np.argmax(points))
        leading = np.isin(letters, ["L", "l"])
        presentable = ~np.isin(letters, ["h", "2"])
        own_point = np.maximum.accumulate(np.where(points, np.arange(count), 0))
        presentable &= (np.arange(count) >= first) & ~(leading & (own_point == first))
        order = np.random.default_rng(shuffle).permutation(np.flatnonzero(presentable))
        zeros = np.zeros(count, np.int64)
        timeline = Timeline(np.arange(len(order)), Fraction(1, 25), len(order), points[order])
        return PacketIndex(
            codec="h264",
            time_base=Fraction(1, 25),
            pts=zeros,
            dts=zeros,
            duration=zeros,
            size=zeros,
            key=points,
            random_access=access.astype(np.uint8),
            presentable=presentable,
            has_picture=np.ones(count, np.bool_),
            disposable=np.isin(letters, ["b", "l"]),
            second_field=letters == "2",
            leading=leading,
            corrupt=np.zeros(count, np.bool_),
            skips_leading=skips_leading,
            display_order=order,
            timeline=timeline,
            synthetic_times=False,
            exact_random_access=True,
            packets=None,
        )
