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
DAMAGED = [clip for clip in CLIPS.values() if clip.damaged_from]
UNDAMAGED = [clip for clip in CLIPS.values() if clip.num_frames and not (clip.tags & {"part", "damaged"} or clip.lost)]

REFUSED_TAGS: dict[str, set[str]] = {
    "pyav": set(),
    "opencv": {"interlaced", "av1", "gif", "wmv2"},
    "torchcodec": {"gif", "wmv2"},
}
"""Tags of the clips that each backend refuses; it must decode all others."""
DECODED_TAGS: dict[str, set[str]] = {name: {"core"} for name in ("nvdec", "pynvvideocodec", "deepstream")}
"""Tags of the clips that a GPU backend must decode in H.264, 4:2:0 with 8 bits; whether it decodes others depends on
the GPU."""
REFUSED_CLIPS: dict[str, set[str]] = {
    "opencv": {"hevc_main10.mp4", "h264_10bit.mp4", "vp9_10bit.webm", "prores.mov", "hdr.mp4", "hlg.mkv",
               "hlg_rotated.mp4", "h264_bt2020_full.mp4", "display_p3.mp4"},
    "torchcodec": {"hlg_rotated.mp4", "h264_bt2020_full.mp4", "vp9_bt709_full.webm"},
}  # fmt: skip
"""Further clips that each backend refuses. OpenCV converts more than 8 bits, HDR and wide gamut otherwise; TorchCodec
takes full range for limited range, and converts more than 8 bits before they are turned."""
SIZE_CHANGE_TOLERANCE = 8
"""Largest difference from the reference where a library itself scales pictures of another size."""
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
    expected = {"refused"} if case.name in get_backend(name).refused_cases else {"same", "differs"}
    assert outcome.verdict in expected, f"{outcome.case}: {outcome.verdict} ({outcome.detail})"


CPU_BACKENDS = [name for name in BUILT_IN if name != "nvdec"]
GPU_BACKENDS = ["nvdec", "torchcodec", "pynvvideocodec", "deepstream"]


@pytest.mark.parametrize("clip", UNDAMAGED, ids=str)
@pytest.mark.parametrize("name", [name for name in CPU_BACKENDS if name != "pyav"])
def test_every_clip_equals_the_ffmpeg_command_line_or_is_refused_as_declared(name: str, clip: Clip) -> None:
    """``tests/test_exact.py`` has the same for ``pyav``."""
    require_usable(name)
    check_clip(name, clip, "cpu", TOLERANCE)


@pytest.mark.gpu
@pytest.mark.parametrize("clip", UNDAMAGED, ids=str)
@pytest.mark.parametrize("name", GPU_BACKENDS)
def test_every_clip_on_a_gpu_equals_the_ffmpeg_command_line_or_is_refused_as_declared(name: str, clip: Clip) -> None:
    require_usable(name)
    check_clip(name, clip, "cuda", TOLERANCE_ON_GPU)


@pytest.mark.parametrize("clip", DAMAGED, ids=str)
@pytest.mark.parametrize("name", CPU_BACKENDS)
def test_intact_frames_of_damaged_clips_equal_those_of_the_undamaged_clip(name: str, clip: Clip) -> None:
    require_usable(name)
    check_damaged_clip(name, clip, "cpu", TOLERANCE)


@pytest.mark.gpu
@pytest.mark.parametrize("clip", DAMAGED, ids=str)
@pytest.mark.parametrize("name", GPU_BACKENDS)
def test_intact_frames_of_damaged_clips_on_a_gpu_equal_those_of_the_undamaged_clip(name: str, clip: Clip) -> None:
    require_usable(name)
    check_damaged_clip(name, clip, "cuda", TOLERANCE_ON_GPU)


def check_damaged_clip(name: str, clip: Clip, device: str, tolerance: int) -> None:
    """Load all frames of a damaged clip; compare those that the damage does not reach with the undamaged clip."""
    must_refuse, must_decode = expectations(name, clip)
    try:
        frames = telecine.load(clip.path(), backend=name, device=device)
    except telecine.UnsupportedVideoError as error:
        assert not must_decode, f"this clip must not be refused: {error}"
        return
    assert not must_refuse, "this clip was expected to be refused; correct REFUSED_TAGS"
    assert frames.info.num_frames == clip.num_frames
    assert set(frames.indices.tolist()) | set(frames.report.lost) == set(range(clip.num_frames))
    damaged = {*clip.damaged, *clip.lost}
    assert not set(clip.lost) & set(frames.indices.tolist())
    rows = [row for row, index in enumerate(frames.indices.tolist()) if index not in damaged]
    assert len(rows) > 0.3 * clip.num_frames
    intact = CLIPS[str(clip.damaged_from)].reference().frames[frames.indices[rows]]
    assert max_difference(frames.numpy()[rows], intact) <= tolerance


def check_clip(name: str, clip: Clip, device: str, tolerance: int) -> None:
    """Load all frames, a few and the last one, and compare them with those of the ffmpeg command line."""
    reference = clip.reference().frames
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
        allowed = SIZE_CHANGE_TOLERANCE if clip.name == "size_change.ts" and name in REFUSED_TAGS else tolerance
        assert max_difference(pixels, reference[frames.indices]) <= allowed


def expectations(name: str, clip: Clip) -> tuple[bool, bool]:
    """Return whether a backend must refuse a clip, and whether it must decode it."""
    tags = {*clip.tags, str(clip.codec)}
    if name in REFUSED_TAGS:
        must_refuse = bool(tags & REFUSED_TAGS[name]) or clip.name in REFUSED_CLIPS.get(name, ())
        return must_refuse, not must_refuse
    plain = clip.codec == "h264" and clip.bit_depth == 8 and "interlaced" not in tags
    return False, plain and bool(tags & DECODED_TAGS[name])


def test_a_backend_that_refuses_every_video_fails_all_cases_and_clips_that_it_does_not_declare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(decoded: Decoded, request: DecodeRequest) -> Decoded:
        raise telecine.UnsupportedVideoError("no")

    faulty = Faulty(refuse)
    faulty.refused_cases = frozenset({"interlaced", "h264"})
    monkeypatch.setitem(registry._instances, "opencv", faulty)
    verdicts = {case.name: run_case(case, "opencv").verdict for case in CASES}
    # requests that are refused by other parts than the backend
    assert {name for name, verdict in verdicts.items() if verdict != "fails"} == {
        "interlaced", "limits", "invalid-input", "deadline", "options"
    }  # fmt: skip
    for clip in UNDAMAGED[::8]:
        if expectations("opencv", clip)[1]:
            with pytest.raises(AssertionError, match="this clip must not be refused"):
                check_clip("opencv", clip, "cpu", TOLERANCE)


def test_a_refusal_that_is_declared_must_be_one_that_the_suite_allows() -> None:
    """H.264 of 8 bits must be decoded by every backend; only some cases may be refused."""
    for name in BUILT_IN:
        allowed = {case.name for case in CASES if case.may_refuse}
        assert get_backend(name).refused_cases <= allowed
        assert get_backend(name).tolerances.keys() <= CASES_BY_NAME.keys()


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


def test_the_declared_refusals_are_those_that_were_measured() -> None:
    """docs/backends/measured.json has results of real hardware."""
    for name, result in json.loads((DOCS / "backends" / "measured.json").read_text()).items():
        measured = {outcome["case"] for outcome in result["outcomes"]}
        refused = {outcome["case"] for outcome in result["outcomes"] if outcome["verdict"] == "refused"}
        assert refused == get_backend(name.partition(",")[0]).refused_cases & measured, name


def test_the_page_of_backends_shows_the_measured_results() -> None:
    """docs/backends.md is written by scripts/backends-table, not by hand. Cases that are new are not measured yet."""
    measured = json.loads((DOCS / "backends" / "measured.json").read_text())
    assert (DOCS / "backends.md").read_text() == table().page(measured)
    for name, result in measured.items():
        cases = [outcome["case"] for outcome in result["outcomes"]]
        assert cases == [case for case in CASES_BY_NAME if case in cases], name
        assert len(cases) == len(CASES) or get_backend(name.partition(",")[0]).devices != ("cpu",), name
        assert not [outcome for outcome in result["outcomes"] if outcome["verdict"] == "fails"], name


def test_every_option_is_on_the_page_of_its_backend() -> None:
    for name in table().OWN_PAGE:
        page = (DOCS / "backends" / f"{name}.md").read_text()
        for option in get_backend(name).options:
            assert f"`{option}`" in page, f"{name}: {option}"
