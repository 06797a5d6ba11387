"""The encoded video as one piece of read-only memory, whatever it was given as.

:func:`open_source` is the only place that asks what kind of thing the caller gave. Everything behind it reads
:attr:`Source.data` and never learns a path or a URL, so that no decoder has a file name to build others from. Files are
mapped, not read; what has to be copied stays in memory while it is small and goes to an unlinked temporary file when it
is not.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import itertools
import mmap
import os
import re
import stat
import sys
import tempfile
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from telecine.deadline import Deadline
from telecine.errors import OptionsError, OverloadedError, SourceError
from telecine.limits import Limits
from telecine.source.http import fetch
from telecine.source.urls import ByteLimit, decode_data_url, path_of_file_url, printable, url_name

__all__ = ["Source", "open_source"]

_ACCEPTED = "a path, an http(s): or data: URL, bytes or another buffer of bytes, or a binary file object"
_IN_MEMORY = 4 << 20
"""Bytes of a copy that are held in memory; a larger one moves to a temporary file."""
_READ_SIZE = 1 << 20
"""Bytes of a file object that are taken at a time."""
_HEAD = 4096
"""Bytes at the start by which text is told from video."""

_URL = re.compile(r"(?:(?P<scheme>[a-z][a-z0-9+.-]*)://|(?P<bare>https?|data|file):)", re.IGNORECASE)
_MAY_BE_URL = re.compile(r"\s*(?:http|[a-z][a-z0-9+.-]+:/)|.*(?:://|[@?])", re.IGNORECASE | re.DOTALL)
"""What may be a URL that was mistyped, or that ``Path`` has taken a slash from: it may hold credentials."""
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f]")

# FFmpeg recognises these by their first bytes alone and would go on to open the files and addresses that they list
_PLAYLISTS = {
    b"#extm3u": "an HLS playlist (m3u8)",
    b"ffconcat version": "an ffconcat list",
    b"v=0\n": "an SDP session description",
    b"v=0\r\n": "an SDP session description",
}
_FILE_KINDS: list[tuple[Callable[[int], bool], str]] = [
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
]


class Source:
    """The encoded video in memory or mapped from a file. Made by :func:`open_source`.

    Reading :attr:`data` from several threads is safe; :meth:`close` is for whoever opened it, after the last read. A
    context manager.

    A mapped file must keep its length until then: if another process truncates it, reading what is gone ends this
    process with ``SIGBUS``. Writing a new file and renaming it over the old one is safe.
    """

    def __init__(self, data: memoryview, name: str, mapping: mmap.mmap | None = None) -> None:
        self.name = name
        """Short name for messages: never credentials, a query or content."""
        self.size = data.nbytes
        """Bytes."""
        self._data: memoryview | None = data
        self._mapping = mapping

    @property
    def data(self) -> memoryview:
        """All bytes: read-only, contiguous, one-dimensional, format ``"B"``."""
        if self._data is None:
            raise OptionsError(f"{self.name}: the source is closed")
        return self._data

    def close(self) -> None:
        """Let go of the memory or the file. A second call does nothing."""
        data, self._data = self._data, None
        mapping, self._mapping = self._mapping, None
        # a view that somebody still holds keeps the memory alive, and frees it when it goes
        with contextlib.suppress(BufferError):
            if data is not None:
                data.release()
            if mapping is not None:
                mapping.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Source({self.name}, {self.size} bytes{', closed' if self._data is None else ''})"


def open_source(source: object, limits: Limits, deadline: Deadline) -> Source:
    """Open whatever the caller gave.

    Args:
        source: the encoded video, as one of

            - a path (``str`` or ``os.PathLike``): mapped;
            - an ``http://``, ``https://`` or ``data:`` URL as ``str``, a ``file:`` URL where ``limits`` allow it;
            - ``bytes``, ``bytearray``, ``memoryview``, a uint8 array, any one-dimensional contiguous buffer of bytes:
              used in place. A ``bytearray`` cannot change its size until the source is closed;
            - a binary file object: a plain file is mapped from its current position on, anything else is read to its
              end. It stays open; its position afterwards is not defined.
        limits: the size, and what a URL may do.
        deadline: looked at between chunks.

    Returns:
        The source, to be closed by the caller.

    Raises:
        OptionsError: not one of the above, or a kind of URL that is not accepted.
        SourceError: cannot be read, is empty, or is plainly not a video but text.
        LimitError: larger than the limits allow.
        BackendUnavailable: an ``http(s)`` URL without httpx.
        DeadlineError, Cancelled: from ``deadline``.
    """
    deadline.check("opening the source")
    opened = _open(source, limits, deadline)
    try:
        if not opened.size:
            where = " after its current position; seek(0) first" if callable(getattr(source, "read", None)) else ""
            raise SourceError(f"{opened.name} is empty: there are no bytes to read{where}")
        if (text := _looks_like_text(opened.data)) is not None:
            in_bytes = not isinstance(source, str | os.PathLike) and not hasattr(source, "read")
            hint = "; a path or a URL is given as a str, not as its bytes" if in_bytes and text == _TEXT else ""
            raise SourceError(f"{opened.name} is {text}{hint}")
    except BaseException:
        opened.close()
        raise
    return opened


def _open(source: object, limits: Limits, deadline: Deadline) -> Source:
    if isinstance(source, str):
        url = source.strip()  # as pasted; a path may begin or end with blanks, a URL does not
        match = _URL.match(url)
        if match is None:
            return _open_path(source, limits)
        return _open_url(url, (match["scheme"] or match["bare"]).lower(), limits, deadline)
    if isinstance(source, os.PathLike):
        try:
            path = os.fsdecode(source)
        except Exception as error:
            raise OptionsError(f"the source is a {type(source).__name__} that gives no path") from error
        return _open_path(path, limits)
    try:
        view = memoryview(source)  # type: ignore[arg-type]  # asking is the only way to know
    except TypeError:
        pass
    except (BufferError, ValueError) as error:
        raise OptionsError(f"the source is a {type(source).__name__} whose memory cannot be read as bytes") from error
    else:
        return _open_buffer(view, type(source).__name__, limits)
    if callable(getattr(source, "read", None)):
        return _open_file_object(source, limits, deadline)
    raise OptionsError(f"the source is a {type(source).__name__}; accepted are {_ACCEPTED}")


def _open_url(url: str, scheme: str, limits: Limits, deadline: Deadline) -> Source:
    if scheme in ("http", "https"):
        name = url_name(url)
        with contextlib.closing(fetch(url, limits, deadline)) as chunks:
            return _hold(chunks, name)
    if scheme == "data":
        content = decode_data_url(url, ByteLimit.of(limits, fetched=True), deadline)
        return Source(memoryview(content).toreadonly(), f"data: URL ({len(content)} bytes)")
    if scheme == "file":
        return _open_path(path_of_file_url(url, limits), limits)
    raise OptionsError(f"{printable(scheme)}: URLs are not read as a source; accepted are {_ACCEPTED}")


def _open_path(path: str, limits: Limits) -> Source:
    # The file is opened before anything is asked about it, and only its descriptor is asked: a path could be swapped
    # in between. O_NONBLOCK returns at once from a FIFO without a writer.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        raise SourceError(_why_not_opened(path, error)) from None
    try:
        return _map_file(descriptor, 0, _path_name(path), limits)
    finally:
        os.close(descriptor)


def _path_name(path: str) -> str:
    return printable(os.path.basename(path) or path or "the empty path")


def _why_not_opened(path: str, error: OSError | ValueError) -> str:
    # ValueError: a NUL or a lone surrogate
    reason = error.strerror if isinstance(error, OSError) else "not a valid path"
    if len(path) > 300:  # likely base64, which a message must not quote
        return f"a path of {len(path)} characters cannot be opened ({reason}); base64 is given as 'data:;base64,...'"
    if _MAY_BE_URL.match(path):
        return (
            f"a path that looks like a URL cannot be opened ({reason}); a URL is given as a str "
            "that begins with https:// or http://"
        )
    where = f"; the path was {printable(path, 300)!r}" if isinstance(error, FileNotFoundError) else ""
    return f"{_path_name(path)} cannot be opened: {reason}{where}"


def _map_file(descriptor: int, start: int, name: str, limits: Limits) -> Source:
    """Map an open regular file from byte ``start`` on. The descriptor stays the caller's."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        kind = next((kind for is_kind, kind in _FILE_KINDS if is_kind(status.st_mode)), "not a file")
        raise SourceError(f"{name} is {kind}, not a regular file; give the path of a video file")
    size = max(0, status.st_size - start)
    ByteLimit.of(limits, fetched=False).check(name, size)
    if size == 0:
        return Source(memoryview(b""), name)
    try:
        mapping = _map(descriptor, status.st_size)
    except (OSError, ValueError) as error:  # ValueError: the file was truncated this very moment
        raise SourceError(f"{name} cannot be mapped into memory; read it and give its bytes") from error
    return Source(memoryview(mapping)[start:], name, mapping)


def _map(descriptor: int, size: int) -> mmap.mmap:
    if sys.version_info >= (3, 13):
        # otherwise each mapping keeps a duplicate of the descriptor, and many open sources use them up
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ, trackfd=False)
    return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)


def _open_buffer(view: memoryview, kind: str, limits: Limits) -> Source:
    name = f"{kind} ({view.nbytes} bytes)"
    if view.ndim != 1 or view.itemsize != 1 or not view.c_contiguous:
        raise OptionsError(
            f"the source is a {kind} of shape {view.shape} with {view.itemsize} bytes an item; a buffer must be "
            "one-dimensional, contiguous and of single bytes (an encoded file, not decoded pictures)"
        )
    ByteLimit.of(limits, fetched=False).check(name, view.nbytes)
    # ctypes arrays say "<B", which memoryview does not cast; NumPy takes any bytes
    flat = view.cast("B") if view.format in ("B", "b", "c") else np.frombuffer(view, dtype=np.uint8).data
    return Source(flat.toreadonly(), name)


def _open_file_object(file: Any, limits: Limits, deadline: Deadline) -> Source:
    given = getattr(file, "name", None)
    name = f"{type(file).__name__} object"
    if isinstance(given, str) and given:
        name = url_name(given) if "://" in given else _path_name(given)
    if isinstance(file, io.TextIOBase):
        raise OptionsError(f"{name} is open in text mode; open it with mode 'rb'")
    try:
        # the bytes of a BytesIO are shared with us, not copied, until somebody writes to it
        content = memoryview(file.getvalue())[file.tell() :] if type(file) is io.BytesIO else None
        plain = _plain_file(file)
    except (OSError, ValueError) as error:
        raise OptionsError(f"{name} cannot be read: it is closed") from error
    if content is not None:
        ByteLimit.of(limits, fetched=False).check(name, content.nbytes)
        return Source(content, name)
    if plain is not None:
        return _map_file(*plain, name, limits)
    return _hold(_read_chunks(file, name, limits, deadline), name)


def _plain_file(file: Any) -> tuple[int, int] | None:
    """Descriptor and position of a file object, if what it reads are the bytes of a regular file.

    ``fileno`` alone does not say so: that of a ``GzipFile`` leads to the compressed bytes. Hence exact types.
    """
    if isinstance(file, tempfile._TemporaryFileWrapper):
        file = file.file
    if type(file) in (io.BufferedReader, io.BufferedRandom):
        raw = file.raw
    else:
        raw = file
    if type(raw) is not io.FileIO or not raw.readable() or not stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
        return None
    return raw.fileno(), file.tell()


def _read_chunks(file: Any, name: str, limits: Limits, deadline: Deadline) -> Iterator[bytes]:
    limit = ByteLimit.of(limits, fetched=False)
    total = 0
    while True:
        deadline.check(f"reading {name}")
        try:
            chunk = file.read(min(_READ_SIZE, limit.size - total + 1))
        except Exception as error:
            # whatever a stranger's object raises; its text may quote a URL with credentials
            raise SourceError(f"{name}: reading failed with {type(error).__name__}") from error
        if not isinstance(chunk, (bytes, bytearray, memoryview)):
            if isinstance(chunk, types.CoroutineType):
                chunk.close()  # or Python warns that nobody awaited it
            raise OptionsError(
                f"{name}: read() gave {type(chunk).__name__}, not bytes; give a blocking file object in binary mode"
            )
        chunk = bytes(chunk)
        if not chunk:
            return
        total += len(chunk)
        limit.check(name, total, at_least=True)
        yield chunk


def _hold(chunks: Iterable[bytes], name: str) -> Source:
    """Keep chunks in memory or, beyond a few MB, in an unlinked temporary file that is then mapped."""
    memory = bytearray()
    rest = iter(chunks)
    for chunk in rest:
        memory += chunk
        if len(memory) > _IN_MEMORY:
            return _spill(itertools.chain([bytes(memory)], rest), name)
    return Source(memoryview(memory).toreadonly(), name)


def _spill(chunks: Iterable[bytes], name: str) -> Source:
    with _room_needed(name):
        file = tempfile.TemporaryFile(prefix="telecine-", buffering=0)
    with file:
        size = 0
        for chunk in chunks:
            size += len(chunk)
            left = memoryview(chunk)
            with _room_needed(name):
                while left:
                    left = left[file.write(left) :]
        with _room_needed(name):
            mapping = _map(file.fileno(), size)
    return Source(memoryview(mapping), name, mapping)


@contextlib.contextmanager
def _room_needed(name: str) -> Iterator[None]:
    """Around the temporary file alone: what the chunks themselves raise may be an ``OSError`` too."""
    try:
        yield
    except OSError as error:
        raise OverloadedError(
            f"{name}: no room for it in the temporary folder ({error.strerror}); free some or set TMPDIR to another"
        ) from error


_TEXT = "text, not a video"


def _looks_like_text(data: memoryview) -> str | None:
    """What text the source is, if it is text; None for anything that may be a video."""
    head = bytes(data[:_HEAD])
    start = head.removeprefix(codecs.BOM_UTF8).lstrip().lower()
    playlist = next((what for sign, what in _PLAYLISTS.items() if start.startswith(sign)), None)
    if playlist is not None:
        return f"{playlist}, not a video; telecine follows no playlist: give the video itself"
    if _CONTROL.search(head):
        return None
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head, final=len(data) <= _HEAD)
    except UnicodeDecodeError:
        return None
    if start.startswith(b"version https://git-lfs.github.com/spec/"):
        return "a Git-LFS pointer, not the video: run git lfs pull"
    if b"<mpd" in start:
        return "a DASH manifest (MPD), not a video; telecine follows no playlist: give the video itself"
    if b"<html" in start or start.startswith(b"<!doctype html"):
        return "an HTML page, not a video: likely an error or login page; check where it was downloaded from"
    if start.startswith(b"<"):
        return "XML text, not a video; an XML answer is often the error message of a storage service"
    if start.startswith((b"{", b"[")):
        return "JSON text, not a video; it is often the error message of a server"
    if start.startswith(b"data:"):
        return "the text of a data: URL in bytes; give it as a str"
    return _TEXT
