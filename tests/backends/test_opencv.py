"""The opencv backend: its option, and the faults of OpenCV that it works around."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import telecine
from support.clips import CLIPS, read_number
from telecine.backends import opencv
from telecine.backends.opencv import OpenCVBackend
from telecine.backends.registry import get_backend
from telecine.testing.clips import encode_video, make_clip
from telecine.testing.test_pattern import paint

cv2 = pytest.importorskip("cv2")


def test_frame_recovery_decodes_the_frames_after_a_damaged_packet() -> None:
    """OpenCV stops reading at a packet that FFmpeg refuses."""
    damaged = make_clip("corrupt-packet")
    recovered = telecine.load(damaged.data, backend="opencv")
    assert set(recovered.report.lost) == damaged.lost
    given_up = telecine.load(damaged.data, backend="opencv", frame_recovery=False)
    assert set(given_up.report.lost) >= damaged.lost
    assert set(given_up.indices.tolist()) < set(recovered.indices.tolist())


def test_frame_recovery_never_returns_another_frame_for_a_lost_one() -> None:
    damaged = make_clip("corrupt-packet")
    frames = telecine.load(damaged.data, backend="opencv", indices=[14, 15, 16, 24], frame_recovery=True)
    assert frames.indices.tolist() == [14, 24]


def test_interlaced_video_is_refused() -> None:
    """OpenCV cannot convert it: it returns an earlier picture or none, and reports success."""
    for name in ("h264_mbaff.mp4", "interlaced.mp4"):
        with pytest.raises(telecine.UnsupportedVideoError, match="interlaced"):
            telecine.load(CLIPS[name].path(), backend="opencv")


@pytest.fixture
def becoming_interlaced(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Twelve progressive pictures, then twelve interlaced ones; VideoInfo knows of the first ones only."""
    module = sys.modules["telecine.pipeline"]
    make_video_info = module.make_video_info
    monkeypatch.setattr(module, "make_video_info", lambda *given: replace(make_video_info(*given), interlaced=False))
    options = [f"keyint=12:bframes=0{more}" for more in ("", ":tff=1")]
    pictures = [paint(number, 192, 144) for number in range(12)]
    return b"".join(encode_video(pictures, container="h264", options={"x264-params": one}) for one in options)


def test_video_that_becomes_interlaced_is_refused(becoming_interlaced: bytes) -> None:
    for wanted in ([15], None):
        with pytest.raises(telecine.UnsupportedVideoError, match="interlaced"):
            telecine.load(becoming_interlaced, backend="opencv", indices=wanted)
    assert len(telecine.load(becoming_interlaced, backend="opencv", indices=[3, 7])) == 2


def test_a_stale_copy_of_the_previous_picture_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenCV returns one, and reports success, if its conversion fails."""
    open_capture = opencv._open_capture

    class Capture:
        def __init__(self, *arguments: Any, **more: Any) -> None:
            self._real = open_capture(*arguments, **more)
            self._last: Any = np.zeros((CLIPS["base.mp4"].height, CLIPS["base.mp4"].width, 3), np.uint8)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        def retrieve(self) -> tuple[bool, Any]:
            if round(self._real.get(cv2.CAP_PROP_POS_MSEC) / 40) not in (7, 8):
                self._last = self._real.retrieve()[1]
            return True, self._last

    monkeypatch.setattr(opencv, "_open_capture", Capture)
    frames = telecine.load(CLIPS["base.mp4"].path(), backend="opencv", indices=range(12), frame_recovery=False)
    assert {7, 8} <= set(frames.report.lost)
    assert [read_number(image) for image in frames.data] == frames.indices.tolist()


def test_equal_pictures_of_a_slide_show_are_kept() -> None:
    slides = make_clip("repeated-pictures")
    assert telecine.load(slides.data, backend="opencv").report.lost == ()


def test_leading_pictures_at_the_start_do_not_shift_frame_indices() -> None:
    """OpenCV counts time from what FFmpeg calls the start of the file, which is not the first frame then."""
    for name in ("h264_open_gop.mp4", "mpeg2_open_gop.ts", "hevc_open_gop.mp4"):
        for index in range(0, 60, 7):
            frames = telecine.load(CLIPS[name].path(), backend="opencv", indices=[index])
            assert [read_number(image) for image in frames.data] == [index]


def test_opencv_decodes_from_memory_without_writing_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not-there"))
    monkeypatch.chdir(tmp_path)
    telecine.load(CLIPS["base.mp4"].bytes(), backend="opencv", num_frames=2)
    assert list(tmp_path.iterdir()) == []


def test_status_says_what_to_install_if_opencv_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    status = OpenCVBackend().status()
    assert not status.usable
    assert status.reason is not None
    assert "pip install" in status.reason


def test_status_names_the_version_needed_if_opencv_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(cv2, "IStreamReader")
    status = OpenCVBackend().status()
    assert not status.usable
    assert status.reason is not None
    assert "4.13" in status.reason


def test_opencv_refuses_cuda_devices() -> None:
    with pytest.raises(telecine.OptionsError, match='puts frames on "cpu" only'):
        telecine.load(CLIPS["base.mp4"].path(), backend="opencv", device="cuda")


def test_the_opencv_backend_is_a_singleton() -> None:
    assert get_backend("opencv") is get_backend("opencv")
