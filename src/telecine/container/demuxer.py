"""Opens a source with FFmpeg's demuxers, safely, and reads the packets of its video stream.

FFmpeg reads bytes through callbacks and never gets a path or a URL. It may use only the demuxers listed here: probing
by content could otherwise choose playlists, ``ffconcat`` or SDP, which open files and sockets named inside the input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from telecine.bitstream import PICTURE_FORMAT_CODECS
from telecine.container.avio import SourceFile
from telecine.container.display_matrix import has_moov_box
from telecine.container.mp4_index import find_movie
from telecine.container.mp4_tables import check_tables
from telecine.container.ogg_pages import OggGap, find_ogg_gaps
from telecine.container.other_formats import refused_format
from telecine.container.transport_stream import ends_inside_payload, find_clean_gaps
from telecine.deadline import Deadline
from telecine.errors import NoVideoError, SourceError
from telecine.limits import Limits
from telecine.source.read_ahead import ReadAhead
from telecine.source.source import Source

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.codeccontext import VideoCodecContext
    from av.video.stream import VideoStream

__all__ = ["ALLOWED_FORMATS", "Demuxer", "choose_video", "new_decoder"]

_AUDIO_FORMATS = "mp3 aac wav flac"
"""Formats that are opened so that the error message can name their streams."""
ALLOWED_FORMATS = tuple(
    f"""mov,mp4,m4a,3gp,3g2,mj2 matroska,webm avi mpegts mpeg mpegvideo m4v h264 hevc obu ivf vc1 flv asf ogg mxf nut dv
    gif apng mjpeg dhav yuv4mpegpipe {_AUDIO_FORMATS}""".split()
)
"""FFmpeg's names of the demuxers that may open a source. None of them opens other files or sockets."""

_OPTIONS = {
    "format_whitelist": ",".join(ALLOWED_FORMATS),
    "protocol_whitelist": "none",
    # in joined transport streams, FFmpeg takes a clock that restarts for one that wrapped around after 26 hours; the
    # index handles both cases
    "correct_ts_overflow": "0",
}
_NO_PARSERS, _NO_DECODERS = {"fflags": "+noparse"}, {"codec_whitelist": "none"}
_CODEC_NAMES_ONLY = {**_NO_PARSERS, **_NO_DECODERS, "probesize": "32"}
"""Options to learn only the names of the codecs: nothing is parsed or decoded."""
_BYTE_STREAMS = frozenset("mpegts mpeg mpegvideo m4v h264 hevc vc1 mjpeg".split())
_STILL_DISPOSITIONS = ("attached_pic", "timed_thumbnails", "still_image")
_WHOLE_PACKETS = ("mov", "matroska", "avi", "flv", "ivf", "nut")
"""Formats in which packets are stored whole, at the position that FFmpeg gives or at most 16 bytes behind it."""
_ZEROS = 64
"""Zero bytes behind a packet that ends in zeros which are damage: the next packet begins with something else."""
_READ_BYTES = 1 << 16
_VP8_HEADER = b"OVP80"
"""Start of VP8's header packets in Ogg. FFmpeg returns those of later links in a chain; no decoder needs them."""
_DECODER_PARAMETERS = (
    *("extradata", "width", "height", "codec_tag", "bits_per_coded_sample"),
    # decoders that do not read colours from the bitstream give pictures those of the container
    *("colorspace", "color_range", "color_primaries", "color_trc"),
)
_UNALIGNED = 1
"""AV_CODEC_FLAG_UNALIGNED: without it, decoders round a crop on the left down to a multiple of the alignment."""


def _coded_max_pixels(max_pixels: int) -> str:
    """Return FFmpeg's ``max_pixels``: it counts whole blocks, and in MPEG-4 a wide margin."""
    return str(min(2 * max_pixels + 512 * 512, 2**31 - 1))


class Demuxer:
    """Reads the packets of a source's video stream. Not thread-safe: one per decode. A context manager.

    Args:
        source: the encoded video; it must outlive this object.
        deadline: checked while reading.
        max_pixels: largest width times height of a picture that FFmpeg may decode to learn its format.
        choose: returns the stream to read; by default the video stream that :func:`choose_video` returns.

    Raises:
        SourceError: the bytes are not a media file of an allowed format.
        NoVideoError: there is no video stream, or FFmpeg has no decoder for it.
        LimitError: the tables in the header would take too much memory.
    """

    container: InputContainer
    stream: VideoStream
    movie: memoryview | None = None
    """Payload of the movie box of an MP4 or QuickTime file; None if FFmpeg may find tracks elsewhere too."""

    def __init__(
        self,
        source: Source,
        deadline: Deadline,
        max_pixels: int = Limits.max_pixels,
        choose: Callable[[InputContainer, str], Any] | None = None,
    ) -> None:
        self.name = source.name
        self._max_pixels, self._choose = max_pixels, choose or choose_video
        self._source = source
        self.size = source.size
        """Number of bytes of the source."""
        self._deadline = deadline
        self._bytes_read = [0]
        # no reference to this object
        self._on_read = partial(_record_read, source.read_ahead, deadline, self._bytes_read)
        self.can_seek = True
        """False after a seek has led to an unknown packet; the file is then read from its start instead."""
        if not source.are_tables_checked:
            check_tables(source.data, source.name, deadline)
            source.are_tables_checked = True
        self._open()

    @property
    def extradata(self) -> bytes:
        """Extradata of the stream from the container's header; may be empty."""
        return bytes(self.stream.codec_context.extradata or b"")

    @property
    def format(self) -> str:
        """FFmpeg's name of the container format, "mpegts" for example."""
        return str(self.container.format.name)

    @property
    def stores_whole_packets(self) -> bool:
        """False for byte streams, whose packets FFmpeg's parsers find by their content."""
        return self.format not in _BYTE_STREAMS

    @property
    def ends_inside_picture(self) -> bool:
        """True if the end of the last picture is missing, as far as the container tells."""
        return self.format == "mpegts" and ends_inside_payload(self._source.data, self.stream.id)

    def find_clean_gaps(self, positions: Sequence[int]) -> list[int]:
        """Return which of some consecutive packets, given by their positions, follow a gap between two pictures."""
        self.check_reading()
        return find_clean_gaps(self._source.data, self.stream.id, positions) if min(positions) >= 0 else []

    def find_ogg_gaps(self, positions: Sequence[int]) -> list[OggGap]:
        """Return where pages of an Ogg file are missing, given the positions of the stream's packets."""
        return find_ogg_gaps(self._source.data, positions, self.check_reading)

    def rewind(self) -> None:
        """Move to the start of the file by opening it again, because some demuxers cannot seek to their start."""
        self.check_reading()
        self.close()
        self._open()

    def _open(self) -> None:
        import av

        self.container = self._open_container()
        try:
            # PyAV makes FFmpeg guess missing times; the index rebuilds them itself and reports it
            self.container.flags &= ~av.container.Flags.gen_pts.value  # type: ignore[operator]
            self.stream = self._choose(self.container, self.name)
        except BaseException:
            self.close()
            raise
        for other in self.container.streams:
            if other.index != self.stream.index:
                other.discard = av.stream.Discard.all
        self.position = 0
        """Ordinal of the next packet. It is counted while reading; a seek must set it."""

    def _open_container(self) -> InputContainer:
        self.movie = find_movie(self.read_bytes, self.size)
        if self.movie is not None and (tags := bytes(self.movie)).find(b"av01") < 0:
            # opening a long film takes as long as all else, so the usual codec is tried without asking for names
            guessed = frozenset({"h264"} if b"avc1" in tags else ())
            container = self._open_with(self._options_for(guessed))
            if self._options_for(_video_codecs(container)) == self._options_for(guessed):
                return container
            container.close()
        with self._open_with(_CODEC_NAMES_ONLY) as container:
            codecs = _video_codecs(container)
        return self._open_with(self._options_for(codecs))

    def _options_for(self, codecs: Set[str | None]) -> dict[str, str]:
        """Return the options to open a container with video of these codecs."""
        options = {"max_pixels": _coded_max_pixels(self._max_pixels)}
        if "av1" in codecs:
            # FFmpeg's AV1 parser allocates 1500 bytes for each OBU, which can be two bytes long: 2 MB of those would
            # take 3 GB before the first packet. Containers of AV1 keep temporal units whole, so no parser is needed.
            options |= _NO_PARSERS
        elif codecs and codecs <= PICTURE_FORMAT_CODECS:
            # FFmpeg would decode a picture, on one thread, to learn what the scanner reads from headers
            options |= _NO_DECODERS
        return options

    def _open_with(self, options: dict[str, str], **more: Any) -> InputContainer:
        import av

        self._file = SourceFile(self._source.data, self._deadline, self._on_read)
        try:
            container: InputContainer = av.open(
                self._file, "r", options=_OPTIONS | options, buffer_size=_READ_BYTES, **more
            )
        except (av.error.FFmpegError, UnicodeDecodeError) as error:
            self.check_reading()
            if isinstance(error, UnicodeDecodeError) and not more:
                # metadata in an old encoding; PyAV 19 does not fail on it, and no longer has the option
                return self._open_with(options, metadata_errors="replace")
            # FFmpeg's log has more details, but it quotes the input
            detail = getattr(error, "strerror", None) or type(error).__name__
            reason = f"not a video file that telecine reads, or damaged at its start ({detail})"
            if bytes(self._source.data[4:8]) == b"ftyp" and not has_moov_box(self._source.data):
                reason = "incomplete MP4 file: its index (moov) is missing, so the end was cut off"
            elif (named := refused_format(self._source.data)) is not None:
                reason = named
            raise SourceError(f"{self.name}: {reason}") from None
        self.check_reading()
        return container

    def packets(self) -> Iterator[Packet[VideoStream]]:
        """Yield the stream's packets in file order, from the current position."""
        import av

        packets = self.container.demux(self.stream)
        is_ogg_vp8 = self.format == "ogg" and self.stream.codec_context.name == "vp8"
        while True:
            try:
                packet = next(packets, None)
            except IndexError:
                # PyAV ends with an empty packet per stream, and fails if streams have appeared while reading
                packet = None
            except av.error.FFmpegError:
                self.check_reading()
                raise
            if packet is None:
                self.check_reading()
                return
            if packet.size and not (is_ogg_vp8 and bytes(packet)[: len(_VP8_HEADER)] == _VP8_HEADER):
                self.position += 1
                if packet.pos is not None and self.ends_in_zeros(packet, packet.pos):
                    packet.is_corrupt = True
                yield packet

    def read_bytes(self, offset: int, size: int) -> memoryview:
        """Return bytes of the source, fewer at its end."""
        self._deadline.check("reading the packets", offset, self.size)
        data = self._source.data[offset : offset + size]
        self._on_read(offset, len(data))
        return data

    def prefetch(self, offset: int, size: int) -> None:
        """Start to read bytes of the source that are needed soon."""
        self._source.read_ahead.prefetch(offset, size)

    def read_in_order(self) -> None:
        """Expect that all packets are read from here on."""
        self._source.read_ahead.read_in_order()

    def ends_in_zeros(self, data: Packet[Any] | memoryview, offset: int) -> bool:
        """Return True if a packet at a position of the file ends in zeros that go on behind it.

        A part of the file was then lost. Decoders may not notice, and zeros alone may be padding.
        """
        view = memoryview(data)
        if not len(view) or view[-1] or not self.format.startswith(_WHOLE_PACKETS):
            return False
        return self.read_bytes(offset + len(view), _ZEROS) == bytes(_ZEROS)

    @property
    def bytes_read(self) -> int:
        """Number of bytes that were read since :meth:`take_bytes_read`. Bytes that are read twice count twice."""
        return self._bytes_read[0]

    def take_bytes_read(self) -> int:
        """Return :attr:`bytes_read` and set it to 0."""
        count, self._bytes_read[0] = self._bytes_read[0], 0
        return count

    def check_reading(self) -> None:
        """Raise the exception that ended a read, if one did, or raise if the deadline has passed."""
        self._file.raise_error()
        self._deadline.check("reading the packets")

    def seek(self, ticks: int, position: int = 0) -> None:
        """Move to a key frame at or before a decoding time. ``position`` is the packet's ordinal, if it is known."""
        self.container.seek(ticks, stream=self.stream)
        self.position = position

    def new_decoder(
        self, max_pixels: int, threads: int = 1, options: Mapping[str, str] = MappingProxyType({})
    ) -> VideoCodecContext:
        """Create a decoder for the stream; see :func:`new_decoder`."""
        return new_decoder(self.stream, max_pixels, threads, options)

    def close(self) -> None:
        """Close the container. May be called twice."""
        self.movie = None
        self.container.close()

    def __enter__(self) -> Demuxer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _record_read(read_ahead: ReadAhead, deadline: Deadline, bytes_read: list[int], offset: int, size: int) -> None:
    bytes_read[0] += size
    read_ahead.require(offset, size, deadline)


def new_decoder(
    stream: VideoStream, max_pixels: int, threads: int = 1, options: Mapping[str, str] = MappingProxyType({})
) -> VideoCodecContext:
    """Create a decoder for a stream from the parameters that the container gives; it opens on the first packet.

    Args:
        stream: the stream of an open container.
        max_pixels: largest width times height of a picture.
        threads: frame threads.
        options: FFmpeg's options of the decoder.
    """
    import av

    template: Any = stream.codec_context
    context: Any = av.CodecContext.create(template.codec, "r")
    for name in _DECODER_PARAMETERS:
        with suppress(UnicodeDecodeError):  # PyAV gives codec_tag as text; a damaged one may be none
            setattr(context, name, getattr(template, name))
    context.flags |= _UNALIGNED
    context.options = {**options, "max_pixels": _coded_max_pixels(max_pixels)}
    context.thread_type, context.thread_count = "FRAME", threads
    decoder: VideoCodecContext = context
    return decoder


def choose_video(container: InputContainer, name: str) -> VideoStream:
    """Return the stream that a player would show: FFmpeg's best video stream that is not a still picture.

    ``name`` is that of the source, for the message of NoVideoError.
    """
    from av.stream import Disposition

    still = sum(int(getattr(Disposition, name)) for name in _STILL_DISPOSITIONS)
    videos = [stream for stream in container.streams.video if not int(stream.disposition) & still]
    if not videos:
        streams = [f"{stream.type} {_codec_name(stream)}" for stream in container.streams]
        raise NoVideoError(f"{name}: no video stream (streams: {', '.join(streams) or 'none'})")
    best: Any = container.streams.best("video")
    chosen = next((s for s in videos if best is not None and s.index == best.index), videos[0])
    if chosen.codec_context is None:
        raise NoVideoError(f"{name}: this build of FFmpeg has no decoder for its video ({_codec_name(chosen)})")
    return chosen


def _video_codecs(container: InputContainer) -> set[str | None]:
    """Return FFmpeg's names of the video codecs; None for those without a decoder."""
    contexts = [stream.codec_context for stream in container.streams.video]
    return {context.codec.canonical_name if context is not None else None for context in contexts}


def _codec_name(stream: Any) -> str:
    context = getattr(stream, "codec_context", None)
    return str(context.name) if context is not None else "of an unknown codec"
