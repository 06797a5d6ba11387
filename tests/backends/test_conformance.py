"""Every backend follows the contract: the conformance suite of the package, and every clip of the tests."""

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
from telecine.backends import BackendStatus, Decoded, DecodeRequest, registry
from telecine.backends.pyav.backend import PyAVBackend
from telecine.backends.registry import BUILT_IN, get_backend
from telecine.testing import CASES, Case, run_case
from telecine.testing.comparison import max_difference

# read at import: the environment of a test is a clean one
REQUIRED = {name for name in os.environ.get("TELECINE_REQUIRE_BACKENDS", "").split(",") if name}
CASES_BY_NAME = {case.name: case for case in CASES}
DOCS = Path(__file__).resolve().parents[2] / "docs"
TOLERANCE = 2
TOLERANCE_ON_GPU = 3
UNDAMAGED = [clip for clip in CLIPS.values() if clip.num_frames and not (clip.tags & {"part", "damaged"} or clip.lost)]

REFUSED_CASES: dict[str, set[str]] = {
    "pyav": set(),
    "nvdec": {"odd-size"},
    "opencv": {"interlaced"},
    "torchcodec": set(),
    "pynvvideocodec": {"interlaced", "odd-size"},
    "deepstream": {"10-bit", "interlaced", "odd-size"},
}
"""Cases of the suite that each backend refuses; it must pass all others."""
REFUSED_TAGS: dict[str, set[str]] = {"opencv": {"interlaced", "av1", "gif", "wmv2"}, "torchcodec": {"gif", "wmv2"}}
"""Tags of the clips that each backend refuses; it must decode all others."""
DECODED_TAGS: dict[str, set[str]] = {"pynvvideocodec": {"core"}, "deepstream": {"core"}}
"""Tags of the clips that a GPU backend must decode in H.264, 4:2:0 with 8 bits; whether it decodes others depends on
the GPU."""
CONVERSION_TOLERANCES = {
    "opencv": {"hevc_main10.mp4": 24, "h264_10bit.mp4": 24, "hdr.mp4": 28, "vp9_10bit.webm": 8, "prores.mov": 4,
               "size_change.ts": 8},
    "torchcodec": {"size_change.ts": 8},
}  # fmt: skip
"""Largest differences from the reference where a library itself converts more than 8 bits or another picture size."""
MISSING_FRAMES = {"torchcodec": {"h264_no_vui.h264", "h264_no_vui.mp4", "h264_no_vui.ts"}}
"""Clips of which FFmpeg drops pictures, because the header does not declare how far they are reordered."""


def require_usable(name: str) -> None:
    """Skip the test if the backend does not work here; fail if ``TELECINE_REQUIRE_BACKENDS`` names it."""
    status = get_backend(name).status()
    if status.usable:
        return
    if name in REQUIRED:
        pytest.fail(f"TELECINE_REQUIRE_BACKENDS names {name}: {status.reason}", pytrace=False)
    pytest.skip(f"{name}: {status.reason}")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("name", BUILT_IN)
def test_backend_passes_the_conformance_suite(name: str, case: Case) -> None:
    require_usable(name)
    outcome = run_case(case, name, device="cuda" if name == "nvdec" else "cpu")
    expected = {"refused"} if case.name in REFUSED_CASES[name] else {"same", "differs"}
    assert outcome.verdict in expected, f"{outcome.case}: {outcome.verdict} ({outcome.detail})"


@pytest.mark.parametrize("clip", UNDAMAGED, ids=str)
@pytest.mark.parametrize("name", [name for name in BUILT_IN if name not in ("pyav", "nvdec")])
def test_every_clip_has_the_right_frames_or_is_refused_as_expected(name: str, clip: Clip) -> None:
    require_usable(name)
    check_clip(name, clip, "cpu", clip.reference().frames, TOLERANCE)


@pytest.mark.gpu
@pytest.mark.parametrize("clip", UNDAMAGED, ids=str)
@pytest.mark.parametrize("name", ["torchcodec", "pynvvideocodec", "deepstream"])
def test_every_clip_on_a_gpu_has_the_right_frames_or_is_refused_as_expected(name: str, clip: Clip) -> None:
    require_usable(name)
    check_clip(name, clip, "cuda", telecine.load(clip.path(), backend="pyav").data, TOLERANCE_ON_GPU)


def check_clip(name: str, clip: Clip, device: str, reference: np.ndarray[Any, Any], tolerance: int) -> None:
    """Load all frames, a few and the last one, and compare them with the reference."""
    must_refuse, must_decode = expectations(name, clip)
    every = list(range(clip.num_frames))
    for wanted in (every, every[:: max(1, len(every) // 5)], every[-1:]):
        try:
            frames = telecine.load(clip.path(), backend=name, indices=wanted, device=device)
        except telecine.UnsupportedVideoError as error:
            assert not must_decode, f"this clip must not be refused: {error}"
            continue
        assert not must_refuse, "this clip was expected to be refused; correct REFUSED_TAGS"
        pixels = frames.numpy()
        assert set(frames.indices.tolist()) | set(frames.report.lost) == set(wanted)
        if clip.name not in MISSING_FRAMES.get(name, ()):
            assert frames.report.lost == ()
        if clip.numbers:
            assert [read_number(image) for image in pixels] == [clip.numbers[i] for i in frames.indices]
        allowed = CONVERSION_TOLERANCES.get(name, {}).get(clip.name, tolerance)
        assert max_difference(pixels, reference[frames.indices]) <= allowed


def expectations(name: str, clip: Clip) -> tuple[bool, bool]:
    """Return whether a backend must refuse a clip, and whether it must decode it."""
    tags = {*clip.tags, str(clip.codec)}
    if name in REFUSED_TAGS:
        must_refuse = bool(tags & REFUSED_TAGS[name])
        return must_refuse, not must_refuse
    plain = clip.codec == "h264" and clip.bit_depth == 8 and "interlaced" not in tags
    return False, plain and bool(tags & DECODED_TAGS[name])


def test_a_backend_that_refuses_every_video_fails_the_suite_and_the_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(decoded: Decoded, request: DecodeRequest) -> Decoded:
        raise telecine.UnsupportedVideoError("no")

    monkeypatch.setitem(registry._instances, "opencv", Faulty(refuse))
    with pytest.raises(AssertionError, match="this video must not be refused"):
        test_backend_passes_the_conformance_suite("opencv", CASES_BY_NAME["h264"])
    with pytest.raises(AssertionError, match="10-bit: refused"):
        test_backend_passes_the_conformance_suite("opencv", CASES_BY_NAME["10-bit"])
    with pytest.raises(AssertionError, match="this clip must not be refused"):
        test_every_clip_has_the_right_frames_or_is_refused_as_expected("opencv", CLIPS["base.mp4"])


def test_required_backends_exist() -> None:
    """A misspelt name in ``TELECINE_REQUIRE_BACKENDS`` would never fail."""
    assert set(BUILT_IN) >= REQUIRED


class Faulty(PyAVBackend):
    """A backend that violates the contract in one way."""

    def __init__(self, fault: Callable[[Decoded, DecodeRequest], Decoded]) -> None:
        self._fault = fault

    def status(self) -> BackendStatus:
        return self.make_status("1")

    def decode(self, request: DecodeRequest) -> Decoded:
        return self._fault(super().decode(request), request)


def return_neighbours(decoded: Decoded, request: DecodeRequest) -> Decoded:
    """Return the previous frame for each frame."""
    frames = np.maximum(request.plan.frames - 1, 0)
    data = telecine.load(request.source.data, indices=frames, backend="pyav").data
    return replace(decoded, data=data)


def lose_last_frame(decoded: Decoded, request: DecodeRequest) -> Decoded:
    """Report the last frame of the video as lost."""
    kept = decoded.kept & (request.plan.frames != request.index.num_frames - 1)
    return replace(decoded, kept=kept)


def swap_frames(decoded: Decoded, request: DecodeRequest) -> Decoded:
    """Exchange two frames."""
    return replace(decoded, data=decoded.data[[1, 0, *range(2, len(decoded.data))]])


def repeat_intact_frame(decoded: Decoded, request: DecodeRequest) -> Decoded:
    """Replace a damaged frame by the last intact one."""
    data = decoded.data.copy()
    for row in np.flatnonzero(~decoded.kept):
        data[row] = data[max(0, row - 1)]
    return replace(decoded, data=data, kept=np.ones_like(decoded.kept))


def brighten(decoded: Decoded, request: DecodeRequest) -> Decoded:
    return replace(decoded, data=np.clip(decoded.data.astype(np.int16) + 6, 0, 255).astype(np.uint8))


def hang(decoded: Decoded, request: DecodeRequest) -> Decoded:
    time.sleep(3)
    return decoded


def raise_library_error(decoded: Decoded, request: DecodeRequest) -> Decoded:
    raise RuntimeError("CUDA error 700")


_shared: dict[Any, Any] = {}


def reuse_buffer(decoded: Decoded, request: DecodeRequest) -> Decoded:
    """Return frames in a buffer that the next request writes to."""
    buffer = _shared.setdefault(decoded.data.shape, np.empty_like(decoded.data))
    buffer[:] = decoded.data
    return replace(decoded, data=buffer)


@pytest.mark.parametrize(
    ("fault", "case", "words"),
    [
        (return_neighbours, "h264", "painted numbers"),
        (return_neighbours, "edit-list", "painted numbers"),
        (lose_last_frame, "h264", "indices"),
        (swap_frames, "order", "painted numbers"),
        (repeat_intact_frame, "corrupt-packet", "indices"),
        (brighten, "bt709", "colour"),
        (brighten, "h264", "pixels differ"),
        (hang, "h264", "no result within 1 s"),
        (raise_library_error, "h264", "RuntimeError"),
        (reuse_buffer, "memory", "changed the frames"),
    ],
)
def test_the_suite_notices_a_faulty_backend(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[Decoded, DecodeRequest], Decoded], case: str, words: str
) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "faulty", "nowhere:Faulty")
    monkeypatch.setitem(registry._instances, "faulty", Faulty(fault))
    outcome = run_case(CASES_BY_NAME[case], "faulty", seconds=1 if fault is hang else 60)
    assert outcome.verdict == "fails"
    assert words in outcome.detail


def test_the_suite_passes_a_backend_without_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "faulty", "nowhere:Faulty")
    monkeypatch.setitem(registry._instances, "faulty", Faulty(lambda decoded, request: decoded))
    assert {run_case(CASES_BY_NAME[name], "faulty").verdict for name in ("h264", "order", "corrupt-packet")} == {"same"}


def test_a_declared_difference_does_not_allow_wrong_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    faulty = Faulty(return_neighbours)
    faulty.detects_damage = False
    faulty.tolerances = {"h264": 255}
    monkeypatch.setitem(registry.BUILT_IN, "faulty", "nowhere:Faulty")
    monkeypatch.setitem(registry._instances, "faulty", faulty)
    assert run_case(CASES_BY_NAME["h264"], "faulty").verdict == "fails"


def table() -> Any:
    spec = importlib.util.spec_from_file_location("table", DOCS / "backends" / "table.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_expected_refusals_are_those_that_were_measured() -> None:
    """docs/backends/measured.json has results of real hardware."""
    for name, result in json.loads((DOCS / "backends" / "measured.json").read_text()).items():
        refused = {outcome["case"] for outcome in result["outcomes"] if outcome["verdict"] == "refused"}
        assert refused == REFUSED_CASES[name.partition(",")[0]], name


def test_the_page_of_backends_shows_the_measured_results() -> None:
    """docs/backends.md is written by scripts/backends-table, not by hand, and knows all cases."""
    measured = json.loads((DOCS / "backends" / "measured.json").read_text())
    assert (DOCS / "backends.md").read_text() == table().page(measured)
    for name, result in measured.items():
        assert [outcome["case"] for outcome in result["outcomes"]] == list(CASES_BY_NAME), name
        assert not [outcome for outcome in result["outcomes"] if outcome["verdict"] == "fails"], name


def test_every_option_is_on_the_page_of_its_backend() -> None:
    for name in table().OWN_PAGE:
        page = (DOCS / "backends" / f"{name}.md").read_text()
        for option in get_backend(name).options:
            assert f"`{option}`" in page, f"{name}: {option}"
