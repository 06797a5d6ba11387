"""Type checkers accept correct user code and reject wrong options."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

import telecine

HERE = Path(__file__).resolve().parent
SOURCES = Path(telecine.__file__).parent.parent
FILES = ["accepted.py", "rejected.py"]

Found: TypeAlias = dict[tuple[str, int], str]
"""The first message for each file and line."""


def run_mypy(folder: Path) -> Found:
    """Return what ``mypy --strict`` rejects."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-incremental", *FILES]
    environment = os.environ | {"MYPYPATH": str(SOURCES)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^([a-z]+\.py):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    return {(name, int(number)): text for name, number, text in reversed(found)}


def run_pyright(folder: Path) -> Found:
    """Return what pyright rejects."""
    settings = {"include": FILES, "extraPaths": [str(SOURCES)], "pythonVersion": "3.11"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout.startswith("{"):  # its first run downloads pyright itself
        pytest.skip(f"pyright cannot start: {(done.stderr or done.stdout).strip()[-300:]}")
    result = json.loads(done.stdout)
    assert result["summary"]["filesAnalyzed"] == len(FILES), result
    errors = [each for each in result["generalDiagnostics"] if each["severity"] == "error"]
    return {(Path(each["file"]).name, each["range"]["start"]["line"] + 1): each["message"] for each in errors[::-1]}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("run_checker", [run_mypy, run_pyright])
def test_correct_user_code_is_accepted_and_each_wrong_line_rejected(
    run_checker: Callable[[Path], Found], tmp_path: Path
) -> None:
    for name in FILES:
        shutil.copy(HERE / name, tmp_path)
    lines = (HERE / "rejected.py").read_text().splitlines()
    wrong = {("rejected.py", number) for number, line in enumerate(lines, 1) if line.endswith("# rejected")}
    found = run_checker(tmp_path)
    assert found.keys() == wrong, found
