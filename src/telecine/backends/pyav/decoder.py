"""FFmpeg's decoder of one video stream, and the packets of one decode pass through it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from telecine.backends.base import DecodeRequest
from telecine.backends.pyav.hevc_units import HevcUnitFilter
from telecine.bitstream.av1 import without_unneeded_obus
from telecine.bitstream.h264 import FrameNumGapDetector, without_broken_sets
from telecine.bitstream.nal import has_zeroed_slice, nal_length_size
from telecine.plan.packet_reader import with_data

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame

__all__ = ["DecodePass", "Decoder"]

_DECODER_OPTIONS = {
    # most damage in an HEVC picture is decoded without an error: compare picture hashes if the stream has them
    "hevc": {"err_detect": "crccheck+explode"},
    # otherwise the missing rest of a damaged picture keeps the pixels of an earlier one
    "mjpeg": {"err_detect": "explode"},
    # if the SPS does not limit reordering, FFmpeg guesses, and silently drops the first B-pictures that prove it wrong;
    # "strict" makes it wait for as many pictures as the level allows
    "h264": {"strict": "strict"},
    # otherwise blocks with too many coefficients keep the pixels of the picture before
    **{codec: {"err_detect": "bitstream"} for codec in ("msmpeg4v1", "msmpeg4v2", "msmpeg4v3", "wmv1", "wmv2")},
}


class Decoder:
    """Opens FFmpeg's decoder for a request and reuses it. Not thread-safe."""

    def __init__(self, request: DecodeRequest) -> None:
        self._request = request
        self._context: VideoCodecContext | None = None
        self._threads = 0
        self.units: HevcUnitFilter | None = None
        """Filter of the packets given to the decoder, if its codec needs one."""

    def restart(self, threads: int) -> VideoCodecContext:
        """Return a decoder in its first state, with this number of frame threads."""
        # a flushed decoder keeps the parameter sets of earlier packets; use `discard` first to drop them
        if self._context is not None and self._threads == threads:
            self._context.flush_buffers()
            return self._context
        self.discard()
        request = self._request
        options = _DECODER_OPTIONS.get(request.index.codec, {})
        self._context = request.demuxer.new_decoder(request.max_pixels, threads, options)
        if request.index.codec == "hevc":
            self.units = HevcUnitFilter(request.demuxer.extradata)
            self._context.extradata = self.units.extradata
        elif request.index.codec == "h264":
            self._context.extradata = without_broken_sets(request.demuxer.extradata)
        self._threads = threads
        return self._context

    def discard(self) -> None:
        """Free the decoder. The next one starts with the container's extradata only."""
        # it is flushed first, which ends the work of its threads: PyAV frees a decoder while it holds the GIL, and
        # waits for threads that may need the GIL to log. Call this in the thread that uses the decoder
        if self._context is not None:
            self._context.flush_buffers()
        self._context = None


class DecodePass:
    """Feeds the packets of one decode pass to a restarted decoder, and records which are damaged."""

    def __init__(self, request: DecodeRequest, decoder: Decoder, threads: int) -> None:
        self._index, self._context = request.index, (context := decoder.restart(threads))
        self._units = decoder.units
        codec, extradata = self._index.codec, bytes(context.extradata or b"")
        self._length_size = nal_length_size(codec, extradata)
        self._numbers = FrameNumGapDetector(extradata) if codec == "h264" else None
        self.seen: set[int] = set()
        """Ordinals of the packets whose picture was returned."""
        self.damaged: set[int] = set()
        """Ordinals of the packets that are corrupt, or whose picture is."""
        self.gaps: set[int] = set()
        """Ordinals of the packets before which others are missing, according to the bitstream."""

    def feed(self, ordinal: int, packet: Packet[Any]) -> list[VideoFrame]:
        """Feed a packet. Returns the undamaged pictures decoded so far, with their packet's ordinal as ``pts``."""
        import av

        # a picture gets the pts of its packet: the ordinal identifies it even if the container's times are wrong
        packet.pts = ordinal
        picture = ordinal - int(self._index.second_field[ordinal])
        has_zeros = has_zeroed_slice(self._index.codec, memoryview(packet), self._length_size)
        if self._index.corrupt[ordinal] or has_zeros:  # cut off, or a gap in a transport stream
            self.damaged.add(picture)
        if self._numbers is not None:
            if ordinal in self._index.new_extradata:
                self._numbers.update_extradata(bytes(self._index.new_extradata[ordinal]))
            if self._numbers.has_gap_before(memoryview(packet)):
                self.gaps.add(ordinal)
        if self._units is not None:
            packet, is_broken = self._units.filter(packet)
            if is_broken:
                self.damaged.add(picture)
        elif self._index.codec == "av1" and (needed := without_unneeded_obus(memoryview(packet))) is not None:
            # decoders refuse a picture that comes with broken metadata
            packet = with_data(packet, needed)
        if not packet.size:  # nothing but units that no picture needs; an empty packet would end the decoding
            if self._index.has_picture[ordinal]:
                self.damaged.add(picture)
            return []
        try:
            return self._record(self._context.decode(packet))
        except av.error.FFmpegError:
            self.damaged.add(picture)
            return []

    def drain(self) -> list[VideoFrame]:
        """Return the undamaged pictures that the decoder still holds."""
        import av

        try:
            return self._record(self._context.decode(None))
        except av.error.FFmpegError:
            return []  # pictures that were not returned are missing in `seen`

    def _record(self, pictures: list[VideoFrame]) -> list[VideoFrame]:
        undamaged = []
        for picture in pictures:
            ordinal = picture.pts
            if ordinal is None or ordinal in self.seen:
                continue
            self.seen.add(ordinal)
            if picture.is_corrupt:
                self.damaged.add(ordinal)
            else:
                undamaged.append(picture)
        return undamaged
