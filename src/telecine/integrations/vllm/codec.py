"""The codec ``telecine``: vLLM's own sampling classes choose the frames, telecine decodes them.

vLLM imports ``vllm.multimodal.video_decoders.<codec>`` and calls ``decode_<codec>`` in it; :mod:`.plugin` puts this
module there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from telecine.errors import LimitError
from telecine.frames import Frames
from telecine.index.video_info import VideoInfo
from telecine.integrations.vllm.decode_pool import decode
from telecine.integrations.vllm.options import DecodeOptions
from telecine.pixels.geometry import Size, fit_size
from telecine.sampling.policies import ClipFacts
from telecine.timeline import Timeline

__all__ = ["check_source", "decode_telecine", "size_within_budget"]


def decode_telecine(
    loader_cls: Any, data: Any, target: Any, sampling_kwargs: Mapping[str, Any], **options: Any
) -> tuple[Any, Any, list[int], list[int]]:
    """Decode what a sampling class of vLLM wants. The signature is vLLM's.

    Args:
        loader_cls: the sampling class.
        data: the encoded video.
        target: vLLM's ``VideoTargetMetadata``: num_frames, fps, max_duration.
        sampling_kwargs: for the class's ``compute_frames_index_to_sample``.
        **options: of :class:`~telecine.integrations.vllm.options.DecodeOptions`.

    Returns:
        The frames ``uint8 [N, H, W, 3]`` in host memory, an array, or a tensor where the CPU resized them; vLLM's
        ``VideoSourceMetadata``; the indices that the class asked for; and the index of each frame returned: repeats are
        kept, frames that cannot be decoded left out.

    Raises:
        ValueError: bad input, or wrong options.
        TimeoutError: ``timeout_sec`` passed.
    """
    from vllm.multimodal.video_decoders import VideoSourceMetadata

    chosen = DecodeOptions.take_from(dict(options))
    source: Any = None
    wanted: list[int] = []

    def rule(info: VideoInfo, timeline: Timeline) -> tuple[list[int], Size]:
        nonlocal source, wanted
        check_source(info, chosen)
        facts = ClipFacts.of(timeline)
        source = loader_cls._prepare_source(VideoSourceMetadata(facts.num_frames, facts.fps, facts.duration))
        wanted = list(loader_cls.compute_frames_index_to_sample(source=source, target=target, **sampling_kwargs))
        return wanted, size_within_budget(chosen, loader_cls, len(wanted), info)

    frames = decode(rule, data, chosen)
    source, labels = _labels(frames, source)
    return _as_vllm_takes_them(frames.data), source, wanted, labels


def check_source(info: VideoInfo, options: DecodeOptions) -> None:
    """Refuse pictures that vLLM would refuse, or that the decoders are not made for, before anything is decoded.

    Raises:
        ValueError: they are too large.
    """
    from vllm.multimodal.video_decoders import check_frame_pixel_limit

    check_frame_pixel_limit(info.width, info.height)
    options.check_source(info)


def size_within_budget(options: DecodeOptions, loader_cls: type, count: int, info: VideoInfo) -> Size:
    """The size that the frames are to have, if vLLM lets one request decode so much.

    Raises:
        LimitError: it does not. No memory was taken yet.
    """
    from vllm import envs

    size = options.frame_size(loader_cls, count, info)
    height, width = fit_size(size, info.height, info.width)
    needed = count * height * width * 3
    most = getattr(envs, "VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES", 0)
    if 0 < most < needed:
        raise LimitError(
            f"{count} frames of {width}x{height} are {needed} bytes; VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES is {most}. "
            'Decode at the size that the model takes, with "fit" or "max_pixels" in --media-io-kwargs, or ask for '
            "fewer frames"
        )
    return size


def _as_vllm_takes_them(data: npt.NDArray[np.uint8]) -> Any:
    """The frames; a tensor where their channels lie apart: of an array, processors would bring them together first."""
    if data.flags.c_contiguous:
        return data
    import torch

    return torch.from_numpy(data)


def _labels(frames: Frames, source: Any) -> tuple[Any, list[int]]:
    """What vLLM is told: the source, and the index of each frame in it.

    It computes times as index / fps, so a clip of variable rate is described by a virtual constant one. Not where all
    its frames are returned: vLLM then lets the model's processor choose among them, by their true indices.
    """
    if not frames.info.variable_frame_rate or len(frames) == frames.info.num_frames:
        return source, [int(index) for index in frames.indices]
    told = frames.metadata()
    return type(source)(told["total_num_frames"], told["fps"], told["duration"]), told["frames_indices"]
