"""Telecine as the video decoder of SGLang, by its plugin framework.

SGLang loads the entry points of the group ``sglang.srt.plugins``, unless ``SGLANG_PLUGINS`` names others. It has no
table of decoders, only hooks that replace a class everywhere. Installing telecine must not change the decoder of a
server, so this plugin does nothing until ``SGLANG_PLUGINS`` names it. Written for SGLang 0.5.23.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np

from telecine.deadline import Deadline
from telecine.errors import DecodeError
from telecine.frames import Frames
from telecine.index.video_info import read_video_info
from telecine.limits import Limits
from telecine.pool import Pool
from telecine.source.source import open_source

__all__ = ["TelecineVideoDecoder", "register"]

# a child of SGLang's logger: other loggers have no handler in its processes
_log = logging.getLogger("sglang.srt.plugins.telecine")
_NAME = "telecine"
_TARGET = "sglang.srt.utils.video_decoder.VideoDecoderWrapper"


def register() -> None:
    """Replace SGLang's ``VideoDecoderWrapper`` if ``SGLANG_PLUGINS`` names telecine. Never raises."""
    if _NAME not in (name.strip() for name in os.environ.get("SGLANG_PLUGINS", "").split(",")):
        _log.debug("telecine is installed but not used: SGLANG_PLUGINS does not name it")
        return
    try:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        HookRegistry.register(_TARGET, TelecineVideoDecoder, HookType.REPLACE)
    except Exception as error:
        _log.warning(
            "telecine is off: SGLang's plugin hooks are not as expected (%s: %s); SGLang keeps its own decoder",
            type(error).__name__,
            error,
        )


class TelecineVideoDecoder:
    """Replacement of SGLang's ``VideoDecoderWrapper``: one video, whose frames are decoded by index.

    The frames of a call come from one decode, on cores that all requests of the process share. A frame that cannot be
    decoded is an error, as SGLang has no way to learn that one is left out.

    Args:
        source: path or bytes.
        device: "cpu" or "cuda".
        num_decode_threads: ignored; a decode takes the cores that are free.
    """

    def __init__(self, source: str | bytes, device: str = "cpu", num_decode_threads: int = 0) -> None:
        self._source: str | bytes | None = source
        self._device = device
        limits, deadline = Limits(), Deadline()
        with open_source(source, limits, deadline) as opened:
            self._info = read_video_info(opened, limits, deadline)

    def __len__(self) -> int:
        return self._info.num_frames

    def __getitem__(self, index: int) -> Any:
        """Return one frame, ``uint8 [H, W, 3]``: a NumPy array on the CPU, a tensor on a GPU."""
        return self.get_frames_at([range(len(self))[index]])[0]

    @property
    def avg_fps(self) -> float:
        """Measured frame rate, per second."""
        return self._info.average_fps

    @property
    def frame_shape(self) -> tuple[int, int]:
        """(height, width) in display pixels."""
        return self._info.height, self._info.width

    def _load(self, indices: Any) -> Frames:
        if self._source is None:
            raise DecodeError("the video decoder is closed")
        indices = np.asarray(indices, np.int64)
        return Pool.default().load(self._source, indices=indices, device=self._device, errors="strict")

    def get_frames_at(self, indices: Any) -> Any:
        """Return frames ``uint8 [N, H, W, 3]`` in the given order: a NumPy array on the CPU, a tensor on a GPU."""
        frames = self._load(indices)
        return frames.data if isinstance(frames.data, np.ndarray) else frames.torch()

    def get_frames_as_tensor(self, indices: Any) -> Any:
        """Return the frames as a tensor; on the CPU in pinned memory if there is a GPU."""
        import torch

        tensor = self._load(indices).torch()
        return tensor.pin_memory() if tensor.device.type == "cpu" and torch.cuda.is_available() else tensor

    @property
    def source_bytes(self) -> bytes | None:
        """The encoded video, from which SGLang takes the audio."""
        if isinstance(self._source, str):
            return Path(self._source).read_bytes() if os.path.isfile(self._source) else None
        return self._source

    def close(self) -> None:
        """Release the video. May be called twice."""
        self._source = None

    def __enter__(self) -> TelecineVideoDecoder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
