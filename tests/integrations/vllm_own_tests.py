"""A pytest plugin under which vLLM's own tests of video loading run with telecine where they ask for OpenCV.

    python -m pytest -p vllm_own_tests FOLDER_OF_THE_TESTS

``test_vllm_own_suite.py`` runs it and knows what to expect. It supplies what the tests take from elsewhere:

- a picture in place of the one that they would download;
- the sampling class of MiniMax-M3, out of vLLM's source: the module that it is in imports the whole engine.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from support import torchvision_on_cpu

_MINIMAX = "vllm.models.minimax_m3.common.mm_preprocess"


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the process before the tests are imported."""
    torchvision_on_cpu.prepare()
    _make_picture(Path(os.environ["VLLM_ASSETS_CACHE"]) / "vllm_public_assets" / "stop_sign.jpg")
    _supply_minimax()
    if os.environ.get("TELECINE_IN_PLACE_OF_OPENCV"):
        _replace_opencv()


def _make_picture(path: Path) -> None:
    """Colours without black, smooth enough to survive an encoder: that is all the tests ask of it."""
    import numpy as np
    from PIL import Image

    if path.exists():
        return
    down, right = np.mgrid[0:720, 0:1280]
    picture = np.stack([60 + right * 150 // 1280, 60 + down * 150 // 720, 200 - right * 100 // 1280], axis=-1)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture.astype(np.uint8)).save(path, quality=95)


def _supply_minimax() -> None:
    if importlib.util.find_spec("vllm") is None:
        return
    import math

    from vllm.multimodal import video

    root = Path(sys.modules["vllm"].__file__ or "").parent
    source = root.joinpath(*_MINIMAX.split(".")[1:]).with_suffix(".py").read_text()
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "MiniMaxM3VideoBackend"]
    names: dict[str, Any] = {"math": math, "Any": Any, **vars(video)}
    exec(compile(tree, _MINIMAX, "exec"), names)
    parts = _MINIMAX.split(".")
    for depth in range(3, len(parts) + 1):
        name = ".".join(parts[:depth])
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules[_MINIMAX].MiniMaxM3VideoBackend = names["MiniMaxM3VideoBackend"]  # type: ignore[attr-defined]


def _replace_opencv() -> None:
    from telecine.integrations.vllm import register

    register()
    from vllm.multimodal.video_decoders import opencv

    from telecine.integrations.vllm.codec import decode_telecine

    own = opencv.decode_opencv

    def decode(cls: Any, data: Any, target: Any, sampling_kwargs: Any, *, frame_recovery: bool = False) -> Any:
        if frame_recovery:  # vLLM offers it for OpenCV alone
            return own(cls, data, target, sampling_kwargs, frame_recovery=True)
        return decode_telecine(cls, data, target, sampling_kwargs)

    opencv.decode_opencv = decode
