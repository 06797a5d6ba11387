"""Telecine as the decoder of transformers' video processors."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from support.clips import CLIPS

pytest.importorskip("transformers", reason="needs transformers: scripts/test vllm")
pytest.importorskip("torch", reason="needs PyTorch: scripts/test vllm")
pytest.importorskip("torchvision", reason="needs torchvision: scripts/test vllm", exc_type=Exception)

import torch
from transformers import video_processing_utils, video_utils

import telecine
from telecine.integrations.transformers import install
from telecine.sampling.policies import POLICIES

CONSTANT = ["h264_long_gop.mp4", "hevc.mp4", "av1_svt.mp4", "rotated90.mp4"]
PROCESSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2_vl": ("Qwen2VLVideoProcessor", {"do_sample_frames": True, "fps": 2}),
    "qwen3_vl": ("Qwen3VLVideoProcessor", {"size": {"shortest_edge": 4096, "longest_edge": 786_432}}),
    "glm4v": ("Glm4vVideoProcessor", {"size": {"shortest_edge": 112 * 112, "longest_edge": 786_432}}),
    "glm46v": ("Glm46VVideoProcessor", {"size": {"shortest_edge": 112 * 112, "longest_edge": 786_432}}),
    "smolvlm": (
        "SmolVLMVideoProcessor",
        {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}, "num_frames": 6, "fps": 2},
    ),
    "llava_onevision": ("LlavaOnevisionVideoProcessor", {"size": {"height": 32, "width": 32}, "num_frames": 4}),
}


def processor(name: str) -> Any:
    kind, options = PROCESSORS[name]
    module = importlib.import_module(f"transformers.models.{name}.video_processing_{name}")
    return getattr(module, kind)(**options)


def output(name: str, **given: Any) -> Any:
    return processor(name)(return_tensors="pt", return_metadata=True, **given)


def compare(ours: Any, theirs: Any) -> None:
    """Check that tokens and times are equal, and values as close as decoders that differ by two levels make them."""
    for key, value in theirs.items():
        if key == "video_metadata":
            for mine, its in zip(ours[key], value, strict=True):
                assert list(map(float, mine.timestamps)) == pytest.approx(list(map(float, its.timestamps)))
            continue
        assert ours[key].shape == value.shape, key
        if value.dtype.is_floating_point:
            assert (ours[key] - value).abs().max() < 0.1, key
        else:
            assert torch.equal(ours[key], value), key


@pytest.fixture
def installed():
    undo = install()
    yield
    undo()


@pytest.fixture(scope="module")
def own_loader():
    pytest.importorskip("torchcodec", reason="the processors' own loader is torchcodec", exc_type=Exception)


@pytest.mark.parametrize("clip", CONSTANT)
@pytest.mark.parametrize("name", PROCESSORS)
def test_processors_give_the_same_tokens_and_times_as_with_their_own_loader(name, clip, own_loader):
    path = str(CLIPS[clip].path())
    given = {"do_sample_frames": True} if name != "llava_onevision" else {"do_sample_frames": True, "num_frames": 4}
    theirs = output(name, videos=path, **given)
    undo = install()
    try:
        ours = output(name, videos=path, **given)
    finally:
        undo()
    assert {each.video_backend for each in ours["video_metadata"]} == {"telecine"}
    assert {each.video_backend for each in theirs["video_metadata"]} == {"torchcodec"}
    compare(ours, theirs)


@pytest.mark.parametrize("name", [name for name in PROCESSORS if name in POLICIES])
def test_frames_sampled_by_a_models_policy_give_the_same_as_its_own_loader(name, own_loader):
    path = str(CLIPS["h264_long_gop.mp4"].path())
    theirs = output(name, videos=path, do_sample_frames=True)
    frames, metadata = telecine.load(path, policy=name).for_processor()
    ours = output(name, videos=[frames], video_metadata=[metadata], do_sample_frames=False)
    compare(ours, theirs)


def test_several_videos_keep_their_order(installed):
    paths = [str(CLIPS[name].path()) for name in ("h264_long_gop.mp4", "hevc.mp4")]
    found = output("qwen3_vl", videos=paths)
    assert [each.total_num_frames for each in found["video_metadata"]] == [120, 60]


def test_times_of_a_variable_rate_are_true(installed):
    clip = CLIPS["vfr.mp4"]
    _, metadata = video_utils.load_video(str(clip.path()), num_frames=8)
    nearest = [min(abs(time - known) for known in clip.times) for time in metadata.timestamps]
    assert max(nearest) < 1e-3
    _, metadata = telecine.load(clip.path(), num_frames=8).for_processor()
    assert metadata.timestamps == pytest.approx(telecine.load(clip.path(), num_frames=8).timestamps, abs=1e-3)


def test_load_video_calls_sample_indices_fn(installed):
    asked = []

    def choose(metadata: Any, **kwargs: Any) -> Any:
        asked.append((metadata.total_num_frames, metadata.fps, kwargs))
        return torch.tensor([5, 3])

    clip = CLIPS["h264_pyramid.mp4"]
    frames, metadata = video_utils.load_video(str(clip.path()), sample_indices_fn=choose, colour="blue")
    assert asked == [(60, 30.0, {"colour": "blue"})]
    assert metadata.frames_indices == [5, 3]
    assert np.abs(frames.astype(int) - clip.reference().frames[[5, 3]]).max() <= 2
    with pytest.raises(ZeroDivisionError):
        video_utils.load_video(str(clip.path()), sample_indices_fn=lambda metadata: 1 / 0)


def test_the_processors_resize_is_done_while_decoding():
    path = str(CLIPS["h264_pyramid.mp4"].path())
    undo = install(fit="qwen3_vl")
    try:
        frames, _ = video_utils.load_video(path, num_frames=4)
        assert frames.shape == (4, 128, 192, 3)
        fitted = output("qwen3_vl", videos=path, fps=2)
    finally:
        undo()
    undo = install()
    try:
        plain = output("qwen3_vl", videos=path, fps=2)
    finally:
        undo()
    assert torch.equal(fitted["video_grid_thw"], plain["video_grid_thw"])
    assert (fitted["pixel_values_videos"] - plain["pixel_values_videos"]).abs().mean() < 0.05


def test_the_returned_function_restores_the_previous_decoders():
    before = dict(video_utils.VIDEO_DECODERS), video_processing_utils.VideoProcessorMixin.fetch_videos
    install()()
    assert before == (video_utils.VIDEO_DECODERS, video_processing_utils.VideoProcessorMixin.fetch_videos)
