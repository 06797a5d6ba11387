"""The checked-in PTX of the conversion kernel matches its sources."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "src/telecine/native"
PTX = NATIVE / "pixels.ptx"


def _comment(text: str, name: str) -> str:
    found = re.search(rf"^// {name}: (.+)$", text, re.MULTILINE)
    assert found is not None, f"pixels.ptx has no line for its {name}; run scripts/build-ptx"
    return found[1]


def _instructions(text: str) -> list[str]:
    lines = [re.sub(r"//.*", "", line).strip() for line in text.splitlines()]
    return [line for line in lines if line]


def test_the_ptx_targets_every_supported_gpu_and_driver() -> None:
    text = PTX.read_text()
    assert ".target sm_75" in text and ".version 6.5" in text and ".entry telecine_convert" in text


def test_the_ptx_has_the_hash_of_its_sources() -> None:
    sources = (NATIVE / "pixels.cu").read_bytes() + (NATIVE / "pixels.h").read_bytes()
    assert _comment(PTX.read_text(), "sources") == hashlib.sha256(sources).hexdigest(), "run scripts/build-ptx"


def test_the_sources_compile_to_the_instructions_of_the_ptx(tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("without nvcc the kernel cannot be compiled")
    made = tmp_path / "pixels.ptx"
    subprocess.run([ROOT / "scripts/build-ptx", made], check=True, capture_output=True)
    kept, fresh = PTX.read_text(), made.read_text()
    assert ".entry telecine_convert" in fresh
    if _comment(kept, "compiler") == _comment(fresh, "compiler"):
        assert _instructions(fresh) == _instructions(kept), "run scripts/build-ptx"
