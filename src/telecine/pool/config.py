"""What a pool may use: what its maker says, and where he does not, what suits the machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias

from telecine.errors import OptionsError
from telecine.pool.memory_budget import INDEX_ROOM
from telecine.system import usable_cores, usable_memory
from telecine.validation import shown, whole

__all__ = ["LeaseVram", "Means", "positive"]

LeaseVram: TypeAlias = "Callable[[int, str], AbstractContextManager[object]]"

_CORE_ROOM = 2 * INDEX_ROOM
"""Bytes for each core that nobody asked for: its packet index, and as much to decode in. With less, a machine of many
cores and little memory would set all of it aside for packet indexes."""


@dataclass(frozen=True)
class Means:
    """What a pool may use."""

    cores: int
    workers: int
    """Requests of a kind that may have begun at once. The kinds: those that wait for data first, and the others."""
    queue: int
    """Requests that may wait to begin."""
    memory: int
    """Bytes that decodes may take together."""
    vram: int | None
    lease_vram: LeaseVram | None
    cache: int

    @classmethod
    def of(
        cls,
        *,
        threads: int | None,
        memory: int | None,
        vram: int | None,
        lease_vram: LeaseVram | None,
        workers: int | None,
        queue: int,
        cache: int,
    ) -> Means:
        """The means by the arguments of :class:`telecine.Pool`. What is left out is chosen so that it fits the rest.

        Raises:
            OptionsError: a number is out of range, or the memory is too little for the cores.
        """
        cores = _cores_from_environment() if threads is None else positive("threads", threads)
        total = max(usable_memory() // 2, _CORE_ROOM) if memory is None else positive("memory", memory)
        if cores is None:
            cores = max(1, min(usable_cores(), total // _CORE_ROOM))
        if total <= cores * INDEX_ROOM:
            raise OptionsError(
                f"memory is {total} bytes; {cores} cores take up to {cores * INDEX_ROOM} for packet indexes alone. "
                "Give more memory or fewer threads"
            )
        return cls(
            cores=cores,
            workers=max(16, 2 * cores) if workers is None else positive("workers", workers),
            queue=positive("queue", queue),
            memory=total - cores * INDEX_ROOM,
            vram=None if vram is None else positive("vram", vram),
            lease_vram=lease_vram,
            cache=positive("cache", cache, least=0),
        )


def positive(name: str, value: int, least: int = 1) -> int:
    """A number that a caller gives, if it is a whole one in range.

    Raises:
        OptionsError: it is not.
    """
    number = whole(value)
    if number is None or not least <= number <= sys.maxsize:
        raise OptionsError(f"{name} is {shown(value)}; it must be a whole number from {least} on, of 64 bits")
    return number


def _cores_from_environment() -> int | None:
    text = os.environ.get("TELECINE_POOL_SIZE")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise OptionsError(f"TELECINE_POOL_SIZE is {text!r}; it must be a whole number from 1 on")
    return int(text)
