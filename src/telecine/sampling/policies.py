"""Sampling policies: the frame sampling rules of particular models, as pure functions of three facts about a clip.

A model works best on frames chosen as in its training. Each rule follows the formula of vLLM 0.33 for the model (its
class is named in the docstring) and returns the same indices, effects of float rounding included. The expected values
in the tests come from vLLM itself (``tests/support/data/make_policies.py``).

As in vLLM, a clip is a number of frames at a constant rate. At a variable rate the rules count frames, not time.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from telecine.errors import OptionsError
from telecine.timeline import Timeline
from telecine.validation import format_value

__all__ = ["KEY_FRAMES", "POLICIES", "ClipFacts", "apply_policy", "may_be_rounded", "policy_defaults"]

IntArray = npt.NDArray[np.int64]

KEY_FRAMES = "key_frames"
"""The policy that chooses among key frames. It needs a timeline; :mod:`telecine.sampling.select` has it."""

_MAX_INDICES = 1_000_000
"""Maximum number of indices from a rule without a bound: far above any model, far below the machine's memory."""


@dataclass(frozen=True)
class ClipFacts:
    """The facts about a clip that a rule uses."""

    num_frames: int
    """Number of presentable frames, at least 1."""
    fps: float
    """Frame rate of the source; 0 if unknown."""
    duration: float
    """Seconds, computed as in vLLM: ``num_frames / fps``; 0 if unknown."""

    @classmethod
    def of(cls, timeline: Timeline) -> ClipFacts:
        """Return the facts of a clip, measured on its timeline."""
        fps = _nominal_fps(timeline)
        return cls(timeline.num_frames, fps, timeline.num_frames / fps if fps > 0 else 0.0)

    def require_fps(self) -> float:
        """Return the frame rate of the source. Raises OptionsError if it is unknown."""
        if self.fps <= 0:
            raise OptionsError("needs the frame rate of the source, which is unknown; use num_frames")
        return self.fps

    @property
    def estimated_duration(self) -> float:
        """The duration; if it is unknown, as vLLM estimates it from the number of frames."""
        return self.duration or (round((self.num_frames - 1) / self.fps) + 1 if self.fps > 0 else 0.0)


def may_be_rounded(timeline: Timeline) -> bool:
    """Return True if times may be half a tick off. Times of frames shorter than four ticks are exact, as in AVI."""
    return int(timeline.ticks[-1]) >= 4 * (timeline.num_frames - 1) > 0


def _nominal_fps(timeline: Timeline) -> float:
    """Return the measured rate, corrected for the rounding of times to ticks.

    With millisecond ticks (Matroska, FLV) 240 frames at 24 fps measure 24.0008. A rule that floors duration * fps would
    then choose one frame less than from the same clip in MP4. So a whole rate, or 1000/1001 of it, is preferred if an
    error of one tick can explain the difference.
    """
    if not may_be_rounded(timeline):
        return timeline.average_fps
    gaps, last_tick = timeline.num_frames - 1, int(timeline.ticks[-1])
    measured = Fraction(gaps) / (last_tick * timeline.time_base)
    ntsc = Fraction(1000, 1001)
    candidates = sorted((Fraction(round(measured)), round(measured / ntsc) * ntsc), key=lambda c: abs(c - measured))
    for rate in candidates:
        if rate > 0 and abs(gaps / (rate * timeline.time_base) - last_tick) <= 1:
            return float(rate)
    return float(measured)


def _truncated(num_frames: int, count: int) -> IntArray:
    """Return ``count`` even steps over all frames, truncated; each frame once if there are no more than ``count``.

    The float rounding of the steps belongs to the rules: 6.999... gives 6.
    """
    return np.linspace(0, num_frames - 1, min(count, num_frames), dtype=np.int64)


def _rounded(num_frames: int, count: int) -> IntArray:
    """Return ``count`` even steps over all frames, rounded half to even."""
    return np.linspace(0, num_frames - 1, count).round().astype(np.int64)


def _pad_to_pairs(indices: IntArray) -> IntArray:
    """Repeat the last frame if the count is odd, for encoders that take frames in pairs."""
    return np.append(indices, indices[-1]) if len(indices) % 2 else indices


def _check_count(count: float) -> None:
    if count > _MAX_INDICES:
        raise OptionsError(f"would choose {count:.0f} frames; at most {_MAX_INDICES} are allowed")


def vllm_uniform(facts: ClipFacts, *, num_frames: int = 32, fps: float | None = None) -> IntArray:
    """Choose the smaller of two counts, evenly over the clip: vLLM's rule for other models (``VideoBackend``).

    vLLM's media loader passes 32 frames by default, with ``fps`` or without.
    """
    count = min(num_frames, facts.num_frames)
    if fps is not None:
        count = min(count, math.floor(facts.duration * fps))
    return _truncated(facts.num_frames, max(1, count))


def vllm_dynamic(facts: ClipFacts, *, fps: float = 2.0) -> IntArray:
    """Choose by rate up to 300 s, else as many frames as for 300 s (``DynamicVideoBackend``; GLM-4V)."""
    max_seconds = 300
    last = facts.num_frames - 1
    duration = facts.estimated_duration
    if duration > max_seconds:
        count = int(max_seconds * fps)
        if count >= facts.num_frames:
            return np.arange(facts.num_frames)
        frames = np.ceil(np.linspace(0, duration, count) * facts.fps)
    else:
        count = math.floor(duration * fps)
        if count and 2 * facts.fps <= fps:
            # steps below half a frame skip no frame, and count may be far larger than the clip
            return np.arange(min(last, math.ceil((count - 1) * facts.fps / fps)) + 1)
        frames = np.ceil(np.arange(count) * facts.fps / fps)
    return np.unique(np.minimum(frames, last).astype(np.int64))


def qwen3_vl(facts: ClipFacts, *, fps: float = 2.0, min_frames: int = 4, max_frames: int = 768) -> IntArray:
    """Choose a count by rate within bounds, evenly over the clip, rounded (``Qwen3VLVideoBackend``)."""
    rate = facts.fps if facts.fps > 0 else 24.0
    count = int(facts.num_frames / rate * min(fps, 30))
    count = min(max(count, min_frames), min(max_frames, 768), facts.num_frames)
    return _rounded(facts.num_frames, count)


def qwen2_vl(facts: ClipFacts, *, fps: float = 2.0, min_frames: int = 4, max_frames: int = 768) -> IntArray:
    """Choose an even count by rate within bounds, at float32 steps (``Qwen2VLVideoBackend``; Qwen2-VL, Qwen2.5-VL)."""
    total, seconds = facts.num_frames, facts.num_frames / facts.require_fps()
    if max_frames < 2:
        raise OptionsError(f"takes pairs of frames; max_frames is {max_frames}, it must be at least 2")
    most = min(max_frames, 768, total) // 2 * 2
    if most == 0:
        return np.empty(0, np.int64)
    # vLLM divides by zero if a low rate and min_frames = 1 give less than a pair
    count = max(math.floor(min(max(seconds * min(fps, 30), min_frames), most) / 2) * 2, 2)
    return np.minimum(_float32_steps(total, total / count), total - 1)


def _float32_steps(stop: int, step: float) -> IntArray:
    """Return ``torch.arange(0, stop, step).int()`` as PyTorch computes it on x86.

    Its vector loop makes 8 numbers from one float32 base, two vectors at a time; the rest is computed one by one. In a
    long clip 18282.9984 is rounded to 18283, the next frame. The length is ceil(stop / step), sometimes one more than
    the intended count.
    """
    position = np.arange(math.ceil(stop / step))
    single = (position * step).astype(np.float32)
    base = single[position // 8 * 8].astype(np.float64)
    vector = (base + position % 8 * step).astype(np.float32)
    return np.where(position < len(position) // 16 * 16, vector, single).astype(np.int64)


def _step_frames(facts: ClipFacts, step: float, until: float) -> IntArray:
    """Choose for each multiple of ``step`` below ``until`` the first frame at or after it that is not chosen yet.

    This is the first half of the GLM rules, and chooses frame 0 at least. Multiples are computed as sums, not as
    products, since their rounding decides which frame is the first.
    """
    total = facts.num_frames
    times = np.arange(total) * (1 / facts.fps if facts.fps > 0 else 0.0)
    count = int(min(total, max(until, 0) / step + 3))
    multiples = np.add.accumulate(np.concatenate(([0.0], np.full(count, step))))
    multiples = multiples[: min(count, int(np.searchsorted(multiples[1:], until)) + 1)]
    order = np.arange(len(multiples))
    # a multiple whose frame is chosen already gets the next frame
    picks = order + np.maximum.accumulate(np.searchsorted(times, multiples) - order)
    return picks[picks < total]


def _glm(facts: ClipFacts, count: int, step: float, until: float) -> IntArray:
    """Choose at each multiple of ``step``, or ``count`` frames if that gives another number, each once, in pairs."""
    if facts.num_frames < count:
        picks = np.arange(facts.num_frames)
    else:
        picks = _step_frames(facts, step, until)
        if len(picks) < count:
            picks = np.unique(np.linspace(picks[0], picks[-1], count, dtype=np.int64))
        elif len(picks) > count:
            picks = _truncated(facts.num_frames, count)
    return _pad_to_pairs(picks)


def glm46v(facts: ClipFacts) -> IntArray:
    """Choose at 3, 1 or 0.5 fps by duration, in pairs, at most 640 (``GLM46VVideoBackend``; GLM-4.6V)."""
    duration = facts.estimated_duration
    rate = 3.0 if duration <= 30 else 1.0 if duration <= 300 else 0.5
    return _glm(facts, min(int(min(duration, 2400) * rate * 2), 640), 1 / (2 * rate), int(duration))


def glm5next(facts: ClipFacts, *, fps: float = 2.0, max_frames: int = 2048) -> IntArray:
    """Choose by rate, in pairs (``Glm5NextVideoBackend``; GLM-5.3-Flash).

    Steps are half as long as the rate says, so that most clips end in an even spread over all frames.
    """
    facts.require_fps()
    duration = facts.estimated_duration
    count = min(int(duration * fps), max_frames)
    _check_count(count)
    return _glm(facts, count, 1 / (2 * fps), int(duration))


def glmga(facts: ClipFacts, *, fps: float = 2.0, max_frames: int = 640) -> IntArray:
    """Choose by rate, in pairs, at most 640 (``GLMGAVideoBackend``)."""
    facts.require_fps()
    rate, duration = min(fps, 30), facts.estimated_duration
    count = min(int(duration * rate), max_frames, 640, facts.num_frames)
    return _glm(facts, count, 1 / rate, duration - 1 / rate)


def molmo2(facts: ClipFacts, *, num_frames: int = 64, fps: float = 2.0) -> IntArray:
    """Choose by rate including the last frame, evenly if the clip is too long for that (``Molmo2VideoBackend``).

    This is the mode ``uniform_last_frame``; ``fps`` is the model's ``max_fps``. The defaults are those of
    transformers' ``Molmo2VideoProcessor``, to which vLLM's loader leaves the choice by default. Frames of a source
    slower than ``fps`` are repeated.
    """
    total = facts.num_frames
    if total <= 2:
        return np.arange(total)
    source_fps = facts.require_fps()
    if facts.duration > (num_frames - 1) / fps:
        return _truncated(total, num_frames)
    _check_count((total - 1) / source_fps * fps)
    frames = np.arange(0.0, total - 1, source_fps / fps).round().astype(np.int64)
    return frames if frames[-1] == total - 1 else np.append(frames, total - 1)


def openpangu(facts: ClipFacts, *, num_frames: int = 32, fps: float = 2.0) -> IntArray:
    """Choose by rate, at most ``num_frames``, first to last frame (``OpenCVDynamicOpenPanguVideoBackend``).

    If the clip has too few frames, some are repeated.
    """
    last_time = (facts.num_frames - 1) / facts.fps if facts.fps > 0 else 0.0
    by_rate = int(last_time * fps) + 1
    if num_frames >= by_rate:
        num_frames = by_rate
        last_time = min(last_time, (num_frames - 1) / fps)
    _check_count(num_frames)
    frames = np.rint(np.linspace(0, last_time, num_frames) * facts.fps)
    return np.minimum(frames.astype(np.int64), facts.num_frames - 1)


def clef_omni(facts: ClipFacts, *, fps: float = 2.0) -> IntArray:
    """Choose the first frame from each multiple of 1/fps on, in pairs, at most 768 (``ClefOmniVideoBackend``)."""
    most = 768
    # a multiple up to 1e-6 frames after a frame still chooses that frame
    frames = np.ceil(np.arange(most + 1) * (facts.require_fps() / fps) - 1e-6)
    indices = frames[frames < facts.num_frames].astype(np.int64)
    if len(indices) > most:
        raise OptionsError(
            f"at {fps:g} fps takes clips up to {most / fps:.0f} s, this one lasts "
            f"{facts.duration:.0f} s; choose a window with start and end, or a lower fps"
        )
    return _pad_to_pairs(indices)


def embedding_gemma2(facts: ClipFacts, *, fps: float = 1.0, max_frames: int = 32) -> IntArray:
    """Choose by rate, evenly if too many (``EmbeddingGemma2VideoBackend``). May repeat the last frame."""
    if fps > 60:
        raise OptionsError(f"takes fps up to 60, got {fps:g}")
    if max_frames > 128:
        raise OptionsError(f"takes max_frames up to 128, got {max_frames}")
    total = facts.num_frames
    if facts.fps <= 0 or facts.duration <= 0:
        return _truncated(total, max_frames)
    steps = _truncated(max(1, int(facts.duration * fps)), max_frames)
    return np.minimum((steps * (facts.fps / fps)).astype(np.int64), total - 1)


def minimax_m3_vl(facts: ClipFacts, *, fps: float = 1.0) -> IntArray:
    """Choose frames at least 1/fps s, less 0.1 ms, apart, without a bound (``MiniMaxM3VideoBackend``)."""
    if facts.fps <= 0:
        return np.zeros(1, np.int64)
    interval = 1.0 / fps
    stride = (interval - 1e-4) * facts.fps
    if abs(stride - round(stride)) > 1e-6:
        # the next frame is always the same number of frames away
        return np.arange(0, facts.num_frames, max(1, math.ceil(stride)))
    picks, frame = [], 0
    # the rounding of each single time decides, so each is computed
    while frame < facts.num_frames:
        picks.append(frame)
        frame = max(frame + 1, math.ceil((frame / facts.fps + interval - 1e-4) * facts.fps))
    return np.array(picks, np.int64)


def muse_spark(facts: ClipFacts, *, fps: float = 2.0) -> IntArray:
    """Choose an even count by rate, at most 600, evenly over the clip (``MuseSpark1xOmniVideoBackend``)."""
    total, most = facts.num_frames, 600
    count = min(most, total) if facts.fps <= 0 else min(max(int(total * fps / facts.fps), 2), most, total)
    return _truncated(total, max(2, count // 2 * 2))


def llava_onevision2(facts: ClipFacts, *, num_frames: int = 32, fps: float = 1.0) -> IntArray:
    """Choose an even count by rate, 4 to ``num_frames``, evenly over the clip (``LlavaOnevision2VideoBackend``)."""
    total = facts.num_frames
    wanted = total / facts.fps * fps if facts.fps > 0 else total
    wanted = min(max(wanted, 4), num_frames // 2 * 2, total)
    return _rounded(total, max(math.floor(wanted / 2) * 2, 2))


POLICIES: dict[str, Callable[..., IntArray]] = {
    rule.__name__: rule
    for rule in (
        vllm_uniform, vllm_dynamic, qwen2_vl, qwen3_vl, glm46v, glm5next, glmga, molmo2, openpangu, clef_omni,
        embedding_gemma2, minimax_m3_vl, muse_spark, llava_onevision2,
    )
} | {"glm4v": vllm_dynamic, "nemotron_vl": vllm_uniform}  # fmt: skip
"""Rule by name. A rule takes :class:`ClipFacts` and, by keyword, the options that it has defaults for."""

_PAIRED_POLICIES = frozenset({"qwen2_vl", "glm46v", "glm5next", "glmga"})


def policy_defaults(name: object) -> dict[str, float | None]:
    """Return the options that a policy takes, with the model's defaults. Raises OptionsError for an unknown policy."""
    if not isinstance(name, str) or name not in (KEY_FRAMES, *POLICIES):
        names = ", ".join(sorted([KEY_FRAMES, *POLICIES]))
        raise OptionsError(f"policy is {format_value(name)}; it must be one of: {names}")
    if name == KEY_FRAMES:
        return {"num_frames": None, "max_frames": None}
    parameters = inspect.signature(POLICIES[name]).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}


def apply_policy(name: str, facts: ClipFacts, **options: float | None) -> IntArray:
    """Choose frames by a model's own rule: at least one index, ascending, repeated where the rule pads.

    The options replace the model's defaults, see :func:`policy_defaults`. Some rules choose nothing from very short
    clips. Then the first frame is chosen, twice if the model takes pairs.
    """
    defaults = policy_defaults(name)
    options = {option: value for option, value in options.items() if value is not None}
    if unknown := options.keys() - defaults.keys():
        takes = ", ".join(defaults) or "no options"
        raise OptionsError(f"policy {name!r} does not use {', '.join(sorted(unknown))}; it takes {takes}")
    try:
        indices = POLICIES[name](facts, **options)
    except OptionsError as error:
        raise OptionsError(f"policy {name!r} {error}") from None
    if len(indices) == 0:
        return np.zeros(2 if name in _PAIRED_POLICIES else 1, np.int64)
    return indices
