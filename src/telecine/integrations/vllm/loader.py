"""The loader ``telecine``: telecine's own sampling, for models without a sampling class in vLLM."""

from __future__ import annotations

from typing import Any

from telecine.errors import OptionsError
from telecine.frames import Frames
from telecine.index.video_info import VideoInfo
from telecine.integrations.vllm.codec import check_frame_size, check_request_size
from telecine.integrations.vllm.decode_pool import decode
from telecine.integrations.vllm.options import DecodeOptions
from telecine.request import SamplingOptions
from telecine.sampling.policies import KEY_FRAMES, policy_defaults
from telecine.sampling.select import Sampling, select
from telecine.timeline import Timeline

__all__ = ["make_loader"]

_IGNORED = ("frame_recovery", "max_duration")
"""Options of vLLM's own loaders without effect here: lost frames are always left out, and no policy has a duration."""


def make_loader(base: Any) -> Any:
    """Return the subclass of vLLM's ``VideoLoader`` for its registry."""

    class TelecineVideoLoader(base):  # type: ignore[misc]  # vLLM's class is known at run time only
        """Loads videos with telecine, which also chooses the frames."""

        @classmethod
        def load_bytes(cls, data: Any, num_frames: int = -1, **given: Any) -> tuple[Any, dict[str, Any]]:
            """Decode a clip by the options of ``--media-io-kwargs``.

            Args:
                data: the encoded video.
                num_frames: number of frames; -1 for no bound. vLLM always gives one, 32 by default, so it is ignored
                    if the other options choose the frames by themselves.
                **given: sampling options of :func:`telecine.load`, ``errors``, and fields of
                    :class:`~telecine.integrations.vllm.options.DecodeOptions`.

            Returns:
                The frames ``uint8 [N, H, W, 3]`` in host memory, and their metadata for vLLM.

            Raises:
                ValueError: the input or an option is wrong.
            """
            backend, errors = given.pop("backend", "telecine"), given.pop("errors", "recover")
            if backend != "telecine":
                raise OptionsError(
                    f"backend is {backend!r}, but the loader telecine decodes by itself; leave backend out, or leave "
                    "video_backend out to keep the sampling class of the model"
                )
            options = DecodeOptions.take_from(given)
            sampling = _parse_sampling(num_frames, given)

            def choose_frames(info: VideoInfo, timeline: Timeline) -> Any:
                check_frame_size(options, info)
                indices = select(sampling, timeline)
                return indices, check_request_size(options, cls, len(indices), info)

            frames = decode(choose_frames, data, options, errors)
            return frames.data, _metadata(frames, are_sampled=sampling != Sampling())

    return TelecineVideoLoader


def _parse_sampling(num_frames: int, given: dict[str, Any]) -> Sampling:
    known = SamplingOptions.__annotations__
    chosen = {name: value for name, value in given.items() if name not in _IGNORED}
    unknown = sorted(set(chosen) - set(known))
    if unknown:
        raise OptionsError(
            f"the loader telecine has no option {', '.join(unknown)}; to choose frames it has {', '.join(known)}"
        )
    if chosen.get("fps") in (0, -1):
        del chosen["fps"]
    policy = chosen.get("policy")
    if policy is not None and policy != KEY_FRAMES:
        has_count = "num_frames" in policy_defaults(policy)
    else:
        has_count = chosen.get("indices") is None and chosen.get("timestamps") is None
    if has_count and num_frames != -1:
        chosen["num_frames"] = num_frames
    return Sampling(**chosen)


def _metadata(frames: Frames, are_sampled: bool) -> dict[str, Any]:
    """Return the keys that vLLM's own loaders return; others are refused further on."""
    metadata = frames.metadata() | {"video_backend": "telecine"}
    if not are_sampled:
        # every frame goes to the model's processor, which chooses among them by their true indices
        metadata |= {
            "total_num_frames": frames.info.num_frames,
            "fps": frames.info.average_fps,
            "frames_indices": frames.indices.tolist(),
            "do_sample_frames": True,
        }
    return {key: value for key, value in metadata.items() if key not in ("width", "height")}
