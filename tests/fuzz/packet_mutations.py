"""Mutations of packets, in place or by another choice of packets: damage that must move no other frame."""

from __future__ import annotations

from fuzz.corpus import Seed
from fuzz.mutations import Draft, mutator
from fuzz.payload import TS_PACKET

__all__ = ["START_CODE_CONTAINERS"]

START_CODE_CONTAINERS = frozenset(("mp4", "mov", "mkv", "flv"))
"""Containers in which each NAL unit has its length in front."""


def _can_locate(seed: Seed) -> bool:
    return any(packet.positions is not None for packet in seed.packets)


def _has_nal_units(seed: Seed) -> bool:
    return seed.codec in ("h264", "hevc")


def _pick(draft: Draft) -> int:
    usable = [n for n, packet in enumerate(draft.seed.packets) if packet.positions is not None]
    return draft.rng.choice(usable)


def _put(draft: Draft, number: int, at: int, value: bytes) -> None:
    """Overwrite bytes of a packet from its byte ``at`` on."""
    positions = draft.seed.packets[number].positions
    assert positions is not None
    for offset, byte in zip(positions[at : at + len(value)].tolist(), value, strict=False):
        draft.data[offset] = byte
    draft.damage({number})
    if draft.seed.is_parsed:
        draft.lose_identity("time")


@mutator(_can_locate)
def zero_packet(draft: Draft) -> str:
    """Fill a packet, or its end, with zeros."""
    number = _pick(draft)
    size = len(draft.seed.packets[number].data)
    at = draft.rng.choice((0, 0, 1, 4, 16, size // 2))
    _put(draft, number, at, bytes(max(0, size - at)))
    return f"packet {number} from byte {at}"


@mutator(_can_locate, weight=6)
def add_noise(draft: Draft) -> str:
    """Replace a part of a packet by noise."""
    number = _pick(draft)
    size = len(draft.seed.packets[number].data)
    at = draft.rng.randrange(size)
    length = draft.rng.choice((1, 4, 30, size))
    _put(draft, number, at, draft.rng.randbytes(min(length, size - at)))
    return f"packet {number} {min(length, size - at)} bytes from {at}"


@mutator(_can_locate, weight=6)
def flip_packet_bits(draft: Draft) -> str:
    """Flip bits of a packet, mostly in its header."""
    number = _pick(draft)
    data = draft.seed.packets[number].data
    flipped = []
    for _ in range(draft.rng.choice((1, 1, 2, 5))):
        limit = draft.rng.choice((2, 8, 16, 64, len(data)))
        at = draft.rng.randrange(min(limit, len(data)))
        _put(draft, number, at, bytes([data[at] ^ 1 << draft.rng.randrange(8)]))
        flipped.append(at)
    return f"packet {number} at {flipped}"


@mutator(_has_nal_units, weight=4)
def change_nal_header(draft: Draft) -> str:
    """Write another type into the header of a NAL unit."""
    number = _pick(draft)
    data = draft.seed.packets[number].data
    at = data.find(b"\0\0\1", 0, -4) + 3 if draft.seed.container not in START_CODE_CONTAINERS else 4
    value = draft.rng.randrange(256)
    _put(draft, number, at, bytes([value]))
    return f"packet {number} byte {at} = {value:#x}"


@mutator(lambda seed: _has_nal_units(seed) and seed.container in START_CODE_CONTAINERS, weight=4)
def change_nal_length(draft: Draft) -> str:
    """Write another length in front of the first NAL unit of a packet."""
    number = _pick(draft)
    size = len(draft.seed.packets[number].data)
    old = int.from_bytes(draft.seed.packets[number].data[:4], "big")
    value = draft.rng.choice((0, 1, 2, old - 1, old + 1, size, 2**31 - 1, 2**32 - 1, 0x1FF))
    _put(draft, number, 0, max(0, value).to_bytes(4, "big"))
    return f"packet {number} {old} -> {value}"


@mutator(lambda seed: _has_nal_units(seed) and seed.container in START_CODE_CONTAINERS, weight=5)
def write_start_codes(draft: Draft) -> str:
    """Replace the lengths of all NAL units by start codes, which FFmpeg accepts."""
    share = draft.rng.choice((1.0, 1.0, 0.5))
    written = 0
    for packet in draft.seed.packets:
        if draft.rng.random() >= share or packet.positions is None:
            continue
        at = 0
        while at + 4 <= len(packet.data):
            draft.write(int(packet.positions[at]), b"\0\0\0\1")
            at += 4 + int.from_bytes(packet.data[at : at + 4], "big")
        written += 1
    return f"in {written} packets"


@mutator(_can_locate, weight=8)
def zero_bytes(draft: Draft) -> str:
    """Fill a section with zeros that may reach over several packets and what is between them."""
    number = _pick(draft)
    positions = draft.seed.packets[number].positions
    assert positions is not None
    at = int(positions[draft.rng.choice((0, 0, len(positions) // 2))])
    length = draft.rng.choice((50, 400, 1500, 3000, 6000))
    _overwrite(draft, at, bytes(length))
    return f"{length} bytes at {at}, in packet {number}"


@mutator(_can_locate)
def overwrite_section(draft: Draft) -> str:
    """Write noise or 0xFF over a section that may reach over several packets."""
    at = draft.rng.randrange(len(draft.data))
    length = draft.rng.choice((100, 1000, 5000))
    _overwrite(draft, at, draft.rng.choice((b"\xff" * length, draft.rng.randbytes(length))))
    return f"{length} bytes at {at}"


def _overwrite(draft: Draft, at: int, value: bytes) -> None:
    """Overwrite a section of the file; what it hits tells what may be expected."""
    draft.write(at, value)
    stop = min(at + len(value), len(draft.data))
    headers = draft.seed.header_offsets
    if ((headers >= at) & (headers < stop)).any():
        draft.lose_identity("none" if draft.seed.has_tables else "time")
    if draft.seed.is_parsed:
        draft.lose_identity("time")
    if not draft.seed.has_tables and draft.identity != "index":
        # readers may find the next packet late
        stop += 4 * TS_PACKET
    draft.damage(_packets_in(draft.seed, at, stop))


def _packets_in(seed: Seed, start: int, stop: int) -> set[int]:
    """Return the packets with a byte in a section; those that could not be located count as in it."""
    return {
        n for n, packet in enumerate(seed.packets)
        if packet.positions is None or ((packet.positions >= start) & (packet.positions < stop)).any()
    }  # fmt: skip


@mutator(_can_locate, weight=2)
def copy_packet_over(draft: Draft) -> str:
    """Write one packet over another: its picture is intact, and nothing need show that it is the wrong one."""
    source, target = _pick(draft), _pick(draft)
    size = len(draft.seed.packets[target].data)
    _put(draft, target, 0, draft.seed.packets[source].data[:size])
    draft.lose_identity()
    return f"packet {source} over packet {target}"


@mutator(is_in_place=False, weight=3)
def cut_end(draft: Draft) -> str:
    """Remove the end of the file."""
    at = draft.rng.randrange(len(draft.data) // 4, len(draft.data))
    del draft.data[at:]
    tables_first = "faststart" in draft.seed.name or "fragmented" in draft.seed.name
    draft.lose_identity("time" if not draft.seed.has_tables or tables_first else "none")
    draft.damage(_packets_in(draft.seed, at, len(draft.seed.data)))
    if not tables_first and draft.seed.container in ("mp4", "mov", "avi", "mxf", "nut"):
        draft.at_risk = None
    return f"at {at} of {len(draft.seed.data)}"


@mutator(_can_locate, is_in_place=False, weight=3)
def remove_section(draft: Draft) -> str:
    """Remove bytes from the middle of the file."""
    at = draft.rng.randrange(len(draft.data))
    length = draft.rng.choice((1, 4, 188, 1000, 4000))
    del draft.data[at : at + length]
    draft.lose_identity("none" if draft.seed.has_tables else "time")
    draft.at_risk = None
    return f"{length} bytes at {at}"


@mutator(_can_locate, is_in_place=False, weight=3)
def insert_section(draft: Draft) -> str:
    """Insert zeros, noise or bytes from elsewhere."""
    at, start = draft.rng.randrange(len(draft.data)), draft.rng.randrange(len(draft.data))
    length = draft.rng.choice((1, 4, 188, 1000, 4000))
    kind = draft.rng.choice(("zeros", "noise", "a copy"))
    new = {"zeros": bytes(length), "noise": draft.rng.randbytes(length), "a copy": draft.data[start : start + length]}
    draft.data[at:at] = new[kind]
    draft.lose_identity("none" if draft.seed.has_tables or kind == "a copy" else "time")
    draft.at_risk = None
    return f"{kind} of {length} bytes at {at}"


@mutator(lambda seed: seed.container == "ts", weight=16, is_in_place=False)
def change_ts_packets(draft: Draft) -> str:
    """Drop, repeat, exchange or zero packets of a transport stream."""
    count = len(draft.data) // TS_PACKET
    kind = draft.rng.choice(("drop", "drop", "drop", "repeat", "exchange", "zero", "continuity"))
    number = draft.rng.randrange(3, count)
    length = draft.rng.choice((1, 1, 1, 2, 5, 16, 30))
    start, stop = number * TS_PACKET, (number + length) * TS_PACKET
    touched = _packets_in(draft.seed, start, stop + TS_PACKET)
    if kind == "drop":
        del draft.data[start:stop]
    elif kind == "repeat":
        draft.data[stop:stop] = draft.data[start:stop]
    elif kind == "exchange":
        other = draft.rng.randrange(3, count) * TS_PACKET
        touched |= _packets_in(draft.seed, other, other + TS_PACKET)
        one, two = draft.data[start : start + TS_PACKET], draft.data[other : other + TS_PACKET]
        draft.data[start : start + TS_PACKET], draft.data[other : other + TS_PACKET] = two, one
    elif kind == "zero":
        draft.write(start, bytes(stop - start))
    else:
        draft.data[start + 3] ^= draft.rng.randrange(1, 16)
    draft.lose_identity("time")
    draft.damage(touched)
    return f"{kind} {length} from {number} of {count}"
