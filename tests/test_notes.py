"""Notes of a report: text and stable code."""

from __future__ import annotations

import copy
import json
import pickle
import re
from pathlib import Path

import pytest

from telecine.notes import NOTE_CODES, Note

PAGE = Path(__file__).resolve().parent.parent / "docs" / "notes.md"


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda note: pickle.loads(pickle.dumps(note))])
def test_a_copied_note_keeps_its_text_and_its_code(duplicate) -> None:
    note = duplicate(Note("truncated", "the file ends early"))
    assert (note, note.code, type(note)) == ("the file ends early", "truncated", Note)


def test_a_note_is_a_string_for_json() -> None:
    assert json.dumps([Note("truncated", "the file ends early")]) == '["the file ends early"]'


def test_the_page_explains_every_code_once_in_order() -> None:
    assert re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text(), re.MULTILINE) == list(NOTE_CODES)


def test_every_code_is_used_by_the_package() -> None:
    package = "".join(path.read_text() for path in (PAGE.parent.parent / "src").rglob("*.py"))
    assert [code for code in NOTE_CODES if f'Note("{code}"' not in re.sub(r"\(\s+", "(", package)] == []
