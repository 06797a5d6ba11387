"""Writes policies.json: the choices of vLLM's own samplers for many clips and options.

Run with an interpreter that has vLLM 0.33 (the pure Python build is enough, no GPU)::

    python tests/support/data/make_policies.py

The real ``load_bytes`` of every loader is called, with its own defaults. Only the decoder is replaced: it returns the
numbers of the frames that it is asked for. Three loaders are in model files whose import needs kernels and more
packages. Their classes, with the constants and functions that they use, are extracted from vLLM's source and executed.

For each policy, the file has four characters per case: a digest of the indices, or ``!!!!`` if vLLM raises. The cases
are not stored; ``cases`` makes them again.
"""

from __future__ import annotations
import __future__

import ast
import base64
import hashlib
import importlib.util
import inspect
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

DATA = Path(__file__).with_name("policies.json")
RAISES = "!!!!"
CASES_EACH = 1400

# policy -> (name in vLLM's registry, options that the policy takes)
LOADERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "vllm_uniform": ("opencv", ("num_frames", "fps")),
    "vllm_dynamic": ("opencv_dynamic", ("fps",)),
    "qwen2_vl": ("qwen2_vl", ("fps", "min_frames", "max_frames")),
    "qwen3_vl": ("qwen3_vl", ("fps", "min_frames", "max_frames")),
    "glm4v": ("opencv_dynamic", ("fps",)),
    "glm46v": ("glm46v", ()),
    "glm5next": ("glm5next", ("fps", "max_frames")),
    "glmga": ("glmga", ("fps", "max_frames")),
    "molmo2": ("molmo2", ("num_frames", "fps")),
    "nemotron_vl": ("nemotron_vl", ("num_frames", "fps")),
    "openpangu": ("openpangu", ("num_frames", "fps")),
    "clef_omni": ("clef_omni", ("fps",)),
    "embedding_gemma2": ("embedding_gemma2", ("fps", "max_frames")),
    "minimax_m3_vl": ("minimax_m3_vl", ("fps",)),
    "muse_spark": ("muse_spark", ("fps",)),
    "llava_onevision2": ("llava_onevision2", ("num_frames", "fps")),
}
IN_MODEL_FILES = {
    "minimax_m3_vl": ("models/minimax_m3/common/mm_preprocess.py", ("MiniMaxM3VideoBackend",)),
    "muse_spark": ("models/muse_spark/common/processor.py", ("PreprocessConfig", "MuseSpark1xOmniVideoBackend")),
    "llava_onevision2": (
        "model_executor/models/llava_onevision2.py",
        (
            "_DEFAULT_FPS",
            "_DEFAULT_MAX_FRAMES",
            "_OV2_FRAME_FACTOR",
            "_OV2_FPS_MIN_FRAMES",
            "_ceil_by_factor",
            "_floor_by_factor",
            "_ov2_smart_nframes",
            "LlavaOnevision2VideoBackend",
        ),
    ),
}

RATES = (25.0, 30.0, 30000 / 1001, 24.0, 24000 / 1001, 60.0, 50.0, 15.0, 12.5, 10.0, 5.0, 2.0, 1.0, 0.5, 120.0, 16.37)
CHOICES: dict[str, tuple[float | None, ...]] = {
    "num_frames": (None, 1, 2, 3, 4, 8, 16, 31, 64, 128, 300, 1000),
    "fps": (None, None, 0.1, 0.5, 1, 2, 2.0, 3, 4, 7.5, 10, 24, 29.97, 30, 60),
    "min_frames": (None, None, 1, 4, 5, 10, 100),
    "max_frames": (None, None, 1, 2, 3, 16, 31, 100, 128, 640, 768, 3000),
}


class Case(NamedTuple):
    num_frames: int
    fps: float
    duration: float
    options: dict[str, float]


def cases(policy: str, count: int = CASES_EACH, seed: int = 0) -> Iterator[Case]:
    """Yield the cases of one policy: short, long, slow, fast and unknown-rate clips, with options of every kind."""
    # RandomState's stream is frozen by numpy's compatibility policy, unlike the newer generators'
    draw = np.random.RandomState(seed + sum(policy.encode()))
    edges = list(itertools.product((1, 2, 3, 4, 5, 8, 59, 60, 61, 300, 451), (*RATES[:8], 0.0)))
    takes = LOADERS[policy][1]
    for number in range(count):
        if number < len(edges):
            frames, fps = edges[number]
        else:
            longest = (30, 300, 3000, 3000, 20_000, 20_000)[number % 6] if number % 50 else 216_000
            frames, fps = int(draw.randint(1, longest + 1)), RATES[draw.randint(len(RATES))]
            if number % 11 == 0:
                fps = 5 + 60 * float(draw.random_sample())
        duration = frames / fps if fps > 0 else 0.0
        if number % 7 == 0 and policy != "molmo2":
            # a container's own duration is not always frames / fps (molmo2's loader asserts that it is)
            duration = float(round(duration * 1.02 + 0.04, 3)) if number % 2 else 0.0
        options = {}
        if number >= len(edges):
            for option in takes:
                value = CHOICES[option][draw.randint(len(CHOICES[option]))]
                if value is not None:
                    options[option] = value
        yield Case(frames, fps, duration, options)


def digest(indices: Sequence[int]) -> str:
    """Four characters: 24 bits of a hash of the indices."""
    text = ",".join(str(int(index)) for index in indices).encode()
    return base64.b85encode(hashlib.sha256(text).digest()[:3]).decode()


def vllm_chooser() -> Callable[[str, Case], list[int]]:
    """Return a function that gives vLLM's choice for a policy and a case.

    Raises:
        ImportError: vLLM is not installed.
    """
    from vllm.multimodal import video
    from vllm.multimodal.media.video import VideoMediaIO

    _add_model_file_loaders(video)
    usual_count = inspect.signature(VideoMediaIO.__init__).parameters["num_frames"].default

    def choose(policy: str, case: Case) -> list[int]:
        def decode(_codec: str, loader: Any, _data: bytes, target: Any, sampling: dict[str, Any], *_: Any, **__: Any):
            source = loader._prepare_source(video.VideoSourceMetadata(case.num_frames, case.fps, case.duration))
            wanted = loader.compute_frames_index_to_sample(source=source, target=target, **sampling)
            return np.array(wanted, np.int64).reshape(-1, 1, 1, 1), source, wanted, list(wanted)

        options: dict[str, Any] = {"num_frames": usual_count, **case.options}
        if policy == "molmo2":
            # the loader alone takes every frame; this is the model's mode, and transformers' count
            options = {"num_frames": 64, **case.options, "frame_sample_mode": "uniform_last_frame"}
            if "fps" in options:
                options["max_fps"] = options.pop("fps")
        real, video.decode_video = video.decode_video, decode
        try:
            frames, _ = video.VIDEO_LOADER_REGISTRY.load(LOADERS[policy][0]).load_bytes(b"", **options)
        finally:
            video.decode_video = real
        return [int(index) for index in frames.ravel()]

    return choose


def _add_model_file_loaders(video: Any) -> None:
    root = Path(video.__file__).parents[1]
    for path, names in IN_MODEL_FILES.values():
        tree = ast.parse((root / path).read_text())
        tree.body = [node for node in tree.body if _defines(node) & set(names)]
        code = compile(tree, path, "exec", flags=__future__.annotations.compiler_flag)
        constants = {"DEFAULT_IMAGE_MEAN": (0.5, 0.5, 0.5), "DEFAULT_IMAGE_STD": (0.5, 0.5, 0.5)}
        module = type(sys)(f"taken_from_{Path(path).stem}")
        sys.modules[module.__name__] = module
        module.__dict__.update(vars(video) | constants | {"np": np, "math": math, "dataclass": dataclass})
        exec(code, module.__dict__)


def _defines(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return set()


def expected(choose: Callable[[str, Case], list[int]], policy: str, case: Case) -> str:
    """Return the four characters of one case."""
    try:
        return digest(choose(policy, case))
    except (ValueError, ZeroDivisionError, AssertionError):
        return RAISES


def main() -> None:
    import vllm

    choose = vllm_chooser()
    table = {policy: "".join(expected(choose, policy, case) for case in cases(policy)) for policy in LOADERS}
    DATA.write_text(json.dumps({"vllm": vllm.__version__, "cases_each": CASES_EACH, "digests": table}, indent=1) + "\n")


def load() -> dict[str, list[str]]:
    """Return the stored digests by policy: four characters per case."""
    stored = json.loads(DATA.read_text())["digests"]
    return {policy: [text[i : i + 4] for i in range(0, len(text), 4)] for policy, text in stored.items()}


def vllm_installed() -> bool:
    return importlib.util.find_spec("vllm") is not None


if __name__ == "__main__":
    main()
