"""Every backend keeps the contract: the suite that ships with the package, and every clip of the tests."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import telecine
from support.clips import CLIPS, Clip, read_number
from telecine.backends.base import BackendStatus, Decoded, DecodeRequest
from telecine.backends.pyav.backend import PyAVBackend
from telecine.backends.registry import get_backend
from telecine.testing import CASES, Case, run

# the package has a function of that name
backends_module = importlib.import_module("telecine.backends.registry")
# read at once: the environment of a test is a clean one
REQUIRED = {name for name in os.environ.get("TELECINE_REQUIRE_BACKENDS", "").split(",") if name}
NAMES = list(backends_module.BUILT_IN)
BY_NAME = {case.name: case for case in CASES}

DOCS = Path(__file__).resolve().parents[2] / "docs"
TOLERANCE = 2
TOLERANCE_ON_GPU = 3
SOUND = [clip for clip in CLIPS.values() if clip.num_frames and not (clip.tags & {"part", "damaged"} or clip.lost)]
# what a library's own conversion makes of more than 8 bits, and of a size that changes
CONVERTED = {
    "opencv": {"hevc_main10.mp4": 24, "h264_10bit.mp4": 24, "hdr.mp4": 28, "vp9_10bit.webm": 8, "prores.mov": 4,
               "size_change.ts": 8},
    "torchcodec": {"size_change.ts": 8},
}  # fmt: skip
# FFmpeg drops these pictures where the header does not say how far pictures are reordered
FEWER = {"torchcodec": {"h264_no_vui.h264", "h264_no_vui.mp4", "h264_no_vui.ts"}}


def usable(name: str) -> None:
    """Skip a backend that does not work here, or fail where it was promised."""
    status = get_backend(name).status()
    if status.usable:
        return
    if name in REQUIRED:
        pytest.fail(f"TELECINE_REQUIRE_BACKENDS names {name}: {status.reason}", pytrace=False)
    pytest.skip(f"{name}: {status.reason}")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("name", NAMES)
def test_contract(name: str, case: Case) -> None:
    usable(name)
    outcome = run(case, name, device="cuda" if name == "nvdec" else "cpu")
    assert outcome.verdict != "fails", f"{outcome.case}: {outcome.detail}"


@pytest.mark.parametrize("clip", SOUND, ids=str)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("pyav", "nvdec")])
def test_every_clip(name: str, clip: Clip) -> None:
    """All frames, and a few asked for alone: never a wrong one, whatever the file is like."""
    usable(name)
    check_clip(name, clip, "cpu", clip.reference().frames, TOLERANCE)


@pytest.mark.gpu
@pytest.mark.parametrize("clip", SOUND, ids=str)
@pytest.mark.parametrize("name", ["torchcodec", "pynvvideocodec", "deepstream"])
def test_every_clip_on_a_gpu(name: str, clip: Clip) -> None:
    """The same of frames that stay there: as near to those of the CPU as the contract asks."""
    usable(name)
    check_clip(name, clip, "cuda", telecine.load(clip.path(), backend="pyav").data, TOLERANCE_ON_GPU)


def check_clip(name: str, clip: Clip, device: str, known: np.ndarray[Any, Any], tolerance: int) -> None:
    """Compare what a backend makes of a clip; that it says that it cannot is no wrong frame."""
    every = list(range(clip.num_frames))
    for wanted in (every, every[:: max(1, len(every) // 5)], every[-1:]):
        try:
            frames = telecine.load(clip.path(), backend=name, indices=wanted, device=device)
        except telecine.UnsupportedVideoError:
            return
        pixels = frames.numpy()
        assert set(frames.indices.tolist()) | set(frames.report.lost) == set(wanted)
        if clip.name not in FEWER.get(name, ()):
            assert frames.report.lost == ()
        if clip.numbers:
            assert [read_number(image) for image in pixels] == [clip.numbers[i] for i in frames.indices]
        allowed = CONVERTED.get(name, {}).get(clip.name, tolerance)
        assert np.abs(pixels.astype(np.int16) - known[frames.indices]).max() <= allowed


# names that nobody has usable may not be promised in vain
def test_required_backends_exist() -> None:
    assert set(NAMES) >= REQUIRED


class Liar(PyAVBackend):
    """A backend that breaks the contract in one way."""

    def __init__(self, lie: Callable[[Decoded, DecodeRequest], Decoded]) -> None:
        self._lie = lie

    def status(self) -> BackendStatus:
        return BackendStatus("liar", True, None, "1")

    def decode(self, request: DecodeRequest) -> Decoded:
        return self._lie(super().decode(request), request)


def neighbour(decoded: Decoded, request: DecodeRequest) -> Decoded:
    """Each frame is the one before it."""
    frames = np.maximum(request.plan.frames - 1, 0)
    data = telecine.load(request.source.data, indices=frames, backend="pyav").data
    return replace(decoded, data=data)


def one_too_few(decoded: Decoded, request: DecodeRequest) -> Decoded:
    """The last frame of the video is said to be lost."""
    kept = decoded.kept & (request.plan.frames != request.index.num_frames - 1)
    return replace(decoded, kept=kept)


def swapped(decoded: Decoded, request: DecodeRequest) -> Decoded:
    """Two frames have changed places."""
    return replace(decoded, data=decoded.data[[1, 0, *range(2, len(decoded.data))]])


def stale(decoded: Decoded, request: DecodeRequest) -> Decoded:
    """A damaged frame is replaced by the last sound one."""
    data = decoded.data.copy()
    for row in np.flatnonzero(~decoded.kept):
        data[row] = data[max(0, row - 1)]
    return replace(decoded, data=data, kept=np.ones_like(decoded.kept))


def brighter(decoded: Decoded, request: DecodeRequest) -> Decoded:
    return replace(decoded, data=np.clip(decoded.data.astype(np.int16) + 6, 0, 255).astype(np.uint8))


def hanging(decoded: Decoded, request: DecodeRequest) -> Decoded:
    time.sleep(3)
    return decoded


def foreign_error(decoded: Decoded, request: DecodeRequest) -> Decoded:
    raise RuntimeError("CUDA error 700")


_shared: dict[Any, Any] = {}


def same_memory(decoded: Decoded, request: DecodeRequest) -> Decoded:
    """Frames are given out of a buffer that is used again."""
    buffer = _shared.setdefault(decoded.data.shape, np.empty_like(decoded.data))
    buffer[:] = decoded.data
    return replace(decoded, data=buffer)


@pytest.mark.parametrize(
    ("lie", "case", "words"),
    [
        (neighbour, "plain", "frames by number"),
        (neighbour, "hidden-start", "frames by number"),
        (one_too_few, "plain", "indices"),
        (swapped, "order", "frames by number"),
        (stale, "bad-packet", "indices"),
        (brighter, "bt709", "colour"),
        (brighter, "plain", "pixels differ"),
        (hanging, "plain", "no answer within 1 s"),
        (foreign_error, "plain", "RuntimeError"),
        (same_memory, "own-memory", "changed the frames"),
    ],
)
def test_the_suite_catches_a_backend_that_lies(
    monkeypatch: pytest.MonkeyPatch, lie: Callable[[Decoded, DecodeRequest], Decoded], case: str, words: str
) -> None:
    monkeypatch.setitem(backends_module.BUILT_IN, "liar", "nowhere:Liar")
    monkeypatch.setitem(backends_module._instances, "liar", Liar(lie))
    outcome = run(BY_NAME[case], "liar", seconds=1 if lie is hanging else 60)
    assert outcome.verdict == "fails"
    assert words in outcome.detail


def test_the_suite_passes_one_that_does_not_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backends_module.BUILT_IN, "liar", "nowhere:Liar")
    monkeypatch.setitem(backends_module._instances, "liar", Liar(lambda decoded, request: decoded))
    assert {run(BY_NAME[name], "liar").verdict for name in ("plain", "order", "bad-packet")} == {"same"}


def test_a_declared_difference_excuses_no_wrong_label(monkeypatch: pytest.MonkeyPatch) -> None:
    liar = Liar(neighbour)
    liar.differences = {"plain": "that is how it is"}  # type: ignore[attr-defined]
    liar.tolerances = {"plain": 255}  # type: ignore[attr-defined]
    monkeypatch.setitem(backends_module.BUILT_IN, "liar", "nowhere:Liar")
    monkeypatch.setitem(backends_module._instances, "liar", liar)
    assert run(BY_NAME["plain"], "liar").verdict == "fails"


def table() -> Any:
    spec = importlib.util.spec_from_file_location("table", DOCS / "backends" / "table.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_was_measured() -> None:
    """docs/backends.md is written by scripts/backends-table, not by hand, and knows all cases."""
    measured = json.loads((DOCS / "backends" / "measured.json").read_text())
    assert (DOCS / "backends.md").read_text() == table().page(measured)
    for name, result in measured.items():
        assert [outcome["case"] for outcome in result["outcomes"]] == list(BY_NAME), name
        assert not [outcome for outcome in result["outcomes"] if outcome["verdict"] == "fails"], name


def test_every_option_is_on_the_page_of_its_backend() -> None:
    for name in table().OWN_PAGE:
        page = (DOCS / "backends" / f"{name}.md").read_text()
        for option in get_backend(name).options:
            assert f"`{option}`" in page, f"{name}: {option}"
