"""Writing frames to disk: a contact sheet, arrays, or a folder of pictures.

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
from typing import Any

import numpy as np

from telecine.errors import OptionsError
from telecine.frames import Frames, Report, VideoInfo
from telecine.limits import Deadline
from telecine.urls import printable

__all__ = ["Writer", "as_document", "claim", "plain"]

Writer = Callable[[Frames, Deadline], None]
"""Writes the frames to the claimed target."""

_ALLOWED = "a contact sheet (.jpg, .jpeg, .png), arrays (.npz) or a folder (no suffix, or a / at the end)"
_QUALITY = 90
"""Of JPEG sheets: labels stay sharp."""


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


def is_folder(target: str) -> bool:
    """Whether a target means a folder of pictures."""
    return target.endswith(os.sep) or os.path.isdir(target) or not Path(target).suffix


@contextlib.contextmanager
def claim(target: str, source: str) -> Iterator[Writer]:
    """Make sure that a target can be written, and give what writes it. Nothing is left behind if that is not called.

    Args:
        target: a path; its suffix says what is written.
        source: path of the video, which must not be replaced; anything else is ignored.

    Raises:
        OptionsError: an unknown suffix, or the target cannot be written. Raised by the writer too: disks fill up.
    """
    with _explained(target):
        if is_folder(target) and target != "-":
            with _claimed_folder(Path(target)) as writer:
                yield writer
            return
        write = _FILES.get(Path(target).suffix.lower())
        if write is None:
            raise OptionsError(f"output is {printable(target)!r}; it must be {_ALLOWED}")
        # through a link, as any other way of writing to it would
        path = Path(os.path.realpath(target))
        if path.exists() and os.path.exists(source) and path.samefile(source):
            raise OptionsError(f"output is {printable(target)!r}, which is the video itself; choose another name")
        with _claimed_file(path, write) as writer:
            yield writer


@contextlib.contextmanager
def _explained(target: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # our own errors that are also an OSError, such as DeadlineError, speak for themselves
        if error.strerror is None:
            raise
        raise OptionsError(
            f"output {printable(target)!r} cannot be written: {error.strerror}; choose another place"
        ) from error


@contextlib.contextmanager
def _claimed_file(path: Path, write: Callable[[Frames, Path], None]) -> Iterator[Writer]:
    unfinished = path.with_name(f".telecine-{secrets.token_hex(4)}{path.suffix}")
    with open(unfinished, "xb"):
        pass

    def writer(frames: Frames, deadline: Deadline) -> None:
        deadline.check(f"writing {path.name}")
        write(frames, unfinished)
        unfinished.replace(path)

    try:
        yield writer
    finally:
        unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def _claimed_folder(folder: Path) -> Iterator[Writer]:
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".telecine-{secrets.token_hex(4)}"
    unfinished.mkdir()

    def writer(frames: Frames, deadline: Deadline) -> None:
        _write_pictures(frames, unfinished, deadline)
        names = sorted(path.name for path in unfinished.iterdir() if path.name != _LIST)
        # the list comes last: where it is, the pictures that it names are
        for name in (*names, _LIST):
            (unfinished / name).replace(folder / name)

    try:
        yield writer
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()


_LIST = "frames.json"


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
    frames.sheet().save(path, **({} if path.suffix.lower() == ".png" else {"quality": _QUALITY}))


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


_FILES: dict[str, Callable[[Frames, Path], None]] = {
    ".jpg": _write_sheet,
    ".jpeg": _write_sheet,
    ".png": _write_sheet,
    ".npz": _write_arrays,
}
