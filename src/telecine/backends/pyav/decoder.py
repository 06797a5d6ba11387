"""FFmpeg's decoder of one video stream, and the packets of one decode pass through it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from telecine.backends.base import DecodeRequest
from telecine.bitstream.h264 import FrameNumGapDetector
from telecine.container.demuxer import coded_max_pixels

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame

__all__ = ["DecodePass", "Decoder"]

_DECODER_OPTIONS = {
    # damage inside an HEVC picture mostly decodes to something, and nothing tells; where the stream carries hashes of
    # its pictures, compare them
    "hevc": {"err_detect": "crccheck+explode"},
    # otherwise what is missing of a damaged picture is shown as it was left by an earlier one
    "mjpeg": {"err_detect": "explode"},
    # where the header does not say how far pictures are reordered, FFmpeg guesses, and silently drops the first B
    # pictures that prove it wrong; "strict" lets it wait for as many pictures as the level allows
    "h264": {"strict": "strict"},
}


class Decoder:
    """Opens FFmpeg's decoder for a request, and reuses it. Not thread-safe."""

    def __init__(self, request: DecodeRequest) -> None:
        self._request = request
        self._context: VideoCodecContext | None = None
        self._threads = 0

    def restart(self, threads: int) -> VideoCodecContext:
        """Return a decoder in its first state, with this number of frame threads.

        A decoder that was flushed still knows the parameter sets it has met; :meth:`discard` makes it forget them.
        """
        if self._context is not None and self._threads == threads:
            self._context.flush_buffers()
            return self._context
        self.discard()
        import av

        template: Any = self._request.demuxer.stream.codec_context
        context: Any = av.CodecContext.create(template.codec, "r")
        context.extradata = template.extradata
        context.width, context.height = template.width, template.height
        context.codec_tag = template.codec_tag
        context.bits_per_coded_sample = template.bits_per_coded_sample
        own = _DECODER_OPTIONS.get(self._request.index.codec, {})
        context.options = own | {"max_pixels": coded_max_pixels(self._request.max_pixels)}
        context.thread_type = "FRAME"
        context.thread_count = threads
        self._context, self._threads = context, threads
        return self._context

    def discard(self) -> None:
        """Free the decoder. The next one knows the parameter sets of the header only.

        A decoder that is busy must not be dropped: PyAV waits for its threads then, and holds Python's lock, for which
        one of them may wait that has something to log. Flushing ends its work first.
        """
        if self._context is not None:
            self._context.flush_buffers()
        self._context = None


class DecodePass:
    """Feeds packets to a decoder that was restarted, and notes what is damaged."""

    def __init__(self, request: DecodeRequest, context: VideoCodecContext) -> None:
        self._index, self._context = request.index, context
        self._numbers = FrameNumGapDetector(bytes(context.extradata or b"")) if self._index.codec == "h264" else None
        self.seen: set[int] = set()
        """Ordinals of the packets whose picture came out."""
        self.damaged: set[int] = set()
        """Ordinals of the packets that are corrupt, or whose picture is."""
        self.gaps: set[int] = set()
        """Ordinals of the packets before which others are missing, according to the bitstream."""

    def feed(self, ordinal: int, packet: Packet[Any]) -> list[VideoFrame]:
        """Feed a packet and return the undamaged pictures that come out. Their ``pts`` is their packet's ordinal."""
        import av

        # a picture carries the pts of its packet: with the ordinal in it, the times of the container cannot mislead
        packet.pts = ordinal
        picture = ordinal - int(self._index.second_field[ordinal])
        if self._index.corrupt[ordinal]:  # cut off, or a gap in a transport stream
            self.damaged.add(picture)
        if self._numbers is not None:
            if ordinal in self._index.new_extradata:
                self._numbers.update_extradata(bytes(self._index.new_extradata[ordinal]))
            if self._numbers.has_gap_before(memoryview(packet)):
                self.gaps.add(ordinal)
        try:
            return self._note(self._context.decode(packet))
        except av.error.FFmpegError:
            self.damaged.add(picture)
            return []

    def drain(self) -> list[VideoFrame]:
        """Return the undamaged pictures that the decoder still holds."""
        import av

        try:
            return self._note(self._context.decode(None))
        except av.error.FFmpegError:
            return []  # what did not come out is missing from `seen`

    def _note(self, pictures: list[VideoFrame]) -> list[VideoFrame]:
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
