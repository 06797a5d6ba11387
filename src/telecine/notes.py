"""Notes of a report: sentences about a video or a decode, each with a stable code that programs can compare."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

__all__ = ["NOTE_CODES", "Note", "NoteCode"]

NoteCode: TypeAlias = Literal[
    # repairs
    "times-rebuilt",
    "truncated",
    "start-codes",
    "all-packets-read",
    # choices
    "size-from-bitstream",
    "size-changes",
    # left as it is
    "hdr",
    "bit-depth",
    "alpha",
    "non-square-pixels",
    "interlaced",
    # events in a GPU decoder
    "cpu-decode",
    "damaged-rows",
    "engine",
]
"""Codes of all notes. docs/notes.md explains each. A code keeps its meaning once released; its text may change."""

NOTE_CODES: tuple[NoteCode, ...] = get_args(NoteCode)
"""All codes, in the order of docs/notes.md."""


class Note(str):
    """One sentence of :attr:`telecine.Report.notes` or :attr:`telecine.VideoInfo.notes`: a string with a ``code``."""

    code: NoteCode
    """Kind of the note: "times-rebuilt". Stable; compare this and not the text."""

    def __new__(cls, code: NoteCode, text: str) -> Note:
        """Make a note from its code and its sentence."""
        note = super().__new__(cls, text)
        note.code = code
        return note

    def __getnewargs__(self) -> tuple[NoteCode, str]:  # type: ignore[override]  # str pickles its text alone
        return self.code, str(self)
