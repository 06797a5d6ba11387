"""Open an encoded video from any kind of source as read-only memory.

:func:`open_source` is the only place that asks for the type of a source. All other code reads :attr:`Source.data` and
never learns a path or a URL, so that no decoder can open files next to it. Files are mapped, not read. Copies stay in
memory while they are small, and go to an unlinked temporary file otherwise.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import mmap
import os
import re
import stat
import tempfile
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from telecine.deadline import Deadline
from telecine.errors import OptionsError, SourceError
from telecine.limits import Limits
from telecine.source.byte_ranges import HEAD_BYTES, ByteRanges, open_file_ranges, open_ranges
from telecine.source.read_ahead import ReadAhead
from telecine.source.remote_file import RemoteFile
from telecine.source.spool import map_descriptor, reraise_foreign, spool
from telecine.source.text import PLAIN_TEXT, describe_text
from telecine.source.urls import ByteLimit, decode_data_url, path_of_file_url, printable, url_name
from telecine.validation import format_value

__all__ = ["Source", "file_version", "open_source", "video_of_row"]

_ACCEPTED = (
    "a path, an http(s): or data: URL, bytes or another buffer of bytes, a uint8 array or tensor, a binary file object "
    "or an object that opens one, or a dataset row with 'bytes' or 'path'"
)
_READ_BYTES = 1 << 20
"""Bytes that are read from a file object at a time."""
_DLPACK_HOST_DEVICES = (1, 3)
"""Device types of DLPack for ordinary and for pinned host memory."""

_URL = re.compile(r"(?:(?P<scheme>[a-z][a-z0-9+.-]*)://|(?P<bare>https?|data|file):)", re.IGNORECASE)
_MAY_BE_URL = re.compile(r"\s*(?:http|[a-z][a-z0-9+.-]+:/)|.*(?:://|[@?])", re.IGNORECASE | re.DOTALL)
"""A mistyped URL, or one from which ``Path`` has taken a slash: it may hold credentials."""

_FILE_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}  # fmt: skip


class Source:
    """An encoded video in memory or mapped from a file. Made by :func:`open_source`. A context manager.

    Several threads may read :attr:`data` at once. The caller of :func:`open_source` closes the source after the last
    read.

    A mapped file must keep its length until then. If another process truncates it, a read beyond its new end kills this
    process with ``SIGBUS``. Writing a new file and renaming it over the old one is safe.
    """

    def __init__(
        self, data: memoryview, name: str, mapping: mmap.mmap | None = None, ranges: ByteRanges | None = None
    ) -> None:
        self.name = name
        """Short name for messages, without credentials, query or content."""
        self.size = data.nbytes
        """Size in bytes."""
        self.are_tables_checked = False
        """True once the memory that the tables of the container take is known to be small."""
        self._data: memoryview | None = data
        self._mapping = mapping
        self.read_ahead = ranges or ReadAhead(mapping, 0 if mapping is None else len(mapping) - data.nbytes)
        """Fetches bytes that :attr:`data` may not have yet: :meth:`ReadAhead.require` comes before a read."""

    @property
    def data(self) -> memoryview:
        """All bytes: read-only, contiguous, one-dimensional, format ``"B"``."""
        if self._data is None:
            raise OptionsError(f"{self.name}: the source is closed")
        return self._data

    def close(self) -> None:
        """Release the memory or the file. A second call does nothing."""
        data, self._data = self._data, None
        mapping, self._mapping = self._mapping, None
        self.read_ahead.close()
        # a view that somebody still uses keeps the memory, and frees it when it goes
        with contextlib.suppress(BufferError):
            if data is not None:
                data.release()
            if mapping is not None:
                mapping.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Source({self.name}, {self.size} bytes{', closed' if self._data is None else ''})"


def open_source(source: object, limits: Limits, deadline: Deadline) -> Source:
    """Open an encoded video; docs/sources.md has all kinds of sources. The caller closes it.

    Raises:
        OptionsError: the source is of another type, or a kind of URL that is not accepted.
        SourceError: the source cannot be read, is empty, or is text.
        LimitError: the source is larger than the limits allow.
        BackendUnavailable: httpx, which ``http(s)`` URLs need, is not installed.
        DeadlineError, Cancelled: from ``deadline``, which is checked between chunks.
    """
    deadline.check("opening the source")
    if isinstance(source, Mapping):
        source = video_of_row(source)
    opened = _open(source, limits, deadline)
    try:
        if not opened.size:
            where = " after its current position; seek(0) first" if callable(getattr(source, "read", None)) else ""
            raise SourceError(f"{opened.name} is empty: there are no bytes to read{where}")
        if (text := describe_text(opened.data)) is not None:
            in_bytes = not isinstance(source, str | os.PathLike) and not hasattr(source, "read")
            hint = "; a path or a URL is given as a str, not as its bytes" if in_bytes and text == PLAIN_TEXT else ""
            raise SourceError(f"{opened.name} is {text}{hint}")
    except BaseException:
        opened.close()
        raise
    return opened


def file_version(file: Any) -> tuple[int, ...] | None:
    """Return the device, inode, size, mtime_ns and ctime_ns of a path or an open file; None if it has none.

    A program can set mtime back, but not ctime.
    """
    try:
        status = os.stat(file.fileno() if hasattr(file, "fileno") else file)
    except (OSError, ValueError, TypeError):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def video_of_row(row: Mapping[str, Any]) -> object:
    """Return the bytes of a dataset row ``{"bytes": ..., "path": ...}``, or its path if it has no bytes."""
    content, path = row.get("bytes"), row.get("path")
    if content is None and path is None:
        keys = format_value([str(key) for key in row])
        raise OptionsError(f"the source is a row with the keys {keys}; one of 'bytes' and 'path' must be there and set")
    if content is not None and isinstance(content, str | os.PathLike | Mapping):
        raise OptionsError(f"the source is a row whose 'bytes' is a {type(content).__name__}; it must be bytes or None")
    if content is None and not isinstance(path, str | os.PathLike):
        raise OptionsError(f"the source is a row whose 'path' is a {type(path).__name__}; it must be a str, or a path")
    return path if content is None else content


def _open(source: object, limits: Limits, deadline: Deadline) -> Source:
    kind = type(source).__name__
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
            raise OptionsError(f"the source is a {kind} that gives no path") from error
        return _open_path(path, limits)
    try:
        view = memoryview(_host_array(source) if hasattr(source, "__dlpack_device__") else source)  # type: ignore[arg-type]
    except OptionsError:
        raise
    except TypeError:
        pass
    except (BufferError, ValueError, RuntimeError) as error:
        raise OptionsError(f"the source is a {kind} whose memory cannot be read as bytes") from error
    else:
        return _open_buffer(view, kind, limits)
    if callable(getattr(source, "read", None)):
        return _open_file_object(source, limits, deadline)
    if callable(getattr(source, "open", None)) and not isinstance(source, type):
        return _open_openable(source, limits, deadline)
    raise OptionsError(f"the source is a {kind}; accepted are {_ACCEPTED}")


def _host_array(array: Any) -> np.ndarray[Any, Any]:
    """Return an array or a tensor of any library (DLPack) as a NumPy array that shares its memory."""
    if isinstance(array, np.ndarray):
        return array
    if array.__dlpack_device__()[0] not in _DLPACK_HOST_DEVICES:
        kind, where = type(array).__name__, printable(str(getattr(array, "device", "another device")))
        raise OptionsError(f"the source is a {kind} on {where}; copy the encoded bytes to the CPU first")
    return np.from_dlpack(array)


def _open_url(url: str, scheme: str, limits: Limits, deadline: Deadline) -> Source:
    if scheme in ("http", "https"):
        name = url_name(url)
        remote = RemoteFile(url, limits)
        with contextlib.closing(remote.stream(deadline)) as chunks:
            head = next(chunks)
            if remote.size is not None:
                while len(head) < HEAD_BYTES and (chunk := next(chunks, b"")):
                    head += chunk
                ranges = open_ranges(name, remote.size, head, remote.read, remote.limit, deadline)
                if ranges is not None:
                    return _on_demand(ranges, name)
                remote.limit.check(name, remote.size)
            memory, mapping = spool(itertools.chain([head], chunks), name)
        return Source(memory, name, mapping)
    if scheme == "data":
        content = decode_data_url(url, ByteLimit.of(limits, fetched=True), deadline)
        return Source(memoryview(content).toreadonly(), f"data: URL ({len(content)} bytes)")
    if scheme == "file":
        return _open_path(path_of_file_url(url, limits), limits)
    raise OptionsError(f"{printable(scheme)}: URLs are not read as a source; accepted are {_ACCEPTED}")


def _on_demand(ranges: ByteRanges, name: str) -> Source:
    return Source(memoryview(ranges.mapping), name, ranges.mapping, ranges)


def _open_path(path: str, limits: Limits) -> Source:
    try:
        is_valid = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:  # a lone surrogate
        is_valid = False
    if not is_valid:
        raise SourceError(_why_not_opened(path, None))
    try:
        # Opened first, and then only the descriptor is examined: the path could be replaced in between. O_NONBLOCK
        # returns at once from a FIFO without a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        reraise_foreign(error)
        raise SourceError(_why_not_opened(path, error)) from None
    try:
        return _map_file(descriptor, 0, _path_name(path), limits)
    finally:
        os.close(descriptor)


def _path_name(path: str) -> str:
    return printable(os.path.basename(path) or path or "the empty path")


def _why_not_opened(path: str, error: OSError | None) -> str:
    reason = error.strerror if error is not None else "not a valid path"
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
    """Map an open regular file from byte ``start`` on. The caller closes the descriptor."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        kind = _FILE_KINDS.get(stat.S_IFMT(status.st_mode), "not a file")
        raise SourceError(f"{name} is {kind}, not a regular file; give the path of a video file")
    size = max(0, status.st_size - start)
    ByteLimit.of(limits, fetched=False).check(name, size)
    if size == 0:
        return Source(memoryview(b""), name)
    try:
        mapping = map_descriptor(descriptor, status.st_size)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError):
            reraise_foreign(error)
        elif os.fstat(descriptor).st_size >= status.st_size:  # mmap raises ValueError for a file truncated meanwhile
            raise
        raise SourceError(f"{name} cannot be mapped into memory; read it and give its bytes") from error
    return Source(memoryview(mapping)[start:], name, mapping)


def _open_buffer(view: memoryview, kind: str, limits: Limits) -> Source:
    name = f"{kind} ({view.nbytes} bytes)"
    if view.ndim != 1 or view.itemsize != 1 or not view.c_contiguous:
        raise OptionsError(
            f"the source is a {kind} of shape {view.shape} with {view.itemsize} bytes an item; a buffer must be "
            "one-dimensional, contiguous and of single bytes (an encoded file, not decoded pictures)"
        )
    ByteLimit.of(limits, fetched=False).check(name, view.nbytes)
    # ctypes arrays have the format "<B", which memoryview does not cast; NumPy takes any single bytes
    flat = view.cast("B") if view.format in ("B", "b", "c") else np.frombuffer(view, dtype=np.uint8).data
    return Source(flat.toreadonly(), name)


def _open_openable(source: Any, limits: Limits, deadline: Deadline) -> Source:
    """Open the file of an object with a method ``open``, or of an fsspec ``OpenFile``, which is a context manager."""
    name = type(source).__name__
    with contextlib.ExitStack() as stack:
        try:
            file: Any = stack.enter_context(source if hasattr(source, "__exit__") else source.open("rb"))
        except Exception as error:
            # text of a foreign exception may quote a URL with credentials
            raise SourceError(f"{name}: opening it failed with {type(error).__name__}") from error
        if isinstance(file, os.PathLike):  # fsspec's local files: mapped, not read
            return _open_path(os.fsdecode(file), limits)
        opened = _open_file_object(file, limits, deadline)
        if isinstance(opened.read_ahead, ByteRanges):
            opened.read_ahead.on_close = stack.pop_all().close
        return opened


def _open_file_object(file: Any, limits: Limits, deadline: Deadline) -> Source:
    given = getattr(file, "name", None)
    name = f"{type(file).__name__} object"
    if isinstance(given, str) and given:
        name = url_name(given) if "://" in given else _path_name(given)
    if isinstance(file, io.TextIOBase):
        raise OptionsError(f"{name} is open in text mode; open it with mode 'rb'")
    try:
        # the bytes of a BytesIO are shared, and copied only if somebody writes to it
        content = memoryview(file.getvalue())[file.tell() :] if type(file) is io.BytesIO else None
        plain = _plain_file(file)
    except (OSError, ValueError) as error:
        raise OptionsError(f"{name} cannot be read: it is closed") from error
    if content is not None:
        ByteLimit.of(limits, fetched=False).check(name, content.nbytes)
        return Source(content, name)
    if plain is not None:
        return _map_file(*plain, name, limits)
    ranges = open_file_ranges(file, name, ByteLimit.of(limits, fetched=False), deadline)
    if ranges is not None:
        return _on_demand(ranges, name)
    memory, mapping = spool(_read_chunks(file, name, limits, deadline), name)
    return Source(memory, name, mapping)


def _plain_file(file: Any) -> tuple[int, int] | None:
    """Return descriptor and position of a file object if it reads the very bytes of a regular file, else None.

    A ``fileno`` does not prove that: that of a ``GzipFile`` belongs to the compressed file. So only exact types count.
    """
    if isinstance(file, tempfile._TemporaryFileWrapper):
        file = file.file
    raw = file.raw if type(file) in (io.BufferedReader, io.BufferedRandom) else file
    if type(raw) is not io.FileIO or not raw.readable() or not stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
        return None
    return raw.fileno(), file.tell()


def _read_chunks(file: Any, name: str, limits: Limits, deadline: Deadline) -> Iterator[bytes]:
    limit = ByteLimit.of(limits, fetched=False)
    total = 0
    while True:
        deadline.check(f"reading {name}")
        try:
            chunk = file.read(min(_READ_BYTES, limit.size - total + 1))
        except Exception as error:
            # text of a foreign exception may quote a URL with credentials
            raise SourceError(f"{name}: reading failed with {type(error).__name__}") from error
        if not isinstance(chunk, (bytes, bytearray, memoryview)):
            if isinstance(chunk, types.CoroutineType):
                chunk.close()  # or Python warns that it was never awaited
            raise OptionsError(
                f"{name}: read() gave {type(chunk).__name__}, not bytes; give a blocking file object in binary mode"
            )
        chunk = bytes(chunk)
        if not chunk:
            return
        total += len(chunk)
        limit.check(name, total, at_least=True)
        yield chunk
