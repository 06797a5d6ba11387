"""Many requests at once, within bounds of cores, memory and queue length."""

from telecine.pool.pool import Pool
from telecine.pool.workers import PoolFuture, PoolStatus

__all__ = ["Pool", "PoolFuture", "PoolStatus"]
