"""What is TorchCodec's own: its options, its devices, and where its libraries are missing."""

from __future__ import annotations

import importlib
import sys
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import telecine
from support.clips import CLIPS
from telecine.backends.torchcodec import TorchCodecBackend
from telecine.testing.clips import clip


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


def test_one_decoder_for_all_runs(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making one takes longer than decoding, on a GPU; where it must restart, it is made to seek."""
    decoders = importlib.import_module("torchcodec.decoders")
    backend = importlib.import_module("telecine.backends.torchcodec")
    real, make_reel = decoders.VideoDecoder, backend.make_reel
    made, reels = [], []

    def decoder(*args: Any, **options: Any) -> Any:
        made.append(real(*args, **options))
        return made[-1]

    def reel(*args: Any) -> Any:
        reels.append(make_reel(*args))
        return reels[-1]

    monkeypatch.setattr(decoders, "VideoDecoder", decoder)
    monkeypatch.setattr(backend, "make_reel", reel)
    known = telecine.load(CLIPS["hevc_open_gop.mp4"].path(), indices=[2, 20, 57])
    frames = telecine.load(CLIPS["hevc_open_gop.mp4"].path(), indices=[2, 20, 57], backend="torchcodec")
    assert np.array_equal(frames.data, known.data)
    assert len(made) == 1
    assert sum(run.reset for run in reels[0].ranges) > 1


@pytest.mark.parametrize(
    ("name", "gpu", "reason"),
    [
        ("h264_pyramid.mp4", True, None),
        ("vp8_plain.webm", True, None),
        ("hevc_main10.mp4", False, "hevc in yuv420p10le would be other ones"),
        ("h264_gray.mp4", False, "h264 in gray would be other ones"),
        ("mpeg4.mp4", False, "mpeg4 in yuv420p would be other ones"),
        ("av1_svt.mp4", False, "the GPU gave no frame of it"),
    ],
)
def test_what_a_gpu_would_change_or_refuse_is_decoded_on_the_cpu(
    torch: Any, monkeypatch: pytest.MonkeyPatch, name: str, gpu: bool, reason: str | None
) -> None:
    """A double of the GPU: it decodes on the CPU, and refuses AV1 as some GPUs do."""
    decoders = importlib.import_module("torchcodec.decoders")
    backend = importlib.import_module("telecine.backends.torchcodec")
    placing = importlib.import_module("telecine.backends.remux.output_buffers")
    real, devices, ways = decoders.VideoDecoder, [], []

    def decoder(*args: Any, device: str, **options: Any) -> Any:
        devices.append(device)
        made = real(*args, device="cpu", **options)
        if device != "cpu" and made.metadata.codec == "av1":
            raise RuntimeError("this GPU knows no av1")
        return made

    def way(wanted: str) -> Any:
        ways.append(wanted)
        return nullcontext()

    monkeypatch.setattr(decoders, "VideoDecoder", decoder)
    monkeypatch.setattr(decoders, "set_cuda_backend", way)
    monkeypatch.setattr(backend, "_rows", lambda request: placing.TorchOutput(request, torch.device("cpu")))
    known = telecine.load(CLIPS[name].path(), indices=[0, 7])
    frames = telecine.load(CLIPS[name].path(), indices=[0, 7], backend="torchcodec", device="cuda")
    assert np.array_equal(frames.data.numpy(), known.data)
    assert devices[-1] == ("cuda" if gpu else "cpu")
    assert set(ways) == ({"ffmpeg"} if "cuda" in devices else set())
    notes = [note for note in frames.report.notes if "decoded on the CPU and copied to cuda" in note]
    assert [reason in note for note in notes] == ([True] if reason else [])


def test_a_gpu_that_is_not_there_is_said_before_decoding(torch: Any) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(telecine.BackendUnavailable, match=r"torch sees 0 GPUs"):
        telecine.load(CLIPS["base.mp4"].path(), backend="torchcodec", device="cuda")


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("name", ["rotated90.mp4", "rotated270.mp4", "mirrored.mp4", "base.mp4"])
def test_rows_of_a_tensor_are_turned_by_the_rule(torch: Any, name: str, pinned: bool) -> None:
    """As they are on a GPU, where nothing but the device differs: into its memory, or into the host's."""
    from telecine.backends.remux import output_buffers as placing
    from telecine.pipeline import _fit_geometry

    info = telecine.probe(CLIPS[name].path())
    stored = telecine.load(CLIPS[name].path(), indices=[0, 5]).data
    geometry = _fit_geometry(info, None)
    undone = np.stack([np.rot90(np.flip(image, 1) if geometry.mirrored else image, geometry.quarter_turns)
                       for image in stored])  # fmt: skip
    request: Any = type(
        "Request", (), {"geometry": geometry, "info": info, "plan": type("Plan", (), {"frames": [0, 5]})}
    )
    rows = placing.PinnedOutput(request) if pinned else placing.TorchOutput(request, torch.device("cpu"))
    for row, picture in enumerate(undone):
        rows.write((row,), torch.from_numpy(picture.copy()))
    assert np.array_equal(np.asarray(rows.decoded().data), stored)
    assert rows.kept.all()
