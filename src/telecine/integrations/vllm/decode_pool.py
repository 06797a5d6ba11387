"""The pools that decode all clips of a vLLM process, within its cores, its memory and vLLM's budget of GPU memory.

vLLM calls a codec from its own threads, 8 by default on any machine. Eight decoders on two cores finish no sooner than
two, and take four times the memory. So each of these threads submits its clip to a :class:`telecine.pool.Pool`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from telecine.errors import BackendUnavailable, LimitError
from telecine.frames import Frames
from telecine.integrations.callback_sampling import ChooseFrames, load_with_callback
from telecine.integrations.vllm.options import DecodeOptions
from telecine.metrics import enable_prometheus
from telecine.pool import Pool

__all__ = ["decode", "pool_for"]

_MAX_WORKERS = 16
"""Maximum number of workers; vLLM's DeepStream codec has the same."""
_MAX_QUEUED = 100_000
"""vLLM bounds the clips itself: not more than its loader has threads."""

_pools: dict[bool, Pool] = {}
"""Pools by :attr:`DecodeOptions.on_gpu`. They are empty in a forked child."""


def pool_for(options: DecodeOptions) -> Pool:
    """Return the pool of this process. The first clip sets its size: see ``pool_size`` in docs/vllm.md."""
    pool = _pools.get(options.on_gpu)
    # without a lock, which a fork could leave held: a pool that is made twice has started nothing
    return pool or _pools.setdefault(options.on_gpu, _make_pool(options))


def _make_pool(options: DecodeOptions) -> Pool:
    with suppress(BackendUnavailable):
        enable_prometheus()
    if not options.on_gpu:
        return Pool(threads=options.pool_size, queue=_MAX_QUEUED)
    from vllm import envs

    workers = options.hw_decoders or options.pool_size or int(envs.VLLM_MEDIA_LOADING_THREAD_COUNT)
    return Pool(workers=min(workers, _MAX_WORKERS), queue=_MAX_QUEUED, lease_vram=_lease_vram)


def decode(choose_frames: ChooseFrames, data: Any, options: DecodeOptions, errors: str = "recover") -> Frames:
    """Decode the frames that a function chooses, into host memory. Errors as for :func:`telecine.load`."""
    # "numpy" goes through pinned memory, as vLLM's own GPU codecs do; a torch tensor would be copied without it, and
    # its GPU memory would stay in torch's cache, outside vLLM's budget
    output = {"out": "numpy"} if options.on_gpu else {"layout": "NCHW"} if options.may_resize else {}
    frames = load_with_callback(
        pool_for(options), choose_frames, data, timeout=options.timeout_sec, device=options.device, backend="auto",
        errors=errors, **output,
    )  # fmt: skip
    return frames.with_layout("NHWC")


def _lease_vram(nbytes: int, device: str) -> AbstractContextManager[object]:
    """Lease GPU memory from vLLM's budget; wait until it is free. Raises :class:`LimitError` if it is too much."""
    from vllm.multimodal.gpu_ipc_memory import get_mm_gpu_ipc_pool

    budget = get_mm_gpu_ipc_pool()
    try:
        lease: AbstractContextManager[object] = nullcontext() if budget is None else budget.acquire(nbytes)
    except ValueError as error:
        raise LimitError(str(error)) from error
    return lease
