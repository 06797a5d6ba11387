"""The audio of a window: equal to the ffmpeg command line, aligned to the frames, within limits."""

from __future__ import annotations

import math
import re
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import telecine
from support.clips import CLIPS
from support.ffmpeg_cli import ffmpeg
from telecine.cli.main import main

SECONDS = 6
SOUND = f"aevalsrc=0.4*sin(900*t*(1+t))+0.1*random(0)|0.3*sin(3000*t):s=44100:d={SECONDS}"
PICTURES = f"testsrc=size=64x48:rate=10:duration={SECONDS}"
FORMATS = {
    "aac.mp4": "-c:v mpeg4 -c:a aac -aac_pns 0",
    "aac.mkv": "-c:v mpeg4 -c:a aac",
    "opus.webm": "-c:v libvpx -c:a libopus -ar 48000",
    "vorbis.mkv": "-c:v mpeg4 -c:a libvorbis",
    "mp3.mp4": "-c:v mpeg4 -c:a libmp3lame",
    "mp3.avi": "-c:v mpeg4 -c:a libmp3lame",
    "alac.mp4": "-c:v mpeg4 -c:a alac",
    "flac.mkv": "-c:v mpeg4 -c:a flac",
    "u8.mov": "-c:v mpeg4 -c:a pcm_u8",
    "s24.mov": "-c:v mpeg4 -c:a pcm_s24be",
    "f64.mov": "-c:v mpeg4 -c:a pcm_f64le",
    "sound.m4a": "-vn -c:a aac",
    "sound.mp3": "-vn",
    "sound.flac": "-vn",
    "sound.wav": "-vn -ac 6 -c:a pcm_s16le",
}
FORMS = [(None, None), (16000, 1), (48000, 2), (8000, 6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audio")


def made(folder: Path, name: str, arguments: str = "", sound: str = SOUND) -> str:
    """Return the path of a file with a picture and a sound; it is encoded on first use."""
    path = folder / name
    if not path.exists():
        encoding = (arguments or FORMATS[name]).split()
        sources = ["-f", "lavfi", "-i", sound] if "-vn" in encoding else [*"-f lavfi -i".split(), PICTURES]
        ffmpeg([*sources, *([] if "-vn" in encoding else ["-f", "lavfi", "-i", sound]), *encoding, path])
    return str(path)


def reference(path: str, rate: int | None, channels: int | None, *filters: str) -> Any:
    """Return the audio of a file by the ffmpeg command line, ``float32 [samples, channels]``."""
    form = [*(["-ar", str(rate)] if rate else []), *(["-ac", str(channels)] if channels else [])]
    raw = ffmpeg(["-i", path, "-vn", *filters, *form, "-f", "f32le", "-"])
    return np.frombuffer(raw, np.float32).reshape(-1, channels or (6 if path.endswith(".wav") else 2))


@pytest.mark.parametrize(("rate", "channels"), FORMS)
@pytest.mark.parametrize("name", FORMATS)
def test_audio_is_equal_to_that_of_the_ffmpeg_command_line(
    folder: Path, name: str, rate: int | None, channels: int | None
) -> None:
    path = made(folder, name)
    expected = reference(path, rate, channels)
    audio, given_rate = telecine.load_audio(path, sample_rate=rate, channels=channels)
    assert audio.dtype == np.float32 and given_rate == (rate or (48000 if "opus" in name else 44100))
    # the command line resamples samples of 64 bits as such
    np.testing.assert_allclose(audio, expected, rtol=0, atol=3e-7 if name == "f64.mov" else 0)


@pytest.mark.parametrize("name", FORMATS)
def test_a_window_has_the_samples_of_the_whole(folder: Path, name: str) -> None:
    path = made(folder, name)
    whole, rate = telecine.load_audio(path, sample_rate=16000)
    for start, end in [(0.5, 1), (3.3333, 5.1), (5, None), (Fraction(9, 2), 100)]:
        audio, _ = telecine.load_audio(path, start=start, end=end, sample_rate=16000)
        first, last = round(start * rate), None if end is None else round(end * rate)
        np.testing.assert_array_equal(audio, whole[first:last])
        if "sound" not in name:
            with telecine.open(path) as video:
                np.testing.assert_array_equal(video.audio(start=start, end=end, sample_rate=16000).data, audio)


def test_a_window_of_an_mp4_file_is_decoded_without_reading_what_is_before(folder: Path) -> None:
    path = made(folder, "long.mp4", "-c:v mpeg4 -c:a pcm_s16le -f mov", SOUND.replace(f"d={SECONDS}", "d=60"))
    with telecine.open(path) as video:
        reads: list[int] = []
        read_ahead = video._source.read_ahead
        read_ahead.prefetch = lambda offset, size: reads.append(size)  # type: ignore[method-assign]
        audio, rate = video.audio(start=50, end=51)
    assert len(audio) == rate and sum(reads) < 3_000_000 < Path(path).stat().st_size / 3


def tone_starts_at(audio: telecine.Audio) -> float:
    """Return the time at which the sound begins, seconds."""
    return int(np.argmax(np.abs(audio.data[:, 0]) > 0.05)) / audio.sample_rate


@pytest.mark.parametrize("container", ["mp4", "mov", "mkv", "ts"])
@pytest.mark.parametrize("delay", [0.75, 1.5])
def test_audio_is_aligned_to_the_first_frame_of_the_video(folder: Path, container: str, delay: float) -> None:
    """The tone begins one second after the start of the audio, which begins later than the video, or earlier."""
    path = folder / f"aligned{delay}.{container}"
    sound = "aevalsrc=if(lt(t\\,1)\\,0\\,0.5*sin(2000*t)):s=48000:d=4"
    late_audio = delay > 1
    offsets = ["-itsoffset", str(delay)]
    ffmpeg([
        *([] if late_audio else offsets), "-f", "lavfi", "-i", "testsrc=size=64x48:rate=20:duration=4",
        *(offsets if late_audio else []), "-f", "lavfi", "-i", sound,
        "-c:v", "mpeg2video" if container == "ts" else "mpeg4", "-c:a", "mp2" if container == "ts" else "aac", path,
    ])  # fmt: skip
    audio = telecine.load_audio(str(path), sample_rate=16000, channels=1)
    assert tone_starts_at(audio) == pytest.approx(1 + delay if late_audio else 1 - delay, abs=0.04)
    later = telecine.load_audio(str(path), start=0.125, sample_rate=16000, channels=1)
    np.testing.assert_array_equal(later.data, audio.data[2000:])


def test_missing_packets_are_silence_and_what_follows_keeps_its_time(folder: Path) -> None:
    whole = telecine.load_audio(made(folder, "alac.mp4"), sample_rate=16000)
    path = folder / "gap.mp4"
    ffmpeg(["-i", made(folder, "alac.mp4"), "-c", "copy", "-bsf:a", "noise=drop=between(pts*tb\\,2\\,3)", path])
    audio = telecine.load_audio(str(path), sample_rate=16000)
    assert audio.data.shape == whole.data.shape
    assert not audio.data[35_000:47_000].any()
    np.testing.assert_array_equal(audio.data[50_000:], whole.data[50_000:])


def test_damaged_packets_are_silence_and_what_follows_keeps_its_time(folder: Path) -> None:
    clean = made(folder, "alac.mp4")
    whole = telecine.load_audio(clean)
    path = folder / "damaged.mp4"
    ffmpeg(["-i", clean, "-c", "copy", "-bsf:a", "noise=amount=if(between(pts*tb\\,2\\,3)\\,1\\,0)", path])
    audio = telecine.load_audio(str(path))
    assert audio.data.shape == whole.data.shape
    np.testing.assert_array_equal(audio.data[3 * 44100 + 8192 :], whole.data[3 * 44100 + 8192 :])


def test_an_edit_list_that_begins_inside_the_recording_is_respected(folder: Path) -> None:
    path = folder / "edited.mp4"
    ffmpeg(["-ss", "2.05", "-i", made(folder, "aac.mp4"), "-c", "copy", path])
    np.testing.assert_array_equal(
        telecine.load_audio(str(path), sample_rate=16000).data,
        reference(str(path), 16000, None, "-af", "aresample=16000:async=1:first_pts=0"),
    )


def test_a_source_without_audio_is_refused() -> None:
    with pytest.raises(telecine.SourceError, match=r"no audio stream \(streams: video\)"):
        telecine.load_audio(CLIPS["base.mp4"].path())


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({"start": -1}, "start is -1; it must be"),
        ({"start": 2, "end": 1}, "end is 1.0; it must be greater than start"),
        ({"sample_rate": 0}, "sample_rate is 0; it must be a whole number from 1000 to 768000"),
        ({"sample_rate": 16000.0}, "sample_rate is 16000.0"),
        ({"channels": 9}, "channels is 9; it must be a whole number from 1 to 8"),
    ],
)
def test_wrong_options_are_refused_before_the_source_is_read(options: dict[str, Any], allowed: str) -> None:
    with pytest.raises(telecine.OptionsError, match=re.escape(allowed)):
        telecine.load_audio("missing.mp4", **options)


def test_a_result_above_the_limit_is_refused_before_it_is_made(folder: Path) -> None:
    limits = telecine.Limits(max_output_bytes=1_000_000)
    path = made(folder, "aac.mp4")
    assert telecine.load_audio(path, end=2, limits=limits).data.nbytes == 2 * 44100 * 8
    with pytest.raises(telecine.LimitError, match=r"limits\.max_output_bytes is 1000000"):
        telecine.load_audio(path, limits=limits)
    header = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 4036, b"WAVE", b"fmt ", 16, 1, 1, 1, 2, 2, 16, b"data", 4000)
    with pytest.raises(telecine.LimitError):  # each of the 2000 samples lasts a second
        telecine.load_audio(header + bytes(range(1, 251)) * 16, sample_rate=768000)


def test_the_timeout_holds_for_audio(folder: Path) -> None:
    with pytest.raises(telecine.DeadlineError):
        telecine.load_audio(made(folder, "aac.mp4"), timeout=1e-6)


def test_a_closed_video_gives_no_audio(folder: Path) -> None:
    video = telecine.open(made(folder, "aac.mp4"))
    video.close()
    with pytest.raises(telecine.OptionsError, match="closed"):
        video.audio()


def test_the_command_sample_writes_the_audio_of_its_window(folder: Path, tmp_path: Path) -> None:
    path, target = made(folder, "aac.mp4"), tmp_path / "sound.wav"
    assert main(["sample", path, "--start", "1", "--end", "2.5", "--audio", str(target)]) == 0
    expected, rate = telecine.load_audio(path, start=1, end=2.5)
    np.testing.assert_array_equal(telecine.load_audio(target).data, expected)
    np.testing.assert_array_equal(
        np.frombuffer(ffmpeg(["-i", target, "-f", "f32le", "-"]), np.float32), expected.ravel()
    )
    assert len(expected) == math.ceil(1.5 * rate)
    assert main(["sample", path, "--audio", str(tmp_path / "sound.mp3")]) == 2
