"""What a command writes: tables, documents, and frames on disk as a contact sheet, arrays or a folder of pictures.

A target is claimed before anything is decoded, so that one which cannot be written is refused at once. What is written
appears under its name only when it is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from telecine.deadline import Deadline
from telecine.errors import OptionsError, TelecineError
from telecine.frames import Frames, Report
from telecine.index.video_info import VideoInfo
from telecine.source.urls import printable

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Place", "Writer", "as_document", "claim", "claim_sheet", "is_folder", "plain", "save_sheet", "table"]

Writer = Callable[[Frames, Deadline], None]
"""Writes the frames to the claimed target."""
Place = Callable[[Callable[[Path], None]], None]
"""Calls what writes a file, and gives the file its name when it is complete."""

_SHEETS = (".jpg", ".jpeg", ".png")
_SHEET = f"a contact sheet ({', '.join(_SHEETS)})"
_ALLOWED = f"{_SHEET}, arrays (.npz) or a folder (no suffix, or a / at the end)"
_QUALITY = 90
"""Of JPEG sheets: labels stay sharp."""
_LIST = "frames.json"


def plain(facts: VideoInfo | Report) -> dict[str, Any]:
    """Facts as JSON has them: a fraction becomes the string ``"n/d"``."""
    return {
        name: f"{value.numerator}/{value.denominator}" if isinstance(value, Fraction) else value
        for name, value in asdict(facts).items()
    }


def as_document(frames: Frames, folder: bool = False) -> dict[str, Any]:
    """What is known about frames, for JSON: ``info``, ``report`` and the list ``frames``.

    Args:
        frames: what was decoded.
        folder: whether they are in a folder of pictures; then each has its ``file`` there.
    """
    rows: list[dict[str, Any]] = [
        {"index": index, "timestamp": timestamp} | ({"file": _file_name(index)} if folder else {})
        for index, timestamp in zip(frames.indices.tolist(), frames.timestamps.tolist(), strict=True)
    ]
    return {"info": plain(frames.info), "report": plain(frames.report), "frames": rows}


def table(rows: list[tuple[str, str]]) -> list[str]:
    """Lines of names and values, the values one below the other."""
    widest = max((len(name) for name, _ in rows), default=0)
    return [f"  {name:<{widest}}  {printable(value, 500)}" for name, value in rows]


def is_folder(target: str) -> bool:
    """Whether a target means a folder of pictures."""
    return target.endswith(os.sep) or os.path.isdir(target) or not Path(target).suffix


@contextlib.contextmanager
def claim(target: str, source: str) -> Iterator[Writer]:
    """Make sure that a target can be written, and give what writes it; if that is not called, nothing is left behind.

    Args:
        target: a path; its suffix says what is written.
        source: path of the video, which must not be replaced; anything else is ignored.

    Raises:
        OptionsError: an unknown suffix, or the target cannot be written. Raised by the writer too: disks fill up.
    """
    if target in ("", "-"):
        raise OptionsError(f"output is {target!r}; it must be the path of {_ALLOWED}")
    if is_folder(target):
        with _claimed_folder(target) as writer:
            yield writer
        return
    write = _FILES.get(Path(target).suffix.lower())
    if write is None:
        raise OptionsError(f"output is {printable(target)!r}; it must be the path of {_ALLOWED}")

    with _claimed_file(target, source) as place:

        def writer(frames: Frames, deadline: Deadline) -> None:
            deadline.check("writing the output")
            place(lambda path: write(frames, path))

        yield writer


@contextlib.contextmanager
def claim_sheet(target: str, source: str) -> Iterator[Place]:
    """The same for a contact sheet of several results, which the caller makes.

    Raises:
        OptionsError: not the suffix of a picture, or the target cannot be written.
    """
    if Path(target).suffix.lower() not in _SHEETS or is_folder(target):
        raise OptionsError(f"sheet is {printable(target)!r}; it must be the path of {_SHEET}")
    with _claimed_file(target, source) as place:
        yield place


@contextlib.contextmanager
def _explained(target: str) -> Iterator[None]:
    try:
        yield
    except TelecineError:
        raise  # DeadlineError is an OSError too
    except OSError as error:
        raise OptionsError(
            f"output {printable(target)!r} cannot be written: {error.strerror or error}; choose another place"
        ) from error


@contextlib.contextmanager
def _claimed_file(target: str, source: str) -> Iterator[Place]:
    if os.path.exists(target) and os.path.exists(source) and os.path.samefile(target, source):
        raise OptionsError(f"output is {printable(target)!r}, which is the video itself; choose another name")
    # a link stays, as with any other way of writing to it
    path = Path(os.path.realpath(target))
    unfinished = path.with_name(f".telecine-{secrets.token_hex(4)}{path.suffix}")
    with _explained(target):
        unfinished.touch(exist_ok=False)

    def place(write: Callable[[Path], None]) -> None:
        with _explained(target):
            write(unfinished)
            unfinished.replace(path)

    try:
        yield place
    finally:
        unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def _claimed_folder(target: str) -> Iterator[Writer]:
    folder = Path(target)
    unfinished = folder / f".telecine-{secrets.token_hex(4)}"
    missing = [place for place in (folder, *folder.parents) if not os.path.exists(place)]

    def writer(frames: Frames, deadline: Deadline) -> None:
        with _explained(target):
            _write_pictures(frames, unfinished, deadline)
            pictures = sorted(path.name for path in unfinished.iterdir() if path.name != _LIST)
            # the list comes last: where it is, the pictures that it names are
            for name in (*pictures, _LIST):
                (unfinished / name).replace(folder / name)

    try:
        with _explained(target):
            folder.mkdir(parents=True, exist_ok=True)
            unfinished.mkdir()
        yield writer
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        # from the innermost outwards; what holds something stays
        for made in missing:
            with contextlib.suppress(OSError):
                made.rmdir()


def _file_name(index: int) -> str:
    return f"frame_{index:06d}.png"


def _write_pictures(frames: Frames, folder: Path, deadline: Deadline) -> None:
    from PIL import Image

    images = frames.numpy()
    _, first_rows = np.unique(frames.indices, return_index=True)
    for done, row in enumerate(first_rows.tolist()):
        deadline.check("writing the frames", done, len(first_rows))
        # level 1: a third of the time of the default, a tenth more bytes
        Image.fromarray(images[row]).save(folder / _file_name(int(frames.indices[row])), compress_level=1)
    (folder / _LIST).write_text(json.dumps(as_document(frames, folder=True), indent=2) + "\n")


def _write_sheet(frames: Frames, path: Path) -> None:
    save_sheet(frames.sheet(), path)


def save_sheet(sheet: Image, path: Path) -> None:
    """Write a contact sheet, in the format of the suffix."""
    sheet.save(path, quality=_QUALITY)  # PNG, which has none, ignores it


def _write_arrays(frames: Frames, path: Path) -> None:
    document = as_document(frames)
    metadata = {"info": document["info"], "report": document["report"], "metadata": frames.metadata()}
    with open(path, "wb") as file:
        np.savez(
            file,
            frames=frames.numpy(),
            indices=frames.indices,
            timestamps=frames.timestamps,
            metadata=np.array(json.dumps(metadata)),
        )


_FILES: dict[str, Callable[[Frames, Path], None]] = {**dict.fromkeys(_SHEETS, _write_sheet), ".npz": _write_arrays}
