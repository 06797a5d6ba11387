"""The ffmpeg command line of imageio-ffmpeg, which makes the clips and the reference frames.

It is another build of FFmpeg than the one inside PyAV, and is used through another interface, so that it does not
repeat errors of telecine. There is no ffprobe; the times are those that ``showinfo`` prints.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import numpy.typing as npt

__all__ = ["Reference", "ffmpeg", "reference", "reference_frames", "version"]

_TIMEOUT = 60.0
_TIME_BASE = re.compile(rb"config in time_base: (\d+)/(\d+)")
_FRAME = re.compile(rb"\] n: *\d+ pts: *(-?\d+|NOPTS)")
_SIZE = re.compile(rb"Stream #0:0.*?: Video: rawvideo.*?, (\d+)x(\d+)")


@dataclass(frozen=True, eq=False)
class Reference:
    """The frames and times of a clip by the ffmpeg command line."""

    frames: npt.NDArray[np.uint8]
    """``uint8 [T, H, W, 3]`` RGB, rotated as the file says; read-only."""
    pts: tuple[Fraction | None, ...]
    """Time of each frame in the file's own clock, seconds; None if the file has none."""

    @property
    def seconds(self) -> list[float]:
        """Times after the first frame, seconds."""
        first = self.pts[0]
        assert first is not None, "the first frame has no time"
        return [float(t - first) for t in self.pts if t is not None]


@cache
def version() -> str:
    """Return the version of the binary, for cache keys."""
    return _run(["-version"], None).stdout.decode().splitlines()[0]


def ffmpeg(arguments: Sequence[str | Path], stdin: bytes | None = None) -> bytes:
    """Run ffmpeg and return its standard output.

    Raises:
        RuntimeError: it failed; the message has the end of its standard error.
    """
    done = _run(["-loglevel", "error", "-y", *map(str, arguments)], stdin)
    if done.returncode:
        said = done.stderr.decode(errors="replace")[-2000:]
        raise RuntimeError(f"ffmpeg {' '.join(map(str, arguments))} failed with {done.returncode}:\n{said}")
    return done.stdout


def reference_frames(path: Path, stream: int | None = None) -> npt.NDArray[np.uint8]:
    """Return all frames of a file by the ffmpeg command line, ``uint8 [T, H, W, 3]`` RGB, read-only."""
    return reference(path, stream).frames


@lru_cache(maxsize=6)
def reference(path: Path, stream: int | None = None) -> Reference:
    """Decode a whole file with the ffmpeg command line.

    Args:
        path: path of the file.
        stream: index of the stream in the file; the first video that is not a cover picture if None.

    Raises:
        RuntimeError: no frame was decoded.
    """
    # -copyts keeps the clock of the file; showinfo comes after the automatic rotation
    chosen = "0:V:0" if stream is None else f"0:{stream}"
    arguments = ["-nostats", "-loglevel", "info", "-threads", "1", "-copyts", "-i", str(path), "-map", chosen]
    arguments += [
        "-fps_mode",
        "passthrough",
        "-vf",
        "showinfo=checksum=0",
        "-pix_fmt",
        "rgb24",
        "-f",
        "rawvideo",
        "pipe:1",
    ]
    # the exit code is ignored: a truncated file gives its intact frames and an error
    done = _run(arguments, None)
    base = _TIME_BASE.search(done.stderr)
    size = _SIZE.search(done.stderr.partition(b"Output #0")[2])
    if base is None or size is None or not done.stdout:
        raise RuntimeError(f"ffmpeg gave no frame of {path.name}:\n{done.stderr.decode(errors='replace')[-2000:]}")
    frames = np.frombuffer(done.stdout, np.uint8).reshape(-1, int(size[2]), int(size[1]), 3)
    tick = Fraction(int(base[1]), int(base[2]))
    pts = tuple(None if text == b"NOPTS" else int(text) * tick for text in _FRAME.findall(done.stderr))
    if len(pts) != len(frames):
        raise RuntimeError(f"ffmpeg reported {len(pts)} times for {len(frames)} frames of {path.name}")
    return Reference(frames, pts)


def _run(arguments: Sequence[str], stdin: bytes | None) -> subprocess.CompletedProcess[bytes]:
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-hide_banner", *arguments]
    if stdin is None:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT)
    return subprocess.run(command, input=stdin, capture_output=True, timeout=_TIMEOUT)
