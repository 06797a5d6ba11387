"""The scanners, compared with decoders, with FFmpeg's parsers, and on hand-written headers."""

from __future__ import annotations

import re
import subprocess
import time
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import av
import imageio_ffmpeg
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.clips import CLIPS, Clip
from support.handmade import Bits, H264Stream, divx_packed, nal_unit
from telecine.bitstream import Leading, PacketInfo, RandomAccess, can_contain_fields, scanner_for
from telecine.bitstream.nal import NalSplitter, extradata_units, unescape
from telecine.container.demuxer import Demuxer
from telecine.deadline import Deadline
from telecine.index.packet_index import PacketIndex, read_index
from telecine.limits import Limits
from telecine.source.source import open_source

SCANNED = ("h264", "hevc", "av1", "vp8", "vp9", "mpeg1video", "mpeg2video", "mpeg4", "vc1", "wmv3")
UNDAMAGED_CLIPS = [
    clip
    for clip in CLIPS.values()
    if clip.codec in SCANNED
    and clip.num_frames >= 10
    and not clip.damaged
    and not clip.lost
    and "part" not in clip.tags
]


@lru_cache(maxsize=4)
def packets_of(clip: Clip) -> tuple[bytes, list[Any]]:
    """Return the extradata and the packets from PyAV."""
    with av.open(str(clip.path())) as container:
        container.flags &= ~av.container.Flags.gen_pts.value  # type: ignore[operator]
        stream = container.streams[clip.stream]
        return bytes(stream.codec_context.extradata or b""), [p for p in container.demux(stream) if p.size]


def facts_of(clip: Clip, with_order: bool = False) -> list[PacketInfo]:
    extradata, packets = packets_of(clip)
    scanner = scanner_for(str(clip.codec), extradata)
    assert scanner is not None
    return [scanner.scan(memoryview(packet), packet.is_keyframe, with_order) for packet in packets]


@lru_cache(maxsize=4)
def index_of(clip: Clip) -> PacketIndex:
    deadline = Deadline()
    with open_source(clip.path(), Limits(), deadline) as source, Demuxer(source, deadline) as demuxer:
        return read_index(demuxer, Limits(), deadline)


def decode(clip: Clip, ordinals: list[int]) -> dict[int, int]:
    """Decode some packets and return checksums of the pictures, by the packet that brought them."""
    packets = packets_of(clip)[1]
    with av.open(str(clip.path())) as container:
        context = container.streams[clip.stream].codec_context
        context.thread_count = 1
        if clip.codec == "h264":
            context.options = {"strict": "strict"}  # else it drops pictures while it guesses the reordering depth
        sums: dict[int, int] = {}
        for ordinal in [*ordinals, None]:
            packet = None
            if ordinal is not None:
                packet = packets[ordinal]
                packet.pts = ordinal
            try:
                pictures = context.decode(packet)
            except av.error.InvalidDataError:
                continue
            for picture in pictures:
                sums[picture.pts] = zlib.crc32(picture.to_ndarray().tobytes())
    return sums


def spread(ordinals: list[int], count: int) -> list[int]:
    return (
        [ordinals[i] for i in sorted({round(k) for k in np.linspace(0, len(ordinals) - 1, count)})] if ordinals else []
    )


@pytest.mark.parametrize("clip", UNDAMAGED_CLIPS, ids=str)
def test_leaving_out_disposable_packets_does_not_change_other_pictures(clip: Clip) -> None:
    """Leave out each alone, and all of them together."""
    index = index_of(clip)
    every = list(range(index.num_packets))
    whole = decode(clip, every)
    disposable = np.flatnonzero(index.disposable).tolist()
    for left_out in [*([one] for one in spread(disposable, 3)), disposable]:
        fed = sorted(set(every) - set(left_out))
        assert decode(clip, fed) == {ordinal: whole[ordinal] for ordinal in whole if ordinal in fed}, left_out


@pytest.mark.parametrize("clip", UNDAMAGED_CLIPS, ids=str)
def test_decoding_from_a_random_access_point_gives_the_same_pictures(clip: Clip) -> None:
    """Leading pictures are excepted, and compared after decoding from the point before."""
    index = index_of(clip)
    whole = decode(clip, list(range(index.num_packets)))
    points = np.flatnonzero(index.random_access).tolist()
    for at in spread(list(range(1, len(points))), 3):
        own = decode(clip, list(range(points[at], index.num_packets)))
        end = points[at + 1] if at + 1 < len(points) else index.num_packets
        # FFmpeg fills a corrupt picture with whatever it decoded before
        sound = [i for i in range(points[at], index.num_packets) if i in whole and not index.corrupt[i]]
        behind = [i for i in sound if not (index.leading[i] and i < end)]
        assert {i: own.get(i) for i in behind} == {i: whole[i] for i in behind}
        orphans = [i for i in sound if i < end and index.leading[i]]
        earlier = decode(clip, list(range(points[at - 1], end)))
        assert {i: earlier.get(i) for i in orphans} == {i: whole[i] for i in orphans}


WITH_ORDER = [
    clip
    for clip in UNDAMAGED_CLIPS
    if clip.codec not in ("vp8", "vp9", "av1")
    and clip.tags & {"mp4", "ts", "mkv", "flv", "mov"}
    and clip.name not in ("repeated_times.mkv", "few_times.ts")
]


@pytest.mark.parametrize("clip", WITH_ORDER, ids=str)
def test_display_order_is_the_order_of_presentation_times(clip: Clip) -> None:
    """The clips have containers with a time for every picture."""
    facts, index = facts_of(clip, with_order=True), index_of(clip)
    assert not index.synthetic_times
    wanted = [int(i) for i in index.display_order]
    assert sorted(wanted, key=lambda i: (facts[i].display_order, i)) == wanted


@dataclass(frozen=True)
class Traced:
    """The syntax elements of one packet from FFmpeg's trace_headers filter, in order."""

    elements: list[tuple[str, int]]

    def all(self, name: str) -> list[int]:
        return [value for element, value in self.elements if element == name]

    def units(self, first: str) -> list[dict[str, int]]:
        """Return the syntax structures that start with this element, as the first value of each element."""
        found: list[dict[str, int]] = []
        for element, value in self.elements:
            if element == first:
                found.append({})
            if found:
                found[-1].setdefault(element, value)
        return found


_ELEMENT = re.compile(r"\[trace_headers @ \w+\] \d+ +(\S+) +[01]* = (-?\d+)$")


def trace(clip: Clip) -> list[Traced]:
    """Parse a clip with the ``trace_headers`` filter of the ffmpeg binary, which is an independent parser."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-nostdin", "-hide_banner", "-loglevel", "trace", "-i", clip.path()]
    command += ["-map", f"0:{clip.stream}", "-c", "copy", "-bsf:v", "trace_headers", "-f", "null", "-"]
    said = subprocess.run(command, capture_output=True, timeout=60).stderr.decode(errors="replace")
    traced: list[Traced] = []
    for line in said.splitlines():
        if line.startswith("[trace_headers") and "] Packet:" in line:
            traced.append(Traced([]))
        elif traced and (match := _ELEMENT.match(line)):
            traced[-1].elements.append((match[1], int(match[2])))
    return traced


H264_TRACED = (
    "medium pyramid_none pyramid pyramid_strict open_gop intra_refresh slices many_refs mbaff baseline".split()
)
_SEI_RECOVERY = "recovery_frame_cnt"


@pytest.mark.parametrize("name", H264_TRACED)
def test_h264_scanner_agrees_with_ffmpegs_trace_headers(name: str) -> None:
    """Compare references, random access and picture order count of every packet."""
    clip = CLIPS[f"h264_{name}.mp4"]
    facts, traced = facts_of(clip, with_order=True), trace(clip)
    assert len(facts) == len(traced)
    unreferenced_b = 0
    for fact, packet in zip(facts, traced, strict=True):
        slices = [unit for unit in packet.units("forbidden_zero_bit") if "first_mb_in_slice" in unit]
        sets = [unit for unit in packet.units("forbidden_zero_bit") if unit["nal_unit_type"] in (7, 8)]
        idle = all(unit["nal_ref_idc"] == 0 for unit in slices)
        assert fact.shown
        assert fact.disposable == (idle and not sets)
        unreferenced_b += idle and all(unit["slice_type"] % 5 == 1 for unit in slices)
        assert (fact.random_access == RandomAccess.CLOSED) == (slices[0]["nal_unit_type"] == 5)
        recovers = packet.all(_SEI_RECOVERY) == [0] and slices[0]["nal_unit_type"] != 5
        assert (fact.random_access == RandomAccess.OPEN) == recovers
        assert fact.display_order is not None
        if "pic_order_cnt_lsb" in slices[0]:
            # these are the low bits of the count, at least four
            assert fact.display_order[1] % 16 == slices[0]["pic_order_cnt_lsb"] % 16
    assert sum(fact.disposable for fact in facts) == unreferenced_b
    if "bframes" in clip.tags:
        assert unreferenced_b > 10


HEVC_TRACED = "hevc hevc_open_gop hevc_no_pyramid hevc_no_b hevc_temporal_layers hevc_radl hevc_main10 hevc_kvazaar"


@pytest.mark.parametrize("name", HEVC_TRACED.split())
def test_hevc_scanner_agrees_with_ffmpegs_trace_headers(name: str) -> None:
    """Compare sub-layer references, temporal layers, random access, leading pictures and picture order count."""
    clip = CLIPS[f"{name}.mp4"]
    facts, traced = facts_of(clip, with_order=True), trace(clip)
    assert len(facts) == len(traced)
    for fact, packet in zip(facts, traced, strict=True):
        units = packet.units("forbidden_zero_bit")
        head = next(unit for unit in units if unit["nal_unit_type"] < 32)
        kind, temporal_id = head["nal_unit_type"], head["nuh_temporal_id_plus1"] - 1
        idle = kind in (0, 2, 4, 6, 8, 10, 12, 14) and not any(u["nal_unit_type"] in (32, 33, 34) for u in units)
        assert fact.temporal_id == temporal_id
        assert fact.disposable == idle
        assert fact.random_access == (
            RandomAccess.CLOSED if kind in (19, 20) else RandomAccess.OPEN if 16 <= kind <= 21 else RandomAccess.NONE
        )
        assert (fact.leading == Leading.SKIPPED) == (kind in (8, 9))
        assert fact.display_order is not None
        assert fact.display_order[1] % 16 == head.get("slice_pic_order_cnt_lsb", 0) % 16
    # kvazaar declares every picture a reference
    if "bframes" in clip.tags and name != "hevc_kvazaar":
        assert sum(fact.disposable for fact in facts) > 10


@pytest.mark.parametrize("name", ["av1_svt.mp4", "av1_svt_10bit.mp4", "av1_aom.mp4"])
def test_av1_scanner_agrees_with_ffmpegs_trace_headers(name: str) -> None:
    """Compare shown frames, key frames, and temporal units that refresh no reference."""
    clip = CLIPS[name]
    facts, traced = facts_of(clip), trace(clip)
    assert len(facts) == len(traced)
    for fact, packet in zip(facts, traced, strict=True):
        frames = packet.units("show_existing_frame")
        assert fact.shown == any(f["show_existing_frame"] or f.get("show_frame", 1) for f in frames)
        # a shown key frame refreshes every slot without coding the field
        idle = [f.get("refresh_frame_flags", 255) == 0 and f.get("show_frame") == 1 for f in frames]
        sets = "seq_profile" in dict(packet.elements)
        assert fact.disposable == (all(idle) and not sets)
        key = len(frames) == 1 and frames[0].get("frame_type") == 0 and frames[0].get("show_frame") == 1
        assert (fact.random_access == RandomAccess.CLOSED) == key
        single = len(frames) == 1 and not frames[0]["show_existing_frame"]
        assert fact.has_single_shown_frame == (single and frames[0].get("show_frame", 1) == 1)


@pytest.mark.parametrize("name", "altref realtime resilient layers 10bit".split())
def test_vp9_scanner_agrees_with_ffmpegs_trace_headers(name: str) -> None:
    """Compare shown frames, key frames, frames that refresh no reference, and those that reset the decoder's state."""
    clip = CLIPS[f"vp9_{name}.webm"]
    facts, traced = facts_of(clip), trace(clip)
    assert len(facts) == len(traced)
    for fact, packet in zip(facts, traced, strict=True):
        frames = packet.units("frame_marker")
        shown = [frame["show_existing_frame"] or frame["show_frame"] for frame in frames]
        assert fact.shown == any(shown)
        assert fact.has_single_shown_frame == (shown == [1] and not frames[0]["show_existing_frame"])
        key = [frame.get("frame_type") == 0 for frame in frames]
        refreshes = [
            not frame["show_existing_frame"] and (first or frame.get("refresh_frame_flags", 255) != 0)
            for frame, first in zip(frames, key, strict=True)
        ]
        assert fact.disposable == (len(frames) == 1 and bool(shown[0]) and not refreshes[0])
        assert (fact.random_access == RandomAccess.CLOSED) == (len(frames) == 1 and bool(shown[0]) and key[0])
        assert fact.resets_decoder_state == (key[0] or frames[0].get("error_resilient_mode", 0) == 1)


@pytest.mark.parametrize("name", "plain altref layers".split())
def test_vp8_scanner_agrees_with_the_pictures_that_ffmpeg_decodes(name: str) -> None:
    """A hidden frame gives no picture."""
    clip = CLIPS[f"vp8_{name}.webm"]
    with av.open(str(clip.path())) as file:
        stream = file.streams.video[0]
        stream.codec_context.thread_count = 1
        shown = [len(packet.decode()) == 1 for packet in file.demux(stream) if packet.size]
    facts = facts_of(clip)
    assert [fact.shown for fact in facts] == shown == [fact.has_single_shown_frame for fact in facts]
    assert all(shown) == (name != "altref")


@pytest.mark.parametrize("name", ["mpeg2_open_gop.ts", "mpeg2_closed_gop.ts", "mpeg2.mp4"])
def test_mpeg2_scanner_agrees_with_ffmpegs_trace_headers(name: str) -> None:
    """Compare picture types and closed groups of pictures."""
    clip = CLIPS[name]
    facts, traced = facts_of(clip), trace(clip)
    assert len(facts) == len(traced)
    closed = 0
    for fact, packet in zip(facts, traced, strict=True):
        (kind,) = packet.all("picture_coding_type")
        assert fact.disposable == (kind == 3)
        assert (fact.random_access == RandomAccess.OPEN) == (kind == 1)
        if kind != 3:
            closed = (packet.all("closed_gop") or [0])[0]
        assert (fact.leading == Leading.DECODABLE) == bool(closed)


# hand-written H.264: fields, and features that x264 does not use


def scan_all(
    codec: str, packets: list[bytes], extradata: bytes = b"", keys: tuple[int, ...] = (0,)
) -> list[PacketInfo]:
    scanner = scanner_for(codec, extradata)
    assert scanner is not None
    return [scanner.scan(packet, at in keys, True) for at, packet in enumerate(packets)]


def field_pairs(stream: H264Stream, references: list[bool], first: str = "top") -> list[bytes]:
    """Return two packets for each frame; the first frame is an IDR picture."""
    second = "bottom" if first == "top" else "top"
    packets, frame_num = [], 0
    for at, reference in enumerate(references):
        for n, name in enumerate((first, second)):
            idr = at == 0 and n == 0
            packets.append(
                stream.picture(
                    8 * at + n, frame_num=frame_num, poc=4 * at + n, reference=reference, idr=idr, field=name
                )
            )
        frame_num += reference
    packets[0] = stream.parameter_sets() + packets[0]
    return packets


@pytest.mark.parametrize("first", ["top", "bottom"])
def test_h264_fields_in_separate_packets_are_one_picture(first: str) -> None:
    """The second field is marked and not shown, and neither field is disposable."""
    facts = scan_all("h264", field_pairs(H264Stream(), [True, True, False, True, False], first))
    assert [fact.shown for fact in facts] == [True, False] * 5
    assert [fact.second_field for fact in facts] == [False, True] * 5
    assert all(not fact.disposable for fact in facts)
    assert [fact.random_access for fact in facts] == [RandomAccess.CLOSED] + [RandomAccess.NONE] * 9


def test_h264_fields_in_one_packet_are_one_picture() -> None:
    """It is disposable only if both fields are."""
    pairs = field_pairs(H264Stream(), [True, True, False, True, False])
    facts = scan_all("h264", [a + b for a, b in zip(pairs[::2], pairs[1::2], strict=True)])
    assert all(fact.shown and not fact.second_field for fact in facts)
    assert [fact.disposable for fact in facts] == [False, False, True, False, True]
    assert [fact.display_order for fact in facts] == [(0, 4 * at) for at in range(5)]


def test_h264_unpaired_field_is_a_picture_and_does_not_pair_with_the_next_frame() -> None:
    """Two top fields in a row are two pictures."""
    stream = H264Stream()
    packets = [
        stream.parameter_sets() + stream.picture(0, frame_num=0, idr=True, field="top"),
        stream.picture(1, frame_num=1, poc=4, field="top"),
        stream.picture(2, frame_num=1, poc=5, field="bottom"),
        stream.picture(3, frame_num=2, poc=8),
        stream.picture(4, frame_num=3, poc=12, field="bottom"),
    ]
    assert [fact.shown for fact in scan_all("h264", packets)] == [True, True, False, True, True]


@pytest.mark.parametrize(
    "stream",
    [
        H264Stream(profile=244, scaling_lists=True),
        H264Stream(profile=244, separate_planes=True),
        H264Stream(profile=244, separate_planes=True, scaling_lists=True),
        H264Stream(interlaced=False),
        H264Stream(frame_num_bits=16, number=3),
        H264Stream(poc_type=2),
    ],
    ids=str,
)
def test_h264_slice_headers_are_read_with_all_kinds_of_parameter_sets(stream: H264Stream) -> None:
    """The parameter sets have scaling lists, separate colour planes, ids other than 0, and long frame numbers."""
    packets, step = [stream.parameter_sets() + stream.picture(0, frame_num=0, idr=True)], 2
    packets += [stream.picture(at, frame_num=at, poc=step * at) for at in range(1, 8)]
    facts = scan_all("h264", packets)
    assert [fact.display_order for fact in facts] == [(0, step * at) for at in range(8)]
    assert all(fact.shown for fact in facts)


def test_h264_picture_order_counts_are_unwrapped() -> None:
    """They wrap at eight bits here, and restart at each IDR picture."""
    stream = H264Stream()
    packets = [stream.parameter_sets() + stream.picture(0, frame_num=0, idr=True)]
    for at in range(1, 200):
        packets.append(stream.picture(0, frame_num=at, poc=8 * at, kind="P"))
        packets.append(stream.picture(0, frame_num=at + 1, poc=8 * at - 4, reference=False, kind="P"))
    packets.append(stream.picture(1, frame_num=0, idr=True))
    facts = scan_all("h264", packets)
    counted = [8 * at - 4 * n for at in range(1, 200) for n in range(2)]
    assert [fact.display_order for fact in facts] == [(0, 0), *((0, count) for count in counted), (1, 0)]


def test_h264_picture_order_count_type_1_is_computed_from_frame_numbers() -> None:
    """Non-reference pictures are displayed before the reference picture decoded before them (8.2.1.2)."""
    stream = H264Stream(poc_type=1, poc_offsets=(4, 8), offset_unreferenced=-6, interlaced=False)
    packets = [stream.parameter_sets() + stream.picture(0, frame_num=0, idr=True)]
    for at in range(1, 40):
        packets.append(stream.picture(0, frame_num=at, kind="P"))
        packets.append(stream.picture(0, frame_num=at + 1, reference=False, poc_delta=at % 2, kind="P"))
    facts = scan_all("h264", packets)
    expected = [0]
    for at in range(1, 40):
        place = 12 * (at // 2) + 4 * (at % 2)
        expected += [place, place - 6 + at % 2]
    assert [fact.display_order for fact in facts] == [(0, place) for place in expected]


def test_h264_slices_are_read_with_the_parameter_sets_that_they_refer_to() -> None:
    """Two sequence parameter sets have frame numbers of different size; the last one is not used for both."""
    frames, fields = H264Stream(interlaced=False, frame_num_bits=9), H264Stream(number=1)
    packets = [frames.parameter_sets() + fields.parameter_sets() + frames.picture(0, frame_num=0, idr=True)]
    packets += [frames.picture(0, frame_num=at, poc=2 * at) for at in range(1, 6)]
    packets += [fields.picture(0, frame_num=0, idr=True), fields.picture(0, frame_num=1, poc=4, field="top")]
    packets += [fields.picture(0, frame_num=1, poc=5, field="bottom")]
    facts = scan_all("h264", packets)
    assert [fact.display_order for fact in facts[:6]] == [(0, 2 * at) for at in range(6)]
    assert [fact.shown for fact in facts] == [True] * 8 + [False]


def test_h264_parameter_sets_and_length_size_are_read_from_avcc() -> None:
    stream = H264Stream(interlaced=False, number=2)
    sps, pps = (unit for unit in stream.parameter_sets().split(b"\0\0\0\1") if unit)
    record = (
        b"\x01\x4d\x00\x1e\xfd\xe1" + len(sps).to_bytes(2, "big") + sps + b"\x01" + len(pps).to_bytes(2, "big") + pps
    )
    pictures = [stream.picture(0, frame_num=0, idr=True), stream.picture(0, frame_num=1, poc=6, reference=False)]
    framed = [len(data[4:]).to_bytes(2, "big") + data[4:] for data in pictures]
    facts = scan_all("h264", framed, record)
    assert [fact.display_order for fact in facts] == [(0, 0), (0, 6)]
    assert [fact.disposable for fact in facts] == [False, True]


def recovery_point(frame_count: int, exact: bool, before: bytes = b"") -> bytes:
    message = Bits().ue(frame_count).u(1, exact).u(1, 0).u(2, 0).pad(1).bytes()
    return nal_unit(b"\x06", before + bytes([6, len(message)]) + message + b"\x80")


@pytest.mark.parametrize(
    ("sei", "kind", "access"),
    [
        (recovery_point(0, True), "I", RandomAccess.OPEN),
        (recovery_point(0, True), "P", RandomAccess.OPEN),
        (recovery_point(0, False), "I", RandomAccess.OPEN),
        (recovery_point(0, False), "P", RandomAccess.NONE),
        (recovery_point(5, True), "I", RandomAccess.NONE),
        (recovery_point(0, True, before=bytes([5, 20]) + b"x" * 20), "I", RandomAccess.OPEN),
        (
            nal_unit(b"\x06", bytes([5, 255, 60]) + b"x" * 315 + b"\x80") + recovery_point(0, True),
            "I",
            RandomAccess.OPEN,
        ),
        # a message beyond the first 256 bytes of a unit is not found, so the picture is not reported as exact
        (recovery_point(0, True, before=bytes([5, 255, 60]) + b"x" * 315), "I", RandomAccess.NONE),
        (b"", "I", RandomAccess.NONE),
    ],
)
def test_h264_recovery_point_is_a_random_access_point_only_if_it_is_exact_at_once(
    sei: bytes, kind: str, access: RandomAccess
) -> None:
    """The message has a number of frames until recovery, and a flag for an exact match."""
    stream = H264Stream(interlaced=False)
    first = stream.parameter_sets() + stream.picture(0, frame_num=0, idr=True)
    later = sei + stream.picture(0, frame_num=1, poc=2, kind=kind)
    facts = scan_all("h264", [first, later], stream.parameter_sets(), keys=(0, 1))
    assert [fact.random_access for fact in facts] == [RandomAccess.CLOSED, access]


def test_h264_pictures_without_parameter_sets_are_not_disposable() -> None:
    """Fields cannot be told from frames without them."""
    stream = H264Stream()
    picture = stream.picture(0, frame_num=1, poc=2, reference=False)
    assert scan_all("h264", [picture])[0].disposable is False
    assert scan_all("h264", [stream.parameter_sets() + stream.picture(0, frame_num=0, idr=True), picture])[
        1
    ] == PacketInfo(disposable=True, display_order=(0, 2))


# HEVC


def hevc_nal(kind: int, payload: bytes = b"\x80" * 8, layer: int = 0, temporal_id: int = 0) -> bytes:
    return nal_unit(bytes([kind << 1 | layer >> 5, (layer & 31) << 3 | temporal_id + 1]), payload)


EOS, EOB, CRA, RASL, TRAIL, IDR, BLA = 36, 37, 21, 9, 1, 19, 16


@pytest.mark.parametrize("end", [EOS, EOB])
@pytest.mark.parametrize("behind", [True, False], ids=["at the end of a packet", "at the start of the next"])
def test_hevc_leading_pictures_after_an_end_of_sequence_are_undecodable(end: int, behind: bool) -> None:
    """A CRA picture that starts a sequence has no pictures before it. The unit may be in either packet."""
    mark = hevc_nal(end, b"")
    packets = [hevc_nal(IDR), hevc_nal(TRAIL), hevc_nal(CRA), hevc_nal(RASL), hevc_nal(TRAIL), hevc_nal(CRA)]
    packets += [hevc_nal(RASL), hevc_nal(TRAIL), hevc_nal(CRA), hevc_nal(RASL)]
    packets[4 if behind else 5] = packets[4] + mark if behind else mark + packets[5]
    facts = scan_all("hevc", packets, keys=(0, 2, 5, 8))
    leading = [facts[at].leading for at in (3, 6, 9)]
    assert leading == [Leading.SKIPPED, Leading.UNDECODABLE, Leading.SKIPPED]


def test_hevc_rasl_pictures_after_bla_or_a_first_cra_picture_are_undecodable() -> None:
    for first in (BLA, 17, CRA):
        facts = scan_all("hevc", [hevc_nal(first), hevc_nal(RASL), hevc_nal(8)])
        assert [fact.leading for fact in facts] == [Leading.DECODABLE, Leading.UNDECODABLE, Leading.UNDECODABLE]


def test_hevc_pictures_of_higher_layers_are_ignored() -> None:
    """A decoder of the base layer does not show them."""
    facts = scan_all("hevc", [hevc_nal(IDR) + hevc_nal(TRAIL, layer=1), hevc_nal(0, layer=0) + hevc_nal(1, layer=33)])
    assert [(fact.shown, fact.random_access, fact.disposable) for fact in facts] == [
        (True, RandomAccess.CLOSED, False),
        (True, RandomAccess.NONE, True),
    ]
    assert not scan_all("hevc", [hevc_nal(TRAIL, layer=1)])[0].shown


# MPEG-4 part 2


def mpeg4_packets() -> list[bytes]:
    """Return packets of VOL and VOP headers only: I, then P and B alternately."""
    vol = Bits().u(1, 0).u(8, 1).u(1, 0).u(4, 1).u(1, 0).u(2, 0).u(1, 1).u(16, 25).u(1, 1)
    vol.u(1, 0).u(1, 1).u(13, 64).u(1, 1).u(13, 64).u(1, 1).u(1, 0)
    head = b"\0\0\1\x20" + vol.pad().bytes()
    kinds = [0, *([1, 2] * 4)]
    vops = [b"\0\0\1\xb6" + Bits().u(2, k).u(1, 0).u(1, 1).u(5, 0).u(1, 1).u(1, 1).u(5, 0).bytes() for k in kinds]
    return [head + vops[0], *vops[1:]]


def test_mpeg4_packed_b_frames_precede_their_reference_in_display_order() -> None:
    """DivX writes two pictures into one packet, and an empty packet for which the decoder outputs the B picture."""
    plain, packed = scan_all("mpeg4", mpeg4_packets()), scan_all("mpeg4", divx_packed(mpeg4_packets()))
    assert [fact.display_order for fact in packed] == [fact.display_order for fact in plain]
    assert [fact.disposable for fact in plain] == [False, *([False, True] * 4)]
    assert all(not fact.disposable and fact.shown for fact in packed)
    assert [fact.has_packed_b_frame for fact in packed] == [False, *([True, False] * 4)]


def test_mpeg4_vop_that_is_not_coded_is_not_shown() -> None:
    """An encoder writes it for a dropped frame, which repeats the picture before."""
    packets = mpeg4_packets()
    empty = divx_packed(packets)[2]
    assert [fact.shown for fact in scan_all("mpeg4", [packets[0], empty, packets[1]])] == [True, False, True]


# hand-written VC-1 (SMPTE 421M), for lack of an encoder


def vc1_sequence(interlaced: bool) -> bytes:
    """Return the sequence header of the advanced profile, 6.1, from its start code to INTERLACE."""
    bits = Bits().u(2, 3).u(3, 4).u(2, 1).u(3, 0).u(5, 0).u(1, 0).u(12, 95).u(12, 71).u(1, 0).u(1, interlaced)
    return b"\0\0\1\x0f" + bits.u(6, 0).pad().bytes()


def parameter_sets(clip: Clip) -> list[bytes]:
    """Return the NAL units in the extradata of an MP4 file."""
    with av.open(str(clip.path())) as container:
        extradata = bytes(container.streams.video[0].codec_context.extradata or b"")
    return extradata_units(clip.codec, extradata)


VC1_PROGRESSIVE = {"P": "0", "B": "10", "I": "110", "BI": "1110", "skipped": "1111"}
"""PTYPE, table 35."""


def vc1_frame(bits: str, start_code: bool) -> bytes:
    body = int(bits.ljust(64, "0"), 2).to_bytes(8, "big")
    return b"\0\0\1\x0d" + body if start_code else body


@pytest.mark.parametrize("start_code", [True, False])
@pytest.mark.parametrize("prefix", ["", "0", "10"], ids=["progressive", "interlaced stream", "field-interlaced frame"])
def test_vc1_advanced_profile_picture_types(prefix: str, start_code: bool) -> None:
    """FCM (table 33) comes first if the stream may be interlaced; B and BI pictures are never references."""
    packets = [vc1_frame(prefix + VC1_PROGRESSIVE[kind], start_code) for kind in ("I", "P", "B", "BI", "skipped")]
    facts = scan_all("vc1", packets, vc1_sequence(bool(prefix)))
    assert [fact.disposable for fact in facts] == [False, False, True, True, False]
    assert [fact.random_access for fact in facts] == [RandomAccess.OPEN] + [RandomAccess.NONE] * 4


def test_vc1_advanced_profile_field_pairs() -> None:
    """Read FPTYPE (table 105: I/I I/P P/I P/P B/B B/BI BI/B BI/BI) after the FCM code 11."""
    packets = [vc1_frame(f"11{kind:03b}", True) for kind in range(8)]
    facts = scan_all("vc1", packets, vc1_sequence(True), keys=(0,))
    assert [fact.disposable for fact in facts] == [False] * 4 + [True] * 4
    assert facts[0].random_access == RandomAccess.OPEN


def test_vc1_can_contain_fields_if_the_sequence_header_is_interlaced() -> None:
    assert [can_contain_fields("vc1", vc1_sequence(interlaced)) for interlaced in (True, False)] == [True, False]
    assert not can_contain_fields("vc1", b"")


@pytest.mark.parametrize(
    ("name", "fields"),
    [("h264_pyramid.mp4", False), ("interlaced.mp4", True), ("h264_mbaff.mp4", True), ("h264_paff.mp4", True)],
)
def test_h264_can_contain_fields_if_a_sequence_parameter_set_allows_them(name: str, fields: bool) -> None:
    (sps,) = [unit for unit in parameter_sets(CLIPS[name]) if unit[0] & 31 == 7]
    assert can_contain_fields("h264", sps) == fields
    assert not can_contain_fields("h264", sps[:4])


def test_hevc_can_contain_fields_if_the_source_is_interlaced() -> None:
    """Read general_progressive_source_flag and general_interlaced_source_flag, after the compatibility flags."""
    (sps,) = [unit for unit in parameter_sets(CLIPS["hevc.mp4"]) if unit[0] >> 1 & 63 == 33]
    plain = bytearray(unescape(sps))
    assert not can_contain_fields("hevc", bytes(plain))
    for flags, fields in ((0b00, False), (0b01, True), (0b10, False), (0b11, False)):
        plain[8] = plain[8] & 0x3F | flags << 6
        assert can_contain_fields("hevc", bytes(plain)) == fields
    assert not can_contain_fields("hevc", sps[:6])
    assert not can_contain_fields("vp9", sps)


@pytest.mark.parametrize("rangered", [False, True])
@pytest.mark.parametrize("finterp", [False, True])
@pytest.mark.parametrize("b_pictures", [False, True])
def test_vc1_main_profile_picture_types(finterp: bool, rangered: bool, b_pictures: bool) -> None:
    """Read INTERPFRM if FINTERPFLAG, FRMCNT, RANGEREDFRM if RANGERED, then PTYPE of one or two bits (7.1.1)."""
    struct_c = Bits().u(4, 4).u(3, 0).u(5, 0).u(1, 0).u(1, 1).u(1, 1).u(1, 0).u(1, 0).u(1, 0).u(2, 0).u(1, 0)
    struct_c.u(1, 0).u(1, 0).u(1, 0).u(1, rangered).u(3, 2 * b_pictures).u(2, 0).u(1, finterp).u(1, 1)
    head = "0" * finterp + "01" + "0" * rangered
    kinds = ["01", "1", "00"] if b_pictures else ["0", "1", "1"]
    packets = [vc1_frame(head + kind, False) for kind in kinds]
    facts = scan_all("wmv3", packets, struct_c.bytes())
    assert [fact.disposable for fact in facts] == [False, False, b_pictures]
    assert [fact.random_access for fact in facts] == [RandomAccess.OPEN, RandomAccess.NONE, RandomAccess.NONE]


# random bytes

EXTRADATA = {
    "h264": [b"", b"\x01\x4d\x00\x1e\xff\xe1", H264Stream().parameter_sets()],
    "hevc": [b"", b"\x01" + bytes(20) + b"\x03\x01"],
    "av1": [b"", b"\x81\x00\x00\x00"],
    "vc1": [b"", vc1_sequence(True), vc1_sequence(False)],
    "wmv3": [b"", bytes(4)],
}
STARTS = [
    b"",
    b"\0\0\1",
    b"\0\0\1\xb6",
    b"\0\0\1\0",
    b"\0\0\1\x67",
    b"\0\0\1\x65",
    b"\0\0\1\x42\x01",
    b"\x12\0",
    b"\x82",
]


@pytest.mark.parametrize("codec", SCANNED)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_scanners_accept_random_bytes(codec: str, data: st.DataObject) -> None:
    """Extradata and packets are untrusted: a scanner always returns an answer."""
    extradata = data.draw(st.sampled_from(EXTRADATA.get(codec, [b""]))) + data.draw(st.binary(max_size=64))
    piece = st.tuples(st.sampled_from(STARTS), st.binary(max_size=40)).map(b"".join)
    packets = data.draw(st.lists(st.lists(piece, max_size=4).map(b"".join), max_size=5))
    scanner = scanner_for(codec, extradata)
    assert scanner is not None
    for packet in packets:
        facts = scanner.scan(memoryview(packet), data.draw(st.booleans()), data.draw(st.booleans()))
        assert isinstance(facts, PacketInfo)


@pytest.mark.parametrize("codec", SCANNED)
def test_scanners_accept_real_packets_with_changed_bits(codec: str) -> None:
    clip = next((clip for clip in UNDAMAGED_CLIPS if clip.codec == codec), None)
    noise = np.random.default_rng(1)
    extradata, packets = packets_of(clip) if clip else (vc1_sequence(True), [vc1_frame("110", True)] * 20)
    for _ in range(20):
        changed = [bytearray(bytes(extradata)), *(bytearray(bytes(packet)[:400]) for packet in packets[:20])]
        for data in changed:
            for at in noise.integers(0, max(1, len(data)), 4) if data else []:
                data[at] ^= 1 << int(noise.integers(8))
        scanner = scanner_for(codec, bytes(changed[0]))
        assert scanner is not None
        for data in changed[1:]:
            assert isinstance(scanner.scan(bytes(data), True, True), PacketInfo)


@pytest.mark.parametrize("codec", SCANNED)
@pytest.mark.parametrize("pattern", [b"\0\0\1", b"\0\0\1\x67\xff", b"\0", b"\xff", b"\0\0\0\1\x09", b"\x32\x00"])
def test_a_megabyte_of_a_repeated_pattern_is_scanned_in_bounded_time(codec: str, pattern: bytes) -> None:
    """An attacker would send it to block a server."""
    scanner = scanner_for(codec, b"")
    assert scanner is not None
    started = time.process_time()
    scanner.scan(pattern * (1_000_000 // len(pattern)), True, True)
    assert time.process_time() - started < 1.0


def test_a_length_beyond_the_packet_ends_its_nal_units() -> None:
    """An empty unit tells that the last one is cut off. An avcC without its length size means Annex B."""
    units = NalSplitter("h264", b"\x01\x00\x00\x00\xff\xe0")
    assert list(units.split(b"\0\0\0\3abc\0\0\0\x09de")) == [b"abc", b"de", b""]
    assert list(units.split(b"\0\0\0\3abc\0\0")) == [b"abc"]
    assert list(NalSplitter("h264", b"\x01\x00").split(b"\0\0\1ab\0\0\1c")) == [b"ab", b"c"]


def test_emulation_prevention_bytes_are_removed() -> None:
    assert unescape(b"\0\0\3\1\0\0\3\0\0\3\3") == b"\0\0\1\0\0\0\0\3"


def test_scanner_for_returns_none_for_codecs_without_a_scanner() -> None:
    assert scanner_for("cinepak", b"") is None
