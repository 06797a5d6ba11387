"""The torchcodec backend: options, devices, and missing libraries."""

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
from telecine.testing.clips import make_clip


def test_status_without_ffmpeg_libraries_is_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """TorchCodec raises a RuntimeError of many lines."""

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
def test_approximate_seek_mode_gives_the_exact_frames(torch: Any, name: str) -> None:
    """TorchCodec gets the time of every frame, and need not guess from a rate."""
    exact = telecine.load(CLIPS[name].path(), backend="torchcodec", seek_mode="exact")
    other = telecine.load(CLIPS[name].path(), backend="torchcodec", seek_mode="approximate")
    assert np.array_equal(exact.data, other.data)
    assert exact.indices.tolist() == other.indices.tolist()


@pytest.mark.parametrize("threads", [None, 0, 1, 3])
def test_the_number_of_threads_does_not_change_the_frames(torch: Any, threads: int | None) -> None:
    known = telecine.load(CLIPS["hevc.mp4"].path(), num_frames=5)
    frames = telecine.load(CLIPS["hevc.mp4"].path(), num_frames=5, backend="torchcodec", num_ffmpeg_threads=threads)
    assert np.array_equal(frames.data, known.data)


def test_a_packet_that_torchcodec_refuses_does_not_lose_other_frames(torch: Any) -> None:
    """TorchCodec raises for the whole batch."""
    damaged = make_clip("corrupt-packet")
    frames = telecine.load(damaged.data, backend="torchcodec")
    assert set(frames.report.lost) == damaged.lost


def test_frames_after_a_size_change_are_scaled_to_the_first_size(torch: Any) -> None:
    """TorchCodec raises there; each independent range is then decoded in its own size."""
    frames = telecine.load(CLIPS["size_change.ts"].path(), backend="torchcodec")
    assert frames.report.lost == ()
    assert any("size changes in mid-stream" in note for note in frames.report.notes)


def test_one_torchcodec_decoder_is_opened_for_all_decode_ranges(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, opening one takes longer than decoding. It is made to seek if it must be reset."""
    decoders = importlib.import_module("torchcodec.decoders")
    backend = importlib.import_module("telecine.backends.torchcodec")
    real, remux = decoders.VideoDecoder, backend.remux
    made, files = [], []

    def decoder(*args: Any, **options: Any) -> Any:
        made.append(real(*args, **options))
        return made[-1]

    def remux_and_record(*args: Any) -> Any:
        files.append(remux(*args))
        return files[-1]

    monkeypatch.setattr(decoders, "VideoDecoder", decoder)
    monkeypatch.setattr(backend, "remux", remux_and_record)
    known = telecine.load(CLIPS["hevc_open_gop.mp4"].path(), indices=[2, 20, 57])
    frames = telecine.load(CLIPS["hevc_open_gop.mp4"].path(), indices=[2, 20, 57], backend="torchcodec")
    assert np.array_equal(frames.data, known.data)
    assert len(made) == 1
    assert sum(run.reset for run in files[0].ranges) > 1


@pytest.mark.parametrize(
    ("name", "gpu", "reason"),
    [
        ("h264_pyramid.mp4", True, None),
        ("vp8_plain.webm", True, None),
        ("hevc_main10.mp4", False, "hevc in yuv420p10le differ"),
        ("h264_gray.mp4", False, "h264 in gray differ"),
        ("mpeg4.mp4", False, "mpeg4 in yuv420p differ"),
        ("av1_svt.mp4", False, "the GPU returned no frame"),
    ],
)
def test_videos_that_a_gpu_changes_or_refuses_are_decoded_on_the_cpu(
    torch: Any, monkeypatch: pytest.MonkeyPatch, name: str, gpu: bool, reason: str | None
) -> None:
    """The test double of a GPU decodes on the CPU, and refuses AV1 as some GPUs do."""
    decoders = importlib.import_module("torchcodec.decoders")
    backend = importlib.import_module("telecine.backends.torchcodec")
    output_buffers = importlib.import_module("telecine.backends.remux.output_buffers")
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
    monkeypatch.setattr(backend, "check_gpu", lambda device, out: None)
    monkeypatch.setattr(
        backend, "TorchOutput", lambda request, device: output_buffers.TorchOutput(request, torch.device("cpu"))
    )
    known = telecine.load(CLIPS[name].path(), indices=[0, 7])
    frames = telecine.load(CLIPS[name].path(), indices=[0, 7], backend="torchcodec", device="cuda")
    assert np.array_equal(frames.data.numpy(), known.data)
    assert devices[-1] == ("cuda" if gpu else "cpu")
    assert set(ways) == ({"ffmpeg"} if "cuda" in devices else set())
    notes = [note for note in frames.report.notes if "decoded on the CPU and copied to cuda" in note]
    assert [reason in note for note in notes] == ([True] if reason else [])


def test_a_missing_gpu_is_refused_before_decoding(torch: Any) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(telecine.BackendUnavailable, match=r"no GPU 0: PyTorch finds 0"):
        telecine.load(CLIPS["base.mp4"].path(), backend="torchcodec", device="cuda")


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("name", ["rotated90.mp4", "rotated270.mp4", "mirrored.mp4", "base.mp4"])
def test_frames_written_to_tensors_are_turned_by_the_display_matrix(torch: Any, name: str, pinned: bool) -> None:
    """On a GPU only the device of the tensor differs."""
    from telecine.backends.remux import output_buffers
    from telecine.pipeline import _fit_geometry

    info = telecine.probe(CLIPS[name].path())
    stored = telecine.load(CLIPS[name].path(), indices=[0, 5]).data
    geometry = _fit_geometry(info, None)
    undone = np.stack([np.rot90(np.flip(image, 1) if geometry.mirrored else image, geometry.quarter_turns)
                       for image in stored])  # fmt: skip
    request: Any = type(
        "Request", (), {"geometry": geometry, "info": info, "plan": type("Plan", (), {"frames": [0, 5]})}
    )
    output = (
        output_buffers.PinnedOutput(request) if pinned else output_buffers.TorchOutput(request, torch.device("cpu"))
    )
    for row, picture in enumerate(undone):
        output.write_tensor((row,), torch.from_numpy(picture.copy()))
    assert np.array_equal(np.asarray(output.decoded().data), stored)
    assert output.kept.all()
