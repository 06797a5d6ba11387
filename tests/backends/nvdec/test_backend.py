"""The NVDEC backend: with a fake driver on every machine, and compared with the CPU backend on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import telecine
from support.clips import CLIPS, Clip
from support.fake_driver import build
from support.fake_driver.double import (
    Double,
    check_frames,
    engine_fixture,  # noqa: F401, fixtures
)
from support.fake_driver.stream import BAD, REFERENCE, Coded, Shape, gop
from telecine.backends import cuda_output
from telecine.backends.base import DecodeRequest
from telecine.backends.nvdec import backend, batches
from telecine.backends.nvdec.backend import NvdecBackend
from telecine.bitstream import RandomAccess
from telecine.deadline import Deadline
from telecine.errors import (
    BackendUnavailable,
    Cancelled,
    DeadlineError,
    LimitError,
    OptionsError,
    UnsupportedVideoError,
)
from telecine.index.packet_index import PacketIndex
from telecine.index.video_info import VideoInfo
from telecine.pixels.geometry import Geometry
from telecine.plan.decode_plan import make_plan
from telecine.timeline import Timeline
from telecine.validation import check_options


class FakePackets(list[bytes]):
    """The packets of an index, with a record of the ones read."""

    def __init__(self, pictures: Sequence[Coded]) -> None:
        super().__init__(picture.packet() for picture in pictures)
        self.read: list[int] = []

    def __getitem__(self, ordinal: Any) -> Any:
        self.read.append(ordinal)
        return super().__getitem__(ordinal)


def _index(pictures: Sequence[Coded], opens: Sequence[int] = ()) -> PacketIndex:
    count = len(pictures)
    pts = np.array([picture.order for picture in pictures], np.int64)
    starts = np.array([picture.starts for picture in pictures])
    access = np.where(starts, RandomAccess.CLOSED, RandomAccess.NONE).astype(np.uint8)
    access[list(opens)] = RandomAccess.OPEN
    order = np.argsort(pts)
    no = np.zeros(count, np.bool_)
    values: dict[str, Any] = {
        "codec": "h264",
        "time_base": Fraction(1, 30),
        "pts": pts,
        "dts": np.arange(count),
        "duration": np.ones(count, np.int64),
        "size": np.array([len(picture.packet()) for picture in pictures], np.int64),
        "key": starts,
        "random_access": access,
        "presentable": ~no,
        "has_picture": ~no,
        "second_field": no,
        "disposable": np.array([not picture.kind & REFERENCE for picture in pictures]),
        "leading": no,
        "corrupt": no,
        "skips_leading": False,
        "display_order": order,
        "timeline": Timeline(pts[order] - pts.min(), Fraction(1, 30), int(pts.max() - pts.min()) + 1, starts[order]),
        "synthetic_times": False,
        "picture": None,
        "exact_random_access": True,
        "damage": None,
        "packets": FakePackets(pictures),
    }
    known = PacketIndex.__dataclass_fields__
    return PacketIndex(**{name: value for name, value in values.items() if name in known})


def _request(
    pictures: Sequence[Coded],
    frames: Sequence[int],
    *,
    shape: Shape | None = None,
    device: str = "cpu",
    timeout: float | None = None,
    info: dict[str, Any] | None = None,
    turns: int = 0,
    **options: Any,
) -> DecodeRequest:
    shape = shape or Shape()
    index = _index(pictures)
    width, height = shape.shown
    size = (height, width) if turns % 2 == 0 else (width, height)
    name = {1: "yuv420p", 2: "yuv422p", 3: "yuv444p"}[shape.chroma] + (f"{shape.depth}le" if shape.depth > 8 else "")
    facts: dict[str, Any] = {
        "width": width, "height": height, "rotation": 0, "mirrored": False, "codec": "h264", "pixel_format": name,
        "bit_depth": shape.depth, "color_space": "unknown", "color_range": "unknown", "color_primaries": 2,
        "color_trc": 2,
        "interlaced": False, "sample_aspect_ratio": Fraction(1), "num_frames": index.num_frames, "average_fps": 30.0,
        "duration": 1.0, "start_time": 0.0, "variable_frame_rate": False, "stream_index": 0, "container": "mp4",
    }  # fmt: skip
    values: dict[str, Any] = {
        "source": None,
        "demuxer": SimpleNamespace(extradata=shape.extradata()),
        "index": index,
        "info": VideoInfo(**(facts | (info or {}))),
        "plan": make_plan(index, np.array(frames, np.int64)),
        "geometry": Geometry(height, width, turns, False, *size),
        "deadline": Deadline(timeout),
        "device": device,
        "options": options,
    }
    return DecodeRequest(**values)


@pytest.fixture
def double(engine: Double, monkeypatch: pytest.MonkeyPatch) -> Iterator[Double]:
    # torch cannot read the fake driver's memory
    monkeypatch.setattr(cuda_output, "find_spec", lambda name: None)
    yield engine
    engine.set(slow_microseconds=0, create_failures=0, decode_error_at=0)
    assert engine.count("violations") == 0


def test_each_row_has_its_frame_and_only_planned_packets_are_read(double: Double) -> None:
    pictures = [*gop(0, 20), *gop(20, 20)]
    frames = [33, 4, 4, 11]
    request = _request(pictures, frames)
    decoded = NvdecBackend().decode(request)
    assert decoded.kept.all() and decoded.device == "cpu" and decoded.data.shape == (4, 48, 64, 3)
    check_frames(decoded.data, frames, Shape())
    packets: Any = request.index.packets
    assert packets.read == [p for run in request.plan.ranges for p in run.packets.tolist()]


def test_frames_stay_on_the_gpu_unless_out_is_numpy(double: Double) -> None:
    decoded = NvdecBackend().decode(_request(gop(0, 9), [1, 5, 8], device="cuda"))
    assert isinstance(decoded.data, double.nvdec.DeviceArray) and decoded.device == "cuda:0"
    check_frames(decoded.data.to_host(), [1, 5, 8], Shape())
    decoded = NvdecBackend().decode(_request(gop(0, 9), [1, 5], device="cuda:0", out="numpy"))
    check_frames(decoded.data, [1, 5], Shape())


def test_damaged_frames_are_left_out_and_counted_in_the_notes(double: Double) -> None:
    pictures = [*gop(0, 9), *gop(9, 5)]
    pictures[3] = pictures[3].but(kind=pictures[3].kind | BAD)
    decoded = NvdecBackend().decode(_request(pictures, [0, 1, 5, 10]))
    assert decoded.kept.tolist() == [True, True, False, True]
    assert decoded.notes == ("1 rows are damaged",)


def test_frames_that_refer_to_a_corrupt_packet_are_left_out(double: Double) -> None:
    request = _request(gop(0, 9), [0, 8])
    request.index.corrupt[3] = True
    assert NvdecBackend().decode(request).kept.tolist() == [True, False]


def test_packets_are_read_in_batches_of_limited_size(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_BATCH_BYTES", 300)
    pictures = [picture for i in range(6) for picture in gop(20 * i, 20)]
    requests = double.nvdec.stats(0)["requests"]
    wanted = list(range(0, 120, 7))
    decoded = NvdecBackend().decode(_request(pictures, wanted))
    assert decoded.kept.all() and double.nvdec.stats(0)["requests"] > requests + 2
    check_frames(decoded.data, wanted, Shape())


def _range_lengths(request: DecodeRequest) -> list[int]:
    return [stop - start for batch in batches.read_batches(request) for start, stop in batch.ranges.tolist()]


def test_ranges_are_split_at_closed_random_access_points_into_16_packets_or_more() -> None:
    pictures = [picture for i in range(4) for picture in gop(20 * i, 20)]
    request = _request(pictures, list(range(80)))
    assert len(request.plan.ranges) == 1
    assert _range_lengths(request) == [20, 20, 20, 20]
    (batch,) = batches.read_batches(request)
    assert (batch.flags[batch.ranges[:, 0]] & build.native().CLOSED).all()
    short = [picture for i in range(10) for picture in gop(4 * i, 4)]
    assert _range_lengths(_request(short, list(range(40)))) == [16, 16, 8]


def test_batches_have_positions_in_display_order() -> None:
    pictures = gop(0, 9)
    request = _request(pictures, [3, 6])
    (batch,) = batches.read_batches(request)
    fed = request.plan.ranges[0].packets
    assert request.index.pts[fed].tolist() != sorted(request.index.pts[fed])
    assert np.array_equal(np.argsort(batch.display_order), np.argsort(request.index.pts[fed]))
    assert [(request.index.pts[fed[position]], row) for position, row in batch.targets.tolist()] == [(3, 0), (6, 1)]


@pytest.mark.parametrize(
    ("info", "turns", "reason"),
    [
        ({"codec": "av1"}, 0, "av1 is not decoded"),
        ({"pixel_format": "gray"}, 0, "no conversion from gray"),
        ({"color_space": "ycgco"}, 0, "ycgco"),
        ({"pixel_format": "yuv422p"}, 1, "rotated 4:2:2"),
        ({"pixel_format": "yuv422p"}, 0, "does not know this codec with this chroma"),
    ],
)
def test_unsupported_videos_are_refused_with_the_reason(
    double: Double, info: dict[str, Any], turns: int, reason: str
) -> None:
    with pytest.raises(UnsupportedVideoError, match=reason):
        NvdecBackend().decode(_request(gop(0, 3), [0], info=info, turns=turns))


@pytest.mark.parametrize("codec", ["mpeg1video", "mpeg2video", "mpeg4"])
def test_codecs_without_a_bit_exact_transform_are_refused(double: Double, codec: str) -> None:
    request = _request(gop(0, 3), [0], info={"codec": codec})
    with pytest.raises(UnsupportedVideoError, match="gives other pictures"):
        NvdecBackend().decode(request)


def test_wrong_options_and_devices_raise_errors(double: Double) -> None:
    own = NvdecBackend.options
    assert check_options("nvdec", {}, own, {}) == {"out": "auto"}
    with pytest.raises(OptionsError, match='must be "auto" or "torch" or "array" or "numpy"'):
        check_options("nvdec", {"out": "jax"}, own, {})
    with pytest.raises(OptionsError, match='device is "cpu"'):
        NvdecBackend().check_device("cpu", {"out": "torch"})
    with pytest.raises(BackendUnavailable, match="there is no GPU 5"):
        NvdecBackend().check_device("cuda:5", {"out": "array"})
    with pytest.raises(BackendUnavailable, match="no GPU 5"):
        NvdecBackend().decode(_request(gop(0, 3), [0], device="cuda:5"))


def test_an_expired_deadline_and_a_cancelled_request_raise_different_errors(double: Double) -> None:
    double.set(slow_microseconds=5000)
    with pytest.raises(DeadlineError):
        NvdecBackend().decode(_request(gop(0, 400), [399], timeout=0.1))
    request = _request(gop(0, 400), [399])
    request.deadline.cancel()
    with pytest.raises(Cancelled):
        NvdecBackend().decode(request)


def test_a_driver_failure_loses_frames_and_a_missing_capability_raises(double: Double) -> None:
    double.nvdec.shutdown()
    double.set(create_failures=1)
    decoded = NvdecBackend().decode(_request(gop(0, 9), [8]))
    assert not decoded.kept.any() and any("creating a decoder session" in note for note in decoded.notes)
    with pytest.raises(UnsupportedVideoError, match="4096x4096"):
        NvdecBackend().decode(_request(gop(0, 3), [0], shape=Shape(8192, 64)))


def test_a_picture_larger_than_the_limit_raises_limit_error(double: Double) -> None:
    request = replace(_request(gop(0, 3), [0]), max_pixels=64 * 48 - 1)
    with pytest.raises(LimitError, match=r"grows to 64x48; limits\.max_pixels is 3071"):
        NvdecBackend().decode(request)
    assert NvdecBackend().decode(replace(request, max_pixels=64 * 48)).kept.all()


def test_a_frame_whose_status_the_driver_never_reports_ends_at_the_deadline(double: Double) -> None:
    double.set(in_progress=10**9)
    try:
        with pytest.raises(DeadlineError):
            NvdecBackend().decode(_request(gop(0, 40), [8], timeout=0.2))
    finally:
        double.set(in_progress=0)
    assert NvdecBackend().decode(_request(gop(0, 9), [8])).kept.all()


def test_status_has_the_cuda_version_or_the_missing_extension(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    status = NvdecBackend().status()
    assert status.usable and status.version == "CUDA 13.0"
    monkeypatch.setitem(__import__("sys").modules, "telecine._nvdec", None)
    monkeypatch.delattr(telecine, "_nvdec", raising=False)
    status = NvdecBackend().status()
    assert not status.usable and status.reason is not None and "extension" in status.reason


def test_warm_up_creates_idle_sessions(double: Double) -> None:
    double.nvdec.shutdown()
    backend.warm_up(["h264"], [(48, 64)], count=2)
    assert backend.stats()["sessions_idle"] == 2
    with pytest.raises(BackendUnavailable, match="no GPU 9"):
        backend.warm_up(["h264"], [(48, 64)], device="cuda:9")
    with pytest.raises(BackendUnavailable, match="no GPU 9"):
        backend.stats(9)


def test_a_device_array_may_lose_all_of_its_frames(double: Double) -> None:
    decoded = NvdecBackend().decode(_request(gop(0, 9), [1, 5], device="cuda"))
    assert decoded.data[np.zeros(2, np.bool_)].shape == (0, 48, 64, 3)


def test_chunks_reuse_decoder_sessions_and_read_each_packet_once(double: Double) -> None:
    request = _request([picture for start in range(0, 300, 10) for picture in gop(start, 10)], range(300))
    before = double.nvdec.stats(0)
    chunks = list(NvdecBackend().decode_chunks(request, 8))
    assert [len(chunk.kept) for chunk in chunks] == [8, 8, 8, 8, 8, 8, 8, 4] * 5  # six closed groups of 10 at a time
    assert all(chunk.kept.all() for chunk in chunks)
    check_frames(np.concatenate([chunk.data for chunk in chunks]), range(300), Shape())
    packets: Any = request.index.packets
    assert packets.read == list(range(300)) and sum(chunk.packets_fed or 0 for chunk in chunks) == 300
    after = double.nvdec.stats(0)
    assert after["sessions_made"] - before["sessions_made"] <= after["workers"]
    assert after["sessions_reused"] - before["sessions_reused"] >= 5
    on_gpu = list(NvdecBackend().decode_chunks(_request(gop(0, 12), range(12), device="cuda"), 8))
    check_frames(np.concatenate([chunk.data.to_host() for chunk in on_gpu]), range(12), Shape())


# tests on a GPU

_CODECS = {"h264", "hevc", "vp8", "vp9"}
_GPU_CLIPS = [clip for clip in CLIPS.values() if clip.codec in _CODECS and not clip.tags & {"part", "novideo"}]
_ALWAYS_SUPPORTED = {("h264", "yuv420p"), ("hevc", "yuv420p"), ("hevc", "yuv420p10le")}


@pytest.fixture
def gpu() -> None:
    """Load the real driver, even if another test has loaded the fake one."""
    nvdec: Any = build.native()
    nvdec.shutdown()
    nvdec.load("libcuda.so.1", "libnvcuvid.so.1")


@pytest.mark.gpu
@pytest.mark.parametrize("size", [None, 96], ids=["native", "resized"])
@pytest.mark.parametrize("clip", _GPU_CLIPS, ids=str)
def test_gpu_frames_match_the_cpu_backend(clip: Clip, size: int | None, gpu: None) -> None:
    path = clip.path()
    reference = telecine.load(path, num_frames=40, size=size, backend="pyav")
    try:
        frames = telecine.load(path, num_frames=40, size=size, backend="nvdec", device="cuda", out="numpy")
    except UnsupportedVideoError as error:
        kind = reference.info.codec, reference.info.pixel_format
        assert kind not in _ALWAYS_SUPPORTED or "below the minimum" in str(error)
        pytest.skip(str(error))
    if not clip.damaged and not clip.lost and not reference.report.lost:
        assert frames.report.lost == (), frames.report.notes
    same = np.isin(reference.indices, frames.indices)
    kept = np.isin(frames.indices, reference.indices)
    assert np.array_equal(reference.indices[same], frames.indices[kept])
    difference = np.abs(reference.numpy()[same].astype(int) - frames.numpy()[kept].astype(int))
    assert difference.max(initial=0) <= 3, np.argwhere(difference > 3)[:5].tolist()


@pytest.mark.gpu
def test_decoder_sessions_are_reused_by_later_requests(gpu: None) -> None:
    clip = next(clip for clip in _GPU_CLIPS if clip.codec == "h264")
    made, reused = _sessions()
    for _ in range(3):
        telecine.load(clip.path(), num_frames=4, backend="nvdec", device="cuda", out="numpy")
    made_after, reused_after = _sessions()
    assert made_after - made <= backend.stats()["workers"] and reused_after - reused >= 2


def _sessions() -> tuple[int, int]:
    counters = backend.stats()
    return counters["sessions_made"], counters["sessions_reused"]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [{"backend": "nvdec", "out": out} for out in ("numpy", "array", "torch")] + [{"backend": "pyav"}],
    ids=lambda options: "-".join(options.values()),
)
def test_gpu_frames_of_both_layouts_have_the_same_pixels_and_one_frame_has_three_axes(options: Any, gpu: None) -> None:
    if options.get("out") == "torch":
        pytest.importorskip("torch")
    path = CLIPS["base.mp4"].path()
    last = telecine.load(path, num_frames=5, size=64, device="cuda", **options)
    first = telecine.load(path, num_frames=5, size=64, device="cuda", layout="NCHW", **options)
    assert first.shape == (5, 3, *last.shape[1:3]) and first[2].image.shape == first.shape[1:]
    host = last.numpy()
    for frames in (first, first[[0, 1, 2, 3, 4]], last.with_layout("NCHW")):
        assert np.array_equal(frames.numpy().transpose(0, 2, 3, 1), host)
    assert last[2].image.shape == host.shape[1:]
    assert np.array_equal(np.asarray(first[2].pil()), host[2]) and np.array_equal(np.asarray(last[-3].pil()), host[2])
    assert np.array_equal(last[3:0:-1].numpy(), host[3:0:-1])
    if options.get("out") != "numpy":
        torch = pytest.importorskip("torch")
        assert np.array_equal(torch.from_dlpack(first[1].image).cpu().numpy(), host[1].transpose(2, 0, 1))
