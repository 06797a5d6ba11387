"""The decoders that are measured: telecine and its peers, each used as its own users use it.

Every decoder here is a function ``(path, indices) -> uint8 [N, H, W, 3]`` RGB in host memory. ``indices`` ascend.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["PEERS", "TELECINE", "Decode", "Peer", "versions"]

Pixels: TypeAlias = "npt.NDArray[np.uint8]"
Decode: TypeAlias = "Callable[[str, list[int]], Pixels]"


@dataclass(frozen=True)
class Peer:
    """A decoder, used in one way."""

    name: str
    title: str
    """Name in the table."""
    how: str
    """Description of its use, for the report."""
    module: str
    """Module that must be importable."""
    variants: dict[str, Decode] = field(repr=False)
    """Decoders by setting. The fastest one on each clip is measured."""

    def missing(self) -> str | None:
        """Return the reason why it cannot be measured here, or None."""
        try:
            importlib.import_module(self.module)
        except (ImportError, OSError, RuntimeError) as error:
            # torchcodec raises RuntimeError with many lines if it finds no FFmpeg libraries
            return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
        return None


def _telecine(path: str, indices: list[int]) -> Pixels:
    import telecine

    return telecine.load(path, indices=indices, errors="strict").numpy()


def _opencv(path: str, indices: list[int]) -> Pixels:
    """Grab every frame up to the last wanted one and retrieve the wanted ones, as vLLM's OpenCV loader does."""
    import cv2

    capture = cv2.VideoCapture(path)
    width, height = (int(capture.get(key)) for key in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT))
    frames = np.empty((len(indices), height, width, 3), np.uint8)
    rows = {index: row for row, index in enumerate(indices)}
    for index in range(indices[-1] + 1):
        if not capture.grab():
            raise RuntimeError(f"grab() failed at frame {index}")
        if index in rows:
            got, frame = capture.retrieve()
            if not got:
                raise RuntimeError(f"retrieve() failed at frame {index}")
            frames[rows[index]] = cv2.cvtColor(frame, cv2.COLOR_BGR2RGB)
    capture.release()
    return frames


def _torchcodec(seek_mode: str, threads: int) -> Decode:
    def decode(path: str, indices: list[int]) -> Pixels:
        from torchcodec.decoders import VideoDecoder

        decoder = VideoDecoder(path, dimension_order="NHWC", num_ffmpeg_threads=threads, seek_mode=seek_mode)
        frames: Pixels = decoder.get_frames_at(indices).data.numpy()
        return frames

    return decode


def _torchcodec_variants(seek_mode: str) -> dict[str, Decode]:
    return {f"num_ffmpeg_threads={threads}": _torchcodec(seek_mode, threads) for threads in (0, 1, 2)}


def _decord(path: str, indices: list[int]) -> Pixels:
    import decord

    frames: Pixels = decord.VideoReader(path, ctx=decord.cpu(0)).get_batch(indices).asnumpy()
    return frames


def _pyav(thread_type: str | None) -> Decode:
    def decode(path: str, indices: list[int]) -> Pixels:
        import av

        rows = {index: row for row, index in enumerate(indices)}
        with av.open(path) as container:
            stream: Any = container.streams.video[0]
            if thread_type is not None:
                stream.thread_type = thread_type
            frames = np.empty((len(indices), stream.height, stream.width, 3), np.uint8)
            for index, frame in enumerate(container.decode(stream)):
                if index in rows:
                    frames[rows[index]] = frame.to_ndarray(format="rgb24")
                if index == indices[-1]:
                    return frames
        raise RuntimeError(f"the video ended before frame {indices[-1]}")

    return decode


TELECINE = Peer("telecine", "telecine", "load(path, indices=...), default threads", "telecine", {"": _telecine})

PEERS = (
    Peer(
        "opencv",
        "OpenCV",
        "as in vLLM: grab() up to the last wanted frame, retrieve() and cvtColor() of the wanted ones, default threads",
        "cv2",
        {"": _opencv},
    ),
    Peer(
        "torchcodec-exact",
        "TorchCodec exact",
        'get_frames_at(), seek_mode="exact", NHWC, the best of num_ffmpeg_threads 0, 1 and 2',
        "torchcodec.decoders",
        _torchcodec_variants("exact"),
    ),
    Peer(
        "torchcodec-approximate",
        "TorchCodec approximate",
        'the same with seek_mode="approximate"',
        "torchcodec.decoders",
        _torchcodec_variants("approximate"),
    ),
    Peer("decord2", "decord2", "VideoReader(path, cpu(0)).get_batch(), default threads", "decord", {"": _decord}),
    Peer("pyav", "PyAV", "decode() up to the last wanted frame, PyAV's default threads", "av", {"": _pyav(None)}),
    Peer("pyav-auto", "PyAV AUTO", 'the same with thread_type = "AUTO"', "av", {"": _pyav("AUTO")}),
)

_DISTRIBUTIONS = (
    "av",
    "numpy",
    "pillow",
    "opencv-python-headless",
    "opencv-python",
    "torch",
    "torchcodec",
    "decord2",
    "imageio-ffmpeg",
)


def versions() -> dict[str, str | None]:
    """Return the versions of all libraries; None for those that are not installed."""
    import telecine

    found: dict[str, str | None] = {"telecine": telecine.__version__}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    for name, ask in (("av", _ffmpeg_of_pyav), ("opencv", _ffmpeg_of_opencv), ("torchcodec", _ffmpeg_of_torchcodec)):
        try:
            found[f"FFmpeg in {name}"] = ask()
        except (ImportError, OSError, RuntimeError, AttributeError):
            found[f"FFmpeg in {name}"] = None
    return found


def _ffmpeg_of_pyav() -> str:
    import av

    return str(av.ffmpeg_version_info)


def _ffmpeg_of_opencv() -> str:
    import cv2

    said = re.search(r"avcodec:\s+YES \((.+)\)", cv2.getBuildInformation())
    return f"libavcodec {said[1]}" if said else "none"


def _ffmpeg_of_torchcodec() -> str:
    import torchcodec

    return f"system libraries, {torchcodec.ffmpeg_major_version}"
