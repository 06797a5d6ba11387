"""What ``--media-io-kwargs '{"video": {...}}'`` may say to telecine, beside which frames are wanted.

vLLM drops ``device``, ``pool_size``, ``hw_decoders``, ``max_width`` and ``max_height`` from what a request says: they
decide about GPU memory, which is reserved when the server starts. So everything here that costs such memory goes by one
of these five names, and nothing else does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from telecine.errors import LimitError, OptionsError
from telecine.index.video_info import VideoInfo
from telecine.integrations.processor_sizes import FITS, processor_size
from telecine.pixels.geometry import Fit, Size
from telecine.validation import format_value, to_float, to_int

__all__ = ["STARTUP_ONLY", "DecodeOptions", "default_device", "defaults"]

STARTUP_ONLY = ("device", "pool_size", "hw_decoders", "max_width", "max_height")
"""Options that a request cannot set."""
_TIMEOUT = 120.0
"""Seconds; as vLLM's DeepStream codec has it."""
_BY_CLASS = {
    "Qwen2VLVideoBackend": "qwen2_vl",
    "Qwen3VLVideoBackend": "qwen3_vl",
    "DynamicVideoBackend": "glm4v",
    "GLM46VVideoBackend": "glm46v",
}
"""vLLM's sampling classes and the size rules of the models that they are for."""
_FOLLOWS_THE_MODEL = ("auto", "qwen")


def default_device() -> str:
    """Where decoding happens when nobody says: ``TELECINE_DEVICE``, else the CPU."""
    return os.environ.get("TELECINE_DEVICE") or "cpu"


@dataclass(frozen=True)
class DecodeOptions:
    """How the frames are decoded, whichever they are."""

    device: str = "cpu"
    """"cpu", "cuda" or "cuda:N": what decodes. The frames come back in host memory in any case."""
    pool_size: int | None = None
    """How much is decoded at a time; see :mod:`telecine.integrations.vllm.decode_pool`. The first clip decides."""
    timeout_sec: float = _TIMEOUT
    """Seconds for one clip, waiting included."""
    hw_decoders: int | None = None
    """On a GPU, the same as ``pool_size``, under PyNvVideoCodec's name."""
    max_width: int | None = None
    """Width of a video at most, pixels; turned by 90 degrees it counts as well."""
    max_height: int | None = None
    """Height of a video at most, pixels."""
    size: Any = None
    """(height, width) of the frames, or the length of their short side."""
    fit: str | None = None
    """The size that a model's processor makes; see :data:`telecine.integrations.processor_sizes.FITS`."""
    max_pixels: int | None = None
    """Pixels of a frame at most; with ``fit``, the budget of its rule."""

    def __post_init__(self) -> None:
        for name in ("pool_size", "hw_decoders", "max_width", "max_height", "max_pixels"):
            value = getattr(self, name)
            if value is not None and (to_int(value) or 0) < 1:
                raise OptionsError(f"{name} is {format_value(value)}; it must be a whole number from 1 on")
        if not (to_float(self.timeout_sec) or 0) > 0:
            raise OptionsError(
                f"timeout_sec is {format_value(self.timeout_sec)}; it must be a positive number of seconds"
            )
        if self.fit is not None and self.fit not in (*FITS, *_FOLLOWS_THE_MODEL):
            allowed = ", ".join((*_FOLLOWS_THE_MODEL, *FITS))
            raise OptionsError(f"fit is {format_value(self.fit)}; it must be one of: {allowed}")
        if self.size is not None and (self.fit is not None or self.max_pixels is not None):
            raise OptionsError("size goes neither with fit nor with max_pixels, which choose the size by themselves")
        if (self.max_width is None) is not (self.max_height is None):
            raise OptionsError("max_width and max_height must be set together")

    @classmethod
    def take_from(cls, given: dict[str, Any]) -> DecodeOptions:
        """The options in ``given``, which are removed from it.

        Raises:
            OptionsError: a value is not allowed.
        """
        known = {field.name for field in fields(cls)}
        taken = {name: given.pop(name) for name in list(given) if name in known}
        return cls(**defaults() | {name: value for name, value in taken.items() if value is not None})

    @property
    def on_gpu(self) -> bool:
        """Whether decoding takes memory of a GPU."""
        return str(self.device).startswith("cuda")

    @property
    def may_resize(self) -> bool:
        """Whether frames can come out at another size than the video's."""
        return (self.size, self.fit, self.max_pixels) != (None, None, None)

    def check_source(self, info: VideoInfo) -> None:
        """Refuse a video that is larger than the decoders were configured for.

        Raises:
            LimitError: it is.
        """
        if self.max_width is None or self.max_height is None:
            return
        allowed = sorted((self.max_width, self.max_height))
        if any(side > most for side, most in zip(sorted((info.width, info.height)), allowed, strict=True)):
            raise LimitError(
                f"the video is {info.width}x{info.height}; max_width and max_height allow "
                f"{self.max_width}x{self.max_height}. Send a smaller one, or raise them when the server starts"
            )

    def frame_size(self, loader: type, count: int, info: VideoInfo) -> Size:
        """What ``size``, ``fit`` and ``max_pixels`` mean for a clip.

        Args:
            loader: vLLM's class that chose the frames; "auto" follows it.
            count: frames that it chose.
            info: of the video.
        """
        if self.size is not None:
            return tuple(self.size) if isinstance(self.size, list) else self.size
        fit = self.fit
        if fit in _FOLLOWS_THE_MODEL:
            fit = next((_BY_CLASS[each.__name__] for each in loader.__mro__ if each.__name__ in _BY_CLASS), None)
            if fit is None and self.fit == "qwen":
                fit = "qwen3_vl"
        if fit is not None:
            return processor_size(fit, count, info.height, info.width, self.max_pixels)
        if self.max_pixels is not None and info.height * info.width > self.max_pixels:
            return Fit(max_pixels=self.max_pixels)
        return None


def defaults() -> dict[str, Any]:
    """Every option with its default, as vLLM's table of codecs wants them."""
    values: Mapping[str, Any] = {field.name: field.default for field in fields(DecodeOptions)}
    return dict(values) | {"device": default_device()}
