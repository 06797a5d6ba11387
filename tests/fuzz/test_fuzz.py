"""The fuzzer: it is repeatable, it notices each kind of fault, and a minute of it finds no fault that is not known."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import telecine
from fuzz import worker
from fuzz.campaign import Campaign
from fuzz.corpus import SEEDS, load_seed
from fuzz.mutations import MUTATORS, Case, describe_case, make_case
from fuzz.verdicts import HARD_VERDICTS, Finding, check_case
from support.painting import read_number
from telecine.backends.registry import get_backend

MIN_COUNT = 100
KNOWN_FAULTS: dict[str, set[int]] = {
    "opencv": {38, 195, 268},
    "torchcodec": {1, 17, 38, 54, 195},
}
"""Numbers of the cases that still show a fault, by backend."""


def intact(name: str, **expected: Any) -> Case:
    """Return an intact file as a case, with the claims of a mutation."""
    expected = {"identity": "index", "at_risk": frozenset(), **expected}
    return Case(0, load_seed(name), ("none",), load_seed(name).data, **expected)


def judge(case: Case, load: Any, verdict: str) -> list[Finding]:
    """Return the findings with a verdict."""
    return [finding for finding in check_case(case, load)[1] if finding.verdict == verdict]


@pytest.mark.parametrize("name", SEEDS)
def test_intact_files_have_no_finding(name: str) -> None:
    outcome, findings = check_case(intact(name), telecine.load)
    assert (outcome, findings) == ("frames", [])
    seed = load_seed(name)
    numbers = [read_number(picture) for picture in seed.pictures]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert len(seed.packets) >= len(numbers)


def test_a_number_gives_the_same_file_each_time() -> None:
    for number in range(40):
        case = make_case(number)
        assert case.data == make_case(number).data
        assert describe_case(number) == (case.seed.name, case.steps[0].partition(" ")[0])


def test_cases_use_every_mutator_and_every_file() -> None:
    described = [describe_case(number) for number in range(6000)]
    assert {mutator for _, mutator in described} == set(MUTATORS)
    assert {name for name, _ in described} == set(SEEDS)


def test_uncounted_packets_are_found() -> None:
    """A reader that does not count destroyed packets gives later frames lower indices."""

    def load(source: bytes, **options: Any) -> telecine.Frames:
        frames = telecine.load(source)
        return replace(frames[12:], indices=frames.indices[8:-4], timestamps=frames.timestamps[8:-4])

    found = judge(intact("h264.mp4", at_risk=frozenset(range(12))), load, "wrong frame")
    assert found and found[0].detail.startswith("(index, shown): [(8, 12), (9, 13)")


def test_missing_key_frames_are_found() -> None:
    def load(source: bytes, **options: Any) -> telecine.Frames:
        return telecine.load(source)[[k for k in range(36) if k % 12]]

    assert [finding.detail for finding in judge(intact("h264.mp4"), load, "sound frames lost")] == [
        "[0, 12, 24], 3 of 36"
    ]


def test_frames_lost_because_of_a_harmless_unit_are_found() -> None:
    def load(source: bytes, **options: Any) -> telecine.Frames:
        raise telecine.DecodeError("none of 36 wanted frames could be decoded")

    assert len(judge(intact("hevc.mp4"), load, "refused")) == 1


def test_frames_outside_the_damaged_group_must_be_returned() -> None:
    def load(source: bytes, **options: Any) -> telecine.Frames:
        return telecine.load(source)[:12]

    case = intact("h264.mp4", at_risk=frozenset(load_seed("h264.mp4").frames_at_risk({15})))
    assert case.at_risk == set(range(12, 24))
    assert judge(case, load, "sound frames lost")[0].detail.startswith("[24, 25,")


def test_a_frame_with_another_time_is_found() -> None:
    def load(source: bytes, **options: Any) -> telecine.Frames:
        frames = telecine.load(source)
        return replace(frames, data=np.roll(frames.data, 1, 0))

    assert judge(intact("h264.mkv", identity="time"), load, "wrong frame")
    assert judge(intact("h264.mkv", identity="none", at_risk=None), load, "wrong frame")


def test_damage_that_is_not_reported_is_found() -> None:
    def load(source: bytes, **options: Any) -> telecine.Frames:
        frames = telecine.load(source, **options)
        frames.data[-1, 32:, :32] = 0
        return frames

    assert judge(intact("h264.mp4"), load, "hidden damage")[0].detail == "frames [35], 1 of 36"


def test_a_frame_that_differs_if_loaded_alone_is_found() -> None:
    def load(source: bytes, **options: Any) -> telecine.Frames:
        frames = telecine.load(source, **options)
        return frames if len(frames) > 1 else replace(frames, data=frames.data * 0)

    assert judge(intact("h264.mp4"), load, "inconsistent")


def test_contradictions_in_a_result_are_found() -> None:
    def load(source: bytes, **options: Any) -> telecine.Frames:
        frames = telecine.load(source, **options)
        return replace(frames, report=replace(frames.report, lost=(3,)))

    found = judge(intact("h264.mp4"), load, "invalid result")
    assert [finding.detail for finding in found] == ["a frame is both returned and lost"]


def test_foreign_exceptions_and_memory_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(source: bytes, **options: Any) -> telecine.Frames:
        np.ones(64 << 20, np.uint8)
        raise KeyError("stream")

    monkeypatch.setattr(telecine, "load", load)
    monkeypatch.setattr(worker, "_MAX_MEMORY_GROWTH", 32 << 20)
    result = worker.run_case(intact("h264.mp4"), "pyav")
    assert result["outcome"] == "KeyError"
    assert [verdict for verdict, _ in result["findings"]] == ["foreign exception", "memory"]


@pytest.mark.parametrize(
    ("code", "verdict", "detail"),
    [
        (f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})", "crash", "exit status -11"),
        ("import time; time.sleep(60)", "hang", "exit status -9"),
    ],
)
def test_crashes_and_hangs_are_found_and_the_next_case_runs(code: str, verdict: str, detail: str) -> None:
    answer = json.dumps({"outcome": "frames", "seconds": 0, "findings": []})
    script = f"""
import sys
for line in sys.stdin:
    print('{{"case": "a case"}}', flush=True)
    if '"number": 2' in line:
        {code}
    print('{answer}', flush=True)
"""
    campaign = Campaign(("pyav",), case_seconds=3, worker_command=(sys.executable, "-c", script))
    campaign.run([1, 2, 3])
    assert [(record.number, record.verdict, record.case) for record in campaign.records] == [(2, verdict, "a case")]
    assert campaign.records[0].detail.startswith(detail)
    assert campaign.outcomes == {"pyav: frames": 2, f"pyav: {verdict}": 1}


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("backend", "count", "seconds"), [("pyav", 500, 20), ("opencv", 300, 8), ("torchcodec", 300, 8)]
)
def test_a_minute_of_fuzzing_finds_nothing_new(backend: str, count: int, seconds: int) -> None:
    """``python -m tests.fuzz`` goes on for longer; see CONTRIBUTING.md."""
    status = get_backend(backend).status()
    if not status.usable:
        pytest.skip(f"{backend}: {status.reason}")
    campaign = Campaign((backend,))
    campaign.run(range(1, MIN_COUNT + 1))
    campaign.run(range(MIN_COUNT + 1, count + 1), seconds)
    assert campaign.cases >= MIN_COUNT
    assert campaign.outcomes[f"{backend}: frames"] > campaign.cases * 0.5
    known = KNOWN_FAULTS.get(backend, set())
    assert [str(record) for record in campaign.records if record.is_hard and record.number not in known] == []


def test_hidden_damage_is_the_only_kind_of_wrong_pixels_that_is_tolerated() -> None:
    assert "wrong frame" in HARD_VERDICTS and "hidden damage" not in HARD_VERDICTS
