"""Keeps GPU memory within what vLLM reserved when it started.

vLLM marks codecs by name as needing a GPU. The name ``telecine`` needs one only with ``device`` "cuda", so two answers
of vLLM are made to look at the device: whether to reserve memory, and whether a request may choose the codec.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

from telecine.integrations.vllm.options import STARTUP_ONLY, default_device

__all__ = ["configured_for_gpu", "guarded_io", "reserving"]

# a child of vLLM's own logger: others have no handler in its processes
_log = logging.getLogger("vllm.plugins.telecine")
_NAME = "telecine"
_CHOOSERS = ("video_backend", "backend")


def _is_gpu(video_kwargs: Mapping[str, Any]) -> bool:
    return str(video_kwargs.get("device") or default_device()).startswith("cuda")


def configured_for_gpu(video_kwargs: Mapping[str, Any], loader: str | None) -> bool:
    """Whether a server with these options decodes with telecine on a GPU.

    Args:
        video_kwargs: the part "video" of ``--media-io-kwargs``.
        loader: what ``VLLM_VIDEO_LOADER_BACKEND`` says.
    """
    chosen = (video_kwargs.get("video_backend") or loader, video_kwargs.get("backend"))
    return _NAME in chosen and _is_gpu(video_kwargs)


def reserving(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """vLLM's ``MultiModalConfig.use_gpu_video_backend``, which decides whether memory is reserved, knowing us."""

    @functools.wraps(original)
    def use_gpu_video_backend(self: Any) -> bool:
        from vllm import envs

        video_kwargs = self.media_io_kwargs.get("video", {})
        return configured_for_gpu(video_kwargs, envs.VLLM_VIDEO_LOADER_BACKEND) or original(self)

    return use_gpu_video_backend


def guarded_io(base: Any) -> Any:
    """The class whose ``merge_kwargs`` decides what a request may change.

    Args:
        base: vLLM's ``VideoMediaIO``.
    """

    class GuardedVideoMediaIO(base):  # type: ignore[misc]  # vLLM's class is known at run time only
        """Drops from a request what costs GPU memory that was not reserved."""

        @classmethod
        def merge_kwargs(
            cls, default_kwargs: dict[str, Any] | None, runtime_kwargs: dict[str, Any] | None
        ) -> dict[str, Any]:
            fixed = default_kwargs or {}
            asked = {name: value for name, value in (runtime_kwargs or {}).items() if name not in STARTUP_ONLY}
            for name in _CHOOSERS:
                if asked.get(name) == _NAME and fixed.get(name) != _NAME and _is_gpu(fixed):
                    _log.warning(
                        "a request's %s=telecine is ignored: the server decodes on a GPU, and memory for telecine was "
                        "not reserved when it started",
                        name,
                    )
                    del asked[name]
            merged: dict[str, Any] = super().merge_kwargs(default_kwargs, asked)
            return merged

    return GuardedVideoMediaIO
