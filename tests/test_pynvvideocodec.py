"""The PyNvVideoCodec backend, over a stand-in for the library."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import Any

import numpy as np
import pytest

import telecine
from clips import CLIPS, read_number
from fake_nvidia import fake_pynvvideocodec, install
from telecine.backends.pynvvideocodec import PyNvVideoCodecBackend
from telecine.contract import CASES, Case, run

CLIP = CLIPS["h264_pyramid.mp4"]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The library, and a backend that has seen no request yet."""
    module = fake_pynvvideocodec()
    install(monkeypatch, PyNvVideoCodec=module)
    made = sys.modules["telecine.backends"]._made
    monkeypatch.setitem(made, "pynvvideocodec", PyNvVideoCodecBackend())
    return module


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_contract(library: Any, case: Case) -> None:
    outcome = run(case, "pynvvideocodec")
    assert outcome.verdict in ("same", "differs" if case.name == "noise" else "same"), outcome


def test_pixels_are_those_of_ffmpegs_own_decoder(library: Any) -> None:
    """Pictures are taken as decoded and converted by the rule: to the last bit, in 8 and in 10 bits and resized."""
    for name in ("h264_pyramid.mp4", "hevc_main10.mp4", "hevc_444.mp4", "rotated90.mp4", "colour_bt709_pc.mp4"):
        for size in (None, 48):
            wanted = {"num_frames": 5, "size": size}
            ours = telecine.load(CLIPS[name].path(), backend="pynvvideocodec", **wanted)
            assert np.array_equal(ours.data, telecine.load(CLIPS[name].path(), backend="pyav", **wanted).data), name


@pytest.mark.parametrize("version", ["2.0.4", "2.2.4"])
def test_the_library_gets_a_path_that_is_on_no_disk(
    library: Any, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2.0.4 takes nothing but paths; the later ones copy what is not a path, and warn when it is large."""
    library.__version__ = version
    opened = set(os.listdir("/proc/self/fd"))
    telecine.load(CLIP.path(), backend="pynvvideocodec", num_frames=2, max_width=1920, max_height=1088)
    assert library.made[0]["path"].startswith("/proc/self/fd/")
    assert (library.made[0]["max_width"], library.made[0]["max_height"]) == (1920, 1088)
    assert library.made[0]["use_device_memory"] is False
    assert set(os.listdir("/proc/self/fd")) == opened


def test_a_frame_is_known_by_its_time(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library counts; where it has lost count, its frames are not taken for what was asked."""
    decoder = library.SimpleDecoder

    def one_off(self: Any, indices: list[int]) -> Any:
        pictures = self._pictures
        return [sys.modules["fake_nvidia"]._Frame(pictures[at if at < 20 else min(at + 1, 59)]) for at in indices]

    monkeypatch.setattr(decoder, "get_batch_frames_by_index", one_off)
    frames = telecine.load(CLIP.path(), backend="pynvvideocodec")
    assert [read_number(image) for image in frames.data] == frames.indices.tolist()
    assert set(frames.report.lost) == set(range(60)) - set(frames.indices.tolist())
    assert frames.report.lost


@pytest.mark.parametrize("unit", [1, 16, 1000])
def test_times_in_any_unit(library: Any, monkeypatch: pytest.MonkeyPatch, unit: int) -> None:
    frame_type: Any = sys.modules["fake_nvidia"]._Frame
    monkeypatch.setattr(frame_type, "getPTS", lambda self: int(self._pts) // 16 * unit)
    frames = telecine.load(CLIP.path(), backend="pynvvideocodec", indices=[0, 7, 30, 59])
    assert [read_number(image) for image in frames.data] == [0, 7, 30, 59]


def test_hw_decoders_is_the_first_requests_word(library: Any, caplog: pytest.LogCaptureFixture) -> None:
    """No more decoders at a time than that, and a later wish is answered once, in the log."""
    at_once, most, lock = [0], [0], threading.Lock()
    decoder = library.SimpleDecoder

    class Counted(decoder):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **more: Any) -> None:
            with lock:
                at_once[0] += 1
                most[0] = max(most[0], at_once[0])
            super().__init__(*arguments, **more)

        def get_batch_frames_by_index(self, indices: list[int]) -> Any:
            with lock:
                at_once[0] -= 1
            return super().get_batch_frames_by_index(indices)

    library.SimpleDecoder = Counted
    threads = [
        threading.Thread(
            target=telecine.load,
            args=(CLIP.path(),),
            kwargs={"backend": "pynvvideocodec", "indices": [0], "hw_decoders": 1},
        )
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == 1
    with caplog.at_level(logging.WARNING, "telecine"):
        for _ in range(2):
            telecine.load(CLIP.path(), backend="pynvvideocodec", indices=[0], hw_decoders=3)
    assert [record.getMessage() for record in caplog.records] == [
        "hw_decoders is 3; it stays 1, as the first request said"
    ]


def test_a_deadline_holds_while_all_decoders_are_busy(library: Any) -> None:
    made: Any = sys.modules["telecine.backends"]._made["pynvvideocodec"]
    made._places, made._count = threading.Semaphore(0), 1
    with pytest.raises(telecine.DeadlineError, match="waiting for a hardware decoder"):
        telecine.load(CLIP.path(), backend="pynvvideocodec", num_frames=1, timeout=0.3)


def test_what_the_library_refuses_is_lost_not_raised(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any, indices: list[int]) -> Any:
        raise RuntimeError("HW decoder error")

    monkeypatch.setattr(library.SimpleDecoder, "get_batch_frames_by_index", fails)
    with pytest.raises(telecine.DecodeError, match="none of 60 wanted frames"):
        telecine.load(CLIP.path(), backend="pynvvideocodec")


def test_without_the_driver_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing it asks the driver for its encoder."""

    class Broken:
        def find_spec(self, name: str, *_: Any) -> Any:
            if name == "PyNvVideoCodec":
                raise RuntimeError("libnvidia-encode.so.1: cannot open shared object file\n\n=== TROUBLESHOOTING ===")

    monkeypatch.delitem(sys.modules, "PyNvVideoCodec", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    status = PyNvVideoCodecBackend().status()
    assert not status.usable
    assert status.reason is not None
    assert "NVIDIA_DRIVER_CAPABILITIES" in status.reason
    assert "TROUBLESHOOTING" not in status.reason


def test_a_codec_that_mp4_cannot_hold_is_refused(library: Any) -> None:
    with pytest.raises(telecine.BackendUnavailable, match="backend='pyav'"):
        telecine.load(CLIPS["vp8_plain.webm"].path(), backend="pynvvideocodec")
