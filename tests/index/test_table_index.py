"""The index from the tables of MP4 and QuickTime files: the same as from all packets, at the cost of a few of them."""

from __future__ import annotations

import random
import struct
import tracemalloc
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import telecine
from support.clips import CLIPS, Clip
from support.ffmpeg_cli import ffmpeg
from telecine.bitstream.bit_reader import InvalidHeader
from telecine.container.demuxer import Demuxer
from telecine.deadline import Deadline
from telecine.errors import TelecineError
from telecine.index import table_index
from telecine.index.packet_index import PacketIndex, read_index
from telecine.index.table_index import complete_index, index_from_tables
from telecine.limits import Limits
from telecine.plan.decode_plan import make_plan
from telecine.source.source import open_source

ONE_FRAME = "may have no frame of their own"
REFUSED = {
    "audio.mp4": None,
    "no_moov.mp4": None,
    "h264_mbaff.mp4": ONE_FRAME,
    "h264_paff.mp4": ONE_FRAME,
    "interlaced.mp4": ONE_FRAME,
    "vp9_altref.mp4": ONE_FRAME,
    "mpeg2.mp4": ONE_FRAME,
    "mpeg4.mp4": ONE_FRAME,
    "h264_intra_refresh.mp4": "other packets are random access points",
    "h264_cut.mp4": "no random access point",
    "hevc_cut.mp4": "leading pictures",
    "hevc_cra_first.mp4": "leading pictures",
    "hevc_no_first_key.mp4": "no key frame",
    "no_first_key.mp4": "edit list",
    "one_frame.mp4": "one common size",
    "truncated.mp4": "outside of the file",
}
"""Why the tables of some clips are not used; None if the file has no video that can be opened."""
CLIPS_WITH_TABLES = [clip for clip in CLIPS.values() if clip.name.endswith((".mp4", ".mov"))]
PICKS = (1, 1, 1, 2, 3, 8)
"""Numbers of frames of the plans that are compared."""


def open_demuxer(source: Any) -> Demuxer:
    """Return a demuxer that keeps its source open."""
    return Demuxer(open_source(source, Limits(), Deadline()), Deadline())


def indices_of(source: Any) -> tuple[PacketIndex, PacketIndex, Demuxer]:
    """Return the index from the tables, if they are not refused, that from all packets, and a demuxer."""
    demuxer = open_demuxer(source)
    tables = index_from_tables(demuxer, Limits(), Deadline())
    return tables, read_index(open_demuxer(source), Limits(), Deadline()), demuxer


def complete(index: PacketIndex, demuxer: Demuxer, frames: Any) -> PacketIndex:
    return complete_index(index, demuxer, np.asarray(frames), Limits(), Deadline())


def differences(one: Any, other: Any) -> list[str]:
    """Return the names of the fields in which two indices or timelines differ."""
    found = []
    for name in (field.name for field in fields(one) if field.name not in ("packets", "offset")):
        mine, theirs = getattr(one, name), getattr(other, name)
        if isinstance(mine, np.ndarray):
            are_equal = mine.dtype == theirs.dtype and np.array_equal(mine, theirs)
        elif name == "timeline":
            are_equal = not differences(mine, theirs)
        else:
            are_equal = mine == theirs
        if not are_equal:
            found.append(name)
    return found


def plan_of(index: PacketIndex, frames: Any) -> list[Any]:
    ranges = make_plan(index, np.asarray(frames)).ranges
    return [(part.packets.tolist(), part.required.tolist(), dict(part.targets), part.reset) for part in ranges]


@pytest.mark.parametrize("clip", CLIPS_WITH_TABLES, ids=str)
def test_both_indices_of_a_clip_are_equal_or_the_tables_are_refused(clip: Clip) -> None:
    if clip.name in REFUSED:
        if (reason := REFUSED[clip.name]) is not None:
            with pytest.raises(InvalidHeader, match=reason):
                tables, _, demuxer = indices_of(clip.path())
                complete(tables, demuxer, np.arange(tables.num_frames))
        return
    tables, full, demuxer = indices_of(clip.path())
    every = np.arange(full.num_frames)
    found = differences(complete(tables, demuxer, every), full)
    # packets after the last frame, or behind an edit, are not read
    unread = {"random_access", "leading", "disposable"} if not full.presentable[-1] else set()
    assert not set(found) - unread
    generator = np.random.default_rng(len(clip.name))
    for frames in [every, *(generator.integers(0, full.num_frames, count) for count in PICKS)]:
        assert plan_of(complete(tables, demuxer, frames), frames) == plan_of(full, frames)


FRAGMENTS = {
    "offsets from the file": "frag_keyframe+empty_moov",
    "offsets from the fragment": "frag_keyframe+empty_moov+default_base_moof",
    "implied offsets": "frag_keyframe+empty_moov+omit_tfhd_offset",
    "one frame each": "frag_every_frame+empty_moov",
    "listed": "dash+frag_keyframe+empty_moov+delay_moov+global_sidx",
    "cmaf": "cmaf+delay_moov",
}
"""Options of ffmpeg for fragments of several kinds."""


def fragmented(name: str, kind: str, folder: Path) -> bytes:
    path = folder / "fragmented.mp4"
    ffmpeg(["-i", CLIPS[name].path(), "-c", "copy", "-movflags", FRAGMENTS[kind], path])
    return path.read_bytes()


@pytest.mark.parametrize("kind", FRAGMENTS)
@pytest.mark.parametrize(
    "name", ["h264_pyramid.mp4", "hevc_open_gop.mp4", "av1_svt.mp4", "early.mp4", "interleaved.mp4"]
)
def test_both_indices_of_a_fragmented_file_are_equal(name: str, kind: str, tmp_path: Path) -> None:
    tables, full, demuxer = indices_of(fragmented(name, kind, tmp_path))
    every = np.arange(full.num_frames)
    assert not differences(complete(tables, demuxer, every), full)
    for frames in ([full.num_frames - 1], [20, 41], [5]):
        assert plan_of(complete(tables, demuxer, frames), frames) == plan_of(full, frames)


def test_fragments_of_one_frame_are_refused_if_there_are_many(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    options = ["-stream_loop", "20", "-i", CLIPS["h264_pyramid.mp4"].path(), "-c", "copy"]
    ffmpeg([*options, "-movflags", FRAGMENTS["one frame each"], path])
    with pytest.raises(InvalidHeader, match="few samples each"):
        index_from_tables(open_demuxer(path), Limits(), Deadline())


@pytest.fixture
def every_file_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_index, "MAX_KEPT_BYTES", 0)


def codes(frames: telecine.Frames) -> list[str]:
    return [note.code for note in frames.report.notes]


@pytest.mark.usefixtures("every_file_is_large")
@pytest.mark.parametrize(
    "name",
    ["h264_pyramid.mp4", "h264_open_gop.mp4", "hevc_open_gop.mp4", "hevc_radl.mp4", "av1_aom.mp4", "prores.mov",
     "trimmed.mp4", "early.mp4", "negative_offsets.mp4", "interleaved.mp4", "hevc_temporal_layers.mp4",
     "h264_fragmented.mp4"],
)  # fmt: skip
def test_frames_by_the_tables_equal_those_of_ffmpeg(name: str) -> None:
    clip = CLIPS[name]
    expected = clip.reference().frames
    with telecine.open(clip.path()) as video:
        assert video._index.offset is not None
        for wanted in ([len(video) - 1], [len(video) // 2], [len(video) // 2 + 1, 2, len(video) // 3]):
            frames = video.load(indices=wanted)
            assert frames.indices.tolist() == wanted and "all-packets-read" not in codes(frames)
            assert np.abs(frames.data.astype(int) - expected[wanted]).max() <= 2
        chunks = [chunk.indices for chunk in video.iterate(chunk_frames=7)]
    assert np.concatenate(chunks).tolist() == list(range(len(expected)))


@pytest.mark.parametrize(
    "name", ["noise_key.mp4", "noise_reference_hevc.mp4", "noise_av1.mp4", "missing_reference.mp4"]
)
def test_damage_has_the_same_consequences_with_both_indices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = CLIPS[name].path()
    wanted = [[5, 20, 35], [40], [50, 51, 52], [*range(58)]]
    by_packets = [telecine.load(path, indices=[0, *indices]) for indices in wanted]
    monkeypatch.setattr(table_index, "MAX_KEPT_BYTES", 0)
    for indices, expected in zip(wanted, by_packets, strict=True):
        frames = telecine.load(path, indices=[0, *indices])
        assert codes(frames) == codes(expected) and frames.report.lost == expected.report.lost
        assert frames.report.packets_fed == expected.report.packets_fed
        assert np.array_equal(frames.data, expected.data)


@pytest.mark.usefixtures("every_file_is_large")
def test_a_pool_decodes_by_the_tables() -> None:
    path = CLIPS["h264_open_gop.mp4"].path()
    with telecine.Pool() as pool:
        loaded = [pool.load(path, indices=[40, 41]) for _ in range(2)]  # the second index comes from the cache
    alone = telecine.load(path, indices=[40, 41])
    assert all(np.array_equal(frames.data, alone.data) for frames in loaded)
    assert loaded[1].report.index_cached


REASONS = {
    "h264_mbaff.mp4": "no frame of their own",
    "vp9_altref.webm": "all frames",
    "mjpeg.avi": "all frames",
    "h264.ts": "",
}
"""Parts of the note for clips whose tables are not used; a transport stream has none."""


@pytest.mark.usefixtures("every_file_is_large")
def test_refused_tables_are_named_in_a_note() -> None:
    for name, reason in REASONS.items():
        frames = telecine.load(CLIPS[name].path(), num_frames=2)
        found = [note for note in frames.report.notes if note.code == "all-packets-read"]
        assert [reason in note for note in found] == [True] * bool(reason)
        assert set(found) <= set(telecine.probe(CLIPS[name].path()).notes)


def samples(index: PacketIndex) -> list[slice]:
    assert index.offset is not None
    return [slice(at, at + size) for at, size in zip(index.offset.tolist(), index.size.tolist(), strict=True)]


@pytest.mark.usefixtures("every_file_is_large")
def test_a_sample_without_a_picture_makes_all_packets_be_read() -> None:
    """It is found when frames near it are wanted. Then the video has one frame less."""
    data = bytearray(CLIPS["h264_pyramid.mp4"].bytes())
    index = index_from_tables(open_demuxer(bytes(data)), Limits(), Deadline())
    hidden = samples(index)[30]
    data[hidden] = (struct.pack(">IB", hidden.stop - hidden.start - 4, 12) + b"\xff" * (hidden.stop - hidden.start))[
        : hidden.stop - hidden.start
    ]  # one NAL unit of filler data
    with telecine.open(bytes(data)) as video:
        assert len(video) == 60
        frames = video.load(indices=[40])
        assert "all-packets-read" in codes(frames)
        assert len(video) == 59
        assert video.load(indices=[3, 58]).indices.tolist() == [3, 58]
    assert telecine.load(bytes(data), indices=[40]).info.num_frames == 59


@pytest.mark.usefixtures("every_file_is_large")
@pytest.mark.parametrize(
    ("codec", "library", "options", "tag"),
    [("h264", "x264", ("qp=20", "qp=38"), "avc3"), ("hevc", "x265", ("signhide=1", "signhide=0"), "hev1")],
)
def test_parameter_sets_that_change_between_the_wanted_frames_are_noticed(
    codec: str, library: str, options: tuple[str, str], tag: str, tmp_path: Path
) -> None:
    """The picture parameter set of the second half is in its first packet alone."""
    halves = []
    for option in options:
        source = ["-f", "lavfi", "-i", "testsrc2=size=192x144:rate=10", "-frames:v", "30", "-c:v", f"lib{library}"]
        every = f"{option}:keyint=10:min-keyint=10:scenecut=0:bframes=0"
        halves.append(ffmpeg([*source, f"-{library}-params", every, "-f", codec, "-"]))
    joined = halves[0] + without_repeated_parameter_sets(halves[1], codec)
    (tmp_path / "joined").write_bytes(joined)
    ffmpeg(["-r", "10", "-f", codec, "-i", tmp_path / "joined", "-c", "copy", "-tag:v", tag, tmp_path / "joined.mp4"])
    frames = telecine.load(tmp_path / "joined.mp4", indices=[55])
    assert codes(frames) == ["all-packets-read"]
    assert "parameter sets" in frames.report.notes[0]


def without_repeated_parameter_sets(stream: bytes, codec: str) -> bytes:
    """Return an Annex B stream in which only the first parameter set of each type is left."""
    kinds = {7, 8} if codec == "h264" else {32, 33, 34}
    seen: set[int] = set()
    kept = [b""]
    for unit in stream.split(b"\0\0\1")[1:]:
        kind = unit[0] & 31 if codec == "h264" else unit[0] >> 1 & 63
        if kind not in kinds or kind not in seen:
            kept.append(unit.rstrip(b"\0"))
        seen.add(kind)
    return b"\0\0\1".join(kept)


TABLES = (b"stsz", b"stco", b"stsc", b"stts", b"ctts", b"stss", b"elst", b"mdhd", b"mvhd", b"tkhd", b"dref", b"stsd")
MUTATED = ("h264_open_gop.mp4", "trimmed.mp4", "early.mp4", "hevc_open_gop.mp4", "av1_svt.mp4", "h264_pyramid.mp4",
           "negative_offsets.mp4", "vfr.mp4", "prores.mov", "hevc_temporal_layers.mp4", "h264_all_intra.mp4",
           "interleaved.mp4", "hevc_radl.mp4")  # fmt: skip


FRAGMENT_TABLES = (b"tfhd", b"tfdt", b"trun", b"trex", b"sidx", b"tfra", b"moof", b"traf", b"elst")


def mutate(data: bytearray, generator: random.Random, kinds: tuple[bytes, ...] = TABLES) -> None:
    """Change one to three numbers in the tables of a file."""
    boxes = []
    for kind in kinds:
        at = data.find(kind)
        while at >= 4:
            boxes.append((at - 4, at - 4 + int.from_bytes(data[at - 4 : at], "big")))
            at = data.find(kind, at + 4)
    for _ in range(generator.choice((1, 1, 1, 2, 3))):
        start, stop = generator.choice(boxes)
        at = start + generator.randrange(0, max(4, stop - start - 4), 4)
        value = int.from_bytes(data[at : at + 4], "big")
        step = generator.choice((-512, -2, -1, 1, 2, 512))
        new = generator.choice((generator.randrange(1 << 32), value + step, value + step, value ^ 255, 0))
        data[at : at + 4] = (new % (1 << 32)).to_bytes(4, "big")


def check_mutations(original: bytes, kinds: tuple[bytes, ...]) -> None:
    """Check that both indices of mutated files are equal, unless the tables are refused."""
    num_used = 0
    for seed in range(40):
        data = bytearray(original)
        mutate(data, random.Random(seed), kinds)
        try:
            demuxer = open_demuxer(bytes(data))
        except TelecineError:
            continue  # FFmpeg does not open it either way
        try:
            tables = index_from_tables(demuxer, Limits(), Deadline())
            every = np.arange(tables.num_frames)
            tables = complete(tables, demuxer, every)
        except (InvalidHeader, TelecineError):
            continue
        num_used += 1
        full = read_index(open_demuxer(bytes(data)), Limits(), Deadline())
        # a cut-off key frame may have another flag: FFmpeg's parser takes it from the bitstream
        unread = {"random_access", "leading", "disposable", "skips_leading", "key", "timeline"}
        assert set(differences(tables, full)) <= unread, seed
        assert set(differences(tables.timeline, full.timeline)) <= {"key"}, seed
        assert plan_of(tables, every) == plan_of(full, every), seed
    assert num_used


@pytest.mark.parametrize("change", [(b"mfhd", b"mdhd"), (b"mfhd", b"abcd"), (b"trun", b"senc"), (b"tfdt", b"stsz")])
def test_fragments_with_unusual_boxes_are_refused(change: tuple[bytes, bytes], tmp_path: Path) -> None:
    """FFmpeg may take them for damage, or for tables."""
    head, *rest = fragmented("h264_pyramid.mp4", "listed", tmp_path).split(b"moof")
    data = b"moof".join([head, *rest[:-1], rest[-1].replace(*change)])
    with pytest.raises(InvalidHeader):
        index_from_tables(open_demuxer(data), Limits(), Deadline())


@pytest.mark.parametrize("name", MUTATED)
def test_mutated_tables_give_the_frames_of_the_packets_or_are_refused(name: str) -> None:
    check_mutations(CLIPS[name].bytes(), TABLES)


@pytest.mark.parametrize("kind", FRAGMENTS)
@pytest.mark.parametrize("name", ["h264_pyramid.mp4", "interleaved.mp4"])
def test_mutated_fragments_give_the_frames_of_the_packets_or_are_refused(name: str, kind: str, tmp_path: Path) -> None:
    check_mutations(fragmented(name, kind, tmp_path), FRAGMENT_TABLES)


def test_tables_of_a_long_film_cost_their_bytes_and_a_request_its_packets(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    ffmpeg(["-stream_loop", "1499", "-i", CLIPS["h264_pyramid.mp4"].path(), "-c", "copy", path])
    demuxer = open_demuxer(path)
    demuxer.take_bytes_read()
    tracemalloc.start()
    index = index_from_tables(demuxer, Limits(), Deadline())
    memory = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert index.num_frames == 90_000
    assert demuxer.take_bytes_read() < 90_000 * 16 + 100_000
    assert memory < 90_000 * 200
    complete(index, demuxer, [45_017])
    assert demuxer.take_bytes_read() <= int(index.size[0] + index.size[44_990:45_040].sum())
    frames = telecine.load(path, indices=[45_017])
    assert frames.report.bytes_read < 8 * 90_000 * 16 and frames.info.bytes_read < frames.report.bytes_read
    assert telecine.probe(path).bytes_read < 8 * 90_000 * 16
    with telecine.open(path) as video:
        reports = [video.load(indices=[45_017]).report for _ in range(2)]
        chunks = [chunk.report.bytes_read for chunk in video.iterate(indices=range(600), chunk_frames=100)]
    assert reports[0].bytes_read == reports[1].bytes_read < 200_000
    assert min(chunks) > 0
    assert np.array_equal(frames.data, telecine.load(CLIPS["h264_pyramid.mp4"].path(), indices=[17]).data)
