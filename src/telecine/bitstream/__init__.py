"""Facts from the headers of packets, without decoding: disposable, shown, and random access pictures.

Each codec has a scanner, which returns a :class:`PacketInfo` for each packet. A scanner must never claim more than the
headers prove: a picture wrongly called disposable makes others wrong, but one not called so only costs time. Packets of
codecs without a scanner are all decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from importlib import import_module
from typing import ClassVar, NamedTuple

__all__ = [
    "CORRUPT_PICTURE", "LAST_IN_SEQUENCE", "PICTURE_FORMAT_CODECS", "REORDERING_CODECS", "CodedFrame", "Leading",
    "PacketInfo", "PictureFormat", "RandomAccess", "Scanner", "can_contain_fields", "frames_info", "scanner_for",
]  # fmt: skip

_LEGACY = "ffv1 flv1 h263 msmpeg4v1 msmpeg4v2 msmpeg4v3 qtrle svq1 vp6 vp6f vp7 wmv1 wmv2".split()
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
    "theora": "legacy:TheoraScanner",
    **dict.fromkeys(_LEGACY, "legacy:LegacyScanner"),
}
REORDERING_CODECS = frozenset("h264 hevc vvc mpeg1video mpeg2video mpeg4 vc1 wmv3 cavs dirac rv30 rv40 svq3".split())
"""Codecs in which display order can differ from decode order."""

PICTURE_FORMAT_CODECS = frozenset({"h264", "vp9"})
"""Codecs whose scanner sets :attr:`Scanner.picture`, so that FFmpeg need not decode a picture to learn its format."""


class RandomAccess(IntEnum):
    """If and how decoding can start at a packet."""

    NONE = 0
    """Decoding cannot start here."""
    OPEN = 1
    """Decoding can start here; leading pictures may refer to pictures before the point (CRA-like)."""
    CLOSED = 2
    """Decoding can start here; nothing after it refers to anything before it (IDR-like), so no reset is needed."""


class Leading(IntEnum):
    """Relation of a picture to the random access point before it in decode order."""

    UNKNOWN = 0
    """The bitstream does not say; presentation times decide."""
    DECODABLE = 1
    """It is decodable if decoding starts at that point."""
    SKIPPED = 2
    """It is not decodable if decoding starts at that point, and the decoder skips it then (RASL pictures of HEVC)."""
    UNDECODABLE = 3
    """It is never decodable, because the stream was cut before its random access point."""


class PacketInfo(NamedTuple):
    """The facts in the headers of one packet."""

    shown: bool = True
    """True if the packet brings a picture of its own to show; a hidden frame or a second field does not."""
    is_damaged: bool = False
    """True if it was a picture whose headers are destroyed. It counts as shown, but may have been hidden (VP8, VP9)."""
    has_picture: bool = True
    """True if the packet has a coded picture, shown or not; one of headers or messages alone has none."""
    disposable: bool = False
    """True if no picture of the same or a lower temporal sub-layer refers to it."""
    random_access: RandomAccess = RandomAccess.NONE
    leading: Leading = Leading.UNKNOWN
    display_order: tuple[int, int] | None = None
    """(number of the coded video sequence, position in display order within it); None if not requested or unknown."""
    resets_decoder_state: bool = True
    """False if it depends on decoder state, other than pictures, that the packet before it has set (VP9)."""
    temporal_id: int = 0
    """Number of its temporal sub-layer (HEVC)."""
    second_field: bool = False
    """True if the packet is the other field of the picture that the packet before it began (H.264)."""
    has_packed_b_frame: bool = False
    """True if the packet holds two pictures, the second of which is shown at the time of a later packet (MPEG-4)."""
    has_single_shown_frame: bool = True
    """True if the packet holds one frame, which is new and shown, not hidden or repeated (VP8, VP9, AV1)."""


CORRUPT_PICTURE = PacketInfo(resets_decoder_state=False, is_damaged=True)
LAST_IN_SEQUENCE = 1 << 62
"""Position within :attr:`PacketInfo.display_order` of the reference picture that ends a group of B pictures (MPEG)."""


class PictureFormat(NamedTuple):
    """The format in which a stream's pictures are stored, in FFmpeg's terms."""

    pixel_format: str
    """"yuv420p10le"."""
    bit_depth: int
    color_space: int
    """Matrix coefficients, a code point of ITU-T H.273 (:mod:`telecine.bitstream.h273`)."""
    color_range: int
    """FFmpeg's AVColorRange."""
    color_primaries: int
    """A code point of ITU-T H.273."""
    color_trc: int
    """Transfer characteristics, a code point of ITU-T H.273."""
    width: int = 0
    """Pixels after cropping; 0 if unknown."""
    height: int = 0
    monochrome: bool = False
    """True if the stream has no chroma, although FFmpeg's decoder gives neutral chroma."""


class CodedFrame(NamedTuple):
    """The facts in the header of one frame, of which a packet may hold several (VP8, VP9, AV1)."""

    is_shown: bool
    is_key: bool = False
    refreshes_references: bool = True
    shows_existing_frame: bool = False
    resets_decoder_state: bool = True
    picture: PictureFormat | None = None


def frames_info(frames: Sequence[CodedFrame], disposable: bool) -> PacketInfo:
    """Return the facts of a packet from those of its frames."""
    first = frames[0]
    is_single = len(frames) == 1 and first.is_shown
    return PacketInfo(
        shown=any(frame.is_shown for frame in frames),
        disposable=disposable,
        random_access=RandomAccess.CLOSED if is_single and first.is_key else RandomAccess.NONE,
        leading=Leading.DECODABLE,
        resets_decoder_state=first.resets_decoder_state,
        has_single_shown_frame=is_single and not first.shows_existing_frame,
    )


class Scanner:
    """Base of the scanners, which read the headers of one stream's packets in decode order. Not thread-safe."""

    accepts_new_extradata: ClassVar[bool] = False
    """True if the codec can change its extradata in mid-stream, so that there is :meth:`update_extradata`."""
    picture: PictureFormat | None = None
    """Format of the first picture, if the codec is in :data:`telecine.bitstream.PICTURE_FORMAT_CODECS`."""

    @property
    def has_start_codes(self) -> bool:
        """True if a packet had start codes where its container announced lengths (H.264, HEVC)."""
        return False

    has_whole_packets = False
    """Set to True if the container stores packets whole: each then is a picture, or a unit that can be read."""
    interlaced = False
    """True if a header declares that pictures may consist of two fields (MPEG-4 part 2, VC-1)."""
    crops_left = False
    """True if samples on the left of a picture are not shown (H.264, HEVC)."""

    @property
    def has_one_frame_per_packet(self) -> bool:
        """True if the headers exclude packets without a frame of their own: fields, packed frames, hidden frames."""
        return False

    @property
    def has_changed_parameter_sets(self) -> bool:
        """True if a packet changed the parameter sets of the extradata (H.264, HEVC)."""
        return False

    def __init__(self, extradata: bytes) -> None:
        """Read the stream's codec private data, which may be empty."""

    def scan(self, packet: bytes | memoryview, is_key: bool, with_order: bool) -> PacketInfo:
        """Return the facts in the headers of a packet.

        Args:
            packet: its bytes.
            is_key: True if the container flags it as a key frame.
            with_order: True if :attr:`PacketInfo.display_order` is needed, because the container's times are missing or
                wrong.
        """
        raise NotImplementedError

    def update_extradata(self, extradata: bytes) -> None:
        """Take new codec private data, which the container attaches to the next packet."""


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
