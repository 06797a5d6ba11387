"""URLs without a network: short names for messages, content of ``data:`` URLs, paths of ``file:`` URLs."""

from __future__ import annotations

import binascii
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from urllib.parse import unquote_to_bytes, urlsplit

from telecine.deadline import Deadline
from telecine.errors import LimitError, OptionsError, SourceError
from telecine.limits import Limits

__all__ = ["ByteLimit", "decode_data_url", "format_source", "path_of_file_url", "printable", "url_name"]

_CHUNK_CHARACTERS = 1 << 20
"""Characters of a ``data:`` URL that are decoded at a time."""
_MAX_TYPE_CHARACTERS = 1024
"""Maximum length of ``data:`` and the type of a ``data:`` URL."""


class ByteLimit(NamedTuple):
    """Maximum size of a source in bytes, and the field of :class:`~telecine.limits.Limits` that sets it."""

    size: int
    field: str

    @classmethod
    def of(cls, limits: Limits, *, fetched: bool) -> ByteLimit:
        """Return the limit for bytes fetched from a URL or, with ``fetched=False``, given by the caller."""
        if fetched and limits.max_fetch_bytes < limits.max_bytes:
            return cls(limits.max_fetch_bytes, "max_fetch_bytes")
        return cls(limits.max_bytes, "max_bytes")

    def check(self, name: str, size: int, *, at_least: bool = False) -> None:
        """Raise :class:`LimitError` if ``size`` bytes are too many; with ``at_least`` more may follow."""
        if size > self.size:
            has = "more" if at_least else f"{size} bytes, more"
            raise LimitError(
                f"{name}: {has} than the {self.size} bytes of limits.{self.field}; "
                "give a smaller video or raise the limit"
            )


def printable(text: str, max_length: int = 80) -> str:
    """Return ``text`` for one line of a message: without control characters, shortened in the middle."""
    if len(text) > max_length:
        head = max_length // 4
        text = f"{text[:head]}…{text[1 - max_length + head :]}"
    return "".join(c if c.isprintable() else "?" for c in text)


def format_source(given: str) -> str:
    """Return a path or URL for printing, without the secrets of a URL."""
    return url_name(given) if "://" in given else printable(given, 200)


def url_name(url: str) -> str:
    """Return the host and last path segment of a URL for messages: no user, password, query or fragment."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return "the URL"
    folder, _, last = parts.path.rpartition("/")
    # a password with "/" ends up in what looks like the path
    last = last.rpartition("@")[2]
    return printable(f"{host}/…/{last}" if folder else f"{host}/{last}")


def decode_data_url(url: str, limit: ByteLimit, deadline: Deadline) -> bytearray:
    """Decode ``data:[<type>][;base64],<content>`` (RFC 2397). The type is ignored: it is often wrong."""
    name = "data: URL"
    comma = url.find(",", 0, _MAX_TYPE_CHARACTERS)
    if comma < 0:
        raise SourceError(f"{name}: no comma after the type; the form is data:[<type>][;base64],<content>")
    content = comma + 1
    is_base64 = "base64" in (word.strip().lower() for word in url[len("data:") : comma].split(";"))
    # a lower bound of the decoded size, so that a large URL is refused before anything is copied
    characters = len(url) - content
    escapes = url.count("%", content)
    if is_base64:
        blanks = sum(url.count(character, content) for character in " \t\r\n\f\v=")
        limit.check(name, (characters - blanks - 3 * escapes) * 3 // 4, at_least=True)
    else:
        limit.check(name, characters - 2 * escapes, at_least=True)
    decoded = bytearray()
    chunks = _unquote(url, content, name, deadline)
    for chunk in _decode_base64(chunks, name) if is_base64 else chunks:
        decoded += chunk
        limit.check(name, len(decoded), at_least=True)
    return decoded


def _unquote(url: str, start: int, name: str, deadline: Deadline) -> Iterator[bytes]:
    """Yield the percent-decoded text from ``start`` on, in chunks: at once it would take many times its memory."""
    while start < len(url):
        deadline.check(f"decoding the {name}")
        end = start + _CHUNK_CHARACTERS
        # do not split an escape
        if end < len(url) and (cut := url.rfind("%", end - 2, end)) >= 0:
            end = cut
        try:
            chunk = unquote_to_bytes(url[start:end])
        except UnicodeEncodeError:  # a lone surrogate
            raise SourceError(f"{name}: contains a lone surrogate, which no text can contain") from None
        yield chunk
        start = end


def _decode_base64(chunks: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Decode base64 of either alphabet (RFC 4648, sections 4 and 5), with blanks and with or without padding."""
    rest = b""
    for chunk in chunks:
        # split and replace are far faster than translate
        text = rest + b"".join(chunk.replace(b"-", b"+").replace(b"_", b"/").split())
        # "=" is allowed at the end only, so a group of four that may have it waits
        ready = len(text.rstrip(b"=")) // 4 * 4
        rest = text[ready:]
        if len(rest) > 8 or b"=" in text[:ready]:
            raise SourceError(f"{name}: the base64 has padding in the middle; encode and send it again")
        yield _a2b(text[:ready], name)
    digits = rest.rstrip(b"=")
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
    """Return the local path that a ``file:`` URL (RFC 8089) names."""
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
