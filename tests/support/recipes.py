"""Recipes of test clips: painted and encoded, derived from another clip by ffmpeg, or edited byte by byte."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from av import VideoFrame

from support import ffmpeg_cli, handmade, painting

__all__ = ["Recipe", "cache_folder", "derive", "edit", "encode", "field_coded", "make"]

_OTHER_CLIP = re.compile(r"\{([^}]+)\}")


@dataclass(frozen=True, eq=False)
class Recipe:
    """A recipe of one file."""

    text: str
    """The recipe as one line of text, for messages and cache keys."""
    needs: tuple[str, ...]
    """Names of the clips that it starts from; facts that are not given are inherited from the first."""
    run: Callable[[Path, dict[str, Path]], None] = field(repr=False)
    """Makes the file at a path, given the paths of the needed clips."""
    code: str = field(default="", repr=False)
    """Source of the Python code that makes the file, so that a change of it makes a new file."""
    facts: dict[str, Any] = field(default_factory=dict, repr=False)
    """Facts that follow from the recipe: size, count, rate."""


def encode(
    arguments: str,
    size: tuple[int, int] = (192, 144),
    frames: int = 60,
    rate: str = "30",
    *,
    first: int = 0,
    seed: int = 0,
    turn: int = 0,
    mirror: bool = False,
    two_pass: bool = False,
    to_pipe: bool = False,
) -> Recipe:
    """Return a recipe that paints pictures and encodes them with ffmpeg.

    Args:
        arguments: everything between the input and the name of the output.
        size: width and height as displayed.
        frames: number of pictures.
        rate: pictures per second.
        first: number on the first picture.
        seed: another seed gives another texture.
        turn: degrees clockwise by which a player must rotate the pictures; they are stored rotated the other way.
        mirror: True if a player must then mirror them.
        two_pass: True to encode in two passes.
        to_pipe: True to write to a pipe, so that ffmpeg cannot complete the header at the end.
    """
    width, height = size
    stored = (height, width) if turn % 180 else size

    def run(target: Path, needed: dict[str, Path]) -> None:
        pictures = painting.paint_all(range(first, first + frames), width, height, seed, turn, mirror)
        raw = b"".join(picture.tobytes() for picture in pictures)
        source = f"-f rawvideo -pix_fmt rgb24 -s {stored[0]}x{stored[1]} -framerate {rate} -i pipe:0"
        command = [*shlex.split(source), *_with_paths(arguments, needed)]
        if two_pass:
            log = f"{target}.pass"
            ffmpeg_cli.ffmpeg([*command, "-pass", "1", "-passlogfile", log, "-f", "null", os.devnull], raw)
            command += ["-pass", "2", "-passlogfile", log]
        _write(command, target, raw, to_pipe)
        for log_file in target.parent.glob(f"{target.name}.pass*"):
            log_file.unlink()

    options = "".join(
        f" {name}={value}"
        for name, value in {
            "first": first,
            "seed": seed,
            "turn": turn,
            "mirror": mirror,
            "two_pass": two_pass,
            "to_pipe": to_pipe,
        }.items()
        if value
    )
    return Recipe(
        text=f"paint {width}x{height} frames={frames} rate={rate}{options} | ffmpeg {arguments}",
        needs=tuple(dict.fromkeys(_OTHER_CLIP.findall(arguments))),
        run=run,
        code=painting.FINGERPRINT,
        facts={
            "width": stored[0],
            "height": stored[1],
            "num_frames": frames,
            "fps": Fraction(rate),
            "first_number": first,
        },
    )


def field_coded(frames: int, gop: int = 12) -> Recipe:
    """Return a recipe that writes H.264 bit by bit, each field as a picture of its own.

    Every third frame is disposable. In a container, both fields of a frame are in one packet.

    Args:
        frames: number of pictures, of 192x160.
        gop: frames from one IDR picture to the next.
    """
    stream = handmade.H264Stream(width=12, map_units=5)

    def packets() -> Iterator[bytes]:
        frame_num = 0
        for number, picture in enumerate(painting.paint_all(range(frames), 192, 160)):
            planes = _planes(picture)
            at = number % gop
            first, reference = at == 0, at % 3 != 2
            frame_num = 0 if first else frame_num
            coded = stream.parameter_sets() if first else b""
            for n, field_name in enumerate(("top", "bottom")):
                coded += stream.painted(
                    planes,
                    frame_num=frame_num,
                    poc=2 * at + n,
                    field=field_name,
                    reference=reference,
                    idr=first and not n,
                )
            frame_num += reference
            yield coded

    def run(target: Path, needed: dict[str, Path]) -> None:
        coded = list(packets())
        if target.suffix == ".h264":
            target.write_bytes(b"".join(coded))
            return
        with tempfile.TemporaryDirectory() as folder:
            raw = Path(folder) / "raw.h264"
            raw.write_bytes(b"".join(coded))
            handmade.mux(target, coded, raw, 25, set(range(0, frames, gop)), range(frames))

    return Recipe(
        f"field_coded({frames}, {gop})",
        (),
        run,
        "".join([painting.FINGERPRINT, *map(inspect.getsource, (handmade, field_coded, _planes))]),
        {"width": 192, "height": 160, "num_frames": frames, "fps": Fraction(25), "first_number": 0},
    )


def _planes(picture: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.uint8]]:
    """Convert to BT.601, limited range, 4:2:0, each field by itself: its chroma is the mean of its own lines."""
    frame = VideoFrame.from_ndarray(picture, "rgb24").reformat(format="yuv444p")
    luma, *chroma = (np.frombuffer(memoryview(plane), np.uint8).reshape(plane.height, -1) for plane in frame.planes)
    height, width = picture.shape[:2]
    halves = []
    for plane in chroma:
        # rows 0 and 2 of four make the first line of the upper field, rows 1 and 3 that of the lower one
        blocks = plane[:, :width].reshape(height // 4, 2, 2, width // 2, 2).astype(np.uint16)
        halves.append((blocks.mean((1, 4)) + 0.5).astype(np.uint8).reshape(height // 2, width // 2))
    return [luma[:, :width], *halves]


def derive(arguments: str, *, to_pipe: bool = False) -> Recipe:
    """Return a recipe that runs ffmpeg on finished clips; ``{name}`` in the arguments is the path of another clip."""

    def run(target: Path, needed: dict[str, Path]) -> None:
        _write(_with_paths(arguments, needed), target, None, to_pipe)

    needs = tuple(dict.fromkeys(_OTHER_CLIP.findall(arguments)))
    return Recipe(f"ffmpeg {arguments}{' to_pipe' if to_pipe else ''}", needs, run)


def edit(change: Callable[..., bytes], *clips: str, **options: Any) -> Recipe:
    """Return a recipe that changes the bytes of finished clips with a function of ``byte_edits``."""

    def run(target: Path, needed: dict[str, Path]) -> None:
        target.write_bytes(change(*(needed[name].read_bytes() for name in clips), **options))

    shown = ", ".join([*clips, *(f"{name}={value!r}" for name, value in options.items())])
    return Recipe(f"{change.__name__}({shown})", clips, run, inspect.getsource(inspect.getmodule(change) or change))


def cache_folder() -> Path:
    """Return the folder of finished clips: ``$TELECINE_TEST_CACHE``, or one in the repository that git ignores."""
    chosen = os.environ.get("TELECINE_TEST_CACHE")
    return Path(chosen) if chosen else Path(__file__).resolve().parents[2] / ".cache" / "clips"


def make(name: str, recipes: dict[str, Recipe]) -> Path:
    """Return the path of a clip. Make it, and the clips that it starts from, if the cache does not have them."""
    recipe = recipes[name]
    target = _home / f"{_key(name, recipes)}-{name}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    needed = {other: make(other, recipes) for other in recipe.needs}
    # written under another name and then renamed, so that parallel test processes never see an incomplete file
    unfinished = target.with_name(f"{os.getpid()}-{target.name}")
    try:
        recipe.run(unfinished, needed)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return target


# read once: a test may clear the environment
_home = cache_folder()


def _key(name: str, recipes: dict[str, Recipe]) -> str:
    recipe = recipes[name]
    parts = [ffmpeg_cli.version(), name, recipe.text, recipe.code]
    parts += [_key(other, recipes) for other in recipe.needs]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _with_paths(arguments: str, needed: dict[str, Path]) -> list[str]:
    return [_OTHER_CLIP.sub(lambda match: str(needed[match[1]]), word) for word in shlex.split(arguments)]


def _write(command: list[str], target: Path, raw: bytes | None, to_pipe: bool) -> None:
    if to_pipe:
        kind = {".webm": "webm", ".asf": "asf", ".mkv": "matroska"}[target.suffix]
        target.write_bytes(ffmpeg_cli.ffmpeg([*command, "-fflags", "+bitexact", "-f", kind, "pipe:1"], raw))
    else:
        ffmpeg_cli.ffmpeg([*command, "-fflags", "+bitexact", target], raw)
