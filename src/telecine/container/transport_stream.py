"""MPEG transport streams (ISO/IEC 13818-1): the packet in which a file ends."""

from __future__ import annotations

__all__ = ["ends_inside_payload"]

_SYNC = 0x47
_PACKET_SIZES = (188, 192, 204)
"""Bytes of a transport packet: plain, with a time in front (M2TS), with error correction behind."""
_NUM_CHECKED = 5
"""Transport packets whose sync bytes must be where they are expected."""
_HEADER_BYTES, _PAYLOAD_END = 3, 188
"""Bytes of a transport packet from its sync byte up to the end of the PID, and of the payload."""


def ends_inside_payload(data: memoryview, pid: int) -> bool:
    """Return True if the file ends inside a transport packet that continues a picture of the stream ``pid``.

    FFmpeg drops such a packet without a sign, so the last picture lacks its end. A file that ends between two transport
    packets does not show if one is missing.
    """
    for size in _PACKET_SIZES:
        for rest in range(_HEADER_BYTES, min(_PAYLOAD_END, len(data))):
            start = len(data) - rest
            checked = [start - i * size for i in range(_NUM_CHECKED + 1)]
            if checked[-1] >= 0 and all(data[at] == _SYNC for at in checked):
                starts_picture = bool(data[start + 1] & 0x40)  # payload_unit_start_indicator
                found = (data[start + 1] & 0x1F) << 8 | data[start + 2]
                return found == pid and not starts_picture
    return False
