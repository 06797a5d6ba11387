"""The planned packets as one stream for a library that says of its frames only how many there are.

Such frames are known by their number, and that can be believed where it can be said beforehand how many pictures come
out and in which order. So a splice is built of *parts*, each from a place where decoding starts afresh up to its last
wanted frame, and the bitstream itself is asked for the order in each. Nothing that is damaged is in it, nor what is
built on that: a decoder would give something for it, or nothing, and put the count off.

Pictures that are there are never passed over, and nothing is decoded beyond the last wanted one of a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from telecine.backends.base import DecodeRequest
from telecine.backends.deepstream.mkv_writer import Block, matroska
from telecine.backends.parser_order import labels
from telecine.bitstream import Leading, RandomAccess, scanner_for
from telecine.bitstream.annexb import ByteStream
from telecine.bitstream.h264 import FrameNumbers, H264Scanner
from telecine.bitstream.nal import nal_type
from telecine.errors import UnsupportedVideoError
from telecine.index.packet_index import PacketIndex
from telecine.plan.ranges import DecodeRange, extend_to_closed_points, split_at_closed_points

__all__ = ["Splice", "parts_of", "splices"]

_MOST_BYTES = 64 << 20
"""Of packets in a splice, unless a single part has more."""
_MOST_PICTURES = 512 << 20
"""Bytes of wanted frames, likewise: the library makes room for all of them at a time."""
_CODE = b"\0\0\1"
_WITH_COLOURS = {"h264": (7,), "hevc": (32, 33)}
"""The types of NAL units that the rewriting of colours may change."""
_CRA, _BLA = 21, 16
"""HEVC's types of pictures (table 7-1): a clean random access point, and the same behind a cut."""


@dataclass(frozen=True, eq=False)
class Splice:
    """A file in memory, and what comes out of it."""

    parts: tuple[DecodeRange, ...]
    """That it was made from."""
    data: bytes = field(repr=False)
    """The file: Matroska."""
    count: int
    """Pictures that an undamaged stream brings."""
    optional: int
    """How many of the first ones a decoder may leave out, all of them or none."""
    targets: Mapping[int, tuple[int, ...]]
    """By the number of a wanted picture, counted from 0, ascending: the rows of the output that it fills."""
    decoder: str
    """Stands for all that a decoder is made for: one that was made for another must not be used."""


@dataclass
class _Piece:
    """A part, looked at packet by packet."""

    part: DecodeRange
    sequence: tuple[bytes, ...] = ()
    """Sequence headers that hold in it."""
    packets: list[tuple[int, bool, bytes]] = field(default_factory=list)
    """Ordinal, whether decoding can start at it, bytes."""
    orders: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By ordinal: the place in order of presentation that the bitstream says."""
    provable: bool = True
    """Whether all of those are known."""
    optional: int = 0

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(len(data) for _, _, data in self.packets)


def parts_of(index: PacketIndex, runs: Iterable[DecodeRange]) -> list[DecodeRange]:
    """Divide the runs of a plan into parts.

    Behind an open point of H.264 come pictures that lack what they refer to, and whether a decoder shows them is its
    own affair. So a run that starts at one is led back to a point that looks back at nothing, if there is one.
    """
    led = extend_to_closed_points(index, runs) if index.codec == "h264" else runs
    return [part for run in led for part in split_at_closed_points(index, run)]


def splices(request: DecodeRequest, parts: Iterable[DecodeRange], colours: str) -> Iterator[Splice]:
    """Join parts, as many as one decoder can take in one go.

    Targets that are damaged, or whose number cannot be said, are in none.

    Args:
        request: says where the packets are.
        parts: of a plan.
        colours: options of FFmpeg's bitstream filters ``h264_metadata`` and ``hevc_metadata``.

    Raises:
        UnsupportedVideoError: pictures of two fields, or headers that cannot be rewritten.
    """
    waiting: list[_Piece] = []
    reader = _Reader(request, colours)
    for part in parts:
        piece = reader.read(part)
        if not piece.provable or not piece.part.targets:
            continue
        if waiting and (piece.optional or piece.sequence != waiting[0].sequence or _full(request, waiting, piece)):
            yield _splice(request, waiting, colours)
            waiting = []
        waiting.append(piece)
    if waiting:
        yield _splice(request, waiting, colours)


def _full(request: DecodeRequest, waiting: list[_Piece], piece: _Piece) -> bool:
    together = [*waiting, piece]
    frame = 3 * request.geometry.stored_height * request.geometry.stored_width
    wanted = sum(len(one.part.targets) for one in together)
    return sum(one.size for one in together) > _MOST_BYTES or wanted * frame > _MOST_PICTURES


class _Reader:
    """Reads the packets of parts and looks at them. Not thread-safe: one for each request."""

    def __init__(self, request: DecodeRequest, colours: str) -> None:
        self._request = request
        self._index = request.index
        self._header = self._extradata = request.demuxer.extradata
        self._stream = ByteStream(self._index.codec, self._extradata)
        self._stream(b"", True, False)  # its headers, which it would otherwise put in front of what is read first
        self._paint = _Paint(request, colours)

    def read(self, part: DecodeRange) -> _Piece:
        """Look at a part. The piece ends where it is not sound any more."""
        index = self._index
        piece = _Piece(part)
        sound = _Sound(index.codec, self._extradata)
        torn = dict(zip(part.packets.tolist(), index.has_gap_before(part.packets).tolist(), strict=True))
        for ordinal, packet in self._request.reader.read(part.packets):
            self._request.deadline.check("reading the packets")
            if torn[ordinal] and not index.random_access[ordinal]:
                break
            if ordinal in index.new_extradata or not piece.packets:
                sound = self._renew(index.extradata_at(ordinal, self._header)) or sound
            raw, access, first = memoryview(packet), bool(index.random_access[ordinal]), not piece.packets
            data = None if index.corrupt[ordinal] else self._stream(raw, False, access)
            if data is not None and first and not self._paint.headers(data):
                data = self._stream(raw, True, access)
            if data is None and index.disposable[ordinal] and not first:
                continue
            if data is None or (not first and self._stream.sequence != piece.sequence) or sound.lacks(raw):
                break
            if first:
                self._refuse_fields(raw)
                piece.sequence = self._stream.sequence
            facts = sound.scanner.scan(raw, access, True)
            if facts.leading == Leading.NEVER:
                continue
            if facts.shown:
                piece.provable &= facts.display_order is not None
                piece.orders[ordinal] = facts.display_order or (0, 0)
            piece.packets.append((ordinal, access, self._paint(data) if access else data))
        self._finish(piece)
        return piece

    def _renew(self, extradata: bytes) -> _Sound | None:
        """Take the headers that the container has brought last, if they are others."""
        if extradata == self._extradata:
            return None
        self._extradata = extradata
        self._stream.update_extradata(extradata)
        self._stream(b"", True, False)
        return _Sound(self._index.codec, extradata)

    def _finish(self, piece: _Piece) -> None:
        """Leave the targets that are in it and in place, and say what a decoder may leave out."""
        index, ordinals = self._index, np.array(list(piece.orders), np.int64)
        if not piece.provable or not len(ordinals):
            piece.provable = False
            return
        by_stream = sorted(piece.orders, key=lambda ordinal: piece.orders[ordinal])
        place = labels(index, ordinals)
        by_time = sorted(piece.orders, key=lambda ordinal: place[ordinal])
        # where the container contradicts the stream, one of them is wrong
        agreed = {one for one, other in zip(by_stream, by_time, strict=True) if one == other}
        repeated = len(set(piece.orders.values())) < len(piece.orders)
        targets = {ordinal: rows for ordinal, rows in piece.part.targets.items() if ordinal in agreed}
        piece.part = DecodeRange(piece.part.packets, piece.part.required, {} if repeated else targets, piece.part.reset)
        start = int(ordinals[0])
        if index.codec == "h264" and index.random_access[start] == RandomAccess.OPEN:
            piece.optional = by_stream.index(start)

    def _refuse_fields(self, packet: memoryview) -> None:
        if self._index.codec != "h264":
            return
        head = H264Scanner(self._extradata).head_of(packet)
        if head is not None and not head.sps.frame_mbs_only:
            raise UnsupportedVideoError(
                f"{self._request.source.name}: deepstream does not give interlaced H.264 as it is; use backend='pyav'"
            )


class _Sound:
    """What is known of the packets so far, from a place on where decoding starts afresh."""

    def __init__(self, codec: str, extradata: bytes) -> None:
        scanner = scanner_for(codec, extradata)
        assert scanner is not None  # there is one for both codecs
        self.scanner = scanner
        self._numbers = FrameNumbers(extradata) if codec == "h264" else None

    def lacks(self, packet: memoryview) -> bool:
        """Whether a picture is missing in front of a packet that it may be built on."""
        return self._numbers is not None and self._numbers.gap_before(packet)


def _splice(request: DecodeRequest, pieces: list[_Piece], colours: str) -> Splice:
    blocks: list[Block] = []
    targets: dict[int, tuple[int, ...]] = {}
    count = 0
    codec, geometry = request.index.codec, request.geometry
    for piece in pieces:
        by_stream = sorted(piece.orders, key=lambda ordinal: piece.orders[ordinal])
        number = {ordinal: count + at for at, ordinal in enumerate(by_stream)}
        latest = count
        for at, (ordinal, access, data) in enumerate(piece.packets):
            if blocks and not at and codec == "hevc":
                data = _units_changed(data, _cut_off)
            latest = number.get(ordinal, latest)
            blocks.append(Block(latest, access, data))
        targets |= {number[ordinal]: rows for ordinal, rows in piece.part.targets.items()}
        count += len(by_stream)
    made_for = blake2b(b"".join((*pieces[0].sequence, colours.encode())), digest_size=12).hexdigest()
    return Splice(
        tuple(piece.part for piece in pieces),
        matroska(codec, geometry.stored_width, geometry.stored_height, blocks),
        count,
        pieces[0].optional,
        dict(sorted(targets.items())),
        f"{codec}:{made_for}",
    )


class _Paint:
    """Writes the colours into the headers of a stream, for a library that looks at them in a way of its own."""

    def __init__(self, request: DecodeRequest, colours: str) -> None:
        from av.bitstream import BitStreamFilterContext

        self._name = request.source.name
        self._codec = request.index.codec
        self._filter = BitStreamFilterContext(f"{self._codec}_metadata={colours}", self._codec)
        self._known: dict[bytes, list[bytes]] = {}

    def __call__(self, data: bytes) -> bytes:
        """The bytes of a packet with its headers rewritten."""
        kinds = _WITH_COLOURS[self._codec]
        headers = self.headers(data)
        if not headers:
            return data
        whole = b"".join(b"\0" + _CODE + unit for unit in headers)
        if whole not in self._known:
            self._known[whole] = self._rewritten(whole)
        rest = iter(self._known[whole])
        return _units_changed(data, lambda unit: next(rest) if nal_type(self._codec, unit) in kinds else unit)

    def headers(self, data: bytes) -> list[bytes]:
        """The headers in a packet, as far as they have to do with colours."""
        kinds = _WITH_COLOURS[self._codec]
        units = data.split(_CODE)[1:]
        return [unit.rstrip(b"\0") for unit in units if unit and nal_type(self._codec, unit) in kinds]

    def _rewritten(self, headers: bytes) -> list[bytes]:
        import av
        from av.packet import Packet

        try:
            found = b"".join(bytes(packet) for packet in self._filter.filter(Packet(headers)))
        except av.error.FFmpegError:
            found = b""
        units = [unit.rstrip(b"\0") for unit in found.split(_CODE)[1:]]
        if len(units) != headers.count(_CODE):
            raise UnsupportedVideoError(
                f"{self._name}: its headers cannot be rewritten with the colours that deepstream needs; "
                "use backend='pyav'"
            )
        return units


def _units_changed(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """The bytes of a packet with its NAL units changed."""
    first, *units = data.split(_CODE)
    # zeros at the end belong to the next start code
    bare = [unit.rstrip(b"\0") for unit in units]
    return first + b"".join(
        _CODE + (change(one) if one else one) + unit[len(one) :] for one, unit in zip(bare, units, strict=True)
    )


def _cut_off(unit: bytes) -> bytes:
    """A unit of HEVC that says, where it is of an open point, that what was in front of that is gone.

    The two types have the same syntax. But behind this one the order of presentation begins anew, and no decoder
    refers to what came before.
    """
    if nal_type("hevc", unit) != _CRA:
        return unit
    return bytes([unit[0] & 0x81 | _BLA << 1]) + unit[1:]
