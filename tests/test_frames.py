"""What a request gives back: labels, iteration, and the facts that processors of models are told."""

from __future__ import annotations

import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import telecine
from support.clips import CLIPS
from telecine.container.timestamps import is_variable
from telecine.frames import Frames, Report
from telecine.index.video_info import VideoInfo
from telecine.timeline import Timeline


def frames(
    ticks: list[int], indices: list[int], base: Fraction = Fraction(1, 30), last: int = 1, data: Any = None
) -> Frames:
    """Frames of a video with these times; the first pixel of each is its index."""
    times = np.array(ticks, np.int64)
    timeline = Timeline(times, base, int(times[-1]) + last, np.zeros(len(times), np.bool_))
    info = VideoInfo(
        width=6, height=4, rotation=0, mirrored=False, codec="h264", pixel_format="yuv420p", bit_depth=8,
        color_space="unknown", color_range="unknown", color_primaries=2, color_trc=2, interlaced=False,
        sample_aspect_ratio=Fraction(1), num_frames=len(ticks), average_fps=timeline.average_fps,
        duration=timeline.duration, start_time=0.0, variable_frame_rate=is_variable(times), stream_index=0,
        container="mov",
    )  # fmt: skip
    wanted = np.array(indices, np.int64)
    if data is None:
        data = np.zeros((len(indices), 4, 6, 3), np.uint8)
        data[:, 0, 0, 0] = indices
    return Frames(
        data,
        wanted,
        timeline.seconds(wanted),
        np.ones(len(wanted), np.bool_),
        info,
        Report("pyav", "cpu", 10, 4),
        timeline,
    )


def test_iteration_labels_every_frame() -> None:
    """Index, time and a view of the picture."""
    made = frames([0, 1, 2, 3], [3, 0, 3])
    assert len(made) == 3
    assert [(f.index, f.timestamp, int(f.image[0, 0, 0])) for f in made] == [(3, 0.1, 3), (0, 0.0, 0), (3, 0.1, 3)]
    for frame, row in zip(made, made.data, strict=True):
        assert np.shares_memory(frame.image, row)
        assert type(frame.index) is int and type(frame.timestamp) is float


def test_the_representation_shows_shapes_and_no_pixels() -> None:
    """It goes into logs."""
    assert repr(frames([0, 1, 2, 3], [3, 0])) == "Frames(2 x 4x6 of 4, h264, pyav)"


def test_packets_skipped_is_what_was_not_fed() -> None:
    """Of those the stream has."""
    assert Report("pyav", "cpu", packets_total=10, packets_fed=4).packets_skipped == 6


def test_frames_on_the_cpu_are_numpy_without_a_copy() -> None:
    """Only frames on a GPU are copied."""
    made = frames([0, 1], [0, 1])
    assert made.numpy() is made.data


class OnDevice:
    """A stand-in for an array on a GPU."""

    def __init__(self, host: np.ndarray, method: str) -> None:
        setattr(self, method, lambda: host)


@pytest.mark.parametrize("method", ["cpu", "to_host"])
def test_frames_on_a_gpu_are_copied_to_the_host(method: str) -> None:
    """A torch tensor by ``cpu``, our own array by ``to_host``."""
    host = np.arange(72, dtype=np.uint8).reshape(1, 4, 6, 3)
    assert np.array_equal(frames([0, 1], [0], data=OnDevice(host, method)).numpy(), host)


def test_without_torch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is also the ImportError that Python users expect."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(telecine.BackendUnavailable, match="pip install torch") as caught:
        frames([0, 1], [0]).torch()
    assert isinstance(caught.value, ImportError)


def test_metadata_of_a_constant_rate_is_the_video_itself() -> None:
    """Processors compute a time as index / fps, and that is the true one."""
    made = frames([k * 1001 for k in range(50)], [0, 7, 7, 49], Fraction(1, 30000), last=1001)
    told = made.metadata()
    assert told == {
        "total_num_frames": 50,
        "fps": pytest.approx(30000 / 1001),
        "width": 6,
        "height": 4,
        "duration": pytest.approx(50 * 1001 / 30000),
        "video_backend": "telecine-pyav",
        "frames_indices": [0, 7, 7, 49],
        "do_sample_frames": False,
    }
    assert all(type(index) is int for index in told["frames_indices"])
    assert np.allclose(np.array(told["frames_indices"]) / told["fps"], made.timestamps)


def test_metadata_of_a_variable_rate_is_a_virtual_constant_timeline() -> None:
    """On the coarsest grid that all times of the video lie on, not only those of the returned frames."""
    made = frames([0, 512, 1024, 3072, 3584], [0, 3, 4], Fraction(1, 15360), last=512)
    told = made.metadata()
    assert told["fps"] == 30.0
    assert told["frames_indices"] == [0, 6, 7]
    assert told["total_num_frames"] == 8
    assert np.allclose(np.array(told["frames_indices"]) / told["fps"], made.timestamps)


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(st.integers(1, 5000), min_size=2, max_size=20),
    base=st.sampled_from([Fraction(1, 1000), Fraction(1, 90000), Fraction(1, 30), Fraction(1001, 30000)]),
    data=st.data(),
)
def test_metadata_gives_back_every_time(steps: list[int], base: Fraction, data: st.DataObject) -> None:
    """Within half a millisecond for a variable rate, and within what is_variable calls jitter for a constant one."""
    ticks = np.concatenate([[0], np.cumsum(steps)]).tolist()
    indices = data.draw(st.lists(st.integers(0, len(ticks) - 1), min_size=1, max_size=8))
    made = frames(ticks, indices, base)
    told = made.metadata()
    computed = np.array(told["frames_indices"]) / told["fps"]
    interval = float(base) * ticks[-1] / (len(ticks) - 1)
    tolerance = 5.1e-4 if made.info.variable_frame_rate else max(2 * float(base), interval / 20) + 1e-9
    assert np.abs(computed - made.timestamps).max() <= tolerance
    assert max(told["frames_indices"]) < told["total_num_frames"]


def test_metadata_of_a_clip_with_two_rates_gives_its_true_times() -> None:
    """The clip slows down to a quarter in its middle."""
    clip = CLIPS["vfr.mp4"]
    made = telecine.load(clip.path(), num_frames=8)
    told = made.metadata()
    assert made.info.variable_frame_rate
    assert np.allclose(np.array(told["frames_indices"]) / told["fps"], np.array(clip.times)[made.indices], atol=5.1e-4)
