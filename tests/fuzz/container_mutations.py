"""Mutations of container headers, tables and indexes. The frames may then have other indices and times."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from fuzz.corpus import Seed
from fuzz.mutations import Draft, mutator
from fuzz.payload import TS_PACKET

__all__ = ["find_boxes", "find_elements"]

_MP4 = frozenset(("mp4", "mov"))
_PARENTS = frozenset(b"moov trak mdia minf stbl edts dinf udta moof traf mvex meta".split())
_MASTER_IDS = frozenset(
    (0x18538067, 0x1549A966, 0x1654AE6B, 0xAE, 0xE0, 0x1F43B675, 0xA0, 0x1C53BB6B, 0xBB, 0xB7, 0x114D9B74)
)
_PACKED_TABLES = {b"stts": 8, b"ctts": 8, b"stss": 4, b"stco": 4, b"stsc": 12, b"stsz": 4, b"elst": 12, b"trun": 4}


def _has_headers(seed: Seed) -> bool:
    return bool(len(seed.header_offsets))


@mutator(_has_headers, weight=6)
def flip_header_bits(draft: Draft) -> str:
    """Flip bits outside the packets."""
    offsets = [int(draft.rng.choice(draft.seed.header_offsets)) for _ in range(draft.rng.choice((1, 1, 2, 5, 20)))]
    for at in offsets:
        draft.data[at] ^= 1 << draft.rng.randrange(8)
    draft.lose_identity()
    return f"at {offsets}"


@mutator(_has_headers, weight=8)
def change_header_number(draft: Draft) -> str:
    """Write an extreme value into a field outside the packets."""
    at, width = int(draft.rng.choice(draft.seed.header_offsets)), draft.rng.choice((1, 2, 4, 4, 8))
    value = _extreme(draft, width).to_bytes(width, draft.rng.choice(("big", "little")))
    draft.write(at, value)
    draft.lose_identity()
    return f"at {at} = {value.hex()}"


@mutator(_has_headers, weight=2)
def blank_headers(draft: Draft) -> str:
    """Fill a section that starts outside the packets with one value."""
    at, length = int(draft.rng.choice(draft.seed.header_offsets)), draft.rng.choice((4, 64, 500))
    value = draft.rng.choice((0, 255, 0x80))
    draft.write(at, bytes([value]) * length)
    draft.lose_identity()
    return f"{length} bytes at {at} = {value}"


def _extreme(draft: Draft, width: int) -> int:
    bits = 8 * width
    return draft.rng.choice((0, 1, 2, (1 << bits - 1) - 1, 1 << bits - 1, (1 << bits) - 1, draft.rng.getrandbits(bits)))


def find_boxes(data: bytes | bytearray, start: int = 0, stop: int | None = None) -> Iterator[tuple[bytes, int, int]]:
    """Yield type, start and stop of each box of an MP4 file, parents before children."""
    at, stop = start, len(data) if stop is None else stop
    while at + 8 <= stop:
        size, kind = struct.unpack_from(">I4s", data, at)
        end = stop if size == 0 else at + size
        if size == 1 or end < at + 8 or end > stop:
            return
        yield kind, at, end
        if kind in _PARENTS:
            yield from find_boxes(data, at + 8, end)
        at = end


@mutator(lambda seed: seed.container in _MP4, weight=12)
def change_box(draft: Draft) -> str:
    """Change a box of an MP4 file: its size, its type, a field, or all of it."""
    boxes = [box for box in find_boxes(draft.seed.data) if box[0] != b"mdat"]
    kind, start, stop = draft.rng.choice(boxes)
    what = draft.rng.choice(("size", "type", "field", "field", "field", "free", "zero", "step"))
    draft.lose_identity()
    if what == "size":
        value = draft.rng.choice((0, 1, 7, 8, stop - start - 1, stop - start + 1, stop - start + 8, 2**31, 2**32 - 1))
        draft.write(start, value.to_bytes(4, "big"))
    elif what == "type":
        draft.data[start + 4 + draft.rng.randrange(4)] ^= 1 << draft.rng.randrange(8)
    elif what == "free":
        draft.write(start + 4, b"free")
    elif what == "zero":
        draft.write(start + 8, bytes(stop - start - 8))
    elif stop - start >= 16:
        at = start + 8 + 4 * draft.rng.randrange((stop - start - 8) // 4)
        old = int.from_bytes(draft.data[at : at + 4], "big")
        value = _extreme(draft, 4) if what == "field" else (old + draft.rng.choice((-1, 1, 256, 65536))) % 2**32
        draft.write(at, value.to_bytes(4, "big"))
        what += f" {at - start} {old} -> {value}"
    return f"{kind.decode('latin-1')} at {start}: {what}"


@mutator(lambda seed: seed.container in _MP4, weight=8)
def change_table_entries(draft: Draft) -> str:
    """Exchange, repeat or zero entries of a table of an MP4 file, or change its number of entries."""
    boxes = [box for box in find_boxes(draft.seed.data) if box[0] in _PACKED_TABLES]
    kind, start, stop = draft.rng.choice(boxes)
    width, first = _PACKED_TABLES[kind], start + (20 if kind == b"stsz" else 16)
    count = max(1, (stop - first) // width)
    draft.lose_identity()
    what = draft.rng.choice(("exchange", "repeat", "zero", "count"))
    if what == "count":
        at = first - 4
        draft.write(at, draft.rng.choice((0, 1, count - 1, count + 1, 10**6, 2**31 - 1, 2**32 - 1)).to_bytes(4, "big"))
        return f"{kind.decode()}: count"
    one, two = (first + width * draft.rng.randrange(count) for _ in range(2))
    entry, other = bytes(draft.data[one : one + width]), bytes(draft.data[two : two + width])
    draft.write(two, bytes(width) if what == "zero" else entry)
    if what == "exchange":
        draft.write(one, other)
    return f"{kind.decode()}: {what} entries {(one - first) // width} and {(two - first) // width}"


@mutator(lambda seed: seed.container in _MP4, weight=3)
def claim_many_entries(draft: Draft) -> str:
    """Let a table of a few bytes claim very many entries: by one size, one duration, or no field for each sample."""
    boxes = [box for box in find_boxes(draft.seed.data) if box[0] in (b"stsz", b"stts", b"ctts", b"trun")]
    if draft.rng.random() < 0.5:
        boxes = [draft.rng.choice(boxes)]
    count = draft.rng.choice((10**5, 10**7, 2**28 - 1, 2**31 - 1, 2**32 - 1)).to_bytes(4, "big")
    for kind, start, _ in boxes:
        if kind == b"trun":  # only the data offset is present
            draft.write(start + 8, b"\0\0\0\1" + count)
        elif kind == b"stsz":  # all samples have one size
            draft.write(start + 12, b"\0\0\0\1" + count)
        else:
            draft.write(start + 16, count)
    draft.lose_identity()
    return f"{' '.join(kind.decode() for kind, _, _ in boxes)}: {int.from_bytes(count, 'big')}"


def find_elements(data: bytes | bytearray, at: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield ID, start, start of the payload and stop of each EBML element, parents before children."""
    while at < stop:
        try:
            size_at = at + _width(data[at])
            width = _width(data[size_at])
        except (IndexError, ValueError):
            return
        identity = int.from_bytes(data[at:size_at], "big")
        payload = size_at + width
        size = int.from_bytes(data[size_at:payload], "big") & (1 << 7 * width) - 1
        end = stop if size == (1 << 7 * width) - 1 else min(payload + size, stop)
        yield identity, at, payload, end
        if identity in _MASTER_IDS:
            yield from find_elements(data, payload, end)
        at = end


def _width(first: int) -> int:
    if not first:
        raise ValueError("not an EBML number of up to eight bytes")
    return 9 - first.bit_length()


@mutator(lambda seed: seed.container in ("mkv", "webm"), weight=12)
def change_element(draft: Draft) -> str:
    """Change an element of a Matroska file: its value, its size, its ID, or all of it."""
    elements = list(find_elements(draft.seed.data, 0, len(draft.data)))
    identity, start, payload, stop = draft.rng.choice(elements)
    what = draft.rng.choice(("value", "value", "size", "identity", "void"))
    draft.lose_identity()
    if what == "value":
        width = min(8, stop - payload)
        draft.write(payload, _extreme(draft, width).to_bytes(width, "big") if width else b"")
    elif what == "size":
        at = start + _width(draft.data[start])
        draft.data[at] ^= 1 << draft.rng.randrange(8)
    elif what == "identity":
        draft.data[start] ^= 1 << draft.rng.randrange(8)
    elif identity not in (0x18538067, 0x1A45DFA3) and 2 <= stop - start < 2**14:
        _write_void(draft, start, stop)
    return f"{identity:#x} at {start}: {what}"


def _write_void(draft: Draft, start: int, stop: int) -> None:
    size = stop - start
    draft.write(start, bytes([0xEC, 0x80 | size - 2]) if size < 128 else b"\xec" + struct.pack(">H", 0x4000 | size - 3))


@mutator(lambda seed: seed.container == "ts", weight=5)
def change_ts_tables(draft: Draft) -> str:
    """Change PAT or PMT of a transport stream, and the checksum with it."""
    data = draft.seed.data
    starts = [at for at in range(0, len(data) - 187, TS_PACKET) if data[at + 1] & 0x40]
    tables = [at for at in starts if data[at + 4] == 0 and data[at + 5] in (0, 2)]
    at = draft.rng.choice(tables)
    size = 3 + (int.from_bytes(data[at + 6 : at + 8], "big") & 0xFFF)
    change = at + 5 + draft.rng.randrange(1, size - 4)
    draft.data[change] = draft.rng.randrange(256)
    end = at + 5 + size
    draft.write(end - 4, _crc32(draft.data[at + 5 : end - 4], 0xFFFFFFFF).to_bytes(4, "big"))
    draft.lose_identity()
    return f"table {draft.data[at + 5]} at {at}, byte {change - at - 5}"


@mutator(lambda seed: seed.container == "ogv", weight=10)
def change_ogg_page(draft: Draft) -> str:
    """Change the header of an Ogg page, and the checksum with it; or only the checksum."""
    pages, at = [], 0
    while (at := draft.seed.data.find(b"OggS", at)) >= 0:
        pages.append(at)
        at += 4
    at = draft.rng.choice(pages)
    count = draft.seed.data[at + 26]
    stop = at + 27 + count + sum(draft.seed.data[at + 27 : at + 27 + count])
    change = at + draft.rng.choice((5, 6, 7, 10, 14, 18, 22, 26, 27))
    draft.data[change] ^= 1 << draft.rng.randrange(8)
    if change - at < 22:
        draft.write(at + 22, bytes(4))
        draft.write(at + 22, _crc32(draft.data[at:stop], 0).to_bytes(4, "little"))
    draft.lose_identity("time" if change - at >= 18 else "none")
    draft.at_risk = None
    return f"page at {at}, byte {change - at}"


def _crc32(data: bytes | bytearray, crc: int) -> int:
    """Return the CRC-32 of MPEG and Ogg: most significant bit first, not inverted."""
    for byte in data:
        crc ^= byte << 24
        for _ in range(8):
            crc = crc << 1 ^ (0x104C11DB7 if crc & 0x80000000 else 0)
    return crc


_MAGIC = [
    b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom", b"\x1aE\xdf\xa3\x93B\x82\x88matroska", b"\x1aE\xdf\xa3\x87B\x82\x84webm",
    b"RIFF\xff\xff\xff\x7fAVI LIST", b"FLV\1\1\0\0\0\t\0\0\0\0", b"OggS\0\2", b"GIF89a\x40\0\x40\0\xf7\0\0",
    b"\0\0\0\1\x67\x42\0\x1e", b"\0\0\0\1\x40\1\x0c\1", b"\0\0\1\xba\x44\0", b"\0\0\1\xb3\x06\0\x40", b"\0\0\1\xb0\1",
    b"0&\xb2u\x8ef\xcf\x11\xa6\xd9\0\xaa\0b\xcel", b"DKIF\0\0 \0AV01\x40\0\x40\0", b"DKIF\0\0 \0VP90\x40\0\x40\0",
    b"\x06\x0e\x2b\x34\2\5\1\1\x0d\1\2\1\1\2", b"nut/multimedia container\0", b"fLaC\0\0\0\x22",
    b"YUV4MPEG2 W64 H64 F30:1 Ip C420\nFRAME\n",
    b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\x40\0\0\0\x40\x08\2", b"\xff\xd8\xff\xe0\0\x10JFIF\0",
    b"\x12\0\x0a\x0b\0\0", b"\x47\x40\x11\x10", b"ID3\3\0\0\0\0\0\0",
]  # fmt: skip


@mutator(weight=1, is_in_place=False)
def replace_by_noise(draft: Draft) -> str:
    """Keep only the first bytes of a format, and replace the rest by noise."""
    start = draft.rng.choice(_MAGIC)
    draft.data[:] = start + draft.rng.randbytes(draft.rng.choice((10, 300, 5000)))
    draft.lose_identity()
    draft.at_risk = None
    return start[:8].hex()


@mutator(weight=2, is_in_place=False)
def join_sections(draft: Draft) -> str:
    """Join the start of the file and a later section of it, so that headers repeat or contradict what follows."""
    cut, start = draft.rng.randrange(len(draft.data)), draft.rng.randrange(len(draft.data))
    draft.data[cut:] = draft.seed.data[start:]
    draft.lose_identity()
    draft.at_risk = None
    return f"{cut} bytes, then from {start}"
