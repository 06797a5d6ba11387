"""Changes to the bytes of a finished clip that no encoder makes: wrong headers, truncation, damage, omissions."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator

import av
import numpy as np

__all__ = [
    "art_first",
    "claim_frames",
    "cut",
    "drop_timestamps",
    "join",
    "noise_in_packet",
    "retime",
    "without_vui",
]

_TS_PACKET = 188


def cut(data: bytes, fraction: float) -> bytes:
    """Return the beginning of a file."""
    return data[: int(len(data) * fraction)]


def join(*parts: bytes) -> bytes:
    """Concatenate elementary streams."""
    return b"".join(parts)


def claim_frames(data: bytes, count: int) -> bytes:
    """Write another number of frames into both headers of an AVI file."""
    edited = bytearray(data)
    struct.pack_into("<I", edited, data.index(b"avih") + 8 + 16, count)  # dwTotalFrames
    struct.pack_into("<I", edited, data.index(b"vids") + 32, count)  # dwLength of the stream
    return bytes(edited)


def noise_in_packet(data: bytes, index: int, part: float = 0.5, spared: int = 0) -> bytes:
    """Replace the tail of one video packet with noise.

    Args:
        data: a file whose container stores each packet contiguously (MP4, MKV).
        index: number of the packet in decode order.
        part: share of the packet that is kept.
        spared: bytes at its end that are kept too, for a NAL unit that follows the picture.
    """
    with av.open(io.BytesIO(data)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    position, size = packets[index]
    kept = int(size * part)
    end = size - spared
    noise = np.random.default_rng(index).integers(0, 256, end - kept, np.uint8).tobytes()
    return data[: position + kept] + noise + data[position + end :]


def _pes_headers(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield for each picture of a transport stream the offsets of its first transport packet and of its PES header."""
    for start in range(0, len(data), _TS_PACKET):
        pes = data.find(b"\x00\x00\x01\xe0", start, start + _TS_PACKET)
        if data[start + 1] & 0x40 and pes >= 0:
            yield start, pes


def cut_behind_picture(data: bytes, pictures: int) -> bytes:
    """Return an MPEG transport stream that ends inside the first transport packet of the next picture.

    The encoder's output differs between processors, so a fraction of the file may end inside any picture.
    """
    return data[: [start for start, _ in _pes_headers(data)][pictures] + _TS_PACKET // 2]


def drop_timestamps(data: bytes, every: int) -> bytes:
    """Remove the times of all but every ``every``-th picture of an MPEG transport stream.

    The PES header keeps its length: the time fields become stuffing, which the standard allows.
    """
    edited = bytearray(data)
    for number, (_, pes) in enumerate(_pes_headers(data)):
        if number % every:
            edited[pes + 7] &= 0x3F  # PTS_DTS_flags: neither
            fields = slice(pes + 9, pes + 9 + data[pes + 8])
            edited[fields] = b"\xff" * (fields.stop - fields.start)
    return bytes(edited)


def retime(data: bytes, like: bytes) -> bytes:
    """Mux the packets of a raw H.264 stream into an MP4 file, with the times of another file of the same structure."""
    target = io.BytesIO()
    with av.open(io.BytesIO(data)) as raw, av.open(io.BytesIO(like)) as timed, av.open(target, "w", "mp4") as muxer:
        stream = muxer.add_stream_from_template(raw.streams.video[0])
        for packet, model in zip(raw.demux(video=0), timed.demux(video=0), strict=True):
            if packet.size:
                packet.time_base, packet.pts, packet.dts = model.time_base, model.pts, model.dts
                packet.duration, packet.stream = model.duration, stream
                muxer.mux(packet)
    return target.getvalue()


def art_first(data: bytes) -> bytes:
    """Move the user data of an MP4 file, which contains the cover picture, before its tracks.

    The movie box must come last in the file, so that no chunk offset changes.
    """
    moov = data.index(b"moov") - 4
    boxes = _boxes(data[moov + 8 :])
    order = sorted(boxes, key=lambda box: (b"mvhd", b"udta").index(box[4:8]) if box[4:8] in (b"mvhd", b"udta") else 2)
    return data[: moov + 8] + b"".join(order)


def without_vui(data: bytes) -> bytes:
    """Remove the VUI from the parameter sets of an H.264 elementary stream, as many cameras do.

    The VUI has the colour, the rate and the limit of reordering. Without it a decoder must guess them.
    """
    units = data.split(b"\x00\x00\x01")
    return b"\x00\x00\x01".join(_cut_sps(unit) if unit and unit[0] & 0x1F == 7 else unit for unit in units)


def _boxes(data: bytes) -> list[bytes]:
    boxes = []
    while data:
        (size,) = struct.unpack_from(">I", data)
        boxes.append(data[:size])
        data = data[size:]
    return boxes


def _cut_sps(unit: bytes) -> bytes:
    """Cut a sequence parameter set at vui_parameters_present_flag (ITU-T H.264, 7.3.2.1.1); 4:2:0 Main or below."""
    # a start code of four bytes leaves a zero at the end of the unit before it
    body, zeros = unit.rstrip(b"\x00"), len(unit) - len(unit.rstrip(b"\x00"))
    raw = body[1:].replace(b"\x00\x00\x03", b"\x00\x00")
    bits = "".join(f"{byte:08b}" for byte in raw)
    at = 24
    high_profile = raw[0] in (100, 110, 122, 244)

    def ue() -> int:
        nonlocal at
        zeros = bits.index("1", at) - at
        value = int(bits[at + zeros : at + 2 * zeros + 1], 2) - 1
        at += 2 * zeros + 1
        return value

    ue()  # seq_parameter_set_id
    if high_profile:
        assert ue() == 1, "only 4:2:0"
        ue(), ue()
        at += 1
        assert bits[at] == "0", "no scaling matrix"
        at += 1
    ue()  # log2_max_frame_num_minus4
    order_type = ue()
    assert order_type in (0, 2)
    if order_type == 0:
        ue()
    ue()  # max_num_ref_frames
    at += 1
    ue(), ue()  # size in macroblocks
    at += 1 if bits[at] == "1" else 2  # frame_mbs_only_flag, mb_adaptive_frame_field_flag
    at += 1  # direct_8x8_inference_flag
    at += 1
    if bits[at - 1] == "1":
        for _ in range(4):
            ue()
    shortened = bits[:at] + "0" + "1"
    shortened += "0" * (-len(shortened) % 8)
    payload = int(shortened, 2).to_bytes(len(shortened) // 8, "big")
    assert b"\x00\x00\x03" not in payload and b"\x00\x00\x00" not in payload, "would need emulation prevention"
    return body[:1] + payload + b"\x00" * zeros


def replace_box(data: bytes, path: list[bytes], payload: bytes) -> bytes:
    """Replace the payload of a box of an MP4 file. Its movie box must come last, so that no offset changes."""
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        if data[at + 4 : at + 8] == path[0]:
            inside = data[at + 8 : at + size]
            new = replace_box(inside, path[1:], payload) if path[1:] else payload
            return data[:at] + struct.pack(">I", 8 + len(new)) + path[0] + new + data[at + size :]
        at += size
    raise KeyError(path[0])
