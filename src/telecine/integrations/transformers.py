"""Telecine as the video decoder of transformers.

    import telecine.integrations.transformers
    telecine.integrations.transformers.install()

From then on ``load_video`` and every video processor decode with telecine. Which frames is still decided by the
processor: its ``sample_indices_fn`` is asked. Run with transformers 5.20; 5.24 was read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from telecine.errors import BackendUnavailable
from telecine.frames import Frames
from telecine.index.video_info import VideoInfo
from telecine.integrations.callback_sampling import ask
from telecine.integrations.processor_sizes import processor_size
from telecine.limits import Limits
from telecine.pool import Pool
from telecine.sampling.policies import ClipFacts
from telecine.timeline import Timeline

__all__ = ["install", "make_reader"]

_REPLACED = ("telecine", "torchcodec", "pyav")
"""Names of decoders that become telecine: its own, the one that processors use, and the default of ``load_video``."""


def install(
    *, fit: str | None = None, max_pixels: int | None = None, device: str | None = None, limits: Limits | None = None
) -> Callable[[], None]:
    """Make telecine the decoder of ``load_video`` and of the video processors of this process.

    ``load_video(..., backend="opencv")``, and other backends named explicitly, stay what they are.

    Args:
        fit: decode at the size that a model's processor makes: "qwen3_vl"; see
            :data:`telecine.integrations.processor_sizes.FITS`. The video's own size when omitted.
        max_pixels: the processor's budget, ``size["longest_edge"]``, where it is not that of the released checkpoints.
        device: as for :func:`telecine.load`.
        limits: likewise. They hold for URLs given to processors; ``load_video`` fetches by itself.

    Returns:
        A function that undoes it.

    Raises:
        BackendUnavailable: transformers is missing, or is not as expected.
    """
    try:
        from transformers import video_processing_utils, video_utils

        decoders: dict[str, Any] = video_utils.VIDEO_DECODERS
        mixin = video_processing_utils.VideoProcessorMixin
        fetch = mixin.fetch_videos
    except (ImportError, AttributeError) as error:
        raise BackendUnavailable(
            f"transformers is not as expected ({error}); this was run with 5.20, and 5.24 was read"
        ) from error
    reader = make_reader(fit=fit, max_pixels=max_pixels, device=device, limits=limits)
    before = {name: decoders.get(name) for name in _REPLACED}

    def fetch_videos(self: Any, video_url_or_urls: Any, sample_indices_fn: Any = None) -> Any:
        if isinstance(video_url_or_urls, list):
            each = [fetch_videos(self, video, sample_indices_fn) for video in video_url_or_urls]
            return list(zip(*each, strict=True))
        return reader(video_url_or_urls, sample_indices_fn)

    def undo() -> None:
        mixin.fetch_videos = fetch
        for name, decoder in before.items():
            if decoder is None:
                decoders.pop(name, None)
            else:
                decoders[name] = decoder

    decoders.update(dict.fromkeys(_REPLACED, reader))
    mixin.fetch_videos = fetch_videos
    return undo


def make_reader(
    *, fit: str | None = None, max_pixels: int | None = None, device: str | None = None, limits: Limits | None = None
) -> Callable[..., tuple[Any, Any]]:
    """A function as transformers' table of decoders has it; arguments as for :func:`install`.

    Returns:
        ``read(video, sample_indices_fn, **kwargs) -> (frames, VideoMetadata)``: frames are ``uint8 [N, H, W, 3]``.
    """

    def read(video: Any, sample_indices_fn: Callable[..., Any] | None = None, **kwargs: Any) -> tuple[Any, Any]:
        from transformers.video_utils import VideoMetadata

        where = kwargs.get("device") or device

        def rule(info: VideoInfo, timeline: Timeline) -> Any:
            told = VideoMetadata(**_facts(info, timeline))
            chosen: Any = range(info.num_frames)
            if sample_indices_fn is not None:
                chosen = sample_indices_fn(metadata=told, **kwargs)
            # arrays, tensors and lists of numbers alike
            wanted = np.asarray(chosen).astype(np.int64)
            if fit is None:
                return wanted, None
            return wanted, processor_size(fit, len(wanted), info.height, info.width, max_pixels)

        frames = ask(Pool.default(), rule, video, device=where and str(where), limits=limits)
        return frames.for_processor()[0], VideoMetadata(**_labels(frames))

    return read


def _facts(info: VideoInfo, timeline: Timeline) -> dict[str, Any]:
    return {
        "total_num_frames": info.num_frames,
        "fps": ClipFacts.of(timeline).fps or None,
        "duration": info.duration,
        "video_backend": "telecine",
        "height": info.height,
        "width": info.width,
    }


def _labels(frames: Frames) -> Mapping[str, Any]:
    """A clip of variable rate is described by a virtual constant one: processors compute times as index / fps."""
    if frames.info.variable_frame_rate:
        told = frames.metadata()
        del told["do_sample_frames"]
        return told
    return _facts(frames.info, frames.timeline) | {"frames_indices": [int(index) for index in frames.indices]}
