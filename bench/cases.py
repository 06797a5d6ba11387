"""The clips of the CPU benchmark: how each is made, and its target."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CASES", "Case", "cache_folder", "extra_case", "ffmpeg", "loop", "make", "say"]

RATE = 25
_H264 = "-c:v libx264 -preset medium"
_HEVC = "-c:v libx265 -preset medium -tag:v hvc1 -x265-params log-level=error"

_VP9 = "-c:v libvpx-vp9 -b:v 4M -deadline good -cpu-used 5 -row-mt 1"


@dataclass(frozen=True)
class Case:
    """One clip, and how many of its frames are wanted."""

    name: str
    title: str
    """Description of the clip in the table."""
    encoder: str
    """Arguments of ffmpeg between the pictures and the output's name; empty for a file that exists already."""
    target: float
    """Largest allowed ratio of telecine's time to the best peer's."""
    wanted: tuple[int | None, ...] = (8, 32)
    """Numbers of frames, evenly spread; None is every frame."""
    seconds: float = 13.0
    size: tuple[int, int] = (1920, 1080)
    """Width and height."""
    suffix: str = ".mp4"
    file: Path | None = None
    """A file that was given instead of a recipe."""

    @property
    def recipe(self) -> str:
        """The command line that makes the clip, without the program's path and the output's name."""
        if self.file is not None:
            return f"the file {self.file.name}"
        graph = shlex.quote(_pictures(*self.size))
        return f"ffmpeg -filter_complex {graph} -t {self.seconds:g} -r {RATE} {self.encoder}"


_SKIPS_H264, _SKIPS_HEVC, _NO_WORSE = 0.65, 0.60, 1.05
"""Targets: lower if B-frames can be skipped, 1 and a margin if no packet can."""

CASES = (
    Case("h264", "H.264 1080p, B-frames, 13 s", _H264, _SKIPS_H264),
    Case("hevc", "HEVC 1080p, B-frames, 13 s", _HEVC, _SKIPS_HEVC),
    Case("h264-intra", "H.264 1080p, key frames only, 13 s", f"{_H264} -g 1", _NO_WORSE),
    Case("h264-no-b", "H.264 1080p, no B-frames, 13 s", f"{_H264} -tune zerolatency -profile:v baseline", _NO_WORSE),
    Case("vp9", "VP9 1080p, 13 s", _VP9, _NO_WORSE, suffix=".webm"),
    Case("av1", "AV1 1080p, 13 s", "-c:v libsvtav1 -preset 9 -crf 35", _NO_WORSE),
    Case("h264-1s", "H.264 1080p, B-frames, 1 s", _H264, _NO_WORSE, wanted=(8,), seconds=1.0),
    Case("h264-2160p", "H.264 2160p, B-frames, 5 s", _H264, _NO_WORSE, seconds=5.0, size=(3840, 2160)),
    Case("h264-all", "H.264 1080p, B-frames, 4 s", _H264, _NO_WORSE, wanted=(None,), seconds=4.0),
)


def extra_case(file: Path) -> Case:
    """Return a case for a file from the command line; its target depends on its codec."""
    import telecine

    info = telecine.probe(file)
    target = {"h264": _SKIPS_H264, "hevc": _SKIPS_HEVC}.get(info.codec, _NO_WORSE)
    title = f"{file.name}: {info.codec} {info.width}x{info.height}, {info.duration:.1f} s"
    return Case(file.stem, title, "", target, file=file.resolve())


def say(text: str) -> None:
    """Print a line of progress to standard error; results go to files."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def cache_folder() -> Path:
    """Return the folder of the clips: ``TELECINE_BENCH_CACHE``, or .cache/bench in the repository."""
    default = Path(__file__).resolve().parent.parent / ".cache" / "bench"
    folder = Path(os.environ.get("TELECINE_BENCH_CACHE") or default)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def ffmpeg(*arguments: str | Path) -> bytes:
    """Run the ffmpeg of imageio-ffmpeg and return its output. It is another build than any decoder measured here.

    Raises:
        RuntimeError: it failed.
    """
    import imageio_ffmpeg

    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-nostdin", "-loglevel", "error", "-y", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)} failed:\n{done.stderr.decode(errors='replace')[-2000:]}")
    return done.stdout


def make(case: Case) -> Path:
    """Return the clip of a case; make it on first use."""
    if case.file is not None:
        return case.file
    key = hashlib.sha256((case.recipe + case.suffix).encode()).hexdigest()[:12]
    path = cache_folder() / f"{case.name}-{key}{case.suffix}"
    if not path.exists():
        say(f"making {path.name}: {case.recipe}")
        part = path.with_name("part-" + path.name)
        graph = _pictures(*case.size)
        ffmpeg("-filter_complex", graph, "-t", f"{case.seconds:g}", "-r", str(RATE), *shlex.split(case.encoder), part)
        part.rename(path)
    return path


def loop(clip: Path, times: int, path: Path) -> Path:
    """Repeat a clip without encoding it again.

    Args:
        clip: the file to repeat.
        times: number of repetitions.
        path: path of the long file.
    """
    ffmpeg("-stream_loop", str(times - 1), "-i", clip, "-c", "copy", path)
    return path


def _pictures(width: int, height: int) -> str:
    """Return a filter graph for moving, textured content that encodes like camera pictures.

    A grainy Mandelbrot set rotates slowly under a swaying camera. Motion is smooth and finer than a pixel, so x264
    chooses as many B-frames as in a film. A test pattern that shows its time and number moves over it.
    """
    wide, tall = width * 3 // 2, height * 3 // 2
    right, down = (wide - width) // 2, (tall - height) // 2
    front_width, front_height = width // 6, height // 6
    return (
        f"mandelbrot=size={wide}x{tall}:rate={RATE},trim=end_frame=1,noise=alls=8:all_seed=1,"
        f"loop=loop=-1:size=1,setpts=N/{RATE}/TB,rotate=a='n/500':ow=iw:oh=ih,"
        f"crop={width}:{height}:x='{right}+{right // 2}*sin(n/60)':y='{down}+{down // 2}*cos(n/80)'[back];"
        f"testsrc2=size={front_width}x{front_height}:rate={RATE}[front];"
        f"[back][front]overlay=x='{width // 3}*(1+sin(n/90))':y='{height // 3}*(1+cos(n/70))',format=yuv420p"
    )
