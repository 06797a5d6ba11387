"""Subclasses of the two sampling classes of vLLM that always decode with OpenCV, to make them follow ``backend``.

Each is registered under the name of its base class, so processors that are bound to the name find it. With any other
codec than telecine they behave as before.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from telecine.integrations.vllm.options import DecodeOptions

__all__ = ["PATCHED", "derive_loader"]

PATCHED: dict[str, dict[str, Any]] = {
    "molmo2": {
        "method": "load_bytes_opencv",
        "fps": "sampling_fps",
        "sampling": ("frame_sample_mode", "max_fps"),
        "video_backend": "telecine",
    },
    "openpangu": {"method": "load_bytes", "fps": "fps", "sampling": (), "video_backend": "telecine_dynamic"},
}
"""Arguments of :func:`derive_loader` by the name in vLLM's registry."""


def derive_loader(base: Any, method: str, fps: str, sampling: tuple[str, ...], video_backend: str) -> Any:
    """Return a subclass of a vLLM sampling class whose ``method`` decodes with telecine if ``backend`` names it.

    Args:
        base: the sampling class. Raises ``AttributeError`` if it has no such method.
        method: name of the class method that decodes.
        fps: parameter of the method that is the sampling rate.
        sampling: parameters of the method that go to ``compute_frames_index_to_sample``.
        video_backend: name of the decoder in the metadata.
    """
    original: Any = getattr(base, method).__func__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def load(cls: Any, data: Any, *args: Any, backend: str = "opencv", **kwargs: Any) -> Any:
        if backend != "telecine":
            return original(cls, data, *args, **kwargs)
        from vllm.multimodal.video_decoders import VideoTargetMetadata

        from telecine.integrations.vllm.codec import decode_telecine

        bound = signature.bind(cls, data, *args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments | kwargs
        duration = given.get("max_duration", -1)
        target = VideoTargetMetadata(num_frames=given["num_frames"], fps=given[fps], max_duration=duration)
        chosen = {name: given[name] for name in sampling}
        options = vars(DecodeOptions.take_from(given))
        frames, source, _, valid = decode_telecine(cls, data, target, chosen, **options)
        metadata = cls.create_hf_metadata(source=source, video_backend=video_backend, valid_frame_indices=valid)
        return frames, metadata

    return type(f"Telecine{base.__name__}", (base,), {method: classmethod(load)})  # type: ignore[arg-type]  # mypy loses the class
