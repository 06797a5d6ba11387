"""Clips whose containers have wrong times or flags, for ``test_true_frames.py``."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

from support import recipes
from support.byte_edits import join
from support.recipes import Recipe, derive, edit, encode

__all__ = ["DAMAGES", "clip", "damaged"]

_SMALL = (96, 64)
_TS_PACKET = 188


def clip(name: str) -> Path:
    """Return the path of a clip; make it on first use."""
    return recipes.make(name, _RECIPES)


def _without_index(data: bytes) -> bytes:
    """Return an AVI file without its index, as a recorder leaves it that was switched off."""
    shortened = data[: data.rindex(b"idx1")]
    return shortened[:4] + struct.pack("<I", len(shortened) - 8) + shortened[8:].replace(b"odml", b"junk")


def _all_key(data: bytes) -> bytes:
    """Return an AVI file whose index flags every picture as a key frame."""
    edited = bytearray(data)
    at = data.rindex(b"idx1")
    (size,) = struct.unpack_from("<I", data, at + 4)
    for entry in range(at + 8, at + 8 + size, 16):
        struct.pack_into("<I", edited, entry + 4, 0x10)  # AVIIF_KEYFRAME
    return bytes(edited)


def _decoding_times(data: bytes) -> bytes:
    """Return an MP4 file with decoding times in place of presentation times."""
    assert data.count(b"ctts") == data.count(b"edts") == 1
    return data.replace(b"ctts", b"free").replace(b"edts", b"free")


def _with_edits(data: bytes, edits: list[tuple[int, int]]) -> bytes:
    """Return an MP4 file with another edit list.

    Args:
        data: a file whose movie box comes after the media, so that no offset changes.
        edits: for each entry its duration in ticks of the movie, and its start in ticks of the media, -1 for a gap.
    """
    entries = b"".join(struct.pack(">IiHH", duration, start, 1, 0) for duration, start in edits)
    box = _box(b"edts", _box(b"elst", struct.pack(">4xI", len(edits)) + entries))
    return b"".join(_replaced(data, (b"moov", b"trak", b"edts"), box))


def _replaced(data: bytes, path: tuple[bytes, ...], box: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        if kind != path[0]:
            yield data[at : at + size]
        elif len(path) == 1:
            yield box
        else:
            yield _box(kind, b"".join(_replaced(data[at + 8 : at + size], path[1:], box)))
        at += size


def _box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", len(content) + 8, kind) + content


def _broken_link(data: bytes) -> bytes:
    """Return MPEG-2 without its second group of pictures; the header of the third one has the flag broken_link."""
    starts = [at for at in range(len(data)) if data.startswith(b"\0\0\1\xb3", at)]  # each group has a sequence header
    third = bytearray(data[starts[2] :])
    third[third.index(b"\0\0\1\xb8") + 7] |= 0x20  # broken_link
    return data[: starts[1]] + bytes(third)


DAMAGES = [
    *(("h264.ts", seed) for seed in (8, 35, 39)),
    *(("h264_p.ts", seed) for seed in (11,)),
    *(("h264_open.ts", seed) for seed in (7, 12)),
    *(("hevc_open.ts", seed) for seed in (2, 6, 32)),
    *(("mpeg2.ts", seed) for seed in (4, 7, 36)),
]
"""Transport streams with seeds of damage that no decoder reports in every frame that it affects."""


def damaged(data: bytes, seed: int) -> bytes:
    """Return a transport stream after bad reception: packets are missing, or are noise that is flagged as such."""
    chance = random.Random(seed)
    count = chance.choice([1, 1, 2, 3, 4, 6, 10, 20])
    at = chance.randrange(5, len(data) // _TS_PACKET - count) * _TS_PACKET
    if seed % 3 != 2:
        return data[:at] + data[at + count * _TS_PACKET :]
    noisy = bytearray(data)
    for start in range(at, at + count * _TS_PACKET, _TS_PACKET):
        noisy[start + 1] |= 0x80  # transport_error_indicator
        noisy[start + 20 : start + _TS_PACKET] = chance.randbytes(_TS_PACKET - 20)
    return bytes(noisy)


def _small(arguments: str, frames: int = 24, first: int = 0) -> Recipe:
    return encode(arguments, _SMALL, frames, first=first)


_X264 = "-c:v libx264 -threads 1 -pix_fmt yuv420p -x264-params keyint=12:min-keyint=12:scenecut=0:b-adapt=0"
_X265 = (
    "-c:v libx265 -pix_fmt yuv420p -x265-params"
    " log-level=none:pools=none:frame-threads=1:keyint=12:min-keyint=12:scenecut=0:b-adapt=0:bframes=3"
)
_SVT = "-c:v libsvtav1 -preset 10 -crf 40 -g 16 -pix_fmt yuv420p -svtav1-params lp=1"
_VP9 = "-c:v libvpx-vp9 -threads 1 -b:v 200k -g 16 -cpu-used 8 -lag-in-frames 12 -auto-alt-ref 1"
_BEFORE_OVERFLOW = "-c copy -muxdelay 0 -muxpreload 0 -output_ts_offset 95442.9"

_RECIPES: dict[str, Recipe] = {
    "h263.avi": encode("-c:v h263 -g 12 -q:v 4", (176, 144), 24),
    "h263.mkv": encode("-c:v h263 -g 12 -q:v 4", (176, 144), 24),
    "xvid_packed.avi": _small("-c:v libxvid -g 15 -bf 2", 48),
    "mpeg4_interlaced.avi": _small("-c:v mpeg4 -g 12 -bf 2 -flags +ilme+ildct -q:v 3", 36),
    "mpeg4_interlaced.mp4": _small("-c:v mpeg4 -g 12 -bf 2 -flags +ilme+ildct -q:v 3", 36),
    "hevc_fields.mp4": _small(f"{_X265}:interlace=tff"),
    "h264.mp4": _small(f"{_X264}:bframes=3 -video_track_timescale 30000", 48),
    "h264.ts": derive("-i {h264.mp4} -c copy"),
    "h264_p.ts": _small(f"{_X264}:bframes=0", 48),
    "h264_open.ts": _small(f"{_X264}:bframes=3:open-gop=1", 48),
    "hevc_open.ts": _small(f"{_X265}:open-gop=1", 48),
    "mpeg2.ts": _small("-c:v mpeg2video -threads 1 -g 12 -bf 2 -q:v 3", 48),
    "overflow_h264.ts": derive(f"-i {{h264.ts}} {_BEFORE_OVERFLOW}"),
    "overflow_mpeg2.ts": derive(f"-i {{mpeg2.ts}} {_BEFORE_OVERFLOW}"),
    "late_12.ts": _small(f"{_X264}:bframes=3 -output_ts_offset 5", 12, 200),
    "early_20.ts": _small(f"{_X264}:bframes=3", 20, 100),
    "joined_h264.ts": edit(join, "late_12.ts", "early_20.ts"),
    "late_30.ts": _small("-c:v mpeg2video -threads 1 -g 12 -bf 2 -q:v 3 -output_ts_offset 0.345", 30, 50),
    "early_30.ts": _small("-c:v mpeg2video -threads 1 -g 12 -bf 2 -q:v 3", 30),
    "joined_mpeg2.ts": edit(join, "late_30.ts", "early_30.ts"),
    "h264.mxf": derive("-i {h264.mp4} -c copy"),
    "h264_no_ctts.mp4": edit(_decoding_times, "h264.mp4"),
    "edits.mp4": edit(_with_edits, "h264.mp4", edits=[(167, (2 + 12 * edit) * 1000) for edit in range(4)]),
    "edits_reversed.mp4": edit(_with_edits, "h264.mp4", edits=[(400, 26_000), (400, 2000)]),
    "edits_and_gap.mp4": edit(_with_edits, "h264.mp4", edits=[(333, 2000), (500, -1), (333, 26_000)]),
    "smc.mov": _small("-c:v smc -g 12 -pix_fmt pal8"),
    "mpeg2.m2v": _small("-c:v mpeg2video -threads 1 -g 12 -bf 2 -q:v 3 -sc_threshold 1000000000", 48),
    "broken_link.m2v": edit(_broken_link, "mpeg2.m2v"),
    "two.mjpeg": _small("-c:v mjpeg -pix_fmt yuvj420p", 2),
    "qtrle.mov": _small("-c:v qtrle -g 12"),
    "msrle.avi": _small("-c:v msrle -g 12 -pix_fmt pal8"),
}
for _codec, _encoder in {
    "flv1": "flv",
    "wmv1": "wmv1",
    "wmv2": "wmv2",
    "msmpeg4v2": "msmpeg4v2",
    "msmpeg4v3": "msmpeg4",
}.items():
    _RECIPES[f"{_codec}.avi"] = _small(f"-c:v {_encoder} -g 12")
    _RECIPES[f"{_codec}_no_index.avi"] = edit(_without_index, f"{_codec}.avi")
    _RECIPES[f"{_codec}_all_key.avi"] = edit(_all_key, f"{_codec}.avi")
for _codec, _options in {
    "av1": _SVT,
    "vp9": _VP9,
    "mjpeg": "-c:v mjpeg -pix_fmt yuvj420p",
    "ffv1": "-c:v ffv1 -g 12 -level 3",
    "mpeg4": "-c:v mpeg4 -g 12 -bf 2",
}.items():
    for _part in (0, 1):
        _RECIPES[f"{_codec}_part{_part}.mkv"] = _small(_options, 20, 100 * _part)
    _RECIPES[f"{_codec}_joined.mkv"] = edit(join, f"{_codec}_part0.mkv", f"{_codec}_part1.mkv")
for _format in ("rgb24", "pal8"):
    for _container in ("avi", "mov"):
        _RECIPES[f"raw_{_format}.{_container}"] = _small(f"-c:v rawvideo -pix_fmt {_format}", 4)
