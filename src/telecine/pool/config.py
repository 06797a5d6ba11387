"""Limits of a pool: the arguments of :class:`telecine.Pool`, with defaults that fit the machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import SupportsIndex, TypeAlias

from telecine.errors import OptionsError
from telecine.pool.memory_budget import INDEX_BYTES_PER_CORE
from telecine.system import usable_cores, usable_memory
from telecine.validation import format_value, to_int

__all__ = ["LeaseVram", "PoolConfig", "check_count"]

LeaseVram: TypeAlias = "Callable[[int, str], AbstractContextManager[object]]"
"""Takes bytes and a device, and returns a context manager that holds so much GPU memory."""

_DEFAULT_BYTES_PER_CORE = 2 * INDEX_BYTES_PER_CORE
"""Bytes for each core by default: its packet index, and as much for decoding. With less, a machine with many cores and
little memory would reserve all of it for packet indexes."""


@dataclass(frozen=True)
class PoolConfig:
    """Limits of one pool."""

    cores: int
    """Cores that all requests together may keep busy."""
    workers: int
    """Requests that may run at once, counted separately for those that fetch their source and for the others."""
    queue: int
    """Requests that may wait to start."""
    memory: int
    """Bytes of host memory for decoding; packet indexes are accounted for separately."""
    vram: int | None
    """Bytes of GPU memory for decoding; None for no limit."""
    lease_vram: LeaseVram | None
    """Reserves GPU memory with the engine that the pool runs in; None if there is none."""
    cache: int
    """Bytes for cached packet indexes."""
    hash_content: bool
    """True if sources in memory are looked up in the cache by the SHA-256 of their content."""

    @classmethod
    def of(
        cls,
        *,
        threads: SupportsIndex | None,
        memory: SupportsIndex | None,
        vram: SupportsIndex | None,
        lease_vram: LeaseVram | None,
        workers: SupportsIndex | None,
        queue: SupportsIndex,
        cache: SupportsIndex,
        hash_content: bool,
    ) -> PoolConfig:
        """Check the arguments of :class:`telecine.Pool` and choose a default for each one that is None.

        Raises:
            OptionsError: a number is out of range, or the memory is too small for the number of cores.
        """
        cores = _cores_from_environment() if threads is None else check_count("threads", threads)
        if memory is None:
            total = max(usable_memory() // 2, _DEFAULT_BYTES_PER_CORE)
        else:
            total = check_count("memory", memory)
        if cores is None:
            cores = max(1, min(usable_cores(), total // _DEFAULT_BYTES_PER_CORE))
        indexes = cores * INDEX_BYTES_PER_CORE
        if total <= indexes:
            raise OptionsError(
                f"memory is {total} bytes; {cores} cores take up to {indexes} for packet indexes alone. "
                "Give more memory or fewer threads"
            )
        return cls(
            cores=cores,
            workers=max(16, 2 * cores) if workers is None else check_count("workers", workers),
            queue=check_count("queue", queue),
            memory=total - indexes,
            vram=None if vram is None else check_count("vram", vram),
            lease_vram=lease_vram,
            cache=check_count("cache", cache, minimum=0),
            hash_content=bool(hash_content),
        )


def check_count(name: str, value: SupportsIndex, minimum: int = 1) -> int:
    """Return an argument as an int if it is a whole number in range.

    Raises:
        OptionsError: it is not.
    """
    number = to_int(value)
    if number is None or not minimum <= number <= sys.maxsize:
        raise OptionsError(
            f"{name} is {format_value(value)}; it must be a whole number from {minimum} to {sys.maxsize}"
        )
    return number


def _cores_from_environment() -> int | None:
    text = os.environ.get("TELECINE_POOL_SIZE")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise OptionsError(f"TELECINE_POOL_SIZE is {text!r}; it must be a whole number from 1 on")
    return int(text)
