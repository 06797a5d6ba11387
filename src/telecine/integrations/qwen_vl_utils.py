"""Telecine as a video reader of qwen-vl-utils, which also resizes while decoding.

    import telecine.integrations.qwen_vl_utils
    telecine.integrations.qwen_vl_utils.install()

After that, ``process_vision_info`` reads videos with telecine. The functions of qwen-vl-utils still decide the number
of frames, the time window and the size. Written for version 0.0.14.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from telecine.errors import BackendUnavailable
from telecine.index.video_info import VideoInfo
from telecine.integrations.callback_sampling import load_with_callback, processor_metadata
from telecine.limits import Limits
from telecine.pool import Pool
from telecine.sampling.policies import ClipFacts
from telecine.timeline import Timeline

__all__ = ["install"]

_NAME = "telecine"


def install(
    *, image_patch_size: int | None = 14, force: bool = True, device: str | None = None, limits: Limits | None = None
) -> None:
    """Register the reader ``telecine``.

    Args:
        image_patch_size: the value that ``process_vision_info`` is called with: 14 for Qwen2.5-VL, 16 for Qwen3-VL.
            The frames then have the size that it would resize them to. None leaves resizing to it.
        force: True to use the reader from now on; else it is used if ``FORCE_QWENVL_VIDEO_READER=telecine`` is set.
        device: as for :func:`telecine.load`.
        limits: as for :func:`telecine.load`.

    Raises:
        BackendUnavailable: qwen-vl-utils is missing, or its version has other internals.
    """
    try:
        from qwen_vl_utils import vision_process as engine

        readers: dict[str, Any] = engine.VIDEO_READER_BACKENDS
        for name in ("smart_nframes", "smart_resize", "calculate_video_frame_range", "get_video_reader_backend"):
            getattr(engine, name)
    except (ImportError, AttributeError) as error:
        raise BackendUnavailable(f"qwen-vl-utils is not as expected ({error}); 0.0.14 is known to work") from error

    readers[_NAME] = functools.partial(_read, engine, image_patch_size, device, limits)
    if force:
        engine.FORCE_QWENVL_VIDEO_READER = _NAME
    # the reader is chosen at the first video and cached
    engine.get_video_reader_backend.cache_clear()


def _read(
    engine: Any, patch_size: int | None, device: str | None, limits: Limits | None, ele: Mapping[str, Any]
) -> tuple[Any, dict[str, Any], float]:
    """Return a tensor ``uint8 [N, 3, H, W]``, its metadata, and the sampling rate."""
    import torch

    rate = 0.0

    def choose_frames(info: VideoInfo, timeline: Timeline) -> Any:
        nonlocal rate
        fps = ClipFacts.of(timeline).fps
        first, last, total = engine.calculate_video_frame_range(ele, info.num_frames, fps)
        count = engine.smart_nframes(ele, total_frames=total, video_fps=fps)
        rate = count / max(total, 1e-6) * fps
        # float32 steps of torch, as in the readers of qwen-vl-utils
        indices = torch.linspace(first, last, count).round().long().numpy()
        size = None if patch_size is None else _size(engine, ele, patch_size, count, info.height, info.width)
        return indices, size

    source = ele["video"]
    if source.startswith("file://"):
        source = unquote(source.removeprefix("file://"))
    frames = load_with_callback(Pool.default(), choose_frames, source, device=device, limits=limits)
    names = ("fps", "frames_indices", "total_num_frames", "video_backend")
    metadata = {name: value for name, value in processor_metadata(frames).items() if name in names}
    return frames.torch().permute(0, 3, 1, 2), metadata, rate


def _size(engine: Any, ele: Mapping[str, Any], patch_size: int, count: int, height: int, width: int) -> tuple[int, int]:
    """Return the (height, width) that ``fetch_video`` would resize to, by its own constants."""
    unit = patch_size * engine.SPATIAL_MERGE_SIZE
    bounds = {}
    if "resized_height" in ele and "resized_width" in ele:
        height, width = ele["resized_height"], ele["resized_width"]
    else:
        least = ele.get("min_pixels", engine.VIDEO_MIN_TOKEN_NUM * unit**2)
        of_all = ele.get("total_pixels", engine.MODEL_SEQ_LEN * unit**2 * 0.9)
        most = max(min(engine.VIDEO_MAX_TOKEN_NUM * unit**2, of_all / count * engine.FRAME_FACTOR), int(least * 1.05))
        bounds = {"min_pixels": least, "max_pixels": min(ele.get("max_pixels", most), most)}
    new_height, new_width = engine.smart_resize(height, width, factor=unit, **bounds)
    return int(new_height), int(new_width)
