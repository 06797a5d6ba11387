"""The result of a request: indexing, layouts, padding, conversions, and the metadata for processors."""

from __future__ import annotations

import base64
import io
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import telecine
from support.clips import CLIPS
from telecine.container.timestamps import has_variable_rate
from telecine.frames import Frame, Frames, Layout, Report
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
        duration=timeline.duration, start_time=0.0, variable_frame_rate=has_variable_rate(times), stream_index=0,
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


def test_iteration_gives_each_frame_with_its_index_time_and_a_view_of_its_pixels() -> None:
    made = frames([0, 1, 2, 3], [3, 0, 3])
    assert len(made) == 3
    assert [(f.index, f.timestamp, int(f.image[0, 0, 0])) for f in made] == [(3, 0.1, 3), (0, 0.0, 0), (3, 0.1, 3)]
    for frame, row in zip(made, made.data, strict=True):
        assert np.shares_memory(frame.image, row)
        assert type(frame.index) is int and type(frame.timestamp) is float


@pytest.mark.parametrize("position", [1, -2, np.int64(1), np.array(-2)])
def test_indexing_with_a_number_gives_one_frame(position: Any) -> None:
    made = frames([0, 1, 2, 3], [3, 0, 2])
    frame = made[position]
    assert isinstance(frame, Frame) and (frame.index, frame.timestamp) == (0, 0.0)
    assert np.shares_memory(frame.image, made.data[1])


@pytest.mark.parametrize("position", [3, -4])
def test_indexing_outside_the_result_is_an_index_error(position: int) -> None:
    with pytest.raises(IndexError):
        frames([0, 1, 2, 3], [3, 0, 2])[position]


@pytest.mark.parametrize(
    "key",
    [
        slice(1, None),
        slice(None, None, -1),
        slice(5, 9),
        [2, 0, -1],
        [],
        np.array([0, 0]),
        np.array([True, False, True]),
        [False, True, True],
    ],
    ids=str,
)
def test_a_slice_list_or_mask_gives_frames_with_their_indices_and_times(key: Any) -> None:
    made = frames([0, 1, 2, 3], [3, 0, 2])
    part = made[key]
    rows = np.arange(3)[key]
    assert isinstance(part, Frames) and part.info is made.info and part.report is made.report
    assert part.indices.tolist() == made.indices[rows].tolist()
    assert part.data[:, 0, 0, 0].tolist() == part.indices.tolist()
    assert np.array_equal(part.timestamps, part.timeline.seconds(part.indices))
    assert part.mask.tolist() == [True] * len(rows) and part.shape == (len(rows), 4, 6, 3)


def test_an_index_array_of_two_dimensions_is_refused() -> None:
    with pytest.raises(telecine.OptionsError, match="an array of 2 dimensions; it must have one"):
        frames([0, 1, 2, 3], [3, 0, 2])[np.zeros((2, 2), np.int64)]


def test_a_forward_slice_is_a_view() -> None:
    made = frames([0, 1, 2, 3], [3, 0, 2])
    assert np.shares_memory(made[1:].data, made.data)


def test_the_representations_show_shapes_and_no_pixels() -> None:
    made = frames([0, 1, 2, 3], [3, 0])
    assert repr(made) == "Frames(2 x 4x6 of 4, h264, pyav)"
    assert repr(made[0]) == "Frame(3 at 0.100 s, 4x6)"
    assert repr(made.with_layout("NCHW")) == repr(made)
    assert repr(made.with_layout("NCHW")[0]) == repr(made[0])


def test_packets_skipped_is_the_number_of_packets_that_were_not_fed() -> None:
    assert Report("pyav", "cpu", packets_total=10, packets_fed=4).packets_skipped == 6


def test_frames_on_the_cpu_are_numpy_without_a_copy() -> None:
    made = frames([0, 1], [0, 1])
    assert made.numpy() is made.data


def test_a_numpy_array_of_frames_is_their_pixels() -> None:
    made = frames([0, 1], [0, 1])
    array = np.asarray(made)
    assert array.shape == made.shape == (2, 4, 6, 3) and np.shares_memory(array, made.data)
    assert not np.shares_memory(np.array(made), made.data)
    assert np.asarray(made, np.float32).dtype == np.float32
    assert np.stack([made, made]).shape == (2, 2, 4, 6, 3)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_layout_says_which_axis_has_the_channels(layout: Layout) -> None:
    made = frames([0, 1, 2], [2, 1])
    view = made.with_layout(layout)
    assert view.shape == ((2, 3, 4, 6) if layout == "NCHW" else (2, 4, 6, 3))
    assert np.shares_memory(view.data, made.data)
    assert view[0].image.shape == view.shape[1:]
    assert np.array_equal(view.with_layout("NHWC").data, made.data)
    assert np.array_equal(np.asarray(view[0].pil()), made.data[0])
    assert np.array_equal(np.asarray(view.sheet(width=640)), np.asarray(made.sheet(width=640)))
    assert view.metadata() == made.metadata()


def test_padding_repeats_the_last_frame_and_masks_the_repeats() -> None:
    made = frames([0, 1, 2], [2, 1]).pad_to(3).pad_to(4)
    assert made.indices.tolist() == [2, 1, 1, 1] and made.mask.tolist() == [True, True, False, False]
    assert made.data[:, 0, 0, 0].tolist() == [2, 1, 1, 1]
    assert made.metadata()["frames_indices"] == [2, 1, 1, 1]
    assert made[made.mask].indices.tolist() == [2, 1]
    assert made.pad_to(2) is made


def test_a_notebook_shows_the_contact_sheet() -> None:
    made = frames(list(range(200)), list(range(150)))
    page = made._repr_html_()
    start = '<img src="data:image/jpeg;base64,'
    assert page.startswith(f"<div>Frames(150 x 4x6 of 200, h264, pyav)</div>{start}")
    picture = Image.open(io.BytesIO(base64.b64decode(page.split(start)[1].removesuffix('">'))))
    assert picture.format == "JPEG" and picture.width == 1280


def test_a_notebook_shows_no_picture_of_an_empty_result() -> None:
    assert frames([0, 1], [0, 1])[:0]._repr_html_() == "<div>Frames(0 x 4x6 of 2, h264, pyav)</div>"


class OnDevice:
    """A fake of an array on a GPU."""

    def __init__(self, host: np.ndarray, method: str) -> None:
        setattr(self, method, lambda: host)


@pytest.mark.parametrize("method", ["cpu", "to_host"])
def test_frames_on_a_gpu_are_copied_to_the_host(method: str) -> None:
    """A torch tensor has ``cpu``, the array of the NVDEC engine ``to_host``."""
    host = np.arange(72, dtype=np.uint8).reshape(1, 4, 6, 3)
    made = frames([0, 1], [0], data=OnDevice(host, method))
    assert np.array_equal(made.numpy(), host) and np.array_equal(np.asarray(made), host)
    with pytest.raises(ValueError, match="copy"):
        made.__array__(copy=False)


def test_the_torch_method_without_torch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(telecine.BackendUnavailable, match="pip install torch") as caught:
        frames([0, 1], [0]).torch()
    assert isinstance(caught.value, ImportError)


def test_metadata_of_a_constant_rate_has_the_count_and_rate_of_the_video() -> None:
    """Processors compute a time as index / fps, which is the true one."""
    made = frames([k * 1001 for k in range(50)], [0, 7, 7, 49], Fraction(1, 30000), last=1001)
    metadata = made.metadata()
    assert metadata == {
        "total_num_frames": 50,
        "fps": pytest.approx(30000 / 1001),
        "width": 6,
        "height": 4,
        "duration": pytest.approx(50 * 1001 / 30000),
        "video_backend": "telecine-pyav",
        "frames_indices": [0, 7, 7, 49],
        "do_sample_frames": False,
    }
    assert all(type(index) is int for index in metadata["frames_indices"])
    assert np.allclose(np.array(metadata["frames_indices"]) / metadata["fps"], made.timestamps)


def test_metadata_of_a_variable_rate_is_a_virtual_constant_timeline() -> None:
    """Its grid is the coarsest one with all times of the video, not only those of the returned frames."""
    made = frames([0, 512, 1024, 3072, 3584], [0, 3, 4], Fraction(1, 15360), last=512)
    metadata = made.metadata()
    assert metadata["fps"] == 30.0
    assert metadata["frames_indices"] == [0, 6, 7]
    assert metadata["total_num_frames"] == 8
    assert np.allclose(np.array(metadata["frames_indices"]) / metadata["fps"], made.timestamps)


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(st.integers(1, 5000), min_size=2, max_size=20),
    base=st.sampled_from([Fraction(1, 1000), Fraction(1, 90000), Fraction(1, 30), Fraction(1001, 30000)]),
    data=st.data(),
)
def test_processors_compute_the_true_time_of_every_frame_from_the_metadata(
    steps: list[int], base: Fraction, data: st.DataObject
) -> None:
    """The error is at most 0.5 ms for a variable rate, and at most the jitter limit for a constant one."""
    ticks = np.concatenate([[0], np.cumsum(steps)]).tolist()
    indices = data.draw(st.lists(st.integers(0, len(ticks) - 1), min_size=1, max_size=8))
    made = frames(ticks, indices, base)
    metadata = made.metadata()
    computed = np.array(metadata["frames_indices"]) / metadata["fps"]
    interval = float(base) * ticks[-1] / (len(ticks) - 1)
    tolerance = 5.1e-4 if made.info.variable_frame_rate else max(2 * float(base), interval / 20) + 1e-9
    assert np.abs(computed - made.timestamps).max() <= tolerance
    assert max(metadata["frames_indices"]) < metadata["total_num_frames"]


def test_metadata_of_a_clip_with_two_rates_gives_its_true_times() -> None:
    """The clip slows down to a quarter in its middle."""
    clip = CLIPS["vfr.mp4"]
    made = telecine.load(clip.path(), num_frames=8)
    metadata = made.metadata()
    assert made.info.variable_frame_rate
    assert np.allclose(
        np.array(metadata["frames_indices"]) / metadata["fps"], np.array(clip.times)[made.indices], atol=5.1e-4
    )
