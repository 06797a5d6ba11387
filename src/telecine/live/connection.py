"""One connection to a live stream: FFmpeg's demuxer over sockets that can be interrupted."""

from __future__ import annotations

import re
import ssl
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from telecine.container.demuxer import ALLOWED_FORMATS, choose_video
from telecine.deadline import Deadline
from telecine.errors import Cancelled, SourceError, TelecineError, UnsupportedVideoError
from telecine.limits import Limits
from telecine.live.sockets import ByteStream, Relay, receive
from telecine.live.uris import LiveUri, check_host, host_limits
from telecine.source.http import fetch
from telecine.source.urls import url_name

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.stream import VideoStream

__all__ = ["Connection", "ConnectionOptions"]

_PROBING = {
    # FFmpeg's defaults wait for 5 seconds; the decoder learns the rest from the first key frame
    "analyzeduration": "500000",
    "probesize": "500000",
    # decoding a picture on opening would only find what decoding shows anyway
    "codec_whitelist": "none",
}
_RTSP = {"allowed_media_types": "video", "rtsp_flags": "prefer_tcp"}
_HLS = {
    # requests are made by telecine, one at a time; the first segment is the newest
    "http_persistent": "0",
    "http_multiple": "0",
    "live_start_index": "-1",
    "allowed_extensions": "ALL",
    "extension_picky": "0",
    "allowed_segment_extensions": "ALL",
}
_PLAYLIST = b"#EXTM3U"
_MAX_EARLY, _MAX_LATE = 30.0, 0.2
"""Seconds by which a packet of a recording or of HLS may be too early or too late to keep its time."""
_END_SECONDS = 2.0
"""Seconds before the announced end of a recording from which on its end is no broken connection."""
_REFUSED = ("HTTPUnauthorizedError", "HTTPForbiddenError")
_REFUSED_STATUS = re.compile("HTTP 40[13]")


@dataclass(frozen=True)
class ConnectionOptions:
    """The options of a connection."""

    timeout: float
    """Seconds to open it, and without a sign of life."""
    transport: str
    """"tcp" or "udp", for the media of RTSP."""
    verify_tls: bool
    allowed_hosts: Collection[str] | None
    limits: Limits


class Connection:
    """An open connection. Used by one thread, but for :meth:`cancel` and the sign of life.

    Args:
        uri: the stream.
        options: the options.
    """

    container: InputContainer
    stream: VideoStream

    def __init__(self, uri: LiveUri, options: ConnectionOptions) -> None:
        self.uri, self._options = uri, options
        self.last_life = time.monotonic()
        """Monotonic clock at the last sign of life of the server."""
        self._deadline = Deadline()
        self._cancelled = threading.Event()
        self._relay: Relay | None = None
        self._bytes: ByteStream | None = None
        self._paced_from: float | None = None
        self.refusal: TelecineError | None = None
        """Reason why something that a playlist names is not opened; FFmpeg would try other parts of it."""
        self.is_refused = False
        """True if the server refuses the credentials, so that no further attempt can succeed."""

    def open(self) -> None:
        """Connect, and find the video stream.

        Raises:
            SourceError: it is not reached, or refused, or no video stream.
        """
        uri, options = self.uri, self._options
        limits = host_limits(uri.host, uri.port, options.allowed_hosts, options.limits)
        try:
            self.container = getattr(self, f"_open_{uri.kind.reader}")(limits)
            self.stream = choose_video(self.container, uri.name)
        except TelecineError as error:
            raise self._named(error) from error.__cause__
        for other in self.container.streams:
            if other.index != self.stream.index:
                other.discard = "all"  # type: ignore[assignment]

    def _named(self, error: TelecineError) -> TelecineError:
        """Return an error whose message names the stream."""
        return error if str(error).startswith(self.uri.name) else type(error)(f"{self.uri.name}: {error}")

    def _alive(self) -> None:
        self.last_life = time.monotonic()

    def _open_relay(self, limits: Limits) -> InputContainer:
        uri, options, tls = self.uri, self._options, None
        if uri.scheme in ("rtsps", "rtmps"):
            tls = ssl.create_default_context()
            if not options.verify_tls:
                tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        self._relay = Relay(uri.host, uri.port, limits, options.timeout, tls, self._alive)
        self._check_cancelled()
        userinfo = uri.parts.netloc.rpartition("@")[0]
        local = f"{userinfo}@127.0.0.1" if userinfo else "127.0.0.1"
        url = uri.parts._replace(scheme=uri.kind.inner, netloc=f"{local}:{self._relay.port}").geturl()
        if uri.kind.inner == "rtsp":
            own = {**_RTSP, "rtsp_transport": options.transport}
            if options.transport == "udp":
                own |= {"rtsp_flags": "0"}
        else:
            host = uri.parts.netloc.rpartition("@")[2]
            application = uri.parts.path.strip("/").rpartition("/")[0]
            own = {"rtmp_tcurl": f"{uri.scheme}://{host}/{application}", "rtmp_live": "live"}
        protocols = uri.kind.protocols + (",udp,rtp" if options.transport == "udp" else "")
        return self._open_container(url, None, own | {"protocol_whitelist": protocols})

    def _open_ffmpeg(self, limits: Limits) -> InputContainer:
        timeout = self._options.timeout
        protocols = {"protocol_whitelist": self.uri.kind.protocols}
        return self._open_container(self.uri.uri, None, protocols, read_timeout=timeout)

    def _open_file(self, limits: Limits) -> InputContainer:
        return self._open_container(self.uri.uri, None, {"protocol_whitelist": "file"})

    def _open_socket(self, limits: Limits) -> InputContainer:
        uri, timeout = self.uri, self._options.timeout
        chunks = receive(uri.scheme == "udp", uri.host, uri.port, limits, timeout, self._deadline)
        return self._open_bytes(ByteStream(chunks, self._alive))

    def _open_http(self, limits: Limits) -> InputContainer:
        limits = self._http_limits(limits)
        opened = ByteStream(self._fetch(self.uri.uri, limits), self._alive)
        if not opened.peek().lstrip(b"\xef\xbb\xbf").startswith(_PLAYLIST):
            return self._open_bytes(opened)
        opened.close()
        self._paced_from = 0.0
        own = {**_HLS, "protocol_whitelist": "http,https,tcp,tls"}
        return self._open_container(self.uri.uri, "hls", own, io_open=partial(self._open_nested, limits))

    def _http_limits(self, limits: Limits) -> Limits:
        timeout = self._options.timeout
        return replace(limits, connect_timeout=timeout, read_timeout=timeout)

    def _open_nested(self, limits: Limits, url: str, flags: int, options: dict[str, str]) -> ByteStream:
        """Open a playlist or a segment that a playlist names, by the rules for the stream itself."""
        self._check_cancelled()
        try:
            if urlsplit(url).scheme.lower() not in ("http", "https"):
                raise SourceError("the playlist names something that is not http or https, as an encrypted segment is")
            if int(options.get("offset", 0)) > 0:
                raise SourceError("the playlist names parts of files (EXT-X-BYTERANGE), which is not supported")
            if self._options.allowed_hosts is not None:
                check_host(urlsplit(url).hostname or "", self._options.allowed_hosts)
        except SourceError as error:
            self.refusal = self._named(error)
            raise
        return ByteStream(self._fetch(url, limits), self._alive)

    def _fetch(self, url: str, limits: Limits) -> Iterator[bytes]:
        try:
            yield from fetch(url, limits, self._deadline)
        except TelecineError as error:
            # its name of the URL may have a token
            text = str(error).removeprefix(f"{url_name(url)}: ")
            self.is_refused |= bool(_REFUSED_STATUS.search(text))
            raise type(error)(text) from None

    def _open_bytes(self, opened: ByteStream) -> InputContainer:
        self._bytes = opened
        return self._open_container(opened, None, {"protocol_whitelist": "none"})

    def _open_container(
        self,
        file: Any,
        format_name: str | None,
        options: dict[str, str],
        read_timeout: float | None = None,
        **more: Any,
    ) -> InputContainer:
        import av

        formats = [*ALLOWED_FORMATS, "live_flv", *({"rtsp": ["rtsp"]}.get(self.uri.kind.inner, []))]
        formats += [format_name] if format_name else []
        options = {**_PROBING, **options, "format_whitelist": ",".join(formats)}
        self._check_cancelled()
        try:
            container: InputContainer = av.open(
                file, "r", format_name, options=options, timeout=(self._options.timeout, read_timeout), **more
            )
        except (av.error.FFmpegError, UnicodeDecodeError) as error:
            raise self._explain(error) from None
        container.flags &= ~av.container.Flags.gen_pts.value  # type: ignore[operator]
        return container

    def _explain(self, error: Exception) -> TelecineError:
        """Return the reason of a failure. FFmpeg's message quotes the URL with its credentials."""
        self._check_cancelled()
        if self._bytes is not None and isinstance(self._bytes.error, TelecineError):
            return self._named(self._bytes.error)
        if self._relay is not None and self._relay.is_redirected:
            return SourceError(f"{self.uri.name}: the server redirects to another address; give that one")
        kind = type(error).__name__
        if kind in _REFUSED:
            self.is_refused = True
            return SourceError(f"{self.uri.name}: the server refuses the credentials; check user and password")
        if kind == "ProtocolNotFoundError":
            return UnsupportedVideoError(f"{self.uri.name}: this build of FFmpeg cannot read {self.uri.scheme} URIs")
        reason = getattr(error, "strerror", None) or kind
        return SourceError(f"{self.uri.name}: the stream cannot be read ({reason})")

    def packets(self) -> Iterator[Packet[VideoStream]]:
        """Yield the packets of the video stream as they arrive. Those of files and HLS are held back to real time.

        Raises:
            SourceError: the connection broke.
        """
        import av

        packets = self.container.demux(self.stream)
        is_paced = self.uri.scheme == "file" or self._paced_from is not None
        pace, last = _Pace(self._cancelled), 0.0
        while True:
            try:
                packet = next(packets, None)
            except (av.error.FFmpegError, IndexError) as error:
                raise self._explain(error) from None
            self._check_cancelled()
            if self._bytes is not None and self._bytes.error is not None:
                raise self._explain(self._bytes.error) from None
            if packet is None or not packet.size:
                break
            if is_paced:
                pace.wait(packet)
                self._check_cancelled()
            self.last_life = time.monotonic()
            if packet.pts is not None and packet.time_base is not None:
                last = float(packet.pts * packet.time_base)
            yield packet
        if not self._is_at_end(last):
            raise SourceError(f"{self.uri.name}: the server ended the stream")

    def _is_at_end(self, last: float) -> bool:
        """Return True if a packet at this time, seconds, is the last one of a recording."""
        if self.uri.scheme == "file":
            return True
        duration, start = self.container.duration, self.container.start_time
        # a recording of which FFmpeg knows the duration; a broken connection looks like an end
        return bool(duration) and last - (start or 0) / 1e6 >= (duration or 0) / 1e6 - _END_SECONDS

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled(f"{self.uri.name}: the connection was closed")

    def cancel(self) -> None:
        """End all waits of the thread that uses the connection. Thread-safe."""
        self._cancelled.set()
        self._deadline.cancel()
        relay = self._relay
        if relay is not None:
            relay.close()

    def close(self) -> None:
        """Close the connection, in the thread that uses it."""
        self.cancel()
        if (container := getattr(self, "container", None)) is not None:
            container.close()
        if self._relay is not None:
            self._relay.join()
        if self._bytes is not None:
            with suppress(Exception):
                self._bytes.close()


class _Pace:
    """Holds packets back until their time has come, counted from the first one."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._origin: float | None = None

    def wait(self, packet: Packet[VideoStream]) -> None:
        """Wait until the decoding time of a packet. If it is late, or far too early, those after it follow it."""
        ticks = packet.dts if packet.dts is not None else packet.pts
        if ticks is None or packet.time_base is None:
            return
        time_, now = float(ticks * packet.time_base), time.monotonic()
        if self._origin is None or not -_MAX_LATE < time_ + self._origin - now < _MAX_EARLY:
            self._origin = now - time_
        self._stop.wait(max(0.0, time_ + self._origin - now))
