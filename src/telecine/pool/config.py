"""Limits of a pool: the arguments of :class:`telecine.Pool`, with defaults that fit the machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import SupportsIndex, TypeAlias

from telecine.errors import OptionsError
from telecine.system import usable_cores, usable_memory
from telecine.validation import check_int

__all__ = ["LeaseVram", "PoolConfig", "check_count", "choose_cores_and_memory"]

LeaseVram: TypeAlias = "Callable[[int, str], AbstractContextManager[object]]"
"""Takes bytes and a device, and returns a context manager that holds so much GPU memory."""

check_count = partial(check_int, low=1, high=sys.maxsize)
"""Returns an argument as an int; raises OptionsError if it is no whole number from ``low`` on."""

_INDEX_BYTES_PER_CORE = 48 << 20
"""Bytes that reading one packet index takes at most for usual videos: 32 MiB of kept packets, the index, and buffers.
The size is not known in advance. So a pool reserves this for every core instead of leasing it."""
_DEFAULT_BYTES_PER_CORE = 2 * _INDEX_BYTES_PER_CORE
"""Bytes for each core by default: its packet index, and as much for decoding. With less, a machine with many cores and
little memory would reserve all of it for packet indexes."""


@dataclass(frozen=True)
class PoolConfig:
    """The arguments of :class:`telecine.Pool`, checked and complete."""

    cores: int
    workers: int
    """Requests that may run at once, counted separately for those that fetch their source and for the others."""
    queue: int
    memory: int
    """Bytes of host memory for decoding; packet indexes are accounted for separately."""
    vram: int | None
    lease_vram: LeaseVram | None
    cache: int
    hash_content: bool


def choose_cores_and_memory(threads: SupportsIndex | None, memory: SupportsIndex | None) -> tuple[int, int]:
    """Return the cores of a pool and the bytes that it has for decoding, with defaults for arguments that are None."""
    text = os.environ.get("TELECINE_POOL_SIZE")
    cores = None
    if threads is not None:
        cores = check_count("threads", threads)
    elif text:
        cores = check_count("TELECINE_POOL_SIZE", int(text) if text.isdecimal() else text)
    if memory is None:
        total = max(usable_memory() // 2, _DEFAULT_BYTES_PER_CORE)
    else:
        total = check_count("memory", memory)
    if cores is None:
        cores = max(1, min(usable_cores(), total // _DEFAULT_BYTES_PER_CORE))
    indexes = cores * _INDEX_BYTES_PER_CORE
    if total <= indexes:
        raise OptionsError(
            f"memory is {total} bytes; {cores} cores take up to {indexes} for packet indexes alone. "
            "Give more memory or fewer threads"
        )
    return cores, total - indexes
