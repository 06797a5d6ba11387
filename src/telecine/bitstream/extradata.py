"""Parameter sets outside of the packets: ``avcC`` and ``hvcC`` (ISO/IEC 14496-15), and Annex B extradata."""

from __future__ import annotations

from telecine.bitstream.nal import PARAMETER_SET_TYPES, join_length_prefixed, nal_length_size, split_annex_b

__all__ = ["extradata_units", "prepend_parameter_sets"]


def extradata_units(codec: str, extradata: bytes) -> list[bytes]:
    """Return the NAL units of extradata, as far as they are whole.

    Args:
        codec: "h264" or "hevc".
        extradata: ``avcC`` (5.3.3.1), ``hvcC`` (8.3.3.1) or Annex B.
    """
    if not nal_length_size(codec, extradata):
        return list(split_annex_b(extradata))
    units: list[bytes] = []
    if codec == "h264":
        at = 5
        for mask in (31, 255):
            count = extradata[at] & mask if at < len(extradata) else 0
            at = _read_units(extradata, at + 1, count, units)
        return units
    at = 23
    for _ in range(extradata[22] if len(extradata) > 22 else 0):
        count = int.from_bytes(extradata[at + 1 : at + 3], "big")
        at = _read_units(extradata, at + 3, count, units)
    return units


def _read_units(record: bytes, at: int, count: int, units: list[bytes]) -> int:
    """Append ``count`` units with lengths of two bytes to ``units``, and return where they end."""
    for _ in range(count):
        length = int.from_bytes(record[at : at + 2], "big")
        if at + 2 + length > len(record):
            return len(record)
        if length:
            units.append(record[at + 2 : at + 2 + length])
        at += 2 + length
    return at


def prepend_parameter_sets(codec: str, extradata: bytes, new_extradata: bytes, packet: bytes) -> bytes | None:
    """Return a packet with the parameter sets of new extradata prepended, for decoders that accept extradata only once.

    Args:
        codec: FFmpeg's name of it.
        extradata: that of the file, which says how its packets are framed.
        new_extradata: that which the container attached to this packet.
        packet: its bytes.

    Returns:
        None if they do not fit together: another codec, Annex B, or lengths of another size.
    """
    if codec not in PARAMETER_SET_TYPES:
        return None
    size = nal_length_size(codec, extradata)
    if not size or nal_length_size(codec, new_extradata) != size:
        return None
    units = extradata_units(codec, new_extradata)
    if not units or max(map(len, units)) >= 1 << 8 * size:
        return None
    return join_length_prefixed(units, size) + packet
