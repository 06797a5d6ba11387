"""Sampling policies compared with vLLM's indices, stored and live, and the intended differences."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telecine.errors import OptionsError
from telecine.sampling.policies import POLICIES, ClipFacts, apply_policy, may_be_rounded, policy_defaults
from telecine.timeline import Timeline


def _grid_module() -> Any:
    spec = importlib.util.spec_from_file_location(
        "make_policies", Path(__file__).parents[1] / "support" / "data" / "make_policies.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


grid = _grid_module()
STORED = grid.load()
NOTHING = grid.digest([])
IN_PAIRS = {"qwen2_vl", "glm46v", "glm5next", "glmga", "clef_omni"}


def facts(num_frames: int, fps: float) -> ClipFacts:
    return ClipFacts(num_frames, fps, num_frames / fps if fps else 0.0)


def constant_rate(num_frames: int, fps: Fraction, time_base: Fraction) -> Timeline:
    """A clip as a muxer writes it: every time rounded to a tick."""
    ticks = [round(number / fps / time_base) for number in range(num_frames + 1)]
    return Timeline(np.array(ticks[:-1]), time_base, ticks[-1], np.ones(num_frames, np.bool_))


def ours(policy: str, case: Any) -> str:
    """Our choice in the notation of the stored one."""
    try:
        indices = apply_policy(policy, ClipFacts(case.num_frames, case.fps, case.duration), **case.options)
    except OptionsError:
        return str(grid.RAISES)
    assert indices.dtype == np.int64
    return str(grid.digest(indices.tolist()))


def agrees(policy: str, case: Any, theirs: str) -> bool:
    """Return True if indices equal vLLM's, or the intended ones if vLLM chooses nothing or divides by zero."""
    if theirs == NOTHING:
        theirs = str(grid.digest([0, 0] if policy in IN_PAIRS else [0]))
    if theirs == grid.RAISES and policy == "qwen2_vl" and case.fps > 0 and case.options.get("max_frames", 2) >= 2:
        theirs = str(grid.digest([0, case.num_frames // 2]))
    return ours(policy, case) == theirs


@pytest.mark.parametrize("policy", POLICIES)
def test_policy_indices_equal_the_stored_indices_of_vllm(policy: str) -> None:
    cases = list(grid.cases(policy))
    assert len(cases) == len(STORED[policy]) >= 1000
    wrong = [case for case, theirs in zip(cases, STORED[policy], strict=True) if not agrees(policy, case, theirs)]
    assert not wrong, f"{len(wrong)} of {len(cases)}, such as {wrong[0]}"


def test_stored_vllm_indices_cover_every_policy() -> None:
    assert STORED.keys() == POLICIES.keys() == grid.LOADERS.keys()
    for policy, digests in STORED.items():
        assert len(set(digests)) > 250, policy
        assert digests.count(grid.RAISES) < len(digests) / 2, policy


@pytest.fixture(scope="module")
def vllm_chooses() -> Callable[[str, Any], list[int]]:
    if not grid.vllm_installed():
        pytest.skip("vLLM is not installed; the stored choices are compared instead")
    return grid.vllm_chooser()  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore")  # of vLLM's imports
@pytest.mark.parametrize("policy", POLICIES)
def test_policy_indices_equal_those_of_the_installed_vllm(
    policy: str, vllm_chooses: Callable[[str, Any], list[int]]
) -> None:
    for seed in (1, 2, 3):
        for case in grid.cases(policy, seed=seed):
            assert agrees(policy, case, grid.expected(vllm_chooses, policy, case)), case


@pytest.mark.parametrize("policy", POLICIES)
def test_policy_options_equal_those_of_its_vllm_loader(policy: str) -> None:
    assert set(policy_defaults(policy)) == set(grid.LOADERS[policy][1])


@pytest.mark.parametrize(
    ("policy", "options", "clip", "expected"),
    [
        ("vllm_uniform", {"num_frames": 4}, facts(300, 30), [0, 99, 199, 299]),
        ("vllm_uniform", {"fps": 0.5}, facts(300, 30), [0, 74, 149, 224, 299]),
        ("vllm_dynamic", {}, facts(75, 25), [0, 13, 25, 38, 50, 63]),
        ("qwen3_vl", {}, facts(60, 30), [0, 20, 39, 59]),
        ("qwen2_vl", {}, facts(90, 30), [0, 15, 30, 45, 60, 75]),
        ("glm46v", {}, facts(25, 25), [0, 5, 9, 13, 17, 21]),
        ("clef_omni", {}, facts(75, 30), [0, 15, 30, 45, 60, 60]),
        ("openpangu", {"num_frames": 4}, facts(2, 1), [0, 0, 1]),
        ("llava_onevision2", {}, facts(300, 30), [0, 33, 66, 100, 133, 166, 199, 233, 266, 299]),
    ],
)
def test_policy_indices_of_small_clips(
    policy: str, options: dict[str, float], clip: ClipFacts, expected: list[int]
) -> None:
    assert apply_policy(policy, clip, **options).tolist() == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("num_frames", "count", "position", "exact", "index"),
    [
        (21347, 634, 543, 18282.99842, 18283),  # up to the next frame, in a vector
        (27491, 540, 529, 26930.99815, 26930),  # after the last vector; a vector would make it 26931
        (474, 14, 14, 474.0, 473),  # one more than planned, clamped
    ],
)
def test_float32_steps_are_those_of_pytorch(
    num_frames: int, count: int, position: int, exact: float, index: int
) -> None:
    """Values of ``torch.arange(0, num_frames, num_frames / count).int()``."""
    assert round(position * num_frames / count, 5) == exact
    chosen = apply_policy("qwen2_vl", facts(num_frames, 30), min_frames=count, max_frames=count)
    assert chosen[position] == index


@pytest.mark.parametrize("policy", POLICIES)
def test_policy_chooses_the_only_frame_of_a_clip(policy: str) -> None:
    assert set(apply_policy(policy, facts(1, 25)).tolist()) == {0}


@pytest.mark.parametrize("policy", sorted(IN_PAIRS - {"qwen2_vl"}))  # its float32 steps may add one frame
@given(num_frames=st.integers(1, 1900), fps=st.sampled_from([5.0, 24.0, 30000 / 1001, 60.0]))
@settings(max_examples=60, deadline=None)
def test_policies_for_frame_pairs_choose_an_even_number(policy: str, num_frames: int, fps: float) -> None:
    assert len(apply_policy(policy, facts(num_frames, fps))) % 2 == 0


@given(
    policy=st.sampled_from([*POLICIES]),
    num_frames=st.integers(1, 20_000),
    fps=st.floats(0.05, 300),
    rate=st.floats(0.05, 60),
)
@settings(max_examples=150, deadline=None)
def test_policy_indices_ascend_within_the_clip(policy: str, num_frames: int, fps: float, rate: float) -> None:
    options = {"fps": rate} if "fps" in policy_defaults(policy) else {}
    try:
        indices = apply_policy(policy, facts(num_frames, fps), **options)
    except OptionsError:
        assert policy == "clef_omni"
        return
    assert indices.dtype == np.int64 and len(indices) >= 1
    assert indices[0] >= 0 and indices[-1] < num_frames and (np.diff(indices) >= 0).all()


@pytest.mark.parametrize("policy", ["qwen2_vl", "glm5next", "glmga", "molmo2", "clef_omni"])
def test_policy_that_needs_the_source_rate_refuses_an_unknown_one(policy: str) -> None:
    with pytest.raises(OptionsError, match=rf"policy '{policy}' needs the frame rate"):
        apply_policy(policy, facts(100, 0))


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ("qwen3_vl", {"num_frames": 8}, "policy 'qwen3_vl' does not use num_frames; it takes fps, min_frames, max_fr"),
        ("glm46v", {"fps": 2, "max_frames": 9}, "policy 'glm46v' does not use fps, max_frames; it takes no options"),
        ("gpt", {}, "policy is 'gpt'; it must be one of: clef_omni, "),
        ("embedding_gemma2", {"fps": 61}, "takes fps up to 60, got 61"),
        ("embedding_gemma2", {"max_frames": 129}, "takes max_frames up to 128, got 129"),
        ("qwen2_vl", {"max_frames": 1}, "takes pairs of frames; max_frames is 1"),
        ("clef_omni", {"fps": 30}, "takes clips up to 26 s, this one lasts 33 s"),
        ("openpangu", {"fps": 1e9, "num_frames": 10**12}, "at most 1000000 are allowed"),
        ("molmo2", {"fps": 1e9, "num_frames": 10**12}, "at most 1000000 are allowed"),
        ("glm5next", {"fps": 1e9, "max_frames": 10**12}, "at most 1000000 are allowed"),
    ],
)
def test_policy_refusal_names_the_option(policy: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionsError) as caught:
        apply_policy(policy, facts(1000, 30), **options)
    assert message in str(caught.value)


@pytest.mark.timing
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("fps", [None, 1e9, 1e-9])
def test_policy_is_fast_for_two_hours_at_any_rate(policy: str, fps: float | None) -> None:
    options = {"fps": fps} if "fps" in policy_defaults(policy) else {}
    began = time.perf_counter()
    try:
        apply_policy(policy, facts(216_000, 30), **options)
    except OptionsError:
        assert (policy, fps) in {("clef_omni", None), ("clef_omni", 1e9), ("embedding_gemma2", 1e9)}
    assert time.perf_counter() - began < 1  # some 10 ms; a loop over every frame and option takes far longer


@pytest.mark.parametrize(
    "rate", [Fraction(24), Fraction(25), Fraction(30), Fraction(24000, 1001), Fraction(30000, 1001)]
)
@pytest.mark.parametrize("time_base", [Fraction(1, 1000), Fraction(1, 15360), Fraction(1, 90_000)])
@pytest.mark.parametrize("num_frames", [48, 240, 301, 10_000])
def test_measured_constant_rate_is_exact_for_any_time_base(
    rate: Fraction, time_base: Fraction, num_frames: int
) -> None:
    """vLLM reads the rate from the header; measured on rounded times it would move rules that floor by one frame."""
    measured = ClipFacts.of(constant_rate(num_frames, rate, time_base))
    assert measured == ClipFacts(num_frames, float(rate), num_frames / float(rate))


def test_measured_variable_rate_is_the_average() -> None:
    clip = Timeline(np.array([0, 33, 67, 1000, 4000]), Fraction(1, 1000), 4033, np.ones(5, np.bool_))
    assert ClipFacts.of(clip) == ClipFacts(5, 1.0, 5.0)


@pytest.mark.parametrize(("interval", "expected"), [(1, False), (3, False), (4, True), (33, True)])
def test_ticks_may_be_rounded_only_if_frames_last_several(interval: int, expected: bool) -> None:
    clip = Timeline(np.arange(5) * interval, Fraction(1, 1000), 5 * interval, np.ones(5, np.bool_))
    assert may_be_rounded(clip) is expected
