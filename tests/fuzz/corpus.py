"""The intact files that the fuzzer starts from: small painted clips in many codecs and containers, made by recipes."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

import telecine
from fuzz.payload import locate
from support import recipes
from support.ffmpeg_cli import reference
from support.recipes import Recipe, derive, encode

__all__ = ["INTRA_CODECS", "SEEDS", "Seed", "SeedPacket", "load_seed"]

_MAX_LEADING = 8
"""Upper bound of the pictures that follow an open random access point and are shown before it."""
_SIZE, _FRAMES = (96, 64), 36
_X264 = (
    "-c:v libx264 -threads 1 -pix_fmt yuv420p -preset fast -x264-params keyint=12:min-keyint=12:scenecut=0:b-adapt=0"
)
_X265 = (
    "-c:v libx265 -preset fast -pix_fmt {} -tag:v hvc1 -x265-params "
    "log-level=none:pools=none:frame-threads=1:keyint=12:min-keyint=12:scenecut=0:b-adapt=0"
)
_VPX = "-threads 1 -b:v 400k -g 12 -keyint_min 12"
_OLD = "-threads 1 -q:v 3 -g 12 -sc_threshold 1000000000 -pix_fmt yuv420p"

INTRA_CODECS = frozenset("mjpeg ffv1 prores png huffyuv".split())
"""Codecs in which every picture stands alone."""
_WITHOUT_SCANNER = frozenset("theora wmv1 wmv2 msmpeg4v2 h263 flv1 svq1 qtrle gif apng".split())
"""Codecs that telecine may decode from the first packet on, so that damage may spread to the end."""
_TABLES = frozenset("mp4 mov".split())
_FRAMED = frozenset("mkv webm avi flv ivf asf nut mxf".split())
_PARSED = frozenset("ts mpg h264 hevc m2v obu ogv gif apng m4v mjpeg".split())


def _paint(arguments: str, frames: int = _FRAMES, **options: bool) -> Recipe:
    return encode(arguments, size=_SIZE, frames=frames, two_pass=options.get("two_pass", False))


def _recipes() -> dict[str, Recipe]:
    made = {
        "h264.mp4": _paint(f"{_X264}:bframes=3"),
        "h264_baseline.mp4": _paint(f"{_X264} -profile:v baseline"),
        "h264_open_gop.mp4": _paint(f"{_X264}:bframes=3:open-gop=1"),
        "h264_slices.mp4": _paint(f"{_X264}:bframes=2:slices=4"),
        "h264_interlaced.mp4": _paint(f"{_X264}:bframes=2:tff=1"),
        "hevc.mp4": _paint(f"{_X265.format('yuv420p')}:bframes=4:open-gop=0"),
        "hevc_open_gop.mp4": _paint(f"{_X265.format('yuv420p')}:bframes=4:open-gop=1"),
        "hevc_main10.mp4": _paint(f"{_X265.format('yuv420p10le')}:bframes=3:open-gop=0"),
        "hevc.hevc": _paint(_X265.format("yuv420p").replace("-tag:v hvc1 ", "") + ":bframes=3:open-gop=0"),
        "hevc_hash.mp4": _paint(f"{_X265.format('yuv420p')}:bframes=2:open-gop=0:hash=1"),
        "vp8.webm": _paint(f"-c:v libvpx {_VPX} -deadline realtime -cpu-used 8"),
        "vp8_altref.webm": _paint(
            f"-c:v libvpx {_VPX} -deadline good -cpu-used 5 -auto-alt-ref 1 -lag-in-frames 12", two_pass=True
        ),
        "vp9.webm": _paint(f"-c:v libvpx-vp9 {_VPX} -deadline realtime -cpu-used 8"),
        "vp9_altref.webm": _paint(
            f"-c:v libvpx-vp9 {_VPX} -deadline good -cpu-used 5 -auto-alt-ref 1 -lag-in-frames 12", two_pass=True
        ),
        "av1.mp4": _paint("-c:v libsvtav1 -preset 10 -crf 30 -g 12 -svtav1-params lp=1 -pix_fmt yuv420p"),
        "av1_aom.mp4": _paint(
            "-c:v libaom-av1 -threads 1 -cpu-used 8 -crf 40 -g 12 -lag-in-frames 10 -pix_fmt yuv420p", frames=24
        ),
        "mpeg1.mpg": _paint(f"-c:v mpeg1video {_OLD} -bf 2"),
        "mpeg2.ts": _paint(f"-c:v mpeg2video {_OLD} -bf 2 -flags +cgop"),
        "mpeg4.avi": _paint(f"-c:v mpeg4 {_OLD} -bf 2"),
        "mpeg4_no_b.mp4": _paint(f"-c:v mpeg4 {_OLD}"),
        "mjpeg.avi": _paint("-c:v mjpeg -q:v 3 -pix_fmt yuvj420p", frames=24),
        "ffv1.mkv": _paint("-c:v ffv1 -g 1 -threads 1 -pix_fmt yuv420p", frames=12),
        "prores.mov": _paint("-c:v prores_ks -profile:v 1 -pix_fmt yuv422p10le", frames=12),
        "png.mov": _paint("-c:v png -pix_fmt rgb24", frames=12),
        "huffyuv.avi": _paint("-c:v huffyuv -pix_fmt yuv422p", frames=12),
        "theora.ogv": _paint("-c:v libtheora -q:v 7 -g 12 -pix_fmt yuv420p"),
        "wmv1.asf": _paint(f"-c:v wmv1 {_OLD}"),
        "wmv2.asf": _paint(f"-c:v wmv2 {_OLD}"),
        "msmpeg4v2.avi": _paint(f"-c:v msmpeg4v2 {_OLD}"),
        "h263.mov": _paint(f"-c:v h263p {_OLD}"),
        "flv1.flv": _paint(f"-c:v flv {_OLD}"),
        "svq1.mov": _paint("-c:v svq1 -q:v 3 -g 12 -pix_fmt yuv410p", frames=24),
        "qtrle.mov": _paint("-c:v qtrle -g 12 -pix_fmt rgb24", frames=24),
        "gif.gif": _paint("-c:v gif", frames=24),
        "apng.apng": _paint("-c:v apng -f apng", frames=12),
    }  # fmt: skip
    remuxed = {
        "h264.mp4": "mov mkv ts avi flv nut mxf h264",
        "h264_baseline.mp4": "avi flv mkv", "h264_open_gop.mp4": "ts mkv",
        "h264_interlaced.mp4": "ts", "hevc.mp4": "mkv ts flv", "hevc_open_gop.mp4": "ts mkv", "hevc_hash.mp4": "ts",
        "vp8.webm": "ivf avi", "vp9.webm": "mp4 ivf", "vp9_altref.webm": "mp4", "av1.mp4": "webm ivf obu",
        "mpeg1.mpg": "ts", "mpeg2.ts": "mpg mp4 mkv m2v", "mpeg4.avi": "mp4", "mpeg4_no_b.mp4": "avi mkv",
        "mjpeg.avi": "mov mkv", "ffv1.mkv": "avi",
    }  # fmt: skip
    for source, suffixes in remuxed.items():
        for suffix in suffixes.split():
            made[f"{source.partition('.')[0]}.{suffix}"] = derive(f"-i {{{source}}} -c copy")
    for codec in ("h264", "hevc", "av1"):
        made[f"{codec}_fragmented.mp4"] = derive(
            f"-i {{{codec}.mp4}} -c copy -movflags +frag_keyframe+empty_moov+default_base_moof"
        )
        made[f"{codec}_faststart.mp4"] = derive(f"-i {{{codec}.mp4}} -c copy -movflags +faststart")
    made["h264_delay.mp4"] = derive("-ss 0.4 -i {h264.mp4} -c copy")
    return {f"fuzz_{name}": _with_prefix(recipe) for name, recipe in made.items()}


def _with_prefix(recipe: Recipe) -> Recipe:
    """Rename the clips that a recipe needs, so that no name is that of a clip of the other tests."""
    return derive(recipe.text.removeprefix("ffmpeg ").replace("{", "{fuzz_")) if recipe.needs else recipe


_RECIPES = _recipes()
SEEDS: tuple[str, ...] = tuple(name.removeprefix("fuzz_") for name in _RECIPES)
"""Names of all files, with the container as suffix."""


@dataclass(frozen=True, eq=False)
class SeedPacket:
    """A packet of the video stream, in decode order."""

    data: bytes
    positions: npt.NDArray[np.int64] | None
    """Offset in the file of each byte; None if the container stores it in another form."""
    is_key: bool
    """True for a key frame that is shown; after another one, telecine decodes from the one before."""
    frames_before: int
    """Number of shown pictures before it in decode order."""


@dataclass(frozen=True, eq=False)
class Seed:
    """An intact file, its packets, and its frames as the ffmpeg command line decodes them."""

    name: str
    data: bytes
    path: Path

    @property
    def container(self) -> str:
        """Suffix of the file name."""
        return self.name.rpartition(".")[2]

    @property
    def has_tables(self) -> bool:
        """True if tables say where each packet is, so that damage to packets moves none."""
        return self.container in _TABLES

    @property
    def has_framed_packets(self) -> bool:
        """True if the size of a packet does not follow from its content."""
        return self.container in _TABLES | _FRAMED

    @property
    def is_parsed(self) -> bool:
        """True if FFmpeg finds the limits of packets in their content, so that damage may reach the neighbours."""
        return self.container in _PARSED

    @property
    def has_times(self) -> bool:
        """True if the container stores a time with each packet."""
        if any(note.code == "times-rebuilt" for note in self.info.notes):
            return False
        return self.container in {"mkv", "webm", "flv", "asf", "ts", "mpg", "nut", "ivf", "mp4", "mov"}

    @cached_property
    def codec(self) -> str:
        """FFmpeg's name of the codec."""
        return self.info.codec

    @property
    def is_open_gop(self) -> bool:
        """True if pictures after a key frame may refer to pictures before it."""
        return "open_gop" in self.name or self.codec == "mpeg1video" or self.name.startswith("mpeg4.")

    @property
    def spreads_to_the_end(self) -> bool:
        """True if damage may spread to the end, because key frames are not known for certain."""
        return self.codec in _WITHOUT_SCANNER or self.name == "h264_delay.mp4"

    @cached_property
    def info(self) -> telecine.VideoInfo:
        return telecine.probe(self.data)

    @cached_property
    def pictures(self) -> npt.NDArray[np.uint8]:
        """All frames by the ffmpeg command line, ``uint8 [N, H, W, 3]``."""
        return reference(self.path).frames

    @cached_property
    def times(self) -> npt.NDArray[np.float64]:
        """Time of each frame on the file's own clock, seconds."""
        return telecine.load(self.data, indices=[0]).timeline.seconds() + self.info.start_time

    @cached_property
    def packets(self) -> list[SeedPacket]:
        """All packets of the video stream in decode order."""
        with av.open(io.BytesIO(self.data)) as container:
            read = [(bytes(p), p.is_keyframe) for p in container.demux(video=0) if p.size]
        found = locate(self.data, self.container, [data for data, _ in read])
        packets, shown = [], 0
        for (data, is_key), positions in zip(read, found, strict=True):
            is_shown = self.codec != "vp8" or bool(data[0] & 0x10)
            packets.append(SeedPacket(data, positions, is_key and is_shown, shown))
            shown += is_shown
        return packets

    @cached_property
    def header_offsets(self) -> npt.NDArray[np.int64]:
        """Offsets of all bytes that are not inside a packet: headers, tables and indexes."""
        inside = np.zeros(len(self.data), bool)
        for packet in self.packets:
            if packet.positions is not None:
                inside[packet.positions] = True
        return np.flatnonzero(~inside)

    def frames_at_risk(self, packets: set[int]) -> set[int]:
        """Return the frames that may be lost if these packets are damaged."""
        if self.is_parsed:
            packets = {near for n in packets for near in (n - 1, n, n + 1) if 0 <= near < len(self.packets)}
        count, risk = self.info.num_frames, set[int]()
        keys = [n for n, packet in enumerate(self.packets) if packet.is_key]
        for number in packets:
            if self.codec in INTRA_CODECS:
                risk.add(self.packets[number].frames_before)
                continue
            first = max((key for key in keys if key <= number), default=0)
            later = [self.packets[key].frames_before for key in keys if key > number]
            start, stop = self.packets[first].frames_before, later[0] if later else count
            if self.spreads_to_the_end:
                stop = count
            elif self.is_open_gop:
                start, stop = start - _MAX_LEADING, later[1] + _MAX_LEADING if len(later) > 1 else count
            risk |= set(range(max(0, start), min(stop, count)))
        return risk


@cache
def load_seed(name: str) -> Seed:
    """Return an intact file; make it on first use."""
    path = recipes.make(f"fuzz_{name}", _RECIPES)
    return Seed(name, path.read_bytes(), path)
