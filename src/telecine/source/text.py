"""Descriptions of text that was given in place of a video, so that error messages can name it."""

from __future__ import annotations

import codecs
import re

__all__ = ["PLAIN_TEXT", "describe_text"]

PLAIN_TEXT = "text, not a video"
"""Description of text of no known kind."""
_HEAD_BYTES = 4096
"""Bytes at the start of a source that decide if it is text."""
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f]")

_NO_PLAYLIST = "not a video; telecine follows no playlist: give the video itself"
# FFmpeg recognises these by their first bytes alone, and would open the files and addresses that they list
_PLAYLISTS = {
    b"#extm3u": "an HLS playlist (m3u8)",
    b"ffconcat version": "an ffconcat list",
    b"v=0\n": "an SDP session description",
    b"v=0\r\n": "an SDP session description",
}
_DOCUMENTS = {
    b"version https://git-lfs.github.com/spec/": "a Git-LFS pointer, not the video: run git lfs pull",
    b"<!doctype html": "an HTML page, not a video: likely an error or login page; check where it was downloaded from",
    b"<": "XML text, not a video; an XML answer is often the error message of a storage service",
    b"{": "JSON text, not a video; it is often the error message of a server",
    b"[": "JSON text, not a video; it is often the error message of a server",
    b"data:": "the text of a data: URL in bytes; give it as a str",
}
"""Description of text by its start; the first match counts."""


def describe_text(data: memoryview) -> str | None:
    """Return a description of the text in ``data``, or None if it may be a video."""
    head = bytes(data[:_HEAD_BYTES])
    start = head.removeprefix(codecs.BOM_UTF8).lstrip().lower()
    for signature, kind in _PLAYLISTS.items():
        if start.startswith(signature):
            return f"{kind}, {_NO_PLAYLIST}"
    if _BINARY.search(head):
        return None
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head, final=len(data) <= _HEAD_BYTES)
    except UnicodeDecodeError:
        return None
    if b"<mpd" in start:
        return f"a DASH manifest (MPD), {_NO_PLAYLIST}"
    if b"<html" in start:
        return _DOCUMENTS[b"<!doctype html"]
    return next((text for signature, text in _DOCUMENTS.items() if start.startswith(signature)), PLAIN_TEXT)
