"""What "auto" means for a GPU, with stand-ins for both backends: who decodes, why, and what the report says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

import telecine
from support.clips import CLIPS
from telecine.backends import auto as fallback
from telecine.backends.base import TABLE, BackendStatus, Decoded, DecodeRequest, get
from telecine.backends.nvdec import backend as nvdec
from telecine.errors import BackendUnavailable
from telecine.validation import Option


class OnGpu:
    """Stands for the NVDEC backend: refuses, or decodes like the CPU and then loses some rows."""

    options: ClassVar[Mapping[str, Option]] = {"out": fallback.OUT}
    refuses: str | None = None
    loses: tuple[int, ...] = ()

    def status(self) -> BackendStatus:
        return BackendStatus("nvdec", True, None, "test")

    def decode(self, request: DecodeRequest) -> Decoded:
        if self.refuses:
            raise BackendUnavailable(self.refuses)
        decoded = get("pyav").decode(request)
        decoded.kept[list(self.loses)] = False
        return decoded


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> OnGpu:
    stand_in = OnGpu()
    monkeypatch.setitem(get.__globals__["_made"], "nvdec", stand_in)

    def uploaded(frames: Any, device: str, out: str) -> tuple[Any, str]:
        return frames, "cuda:0"

    monkeypatch.setattr(fallback, "upload", uploaded)
    return stand_in


def _load(**options: Any) -> telecine.Frames:
    return telecine.load(CLIPS["base.mp4"].path(), num_frames=5, device="cuda", **options)


def test_the_gpu_decodes_what_it_can(gpu: OnGpu) -> None:
    report = _load().report
    assert (report.backend, report.fallback_reason) == ("nvdec", None)


def test_what_the_hardware_cannot_do_goes_to_the_cpu_and_back_to_the_device(gpu: OnGpu) -> None:
    gpu.refuses = "nvdec: H.264 with 10 bits is not supported"
    frames = _load()
    assert frames.report.backend == "pyav"
    assert frames.report.fallback_reason == gpu.refuses
    assert frames.report.device == "cuda:0"
    assert np.array_equal(frames.data, telecine.load(CLIPS["base.mp4"].path(), num_frames=5).data)


def test_frames_lost_on_the_gpu_are_tried_once_on_the_cpu(gpu: OnGpu) -> None:
    gpu.loses = (1, 2)
    frames = _load(threads=1)
    assert frames.report.lost == ()
    assert frames.report.backend == "pyav"
    assert "2 of 5 frames could not be decoded" in str(frames.report.fallback_reason)


def test_frames_lost_on_both_stay_with_the_gpu(gpu: OnGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.loses = (1, 2)
    on_cpu = get("pyav")

    class LosesTheSame:
        options = on_cpu.options  # type: ignore[attr-defined]

        def status(self) -> BackendStatus:
            return on_cpu.status()

        def decode(self, request: DecodeRequest) -> Decoded:
            decoded = on_cpu.decode(request)
            decoded.kept[[1, 2]] = False
            return decoded

    monkeypatch.setitem(get.__globals__["_made"], "pyav", LosesTheSame())
    frames = _load()
    assert (frames.report.backend, frames.report.fallback_reason) == ("nvdec", None)
    assert len(frames.report.lost) == 2


def test_a_backend_that_is_named_never_falls_back(gpu: OnGpu) -> None:
    gpu.refuses = "nvdec: no"
    with pytest.raises(BackendUnavailable, match="nvdec: no"):
        _load(backend="nvdec")


def test_numpy_output_needs_no_device_to_fall_back(gpu: OnGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.refuses = "nvdec: there is no GPU"
    monkeypatch.setattr(fallback, "upload", None)
    frames = _load(out="numpy")
    assert isinstance(frames.data, np.ndarray)
    assert frames.report.device == "cpu"


def test_auto_is_no_row_of_the_table() -> None:
    assert "auto" not in TABLE
    assert "auto" not in {status.name for status in telecine.backends()}


def test_the_metrics_see_the_sessions_of_every_gpu_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """And ask once, whichever backend a request names."""
    counters = {"sessions_made": 9, "sessions_evicted": 2, "sessions_destroyed_after_error": 1, "session_bytes": 1000}
    monkeypatch.setattr(nvdec, "stats", lambda device: counters | {"session_bytes": 1000 + device})
    backend = nvdec.NvdecBackend()
    monkeypatch.setitem(get.__globals__["_made"], "nvdec", backend)
    assert backend.gauges() == {"telecine_sessions": 0.0, "telecine_vram_bytes": 0.0}
    backend._devices |= {0, 2}
    assert backend.gauges() == {"telecine_sessions": 12.0, "telecine_vram_bytes": 2002.0}
    assert fallback.NvdecOrPyAV().gauges == backend.gauges
