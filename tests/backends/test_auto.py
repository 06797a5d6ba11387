"""The backend "auto" on a GPU, with stand-ins for NVDEC: which backend decodes, why, and what the report says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import telecine
from support.clips import CLIPS
from telecine.backends import Backend, BackendStatus, Decoded, DecodeRequest, auto, registry
from telecine.backends.nvdec import backend as nvdec
from telecine.backends.pyav.backend import PyAVBackend
from telecine.errors import BackendUnavailable, LimitError, OverloadedError, TelecineError, UnsupportedVideoError
from telecine.validation import Option


class FakeNvdec(Backend):
    """Stands for the NVDEC backend: raises, or decodes on the CPU and loses some rows."""

    name = "nvdec"
    devices = ("cpu", "cuda")
    options: Mapping[str, Option] = {"out": nvdec.OUT}
    error: TelecineError | None = None
    lost_rows: tuple[int, ...] = ()

    def status(self) -> BackendStatus:
        return self.make_status("test")

    def decode(self, request: DecodeRequest) -> Decoded:
        if self.error is not None:
            raise self.error
        decoded = PyAVBackend().decode(replace(request, device="cpu"))
        decoded.kept[list(self.lost_rows)] = False
        return decoded


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeNvdec:
    """A GPU that exists, with a stand-in for its decoder."""
    fake = FakeNvdec()
    monkeypatch.setitem(registry._instances, "nvdec", fake)
    monkeypatch.setattr(auto, "check_gpu", lambda device, out: None)
    monkeypatch.setattr(auto, "upload", lambda frames, device, out: (frames, "cuda:0"))
    return fake


def _load(**options: Any) -> telecine.Frames:
    return telecine.load(CLIPS["base.mp4"].path(), num_frames=5, device="cuda", **options)


@pytest.mark.parametrize("error", [None, UnsupportedVideoError("nvdec: no")])
def test_auto_decodes_only_with_backends_that_check_pictures_for_damage(
    gpu: FakeNvdec, error: TelecineError | None
) -> None:
    gpu.error = error
    report = _load().report
    assert report.damage_checked
    assert type(registry.get_backend(report.backend)).detects_damage
    assert nvdec.NvdecBackend.detects_damage and PyAVBackend.detects_damage


def test_the_gpu_decodes_what_it_can(gpu: FakeNvdec) -> None:
    report = _load().report
    assert (report.backend, report.fallback_reason) == ("nvdec", None)


@pytest.mark.parametrize("kind", [UnsupportedVideoError, BackendUnavailable, LimitError, OverloadedError])
def test_a_video_that_the_gpu_refuses_is_decoded_on_the_cpu_and_uploaded(
    gpu: FakeNvdec, kind: type[TelecineError]
) -> None:
    gpu.error = kind("nvdec: H.264 with 10 bits is not supported")
    frames = _load()
    assert frames.report.backend == "pyav"
    assert frames.report.fallback_reason == str(gpu.error)
    assert frames.report.device == "cuda:0"
    assert np.array_equal(frames.data, telecine.load(CLIPS["base.mp4"].path(), num_frames=5).data)


def test_frames_lost_on_the_gpu_are_decoded_again_on_the_cpu(gpu: FakeNvdec) -> None:
    gpu.lost_rows = (1, 2)
    frames = _load(threads=1)
    assert frames.report.lost == ()
    assert frames.report.backend == "pyav"
    assert "2 of 5 frames could not be decoded" in str(frames.report.fallback_reason)


def test_frames_lost_on_both_are_reported_by_the_gpu(gpu: FakeNvdec, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.lost_rows = (1, 2)

    class LosesTheSame(PyAVBackend):
        def decode(self, request: DecodeRequest) -> Decoded:
            decoded = super().decode(request)
            decoded.kept[[1, 2]] = False
            return decoded

    monkeypatch.setitem(registry._instances, "pyav", LosesTheSame())
    frames = _load()
    assert (frames.report.backend, frames.report.fallback_reason) == ("nvdec", None)
    assert len(frames.report.lost) == 2


def test_a_named_backend_never_falls_back(gpu: FakeNvdec, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.error = UnsupportedVideoError("nvdec: no")
    with pytest.raises(UnsupportedVideoError, match="nvdec: no"):
        _load(backend="nvdec")


def test_without_a_gpu_auto_refuses_before_the_source_is_opened(
    gpu: FakeNvdec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_gpu(device: str, out: str) -> None:
        raise BackendUnavailable(f"device is {device!r}, but there is no GPU 0")

    monkeypatch.setattr(auto, "check_gpu", check_gpu)
    with pytest.raises(BackendUnavailable, match="there is no GPU 0"):
        telecine.load("absent.mp4", device="cuda")


def test_numpy_output_needs_no_gpu_to_fall_back(gpu: FakeNvdec, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.error = BackendUnavailable("nvdec: there is no GPU")
    monkeypatch.setattr(auto, "check_gpu", None)
    monkeypatch.setattr(auto, "upload", None)
    frames = _load(out="numpy")
    assert isinstance(frames.data, np.ndarray)
    assert frames.report.device == "cpu"


def test_the_metrics_count_the_decoder_sessions_of_every_gpu_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted by the NVDEC backend alone, although "auto" uses them too."""
    counters = {"sessions_made": 9, "sessions_evicted": 2, "sessions_destroyed_after_error": 1, "session_bytes": 1000}
    monkeypatch.setattr(nvdec, "stats", lambda device: counters | {"session_bytes": 1000 + device})
    backend = nvdec.NvdecBackend()
    assert backend.gauges() == {"telecine_sessions": 0.0, "telecine_vram_bytes": 0.0}
    backend._devices |= {0, 2}
    assert backend.gauges() == {"telecine_sessions": 12.0, "telecine_vram_bytes": 2002.0}
    assert auto.AutoBackend().gauges() == {}


def _chunks(**options: Any) -> list[telecine.Frames]:
    with telecine.open(CLIPS["h264_pyramid.mp4"].path(), device="cuda", threads=1) as video:
        return list(video.iterate(chunk_frames=4, **options))


def _assert_all_frames(chunks: list[telecine.Frames]) -> None:
    assert [frame.index for chunk in chunks for frame in chunk] == list(range(60))
    expected = telecine.load(CLIPS["h264_pyramid.mp4"].path()).data
    assert np.array_equal(np.concatenate([chunk.data for chunk in chunks]), expected)


def test_chunks_of_a_video_that_the_gpu_refuses_come_from_one_decoder_on_the_cpu(gpu: FakeNvdec) -> None:
    gpu.error = UnsupportedVideoError("nvdec: no")
    chunks = _chunks()
    _assert_all_frames(chunks)
    assert {(chunk.report.backend, chunk.report.device, chunk.report.fallback_reason) for chunk in chunks} == {
        ("pyav", "cuda:0", "nvdec: no")
    }
    assert sum(chunk.report.packets_fed for chunk in chunks) == 60


def test_chunks_after_a_refusal_in_mid_stream_come_from_the_cpu(
    gpu: FakeNvdec, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = FakeNvdec.decode

    def decode_first_group(self: FakeNvdec, request: DecodeRequest) -> Decoded:
        if request.plan.frames[0] > 0:
            raise UnsupportedVideoError("nvdec: the picture grows")
        return decode(self, request)

    monkeypatch.setattr(FakeNvdec, "decode", decode_first_group)
    chunks = _chunks()
    _assert_all_frames(chunks)
    assert [chunk.report.backend for chunk in chunks] == ["nvdec"] * 6 + ["pyav"] * 9


def test_lost_frames_of_a_chunk_are_decoded_again_on_the_cpu(gpu: FakeNvdec) -> None:
    gpu.lost_rows = (1,)
    chunks = _chunks()
    _assert_all_frames(chunks)
    assert [chunk.report.backend for chunk in chunks[:2]] == ["pyav", "nvdec"]
