"""Telecine as a reader of qwen-vl-utils."""

from __future__ import annotations

from typing import Any

import pytest

from support.clips import CLIPS

pytest.importorskip("torch", reason="needs PyTorch: scripts/test vllm")
pytest.importorskip("torchvision", reason="needs torchvision: scripts/test vllm", exc_type=Exception)
pytest.importorskip("qwen_vl_utils", reason="needs qwen-vl-utils: scripts/test vllm")

import torch
from qwen_vl_utils import vision_process as engine

from telecine.integrations.qwen_vl_utils import install


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.setattr(engine, "FORCE_QWENVL_VIDEO_READER", None)
    monkeypatch.setattr(engine, "VIDEO_READER_BACKENDS", dict(engine.VIDEO_READER_BACKENDS))
    yield
    engine.get_video_reader_backend.cache_clear()


def fetch(ele: dict[str, Any], **options: Any) -> Any:
    return engine.fetch_video(ele, return_video_metadata=True, return_video_sample_fps=True, **options)


CASES = [
    {},
    {"fps": 4},
    {"nframes": 8},
    {"video_start": 1.0, "video_end": 3.0},
    {"min_pixels": 56 * 56, "max_pixels": 112 * 112},
    {"total_pixels": 56 * 56 * 40, "min_pixels": 28 * 28},
    {"resized_height": 100, "resized_width": 60},
]


@pytest.mark.parametrize("patch", [14, 16])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_frames_and_sizes_are_those_of_the_torchcodec_reader(case, patch, monkeypatch):
    pytest.importorskip("torchcodec", reason="compares with torchcodec", exc_type=Exception)
    ele = {"video": str(CLIPS["h264_long_gop.mp4"].path()), **case}
    (theirs, told), rate = fetch(ele, image_patch_size=patch)
    install(image_patch_size=None)
    (ours, tells), our_rate = fetch(ele, image_patch_size=patch)
    assert (tells["frames_indices"], tells["fps"], our_rate) == (told["frames_indices"], told["fps"], rate)
    assert (ours - theirs).abs().max() <= 2.5
    install(image_patch_size=patch)
    (fused, _), _ = fetch(ele, image_patch_size=patch)
    assert fused.shape == theirs.shape
    assert (fused - theirs).abs().mean() < 12


def test_the_reader_returns_frames_of_their_final_size():
    install(image_patch_size=16)
    frames, metadata, _ = engine.VIDEO_READER_BACKENDS["telecine"](
        {"video": CLIPS["h264_long_gop.mp4"].path().as_uri(), "max_pixels": 96 * 64, "min_pixels": 32 * 32}
    )
    assert frames.shape[2:] == (64, 64)
    assert frames.dtype == torch.uint8
    assert metadata["total_num_frames"] == 120


def test_total_num_frames_of_a_window_is_that_of_the_video():
    install()
    ele = {"video": str(CLIPS["h264_long_gop.mp4"].path()), "video_start": 1.0}
    (_, metadata), _ = fetch(ele)
    assert metadata["total_num_frames"] == 120
    assert metadata["frames_indices"][0] == 30


def test_without_force_the_environment_variable_selects_the_reader(monkeypatch):
    install(force=False)
    assert engine.get_video_reader_backend() != "telecine"
    monkeypatch.setattr(engine, "FORCE_QWENVL_VIDEO_READER", "telecine")  # what the variable sets at import
    engine.get_video_reader_backend.cache_clear()
    assert engine.get_video_reader_backend() == "telecine"
    monkeypatch.setattr(engine, "FORCE_QWENVL_VIDEO_READER", None)
    install()
    assert engine.get_video_reader_backend() == "telecine"
