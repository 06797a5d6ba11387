"""vLLM's two sampling classes that decode with OpenCV whatever ``backend`` says, made to listen to it.

A class of each is derived and registered under the same name, so that the processors bound to the name find it. With
any other codec than telecine they behave as before.
"""

from __future__ import annotations

from typing import Any

from telecine.integrations.vllm.options import DecodeOptions

__all__ = ["WRAPPERS"]


def _decoded(cls: Any, data: Any, target: Any, sampling: dict[str, Any], given: dict[str, Any], suffix: str) -> Any:
    from telecine.integrations.vllm.codec import decode_telecine

    options = vars(DecodeOptions.take_from(given))
    frames, source, _, labels = decode_telecine(cls, data, target, sampling, **options)
    return frames, cls.create_hf_metadata(source=source, video_backend=f"telecine{suffix}", valid_frame_indices=labels)


def _molmo2(base: Any) -> Any:
    if not hasattr(base, "load_bytes_opencv"):
        raise AttributeError("its load_bytes_opencv is gone")

    class TelecineMolmo2(base):  # type: ignore[misc]  # vLLM's class is known at run time only
        @classmethod
        def load_bytes_opencv(
            cls,
            data: Any,
            frame_sample_mode: str | None = None,
            num_frames: int = -1,
            max_fps: int = 2,
            sampling_fps: int = 2,
            frame_recovery: bool = False,
            backend: str = "opencv",
            **kwargs: Any,
        ) -> Any:
            if backend != "telecine":
                return super().load_bytes_opencv(
                    data, frame_sample_mode, num_frames, max_fps, sampling_fps, frame_recovery, **kwargs
                )
            from vllm.multimodal.video_decoders import VideoTargetMetadata

            target = VideoTargetMetadata(num_frames=num_frames, fps=sampling_fps, max_duration=-1)
            sampling = {"frame_sample_mode": frame_sample_mode, "max_fps": max_fps}
            return _decoded(cls, data, target, sampling, kwargs, "")

    return TelecineMolmo2


def _openpangu(base: Any) -> Any:
    class TelecineOpenPangu(base):  # type: ignore[misc]  # vLLM's class is known at run time only
        @classmethod
        def load_bytes(
            cls,
            data: Any,
            num_frames: int = -1,
            fps: int = 2,
            max_duration: int = 300,
            frame_recovery: bool = False,
            backend: str = "opencv",
            **kwargs: Any,
        ) -> Any:
            if backend != "telecine":
                return super().load_bytes(data, num_frames, fps, max_duration, frame_recovery, **kwargs)
            from vllm.multimodal.video_decoders import VideoTargetMetadata

            target = VideoTargetMetadata(num_frames=num_frames, fps=fps, max_duration=max_duration)
            return _decoded(cls, data, target, {}, kwargs, "_dynamic")

    return TelecineOpenPangu


WRAPPERS = {"molmo2": _molmo2, "openpangu": _openpangu}
"""Name in vLLM's registry -> what derives the class."""
