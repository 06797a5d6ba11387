"""The options of ``--media-io-kwargs '{"video": {...}}'`` that say how to decode.

vLLM drops ``device``, ``pool_size``, ``hw_decoders``, ``max_width`` and ``max_height`` from requests: they decide about
GPU memory, which is reserved when the server starts. So every option here that costs GPU memory has one of these five
names, and no other option has.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any

from telecine.errors import LimitError, OptionsError
from telecine.index.video_info import VideoInfo
from telecine.integrations.processor_sizes import FITS, processor_size
from telecine.pixels.geometry import Fit, Size
from telecine.validation import check_int, format_value, to_float

__all__ = ["STARTUP_ONLY", "DecodeOptions", "default_device", "default_options"]

STARTUP_ONLY = ("device", "pool_size", "hw_decoders", "max_width", "max_height")
"""Options that a request cannot set."""
_FIT_BY_CLASS = {
    "Qwen2VLVideoBackend": "qwen2_vl",
    "Qwen3VLVideoBackend": "qwen3_vl",
    "DynamicVideoBackend": "glm4v",
    "GLM46VVideoBackend": "glm46v",
}
"""Size rules by the name of vLLM's sampling class for the model."""
_FITS_BY_MODEL = ("auto", "qwen")
"""Values of ``fit`` that follow the sampling class."""


def default_device() -> str:
    """Return the device for requests that name none: ``TELECINE_DEVICE``, else the CPU."""
    return os.environ.get("TELECINE_DEVICE") or "cpu"


@dataclass(frozen=True)
class DecodeOptions:
    """The options of one clip other than those that choose frames."""

    device: str = "cpu"
    """Device that decodes: "cpu", "cuda" or "cuda:N". The frames are returned in host memory in any case."""
    pool_size: int | None = None
    """On the CPU, cores for decoding; on a GPU, clips that are decoded at once. The first clip decides."""
    timeout_sec: float = 120.0
    """Seconds for one clip, waiting included; the same as in vLLM's DeepStream codec."""
    hw_decoders: int | None = None
    """On a GPU, the same as ``pool_size``, under PyNvVideoCodec's name."""
    max_width: int | None = None
    """Maximum width of a video in pixels; rotated by 90 degrees it may be the height."""
    max_height: int | None = None
    """Maximum height of a video in pixels."""
    size: Any = None
    """(height, width) of the frames, or the length of their short side."""
    fit: str | None = None
    """Size rule of a model's processor; "auto" and "qwen" follow the sampling class."""
    max_pixels: int | None = None
    """Maximum pixels of a frame; with ``fit``, the budget of its rule."""

    def __post_init__(self) -> None:
        for name in ("pool_size", "hw_decoders", "max_width", "max_height", "max_pixels"):
            value = getattr(self, name)
            if value is not None:
                check_int(name, value, 1)
        if not (to_float(self.timeout_sec) or 0) > 0:
            raise OptionsError(
                f"timeout_sec is {format_value(self.timeout_sec)}; it must be a positive number of seconds"
            )
        if self.fit is not None and self.fit not in (*FITS, *_FITS_BY_MODEL):
            allowed = ", ".join((*_FITS_BY_MODEL, *FITS))
            raise OptionsError(f"fit is {format_value(self.fit)}; it must be one of: {allowed}")
        if self.size is not None and (self.fit is not None or self.max_pixels is not None):
            raise OptionsError("size cannot be combined with fit or max_pixels, which choose the size themselves")
        if (self.max_width is None) is not (self.max_height is None):
            raise OptionsError("max_width and max_height must be set together")

    @classmethod
    def take_from(cls, given: dict[str, Any]) -> DecodeOptions:
        """Remove the options from ``given`` and return them. Raises :class:`OptionsError` if a value is wrong."""
        defaults = default_options()
        taken = {name: given.pop(name) for name in list(given) if name in defaults}
        return cls(**defaults | {name: value for name, value in taken.items() if value is not None})

    @property
    def on_gpu(self) -> bool:
        """True if decoding takes GPU memory."""
        return str(self.device).startswith("cuda")

    @property
    def may_resize(self) -> bool:
        """True if frames may have another size than the video."""
        return (self.size, self.fit, self.max_pixels) != (None, None, None)

    def check_source(self, info: VideoInfo) -> None:
        """Raise :class:`LimitError` if a video is larger than ``max_width`` x ``max_height``, in either orientation."""
        if self.max_width is None or self.max_height is None:
            return
        allowed = sorted((self.max_width, self.max_height))
        if any(side > limit for side, limit in zip(sorted((info.width, info.height)), allowed, strict=True)):
            raise LimitError(
                f"the video is {info.width}x{info.height}; max_width and max_height allow "
                f"{self.max_width}x{self.max_height}. Send a smaller one, or raise them when the server starts"
            )

    def frame_size(self, loader: type, count: int, info: VideoInfo) -> Size:
        """Return the frame size that ``size``, ``fit`` and ``max_pixels`` choose for ``count`` frames of a video.

        ``loader`` is vLLM's sampling class, which ``fit="auto"`` follows.
        """
        if self.size is not None:
            return tuple(self.size) if isinstance(self.size, list) else self.size
        fit = self.fit
        if fit in _FITS_BY_MODEL:
            default = "qwen3_vl" if fit == "qwen" else None
            names = (each.__name__ for each in loader.__mro__)
            fit = next((_FIT_BY_CLASS[name] for name in names if name in _FIT_BY_CLASS), default)
        if fit is not None:
            return processor_size(fit, count, info.height, info.width, self.max_pixels)
        if self.max_pixels is not None and info.height * info.width > self.max_pixels:
            return Fit(max_pixels=self.max_pixels)
        return None


def default_options() -> dict[str, Any]:
    """Return the default of every option, for vLLM's table of codecs."""
    return {field.name: field.default for field in fields(DecodeOptions)} | {"device": default_device()}
