"""PyNvVideoCodec, as a fake library, with VP8 and VP9 whose picture size changes in mid-stream."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

import telecine
from backends.pynvvideocodec.test_backend import Start, load, start_fixture  # noqa: F401, fixture
from support.clips import CLIPS
from support.ffmpeg_cli import ffmpeg, reference_frames

_SIZES = {"grows": "320:240", "shrinks": "128:96", "grows in width": "320:144", "has odd sides": "211:155"}
_ENCODERS = {
    "vp8": "-c:v libvpx -deadline realtime -cpu-used 8",
    "vp9": "-c:v libvpx-vp9 -deadline realtime -cpu-used 8",
    "vp9, 10 bits": "-c:v libvpx-vp9 -deadline realtime -cpu-used 8 -pix_fmt yuv420p10le -profile:v 2",
}
_PLAIN = "-threads 1 -lag-in-frames 0 -auto-alt-ref 0 -b:v 400k -g 100 -frames:v 20"


def _join(folder: Path, encoder: str, *filters: str, suffix: str = "webm") -> Path:
    """Encode pictures once with each filter, and put the packets of all into one stream."""
    packets = []
    for number, graph in enumerate(filters):
        part = folder / f"{number}.webm"
        ffmpeg(
            ["-i", str(CLIPS["h264_pyramid.mp4"].path()), "-vf", graph, *encoder.split(), *_PLAIN.split(), str(part)]
        )
        with av.open(str(part)) as file:
            packets += [(bytes(packet), packet.is_keyframe) for packet in file.demux(video=0) if packet.size]
    joined = folder / f"joined.{suffix}"
    with av.open(str(folder / "0.webm")) as template, av.open(str(joined), "w") as output:
        stream = output.add_stream_from_template(template.streams.video[0])
        for time, (data, is_key) in enumerate(packets):
            packet = av.Packet(data)
            packet.stream, packet.is_keyframe = stream, is_key
            packet.pts = packet.dts = round(time / 30 / stream.time_base)
            packet.time_base = stream.time_base
            output.mux(packet)
    return joined


@pytest.mark.parametrize("size", _SIZES.values(), ids=_SIZES.keys())
@pytest.mark.parametrize("encoder", _ENCODERS.values(), ids=_ENCODERS.keys())
def test_pictures_after_a_change_of_size_are_right(start: Start, tmp_path: Path, encoder: str, size: str) -> None:
    library = start()
    clip = _join(tmp_path, encoder, "null", f"scale={size}", "null")
    ours, known = load(clip), telecine.load(clip, backend="pyav")
    assert ours.indices.tolist() == known.indices.tolist() == list(range(60))
    assert np.array_equal(ours.data, known.data)
    assert len(library.made) == 2  # the first one decodes the last pictures too
    alone = load(clip, indices=[25, 55, 3])
    assert np.array_equal(alone.data, known.data[[25, 55, 3]])


def test_the_pictures_equal_those_of_the_ffmpeg_command_line(start: Start, tmp_path: Path) -> None:
    start()
    clip = _join(tmp_path, _ENCODERS["vp9"], "null", "scale=320:240")
    expected = reference_frames(clip)
    ours = load(clip)
    assert np.abs(ours.data[:20].astype(int) - expected[:20]).max() <= 2
    assert len(ours) == len(expected) == 40


@pytest.mark.parametrize("encoder", _ENCODERS.values(), ids=_ENCODERS.keys())
def test_key_frames_of_the_same_size_share_a_decoder(start: Start, tmp_path: Path, encoder: str) -> None:
    library = start()
    load(_join(tmp_path, encoder, "null", "hflip", "null"))
    assert len(library.made) == 1


def test_a_size_that_changes_between_key_frames_is_refused(
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in VP9 with references that are scaled, for which the header of the key frame is not enough."""
    start()
    clip = _join(tmp_path, _ENCODERS["vp9"], "null", "scale=320:240")
    from telecine.backends.pynvvideocodec import batches

    monkeypatch.setattr(batches, "_KEY_FRAMES_WITH_SIZE", frozenset())
    with pytest.raises(telecine.UnsupportedVideoError, match=r"size changes between key frames.*'nvdec'"):
        load(clip)
    assert load(clip, indices=[3, 12]).indices.tolist() == [3, 12]


def test_a_picture_of_vp9_that_grows_beyond_max_pixels_raises(start: Start, tmp_path: Path) -> None:
    start()
    clip = _join(tmp_path, _ENCODERS["vp9"], "null", "scale=320:240")
    with pytest.raises(telecine.LimitError, match="grows to 320x240"):
        load(clip, limits=telecine.Limits(max_pixels=192 * 144))
