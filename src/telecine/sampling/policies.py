"""The frame sampling rules of particular models, as pure functions of three facts about a clip.

A model is at its best on frames chosen the way its training chose them. Each rule here is written from the formula that
vLLM 0.33 applies for the model (its class is named in the docstring) and gives the same indices, including what float
rounding does to them; ``tests/support/data/make_policies.py`` derives the expected values from vLLM itself.

The rules see a clip as vLLM does: so many frames at one constant rate. On a clip with a variable frame rate they
therefore count frames, not time.
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

__all__ = ["POLICIES", "ClipFacts", "apply_policy", "may_be_rounded", "policy_defaults"]

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_MOST_PICKS = 1_000_000
"""Indices that a rule without a bound of its own may make: far above any model, far below the machine's memory."""


@dataclass(frozen=True)
class ClipFacts:
    """What a rule may know about a clip."""

    num_frames: int
    """Presentable frames, at least 1."""
    fps: float
    """Source rate in frames per second; 0 when unknown."""
    duration: float
    """Seconds, as vLLM has it: ``num_frames / fps``; 0 when unknown."""

    @classmethod
    def of(cls, timeline: Timeline) -> ClipFacts:
        """The facts of a clip, measured on its timeline."""
        fps = _nominal_fps(timeline)
        return cls(timeline.num_frames, fps, timeline.num_frames / fps if fps > 0 else 0.0)


def may_be_rounded(timeline: Timeline) -> bool:
    """Whether times may be half a tick off; not where a frame lasts under four ticks: those are exact, as in AVI."""
    return int(timeline.ticks[-1]) >= 4 * (timeline.num_frames - 1) > 0


def _nominal_fps(timeline: Timeline) -> float:
    """The measured rate, freed from the rounding of the times to ticks.

    Millisecond ticks (Matroska, FLV) make 240 frames of 24 fps measure 24.0008. A rule that floors duration * fps would
    then pick one frame less than for the same clip in MP4, so a whole rate, or its 1000/1001, is preferred wherever one
    tick of error can explain the difference.
    """
    if not may_be_rounded(timeline):
        return timeline.average_fps
    gaps, span = timeline.num_frames - 1, int(timeline.ticks[-1])
    measured = Fraction(gaps) / (span * timeline.time_base)
    ntsc = Fraction(1000, 1001)
    candidates = sorted((Fraction(round(measured)), round(measured / ntsc) * ntsc), key=lambda c: abs(c - measured))
    for rate in candidates:
        if rate > 0 and abs(gaps / (rate * timeline.time_base) - span) <= 1:
            return float(rate)
    return float(measured)


def _spaced(first: float, last: float, count: int) -> IntArray:
    """``count`` even steps from first to last, truncated. The float step is part of the rules: 6.999... becomes 6."""
    return np.linspace(first, last, count, dtype=np.int64)


def _rounded(num_frames: int, count: int) -> IntArray:
    """``count`` even steps over all frames, rounded half to even."""
    return np.linspace(0, num_frames - 1, count).round().astype(np.int64)


def _even(indices: IntArray) -> IntArray:
    """An even count, for encoders that take frames in pairs: the last frame is repeated if need be."""
    return np.append(indices, indices[-1]) if len(indices) % 2 else indices


def _require_fps(facts: ClipFacts, model: str) -> None:
    if facts.fps <= 0:
        raise OptionsError(f"policy {model!r} needs the frame rate of the source, which is unknown; use num_frames")


def _check_size(count: float, model: str) -> None:
    if count > _MOST_PICKS:
        raise OptionsError(f"policy {model!r} would pick {count:.0f} frames; at most {_MOST_PICKS} are allowed")


def vllm_uniform(facts: ClipFacts, *, num_frames: int = 32, fps: float | None = None) -> IntArray:
    """vLLM's fallback for models without a rule (``VideoBackend``): the smaller of two counts, evenly over the clip.

    32 is what vLLM's media loader passes when nobody says otherwise, with ``fps`` or without.
    """
    count = min(num_frames, facts.num_frames)
    if fps is not None:
        count = min(count, math.floor(facts.duration * fps))
    count = max(1, count)
    return np.arange(count) if count == facts.num_frames else _spaced(0, facts.num_frames - 1, count)


def vllm_dynamic(facts: ClipFacts, *, fps: float = 2.0) -> IntArray:
    """By rate up to 300 s, else 300 s' worth of frames over the whole clip (``DynamicVideoBackend``; GLM-4V)."""
    longest = 300
    last = facts.num_frames - 1
    duration = facts.duration or _estimated_duration(facts)
    if duration > longest:
        count = int(longest * fps)
        if count >= facts.num_frames:
            return np.arange(facts.num_frames)
        frames = np.ceil(np.linspace(0, duration, count) * facts.fps)
    else:
        count = math.floor(duration * fps)
        if count and 2 * facts.fps <= fps:
            # less than half a frame a step: no frame is jumped, and count may be far larger than the clip
            return np.arange(min(last, math.ceil((count - 1) * facts.fps / fps)) + 1)
        frames = np.ceil(np.arange(count) * facts.fps / fps)
    return np.unique(np.minimum(frames, last).astype(np.int64))


def _estimated_duration(facts: ClipFacts) -> float:
    return round((facts.num_frames - 1) / facts.fps) + 1 if facts.fps > 0 else 0.0


def qwen3_vl(facts: ClipFacts, *, fps: float = 2.0, min_frames: int = 4, max_frames: int = 768) -> IntArray:
    """Count by rate within bounds, evenly over the clip, rounded (``Qwen3VLVideoBackend``)."""
    rate = facts.fps if facts.fps > 0 else 24.0
    count = int(facts.num_frames / rate * min(fps, 30))
    count = min(max(count, min_frames), min(max_frames, 768), facts.num_frames)
    return _rounded(facts.num_frames, count)


def qwen2_vl(facts: ClipFacts, *, fps: float = 2.0, min_frames: int = 4, max_frames: int = 768) -> IntArray:
    """Even count by rate within bounds, at float32 steps (``Qwen2VLVideoBackend``; Qwen2-VL and Qwen2.5-VL)."""
    _require_fps(facts, "qwen2_vl")
    if max_frames < 2:
        raise OptionsError(
            f"policy 'qwen2_vl' takes pairs of frames; max_frames is {max_frames}, it must be at least 2"
        )
    total = facts.num_frames
    most = min(max_frames, 768, total) // 2 * 2
    wanted = min(max(total / facts.fps * min(fps, 30), min_frames), most)
    if most == 0:
        return np.empty(0, np.int64)
    # vLLM divides by zero where low rates and min_frames = 1 ask for less than a pair
    count = max(math.floor(wanted / 2) * 2, 2)
    return np.minimum(_float32_steps(total, total / count), total - 1)


def _float32_steps(stop: int, step: float) -> IntArray:
    """``torch.arange(0, stop, step).int()`` as PyTorch computes it on x86.

    Its vector loop makes 8 numbers from one float32 base, two vectors at a time; what is left over is computed one by
    one. In a long clip the rounding takes 18282.9984 to 18283, so to the next frame. The length is that of
    ceil(stop / step), which is sometimes one more than planned.
    """
    position = np.arange(math.ceil(stop / step))
    single = (position * step).astype(np.float32)
    base = single[position // 8 * 8].astype(np.float64)
    vector = (base + position % 8 * step).astype(np.float32)
    return np.where(position < len(position) // 16 * 16, vector, single).astype(np.int64)


def _walk(facts: ClipFacts, step: float, until: float) -> IntArray:
    """The GLM walk: for each multiple of ``step`` below ``until``, the first frame at or after it not yet taken.

    At least frame 0. The multiples are sums, not products: their rounding decides which frame is first.
    """
    total = facts.num_frames
    times = np.arange(total) * (1 / facts.fps if facts.fps > 0 else 0.0)
    count = int(min(total, max(until, 0) / step + 3))
    marks = np.add.accumulate(np.concatenate(([0.0], np.full(count, step))))
    marks = marks[: min(count, int(np.searchsorted(marks[1:], until)) + 1)]
    order = np.arange(len(marks))
    # one frame serves one mark: a mark whose frame is taken gets the next one
    picks = order + np.maximum.accumulate(np.searchsorted(times, marks) - order)
    return picks[picks < total]


def _settle(picks: IntArray, want: int, num_frames: int) -> IntArray:
    """The GLM correction of a walk's count, without repeats."""
    if len(picks) < want:
        picks = _spaced(picks[0], picks[-1], want)
    elif len(picks) > want:
        picks = _spaced(0, num_frames - 1, want)
    return np.unique(picks)


def glm46v(facts: ClipFacts) -> IntArray:
    """3, 1 or 0.5 fps by duration, in pairs, at most 640 (``GLM46VVideoBackend``; GLM-4.6V)."""
    total = facts.num_frames
    duration = facts.duration or _estimated_duration(facts)
    rate = 3.0 if duration <= 30 else 1.0 if duration <= 300 else 0.5
    want = min(int(min(duration, 2400) * rate * 2), 640)
    picks = _spaced(0, total - 1, want) if total < want else _walk(facts, 1 / (2 * rate), int(duration))
    return _even(_settle(picks, want, total))


def glm5next(facts: ClipFacts, *, fps: float = 2.0, max_frames: int = 2048) -> IntArray:
    """By rate, in pairs (``Glm5NextVideoBackend``; GLM-5.3-Flash).

    The walk goes at twice the rate, so most clips end in an even spread over all frames.
    """
    _require_fps(facts, "glm5next")
    total = facts.num_frames
    duration = facts.duration or _estimated_duration(facts)
    want = min(int(duration * fps), max_frames)
    _check_size(want, "glm5next")
    picks = np.arange(want) * total // want if total < want else _walk(facts, 1 / (2 * fps), int(duration))
    return _even(_settle(picks, want, total))


def glmga(facts: ClipFacts, *, fps: float = 2.0, max_frames: int = 640) -> IntArray:
    """By rate, in pairs, at most 640 (``GLMGAVideoBackend``)."""
    _require_fps(facts, "glmga")
    rate = min(fps, 30)
    duration = facts.duration or _estimated_duration(facts)
    want = min(int(duration * rate), max_frames, 640, facts.num_frames)
    return _even(_settle(_walk(facts, 1 / rate, duration - 1 / rate), want, facts.num_frames))


def molmo2(facts: ClipFacts, *, num_frames: int = 64, fps: float = 2.0) -> IntArray:
    """By rate including the last frame, or evenly when the clip is too long for that (``Molmo2VideoBackend``).

    This is the mode ``uniform_last_frame``; ``fps`` is the model's ``max_fps``. The defaults are those of
    transformers' ``Molmo2VideoProcessor``: vLLM's loader, told nothing, hands over every frame and leaves the choice to
    it. On a source slower than ``fps`` frames are repeated.
    """
    total = facts.num_frames
    if total <= 2:
        return np.arange(total)
    _require_fps(facts, "molmo2")
    if facts.duration > (num_frames - 1) / fps:
        return np.linspace(0, total - 1, min(num_frames, total)).astype(np.int64)
    _check_size((total - 1) / facts.fps * fps, "molmo2")
    frames = np.arange(0.0, total - 1, facts.fps / fps).round().astype(np.int64)
    return frames if frames[-1] == total - 1 else np.append(frames, total - 1)


def openpangu(facts: ClipFacts, *, num_frames: int = 32, fps: float = 2.0) -> IntArray:
    """By rate, at most ``num_frames``; from the first frame to the last (``OpenCVDynamicOpenPanguVideoBackend``).

    A clip with fewer frames than times gives some frames more than once.
    """
    last_time = (facts.num_frames - 1) / facts.fps if facts.fps > 0 else 0.0
    by_rate = int(last_time * fps) + 1
    if num_frames >= by_rate:
        num_frames = by_rate
        last_time = min(last_time, (num_frames - 1) / fps)
    _check_size(num_frames, "openpangu")
    frames = np.rint(np.linspace(0, last_time, num_frames) * facts.fps)
    return np.minimum(frames.astype(np.int64), facts.num_frames - 1)


def clef_omni(facts: ClipFacts, *, fps: float = 2.0) -> IntArray:
    """The first frame at or after each multiple of 1/fps, in pairs, at most 768 (``ClefOmniVideoBackend``)."""
    _require_fps(facts, "clef_omni")
    most = 768
    # a boundary 1e-6 frames past a frame still counts as that frame's
    frames = np.ceil(np.arange(most + 1) * (facts.fps / fps) - 1e-6)
    indices = frames[frames < facts.num_frames].astype(np.int64)
    if len(indices) > most:
        raise OptionsError(
            f"policy 'clef_omni' at {fps:g} fps takes clips up to {most / fps:.0f} s, this one lasts "
            f"{facts.duration:.0f} s; choose a window with start and end, or a lower fps"
        )
    return _even(indices)


def embedding_gemma2(facts: ClipFacts, *, fps: float = 1.0, max_frames: int = 32) -> IntArray:
    """By rate, spread evenly when that is too many (``EmbeddingGemma2VideoBackend``). May repeat the last frame."""
    if fps > 60:
        raise OptionsError(f"policy 'embedding_gemma2' takes fps up to 60, got {fps:g}")
    if max_frames > 128:
        raise OptionsError(f"policy 'embedding_gemma2' takes max_frames up to 128, got {max_frames}")
    total = facts.num_frames
    if facts.fps <= 0 or facts.duration <= 0:
        return np.arange(total) if total <= max_frames else _spaced(0, total - 1, max_frames)
    count = max(1, int(facts.duration * fps))
    steps = np.arange(count) if count <= max_frames else _spaced(0, count - 1, max_frames)
    return np.minimum((steps * (facts.fps / fps)).astype(np.int64), total - 1)


def minimax_m3_vl(facts: ClipFacts, *, fps: float = 1.0) -> IntArray:
    """The first frame at least 1/fps s, less 0.1 ms, after the one before (``MiniMaxM3VideoBackend``). No bound."""
    if facts.fps <= 0:
        return np.zeros(1, np.int64)
    interval = 1.0 / fps
    stride = (interval - 1e-4) * facts.fps
    if abs(stride - round(stride)) > 1e-6:
        # from a whole frame on, the next is always the same number of frames away
        return np.arange(0, facts.num_frames, max(1, math.ceil(stride)))
    picks, frame = [], 0
    # the rounding of each single time decides, so it has to be followed
    while frame < facts.num_frames:
        picks.append(frame)
        frame = max(frame + 1, math.ceil((frame / facts.fps + interval - 1e-4) * facts.fps))
    return np.array(picks, np.int64)


def muse_spark(facts: ClipFacts, *, fps: float = 2.0) -> IntArray:
    """Even count by rate, at most 600, evenly over the clip (``MuseSpark1xOmniVideoBackend``)."""
    total, most = facts.num_frames, 600
    count = min(most, total) if facts.fps <= 0 else min(max(int(total * fps / facts.fps), 2), most, total)
    count = max(2, count // 2 * 2)
    return np.arange(total) if count >= total else _spaced(0, total - 1, count)


def llava_onevision2(facts: ClipFacts, *, num_frames: int = 32, fps: float = 1.0) -> IntArray:
    """Even count by rate, 4 to ``num_frames``, evenly over the clip (``LlavaOnevision2VideoBackend``)."""
    total = facts.num_frames
    wanted = total / facts.fps * fps if facts.fps > 0 else total
    wanted = min(max(wanted, 4), num_frames // 2 * 2, total)
    return _rounded(total, max(math.floor(wanted / 2) * 2, 2))


POLICIES: dict[str, Callable[..., IntArray]] = {
    "vllm_uniform": vllm_uniform,
    "vllm_dynamic": vllm_dynamic,
    "qwen2_vl": qwen2_vl,
    "qwen3_vl": qwen3_vl,
    "glm4v": vllm_dynamic,
    "glm46v": glm46v,
    "glm5next": glm5next,
    "glmga": glmga,
    "molmo2": molmo2,
    "nemotron_vl": vllm_uniform,
    "openpangu": openpangu,
    "clef_omni": clef_omni,
    "embedding_gemma2": embedding_gemma2,
    "minimax_m3_vl": minimax_m3_vl,
    "muse_spark": muse_spark,
    "llava_onevision2": llava_onevision2,
}
"""Name -> rule. A rule takes :class:`ClipFacts` and, by keyword, the options it has defaults for."""

_IN_PAIRS = frozenset({"qwen2_vl", "glm46v", "glm5next", "glmga"})


def policy_defaults(name: str) -> dict[str, float | None]:
    """The options a policy takes, each with the model's default.

    Raises:
        OptionsError: there is no such policy.
    """
    if name not in POLICIES:
        raise OptionsError(f"policy is {name!r}; it must be one of: {', '.join(sorted(POLICIES))}")
    parameters = inspect.signature(POLICIES[name]).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}


def apply_policy(
    name: str,
    facts: ClipFacts,
    *,
    num_frames: int | None = None,
    fps: float | None = None,
    min_frames: int | None = None,
    max_frames: int | None = None,
) -> IntArray:
    """Choose frames by a model's own rule.

    Where vLLM's rule picks nothing, as some do for clips of a few frames, the first frame is taken, twice if the model
    wants pairs.

    Args:
        name: a key of :data:`POLICIES`.
        facts: the clip, or the part of it to choose from.
        num_frames, fps, min_frames, max_frames: what to use instead of the model's defaults, see
            :func:`policy_defaults`.

    Returns:
        ``int64 [N]`` indices in ascending order, N at least 1, repeated where the rule pads.

    Raises:
        OptionsError: no such policy, an option that it does not take, or a clip that it refuses.
    """
    defaults = policy_defaults(name)
    given = {"num_frames": num_frames, "fps": fps, "min_frames": min_frames, "max_frames": max_frames}
    options = {option: value for option, value in given.items() if value is not None}
    if unknown := options.keys() - defaults.keys():
        takes = ", ".join(defaults) or "no options"
        raise OptionsError(f"policy {name!r} does not use {', '.join(sorted(unknown))}; it takes {takes}")
    indices = POLICIES[name](facts, **options)
    if len(indices) == 0:
        return np.zeros(2 if name in _IN_PAIRS else 1, np.int64)
    return indices
