"""Output of the commands: tables, JSON documents, and frames on disk as a contact sheet, arrays or a folder of PNGs.

A target is claimed before anything is decoded, so a target that cannot be written is refused at once. The output gets
its name only when it is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from telecine.audio import Audio
from telecine.deadline import Deadline
from telecine.errors import OptionsError, TelecineError
from telecine.frames import Frames, Report
from telecine.index.video_info import VideoInfo
from telecine.source.urls import printable

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "as_document",
    "claim",
    "claim_sheet",
    "claim_wav",
    "format_table",
    "is_folder",
    "save_sheet",
    "to_json_types",
    "write_wav",
]

_FramesWriter = Callable[[Frames, Deadline], None]
"""Writes frames to the claimed target."""
_FileWriter = Callable[[Callable[[Path], None]], None]
"""Calls a function that writes a temporary file, then gives that file the name of the claimed target."""

_SHEET_SUFFIXES = (".jpg", ".jpeg", ".png")
_SHEET = f"a contact sheet ({', '.join(_SHEET_SUFFIXES)})"
_ALLOWED = f"{_SHEET}, arrays (.npz) or a folder (no suffix, or a / at the end)"
_JPEG_QUALITY = 90
"""High enough to keep the text in contact sheets sharp."""
_WAV_HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")
_WAV_FLOAT = 3
"""WAVE_FORMAT_IEEE_FLOAT."""
_MAX_WAV_BYTES = (1 << 32) - 1
_FRAME_FILE = "frame_{:06d}.png"
_FRAME_LIST = "frames.json"


def to_json_types(facts: VideoInfo | Report) -> dict[str, Any]:
    """Return the fields for JSON. A fraction becomes the string ``"n/d"``, a note its ``code`` and ``text``."""
    document = {
        name: f"{value.numerator}/{value.denominator}" if isinstance(value, Fraction) else value
        for name, value in asdict(facts).items()
    }
    return document | {"notes": [{"code": note.code, "text": note} for note in facts.notes]}


def as_document(frames: Frames, folder: bool = False) -> dict[str, Any]:
    """Return ``info``, ``report`` and the list ``frames`` for JSON; with ``folder``, each frame has its ``file``."""
    rows: list[dict[str, Any]] = [
        {"index": index, "timestamp": timestamp} | ({"file": _FRAME_FILE.format(index)} if folder else {})
        for index, timestamp in zip(frames.indices.tolist(), frames.timestamps.tolist(), strict=True)
    ]
    return {"info": to_json_types(frames.info), "report": to_json_types(frames.report), "frames": rows}


def format_table(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Return lines of names and values, with the values aligned."""
    rows = list(rows)
    widest = max((len(name) for name, _ in rows), default=0)
    return [f"  {name:<{widest}}  {printable(value, 500)}" for name, value in rows]


def is_folder(target: str) -> bool:
    """Return True if a target means a folder of PNGs."""
    return target.endswith(os.sep) or os.path.isdir(target) or not Path(target).suffix


@contextlib.contextmanager
def claim(target: str, source: str) -> Iterator[_FramesWriter]:
    """Check that a target can be written, and yield its writer. If that is not called, nothing is left behind.

    Args:
        target: path; its suffix selects the kind of output.
        source: path of the video, which must not be replaced; other sources are ignored.

    Raises:
        OptionsError: the suffix is unknown, or the target cannot be written. The writer raises it too.
    """
    if target in ("", "-"):
        raise OptionsError(f"output is {target!r}; it must be the path of {_ALLOWED}")
    if is_folder(target):
        with _claim_folder(target) as writer:
            yield writer
        return
    is_arrays = Path(target).suffix.lower() == ".npz"
    if not is_arrays and not _has_sheet_suffix(target):
        raise OptionsError(f"output is {printable(target)!r}; it must be the path of {_ALLOWED}")
    with _claim_file(target, source) as write_file:

        def write_frames(frames: Frames, deadline: Deadline) -> None:
            deadline.check("writing the output")
            write_file(lambda path: _write_arrays(frames, path) if is_arrays else save_sheet(frames.sheet(), path))

        yield write_frames


def claim_sheet(target: str, source: str) -> contextlib.AbstractContextManager[_FileWriter]:
    """Like :func:`claim`, for a contact sheet that the caller makes from several results."""
    if not _has_sheet_suffix(target) or is_folder(target):
        raise OptionsError(f"sheet is {printable(target)!r}; it must be the path of {_SHEET}")
    return _claim_file(target, source)


def claim_wav(target: str, source: str) -> contextlib.AbstractContextManager[_FileWriter]:
    """Like :func:`claim`, for audio."""
    if Path(target).suffix.lower() != ".wav" or is_folder(target):
        raise OptionsError(f"audio is {printable(target)!r}; it must be the path of a .wav file")
    return _claim_file(target, source)


def write_wav(audio: Audio, path: Path) -> None:
    """Write audio as a WAV file of 32-bit floats."""
    data, rate = audio
    channels, size = data.shape[1], data.nbytes
    if size + _WAV_HEADER.size > _MAX_WAV_BYTES:
        raise OptionsError(f"{size} bytes of audio do not fit into a WAV file of 4 GiB; choose a shorter window")
    header = _WAV_HEADER.pack(
        b"RIFF", _WAV_HEADER.size - 8 + size, b"WAVE",
        b"fmt ", 16, _WAV_FLOAT, channels, rate, 4 * channels * rate, 4 * channels, 32,
        b"data", size,
    )  # fmt: skip
    with open(path, "wb") as file:
        file.write(header)
        file.write(data.astype("<f4", copy=False).data)


def _has_sheet_suffix(target: str) -> bool:
    return Path(target).suffix.lower() in _SHEET_SUFFIXES


@contextlib.contextmanager
def _explain_errors(target: str) -> Iterator[None]:
    try:
        yield
    except TelecineError:
        raise  # DeadlineError is an OSError too
    except OSError as error:
        raise OptionsError(
            f"output {printable(target)!r} cannot be written: {error.strerror or error}; choose another path"
        ) from error


@contextlib.contextmanager
def _claim_file(target: str, source: str) -> Iterator[_FileWriter]:
    if os.path.exists(target) and os.path.exists(source) and os.path.samefile(target, source):
        raise OptionsError(f"output is {printable(target)!r}, which is the video itself; choose another name")
    path = Path(os.path.realpath(target))  # a link stays a link
    unfinished = path.with_name(f".telecine-{secrets.token_hex(4)}{path.suffix}")
    with _explain_errors(target):
        unfinished.touch(exist_ok=False)

    def write_file(write: Callable[[Path], None]) -> None:
        with _explain_errors(target):
            write(unfinished)
            unfinished.replace(path)

    try:
        yield write_file
    finally:
        unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def _claim_folder(target: str) -> Iterator[_FramesWriter]:
    folder = Path(target)
    unfinished = folder / f".telecine-{secrets.token_hex(4)}"
    missing = [path for path in (folder, *folder.parents) if not os.path.exists(path)]

    def write_frames(frames: Frames, deadline: Deadline) -> None:
        with _explain_errors(target):
            _write_pictures(frames, unfinished, deadline)
            pictures = sorted(path.name for path in unfinished.iterdir() if path.name != _FRAME_LIST)
            # the list comes last: if it is there, the pictures that it names are there too
            for name in (*pictures, _FRAME_LIST):
                (unfinished / name).replace(folder / name)

    try:
        with _explain_errors(target):
            folder.mkdir(parents=True, exist_ok=True)
            unfinished.mkdir()
        yield write_frames
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        # innermost first; a folder that holds something stays
        for made in missing:
            with contextlib.suppress(OSError):
                made.rmdir()


def _write_pictures(frames: Frames, folder: Path, deadline: Deadline) -> None:
    from PIL import Image

    images = frames.numpy()
    _, first_rows = np.unique(frames.indices, return_index=True)
    for done, row in enumerate(first_rows.tolist()):
        deadline.check("writing the frames", done, len(first_rows))
        # level 1 takes a third of the time of the default, for a tenth more bytes
        Image.fromarray(images[row]).save(folder / _FRAME_FILE.format(frames.indices[row]), compress_level=1)
    (folder / _FRAME_LIST).write_text(json.dumps(as_document(frames, folder=True), indent=2) + "\n")


def save_sheet(sheet: Image, path: Path) -> None:
    """Write a contact sheet in the format of the suffix."""
    sheet.save(path, quality=_JPEG_QUALITY)  # PNG ignores it


def _write_arrays(frames: Frames, path: Path) -> None:
    metadata = as_document(frames) | {"metadata": frames.metadata()}
    del metadata["frames"]
    arrays: dict[str, Any] = {"frames": frames.numpy(), "indices": frames.indices, "timestamps": frames.timestamps}
    with open(path, "wb") as file:
        np.savez(file, **arrays, metadata=np.array(json.dumps(metadata)))
