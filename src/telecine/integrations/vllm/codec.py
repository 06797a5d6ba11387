"""The codec ``telecine``: vLLM's sampling classes choose the frames, telecine decodes them.

vLLM imports ``vllm.multimodal.video_decoders.<codec>``, which :mod:`.plugin` sets to this module, and calls its
``decode_<codec>``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from telecine.errors import LimitError
from telecine.frames import Frames
from telecine.index.video_info import VideoInfo
from telecine.integrations.vllm.decode_pool import decode
from telecine.integrations.vllm.options import DecodeOptions
from telecine.pixels.geometry import Size, fit_size
from telecine.sampling.policies import ClipFacts
from telecine.timeline import Timeline

__all__ = ["check_frame_size", "check_request_size", "decode_telecine"]


def decode_telecine(
    loader_cls: Any, data: Any, target: Any, sampling_kwargs: Mapping[str, Any], **options: Any
) -> tuple[Any, Any, list[int], list[int]]:
    """Decode the frames that a sampling class of vLLM chooses. The signature is vLLM's.

    Args:
        loader_cls: the sampling class.
        data: the encoded video.
        target: vLLM's ``VideoTargetMetadata``: num_frames, fps, max_duration.
        sampling_kwargs: arguments for the class's ``compute_frames_index_to_sample``.
        **options: fields of :class:`~telecine.integrations.vllm.options.DecodeOptions`.

    Returns:
        The frames ``uint8 [N, H, W, 3]`` in host memory: an array, or a tensor if the CPU resized them; vLLM's
        ``VideoSourceMetadata``; the indices that the class chose; and the index of each returned frame. Repeats are
        kept, frames that cannot be decoded left out.

    Raises:
        ValueError: the input or an option is wrong.
        TimeoutError: ``timeout_sec`` passed.
    """
    from vllm.multimodal.video_decoders import VideoSourceMetadata

    chosen = DecodeOptions.take_from(dict(options))
    source: Any = None
    indices: list[int] = []

    def choose_frames(info: VideoInfo, timeline: Timeline) -> tuple[list[int], Size]:
        nonlocal source, indices
        check_frame_size(chosen, info)
        facts = ClipFacts.of(timeline)
        source = loader_cls._prepare_source(VideoSourceMetadata(facts.num_frames, facts.fps, facts.duration))
        indices = list(loader_cls.compute_frames_index_to_sample(source=source, target=target, **sampling_kwargs))
        return indices, check_request_size(chosen, loader_cls, len(indices), info)

    frames = decode(choose_frames, data, chosen)
    pictures: Any = frames.data
    if not pictures.flags.c_contiguous:  # processors would copy such an array first, but not a tensor
        import torch

        pictures = torch.from_numpy(pictures)
    return pictures, *_describe_source(frames, source, indices)


def check_frame_size(options: DecodeOptions, info: VideoInfo) -> None:
    """Raise ``ValueError`` if a frame is larger than vLLM or the options allow."""
    from vllm.multimodal.video_decoders import check_frame_pixel_limit

    check_frame_pixel_limit(info.width, info.height)
    options.check_source(info)


def check_request_size(options: DecodeOptions, loader_cls: type, count: int, info: VideoInfo) -> Size:
    """Return the frame size; raise :class:`LimitError` if vLLM does not let one request decode so many bytes."""
    from vllm import envs

    size = options.frame_size(loader_cls, count, info)
    height, width = fit_size(size, info.height, info.width)
    nbytes = count * height * width * 3
    max_bytes = getattr(envs, "VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES", 0)
    if 0 < max_bytes < nbytes:
        raise LimitError(
            f"{count} frames of {width}x{height} are {nbytes} bytes; VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES is "
            f'{max_bytes}. Decode at the size of the model\'s processor, with "fit" or "max_pixels" in '
            "--media-io-kwargs, or ask for fewer frames"
        )
    return size


def _describe_source(frames: Frames, source: Any, indices: list[int]) -> tuple[Any, list[int], list[int]]:
    """Return vLLM's description of the source, the chosen indices, and the index of each returned frame.

    vLLM computes times as index / fps. So a clip of variable rate is described by a virtual constant one, unless all
    its frames are returned: then the model's processor chooses among them, by their true indices.
    """
    if not frames.info.variable_frame_rate or len(frames) == frames.info.num_frames:
        return source, indices, frames.indices.tolist()
    metadata = frames.metadata()
    source = type(source)(metadata["total_num_frames"], metadata["fps"], metadata["duration"])
    return source, indices, metadata["frames_indices"]
