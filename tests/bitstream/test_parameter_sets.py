"""Parameter sets that change in mid-stream: decoding must start only where all of them are known."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest

import telecine
from support.handmade import Bits, H264Stream, nal_unit
from support.painting import paint
from telecine.backends.nvdec.batches import read_batches
from telecine.backends.registry import get_backend
from telecine.bitstream import RandomAccess, scanner_for
from telecine.bitstream.nal import NalSplitter, prepend_parameter_sets
from telecine.container.demuxer import Demuxer
from telecine.deadline import Deadline
from telecine.index.packet_index import PacketIndex, read_index
from telecine.limits import Limits
from telecine.plan.decode_plan import make_plan
from telecine.plan.packet_reader import PacketReader
from telecine.source.source import open_source

FRAMES = 30
WANTED = [[30], [41], [55], [5, 55], [29, 30, 31], [12, 44, 47, 59], [3]]


def encode(codec: str, options: str, container: str, first: int) -> bytes:
    """Encode numbered pictures with a random access point every ten."""
    target = io.BytesIO()
    with av.open(target, "w", format=container) as file:
        stream: Any = file.add_stream(f"lib{codec}", rate=10)
        stream.width, stream.height, stream.pix_fmt = 192, 144, "yuv420p"  # the minimum of NVDEC for HEVC
        stream.options = {f"{codec}-params": options}
        for number in range(first, first + FRAMES):
            for packet in stream.encode(av.VideoFrame.from_ndarray(paint(number, 192, 144), "rgb24")):
                file.mux(packet)
        file.mux(stream.encode(None))
    return target.getvalue()


def keep_first_parameter_sets(stream: bytes, kinds: frozenset[int], shift: int) -> bytes:
    """Return an Annex B stream without repeated parameter sets."""
    head, *units = stream.split(b"\0\0\1")
    seen: set[int] = set()
    kept = [head]
    for unit in units:
        kind = unit[0] >> shift & (31 if not shift else 63)
        if kind not in kinds or kind not in seen:
            kept.append(unit)
        seen.add(kind)
    return b"\0\0\1".join(kept)


def h264(container: str = "h264") -> list[bytes]:
    """Return two sections with equal SPS, and PPS with different quantisers."""
    options = "cabac=0:bframes=0:scenecut=0:keyint=10:min-keyint=10:qp="
    return [encode("x264", options + qp, container, first) for qp, first in (("20", 0), ("38", 30))]


def hevc() -> list[bytes]:
    """Return the same in HEVC, with open random access points and leading pictures."""
    options = "log-level=none:bframes=2:open-gop=1:scenecut=0:keyint=10:min-keyint=10:no-info=1:cutree=0:aq-mode=0:crf="
    return [encode("x265", f"{options}{crf}", "hevc", first) for crf, first in (("20", 0), ("40", 30))]


def join_flv(files: list[bytes], repeated: bool = False) -> bytes:
    """Join FLV files, all tags after the first file's header; ``repeated``: extradata tags before every key frame."""
    joined = bytearray(files[0][:13])
    for number, data in enumerate(files):
        at = 13
        while at + 11 <= len(data):
            size = int.from_bytes(data[at + 1 : at + 4], "big")
            time = int.from_bytes(data[at + 4 : at + 7], "big") + 3000 * number
            body = data[at + 11 : at + 11 + size]
            if data[at] == 9 and body[1] == 0:
                header = data[at : at + 4], body
            if repeated and data[at] == 9 and body[:2] == b"\x17\1":
                joined += header[0] + time.to_bytes(3, "big") + data[at + 7 : at + 11] + header[1]
                joined += (11 + len(header[1])).to_bytes(4, "big")
            if data[at] == 9 and body[1] != 2:  # a video tag other than an end of sequence
                joined += data[at : at + 4] + time.to_bytes(3, "big") + data[at + 7 : at + 11] + body
                joined += (11 + size).to_bytes(4, "big")
            at += 11 + size + 4
    return bytes(joined)


def remux(data: bytes, container: str, apart: bool = False) -> bytes:
    """Remux a stream without reordering; if ``apart``, with parameter sets in separate packets."""
    target = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(target, "w", format=container) as file:
        stream = file.add_stream_from_template(source.streams.video[0])
        packets: Any = (packet for packet in source.demux(video=0) if packet.size)
        for at, packet in enumerate(_split_parameter_sets(packets) if apart else packets):
            packet.stream, packet.time_base = stream, Fraction(1, 10)
            packet.pts = packet.dts = at
            file.mux(packet)
    return target.getvalue()


def _split_parameter_sets(packets: Iterator[Any]) -> Iterator[Any]:
    """Yield Annex B packets with parameter sets in separate packets."""
    for packet in packets:
        _, *units = bytes(packet).split(b"\0\0\1")
        sets = [unit.rstrip(b"\0") for unit in units if unit[0] & 31 in (7, 8)]
        for group in (sets, [unit for unit in units if unit[0] & 31 not in (7, 8)]):
            if group:
                made = av.Packet(b"".join(b"\0\0\0\1" + unit for unit in group))
                made.is_keyframe = packet.is_keyframe
                yield made


@pytest.fixture(scope="module", params=["h264", "mkv", "flv", "mp4 of flv", "hevc"])
def video(request: pytest.FixtureRequest) -> tuple[bytes, Any]:
    """A file of two sections, and the frames of both sections decoded separately."""
    if "flv" in request.param:
        sections = h264("flv")
        joined = join_flv(sections)
        if request.param != "flv":
            joined = remux(joined, "mp4")
    elif request.param == "hevc":
        sections = [keep_first_parameter_sets(section, frozenset({32, 33, 34}), 1) for section in hevc()]
        joined = b"".join(sections)
    else:
        sections = [keep_first_parameter_sets(section, frozenset({7, 8}), 0) for section in h264()]
        joined = b"".join(sections)
        if request.param == "mkv":
            joined = remux(joined, "matroska")
    return joined, np.concatenate([telecine.load(section).data for section in sections])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("wanted", [None, *WANTED], ids=str)
def test_frames_after_a_change_of_parameter_sets_are_exact(
    video: tuple[bytes, Any], wanted: list[int] | None, threads: int
) -> None:
    """A decoder that starts after the change would use the parameter sets of the first section."""
    data, known = video
    frames = telecine.load(data, indices=wanted, threads=threads)
    assert frames.report.lost == ()
    assert np.array_equal(frames.data, known[wanted if wanted is not None else slice(None)])


@pytest.mark.parametrize("wanted", WANTED, ids=str)
def test_remuxed_files_have_the_changed_parameter_sets(video: tuple[bytes, Any], wanted: list[int]) -> None:
    """Such a file has extradata and in-band parameter sets, but no extradata attached to packets."""
    data, known = video
    frames = telecine.load(data, backend="opencv", indices=wanted)
    assert frames.report.lost == ()
    assert np.array_equal(frames.data, known[wanted])


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["nvdec", "torchcodec", "pynvvideocodec", "deepstream"])
def test_gpu_backends_decode_or_refuse_changed_parameter_sets(video: tuple[bytes, Any], name: str) -> None:
    status = get_backend(name).status()
    if not status.usable:
        pytest.skip(f"{name}: {status.reason}")
    data, known = video
    for wanted in WANTED:
        try:
            frames = telecine.load(data, backend=name, device="cuda", indices=wanted)
        except telecine.UnsupportedVideoError as refusal:
            pytest.skip(f"{name} refuses the video: {refusal}")
        assert frames.report.lost == ()
        assert np.abs(frames.numpy().astype(np.int16) - known[wanted]).max() <= 3


@pytest.mark.parametrize(("wanted", "kinds"), [(3, {5, 1, 6}), (41, {7, 8, 5, 1, 6})])
def test_nvdec_gets_changed_parameter_sets_in_band(wanted: int, kinds: set[int]) -> None:
    """The engine gets only the extradata of the file."""
    deadline = Deadline()
    data = join_flv(h264("flv"))
    with open_source(data, Limits(), deadline) as source, Demuxer(source, deadline) as demuxer:
        index = read_index(demuxer, Limits(), deadline)
        request: Any = SimpleNamespace(
            index=index, reader=PacketReader(demuxer, index), plan=make_plan(index, np.array([wanted]))
        )
        (batch,) = read_batches(request)
        units = NalSplitter("h264", bytes(demuxer.stream.codec_context.extradata or b""))
        assert {unit[0] & 31 for packet in batch.packets for unit in units.split(bytes(packet))} <= kinds
        assert ({7, 8} <= {unit[0] & 31 for unit in units.split(bytes(batch.packets[0]))}) == ({7, 8} <= kinds)


def test_prepend_parameter_sets_returns_none_if_they_do_not_fit_the_packets() -> None:
    """The lengths have another size, or the codec has no in-band parameter sets."""
    with av.open(io.BytesIO(h264("flv")[0])) as file:
        record = bytes(file.streams.video[0].codec_context.extradata or b"")
    assert prepend_parameter_sets("h264", record, record, b"packet") is not None
    assert prepend_parameter_sets("h264", record, record[:4] + bytes([record[4] - 2]) + record[5:], b"packet") is None
    assert prepend_parameter_sets("h264", b"\0\0\1\x67", record, b"packet") is None
    assert prepend_parameter_sets("h264", record, record[:5], b"packet") is None
    assert prepend_parameter_sets("mpeg4", record, record, b"packet") is None


def test_packets_read_again_after_a_seek_get_their_parameter_sets(
    video: tuple[bytes, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some demuxers leave them out after a seek."""
    data, known = video
    monkeypatch.setattr("telecine.index.packet_scan.MAX_KEPT_BYTES", 0)
    monkeypatch.setattr("telecine.plan.packet_reader._MAX_PACKETS_READ_OVER", 4)
    for wanted in WANTED:
        assert np.array_equal(telecine.load(data, indices=wanted).data, known[wanted])


def read(data: bytes) -> PacketIndex:
    with open_source(data, Limits(), Deadline()) as source, Demuxer(source, Deadline()) as demuxer:
        return read_index(demuxer, Limits(), Deadline())


@pytest.mark.parametrize("wanted", [None, *WANTED], ids=str)
def test_packets_with_only_parameter_sets_are_fed(wanted: list[int] | None) -> None:
    """Demuxers do not flag them as key frames."""
    sections = [keep_first_parameter_sets(section, frozenset({7, 8}), 0) for section in h264()]
    data = remux(b"".join(sections), "matroska", apart=True)
    known = np.concatenate([telecine.load(section).data for section in sections])
    assert np.array_equal(
        telecine.load(data, indices=wanted).data, known[wanted if wanted is not None else slice(None)]
    )


@pytest.mark.parametrize("wanted", [None, *WANTED], ids=str)
def test_a_changed_sps_invalidates_the_pps_that_refer_to_it(wanted: list[int] | None) -> None:
    """The second section has only its SPS in the file; its PPS would equal that of the first section."""
    options = "cabac=0:bframes=0:scenecut=0:keyint=10:min-keyint=10:qp=20:level="
    sections = [encode("x264", options + level, "h264", first) for level, first in (("3.0", 0), ("4.0", 30))]
    known = np.concatenate([telecine.load(section).data for section in sections])
    _, *units = sections[1].split(b"\0\0\1")
    data = sections[0] + b"".join(b"\0\0\0\1" + unit for unit in units if unit[0] & 31 != 8)
    frames = telecine.load(data, indices=wanted)
    assert frames.report.lost == ()
    assert np.array_equal(frames.data, known[wanted if wanted is not None else slice(None)])


def test_key_frames_with_repeated_extradata_are_random_access_points() -> None:
    index = read(join_flv(h264("flv"), repeated=True))
    assert np.flatnonzero(index.random_access).tolist() == list(range(0, 60, 10))


def test_a_key_frame_after_a_packet_of_parameter_sets_is_no_random_access_point() -> None:
    """Decoding from that picture would miss them."""
    stream = H264Stream(interlaced=False)
    sets, key = stream.parameter_sets(), stream.picture(0, frame_num=0, idr=True)
    other = H264Stream(interlaced=False, poc_type=2).parameter_sets()
    scanner = scanner_for("h264", other)
    assert scanner is not None
    found = [scanner.scan(packet, True, False).random_access for packet in (sets, key, sets + key, key)]
    assert found == [RandomAccess.NONE, RandomAccess.NONE, RandomAccess.CLOSED, RandomAccess.NONE]


def test_repeated_equal_parameter_sets_keep_all_random_access_points() -> None:
    """So do different ones that are present at every random access point."""
    section = h264("flv")[0]
    index = read(join_flv([section, section]))
    assert not index.new_extradata
    assert np.flatnonzero(index.random_access).tolist() == list(range(0, 60, 10))
    repeated = b"".join(h264())  # they are at every random access point here
    assert np.flatnonzero(read(repeated).random_access == RandomAccess.CLOSED).tolist() == list(range(0, 60, 10))


def huge_field_lengths(codec: str) -> Iterator[bytes]:
    """Yield sequence parameter sets with fields of billions of bits."""
    if codec == "h264":
        sps = Bits().u(8, 77).u(16, 30).ue(0).ue(0).ue(0).ue(2**31).ue(1).u(1, 0).ue(5).ue(3).u(4, 8).pad(1).bytes()
        yield nal_unit(b"\x67", sps + b"\x80")
    else:
        sps = Bits().u(4, 0).u(3, 0).u(1, 1).u(96, 1).ue(0).ue(1).ue(96).ue(64).u(1, 0).ue(0).ue(0).ue(2**31)
        yield nal_unit(b"\x42\x01", sps.pad(1).bytes() + b"\x80")


@pytest.mark.timing
@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_parameter_sets_with_huge_field_lengths_cost_neither_time_nor_memory(codec: str) -> None:
    sections = h264() if codec == "h264" else hevc()
    begun = time.monotonic()
    for flood in huge_field_lengths(codec):
        data = sections[0] + flood + sections[0]
        try:
            telecine.load(data, indices=[3], timeout=20)
        except telecine.TelecineError:
            pass
    assert time.monotonic() - begun < 10


def test_a_max_pixels_above_31_bits_is_accepted() -> None:
    """FFmpeg's own option has 31 bits."""
    frames = telecine.load(h264()[0], indices=[3], limits=Limits(max_pixels=2**40))
    assert frames.report.lost == ()
