"""Mutations that mux the packets again: units that belong to no picture and must lose no frame; missing packets."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Sequence
from functools import cache

import av

from fuzz.corpus import Seed, load_seed
from fuzz.mutations import Draft, mutator
from fuzz.packet_mutations import START_CODE_CONTAINERS

__all__ = ["UNITS", "remux"]


def remux(seed: Seed, packets: Sequence[bytes | None]) -> bytes:
    """Mux packets with the times of the intact file into the same container; None is a missing packet."""
    target = io.BytesIO()
    kind = {"mkv": "matroska", "ts": "mpegts", "mpg": "mpeg", "m2v": "mpeg2video", "ogv": "ogg"}
    with (
        av.open(io.BytesIO(seed.data)) as source,
        av.open(target, "w", kind.get(seed.container, seed.container), options={"fflags": "+bitexact"}) as muxer,
    ):
        stream = muxer.add_stream_from_template(source.streams.video[0])
        read = [packet for packet in source.demux(video=0) if packet.size]
        for data, model in zip(packets, read, strict=True):
            if data is None:
                continue
            packet = av.Packet(data)
            packet.time_base, packet.pts, packet.dts = model.time_base, model.pts, model.dts
            packet.duration, packet.is_keyframe, packet.stream = model.duration, model.is_keyframe, stream
            muxer.mux(packet)
    return target.getvalue()


@cache
def _can_remux(name: str) -> bool:
    """Return True if muxing the packets of a file again gives the same packets."""
    seed = load_seed(name)
    if seed.container in ("gif", "apng", "asf", "mxf", "mpg", "obu"):
        return False
    try:
        packets = [packet.data for packet in seed.packets]
        return _read_packets(remux(seed, packets)) == packets
    except (av.FFmpegError, ValueError):
        return False


def _read_packets(data: bytes | bytearray) -> list[bytes]:
    with av.open(io.BytesIO(data)) as container:
        return [bytes(packet) for packet in container.demux(video=0) if packet.size]


def _h264_unit(rng: random.Random) -> bytes:
    """Return a NAL unit of H.264 that is not part of a picture."""
    noise = _without_start_codes(rng.randbytes(rng.choice((1, 3, 20, 200))))
    return rng.choice((
        b"\x06" + bytes([rng.choice((1, 4, 5, 7, 45, 47, 137, 144)), rng.choice((0, 1, 3, 16, 60, 255))]) + noise,
        b"\x06\x05", b"\x06\x05\xff", b"\x06\x04\x06\xb5\x00\x31\x47\x41", b"\x06\x80", b"\x06",
        bytes([rng.choice((0, 15, 16, 17, 18, 22, 23, 24, 28, 29, 30, 31))]) + noise,
        b"\x0c" + b"\xff" * rng.choice((1, 50)) + b"\x80", b"\x0c",
        b"\x67\x64\x00\x0a\x04", b"\x67", b"\x67\x42\x00", b"\x68", b"\x68\x01\x80",
    ))  # fmt: skip


def _hevc_unit(rng: random.Random) -> bytes:
    """Return a NAL unit of HEVC that is not part of a picture."""
    noise = _without_start_codes(rng.randbytes(rng.choice((1, 3, 20, 200))))
    kind = rng.choice((*range(41, 48), *range(48, 64)))
    sei = bytes([rng.choice((0, 1, 4, 5, 137, 144, 147)), rng.choice((0, 1, 3, 16, 60, 255))])
    return rng.choice((
        b"\x4e\x01" + sei + noise, b"\x4e\x01\x05", b"\x4e\x01", b"\x4e\x01\x05\xff",
        b"\x4e\x01\x04\x09\xb5\x00\x3c\x00\x01\x04\x01\x40", b"\x4e\x01\x04\x40\xb5\x00\x3c\x00\x01" + noise,
        bytes([kind << 1, 1]) + noise, b"\x4c\x01" + b"\xff" * 20 + b"\x80", b"\x02\x09" + noise,
        b"\x50\x01" + sei + noise, b"\x50\x01\x84", b"\x44\x01\x02\x04", b"\x44\x01", b"\x42\x01\x01", b"\x40\x01",
    ))  # fmt: skip


def _obu(rng: random.Random) -> bytes:
    """Return an OBU of AV1 that is not part of a picture."""
    kind = rng.choice((5, 5, 5, 9, 10, 12, 14, 15))
    payload = rng.choice((b"", b"\4", b"\4\xb5", b"\4\xb5\0\x3c\0\1\4\1\x40", b"\1\0", b"\2", b"\x1f")) + rng.randbytes(
        rng.choice((0, 1, 20, 100))
    )
    return bytes([kind << 3 | 2, len(payload)]) + payload


def _without_start_codes(payload: bytes) -> bytes:
    """Return the payload without zeros: no start code, no emulation prevention, no zeros at the end."""
    return payload.replace(b"\0", b"\x55")


def _insert_nal(unit: Callable[[random.Random], bytes]) -> Callable[[Seed, bytes, random.Random], bytes]:
    def insert(seed: Seed, packet: bytes, rng: random.Random) -> bytes:
        new, has_lengths = unit(rng), seed.container in START_CODE_CONTAINERS
        new = (len(new).to_bytes(4, "big") if has_lengths else b"\0\0\0\1") + new
        if rng.random() < 0.3:
            return packet + new
        if not has_lengths and _starts_with_delimiter(seed, packet):
            return _after_delimiter(packet, new)
        return new + packet

    return insert


def _starts_with_delimiter(seed: Seed, packet: bytes) -> bool:
    first = packet[packet.find(b"\0\0\1") + 3]
    return first & 0x1F == 9 if seed.codec == "h264" else first >> 1 == 35


def _after_delimiter(packet: bytes, new: bytes) -> bytes:
    at = packet.find(b"\0\0\1", 4)
    at -= packet[at - 1] == 0
    return packet[:at] + new + packet[at:]


def _insert_obu(seed: Seed, packet: bytes, rng: random.Random) -> bytes:
    return packet[:2] + _obu(rng) + packet[2:] if packet[:2] == b"\x12\0" else _obu(rng) + packet


def _insert_user_data(marker: bytes) -> Callable[[Seed, bytes, random.Random], bytes]:
    def insert(seed: Seed, packet: bytes, rng: random.Random) -> bytes:
        at = packet.find(marker)
        noise = _without_start_codes(rng.randbytes(rng.choice((0, 1, 8, 100))))
        extension = b"\xb5\xf0" if seed.codec == "mpeg2video" else b"\xb2"
        kind = rng.choice((b"\xb2", b"\xb2", b"\xb2GA94", b"\xb2DTG1", extension))
        return packet if at < 0 else packet[:at] + b"\0\0\1" + kind + noise + packet[at:]

    return insert


def _insert_segment(seed: Seed, packet: bytes, rng: random.Random) -> bytes:
    payload = rng.choice((b"", b"AVI1", b"JFIF", b"Exif\0\0", b"Adobe", b"LJIF"))
    payload += rng.randbytes(rng.choice((0, 3, 40)))
    segment = b"\xff" + rng.choice((b"\xfe", b"\xe5", b"\xed")) + (len(payload) + 2).to_bytes(2, "big") + payload
    return packet[:2] + segment + packet[2:]


def _append_bytes(seed: Seed, packet: bytes, rng: random.Random) -> bytes:
    """Append zeros, which the formats allow after the last unit of a picture."""
    return packet + bytes(rng.choice((1, 3, 10, 100)))


UNITS: dict[str, tuple[Callable[[Seed, bytes, random.Random], bytes], ...]] = {
    "h264": (_insert_nal(_h264_unit),),
    "hevc": (_insert_nal(_hevc_unit),),
    "av1": (_insert_obu,),
    "mpeg1video": (_insert_user_data(b"\0\0\1\1"),),
    "mpeg2video": (_insert_user_data(b"\0\0\1\1"),),
    "mpeg4": (_insert_user_data(b"\0\0\1\xb6"), _append_bytes),
    "mjpeg": (_insert_segment, _append_bytes),
    "vp8": (_append_bytes,),
}
"""Functions that add a harmless unit to a packet, by codec."""


@mutator(lambda seed: seed.codec in UNITS and _can_remux(seed.name), weight=30, is_in_place=False)
def insert_harmless_units(draft: Draft) -> str:
    """Insert units that are not part of a picture into some packets."""
    seed, rng = draft.seed, draft.rng
    change = rng.choice(UNITS[seed.codec])
    where = rng.choice(("first", "all", "all but the first", "one"))
    one, unit_number = rng.randrange(len(seed.packets)), rng.getrandbits(32)
    packets, inserted = [], b""
    for number, packet in enumerate(seed.packets):
        chosen = {"first": number == 0, "all": True, "all but the first": number > 0, "one": number == one}[where]
        # the same unit in all packets, so that a finding has one cause
        data = change(seed, packet.data, random.Random(unit_number)) if chosen else packet.data
        inserted = inserted or _inserted_bytes(packet.data, data)
        packets.append(data)
    _replace_packets(draft, packets)
    return f"{inserted.hex()} in {where if where != 'one' else f'packet {one}'}"


def _inserted_bytes(packet: bytes, changed: bytes) -> bytes:
    """Return the first bytes of what was inserted into a packet, for descriptions."""
    start = next((n for n, (one, two) in enumerate(zip(packet, changed, strict=False)) if one != two), len(packet))
    return changed[start : start + min(12, len(changed) - len(packet))]


@mutator(lambda seed: _can_remux(seed.name), weight=5, is_in_place=False)
def choose_other_packets(draft: Draft) -> str:
    """Leave out a packet, or exchange the content of two."""
    seed, rng = draft.seed, draft.rng
    packets: list[bytes | None] = [packet.data for packet in seed.packets]
    one, two = rng.randrange(1, len(packets)), rng.randrange(len(packets))
    if rng.random() < 0.7:
        packets[one] = None
        draft.damage({one})
        draft.lose_identity("time")
        what = f"packet {one} is missing"
    else:
        packets[one], packets[two] = packets[two], packets[one]
        draft.lose_identity()
        what = f"packets {one} and {two} exchanged"
    _replace_packets(draft, packets)
    return what


def _replace_packets(draft: Draft, packets: Sequence[bytes | None]) -> None:
    """Write the file with other packets; without claims about its frames if the muxer changes the packets."""
    try:
        draft.data[:] = remux(draft.seed, packets)
        is_unchanged = _read_packets(draft.data) == [packet for packet in packets if packet is not None]
    except (av.FFmpegError, ValueError):
        is_unchanged = False
    if not is_unchanged:
        draft.lose_identity()
