"""The loader ``telecine``: telecine's own sampling, for models without a sampling class in vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from telecine.errors import OptionsError
from telecine.frames import Frames
from telecine.index.video_info import VideoInfo
from telecine.integrations.vllm.codec import check_source, size_within_budget
from telecine.integrations.vllm.decode_pool import decode
from telecine.integrations.vllm.options import DecodeOptions
from telecine.request import SamplingOptions
from telecine.sampling.policies import KEY_FRAMES, policy_defaults
from telecine.sampling.select import Sampling, select
from telecine.timeline import Timeline

__all__ = ["load_frames", "make_loader"]

_SAMPLING = tuple(SamplingOptions.__annotations__)
_OF_EVERY_LOADER = ("frame_recovery", "max_duration")
"""What vLLM's own loaders take beside. Broken frames are left out in any case, and no rule here has a duration."""


def make_loader(base: Any) -> Any:
    """The class that vLLM's registry holds.

    Args:
        base: vLLM's ``VideoLoader``.
    """

    class TelecineVideoLoader(base):  # type: ignore[misc]  # vLLM's class is known at run time only
        """Loads videos with telecine, which also chooses the frames."""

        @classmethod
        def load_bytes(cls, data: Any, num_frames: int = -1, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
            """See :func:`load_frames`."""
            return load_frames(data, num_frames, kwargs, cls)

    return TelecineVideoLoader


def load_frames(
    data: Any, num_frames: int, given: Mapping[str, Any], loader: type = object
) -> tuple[Any, dict[str, Any]]:
    """Decode a clip as ``--media-io-kwargs`` says.

    Args:
        data: the encoded video.
        num_frames: so many frames; -1 for no bound. vLLM always gives one, 32 unless told otherwise, so it is left out
            where the other options choose the frames by themselves.
        given: sampling options of :func:`telecine.load`, ``errors``, and those of
            :class:`~telecine.integrations.vllm.options.DecodeOptions`.
        loader: whose size rule ``fit="auto"`` means.

    Returns:
        The frames ``uint8 [N, H, W, 3]`` in host memory, and what vLLM wants to know of them.

    Raises:
        ValueError: bad input, or wrong options.
    """
    rest = {name: value for name, value in given.items() if name not in _OF_EVERY_LOADER}
    if rest.pop("backend", "telecine") != "telecine":
        raise OptionsError(
            f"backend is {given['backend']!r}, but the loader telecine decodes by itself; leave backend out, or leave "
            "video_backend out to keep the model's own choice of frames"
        )
    options = DecodeOptions.take_from(rest)
    errors = rest.pop("errors", "recover")
    sampling = Sampling(**_sampling(num_frames, rest))

    def rule(info: VideoInfo, timeline: Timeline) -> Any:
        check_source(info, options)
        wanted = select(sampling, timeline)
        return wanted, size_within_budget(options, loader, len(wanted), info)

    frames = decode(rule, data, options, errors)
    return frames.data, _metadata(frames, chosen=sampling != Sampling())


def _sampling(num_frames: int, given: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(given) - set(_SAMPLING))
    if unknown:
        raise OptionsError(
            f"the loader telecine has no option {', '.join(unknown)}; to choose frames it has {', '.join(_SAMPLING)}"
        )
    chosen = dict(given)
    if not chosen.get("fps") or chosen["fps"] == -1:
        chosen.pop("fps", None)
    policy = chosen.get("policy")
    if policy is not None and policy != KEY_FRAMES:
        counts = "num_frames" in policy_defaults(policy)
    else:
        counts = chosen.get("indices") is None and chosen.get("timestamps") is None
    if counts and num_frames != -1:
        chosen["num_frames"] = num_frames
    return chosen


def _metadata(frames: Frames, chosen: bool) -> dict[str, Any]:
    """What vLLM's own loaders tell, key by key; anything else is refused further on."""
    told = frames.metadata()
    info = frames.info
    if not chosen:
        # every frame goes to the model's processor, which chooses among them by their true indices
        told |= {
            "total_num_frames": info.num_frames,
            "fps": info.average_fps,
            "frames_indices": [int(index) for index in frames.indices],
            "do_sample_frames": True,
        }
    keys = ("total_num_frames", "fps", "duration", "video_backend", "frames_indices", "do_sample_frames")
    return {key: told[key] for key in keys} | {"video_backend": "telecine"}
