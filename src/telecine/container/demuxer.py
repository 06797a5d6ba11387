"""Opening the bytes of a source with FFmpeg's demuxers, safely, and reading the packets of its video stream.

FFmpeg is given bytes through a reader, never a path or a URL, and may use only the demuxers named here: probing by
content would otherwise pick playlists, ``ffconcat`` or SDP, which open files and sockets named inside the input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from telecine.bitstream import PICTURE_FORMAT_CODECS
from telecine.container.avio import SourceFile
from telecine.container.display_matrix import has_movie
from telecine.deadline import Deadline
from telecine.errors import NoVideoError, SourceError
from telecine.limits import Limits
from telecine.source.source import Source

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.codeccontext import VideoCodecContext
    from av.video.stream import VideoStream

__all__ = ["ALLOWED_FORMATS", "Demuxer"]

ALLOWED_FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2",
    "matroska,webm",
    "avi",
    "mpegts",
    "mpeg",
    "mpegvideo",
    "m4v",
    "h264",
    "hevc",
    "obu",
    "ivf",
    "vc1",
    "flv",
    "asf",
    "ogg",
    "mxf",
    "nut",
    "dv",
    "gif",
    "apng",
    "mjpeg",
    "yuv4mpegpipe",
    # sound only: opened so that the message can say what the file is
    "mp3",
    "aac",
    "wav",
    "flac",
)
"""FFmpeg's names of the demuxers that may open a source. None of them opens anything else."""

_OPTIONS = {
    "format_whitelist": ",".join(ALLOWED_FORMATS),
    "protocol_whitelist": "none",
    # FFmpeg takes a time that begins anew, in joined transport streams, for one that ran over after 26 hours; the index
    # goes on from the picture before in both cases
    "correct_ts_overflow": "0",
}
_NO_PARSERS = {"fflags": "+noparse"}
_NO_DECODERS = {"codec_whitelist": "none"}
_FIRST_LOOK = {**_NO_PARSERS, **_NO_DECODERS, "probesize": "32"}
"""For the names of the codecs alone: nothing is parsed and nothing decoded."""
_NOT_VIDEO = ("attached_pic", "timed_thumbnails", "still_image")
_READ_BYTES = 1 << 16

_MAX_INT = 2**31 - 1


def _coded_max_pixels(max_pixels: int) -> str:
    """Return FFmpeg's ``max_pixels``: it counts whole blocks, and in MPEG-4 a wide margin."""
    return str(min(2 * max_pixels + 512 * 512, _MAX_INT))


class Demuxer:
    """The packets of a source's video stream. Not thread-safe: one per decode. A context manager.

    Args:
        source: the encoded video; it must outlive this object.
        deadline: checked while reading.
        max_pixels: width times height of a picture that FFmpeg may decode to complete the facts of the header.

    Raises:
        SourceError: the bytes are no media file that is read here.
        NoVideoError: there is no video stream with a decoder.
    """

    container: InputContainer
    stream: VideoStream

    def __init__(self, source: Source, deadline: Deadline, max_pixels: int = Limits.max_pixels) -> None:
        self.name = source.name
        self._max_pixels = max_pixels
        self._source = source
        self._deadline = deadline
        self.can_seek = True
        """False once a seek has led to an unknown packet; then the file is read from its start instead."""
        self._open()

    @property
    def size(self) -> int:
        """Bytes of the source."""
        return len(self._source.data)

    @property
    def extradata(self) -> bytes:
        """Codec private data of the stream, as the file's own header has it; may be empty."""
        return bytes(self.stream.codec_context.extradata or b"")

    @property
    def format(self) -> str:
        """FFmpeg's name of the container: "mpegts"."""
        return str(self.container.format.name)

    def rewind(self) -> None:
        """Stand at the start of the file: opened anew, since not every demuxer finds back to its start by seeking."""
        self.check_reading()
        self.close()
        self._open()

    def _open(self) -> None:
        import av

        self.container = self._open_container()
        try:
            # PyAV has FFmpeg make up missing times, which mixes guesses with facts; the index makes its own and says so
            self.container.flags &= ~av.container.Flags.gen_pts.value  # type: ignore[operator]
            self.stream = self._choose(self.container)
        except BaseException:
            self.close()
            raise
        for other in self.container.streams:
            if other.index != self.stream.index:
                other.discard = av.stream.Discard.all
        self.position = 0
        """Ordinal of the packet that comes next; it is only counted, so a seek must set it."""

    def _open_container(self) -> InputContainer:
        with self._attempt(_FIRST_LOOK) as look:
            codecs = {_canonical_name(stream) for stream in look.streams.video}
        options = {"max_pixels": _coded_max_pixels(self._max_pixels)}
        if "av1" in codecs:
            # FFmpeg's AV1 parser takes 1500 bytes of memory for an OBU, which can be two bytes long: 2 MB of those
            # would become 3 GB before a packet is seen. All containers of AV1 keep its temporal units whole, so none
            # needs it.
            options |= _NO_PARSERS
        elif codecs and codecs <= PICTURE_FORMAT_CODECS:
            # it would decode a picture, on one thread, to learn what the packets' headers say
            options |= _NO_DECODERS
        return self._attempt(options)

    def _attempt(self, options: dict[str, str], **more: Any) -> InputContainer:
        import av

        self._file = SourceFile(self._source.data, self._deadline)
        try:
            container: InputContainer = av.open(
                self._file, "r", options=_OPTIONS | options, buffer_size=_READ_BYTES, **more
            )
        except (av.error.FFmpegError, UnicodeDecodeError) as error:
            self.check_reading()
            if isinstance(error, UnicodeDecodeError) and not more:
                # a title in some old encoding; PyAV 19 never fails on it, and has not the option any more
                return self._attempt(options, metadata_errors="replace")
            raise _refusal(self._source, error) from None
        self.check_reading()
        return container

    def _choose(self, container: InputContainer) -> VideoStream:
        """The stream a player would show: FFmpeg's best one, but never a picture that only decorates."""
        videos = [s for s in container.streams.video if not _only_decorates(s)]
        if not videos:
            kinds = [f"{s.type} {_codec_name(s)}" for s in container.streams]
            raise NoVideoError(f"{self.name}: no video stream (streams: {', '.join(kinds) or 'none'})")
        best: Any = container.streams.best("video")
        chosen = next((s for s in videos if best is not None and s.index == best.index), videos[0])
        if chosen.codec_context is None:
            raise NoVideoError(
                f"{self.name}: this build of FFmpeg has no decoder for its video ({_codec_name(chosen)})"
            )
        return chosen

    def packets(self) -> Iterator[Packet[VideoStream]]:
        """Yield the stream's packets in file order, from where the demuxer stands."""
        import av

        packets = self.container.demux(self.stream)
        while True:
            try:
                packet = next(packets, None)
            except IndexError:
                # PyAV ends with an empty packet for each stream, and knows nothing of streams that appeared meanwhile
                packet = None
            except av.error.FFmpegError:
                self.check_reading()
                raise
            if packet is None:
                self.check_reading()
                return
            if packet.size:
                self.position += 1
                yield packet

    def check_reading(self) -> None:
        """Raise the exception that ended a read, if one did, or raise if the deadline has passed."""
        self._file.raise_error()
        self._deadline.check("reading the packets")

    def seek(self, ticks: int, position: int = 0) -> None:
        """Move to a key frame at or before a time.

        Args:
            ticks: decoding time in the stream's time base.
            position: ordinal of the packet there, if it is known.
        """
        self.container.seek(ticks, stream=self.stream)
        self.position = position

    def new_decoder(
        self, max_pixels: int, threads: int = 1, options: Mapping[str, str] = MappingProxyType({})
    ) -> VideoCodecContext:
        """Create a decoder for the stream from the parameters that the container gives; it opens on the first packet.

        Args:
            max_pixels: largest width times height of a picture.
            threads: frame threads.
            options: FFmpeg's options of the decoder.
        """
        import av

        template: Any = self.stream.codec_context
        context: Any = av.CodecContext.create(template.codec, "r")
        context.extradata = template.extradata
        context.width, context.height = template.width, template.height
        context.codec_tag = template.codec_tag
        context.bits_per_coded_sample = template.bits_per_coded_sample
        context.options = {**options, "max_pixels": _coded_max_pixels(max_pixels)}
        context.thread_type = "FRAME"
        context.thread_count = threads
        decoder: VideoCodecContext = context
        return decoder

    def close(self) -> None:
        """Close the container. May be called twice."""
        self.container.close()

    def __enter__(self) -> Demuxer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _only_decorates(stream: VideoStream) -> bool:
    from av.stream import Disposition

    return any(int(stream.disposition) & int(getattr(Disposition, name)) for name in _NOT_VIDEO)


def _canonical_name(stream: Any) -> str | None:
    context = getattr(stream, "codec_context", None)
    return context.codec.canonical_name if context is not None else None


def _codec_name(stream: Any) -> str:
    context = getattr(stream, "codec_context", None)
    return str(context.name) if context is not None else "of an unknown codec"


def _refusal(source: Source, error: Exception) -> SourceError:
    # FFmpeg's log lines would say more, but they quote the input
    detail = getattr(error, "strerror", None) or type(error).__name__
    if bytes(source.data[4:8]) == b"ftyp" and not has_movie(source.data):
        return SourceError(f"{source.name}: incomplete MP4 file: its index (moov) is missing, so the end was cut off")
    return SourceError(f"{source.name}: not a video file that telecine reads, or damaged at its start ({detail})")
