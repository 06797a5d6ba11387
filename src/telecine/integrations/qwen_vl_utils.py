"""Telecine as a video reader of qwen-vl-utils, with its resize done while decoding.

    import telecine.integrations.qwen_vl_utils
    telecine.integrations.qwen_vl_utils.install()

From then on ``process_vision_info`` reads videos with telecine. The count of frames, the window and the size are
decided by the functions of qwen-vl-utils itself. Read from version 0.0.14.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from telecine.errors import BackendUnavailable
from telecine.index.video_info import VideoInfo
from telecine.integrations.callback_sampling import ask
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
        image_patch_size: what ``process_vision_info`` is called with: 14 for Qwen2.5-VL, 16 for Qwen3-VL. The frames
            then have the size that it would resize them to. None leaves resizing to it.
        force: use the reader from now on. Otherwise it is used where ``FORCE_QWENVL_VIDEO_READER=telecine`` is set.
        device: as for :func:`telecine.load`.
        limits: likewise.

    Raises:
        BackendUnavailable: qwen-vl-utils is missing, or is not as expected.
    """
    try:
        from qwen_vl_utils import vision_process as engine

        readers: dict[str, Any] = engine.VIDEO_READER_BACKENDS
        for name in ("smart_nframes", "smart_resize", "calculate_video_frame_range", "get_video_reader_backend"):
            getattr(engine, name)
    except (ImportError, AttributeError) as error:
        raise BackendUnavailable(f"qwen-vl-utils is not as expected ({error}); 0.0.14 is known to work") from error

    def read(ele: Mapping[str, Any]) -> tuple[Any, dict[str, Any], float]:
        return _read(engine, ele, image_patch_size, device, limits)

    readers[_NAME] = read
    if force:
        engine.FORCE_QWENVL_VIDEO_READER = _NAME
    # the choice is remembered from the first video on
    engine.get_video_reader_backend.cache_clear()


def _read(
    engine: Any, ele: Mapping[str, Any], patch_size: int | None, device: str | None, limits: Limits | None
) -> tuple[Any, dict[str, Any], float]:
    """A reader as the table of qwen-vl-utils has it.

    Returns:
        The frames ``uint8 [N, 3, H, W]`` as a tensor, their metadata, and the rate that they were chosen at.
    """
    import torch

    rate = 0.0

    def rule(info: VideoInfo, timeline: Timeline) -> Any:
        nonlocal rate
        fps = ClipFacts.of(timeline).fps
        first, last, total = engine.calculate_video_frame_range(ele, info.num_frames, fps)
        count = engine.smart_nframes(ele, total_frames=total, video_fps=fps)
        rate = count / max(total, 1e-6) * fps
        # torch's float32 steps, as every reader there has them
        wanted = torch.linspace(first, last, count).round().long().numpy()
        size = None if patch_size is None else _size(engine, ele, patch_size, count, info.height, info.width)
        return wanted, size

    source = ele["video"]
    if source.startswith("file://"):
        source = unquote(source.removeprefix("file://"))
    frames = ask(Pool.default(), rule, source, device=device, limits=limits)
    told = frames.metadata()
    metadata = {name: told[name] for name in ("fps", "frames_indices", "total_num_frames")} | {"video_backend": _NAME}
    if not frames.info.variable_frame_rate:
        metadata["fps"] = ClipFacts.of(frames.timeline).fps
    return frames.torch().permute(0, 3, 1, 2), metadata, rate


def _size(engine: Any, ele: Mapping[str, Any], patch_size: int, count: int, height: int, width: int) -> tuple[int, int]:
    """The (height, width) that ``fetch_video`` would resize to, by its own constants."""
    unit = patch_size * engine.SPATIAL_MERGE_SIZE
    if "resized_height" in ele and "resized_width" in ele:
        tall, wide = engine.smart_resize(ele["resized_height"], ele["resized_width"], factor=unit)
        return int(tall), int(wide)
    least = ele.get("min_pixels", engine.VIDEO_MIN_TOKEN_NUM * unit**2)
    of_all = ele.get("total_pixels", engine.MODEL_SEQ_LEN * unit**2 * 0.9)
    most = max(min(engine.VIDEO_MAX_TOKEN_NUM * unit**2, of_all / count * engine.FRAME_FACTOR), int(least * 1.05))
    tall, wide = engine.smart_resize(
        height, width, factor=unit, min_pixels=least, max_pixels=min(ele.get("max_pixels", most), most)
    )
    return int(tall), int(wide)
