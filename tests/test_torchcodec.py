"""What is TorchCodec's own: its options, its devices, and where its libraries are missing."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import telecine
from clips import CLIPS
from telecine.backends.torchcodec import TorchCodecBackend
from telecine.contract.clips import clip


def test_missing_ffmpeg_libraries_are_one_line_and_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """TorchCodec raises a RuntimeError of many lines then."""

    class Broken:
        def find_spec(self, name: str, *_: Any) -> Any:
            if name == "torchcodec":
                raise RuntimeError("Could not load libtorchcodec.\nLikely causes:\n  1. FFmpeg is not installed")

    monkeypatch.delitem(sys.modules, "torchcodec", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    status = TorchCodecBackend().status()
    assert not status.usable
    assert status.reason is not None
    assert "apt-get install ffmpeg" in status.reason
    assert "\n" not in status.reason


@pytest.fixture
def torch() -> Any:
    try:
        import torchcodec.decoders  # noqa: F401
    except Exception as error:
        pytest.skip(f"no TorchCodec here: {error}".splitlines()[0])
    import torch

    return torch


@pytest.mark.parametrize("name", ["h264_pyramid.mp4", "vfr.mp4", "trimmed.mp4", "ntsc.mp4", "vp9_altref.webm"])
def test_approximate_is_exact(torch: Any, name: str) -> None:
    """It is told where the frames are, and need not guess from a rate."""
    exact = telecine.load(CLIPS[name].path(), backend="torchcodec", seek_mode="exact")
    other = telecine.load(CLIPS[name].path(), backend="torchcodec", seek_mode="approximate")
    assert np.array_equal(exact.data, other.data)
    assert exact.indices.tolist() == other.indices.tolist()


@pytest.mark.parametrize("threads", [None, 0, 1, 3])
def test_threads_do_not_show(torch: Any, threads: int | None) -> None:
    known = telecine.load(CLIPS["hevc.mp4"].path(), num_frames=5)
    frames = telecine.load(CLIPS["hevc.mp4"].path(), num_frames=5, backend="torchcodec", num_ffmpeg_threads=threads)
    assert np.array_equal(frames.data, known.data)


def test_one_packet_that_is_refused_does_not_cost_the_others(torch: Any) -> None:
    """TorchCodec raises for the whole batch."""
    damaged = clip("bad-packet")
    frames = telecine.load(damaged.data, backend="torchcodec")
    assert set(frames.report.lost) == damaged.lost


def test_a_size_that_changes(torch: Any) -> None:
    """TorchCodec raises there too; each part is decoded in its own size and scaled to the first one."""
    frames = telecine.load(CLIPS["size_change.ts"].path(), backend="torchcodec")
    assert frames.report.lost == ()
    assert any("size changes in mid-stream" in note for note in frames.report.notes)


def test_a_gpu_that_is_not_there_is_said_before_decoding(torch: Any) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(telecine.BackendUnavailable, match=r"torch sees 0 GPUs"):
        telecine.load(CLIPS["base.mp4"].path(), backend="torchcodec", device="cuda")


@pytest.mark.parametrize("name", ["rotated90.mp4", "rotated270.mp4", "mirrored.mp4", "base.mp4"])
def test_rows_of_a_tensor_are_turned_by_the_rule(torch: Any, name: str) -> None:
    """As they are on a GPU, where nothing but the device differs."""
    from telecine.backends import placing
    from telecine.load import _geometry

    info = telecine.probe(CLIPS[name].path())
    stored = telecine.load(CLIPS[name].path(), indices=[0, 5]).data
    geometry = _geometry(info, None)
    undone = np.stack([np.rot90(np.flip(image, 1) if geometry.mirrored else image, geometry.quarter_turns)
                       for image in stored])  # fmt: skip
    request: Any = type(
        "Request", (), {"geometry": geometry, "info": info, "plan": type("Plan", (), {"frames": [0, 5]})}
    )
    rows = placing.TorchRows(request, torch.device("cpu"))
    for row, picture in enumerate(undone):
        rows.put((row,), torch.from_numpy(picture.copy()))
    assert np.array_equal(rows.data.numpy(), stored)
    assert rows.kept.all()
