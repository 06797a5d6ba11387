"""Facts from the headers of packets, without decoding: disposable, shown, and random access pictures.

Each codec has a scanner, which returns a :class:`PacketInfo` for each packet. A scanner must never claim more than the
headers prove: a picture wrongly called disposable makes others wrong, but one not called so only costs time. Packets of
codecs without a scanner are all decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from telecine.bitstream.scanner import Leading, PacketInfo, PictureFormat, RandomAccess, Scanner

__all__ = [
    "CONTAINER_DISPOSABLE_CODECS", "PICTURE_FORMAT_CODECS", "REORDERING_CODECS", "Leading", "PacketInfo",
    "PictureFormat", "RandomAccess", "Scanner", "can_contain_fields", "scanner_for",
]  # fmt: skip

_LEGACY = "flv1 h263 msmpeg4v1 msmpeg4v2 msmpeg4v3 svq1 theora vp6 vp6f vp7 wmv1 wmv2".split()
_SCANNERS: dict[str, str] = {
    "h264": "h264:H264Scanner",
    "hevc": "hevc:HevcScanner",
    "av1": "av1:Av1Scanner",
    "vp8": "vpx:Vp8Scanner",
    "vp9": "vpx:Vp9Scanner",
    "mpeg1video": "mpeg:Mpeg2Scanner",
    "mpeg2video": "mpeg:Mpeg2Scanner",
    "mpeg4": "mpeg:Mpeg4Scanner",
    "vc1": "mpeg:Vc1Scanner",
    "wmv3": "mpeg:Vc1Scanner",
    **dict.fromkeys(_LEGACY, "legacy:LegacyScanner"),
}
CONTAINER_DISPOSABLE_CODECS = frozenset({"vp8", *_LEGACY})
"""Codecs whose scanner cannot see references, so that the container's disposable flag counts."""

REORDERING_CODECS = frozenset("h264 hevc vvc mpeg1video mpeg2video mpeg4 vc1 wmv3 cavs dirac rv30 rv40 svq3".split())
"""Codecs in which display order can differ from decode order."""

PICTURE_FORMAT_CODECS = frozenset({"h264", "vp9"})
"""Codecs whose scanner sets :attr:`Scanner.picture`, so that FFmpeg need not decode a picture to learn its format."""


def scanner_for(codec: str, extradata: bytes) -> Scanner | None:
    """Return a new scanner for a stream; None if there is none for its codec.

    Args:
        codec: FFmpeg's name of it: "h264".
        extradata: the stream's codec private data; may be empty.
    """
    if codec not in _SCANNERS:
        return None
    module, name = _SCANNERS[codec].split(":")
    make: Callable[..., Scanner] = getattr(import_module(f"{__name__}.{module}"), name)
    return make(codec, extradata) if module == "legacy" else make(extradata)


def can_contain_fields(codec: str, sequence_header: bytes) -> bool:
    """Return True if a sequence may contain pictures of two fields; False if its header cannot be read.

    Args:
        codec: FFmpeg's name of it; the answer is False for others than H.264, HEVC and VC-1.
        sequence_header: a sequence parameter set without its start code, or VC-1's sequence header with it.
    """
    module = {"h264": "h264", "hevc": "hevc", "vc1": "mpeg"}.get(codec)
    if module is None:
        return False
    answer: bool = import_module(f"{__name__}.{module}").can_contain_fields(sequence_header)
    return answer
