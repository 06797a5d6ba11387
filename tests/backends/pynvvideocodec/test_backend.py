"""The PyNvVideoCodec backend, with a fake library."""

from __future__ import annotations

import gc
import io
import logging
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest

import telecine
from support.clips import CLIPS, read_number
from support.fake_driver.double import Double, double_fixture, engine_fixture  # noqa: F401, fixtures
from support.fake_nvidia import install
from support.fake_pynvvideocodec import FakePyNvVideoCodec
from telecine.backends import cuda_output, registry
from telecine.backends.pynvvideocodec import backend, batches, surfaces
from telecine.backends.pynvvideocodec.backend import PyNvVideoCodecBackend
from telecine.deadline import Deadline
from telecine.testing import CASES, Case, run_case

CLIP = CLIPS["h264_pyramid.mp4"]
Start = Callable[..., FakePyNvVideoCodec]


@pytest.fixture(name="start")
def start_fixture(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Return a function that installs the fake library and a new backend, without the extension."""

    def missing() -> Any:
        raise telecine.BackendUnavailable("the extension telecine._nvdec is missing")

    def make(**faults: Any) -> FakePyNvVideoCodec:
        library = FakePyNvVideoCodec(**faults)
        install(monkeypatch, PyNvVideoCodec=library)
        monkeypatch.setitem(registry._instances, "pynvvideocodec", PyNvVideoCodecBackend())
        return library

    for module in (backend, surfaces):
        monkeypatch.setattr(module, "load_extension", missing)
    monkeypatch.setattr(backend, "hardware_refusal", lambda request: None)
    monkeypatch.setattr(surfaces, "resolve_array_kind", lambda out: "array")  # not torch, if installed
    return make


@pytest.fixture
def gpu(start: Any, double: Double, monkeypatch: pytest.MonkeyPatch) -> Double:
    """Make the extension available, with the fake driver."""
    for module in (backend, surfaces):
        monkeypatch.setattr(module, "load_extension", cuda_output.load_extension)
    monkeypatch.setattr(backend, "hardware_refusal", cuda_output.hardware_refusal)
    return double


def load(source: Any, **how: Any) -> telecine.Frames:
    return telecine.load(source, backend="pynvvideocodec", **how)


def numbers(frames: telecine.Frames) -> list[int]:
    return [read_number(image) for image in frames.data]


def _check_case(case: Case, device: str) -> None:
    outcome = run_case(case, "pynvvideocodec", device)
    other = {"damaged-picture": {"same", "differs"}, "interlaced": {"refused"}}
    assert outcome.verdict in other.get(case.name, {"same"}), outcome


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_conformance(start: Start, case: Case) -> None:
    start()
    _check_case(case, "cpu")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_conformance_on_the_gpu(start: Start, gpu: Double, case: Case) -> None:
    start()
    _check_case(case, "cuda")


PIXELS = [
    "h264_pyramid.mp4", "hevc_main10.mp4", "hevc_444.mp4", "rotated90.mp4", "colour_bt709_pc.mp4", "vp8_layers.webm",
    "vp8_plain.webm", "h264_10bit.mp4",
]  # fmt: skip


@pytest.mark.parametrize("name", [*PIXELS, "h264_422.mp4", "vp9_layers.webm"])
def test_pixels_on_the_cpu_equal_those_of_pyav(start: Start, name: str) -> None:
    """In the native size and resized."""
    start()
    for size in (None, 48):
        wanted = {"num_frames": 5, "size": size}
        ours, known = load(CLIPS[name].path(), **wanted), telecine.load(CLIPS[name].path(), backend="pyav", **wanted)
        assert ours.indices.tolist() == known.indices.tolist()
        assert np.array_equal(ours.data, known.data)


@pytest.mark.parametrize("name", PIXELS)
def test_pixels_on_the_gpu_are_converted_by_the_nvdec_kernel(start: Start, gpu: Double, name: str) -> None:
    """Without a copy to the host: rotated, with 10 bits, resized."""
    library = start()
    for size in (None, 47):
        wanted = {"num_frames": 5, "size": size}
        known = telecine.load(CLIPS[name].path(), backend="pyav", **wanted)
        launches = gpu.count("launches")
        ours = load(CLIPS[name].path(), device="cuda", **wanted)
        assert gpu.count("launches") == launches + 5
        assert ours.indices.tolist() == known.indices.tolist()
        assert np.abs(ours.numpy().astype(int) - known.data).max() <= 1
        assert ours.report.device == "cuda:0"
    assert all(arguments["usedevicememory"] for arguments in library.made)
    assert {arguments["outputColorType"] for arguments in library.made} == {library.OutputColorType.NATIVE}


def test_repeated_frames_are_converted_once(start: Start, gpu: Double) -> None:
    start()
    launches = gpu.count("launches")
    frames = load(CLIP.path(), indices=[7, 30, 7, 7], device="cuda")
    assert [read_number(image) for image in frames.numpy()] == [7, 30, 7, 7]
    assert gpu.count("launches") == launches + 2


def test_pixel_formats_without_a_gpu_conversion_are_refused(start: Start, gpu: Double) -> None:
    start()
    assert telecine.probe(CLIPS["vp9_layers.webm"].path()).color_space == "gbr"
    with pytest.raises(telecine.UnsupportedVideoError, match="no conversion from gbrp"):
        load(CLIPS["vp9_layers.webm"].path(), num_frames=2, device="cuda")


def test_formats_that_the_hardware_does_not_decode_are_refused(start: Start, gpu: Double) -> None:
    """The library returns neither a frame nor an error for some of them."""
    library = start(mute=("H264",))
    with pytest.raises(telecine.UnsupportedVideoError, match="does not know this codec with this chroma format"):
        load(CLIPS["h264_422.mp4"].path(), num_frames=2)
    assert not library.made


def test_frames_on_the_gpu_need_the_extension(start: Start) -> None:
    library = start()
    with pytest.raises(telecine.BackendUnavailable, match="extension"):
        load(CLIP.path(), num_frames=2, device="cuda")
    assert not library.made


@pytest.mark.parametrize(
    ("device", "kind", "failure"),
    [
        ("cuda:3", telecine.BackendUnavailable, "no GPU 3"),
        ("cuda", telecine.OverloadedError, "allocating GPU memory"),
    ],
)
def test_an_unusable_gpu_raises_the_reason(
    start: Start, gpu: Double, device: str, kind: type[Exception], failure: str
) -> None:
    start()
    gpu.set(memory_failures=1 if device == "cuda" else 0)
    with pytest.raises(kind, match=failure):
        load(CLIP.path(), num_frames=2, device=device)


def test_a_failed_allocation_during_conversion_raises_overloaded_error(start: Start, gpu: Double) -> None:
    start()
    nvdec: Any = cuda_output.load_extension()
    with pytest.MonkeyPatch.context() as patch:
        # the output is allocated already; the filter tables are next
        def fails(*arguments: Any) -> Any:
            gpu.set(memory_failures=1)
            return made(*arguments)

        made = nvdec.SurfaceConverter
        patch.setattr(nvdec, "SurfaceConverter", fails)
        with pytest.raises(telecine.OverloadedError, match="allocating GPU memory"):
            load(CLIP.path(), num_frames=2, device="cuda", size=48)


@pytest.mark.parametrize("name", ["mpeg2.mp4", "mpeg2_open_gop.ts", "mpeg4.mp4", "mpeg4.avi"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_codecs_without_a_bit_exact_transform_are_refused(start: Start, gpu: Double, name: str, device: str) -> None:
    start()
    with pytest.raises(telecine.UnsupportedVideoError, match="gives other pictures than FFmpeg's"):
        load(CLIPS[name].path(), num_frames=2, device=device)


@pytest.mark.parametrize("name", ["interlaced.mp4", "h264_mbaff.mp4", "h264_paff.mp4", "h264_paff.ts"])
def test_interlaced_video_is_refused(start: Start, name: str) -> None:
    """The library deinterlaces it, even if only the bitstream tells that it is interlaced."""
    library = start()
    with pytest.raises(telecine.UnsupportedVideoError, match=r"deinterlaces.*use backend='pyav' or 'nvdec'"):
        load(CLIPS[name].path(), num_frames=2)
    assert not library.made


@pytest.mark.parametrize(
    "name", ["vp8_altref.webm", "vp9_10bit.webm", "vp9_altref.webm", "av1_aom.mp4", "av1_svt.webm"]
)
def test_streams_with_hidden_frames_are_refused(start: Start, name: str) -> None:
    """The library returns frames with the pts of others."""
    start()
    with pytest.raises(telecine.UnsupportedVideoError, match="hidden frames"):
        load(CLIPS[name].path())


@pytest.mark.parametrize("name", ["vp8_plain.webm", "vp9_layers.webm"])
def test_a_missing_frame_makes_all_frames_of_the_pass_unreliable(start: Start, name: str) -> None:
    """In codecs without reordering another frame may have its pts."""
    start(drops=(30,))
    with pytest.raises(telecine.DecodeError, match="none of 60 wanted frames"):
        load(CLIPS[name].path())
    frames = load(CLIPS[name].path(), indices=[0, 5])
    assert frames.indices.tolist() == [0, 5]


def test_a_format_without_any_output_is_refused(start: Start) -> None:
    start(mute=("VP9",))
    with pytest.raises(telecine.UnsupportedVideoError, match="no frame of gbrp in vp9"):
        load(CLIPS["vp9_layers.webm"].path())


@pytest.mark.parametrize(
    ("kind", "tall", "height"),
    [
        ("NV12", 72, 48), ("NV12", 68, 45), ("NV12", 67, 45), ("NV12", 71, 47), ("NV12", 70, 47), ("NV12", 2, 1),
        ("P016", 66, 44), ("NV16", 90, 45), ("YUV444", 135, 45),
    ],
)  # fmt: skip
def test_picture_height_is_computed_from_the_rows_of_all_planes(kind: str, tall: int, height: int) -> None:
    """With half a row of chroma rounded up or down."""
    request: Any = SimpleNamespace(
        geometry=SimpleNamespace(stored_width=63), info=SimpleNamespace(bit_depth=10), max_pixels=1 << 20
    )
    frame = SimpleNamespace(format=f"Pixel_Format.{kind}", shape=(tall, 64), GetPtrToPlane=lambda plane: 4096)
    surface = surfaces.locate_surface(request, frame)
    assert (surface.height, surface.width, surface.depth) == (height, 63, 10 if kind == "P016" else 8)
    assert surface.pitch == (128 if kind == "P016" else 64)
    frame.strides = (256, 1)
    assert surfaces.locate_surface(request, frame).pitch == 256


@pytest.mark.parametrize("name", ["h264_open_gop.mp4", "hevc_open_gop.mp4", "hevc_cut.mp4", "trimmed.mp4", "vfr.mp4"])
def test_every_frame_is_the_wanted_one(start: Start, name: str) -> None:
    start()
    clip = CLIPS[name]
    for wanted in (range(clip.num_frames), range(3, clip.num_frames, 7)):
        frames = load(clip.path(), indices=list(wanted))
        assert numbers(frames) == [clip.numbers[index] for index in frames.indices]
        assert frames.indices.tolist() == list(wanted)


def test_decoders_are_created_with_native_output_in_host_memory(start: Start) -> None:
    """And with the maximum size of the options."""
    library = start()
    load(CLIP.path(), num_frames=2, max_width=1920, max_height=1088)
    (arguments,) = library.made
    assert (arguments["maxwidth"], arguments["maxheight"]) == (1920, 1088)
    assert arguments["codec"] is library.cudaVideoCodec.H264
    assert arguments["outputColorType"] is library.OutputColorType.NATIVE
    assert arguments["usedevicememory"] is False
    assert arguments["gpuid"] == 0


@pytest.mark.parametrize(("dropped", "lost"), [(21, (21,)), (20, (19, 20, 21, 22))])
def test_a_picture_without_output_is_lost_with_the_frames_that_refer_to_it(
    start: Start, dropped: int, lost: tuple[int, ...]
) -> None:
    """No other frame is shifted; picture 21 is disposable, and 19 to 22 follow 20 in decode order."""
    start(drops=(dropped,))
    frames = load(CLIP.path())
    assert numbers(frames) == frames.indices.tolist()
    assert frames.report.lost == lost


def _with_exchanged_times() -> bytes:
    """Return a clip in which the pts of two B-pictures are exchanged."""
    target = io.BytesIO()
    with av.open(str(CLIP.path())) as source, av.open(target, "w", format="matroska") as file:
        packets = [packet for packet in source.demux(video=0) if packet.size]
        stream = file.add_stream_from_template(source.streams.video[0])
        by_time = sorted(packets, key=lambda packet: packet.pts or 0)
        one, other = by_time[5], by_time[6]
        one.pts, other.pts = other.pts, one.pts
        for packet in packets:
            packet.stream = stream
            file.mux_one(packet)
    return target.getvalue()


def test_frames_whose_pts_contradict_the_bitstream_are_lost(
    start: Start,
) -> None:
    """The driver's parser exchanges the pts of frames if they do not ascend in output order."""
    data = _with_exchanged_times()
    known = telecine.load(data, backend="pyav")
    for exchanges in (True, False):
        start(exchanges=exchanges)
        frames = load(data)
        assert {5, 6} <= set(frames.report.lost) <= set(range(24))
        assert np.array_equal(frames.data, known.data[frames.indices])


def test_decoder_sessions_are_reused_by_later_requests(start: Start) -> None:
    library = start()
    for _ in range(3):
        assert numbers(load(CLIP.path(), indices=[0, 30, 59])) == [0, 30, 59]
    assert len(library.made) == 1
    load(CLIPS["hevc_main10.mp4"].path(), num_frames=2)
    load(CLIP.path(), num_frames=2)
    assert len(library.made) == 2


def test_streams_with_other_parameter_sets_get_another_session(start: Start) -> None:
    """A stream of the same size may need more reference pictures."""
    library = start()
    assert telecine.probe(CLIP.path()).width == telecine.probe(CLIPS["h264_no_b.mp4"].path()).width
    load(CLIP.path(), num_frames=2)
    load(CLIPS["h264_no_b.mp4"].path(), num_frames=2)
    assert len(library.made) == 2


def test_idle_sessions_are_closed_to_stay_within_hw_decoders(start: Start) -> None:
    """The ones idle for longest are closed first."""
    library = start()
    names = ["h264_pyramid.mp4", "hevc_main10.mp4", "vp8_plain.webm", "hevc_444.mp4"]
    for name in names:
        load(CLIPS[name].path(), num_frames=1, hw_decoders=2)
    assert library.most_alive == 2
    load(CLIPS["hevc_444.mp4"].path(), num_frames=1)
    assert len(library.made) == 4
    load(CLIPS["h264_pyramid.mp4"].path(), num_frames=1)
    assert len(library.made) == 5


def test_a_failed_session_is_not_reused(start: Start) -> None:
    library = start(fails_at={0: 30})
    load(CLIP.path())
    assert numbers(load(CLIP.path(), indices=[0, 59])) == [0, 59]
    gc.collect()
    assert len(library.alive) <= 2


def _frames_in_decode_order() -> list[int]:
    with av.open(str(CLIP.path())) as file:
        pts = [packet.pts or 0 for packet in file.demux(video=0) if packet.size]
    return np.argsort(np.argsort(pts)).tolist()


@pytest.mark.parametrize("at", [1, 20, 30, 60])
def test_a_failure_loses_the_packets_up_to_the_next_closed_random_access_point(start: Start, at: int) -> None:
    """Frames before it are decoded again in another session."""
    library = start(fails_at={0: at})
    frames = load(CLIP.path())
    assert numbers(frames) == frames.indices.tolist()
    next_closed_point = -(-at // 24) * 24
    assert set(frames.report.lost) == set(_frames_in_decode_order()[at:next_closed_point])
    assert any("cuvidDecodePicture" in note for note in frames.report.notes)
    assert len(library.made) <= 4


@pytest.mark.parametrize("batch", [1, 7, 30, 31, 1000])
@pytest.mark.parametrize("name", ["h264_pyramid.mp4", "size_change.ts", "noise_reference.mp4"])
def test_results_do_not_depend_on_the_number_of_packets_per_batch(
    start: Start, monkeypatch: pytest.MonkeyPatch, batch: int, name: str
) -> None:
    found = []
    for size in (batches._BATCH_PACKETS, batch):
        monkeypatch.setattr(batches, "_BATCH_PACKETS", size)
        library = start(fails_at={0: 30} if name == CLIP.name else {})
        frames = load(CLIPS[name].path())
        found.append((frames.indices.tolist(), frames.report.lost, len(library.made), frames.data.tobytes()))
    assert found[0] == found[1]


def test_a_failure_in_a_reused_session_is_retried_in_a_new_one(start: Start) -> None:
    """No frame is lost."""
    library = start(fails_at={0: 40})
    load(CLIP.path(), indices=[0])
    frames = load(CLIP.path())
    assert numbers(frames) == list(range(60))
    assert len(library.made) == 2


def test_each_picture_size_gets_a_session_of_its_own(start: Start) -> None:
    """A session that returned frames of several sizes is not reused."""
    library = start()
    clip = CLIPS["size_change.ts"]
    known = telecine.load(clip.path(), backend="pyav")
    frames = load(clip.path())
    assert frames.indices.tolist() == known.indices.tolist()
    assert np.array_equal(frames.data, known.data)
    assert len(library.made) > 1


def test_packets_that_the_index_did_not_keep_are_read_from_the_file(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when a part of the video is decoded a second time."""
    monkeypatch.setattr(sys.modules["telecine.index.packet_scan"], "MAX_KEPT_BYTES", 0)
    known = telecine.load(CLIPS["size_change.ts"].path(), backend="pyav")
    start()
    assert np.array_equal(load(CLIPS["size_change.ts"].path()).data, known.data)
    start(fails_at={0: 30})
    frames = load(CLIP.path())
    assert numbers(frames) == frames.indices.tolist()
    assert set(range(24)) | set(range(48, 60)) <= set(frames.indices.tolist())


def test_a_picture_that_grows_beyond_max_pixels_raises(start: Start) -> None:
    start()
    info = telecine.probe(CLIPS["size_change.ts"].path())
    limits = telecine.Limits(max_pixels=info.width * info.height)
    with pytest.raises(telecine.LimitError, match=r"grows to 160x96; limits\.max_pixels is 6144"):
        load(CLIPS["size_change.ts"].path(), limits=limits)


def test_codecs_that_the_gpu_lacks_are_refused_with_the_librarys_reason(
    start: Start,
) -> None:
    start(unsupported=("HEVC",))
    with pytest.raises(telecine.UnsupportedVideoError, match="Codec not supported on this GPU") as caught:
        load(CLIPS["hevc_444.mp4"].path(), num_frames=2)
    assert "\n" not in str(caught.value)


def test_codecs_unknown_to_the_library_are_refused(start: Start) -> None:
    start()
    with pytest.raises(telecine.UnsupportedVideoError, match="backend='pyav'"):
        load(CLIPS["prores.mov"].path(), num_frames=2)


def test_a_decoder_that_cannot_be_created_raises_with_the_reason(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    library = start()

    def fails(**_: Any) -> Any:
        raise library.PyNvVCException("CUDA_ERROR_OUT_OF_MEMORY\nat line 3")

    monkeypatch.setattr(library, "CreateDecoder", fails)
    with pytest.raises(telecine.OverloadedError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        load(CLIP.path(), num_frames=2)


def test_a_video_without_any_decodable_frame_raises_decode_error(start: Start) -> None:
    start(fails_at=dict.fromkeys(range(100), 0))
    with pytest.raises(telecine.DecodeError, match="none of 60 wanted frames"):
        load(CLIP.path())


def test_hw_decoders_of_the_first_request_holds(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """A different value is ignored later, with one warning."""
    library = start()
    threads = [
        threading.Thread(target=load, args=(CLIP.path(),), kwargs={"indices": [0], "hw_decoders": 1}) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert library.most_alive == 1
    with caplog.at_level(logging.WARNING, "telecine"):
        for _ in range(2):
            load(CLIP.path(), indices=[0], hw_decoders=3)
    assert [record.getMessage() for record in caplog.records] == [
        "hw_decoders is 3; it stays 1, as the first request said"
    ]


def test_a_deadline_ends_the_wait_for_a_decoder(start: Start) -> None:
    start()
    load(CLIP.path(), indices=[0], hw_decoders=1)
    made: Any = registry._instances["pynvvideocodec"]
    assert made._decoders._slots.acquire(timeout=1)
    with pytest.raises(telecine.DeadlineError, match="waiting for a decoder session"):
        load(CLIP.path(), num_frames=1, timeout=0.3)


def test_a_session_is_not_reused_after_a_cancelled_request(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next request would get its late frames."""
    library = start()
    deadline = Deadline()
    picture = surfaces.make_video_frame

    def cancels(request: Any, frame: Any) -> Any:
        deadline.cancel()
        return picture(request, frame)

    monkeypatch.setattr(surfaces, "make_video_frame", cancels)
    with pytest.raises(telecine.TelecineError):
        load(CLIP.path(), timeout=deadline)
    monkeypatch.setattr(surfaces, "make_video_frame", picture)
    assert numbers(load(CLIP.path())) == list(range(60))
    assert len(library.made) == 2


def test_status_names_the_missing_driver_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing the library loads the driver's encoder."""

    class FailingFinder:
        def find_spec(self, name: str, *_: Any) -> Any:
            if name == "PyNvVideoCodec":
                raise RuntimeError("libnvidia-encode.so.1: cannot open shared object file\n\n=== TROUBLESHOOTING ===")

    monkeypatch.delitem(sys.modules, "PyNvVideoCodec", raising=False)
    monkeypatch.setattr(sys, "meta_path", [FailingFinder(), *sys.meta_path])
    status = PyNvVideoCodecBackend().status()
    assert not status.usable
    assert status.reason is not None
    assert "NVIDIA_DRIVER_CAPABILITIES" in status.reason
    assert "TROUBLESHOOTING" not in status.reason


def test_status_gives_the_version_of_the_installed_package(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of 2.0.4 has the version attribute 2.1.1."""
    start()
    monkeypatch.setattr(backend, "version", lambda name: {"pynvvideocodec": "2.0.4"}[name])
    assert PyNvVideoCodecBackend().status().version == "2.0.4"
