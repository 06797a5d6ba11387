"""What one vLLM process shares among the clips that it decodes: cores, memory, and vLLM's budget of GPU memory.

vLLM calls a codec from a pool of its own, 8 threads by default, whatever the machine has. Eight decoders on two cores
finish no sooner than two, and hold four times the memory. So each of these threads hands its clip to a
:class:`telecine.pool.Pool` and waits.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from telecine.errors import BackendUnavailable, LimitError
from telecine.frames import Frames
from telecine.integrations.callback_sampling import Rule, ask
from telecine.integrations.vllm.options import DecodeOptions
from telecine.metrics import enable_prometheus
from telecine.pool import Pool

__all__ = ["decode", "pool_for"]

_MOST_WORKERS = 16
"""As vLLM's DeepStream codec has it."""
_QUEUE = 100_000
"""Clips that may wait. vLLM bounds them itself: no more are under way than its loader has threads."""

_lock = threading.Lock()
_pools: dict[bool, Pool] = {}
"""For the GPU and for the CPU. A forked child finds them empty, as :class:`Pool` promises."""


def _after_fork() -> None:
    """Another thread may have held the lock, and there is none in a child that could let it go."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def pool_for(options: DecodeOptions) -> Pool:
    """The pool of this process. The first clip decides about its size, as in vLLM's own pools.

    On the CPU ``pool_size`` is how many cores decoding may keep busy, by default all; on a GPU it is how many clips are
    under way at a time, by default as many as vLLM has loader threads.
    """
    with _lock:
        if options.on_gpu not in _pools:
            with suppress(BackendUnavailable):
                enable_prometheus()
            size = options.pool_size
            if options.on_gpu:
                workers = min(options.hw_decoders or size or _loader_threads(), _MOST_WORKERS)
                made = Pool(workers=workers, queue=_QUEUE, lease_vram=_lease)
            else:
                made = Pool(threads=size, queue=_QUEUE)
            _pools[options.on_gpu] = made
        return _pools[options.on_gpu]


def _loader_threads() -> int:
    from vllm import envs

    return int(envs.VLLM_MEDIA_LOADING_THREAD_COUNT)


def decode(rule: Rule, data: Any, options: DecodeOptions, errors: str = "recover") -> Frames:
    """Decode what a rule chooses, when its turn comes, and wait for it.

    Args:
        rule: see :class:`~telecine.integrations.callback_sampling.RuledRequest`.
        data: the encoded video.
        options: how.
        errors: as for :func:`telecine.load`.

    Returns:
        The frames, in host memory.

    Raises:
        TelecineError: see :func:`telecine.load`.
    """
    # as vLLM's own GPU codecs, through pinned memory; a torch tensor would be copied without it, and its memory on the
    # GPU would stay in torch's cache, outside vLLM's budget
    own = {"out": "numpy"} if options.on_gpu else {"layout": "NCHW"} if options.may_resize else {}
    frames = ask(
        pool_for(options),
        rule,
        data,
        timeout=options.timeout_sec,
        backend="auto",
        device=options.device,
        errors=errors,
        **own,
    )
    return frames.with_layout("NHWC")


def _lease(nbytes: int, device: str) -> AbstractContextManager[object]:
    """GPU memory for a decode, out of vLLM's budget. Waits until others have given back enough.

    Raises:
        LimitError: there can never be enough.
    """
    from vllm.multimodal.gpu_ipc_memory import get_mm_gpu_ipc_pool

    budget = get_mm_gpu_ipc_pool()
    if budget is None:
        return nullcontext()
    try:
        lease: AbstractContextManager[object] = budget.acquire(nbytes)
    except ValueError as error:
        raise LimitError(str(error)) from error
    return lease
