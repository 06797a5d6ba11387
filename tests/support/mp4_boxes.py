"""MP4 files built box by box (ISO/IEC 14496-12), with tables that claim what they do not hold."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

__all__ = ["GROWING_TABLES", "box", "full_box", "movie", "sound_track", "tables", "track", "words"]

_MATRIX = struct.pack(">9i", 65536, 0, 0, 0, 65536, 0, 0, 0, 1 << 30)
_FTYP = struct.pack(">I4s4sI4s", 20, b"ftyp", b"qt  ", 0x200, b"qt  ")
_MAX = (1 << 31) - 1


def words(*values: int) -> bytes:
    """Return unsigned numbers of four bytes."""
    return struct.pack(f">{len(values)}I", *values)


def box(kind: bytes, *payload: bytes) -> bytes:
    """Return a box."""
    content = b"".join(payload)
    return words(8 + len(content)) + kind + content


def full_box(kind: bytes, *payload: bytes, flags: int = 0) -> bytes:
    """Return a box of version 0 with flags."""
    return box(kind, words(flags), *payload)


def tables(
    samples: int,
    sizes: bytes | None = None,
    duration: int = 10,
    chunks: int = 1,
    chunk_samples: int | None = None,
) -> bytes:
    """Return the sample tables of a track whose samples all have one byte, in chunks at the start of the data."""
    return (
        full_box(b"stts", words(1, samples, duration))
        + (full_box(b"stsz", words(1, samples)) if sizes is None else sizes)
        + full_box(b"stsc", words(1, 1, samples if chunk_samples is None else chunk_samples, 1))
        + full_box(b"stco", words(chunks, *[28] * chunks))
    )


def _description(inside: bytes = b"", kind: bytes = b"jpeg") -> bytes:
    fields = bytes(6) + b"\0\1" + bytes(16) + struct.pack(">HH", 96, 64) + words(0x480000, 0x480000, 0) + b"\0\1"
    return full_box(b"stsd", words(1), box(kind, fields, bytes(32), struct.pack(">Hh", 24, -1), inside))


def track(
    content: bytes, edits: bytes = b"", number: int = 1, handler: bytes = b"vide", description: bytes | None = None
) -> bytes:
    """Return a track of 96x64 JPEG pictures at 1000 ticks a second."""
    header = words(0, 0, number, 0, 1000) + bytes(16) + _MATRIX + words(96 << 16, 64 << 16)
    shape = full_box(b"vmhd", bytes(8), flags=1) if handler == b"vide" else full_box(b"smhd", bytes(4))
    data = box(b"dinf", full_box(b"dref", words(1), full_box(b"url ", flags=1)))
    stbl = box(b"stbl", description or _description(), content)
    media = full_box(b"mdhd", words(0, 0, 1000, 1000), bytes(4)) + full_box(
        b"hdlr", bytes(4), handler, bytes(12), b"\0"
    )
    edited = box(b"edts", edits) if edits else b""
    return box(
        b"trak", full_box(b"tkhd", header, flags=7), edited, box(b"mdia", media, box(b"minf", shape, data, stbl))
    )


def sound_track(content: bytes) -> bytes:
    """Return a track of 16-bit samples at 8 kHz."""
    entry = box(b"sowt", bytes(6), b"\0\1", bytes(8), struct.pack(">4HI", 1, 16, 0, 0, 8000 << 16))
    return track(content, number=2, handler=b"soun", description=full_box(b"stsd", words(1), entry))


def movie(*boxes: bytes) -> bytes:
    """Return a file with a few bytes of data, and a movie box with these boxes."""
    rate = words(0, 0, 1000, 1000) + bytes([0, 1, 0, 0, 1, 0]) + bytes(10)
    header = full_box(b"mvhd", rate, _MATRIX, bytes(24), words(2))
    return _FTYP + box(b"mdat", b"\xff\xd8\xff\xd9" * 4) + box(b"moov", header, *boxes)


def _fragmented(tracks: int = 1) -> bytes:
    extends = box(b"mvex", full_box(b"trex", words(1, 1, 10, 1, 0)))
    return movie(*[track(tables(0), number=1 + number) for number in range(tracks)], extends)


def _fragment(*boxes: bytes) -> bytes:
    header = full_box(b"tfhd", words(1), flags=0x20000)
    return box(b"moof", full_box(b"mfhd", words(1)), box(b"traf", header, *boxes))


def _compressed(size: int) -> bytes:
    data = zlib.compress(bytes(size))
    return _FTYP + box(b"moov", box(b"cmov", box(b"dcom", b"zlib"), box(b"cmvd", words(size), data)))


def _inside_compressed() -> bytes:
    moov = movie(track(tables(1 << 26)))
    moov = moov[moov.index(b"moov") - 4 :]
    return _FTYP + box(
        b"moov", box(b"cmov", box(b"dcom", b"zlib"), box(b"cmvd", words(len(moov)), zlib.compress(moov)))
    )


def _edits(*rows: int) -> bytes:
    return full_box(b"elst", words(3000), words(*rows) * 3000)


GROWING_TABLES: dict[str, Callable[[], bytes]] = {
    "samples of one size": lambda: movie(track(tables(1 << 26))),
    "samples of one size in a track of sound": lambda: movie(track(tables(1)), sound_track(tables(1 << 26))),
    "samples of one size in a compressed movie": _inside_compressed,
    "samples of one size inside a description": lambda: movie(
        track(b"", description=_description(full_box(b"stsz", words(1, 1 << 26))) + tables(1 << 26, b""))
    ),
    "samples of four bits": lambda: movie(
        track(tables(1 << 25, full_box(b"stz2", words(4, 1 << 25), b"\x11" * (1 << 24))))
    ),
    "samples of one size in two tracks": lambda: movie(*[track(tables(1_000_000), number=n) for n in (1, 2)]),
    "movie in a free box": lambda: movie(track(tables(1 << 26))).replace(b"moov", b"free"),
    "fragment without fields": lambda: _fragmented() + _fragment(full_box(b"trun", words(1 << 26))),
    "fragments of a million samples": lambda: _fragmented() + _fragment(full_box(b"trun", words(1_000_000))) * 30,
    "encryption of many samples": lambda: _fragmented() + _fragment(full_box(b"senc", words(1 << 26))),
    "compressed movie": lambda: _compressed(600 << 20),
    "edits that repeat the track": lambda: movie(track(tables(20_000), _edits(200_000, 0, 65536))),
    "edits after a single key frame": lambda: movie(
        track(tables(20_000) + full_box(b"stss", words(1, 1)), _edits(10, 199_000, 65536))
    ),
    "empty fragments for many tracks": lambda: _fragmented(900) + box(b"moof") * 30_000,
    "segment index for many tracks": lambda: (
        _fragmented(900)
        + full_box(b"sidx", words(1, 1000, 0, 0), struct.pack(">HH", 0, 60_000), words(8, 1, 0) * 60_000)
    ),
    "large chunks of sound": lambda: movie(
        track(tables(1)), sound_track(tables(_MAX, duration=1, chunks=20, chunk_samples=1 << 30))
    ),
    "metadata keys": lambda: movie(
        track(tables(1)),
        box(b"meta", full_box(b"hdlr", bytes(4), b"mdta", bytes(12), b"\0"), full_box(b"keys", words(1 << 27))),
    ),
}
"""Files of 0.6 kB to 17 MB whose tables make FFmpeg take up to 3 GB, by name."""
