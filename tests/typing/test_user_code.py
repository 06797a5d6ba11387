"""Type checkers accept correct user code and reject wrong options."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import telecine

HERE = Path(__file__).resolve().parent
SOURCES = Path(telecine.__file__).parent.parent


def lines_rejected_by_mypy(file: Path, cache: Path) -> dict[int, str]:
    """Return the lines that ``mypy --strict`` rejects, with the first message of each."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"MYPYPATH": str(SOURCES)})
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(rf"^(?:.*/)?{file.name}:(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    return {int(number): text for number, text in reversed(found)}


def lines_rejected_by_pyright(file: Path, folder: Path) -> dict[int, str]:
    """Return the lines that pyright rejects, with the first message of each."""
    settings = {"include": [file.name], "extraPaths": [str(SOURCES)], "pythonVersion": "3.11"}
    shutil.copy(file, folder)
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout.startswith("{"):
        pytest.skip(f"pyright cannot start: {(done.stderr or done.stdout).strip()[-300:]}")
    result = json.loads(done.stdout)
    assert result["summary"]["filesAnalyzed"] == 1, result
    found = [each for each in result["generalDiagnostics"] if each["severity"] == "error"]
    return {each["range"]["start"]["line"] + 1: each["message"] for each in reversed(found)}


CHECKERS = {"mypy": lines_rejected_by_mypy, "pyright": lines_rejected_by_pyright}


@pytest.mark.parametrize("checker", CHECKERS)
def test_correct_user_code_is_accepted(checker: str, tmp_path: Path) -> None:
    assert CHECKERS[checker](HERE / "accepted.py", tmp_path) == {}


@pytest.mark.parametrize("checker", CHECKERS)
def test_exactly_the_wrong_lines_are_rejected(checker: str, tmp_path: Path) -> None:
    lines = (HERE / "rejected.py").read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# rejected")}
    rejected = CHECKERS[checker](HERE / "rejected.py", tmp_path)
    assert rejected.keys() == wrong, rejected
