"""Bytes of a live stream through sockets of this package, which can be interrupted at any time.

FFmpeg's own waits cannot be ended from another thread. So a relay stands between FFmpeg and a server of RTSP or RTMP.
It also looks up the host, checks its addresses, and stops redirects, which FFmpeg would follow without a check.
"""

from __future__ import annotations

import ipaddress
import re
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from telecine.deadline import Deadline
from telecine.errors import SourceError
from telecine.limits import Limits
from telecine.source.http import resolve_allowed

__all__ = ["ByteStream", "Relay", "receive"]

_POLL_SECONDS = 0.05
_BATCH_SECONDS = 0.004
"""Wait before the bytes of a server are read, so that many small packets are read at once."""
_CHUNK_BYTES = 1 << 18
_REDIRECT = re.compile(rb"RTSP/1\.\d 3\d\d")


def connect(host: str, port: int, limits: Limits, timeout: float) -> socket.socket:
    """Connect to a host whose addresses are all allowed. Raises SourceError."""
    failure: OSError | None = None
    addresses = resolve_allowed(host, port, limits)
    for address in addresses:
        try:
            return socket.create_connection((address, port), timeout / len(addresses))
        except OSError as error:
            failure = error
    reason = "no answer" if isinstance(failure, TimeoutError) else getattr(failure, "strerror", None) or "no address"
    raise SourceError(f"no connection ({reason}); check the host, the port and the network") from failure


class Relay:
    """Forwards one TCP connection between FFmpeg and a server. Closing it ends FFmpeg's waits.

    Args:
        host: host of the server.
        port: port of the server.
        limits: which addresses are allowed.
        timeout: seconds to connect.
        tls: TLS context for the connection to the server, or None.
        on_life: called when the server sends anything.
    """

    def __init__(
        self,
        host: str,
        port: int,
        limits: Limits,
        timeout: float,
        tls: ssl.SSLContext | None,
        on_life: Callable[[], None],
    ) -> None:
        self._on_life = on_life
        self.is_redirected = False
        """True if the server tried to send the client elsewhere."""
        self._is_closed = False
        self._server = connect(host, port, limits, timeout)
        self._sockets = [self._server]
        try:
            if tls is not None:
                self._server = tls.wrap_socket(self._server, server_hostname=host)
                self._sockets = [self._server]
            self._listener = socket.create_server(("127.0.0.1", 0), backlog=1)
        except OSError as error:
            self._server.close()
            reason = getattr(error, "verify_message", None) or error.strerror or "TLS failed"
            raise SourceError(f"no secure connection ({reason})") from error
        self._server.settimeout(None)
        self._sockets.append(self._listener)
        self.port: int = self._listener.getsockname()[1]
        """Port on 127.0.0.1 to which FFmpeg connects."""
        self._thread = threading.Thread(target=self._run, name="telecine-live-relay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End both connections. Thread-safe; may be called twice."""
        self._is_closed = True
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        """Wait for the thread of a closed relay."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self._listener.settimeout(_POLL_SECONDS)
            while not self._is_closed:
                with suppress(TimeoutError):
                    client = self._listener.accept()[0]
                    self._sockets.append(client)
                    self._listener.close()
                    self._forward(client)
                    return
        except OSError:
            pass  # one of the two has closed the connection, which FFmpeg reports
        finally:
            for each in self._sockets:
                each.close()

    def _forward(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tail, waiting = b"", selectors.PollSelector()  # select() refuses descriptors above 1024
        for each in (client, self._server):
            waiting.register(each, selectors.EVENT_READ)
        while not self._is_closed:
            for key, _ in waiting.select():
                if key.fileobj is client:
                    data = client.recv(_CHUNK_BYTES)
                    self._server.sendall(data)
                else:
                    time.sleep(_BATCH_SECONDS)
                    received = self._read_server()
                    if received is None:
                        continue
                    data = received
                    if _REDIRECT.search(tail + data):
                        self.is_redirected = True
                        return
                    tail = data[-16:]
                    self._on_life()
                    client.sendall(data)
                if not data:
                    return

    def _read_server(self) -> bytes | None:
        """Return bytes of the server, none at its end; None if TLS has sent nothing for the client."""
        self._server.settimeout(0)
        try:
            data = self._server.recv(_CHUNK_BYTES)
            while isinstance(self._server, ssl.SSLSocket) and (pending := self._server.pending()):
                data += self._server.recv(pending)  # select does not see bytes that are decrypted already
        except ssl.SSLWantReadError:
            return None
        finally:
            self._server.settimeout(None)
        return data


def receive(udp: bool, host: str, port: int, limits: Limits, timeout: float, deadline: Deadline) -> Iterator[bytes]:
    """Yield the bytes that arrive at a UDP port, or from a TCP server, until it closes the connection."""
    with _bind(host, port) if udp else connect(host, port, limits, timeout) as opened:
        opened.settimeout(_POLL_SECONDS)
        last = time.monotonic()
        while True:
            deadline.check("receiving the stream")
            try:
                data = opened.recv(1 << 16)
            except TimeoutError:
                if time.monotonic() - last > timeout:
                    raise SourceError(f"nothing was received for {timeout:g} s") from None
                continue
            except OSError as error:
                raise SourceError(f"the connection broke ({error.strerror})") from error
            if not data and not udp:
                return
            last = time.monotonic()
            yield data


def _bind(host: str, port: int) -> socket.socket:
    """Return a socket for datagrams to a port, to a multicast group if the host is one."""
    try:
        address = ipaddress.ip_address(host or "0.0.0.0")
    except ValueError:
        raise SourceError("the host of a udp URI must be an address of this machine or a multicast group") from None
    opened = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        opened.bind((str(address), port))
        if address.is_multicast and address.version == 4:
            opened.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, address.packed + bytes(4))
        elif address.is_multicast:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, address.packed + bytes(4))
    except OSError as error:
        opened.close()
        raise SourceError(f"UDP port {port} cannot be received ({error.strerror})") from error
    return opened


class ByteStream:
    """File object over chunks of bytes, for ``av.open``. It keeps an exception and ends then, as FFmpeg expects."""

    def __init__(self, chunks: Iterator[bytes], on_life: Callable[[], None]) -> None:
        self._chunks, self._on_life = chunks, on_life
        self._buffer = memoryview(b"")
        self.error: Exception | None = None
        """Exception that ended the stream."""

    def peek(self) -> bytes:
        """Return the bytes that are buffered, at least one unless the stream has ended."""
        while not self._buffer and self.error is None:
            try:
                chunk = next(self._chunks, None)
            except Exception as error:
                self.error = error
                break
            if chunk is None:
                break
            self._on_life()
            self._buffer = memoryview(chunk)
        return bytes(self._buffer[:64])

    def read(self, count: int) -> bytes:
        """Return up to ``count`` bytes, at least one unless the stream has ended."""
        self.peek()
        data, self._buffer = bytes(self._buffer[:count]), self._buffer[count:]
        return data

    def close(self) -> None:
        """Close the connection."""
        close = getattr(self._chunks, "close", None)
        if close is not None:
            close()
