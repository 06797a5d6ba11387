"""Valid clips: each codec with the structures that its encoders produce, in several containers.

Pictures are 192x144 unless the clip says otherwise: that is above the smallest size of every hardware decoder.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from support import byte_edits
from support.clip import declare
from support.recipes import derive, edit, encode, field_coded

__all__ = ["GOP", "VPX", "X264", "X265", "X265_BASE", "x264", "x265"]

# H.264. One thread, so that the bits do not depend on the machine.
X264 = "-c:v libx264 -threads 1 -pix_fmt yuv420p"
GOP = "keyint=24:min-keyint=24:scenecut=0:b-adapt=0"


def x264(name: str, parameters: str, tags: str = "", more: str = "", codec: str = "h264", **paint: Any) -> None:
    declare(name, tags, encode(f"{X264} -x264-params {parameters} {more}".strip(), **paint), codec=codec)


_B3 = f"{GOP}:bframes=3:b-pyramid=none"
x264("h264_medium.mp4", "keyint=24", "core")
x264("h264_pyramid_none.mp4", _B3, "bframes")
x264("h264_pyramid_strict.mp4", f"{GOP}:bframes=5:b-pyramid=strict", "bframes")
x264("h264_pyramid.mp4", f"{GOP}:bframes=5:b-pyramid=normal", "core bframes")
x264("h264_no_b.mp4", f"{GOP}:bframes=0")
x264("h264_open_gop.mp4", f"{GOP}:bframes=3:open-gop=1", "core bframes open_gop")
x264("h264_intra_refresh.mp4", "keyint=24:intra-refresh=1:bframes=0", "recovery_point")
x264("h264_long_gop.mp4", "keyint=250:scenecut=0:bframes=3", "core bframes long_gop", frames=120)
x264("h264_all_intra.mp4", "keyint=1", "all_intra")
x264("h264_slices.mp4", f"{_B3}:slices=4", "bframes")
x264("h264_many_refs.mp4", f"{GOP}:bframes=3:ref=8:weightp=2", "bframes")
x264("h264_mbaff.mp4", f"{_B3}:tff=1", "bframes interlaced")
declare("h264_paff.h264", "raw no_count interlaced", field_coded(36), codec="h264", start=None)
declare("h264_paff.mp4", "core interlaced", field_coded(36), codec="h264")
declare("h264_paff.ts", "no_count interlaced", derive("-i {h264_paff.mp4} -c copy"), start=1.4)
x264("h264_baseline.mp4", GOP, more="-profile:v baseline")
x264("h264_keyint4.mp4", "keyint=4:min-keyint=4:scenecut=0:b-adapt=0:bframes=2", "bframes")
x264("h264_uneven_keys.mp4", "keyint=250:scenecut=0:bframes=2", more="-force_key_frames 0.2,0.5,1.7")
x264("h264_raw.h264", _B3, "no_count raw bframes")
declare("h264.ts", "core no_count bframes", derive("-i {h264_pyramid.mp4} -c copy"), start=1.4 + 2 / 30)
declare("h264.mkv", "no_count bframes", derive("-i {h264_pyramid.mp4} -c copy"))
declare("h264.avi", "bframes", derive("-i {h264_pyramid.mp4} -c copy"), start=None, header_frames=1200)
declare("h264.flv", "no_count bframes", derive("-i {h264_pyramid.mp4} -c copy"), start=0.067)
declare(
    "h264_fragmented.mp4",
    "no_count bframes",
    derive("-i {h264_pyramid.mp4} -c copy -movflags +frag_keyframe+empty_moov"),
    start=2 / 30,
)
x264("part_main.h264", _B3, "part raw no_count bframes", more="-profile:v main")
declare("h264_no_vui.h264", "raw no_count bframes", edit(byte_edits.without_vui, "part_main.h264"), fps=Fraction(25))
declare(
    "h264_no_vui.mp4", "bframes", edit(byte_edits.retime, "h264_no_vui.h264", "h264_pyramid_none.mp4"), fps=Fraction(30)
)
declare("h264_no_vui.ts", "no_count bframes", derive("-i {h264_no_vui.mp4} -c copy"), start=1.4 + 1 / 30)
x264("h264_320x240.mp4", f"{GOP}:bframes=3", "bframes", size=(320, 240))

# HEVC
X265 = "-c:v libx265 -preset fast -pix_fmt yuv420p"
X265_BASE = "log-level=none:pools=none:frame-threads=1:keyint=24:min-keyint=24:scenecut=0:b-adapt=0"


def x265(name: str, parameters: str, tags: str = "", more: str = "-tag:v hvc1", **paint: Any) -> None:
    facts = {"bit_depth": 10} if "p10" in more else {}
    arguments = f"{X265} -x265-params {X265_BASE}:{parameters} {more}"
    declare(name, tags, encode(arguments.strip(), **paint), codec="hevc", **facts)


x265("hevc.mp4", "bframes=4:open-gop=0", "core bframes")
x265("hevc_open_gop.mp4", "bframes=4:open-gop=1", "core bframes open_gop")
x265("hevc_no_pyramid.mp4", "bframes=4:b-pyramid=0:open-gop=0", "bframes")
x265("hevc_no_b.mp4", "bframes=0")
x265("hevc_temporal_layers.mp4", "bframes=7:temporal-layers=3:open-gop=0", "bframes")
x265("hevc_radl.mp4", "bframes=4:open-gop=0:radl=2", "bframes")
x265("hevc_main10.mp4", "bframes=4:open-gop=0", "core bframes", "-pix_fmt yuv420p10le -tag:v hvc1")
x265("hevc_444.mp4", "bframes=4:open-gop=0", "bframes 444", "-pix_fmt yuv444p -tag:v hvc1")
x265("hevc_raw.hevc", "bframes=4:open-gop=0", "raw no_count bframes", "")
x265("hevc_hash.mp4", "bframes=4:open-gop=0:hash=1", "bframes")
declare("hevc.ts", "no_count bframes", derive("-i {hevc.mp4} -c copy"), start=1.4 + 2 / 30)
declare("hevc.mkv", "no_count bframes", derive("-i {hevc.mp4} -c copy"))
declare(
    "hevc_kvazaar.mp4",
    "bframes",
    encode("-c:v libkvazaar -kvazaar-params preset=ultrafast,gop=8,period=24,threads=0 -pix_fmt yuv420p -tag:v hvc1"),
    codec="hevc",
)

# VP8, VP9
VPX = "-threads 1 -b:v 600k -g 24"
_LAYERS = (
    "ts_number_layers=3:ts_target_bitrate=200,400,600:ts_rate_decimator=4,2,1:ts_periodicity=4:ts_layer_id=0,2,1,2"
)
declare(
    "vp8_altref.webm",
    "core no_count altref",
    encode(f"-c:v libvpx {VPX} -deadline good -cpu-used 5 -auto-alt-ref 1 -lag-in-frames 16", two_pass=True),
    codec="vp8",
)
declare("vp8_plain.webm", "no_count", encode(f"-c:v libvpx {VPX} -deadline realtime -cpu-used 8"), codec="vp8")
declare(
    "vp8_layers.webm",
    "no_count",
    encode(f"-c:v libvpx {VPX} -deadline realtime -cpu-used 8 -ts-parameters {_LAYERS}:ts_layering_mode=3"),
    codec="vp8",
)
declare(
    "vp9_altref.webm",
    "core no_count altref",
    encode(
        f"-c:v libvpx-vp9 {VPX} -deadline good -cpu-used 5 -auto-alt-ref 6 -lag-in-frames 25", frames=40, two_pass=True
    ),
    codec="vp9",
)
declare("vp9_altref.mp4", "altref milliseconds", derive("-i {vp9_altref.webm} -c copy"))
declare("vp9_realtime.webm", "no_count", encode(f"-c:v libvpx-vp9 {VPX} -deadline realtime -cpu-used 8"), codec="vp9")
declare(
    "vp9_resilient.webm",
    "no_count",
    encode(f"-c:v libvpx-vp9 {VPX} -deadline realtime -cpu-used 8 -error-resilient default"),
    codec="vp9",
)
declare(
    "vp9_layers.webm",
    "no_count",
    encode(f"-c:v libvpx-vp9 {VPX} -deadline realtime -cpu-used 8 -ts-parameters {_LAYERS}:ts_layering_mode=3"),
    codec="vp9",
)
declare(
    "vp9_10bit.webm",
    "no_count",
    encode(f"-c:v libvpx-vp9 {VPX} -deadline realtime -cpu-used 8 -pix_fmt yuv420p10le -profile:v 2"),
    codec="vp9",
    bit_depth=10,
)

# AV1
_SVT = "-c:v libsvtav1 -preset 10 -crf 30 -g 24 -svtav1-params lp=1"
declare("av1_svt.mp4", "core", encode(f"{_SVT} -pix_fmt yuv420p"), codec="av1")
declare("av1_svt.webm", "no_count", derive("-i {av1_svt.mp4} -c copy"))
declare("av1_svt_10bit.mp4", "", encode(f"{_SVT} -pix_fmt yuv420p10le"), codec="av1", bit_depth=10)
declare(
    "av1_aom.mp4",
    "altref",
    encode(
        "-c:v libaom-av1 -threads 1 -cpu-used 8 -crf 40 -g 24 -lag-in-frames 19 -auto-alt-ref 1 -pix_fmt yuv420p",
        size=(96, 64),
        frames=40,
    ),
    codec="av1",
)

# Older codecs, and codecs without references
_MPEG2 = "-c:v mpeg2video -threads 1 -pix_fmt yuv420p -q:v 3 -g 12 -bf 2 -sc_threshold 1000000000"
declare("mpeg2_open_gop.ts", "core no_count bframes open_gop", encode(_MPEG2), codec="mpeg2video", start=1.4 + 1 / 30)
declare(
    "mpeg2_closed_gop.ts", "no_count bframes", encode(f"{_MPEG2} -flags +cgop"), codec="mpeg2video", start=1.4 + 1 / 30
)
declare("mpeg2.mpg", "no_count bframes", encode(_MPEG2), codec="mpeg2video", start=0.5 + 1 / 30)
declare("mpeg2.mp4", "bframes", derive("-i {mpeg2_closed_gop.ts} -c copy"), start=0.0)
_MPEG4 = "-c:v mpeg4 -threads 1 -pix_fmt yuv420p -q:v 3 -g 24 -bf 2"
declare("mpeg4.avi", "core bframes", encode(_MPEG4), codec="mpeg4", start=None)
declare("mpeg4.mp4", "core bframes", encode(_MPEG4), codec="mpeg4")
declare("mjpeg.avi", "core all_intra", encode("-c:v mjpeg -q:v 3 -pix_fmt yuvj420p", frames=30), codec="mjpeg")
declare("mjpeg.mov", "all_intra", derive("-i {mjpeg.avi} -c copy"))
declare("ffv1.mkv", "no_count all_intra", encode("-c:v ffv1 -g 1 -threads 1 -pix_fmt yuv420p", frames=30), codec="ffv1")
declare(
    "prores.mov",
    "all_intra",
    encode("-c:v prores_ks -profile:v 1 -pix_fmt yuv422p10le", frames=30),
    codec="prores",
    bit_depth=10,
)
declare("wmv2_pipe.asf", "no_count", encode("-c:v wmv2 -q:v 3 -g 24 -pix_fmt yuv420p", to_pipe=True), codec="wmv2")
declare("theora.ogv", "no_count", encode("-c:v libtheora -q:v 7 -g 24 -pix_fmt yuv420p"), codec="theora")
declare(
    "gif.gif",
    "vfr",
    encode("""-vf "setpts='if(lt(N,10),N,10+(N-10)*3)*0.1/TB'" -fps_mode vfr""", size=(96, 64), frames=20, rate="10"),
    codec="gif",
    uneven=(*(k / 10 for k in range(10)), *(1.0 + 0.3 * k for k in range(10))),
)
