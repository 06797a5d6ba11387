"""Clips on which video readers fail: wrong headers, unusual times, truncation, damage, rare formats."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from support import byte_edits
from support.clip import CLIPS, declare
from support.clips_by_codec import VPX, X264, X265, X265_BASE, x264, x265
from support.recipes import Recipe, derive, edit, encode

__all__ = ["EXPECTED_COLOURS"]

# Containers and headers
_SMALL: dict[str, Any] = {"size": (96, 64)}
_FAST = "-c:v libx264 -preset ultrafast -threads 1 -pix_fmt yuv420p"
declare("base.mp4", "", encode(f"{_FAST} -g 30", **_SMALL), codec="h264")  # moov comes last
declare(
    "no_duration.webm",
    "hostile no_count no_duration",
    encode(f"-c:v libvpx {VPX} -deadline realtime -cpu-used 8", **_SMALL, to_pipe=True),
    codec="vp8",
)
declare(
    "no_stream_duration.webm",
    "hostile no_count",
    encode(f"-c:v libvpx {VPX} -deadline realtime", **_SMALL),
    codec="vp8",
)
declare(
    "long.mp4",
    "bframes long_gop",
    encode(
        "-c:v libx264 -preset medium -threads 1 -pix_fmt yuv420p -g 120 -bf 2 -sc_threshold 0", **_SMALL, frames=120
    ),
    codec="h264",
)
declare(
    "trimmed.mp4",
    "hostile core trimmed",
    derive("-ss 2.7 -i {long.mp4} -t 0.33 -c copy"),
    num_frames=12,
    # the cut is made in decode order, so that the frame with number 92 is missing before the last one
    numbers=(*range(81, 92), 93),
    uneven=(*(k / 30 for k in range(11)), 0.4),
    header_frames=93,
)
declare(
    "fragmented.mp4",
    "hostile no_count",
    derive("-i {base.mp4} -c copy -movflags frag_keyframe+empty_moov+default_base_moof"),
)
declare(
    "offset.ts", "hostile no_count offset", derive("-i {base.mp4} -c copy -f mpegts -output_ts_offset 600"), start=601.4
)

# Rotation: the pictures are stored rotated, so that a number is readable only if the rotation is applied once
for _turn in (90, 180, 270):
    for _kind in ("mp4", "mkv"):
        _source = f"part_turn{_turn}.mp4"
        if _source not in CLIPS:
            _recipe = encode(f"{_FAST} -g 30", size=(96, 128) if _turn % 180 else (128, 96), frames=30, turn=_turn)
            declare(_source, "part", _recipe, codec="h264", painted=False)
        declare(
            f"rotated{_turn}.{_kind}",
            f"hostile rotation {'core' if _turn == 90 else ''} {'no_count' if _kind == 'mkv' else ''}",
            derive(f"-display_rotation {-_turn} -i {{{_source}}} -c copy"),
            width=CLIPS[_source].height if _turn % 180 else CLIPS[_source].width,
            height=CLIPS[_source].width if _turn % 180 else CLIPS[_source].height,
            painted=True,
            numbers=tuple(range(30)),
            rotation=_turn,
        )

_recipe = encode(f"{_FAST} -g 30", size=(96, 128), frames=30, turn=90, mirror=True)
declare("part_mirror.mp4", "part", _recipe, codec="h264", painted=False)
declare(
    "mirrored.mp4",
    "hostile rotation",
    derive("-display_rotation -90 -display_hflip -i {part_mirror.mp4} -c copy"),
    width=96,
    height=128,
    painted=True,
    numbers=tuple(range(30)),
    rotation=90,
    mirrored=True,
)

# Unusual times
declare(
    "vfr.mp4",
    "hostile core vfr",
    encode(f"""{_FAST} -vf "setpts='if(lt(N,30),N,30+(N-30)*4)/30/TB'" -fps_mode vfr""", **_SMALL),
    codec="h264",
    uneven=(*(k / 30 for k in range(30)), *(1 + 4 * k / 30 for k in range(30))),
)
declare(
    "screen.mkv",  # times in whole milliseconds: the guessed rate is 1000
    "hostile vfr no_count",
    encode(
        f"""{_FAST} -vf "settb=1/1000,setpts='33*N+mod(7*N,11)'" -fps_mode passthrough -enc_time_base 1/1000""",
        **_SMALL,
    ),
    codec="h264",
    uneven=tuple((33 * k + 7 * k % 11) / 1000 for k in range(60)),
)
declare("ntsc.mp4", "hostile ntsc", encode(_FAST, **_SMALL, rate="30000/1001"), codec="h264")
declare("film.mp4", "hostile ntsc", encode(_FAST, **_SMALL, rate="24000/1001"), codec="h264")
declare(
    "repeated_times.mkv",
    "hostile no_count",
    derive("-i {base.mp4} -c copy -bsf:v setts=ts='TS-mod(N\\,2)*512'"),
    uneven=tuple(k // 2 / 15 for k in range(60)),
)
declare("few_times.ts", "hostile no_count bframes", edit(byte_edits.drop_timestamps, "h264.ts", every=8))
declare(
    "early.mp4",
    "hostile",
    derive("-i {base.mp4} -c copy -output_ts_offset -0.5 -avoid_negative_ts disabled"),
    num_frames=45,
    numbers=tuple(range(15, 60)),
    header_frames=60,
)
declare(
    "negative_offsets.mp4", "hostile bframes", derive("-i {h264_pyramid.mp4} -c copy -movflags negative_cts_offsets")
)
declare(
    "no_edit_list.mp4", "hostile bframes offset", derive("-i {h264_pyramid.mp4} -c copy -use_editlist 0"), start=2 / 30
)
declare(
    "late_video.mp4",  # sound starts at 0, pictures at 0.5 s
    "hostile audio offset",
    derive("-itsoffset 0.5 -i {base.mp4} -f lavfi -i sine=d=3 -map 0 -map 1 -c:v copy -c:a aac"),
    start=0.5,
)

# Several streams
declare("audio.mp4", "audio hostile", derive("-f lavfi -i sine=d=1 -c:a aac"), codec=None, painted=False)
declare(
    "interleaved.mp4",
    "audio",
    derive("-i {h264_pyramid.mp4} -f lavfi -i sine=d=2 -map 1 -map 0 -c:v copy -c:a aac"),
    stream=1,
)
_recipe = encode(f"{_FAST} -g 30", size=(192, 128), first=1000, seed=1)
declare("part_large.mp4", "part", _recipe, codec="h264")
declare("two_videos.mkv", "hostile no_count", derive("-i {base.mp4} -i {part_large.mp4} -map 0 -map 1 -c copy"))
declare("part_cover.png", "part no_count", encode("-frames:v 1", **_SMALL, frames=1, first=4000), codec="png")
declare(
    "part_cover.mp4",
    "part",
    derive("-i {base.mp4} -i {part_cover.png} -map 1 -map 0 -c copy -disposition:v:0 attached_pic"),
)
declare("cover_first.mp4", "hostile", edit(byte_edits.art_first, "part_cover.mp4"), stream=1)

# Sizes and formats
declare("one_frame.mp4", "hostile core short", encode(_FAST, **_SMALL, frames=1), codec="h264")
declare("two_frames.mp4", "hostile short", encode(_FAST, **_SMALL, frames=2), codec="h264")
declare(
    "h264_10bit.mp4",
    "hostile core",
    encode(f"{X264} -pix_fmt yuv420p10le -g 24", frames=30),
    codec="h264",
    bit_depth=10,
)
declare("h264_444.mp4", "hostile 444", encode(f"{X264} -pix_fmt yuv444p -g 24", frames=30), codec="h264")
declare("h264_422.mp4", "hostile", encode(f"{X264} -pix_fmt yuv422p -g 24", frames=30), codec="h264")
declare("h264_gray.mp4", "hostile", encode(f"{X264} -pix_fmt gray -g 24", frames=30), codec="h264")
# x264 refuses odd sizes with 4:2:0
declare(
    "odd.webm",
    "hostile core odd no_count",
    encode(f"-c:v libvpx-vp9 {VPX} -deadline realtime -cpu-used 8", size=(95, 63), frames=30),
    codec="vp9",
)
declare(
    "odd_444.mp4", "hostile odd 444", encode(f"{X264} -pix_fmt yuv444p -g 24", size=(95, 63), frames=30), codec="h264"
)
declare("wide.mp4", "hostile", encode(f"{_FAST} -vf setsar=4/3", **_SMALL), codec="h264")  # pixels that are not square
declare("twin532.mp4", "hostile twin", encode(f"{_FAST} -g 30", size=(320, 532), frames=30, seed=2), codec="h264")
declare("twin530.mp4", "hostile twin", encode(f"{_FAST} -g 30", size=(320, 530), frames=30, seed=3), codec="h264")
declare(
    "interlaced.mp4",  # two pictures in each frame, so no number is readable
    "hostile interlaced",
    encode(
        "-vf tinterlace=interleave_top -flags +ilme+ildct -c:v libx264 -threads 1 -x264-params tff=1 -pix_fmt yuv420p",
        **_SMALL,
        rate="60",
    ),
    codec="h264",
    painted=False,
    num_frames=30,
    fps=Fraction(30),
)
x264("part_small.h264", "keyint=30:bframes=0", "part raw no_count", **_SMALL, frames=30)
x264("part_bigger.h264", "keyint=30:bframes=0", "part raw no_count", size=(160, 96), frames=30, first=30)
declare(
    "part_sizes.h264",
    "part raw no_count",
    edit(byte_edits.join, "part_small.h264", "part_bigger.h264"),
    num_frames=60,
    numbers=tuple(range(60)),
)
declare("size_change.ts", "hostile size_change no_count", derive("-r 30 -i {part_sizes.h264} -c copy"), start=1.4)

# Colour: one flat picture, 0xC04020, and the values that it must be decoded to
EXPECTED_COLOURS: dict[str, tuple[int, int, int]] = {}
"""RGB of the flat clips, each channel within 2; a wrong matrix or range differs by at least 8 in one channel."""


def _flat(name: str, matrix: str, levels: str, more: str, expected: tuple[int, int, int]) -> None:
    source = "-f lavfi -i color=c=0xC04020:s=64x64:r=10:d=1,format=gbrp"
    scale = f"scale=out_color_matrix={matrix}:out_range={levels},format=yuv420p"
    recipe = derive(f"{source} -vf {scale}{more.format(levels=levels)}")
    facts = {"width": 64, "height": 64, "num_frames": 10, "fps": Fraction(10), "painted": False}
    declare(name, "hostile colour", recipe, codec="h264", **facts)
    EXPECTED_COLOURS[name] = expected


_QP1 = " -c:v libx264 -threads 1 -qp 1"
_BT709 = f"{_QP1} -colorspace bt709 -color_primaries bt709 -color_trc bt709 -color_range {{levels}}"
_BT601 = f"{_QP1} -colorspace smpte170m -color_primaries smpte170m -color_trc smpte170m -color_range {{levels}}"
_BT2020 = f"{_QP1} -colorspace bt2020nc -color_primaries bt2020 -color_trc bt2020-10 -color_range {{levels}}"
# this ffmpeg passes the matrix on from the filters to the encoder, so it has to be removed
_UNTAGGED = f",setparams=colorspace=unknown:color_primaries=unknown:color_trc=unknown:range=unknown{_QP1}"
_flat("colour_bt709_tv.mp4", "bt709", "tv", _BT709, (190, 62, 30))
_flat("colour_bt709_pc.mp4", "bt709", "pc", _BT709, (191, 63, 31))
_flat("colour_smpte170m_tv.mp4", "smpte170m", "tv", _BT601, (190, 62, 31))
_flat("colour_smpte170m_pc.mp4", "smpte170m", "pc", _BT601, (191, 64, 31))
_flat("colour_bt2020nc_tv.mp4", "bt2020", "tv", _BT2020, (190, 62, 30))
_flat("colour_untagged.mp4", "smpte170m", "tv", _UNTAGGED, (190, 62, 31))


def _tagged(pixels: str, matrix: str, levels: str, primaries: str, transfer: str) -> str:
    """Return options that convert pictures to a matrix and range and tag them; this ffmpeg takes tags from filters."""
    tags = f"setparams=color_primaries={primaries}:color_trc={transfer}"
    return f"-vf scale=out_color_matrix={matrix}:out_range={levels},format={pixels},{tags} -pix_fmt {pixels}"


_PQ = _tagged("yuv420p10le", "bt2020", "tv", "bt2020", "smpte2084")
_HLG = _tagged("yuv420p10le", "bt2020", "tv", "bt2020", "arib-std-b67")
x265("hdr.mp4", "bframes=3", "hostile colour hdr bframes", _PQ, frames=30)
x265("hlg.mkv", "bframes=3", "no_count hostile colour hdr bframes", _HLG, frames=20)
# a portrait video of a phone, stored as landscape
declare(
    "part_hlg.mp4", "part",
    encode(f"{X265} -x265-params {X265_BASE}:bframes=3 {_HLG} -tag:v hvc1", size=(96, 128), frames=20, turn=90),
    codec="hevc", bit_depth=10, painted=False,
)  # fmt: skip
declare(
    "hlg_rotated.mp4", "hostile colour hdr rotation bframes", derive("-display_rotation -90 -i {part_hlg.mp4} -c copy"),
    width=96, height=128, rotation=90, painted=True, numbers=tuple(range(20)),
)  # fmt: skip
_FULL = _tagged("yuv420p10le", "bt2020", "pc", "bt2020", "bt2020-10")
declare(
    "h264_bt2020_full.mp4", "hostile colour", encode(f"-c:v libx264 -threads 1 {_FULL} -g 12", (96, 64), frames=20),
    codec="h264", bit_depth=10,
)  # fmt: skip
_P3 = _tagged("yuv420p", "bt709", "tv", "smpte432", "iec61966-2-1")
declare(
    "display_p3.mp4",
    "hostile colour",
    encode(f"-c:v libx264 -threads 1 {_P3} -g 12", (96, 64), frames=20),
    codec="h264",
)
_VP9_FULL = _tagged("yuv420p", "bt709", "pc", "bt709", "bt709")
declare(
    "vp9_bt709_full.webm", "no_count hostile colour",
    encode(f"-c:v libvpx-vp9 {VPX} -deadline realtime -cpu-used 8 {_VP9_FULL}", (96, 64), frames=20),
    codec="vp9",
)  # fmt: skip

# Open GOPs that were cut: pictures that refer to missing ones are neither shown nor counted
x265("part_ogop.mp4", "bframes=4:open-gop=1:keyint=30:min-keyint=30", "part", **_SMALL, frames=90)


def _tail(name: str, tags: str, recipe: Recipe, first: int, header_frames: int, start: float) -> None:
    last = CLIPS[recipe.needs[0]].num_frames
    numbers = tuple(range(first, last))
    declare(name, tags, recipe, num_frames=len(numbers), numbers=numbers, header_frames=header_frames, start=start)


# An older ffmpeg kept one picture without its references; this one keeps four and flags them to be discarded. Without
# the first key frame, everything up to the next one is discarded.
_tail("hevc_cut.mp4", "hostile core open_gop bframes", derive("-ss 1.0 -i {part_ogop.mp4} -c copy"), 30, 64, 0.0)
_DROP = """-i {%s} -c copy -bsf:v "noise=drop='lt(n,%d)'" """
_tail("hevc_cra_first.mp4", "hostile open_gop bframes", derive(_DROP % ("part_ogop.mp4", 26)), 30, 64, 1.0)
_tail(
    "hevc_no_first_key.mp4", "hostile open_gop bframes no_first_key", derive(_DROP % ("part_ogop.mp4", 29)), 60, 61, 2.0
)
_tail("h264_cut.mp4", "hostile core open_gop bframes", derive(_DROP % ("h264_open_gop.mp4", 21)), 24, 39, 0.8)
_tail("no_first_key.mp4", "hostile no_first_key", derive(_DROP % ("base.mp4", 1)), 30, 59, 1.0)

# Truncated files, wrong headers
declare(
    "no_moov.mp4", "hostile", edit(byte_edits.cut, "base.mp4", fraction=0.6), codec=None, painted=False, num_frames=0
)
declare("part_faststart.mp4", "part", derive("-i {base.mp4} -c copy -movflags +faststart"))
declare(
    "truncated.mp4",  # the last packet is cut in the middle
    "hostile damaged truncated",
    edit(byte_edits.cut, "part_faststart.mp4", fraction=0.6),
    num_frames=35,
    numbers=tuple(range(35)),
    lost=(34,),
    damaged_from="base.mp4",
    header_frames=60,
)
declare(
    "truncated.ts",
    "hostile truncated no_count",
    edit(byte_edits.cut_behind_picture, "h264.ts", pictures=34),
    num_frames=34,
    numbers=(*range(32), 33, 36),
    uneven=(*(k / 30 for k in range(32)), 1.1, 1.2),
)
declare(
    "truncated.mkv",
    "hostile truncated no_count",
    edit(byte_edits.cut, "h264.mkv", fraction=0.6),
    num_frames=32,
    numbers=(*range(31), 36),
    uneven=(*(k / 30 for k in range(31)), 1.2),
)
declare(
    "truncated.avi",
    "hostile damaged truncated",
    edit(byte_edits.cut, "mpeg4.avi", fraction=0.6),
    num_frames=35,
    numbers=tuple(range(35)),
    damaged=(34,),
    damaged_from="mpeg4.avi",
    header_frames=60,
)
declare("wrong_count.avi", "hostile core", edit(byte_edits.claim_frames, "mpeg4.avi", count=90), header_frames=90)


def _noisy(name: str, of: str, index: int, spared: int = 0, **outcome: Any) -> None:
    """Declare a clip with noise in the second half of a packet, given by its number in decode order."""
    recipe = edit(byte_edits.noise_in_packet, of, index=index, spared=spared)
    declare(name, "hostile damaged noise", recipe, damaged_from=of, **outcome)


# ffmpeg hides damage: it shows frame 14 as a copy of frame 12, and in the HEVC clips it does not even flag a frame
_noisy("noise_disposable.mp4", "h264_pyramid_none.mp4", 15, damaged=(14,))
_noisy("noise_reference.mp4", "h264_pyramid_none.mp4", 9, damaged=tuple(range(9, 24)))
_noisy("noise_key.mp4", "h264_pyramid_none.mp4", 24, damaged=tuple(range(24, 48)))
_noisy("noise_disposable_hevc.mp4", "hevc.mp4", 9, damaged=(7,))
_noisy("noise_reference_hevc.mp4", "hevc.mp4", 26, damaged=(*range(25, 29), *range(30, 48)))
# the hash of the picture is in the last 58 bytes of its packet, after the noise
_noisy("noise_reference_hevc_hash.mp4", "hevc_hash.mp4", 26, spared=60, damaged=(*range(25, 29), *range(30, 48)))
_noisy("noise_av1.mp4", "av1_svt.mp4", 30, lost=(30,))

# a whole packet is missing, and nothing in the container shows it; the numbers on the pictures do
declare(
    "missing_reference.mp4",
    "part hostile",
    derive("-i {h264_medium.mp4} -c copy -bsf:v noise=drop='eq(n\\,26)'"),
    num_frames=59,
    uneven=tuple(k / 30 for k in range(60) if k != 26),
    numbers=(),
    painted=False,
)
