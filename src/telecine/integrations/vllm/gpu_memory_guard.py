"""Keep GPU memory within the amount that vLLM reserved when it started.

vLLM marks codecs as GPU codecs by name. ``telecine`` is one only with the ``device`` "cuda". So two functions of vLLM
are extended to look at the device: the one that decides about the reservation, and the one that decides what a request
may change.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

from telecine.integrations.vllm.options import STARTUP_ONLY, default_device

__all__ = ["extend_reservation", "guard_media_io", "uses_gpu"]

# a child of vLLM's logger: other loggers have no handler in its processes
_log = logging.getLogger("vllm.plugins.telecine")
_NAME = "telecine"
_CHOOSERS = ("video_backend", "backend")


def _is_gpu(video_kwargs: Mapping[str, Any]) -> bool:
    return str(video_kwargs.get("device") or default_device()).startswith("cuda")


def uses_gpu(video_kwargs: Mapping[str, Any], loader: str | None) -> bool:
    """Return True if a server with these ``--media-io-kwargs`` for videos, and this loader, uses telecine on a GPU.

    ``loader`` is the value of ``VLLM_VIDEO_LOADER_BACKEND``.
    """
    chosen = (video_kwargs.get("video_backend") or loader, video_kwargs.get("backend"))
    return _NAME in chosen and _is_gpu(video_kwargs)


def extend_reservation(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Extend ``MultiModalConfig.use_gpu_video_backend``, which decides if GPU memory is reserved, to telecine."""

    @functools.wraps(original)
    def use_gpu_video_backend(self: Any) -> bool:
        from vllm import envs

        return uses_gpu(self.media_io_kwargs.get("video", {}), envs.VLLM_VIDEO_LOADER_BACKEND) or original(self)

    return use_gpu_video_backend


def guard_media_io(base: Any) -> Any:
    """Return a subclass of vLLM's ``VideoMediaIO`` whose requests cannot take GPU memory that was not reserved."""

    class GuardedVideoMediaIO(base):  # type: ignore[misc]  # vLLM's class is known at run time only
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
