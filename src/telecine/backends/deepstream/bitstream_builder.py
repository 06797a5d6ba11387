"""Files in memory for a library that returns frames in display order, but not which frames they are.

Such a frame is identified by its number. That is reliable if the number of pictures in the file and their output order
are known in advance. So a file consists of decode ranges that start at a random access point and end at the last wanted
frame, and their output order is read from the bitstream. Corrupt packets, and packets that depend on them, are left
out: a decoder may or may not return a frame for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from telecine.backends.base import DecodeRequest
from telecine.backends.cuda_output import check_picture_size
from telecine.bitstream import Leading, RandomAccess, Scanner, can_contain_fields, scanner_for
from telecine.bitstream.annexb import AnnexBConverter
from telecine.bitstream.h264 import FrameNumGapDetector
from telecine.bitstream.nal import join_annex_b, nal_type, replace_nal_units, split_annex_b
from telecine.errors import UnsupportedVideoError
from telecine.index.display_order import order_conflicts
from telecine.index.packet_index import PacketIndex
from telecine.plan.decode_plan import make_plan
from telecine.plan.ranges import DecodeRange, split_at_closed_points

__all__ = ["STEP_MS", "Block", "InputFile", "build_files", "plan_ranges", "write_mkv"]

STEP_MS = 40
"""Milliseconds from one picture to the next."""
_CODECS = {"h264": b"V_MPEG4/ISO/AVC", "hevc": b"V_MPEGH/ISO/HEVC"}
_MAX_CLUSTER_BLOCKS = 256
_MAX_CLUSTER_PICTURES = 0x7FFF // STEP_MS
"""Limit of the distance to the first block of a cluster: times relative to the cluster are signed 16-bit numbers."""
_KEYFRAME_FLAG = b"\x80"
_TRACK_NUMBER = b"\x81"
_MAX_FILE_BYTES = 64 << 20
"""Bytes of packets in a file, unless a single range has more."""
_MAX_FRAME_BYTES = 512 << 20
"""Bytes of wanted frames in a file, unless one range has more: the library allocates all of them at once."""
_COLOR_UNITS = {"h264": (7,), "hevc": (32, 33)}
"""Types of NAL units that FFmpeg's metadata filters may change when they write colours."""
_CRA, _BLA = 21, 16
"""HEVC NAL unit types (table 7-1): clean random access, and broken link access, which has the same syntax."""


@dataclass(frozen=True, eq=False)
class InputFile:
    """A Matroska file in memory for one call of the library, and the pictures to expect."""

    ranges: tuple[DecodeRange, ...]
    data: bytes = field(repr=False)
    num_pictures: int
    num_optional: int
    """The number of pictures at its start that a decoder either returns or leaves out, all of them."""
    targets: Mapping[int, tuple[int, ...]]
    """Output rows to fill, by the number of each wanted picture in display order from 0, ascending."""
    size: tuple[int, int]
    """(height, width) of its pictures, which differs from that of the video if the size changes in mid-stream."""
    decoder_key: str
    """Identifies everything that a decoder is created for: a decoder with another key must not be reused."""


@dataclass
class _ScannedRange:
    """A decode range with its packets, and what the bitstream says about their output order."""

    range_: DecodeRange
    sequence_headers: tuple[bytes, ...] = ()
    packets: list[tuple[int, bool, bytes]] = field(default_factory=list)
    """(ordinal, is a random access point, bytes)."""
    output_order: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Sort key of each picture in output order, by packet ordinal."""
    has_known_order: bool = True
    """True if the bitstream gives the output order of all pictures."""
    num_optional: int = 0
    size: tuple[int, int] = (0, 0)
    """(height, width) of its pictures."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all packets."""
        return sum(len(data) for _, _, data in self.packets)

    @property
    def sorted_pictures(self) -> list[int]:
        """Packet ordinals of the pictures in output order."""
        return sorted(self.output_order, key=lambda ordinal: self.output_order[ordinal])


def plan_ranges(index: PacketIndex, frames: npt.NDArray[np.int64]) -> list[DecodeRange]:
    """Plan decode ranges without a closed random access point inside."""
    # a decoder may or may not return the leading pictures of an open point of H.264 that it starts at. So H.264 ranges
    # start at a closed point, if there is one
    plan = make_plan(index, frames, only_closed=index.codec == "h264")
    return split_at_closed_points(index, plan.ranges)


def build_files(request: DecodeRequest, ranges: Iterable[DecodeRange], color_options: str) -> Iterator[InputFile]:
    """Yield files, each with as many ranges as one decoder can decode in one call.

    Targets that are damaged, or whose number in output order is not known, are in no file.
    """
    waiting: list[_ScannedRange] = []
    scanner = _RangeScanner(request, color_options)
    for range_ in ranges:
        scanned = scanner.scan(range_)
        if not scanned.has_known_order or not scanned.range_.targets:
            continue
        if waiting and (
            scanned.num_optional
            or scanned.sequence_headers != waiting[0].sequence_headers
            or _exceeds_limits(request, [*waiting, scanned])
        ):
            yield _build_file(request, waiting, color_options)
            waiting = []
        waiting.append(scanned)
    if waiting:
        yield _build_file(request, waiting, color_options)


def _exceeds_limits(request: DecodeRequest, ranges: list[_ScannedRange]) -> bool:
    frame_bytes = 3 * math.prod(ranges[0].size)
    num_wanted = sum(len(scanned.range_.targets) for scanned in ranges)
    return sum(scanned.num_bytes for scanned in ranges) > _MAX_FILE_BYTES or num_wanted * frame_bytes > _MAX_FRAME_BYTES


def _build_file(request: DecodeRequest, ranges: list[_ScannedRange], color_options: str) -> InputFile:
    blocks: list[Block] = []
    targets: dict[int, tuple[int, ...]] = {}
    num_pictures = 0
    codec = request.index.codec
    for scanned in ranges:
        number = {ordinal: i for i, ordinal in enumerate(scanned.sorted_pictures, num_pictures)}
        latest = num_pictures
        for i, (ordinal, is_random_access, data) in enumerate(scanned.packets):
            if blocks and i == 0 and codec == "hevc":
                data = replace_nal_units(data, _cra_to_bla)
            latest = number.get(ordinal, latest)
            blocks.append(Block(latest, is_random_access, data))
        targets |= {number[ordinal]: rows for ordinal, rows in scanned.range_.targets.items()}
        num_pictures += len(number)
    digest = blake2b(b"".join((*ranges[0].sequence_headers, color_options.encode())), digest_size=12).hexdigest()
    height, width = ranges[0].size
    return InputFile(
        tuple(scanned.range_ for scanned in ranges),
        write_mkv(codec, width, height, blocks),
        num_pictures,
        ranges[0].num_optional,
        dict(sorted(targets.items())),
        ranges[0].size,
        f"{codec}:{digest}",
    )


def _picture_size(request: DecodeRequest, scanner: Scanner, parameter_sets: bytes) -> tuple[int, int]:
    """Return the (height, width) of the pictures in a range, one of which the scanner has seen.

    Raises:
        LimitError: the pictures are larger than ``request.max_pixels``.
    """
    if scanner.picture is not None:
        width, height = scanner.picture.width, scanner.picture.height
    else:
        width, height = _read_size(request.index.codec, parameter_sets)
    if not width or not height:
        return request.geometry.stored_height, request.geometry.stored_width
    check_picture_size(f"{request.source.name}: deepstream", width, height, request.max_pixels)
    return height, width


def _read_size(codec: str, parameter_sets: bytes) -> tuple[int, int]:
    """Return the (width, height) in parameter sets of HEVC, (0, 0) if there is none."""
    import av

    context: Any = av.CodecContext.create(codec, "r")
    context.thread_count, context.extradata = 1, parameter_sets
    try:
        context.open()  # FFmpeg's decoder of HEVC reads the parameter sets when it is opened, that of H.264 does not
    except av.error.FFmpegError:
        return 0, 0
    return context.width, context.height


def _cra_to_bla(unit: bytes) -> bytes:
    """Turn a CRA unit of HEVC into a BLA unit, so that a new coded video sequence starts at it in mid-stream."""
    # output order starts anew there, and a decoder drops the leading pictures that refer to earlier ones
    if nal_type("hevc", unit) != _CRA:
        return unit
    return bytes([unit[0] & 0x81 | _BLA << 1]) + unit[1:]


class _RangeScanner:
    """Reads and scans the packets of ranges. Not thread-safe: one for each request."""

    def __init__(self, request: DecodeRequest, color_options: str) -> None:
        self._request = request
        self._index = request.index
        self._header = self._extradata = request.demuxer.extradata
        self._stream = AnnexBConverter(self._index.codec, self._extradata)
        self._stream.convert(b"", True, False)  # else it prepends its parameter sets to the first packet
        self._colors = _ColorWriter(request, color_options)

    def scan(self, range_: DecodeRange) -> _ScannedRange:
        """Scan a range. The result ends before the first packet that is damaged or depends on a missing one."""
        index = self._index
        scanned = _ScannedRange(range_)
        order, frame_numbers = self._make_scanners()
        has_gap = dict(zip(range_.packets.tolist(), index.has_gap_before(range_.packets).tolist(), strict=True))
        for ordinal, packet in self._request.reader.read(range_.packets):
            self._request.deadline.check("reading the packets")
            is_random_access, is_first = bool(index.random_access[ordinal]), not scanned.packets
            if has_gap[ordinal] and not is_random_access:
                break
            if (ordinal in index.new_extradata or is_first) and self._update_extradata(ordinal):
                order, frame_numbers = self._make_scanners()
            raw = memoryview(packet)
            data = None if index.corrupt[ordinal] else self._stream.convert(raw, False, is_random_access)
            if data is not None and is_first and not self._colors.units(data):
                data = self._stream.convert(raw, True, is_random_access)
            if data is None and index.disposable[ordinal] and not is_first:
                continue
            if (
                data is None
                or (not is_first and self._stream.sequence_headers != scanned.sequence_headers)
                or (frame_numbers is not None and frame_numbers.has_gap_before(raw))
            ):
                break
            if is_first:
                scanned.sequence_headers = self._stream.sequence_headers
                if index.codec == "h264" and any(can_contain_fields("h264", sps) for sps in scanned.sequence_headers):
                    name = self._request.source.name
                    raise UnsupportedVideoError(
                        f"{name}: deepstream does not give interlaced H.264 as it is; use backend='pyav'"
                    )
            info = order.scan(raw, is_random_access, True)
            if info.leading == Leading.UNDECODABLE:
                continue
            if info.shown:
                scanned.has_known_order &= info.display_order is not None
                scanned.output_order[ordinal] = info.display_order or (0, 0)
            scanned.packets.append((ordinal, is_random_access, self._colors.write(data) if is_random_access else data))
        if scanned.packets:
            parameter_sets = join_annex_b(self._colors.units(scanned.packets[0][2]))
            scanned.size = _picture_size(self._request, order, parameter_sets)
        self._keep_verifiable_targets(scanned)
        return scanned

    def _make_scanners(self) -> tuple[Scanner, FrameNumGapDetector | None]:
        codec = self._index.codec
        scanner = scanner_for(codec, self._extradata)
        assert scanner is not None  # there is one for both codecs
        return scanner, FrameNumGapDetector(self._extradata) if codec == "h264" else None

    def _update_extradata(self, ordinal: int) -> bool:
        """Set the extradata that apply to a packet. Return True if they have changed."""
        extradata = self._index.extradata_at(ordinal, self._header)
        if extradata == self._extradata:
            return False
        self._extradata = extradata
        self._stream.update_extradata(extradata)
        self._stream.convert(b"", True, False)
        return True

    def _keep_verifiable_targets(self, scanned: _ScannedRange) -> None:
        """Remove the targets without a picture, or whose number in output order is not certain; set num_optional."""
        index, ordinals = self._index, np.array(list(scanned.output_order), np.int64)
        if not scanned.has_known_order or not len(ordinals):
            scanned.has_known_order = False
            return
        positions = dict(zip(ordinals.tolist(), index.display_positions(ordinals).tolist(), strict=True))
        # if container and bitstream contradict each other, one of them is wrong
        agreed = scanned.output_order.keys() - order_conflicts(positions, scanned.output_order)
        if len(set(scanned.output_order.values())) < len(ordinals):
            agreed = set()
        targets = {ordinal: rows for ordinal, rows in scanned.range_.targets.items() if ordinal in agreed}
        scanned.range_ = replace(scanned.range_, targets=targets)
        start = int(ordinals[0])
        if index.codec == "h264" and index.random_access[start] == RandomAccess.OPEN:
            scanned.num_optional = scanned.sorted_pictures.index(start)


class _ColorWriter:
    """Writes colour metadata into the parameter sets of a stream."""

    def __init__(self, request: DecodeRequest, options: str) -> None:
        from av.bitstream import BitStreamFilterContext

        self._name, self._codec = request.source.name, request.index.codec
        self._filter = BitStreamFilterContext(f"{self._codec}_metadata={options}", self._codec)
        self._known: dict[bytes, list[bytes]] = {}

    def write(self, data: bytes) -> bytes:
        """Return the bytes of a packet with its parameter sets rewritten."""
        units = self.units(data)
        if not units:
            return data
        joined = join_annex_b(units)
        if joined not in self._known:
            self._known[joined] = self._filter_units(joined, len(units))
        rewritten = iter(self._known[joined])
        return replace_nal_units(data, lambda unit: next(rewritten) if self._has_colors(unit) else unit)

    def units(self, data: bytes) -> list[bytes]:
        """Return the NAL units of a packet that are rewritten."""
        return [unit for unit in split_annex_b(data) if unit and self._has_colors(unit)]

    def _has_colors(self, unit: bytes) -> bool:
        return nal_type(self._codec, unit) in _COLOR_UNITS[self._codec]

    def _filter_units(self, data: bytes, num_units: int) -> list[bytes]:
        import av
        from av.packet import Packet

        try:
            filtered = b"".join(bytes(packet) for packet in self._filter.filter(Packet(data)))
        except av.error.FFmpegError:
            filtered = b""
        units = list(split_annex_b(filtered))
        if len(units) != num_units:
            raise UnsupportedVideoError(
                f"{self._name}: its parameter sets cannot be rewritten with the colours that deepstream needs; "
                "use backend='pyav'"
            )
        return units


class Block(NamedTuple):
    """A packet in Annex B, and the number of its picture in display order."""

    number: int
    is_random_access: bool
    data: bytes


def write_mkv(codec: str, width: int, height: int, blocks: Sequence[Block]) -> bytes:
    """Return the bytes of a Matroska file (RFC 9559) with these packets, given in decode order."""
    # FFmpeg's muxer demands or derives parameter sets for the file header (CodecPrivate), which would apply to all
    # packets; without them a reader parses the packets as a byte stream with its own parameter sets
    video = _element(0xE0, _element(0xB0, width) + _element(0xBA, height))
    track = _element(0xD7, 1) + _element(0x73C5, 1) + _element(0x83, 1) + _element(0x9C, 0)
    track += _element(0x23E383, STEP_MS * 1_000_000) + _element(0x86, _CODECS[codec]) + video
    info = _element(0x2AD7B1, 1_000_000) + _element(0x4D80, b"telecine") + _element(0x5741, b"telecine")
    elements = [_element(0x1549A966, info), _element(0x1654AE6B, _element(0xAE, track))]
    first = 0
    for i, block in enumerate(blocks):
        if i - first == _MAX_CLUSTER_BLOCKS or abs(block.number - blocks[first].number) > _MAX_CLUSTER_PICTURES:
            elements.append(_cluster(blocks[first:i]))
            first = i
    elements.append(_cluster(blocks[first:]))
    versions = ((0x4286, 1), (0x42F7, 1), (0x42F2, 4), (0x42F3, 8), (0x4287, 4), (0x4285, 2))
    head = b"".join(_element(name, version) for name, version in versions) + _element(0x4282, b"matroska")
    return b"".join((_element(0x1A45DFA3, head), _element_head(0x18538067, sum(map(len, elements))), *elements))


def _cluster(blocks: Sequence[Block]) -> bytes:
    start = blocks[0].number * STEP_MS
    elements = [_element(0xE7, start)]
    for number, is_random_access, data in blocks:
        time = (number * STEP_MS - start).to_bytes(2, "big", signed=True)
        flags = _KEYFRAME_FLAG if is_random_access else b"\0"
        elements += [_element_head(0xA3, 4 + len(data)), _TRACK_NUMBER, time, flags, data]
    return _element_head(0x1F43B675, sum(map(len, elements))) + b"".join(elements)


def _element(name: int, content: int | bytes) -> bytes:
    if isinstance(content, int):
        content = content.to_bytes(max(1, -(-content.bit_length() // 8)), "big")
    return _element_head(name, len(content)) + content


def _element_head(name: int, size: int) -> bytes:
    """Return the ID and size of an element; the size always in eight bytes, as its first byte, 1, says."""
    return name.to_bytes(-(-name.bit_length() // 8), "big") + (size | 1 << 56).to_bytes(8, "big")
