"""Older codecs, in which a picture builds on the one before: which pictures are intra pictures, from their first bits.

The flags of containers are not enough. FFmpeg's parser of H.263 calls every packet a key frame, and so does its demuxer
of AVI where that has no index.
"""

from __future__ import annotations

from collections.abc import Callable

from telecine.bitstream import Leading, PacketInfo, RandomAccess
from telecine.bitstream.bit_reader import BitReader, Truncated

__all__ = ["OlderScanner"]

_HEADER_BYTES = 16
_STARTS = PacketInfo(random_access=RandomAccess.CLOSED, leading=Leading.NO)
_FOLLOWS = PacketInfo(leading=Leading.NO)


class OlderScanner:
    """Scans codecs that the container says enough of but for where decoding can start.

    Args:
        codec: FFmpeg's name of it.
        extradata: is not looked at.
    """

    picture = None

    def __init__(self, codec: str, extradata: bytes) -> None:
        self._is_intra = _TESTS[codec]
        self._begun = False

    def scan(self, packet: bytes | memoryview, is_key: bool, want_order: bool) -> PacketInfo:
        """See :meth:`telecine.bitstream.Scanner.scan`."""
        starts = not self._begun  # there is nothing to go back to
        self._begun = True
        if is_key and not starts:
            try:
                starts = self._is_intra(BitReader(bytes(packet[:_HEADER_BYTES])))
            except Truncated:
                pass
        return _STARTS if starts else _FOLLOWS


def _h263(bits: BitReader) -> bool:
    """ITU-T H.263, 5.1."""
    bits.skip(22 + 8)  # picture start code, temporal reference
    if bits.u(2) != 2:
        return False
    bits.skip(3)
    if bits.u(3) != 7:  # source format: 7 is extended PTYPE
        return not bits.flag()
    if bits.u(3) == 1:  # UFEP: OPPTYPE follows
        bits.skip(18)
    return bits.u(3) == 0


def _flv1(bits: BitReader) -> bool:
    """Sorenson's H.263, as in the FLV specification, annex E.4.3.2: start code, version, temporal reference, size."""
    bits.skip(17 + 5 + 8)
    bits.skip({0: 16, 1: 32}.get(bits.u(3), 0))
    return bits.u(2) == 0


def _behind(skipped: int, width: int) -> Callable[[BitReader], bool]:
    """The type of the picture stands behind so many bits, and 0 means intra."""

    def is_intra(bits: BitReader) -> bool:
        bits.skip(skipped)
        return bits.u(width) == 0

    return is_intra


_TESTS: dict[str, Callable[[BitReader], bool]] = {
    "h263": _h263,
    "flv1": _flv1,
    "msmpeg4v1": _behind(32 + 5, 2),
    "msmpeg4v2": _behind(0, 2),
    "msmpeg4v3": _behind(0, 2),
    "wmv1": _behind(0, 2),
    "wmv2": _behind(0, 1),
    "svq1": _behind(22 + 8, 2),
    # a header packet begins with 1 (Theora specification, 6.1 and 7.1)
    "theora": _behind(0, 2),
    "vp6": _behind(0, 1),
    "vp6f": _behind(0, 1),
    "vp7": _behind(7, 1),  # the lowest bit of the first byte
}
"""By FFmpeg's name of the codec. What has no public specification is as in FFmpeg's decoder of that name."""
