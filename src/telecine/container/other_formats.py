"""Names of formats that are not read, for error messages."""

from __future__ import annotations

import re

__all__ = ["refused_format"]

_FORMATS = {
    rb"RIFF....WEBP": "WebP",
    rb"\.RMF": "RealMedia",
    rb"\x00{4}\x01\xbc": "GXF",
    rb"\s*--[^\r\n]+\r?\n(?:[^\r\n]+\r?\n)*?Content-type: *image/jpeg": "multipart MJPEG",
    # start code, and a NAL unit header of OPI, DCI, VPS, SPS or an access unit delimiter (ITU-T H.266, 7.3.1.2)
    rb"\x00{2,3}\x01\x00[\x61\x69\x71\x79\xa1]": "raw VVC",
    rb"\xff\xd8\xff": "JPEG",
}
"""Names by the start of a file."""
_MP4_START = re.compile(rb"\x00\x00\x00.ftyp", re.DOTALL)
_HEAD_BYTES, _MAX_PHOTO_BYTES = 1024, 64 << 20


def refused_format(data: memoryview) -> str | None:
    """Return the sentence that names the format of a file which FFmpeg may not open; None if it is unknown."""
    head = bytes(data[:_HEAD_BYTES])
    for start, name in _FORMATS.items():
        if not re.match(start, head, re.DOTALL | re.IGNORECASE):
            continue
        if name == "JPEG" and (video := _MP4_START.search(data[:_MAX_PHOTO_BYTES])):
            return f"a motion photo: a JPEG picture with an MP4 video behind it; give the bytes from {video.start()} on"
        return f"{name} is not read; convert it, to MP4 for example"
    return None
