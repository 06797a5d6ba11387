"""What URLs say without a network: their short names, what ``data:`` URLs hold, which path a ``file:`` URL names."""

from __future__ import annotations

import binascii
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from urllib.parse import unquote_to_bytes, urlsplit

from telecine.deadline import Deadline
from telecine.errors import LimitError, OptionsError, SourceError
from telecine.limits import Limits

__all__ = ["ByteLimit", "decode_data_url", "path_of_file_url", "printable", "shown_source", "url_name"]

_PIECE = 1 << 20
"""Characters of a ``data:`` URL that are decoded at a time."""
_MOST_TYPE = 1024
"""Characters within which the type of a ``data:`` URL must end."""


class ByteLimit(NamedTuple):
    """How many bytes a source may have, and which field of :class:`~telecine.limits.Limits` says so."""

    size: int
    field: str

    @classmethod
    def of(cls, limits: Limits, *, fetched: bool) -> ByteLimit:
        """The limit for what is fetched from a URL or, with ``fetched=False``, for what the caller has at hand."""
        if fetched and limits.max_fetch_bytes < limits.max_bytes:
            return cls(limits.max_fetch_bytes, "max_fetch_bytes")
        return cls(limits.max_bytes, "max_bytes")

    def check(self, name: str, size: int, *, at_least: bool = False) -> None:
        """Raise :class:`LimitError` if ``size`` bytes are too many; ``at_least`` says that more may follow."""
        if size > self.size:
            has = "more" if at_least else f"{size} bytes, more"
            raise LimitError(
                f"{name}: {has} than the {self.size} bytes of limits.{self.field}; "
                "give a smaller video or raise the limit"
            )


def printable(text: str, most: int = 80) -> str:
    """``text`` fit for one line of a message: no control characters, the middle left out beyond ``most`` characters."""
    if len(text) > most:
        text = f"{text[: most // 4]}…{text[1 - most + most // 4 :]}"
    return "".join(c if c.isprintable() else "?" for c in text)


def shown_source(given: str) -> str:
    """A path or URL as a program prints it: of a URL what holds no secret."""
    return url_name(given) if "://" in given else printable(given, 200)


def url_name(url: str) -> str:
    """The host and last path part of a URL, for messages: no user, password, query or fragment."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return "the URL"
    folder, _, last = parts.path.rpartition("/")
    # a password holding "/" ends up in what looks like the path
    last = last.rpartition("@")[2]
    return printable(f"{host}/…/{last}" if folder else f"{host}/{last}")


def decode_data_url(url: str, limit: ByteLimit, deadline: Deadline) -> bytearray:
    """The content of ``data:[<type>][;base64],<content>`` (RFC 2397). The type is ignored: it is often wrong."""
    name = "data: URL"
    comma = url.find(",", 0, _MOST_TYPE)
    if comma < 0:
        raise SourceError(f"{name}: no comma after the type; the form is data:[<type>][;base64],<content>")
    content = comma + 1
    is_base64 = "base64" in (part.strip().lower() for part in url[len("data:") : comma].split(";"))
    # the least it can decode to, so that a large one is refused before anything is copied
    characters = len(url) - content
    escapes = url.count("%", content)
    if is_base64:
        blanks = sum(url.count(character, content) for character in " \t\r\n\f\v=")
        limit.check(name, (characters - blanks - 3 * escapes) * 3 // 4, at_least=True)
    else:
        limit.check(name, characters - 2 * escapes, at_least=True)
    decoded = bytearray()
    pieces = _unescaped(url, content, name, deadline)
    for piece in _base64(pieces, name) if is_base64 else pieces:
        decoded += piece
        limit.check(name, len(decoded), at_least=True)
    return decoded


def _unescaped(url: str, start: int, name: str, deadline: Deadline) -> Iterator[bytes]:
    """The text from ``start`` on without its percent escapes. In pieces: the whole would take many times its size."""
    while start < len(url):
        deadline.check(f"decoding the {name}")
        end = start + _PIECE
        # an escape is not cut in two
        if end < len(url) and (cut := url.rfind("%", end - 2, end)) >= 0:
            end = cut
        try:
            piece = unquote_to_bytes(url[start:end])
        except UnicodeEncodeError:  # a lone surrogate
            raise SourceError(f"{name}: holds a character that no text can hold") from None
        yield piece
        start = end


def _base64(pieces: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Decode base64 of either alphabet (RFC 4648, sections 4 and 5), with blanks and with or without padding."""
    carried = b""
    for piece in pieces:
        # split and replace are far faster than translate
        text = carried + b"".join(piece.replace(b"-", b"+").replace(b"_", b"/").split())
        # "=" is for the very end, so a group of four that may hold it waits
        ready = len(text.rstrip(b"=")) // 4 * 4
        carried = text[ready:]
        if len(carried) > 8 or b"=" in text[:ready]:
            raise SourceError(f"{name}: the base64 has padding where none can be; encode and send it again")
        yield _a2b(text[:ready], name)
    digits = carried.rstrip(b"=")
    if len(digits) == 1:
        raise SourceError(f"{name}: the base64 is cut short; encode and send it again")
    yield _a2b(digits + b"=" * (-len(digits) % 4), name)


def _a2b(text: bytes, name: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error:
        several = " (a comma: several parts in one URL are not one video)" if b"," in text else ""
        raise SourceError(f"{name}: the content is not valid base64{several}; encode and send it again") from None


def path_of_file_url(url: str, limits: Limits) -> str:
    """The path that a ``file:`` URL (RFC 8089) names on this machine."""
    if not limits.allow_file_urls:
        raise OptionsError("file: URLs are not read; give a path, or allow them with Limits(allow_file_urls=True)")
    path = url[len("file:") :]
    if path.startswith("//"):
        host, slash, path = path[2:].partition("/")
        path = slash + path
        if host.lower() not in ("", "localhost"):
            raise SourceError("file: URL: names another host; only an empty host or localhost is read")
    if not path.startswith("/"):
        raise SourceError("file: URL: the path is not absolute; the form is file:///folder/clip.mp4")
    if "?" in path or "#" in path:
        raise SourceError("file: URL: has a query or fragment; in a file name ? is written %3F and # is written %23")
    return os.fsdecode(unquote_to_bytes(path))
