"""Telecine as the video decoder of transformers.

    import telecine.integrations.transformers
    telecine.integrations.transformers.install()

After that, ``load_video`` and every video processor decode with telecine. The processor still chooses the frames: its
``sample_indices_fn`` is called. Tested with transformers 5.20; the source of 5.24 was read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from telecine.errors import BackendUnavailable
from telecine.index.video_info import VideoInfo
from telecine.integrations.callback_sampling import load_with_callback, processor_metadata
from telecine.integrations.processor_sizes import processor_size
from telecine.limits import Limits
from telecine.pool import Pool
from telecine.sampling.policies import ClipFacts
from telecine.timeline import Timeline

__all__ = ["install"]

_DECODERS = ("telecine", "torchcodec", "pyav")
"""Names of decoders that become telecine: its own, that of the processors, and the default of ``load_video``."""


def install(
    *, fit: str | None = None, max_pixels: int | None = None, device: str | None = None, limits: Limits | None = None
) -> Callable[[], None]:
    """Make telecine the decoder of ``load_video`` and of the video processors of this process.

    Other decoders that are named explicitly, as in ``load_video(..., backend="opencv")``, are not replaced.

    Args:
        fit: processor whose frame size to decode at, such as "qwen3_vl"; see
            :data:`telecine.integrations.processor_sizes.FITS`. Default: the size of the video.
        max_pixels: the processor's budget, ``size["longest_edge"]``, if it is not that of the released checkpoints.
        device: as for :func:`telecine.load`.
        limits: as for :func:`telecine.load`. They hold for URLs given to processors; ``load_video`` fetches by itself.

    Returns:
        A function that restores the previous decoders.

    Raises:
        BackendUnavailable: transformers is missing, or its version has other internals.
    """
    try:
        from transformers import video_processing_utils, video_utils

        decoders: dict[str, Any] = video_utils.VIDEO_DECODERS
        mixin = video_processing_utils.VideoProcessorMixin
        original_fetch = mixin.fetch_videos
    except (ImportError, AttributeError) as error:
        raise BackendUnavailable(f"transformers is not as expected ({error}); 5.20 is known to work") from error
    reader = functools.partial(_read, fit, max_pixels, device, limits)
    before = dict(decoders)

    def fetch_videos(self: Any, video_url_or_urls: Any, sample_indices_fn: Any = None) -> Any:
        if isinstance(video_url_or_urls, list):
            each = [fetch_videos(self, video, sample_indices_fn) for video in video_url_or_urls]
            return list(zip(*each, strict=True))
        return reader(video_url_or_urls, sample_indices_fn)

    def undo() -> None:
        mixin.fetch_videos = original_fetch
        for name in _DECODERS:
            decoders.pop(name, None)
        decoders.update({name: before[name] for name in _DECODERS if name in before})

    decoders.update(dict.fromkeys(_DECODERS, reader))
    mixin.fetch_videos = fetch_videos
    return undo


def _read(
    fit: str | None, max_pixels: int | None, device: str | None, limits: Limits | None, /,
    video: Any, sample_indices_fn: Callable[..., Any] | None = None, **kwargs: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Return frames ``uint8 [N, H, W, 3]`` and ``VideoMetadata``, as the decoders in transformers' table do."""
    from transformers.video_utils import VideoMetadata

    device = kwargs.get("device") or device

    def choose_frames(info: VideoInfo, timeline: Timeline) -> Any:
        metadata = VideoMetadata(
            total_num_frames=info.num_frames,
            fps=ClipFacts.of(timeline).fps or None,
            duration=info.duration,
            video_backend="telecine",
            height=info.height,
            width=info.width,
        )
        chosen = sample_indices_fn(metadata=metadata, **kwargs) if sample_indices_fn else range(info.num_frames)
        indices = np.asarray(chosen).astype(np.int64)  # of an array, a tensor or a list
        size = None if fit is None else processor_size(fit, len(indices), info.height, info.width, max_pixels)
        return indices, size

    frames = load_with_callback(Pool.default(), choose_frames, video, device=device and str(device), limits=limits)
    metadata = processor_metadata(frames)
    del metadata["do_sample_frames"]
    return frames.for_processor()[0], VideoMetadata(**metadata | {"fps": metadata["fps"] or None})
