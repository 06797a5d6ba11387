"""What the bytes of a packet say about it, without decoding: can it be skipped, can decoding start at it, is it shown.

One scanner a codec, in a table. A scanner looks only at headers, and answers with :class:`PacketInfo`. It must never
claim more than the header proves: a packet wrongly called unreferenced would make a wrong picture, whereas one not
called so merely costs time. Codecs that are not in the table are decoded without skipping.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from importlib import import_module
from typing import NamedTuple, Protocol, runtime_checkable

__all__ = [
    "DESCRIBED",
    "REORDERED",
    "UNTOLD",
    "Leading",
    "PacketInfo",
    "PictureFormat",
    "RandomAccess",
    "Renewable",
    "Scanner",
    "allows_fields",
    "scanner_for",
]  # fmt: skip


class RandomAccess(IntEnum):
    """Whether decoding can start at a packet."""

    NONE = 0
    OPEN = 1
    """Yes, but pictures that follow in decoding order and precede it in presentation may need the one before."""
    CLOSED = 2
    """Yes, and nothing after it refers to anything before it; a decoder needs no reset in front of it."""


class Leading(IntEnum):
    """How a picture relates to the random access point in front of it in decoding order."""

    UNKNOWN = 0
    """The bitstream does not say: decided from presentation times."""
    NO = 1
    """It is decodable when decoding starts at that point."""
    SKIPPED = 2
    """It is not, and a decoder that starts there passes over it (HEVC's RASL pictures)."""
    NEVER = 3
    """It is never decodable: the stream was cut in front of its random access point."""


class PacketInfo(NamedTuple):
    """What one packet's headers say."""

    shown: bool = True
    """Whether the packet brings a picture of its own to show. A hidden frame or a second field does not."""
    unreferenced: int = -1
    """The temporal id if no picture of the same or a lower one refers to it, else -1."""
    random_access: RandomAccess = RandomAccess.NONE
    leading: Leading = Leading.UNKNOWN
    display_order: tuple[int, int] | None = None
    """(coded sequence, place in presentation order within it), when asked for and known."""
    fragile: bool = False
    """Whether the packet can be skipped only if the next one does not build on the decoder's state (VP9)."""
    independent: bool = True
    """Whether the packet ignores the state that the packet before it left in the decoder (VP9)."""
    temporal_id: int = 0
    second_field: bool = False
    """Whether the packet is the other half of the picture that the packet before it began (H.264)."""
    packed: bool = False
    """Whether the packet holds two pictures, one of which a later packet stands for, so that its times belong to
    another picture (MPEG-4 part 2)."""
    plain: bool = True
    """Whether the packet holds one frame, which is shown (VP8, VP9, AV1); others hold hidden frames, or show one."""


class PictureFormat(NamedTuple):
    """How a stream's pictures are stored, in FFmpeg's terms."""

    pixel_format: str
    """"yuv420p10le"."""
    bit_depth: int
    color_space: int
    """Matrix coefficients, a code point of ITU-T H.273; 2 is unspecified. Those below likewise."""
    color_range: int
    """FFmpeg's AVCOL_RANGE: 0 unspecified, 1 limited, 2 full."""
    color_primaries: int
    color_trc: int
    monochrome: bool = False
    """Whether there is no chroma in the stream, where FFmpeg's decoder makes up neutral one."""


class Scanner(Protocol):
    """Reads the headers of one stream's packets, in decoding order. Not thread-safe."""

    picture: PictureFormat | None
    """From the latest header that tells, where the scanner reads it (:data:`DESCRIBED`)."""

    def scan(self, packet: bytes | memoryview, is_key: bool, want_order: bool) -> PacketInfo:
        """Say what ``packet`` is.

        Args:
            packet: its bytes.
            is_key: whether the container flags it as a key frame.
            want_order: whether :attr:`PacketInfo.display_order` is needed, because the container's times are missing.
        """
        ...


@runtime_checkable
class Renewable(Protocol):
    """A scanner of a codec whose headers may change in mid-stream."""

    def update_extradata(self, extradata: bytes) -> None:
        """Take other codec private data, which the container brings with the next packet."""
        ...


_OLDER = "flv1 h263 msmpeg4v1 msmpeg4v2 msmpeg4v3 svq1 theora vp6 vp6f vp7 wmv1 wmv2".split()
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
    **dict.fromkeys(_OLDER, "legacy:OlderScanner"),
}
UNTOLD = frozenset({"vp8", *_OLDER})
"""Codecs whose scanner does not see references: for these the container's own disposable flag counts."""

REORDERED = frozenset("h264 hevc vvc mpeg1video mpeg2video mpeg4 vc1 wmv3 cavs dirac rv30 rv40 svq3".split())
"""Codecs that show pictures in another order than they are decoded, if only some of their streams do."""

DESCRIBED = frozenset({"h264", "vp9"})
"""Codecs whose scanner knows :attr:`Scanner.picture`, so that FFmpeg need not decode a picture to find it out."""


def scanner_for(codec: str, extradata: bytes) -> Scanner | None:
    """The scanner for a codec, by FFmpeg's name of it; None where there is none.

    Args:
        codec: FFmpeg's name of the codec: "h264".
        extradata: the stream's codec private data; may be empty.
    """
    if codec not in _SCANNERS:
        return None
    module, name = _SCANNERS[codec].split(":")
    make: Callable[..., Scanner] = getattr(import_module(f"{__name__}.{module}"), name)
    return make(codec, extradata) if module == "legacy" else make(extradata)


_FIELDS: dict[str, str] = {"h264": "h264", "hevc": "hevc", "vc1": "mpeg"}


def allows_fields(codec: str, header: bytes) -> bool:
    """Whether a sequence may hold pictures of two fields. What cannot be read does not.

    Args:
        codec: FFmpeg's name of it; others than H.264, HEVC and VC-1 have none, or are not looked at.
        header: a sequence parameter set without its start code, or VC-1's sequence header with it.
    """
    if codec not in _FIELDS:
        return False
    module = import_module(f"{__name__}.{_FIELDS[codec]}")
    answer: bool = module.allows_fields(header)
    return answer
