"""Untrusted input opens no files, takes no more than the limits allow, and is never quoted."""

from __future__ import annotations

import base64
import json
import pickle
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import pytest

import telecine
from support.byte_edits import replace_box
from support.children import run_python
from support.clips import CLIPS
from support.ffmpeg_cli import ffmpeg
from telecine import Limits

SECRET = "hunter2-was-here"


def element(identity: int, *payload: bytes) -> bytes:
    """One EBML element (RFC 8794) with a size of eight bytes."""
    body = b"".join(payload)
    return identity.to_bytes((identity.bit_length() + 7) // 8, "big") + (1 << 56 | len(body)).to_bytes(8, "big") + body


def matroska(
    packets: list[bytes],
    codec: bytes = b"V_MJPEG",
    size: tuple[int, int] = (96, 64),
    info: bytes = b"",
    video: bytes = b"",
    before_tracks: bytes = b"",
) -> bytes:
    """Return a Matroska file of one video track, with additional elements."""
    width, height = size
    header = element(0x1A45DFA3, element(0x4282, b"matroska"), element(0x4287, b"\4"), element(0x4285, b"\2"))
    shape = element(0xE0, element(0xB0, width.to_bytes(4, "big")), element(0xBA, height.to_bytes(4, "big")), video)
    entry = element(
        0xAE, element(0xD7, b"\1"), element(0x73C5, b"\1"), element(0x83, b"\1"), element(0x86, codec), shape
    )
    blocks = [element(0xA3, b"\x81" + struct.pack(">hB", 40 * i, 0x80), packet) for i, packet in enumerate(packets)]
    cluster = element(0x1F43B675, element(0xE7, b"\0"), *blocks)
    about = element(0x1549A966, element(0x2AD7B1, (1_000_000).to_bytes(4, "big")), info)
    return header + element(0x18538067, about, before_tracks, element(0x1654AE6B, entry), cluster)


def avi(packets: list[bytes], fourcc: bytes, size: tuple[int, int] = (96, 64)) -> bytes:
    """An AVI file of one video stream at 30 pictures a second, without an index."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)

    def group(kind: bytes, data: bytes) -> bytes:
        return chunk(b"LIST", kind + data)

    width, height = size
    picture = struct.pack("<IiiHH4sIiiII", 40, width, height, 1, 24, fourcc, 0, 0, 0, 0, 0)
    stream = b"vids" + fourcc + struct.pack("<IHHIIIIIIiI4h", 0, 0, 0, 0, 1, 30, 0, len(packets), 0, -1, 0, 0, 0, *size)
    main = struct.pack("<14I", 33_333, 0, 0, 0x10, len(packets), 0, 1, 0, width, height, 0, 0, 0, 0)
    tracks = group(b"strl", chunk(b"strh", stream) + chunk(b"strf", picture))
    movie = group(b"movi", b"".join(chunk(b"00dc", packet) for packet in packets))
    return chunk(b"RIFF", b"AVI " + group(b"hdrl", chunk(b"avih", main) + tracks) + movie)


def references_a_file(path: Path) -> bytes:
    """A MOV file whose pictures are in another file: an alias record with an absolute path (QuickTime, ``dref``)."""
    name, where = path.name.encode(), str(path).encode()
    where += b"\0" * (len(where) % 2)
    alias = bytes(10) + bytes([4]) + b"disk".ljust(27, b"\0") + bytes(12)
    alias += bytes([len(name)]) + name.ljust(63, b"\0") + bytes(16) + struct.pack(">hh", 0, 1) + bytes(16)
    alias += struct.pack(">HH", 2, len(where)) + where + struct.pack(">HH", 0xFFFF, 0)
    entry = struct.pack(">I4sI", 12 + len(alias), b"alis", 0) + alias
    dref = struct.pack(">II", 0, 1) + entry
    return replace_box(CLIPS["base.mp4"].bytes(), [b"moov", b"trak", b"mdia", b"minf", b"dinf", b"dref"], dref)


def reference_movie(url: str) -> bytes:
    """A MOV file that only names another one: ``rmra`` (QuickTime)."""

    def box(kind: bytes, *payload: bytes) -> bytes:
        body = b"".join(payload)
        return struct.pack(">I", 8 + len(body)) + kind + body

    target = url.encode() + b"\0"
    reference = box(b"rdrf", struct.pack(">I4sI", 0, b"url ", len(target)), target)
    return box(b"ftyp", b"qt  \0\0\2\0qt  ") + box(b"moov", box(b"rmra", box(b"rmda", reference)))


@pytest.fixture(scope="module")
def jpeg() -> bytes:
    """One small picture."""
    return ffmpeg("-f lavfi -i testsrc2=s=96x64 -frames:v 1 -c:v mjpeg -f mjpeg pipe:1".split())


@pytest.fixture(scope="module")
def canaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files that hostile input names."""
    folder = tmp_path_factory.mktemp("canaries")
    (folder / "sub").mkdir()
    for name in ("base.mp4", "sub/base.mp4", "000.png", "001.png", "seg0.ts"):
        (folder / name).write_bytes(CLIPS["offset.ts" if name.endswith("ts") else "base.mp4"].bytes())
    return folder


SDP = (
    "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
    "m=video 45678 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\n"
)
FFCONCAT = "ffconcat version 1.0\nfile base.mp4\n"


def posing(canaries: Path, jpeg: bytes) -> dict[str, bytes]:
    """Return hostile input that names other files and addresses, by format."""
    there, web = canaries / "base.mp4", "http://127.0.0.1:9/x.ts"
    texts = {
        "ffconcat": FFCONCAT,
        "ffconcat in a folder": "ffconcat version 1.0\nfile sub/base.mp4\n",
        "ffconcat by path": f"ffconcat version 1.0\nfile 'file:{there}'\n",
        "sdp": SDP,
        "hls": f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{canaries}/seg0.ts\n#EXT-X-ENDLIST\n",
        "hls over http": f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{web}\n#EXT-X-ENDLIST\n",
        "hls master": f"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n{web}\n",
        "dash": f'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" profiles="urn:mpeg:dash:profile:'
        f'isoff-on-demand:2011" type="static"><Period><AdaptationSet><Representation id="1" bandwidth="1"><BaseURL>'
        f"{web}</BaseURL></Representation></AdaptationSet></Period></MPD>",
        "smooth streaming": '<SmoothStreamingMedia MajorVersion="2"/>',
        "asf reference": f"[Reference]\r\nRef1={web}\r\nRef2=file://{there}\r\n",
        "rtsp text": "RTSP/1.0 200 OK\r\nLocation: rtsp://127.0.0.1:9/x\r\n",
        "image pattern": "%03d.png",
        "glob": "*.png",
        "filter graph": f"movie={there}",
        "test source": "testsrc2=s=96x64",
        "concat protocol": f"concat:{there}|{there}",
        "subfile protocol": f"subfile,,start,0,end,0,,:{there}",
        "crypto protocol": f"crypto:{there}",
        "a path": str(there),
        "a url": web,
    }
    cases = {name: text.encode() for name, text in texts.items()}
    # the same with a byte that no text has, so that only the list of allowed demuxers stands in the way
    cases |= {f"{name}, not text": content + b"\n\0\1\xff" for name, content in list(cases.items())}
    cases |= {
        "ffconcat behind a mark": b"\xef\xbb\xbf" + FFCONCAT.encode(),
        "png": b"\x89PNG\r\n\x1a\n" + bytes(100),
        "mov that names a file": references_a_file(there),
        "mov that is only a reference": reference_movie(web),
        "matroska that names a next segment": matroska(
            [jpeg] * 2, info=element(0x3E83BB, str(there).encode()) + element(0x3EB923, bytes(range(16)))
        ),
    }
    return cases


# what a viewer would see of it, and it holds nothing but its own pictures
HARMLESS = {"matroska that names a next segment"}

JAIL = """
    import io, json, pickle, sys, time
    import av, telecine
    from support.children import forbid_files_and_sockets
    from support.clips import CLIPS

    telecine.load(CLIPS["base.mp4"].path(), threads=1)  # imports what is imported on first use
    with open(sys.argv[1], "rb") as file:
        cases, use = pickle.load(file)
    forbid_files_and_sockets()
    for name, content in cases.items():
        print(json.dumps([name]), flush=True)
        started = time.perf_counter()
        try:
            if use == "av":
                av.open(io.BytesIO(content), options={"enable_drefs": "1", "use_absolute_path": "1"}).close()
            else:
                for verb in (telecine.probe, lambda data: telecine.load(data, threads=1)):
                    verb(content)
            said = None
        except telecine.SourceError as error:
            said = str(error)
        print(json.dumps([name, said, time.perf_counter() - started]), flush=True)
"""


def jailed(cases: dict[str, bytes], folder: Path, tmp_path: Path, use: str = "telecine") -> tuple[int, list[list[Any]]]:
    """Run cases in a child that the kernel kills if it opens anything; return its exit status and output."""
    (tmp_path / "cases").write_bytes(pickle.dumps((cases, use)))
    done = run_python(JAIL, tmp_path / "cases", cwd=folder)
    assert not done.stderr, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_input_that_names_files_and_addresses_opens_none(canaries: Path, jpeg: bytes, tmp_path: Path) -> None:
    """Not by Python and not by FFmpeg itself; each is one error, at once."""
    cases = posing(canaries, jpeg)
    status, lines = jailed(cases, canaries, tmp_path)
    assert status == 0, f"something was opened by: {lines[-1][0]}"
    answers = {answer[0]: answer[1:] for answer in lines if len(answer) == 3}
    assert answers.keys() == cases.keys()
    for name, (said, seconds) in answers.items():
        assert seconds < 1, name
        assert (said is None) == (name in HARMLESS), name
        assert said is None or (str(canaries) not in said and "127.0.0.1" not in said), name


@pytest.mark.parametrize("name", ["ffconcat", "sdp", "mov that names a file"])
def test_seccomp_filter_catches_what_ffmpeg_opens_without_our_options(
    name: str, canaries: Path, jpeg: bytes, tmp_path: Path
) -> None:
    """The test above can fail: the same bytes do open files and sockets when FFmpeg gets them as they are."""
    status, lines = jailed({name: posing(canaries, jpeg)[name]}, canaries, tmp_path, use="av")
    assert status == -31, lines  # SIGSYS
    assert lines == [[name]]


NAMES = [
    "%03d.png",
    "*.png",
    "concat:base.mp4|base.mp4",
    "subfile,,start,0,end,0,,:base.mp4",
    "lavfi:testsrc2",
    "crypto:base.mp4",
    "cache:base.mp4",
    "async:base.mp4",
    "pipe:0",
    "fd:",
    "-",
    "http:..",
    "file:base.mp4",
    "tcp://127.0.0.1:9",
    "rtsp://127.0.0.1:9/x",
    "udp://127.0.0.1:45678",
    "concatf:base.mp4",
]


def test_ffmpeg_protocol_names_are_refused_as_sources(canaries: Path) -> None:
    """Names that mean something to FFmpeg mean nothing here; the only file that is tried has exactly that name."""
    code = """
        import contextlib, json, sys, telecine
        for name in sys.argv[1:]:  # what is imported on first use
            with contextlib.suppress(telecine.TelecineError):
                telecine.load(name)
        opened = []
        sys.addaudithook(lambda event, details: opened.append([event, str(details[0])])
                         if event in ("open", "socket.connect", "socket.bind", "subprocess.Popen") else None)
        for name in sys.argv[1:]:
            opened.clear()
            try:
                telecine.load(name)
                print(json.dumps([name, "loaded", opened]))
            except telecine.TelecineError as error:
                print(json.dumps([name, type(error).__name__, opened]))
    """
    done = run_python(code, *NAMES, cwd=canaries)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, _, _ in answers] == NAMES
    for name, outcome, opened in answers:
        assert outcome in ("SourceError", "OptionsError"), name
        assert all(event == ["open", name] for event in opened), name


def test_file_with_a_protocol_like_name_is_read_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is not handed on."""
    monkeypatch.chdir(tmp_path)
    for name in ("concat:a|b.mp4", "%03d.png", "-", "x.m3u8"):
        Path(name).write_bytes(CLIPS["base.mp4"].bytes())
        assert len(telecine.load(name)) == 60


# Limits


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two black pictures of 64 million pixels, in a few kilobytes."""
    path = tmp_path_factory.mktemp("huge") / "huge.mp4"
    options = "-f lavfi -i color=black:s=8192x8192:r=10 -frames:v 2 -c:v libx264 -preset ultrafast -pix_fmt yuv420p"
    ffmpeg([*options.split(), str(path)])
    return path


def remuxed(path: Path, kind: str) -> Path:
    """The same stream in another container."""
    target = path.with_suffix(f".{kind}")
    if not target.exists():
        ffmpeg(["-i", str(path), "-c", "copy", str(target)])
    return target


MEASURE = """
    import json, resource, sys, telecine
    from support.children import memory
    from support.clips import CLIPS
    telecine.load(CLIPS["base.mp4"].path(), size=32)
    path, limits, options = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the highest so far starts again
    before = memory("VmHWM")
    try:
        said = "loaded " + repr(telecine.load(path, limits=telecine.Limits(**limits), **options))
    except telecine.LimitError as error:
        said = str(error)
    print(json.dumps([said, memory("VmHWM") - before]))
"""


def measured(path: Path, limits: dict[str, Any], **options: Any) -> tuple[str, int]:
    """Load in a child; return its result, and by how many bytes its memory grew."""
    done = run_python(MEASURE, path, json.dumps(limits), json.dumps(options))
    assert done.returncode == 0, done.stderr
    said, grown = json.loads(done.stdout)
    return said, grown


@pytest.mark.parametrize("kind", ["mp4", "mkv", "ts", "h264"])
def test_too_many_pixels_are_refused_before_a_picture_is_decoded(huge: Path, kind: str) -> None:
    """One such picture takes 100 MB, and 200 MB as RGB."""
    said, grown = measured(remuxed(huge, kind), {"max_pixels": 1920 * 1080})
    assert "8192x8192 pixels; limits.max_pixels is 2073600" in said
    assert grown < 30 << 20


def test_size_change_in_mid_stream_does_not_pass_max_pixels(huge: Path, tmp_path: Path) -> None:
    """Pictures of the size in the header are returned, and the larger ones are lost."""
    small = CLIPS["part_small.h264"].bytes()
    (tmp_path / "growing.h264").write_bytes(small * 3 + remuxed(huge, "h264").read_bytes())
    ffmpeg(["-r", "30", "-i", str(tmp_path / "growing.h264"), "-c", "copy", str(tmp_path / "growing.mkv")])
    frames = telecine.load(tmp_path / "growing.mkv", limits=Limits(max_pixels=10**6))
    assert frames.report.lost == (90, 91)
    said, grown = measured(tmp_path / "growing.mkv", {"max_pixels": 10**6}, threads=1)
    assert said.startswith("loaded") and grown < 40 << 20


@pytest.mark.parametrize("name", ["base.mp4", "odd.webm", "av1_aom.mp4", "hevc.mp4", "mpeg4.avi", "mpeg2.mpg"])
def test_a_picture_of_exactly_the_limit_passes(name: str) -> None:
    """The limit is of what is shown, although whole blocks are decoded."""
    clip = CLIPS[name]
    size = clip.width * clip.height
    assert len(telecine.load(clip.path(), limits=Limits(max_pixels=size))) == clip.num_frames
    with pytest.raises(telecine.LimitError, match="max_pixels"):
        telecine.load(clip.path(), limits=Limits(max_pixels=size - 1))


@pytest.mark.parametrize(
    ("limits", "options", "message"),
    [
        ({"max_output_bytes": 10**8}, {"size": [4000, 4000]}, "max_output_bytes is 100000000"),
        ({"max_pixels": 10**7}, {"size": [4000, 4000]}, "max_pixels is 10000000"),
        ({"max_frames": 59}, {}, "60 frames asked for; limits.max_frames is 59"),
        ({"max_frames": 59}, {"indices": [0] * 60, "size": [4000, 4000]}, "limits.max_frames is 59"),
        ({"max_packets": 59}, {"num_frames": 1}, "more than 59 packets"),
        ({"max_seconds": 1.9}, {"num_frames": 1}, "lasts 2 s; limits.max_seconds is 1.9"),
        ({"max_bytes": 1000}, {"num_frames": 1}, "1000 bytes of limits.max_bytes"),
    ],
)
def test_every_limit_is_checked_before_memory_is_taken(
    limits: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    """The output of most of these would be gigabytes."""
    said, grown = measured(CLIPS["base.mp4"].path(), limits, **options)
    assert message in said
    assert grown < 16 << 20


def test_limits_that_are_exactly_met_are_accepted() -> None:
    """Each bound is inclusive."""
    limits = Limits(max_frames=60, max_packets=60, max_seconds=2.0, max_output_bytes=60 * 96 * 64 * 3)
    assert len(telecine.load(CLIPS["base.mp4"].path(), limits=limits)) == 60


def test_many_tiny_packets_take_little_memory(tmp_path: Path) -> None:
    """Packets are kept for the decode while they are few; a packet takes a kilobyte even if it holds eight bytes."""
    (tmp_path / "tiny.avi").write_bytes(avi([b"\0\0\1\x61\x88\x99\xaa\xbb"] * 100_000, b"H264"))
    code = """
        import sys, telecine
        from support.children import memory
        from support.clips import CLIPS
        telecine.load(CLIPS["base.mp4"].path())
        before = memory()
        assert telecine.probe(sys.argv[1]).num_frames == 100_000
        print(memory("VmHWM") - before)
    """
    done = run_python(code, tmp_path / "tiny.avi")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 70 << 20


def test_a_flood_of_empty_av1_units_takes_little_memory(tmp_path: Path) -> None:
    """FFmpeg's parser would make gigabytes of these two megabytes, while the file is being opened."""
    (tmp_path / "flood.avi").write_bytes(avi([b"\x12\0" * 1_000_000], b"AV01"))
    code = """
        import sys, telecine
        from support.children import memory
        from support.clips import CLIPS
        telecine.load(CLIPS["av1_aom.mp4"].path())
        before = memory()
        try:
            telecine.load(sys.argv[1])
        except telecine.DecodeError:
            print(memory("VmHWM") - before)
    """
    done = run_python(code, tmp_path / "flood.avi")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 150 << 20


# Time


class Slow:
    """A file object that gives its bytes slowly."""

    def __init__(self, data: bytes, seconds: float) -> None:
        self.chunks: Iterator[bytes] = iter([data[at : at + 1000] for at in range(0, len(data), 1000)])
        self.seconds = seconds

    def read(self, count: int = -1) -> bytes:
        time.sleep(self.seconds)
        return next(self.chunks, b"")


def late_by(verb: Any, source: Any, timeout: float, **options: Any) -> float:
    """Seconds between the deadline and the :class:`telecine.DeadlineError`."""
    started = time.perf_counter()
    with pytest.raises(telecine.DeadlineError, match=rf"timeout of {timeout:g} s"):
        verb(source, timeout=timeout, **options)
    return time.perf_counter() - started - timeout


@pytest.mark.timing
def test_the_timeout_holds_for_a_slow_source() -> None:
    """It is looked at between two reads."""
    for verb in (telecine.load, telecine.probe):
        assert late_by(verb, Slow(CLIPS["base.mp4"].bytes(), 0.05), 0.2) < 1


@pytest.mark.timing
def test_the_timeout_holds_in_the_middle_of_a_decode(tmp_path: Path) -> None:
    """The last frame of a long decode range is requested, and no packet of it can be skipped."""
    path = tmp_path / "long.mp4"
    noise = "-f lavfi -i testsrc2=s=1280x720:r=30 -vf noise=alls=80:allf=t -frames:v 60"
    ffmpeg([*f"{noise} -c:v libx264 -preset ultrafast -qp 6 -g 250 -pix_fmt yuv420p".split(), str(path)])
    assert late_by(telecine.load, path, 0.25, indices=[59], threads=1) < 1
    frames = telecine.load(path, indices=[59], threads=1, timeout=60)
    assert frames.indices.tolist() == [59] and frames.report.seconds["decode"] > 0.4


@pytest.mark.timing
@pytest.mark.parametrize(
    ("payload", "fourcc"),
    [(b"\0\0\1", b"H264"), (b"\0\0\1\x09", b"HEVC"), (b"\x12\0", b"AV01"), (b"\0\0\1\xb6", b"XVID")],
)
def test_a_flood_of_tiny_units_ends_at_the_timeout(payload: bytes, fourcc: bytes) -> None:
    """A packet of millions of empty units is no way to keep a server busy."""
    data = avi([payload * (8_000_000 // len(payload))], fourcc)
    started = time.perf_counter()
    with pytest.raises(telecine.TelecineError):
        telecine.load(data, timeout=1)
    assert time.perf_counter() - started < 3


@pytest.mark.timing
def test_a_flood_of_tiny_packets_ends_at_the_timeout() -> None:
    """Also while packets are scanned a second time, from memory."""
    data = avi([b"\0\0\1\x61\x88\x99\xaa\xbb"] * 200_000, b"H264")
    assert late_by(telecine.probe, data, 0.3) < 1


@pytest.mark.timing
@pytest.mark.parametrize("unit", [b"\xec\x80", b"\xbf\x80"])
def test_a_flood_of_empty_elements_in_front_of_the_header_ends_at_the_timeout(jpeg: bytes, unit: bytes) -> None:
    """Void and checksum elements of two bytes each, between which the display matrix is looked for."""
    data = matroska([jpeg] * 2, before_tracks=unit * 2_000_000)
    started = time.perf_counter()
    try:
        telecine.load(data, timeout=1)
    except telecine.DeadlineError:
        pass
    assert time.perf_counter() - started < 2.5


@pytest.mark.timing
def test_a_flood_of_empty_boxes_ends_at_the_timeout() -> None:
    """Boxes of eight bytes in front of everything."""
    data = struct.pack(">I4s", 8, b"free") * 1_000_000 + CLIPS["base.mp4"].bytes()
    started = time.perf_counter()
    with pytest.raises(telecine.TelecineError):
        telecine.load(data, timeout=1)
    assert time.perf_counter() - started < 2.5


# Nonsense in headers that only our own parsers read


@pytest.mark.parametrize("roll", [float("inf"), float("-inf"), float("nan"), 1e30, 45.0])
def test_matroska_roll_that_is_not_finite_is_ignored(jpeg: bytes, roll: float) -> None:
    """A Matroska header may hold any float."""
    pose = element(0x7670, element(0x7671, b"\0"), element(0x7675, struct.pack(">d", roll)))
    frames = telecine.load(matroska([jpeg] * 2, video=pose))
    assert (frames.info.rotation, len(frames)) == (0, 2)


@pytest.mark.parametrize("size", [None, 32, (8, 8), telecine.Fit(1000)])
def test_a_picture_without_a_size_is_no_video(size: Any) -> None:
    """No code divides by its height."""
    with pytest.raises(telecine.NoVideoError, match="has no picture size"):
        telecine.load(matroska([b"\0\0\0\1\x65abc"], codec=b"V_MPEG4/ISO/AVC", size=(0, 0)), size=size)


# Messages


def test_errors_never_quote_the_input(tmp_path: Path) -> None:
    """Not even if the user has enabled FFmpeg's log, which would quote names in the file."""
    mark = SECRET.encode()
    base = CLIPS["base.mp4"].bytes()
    cases = [
        mark * 20,
        b"\0" + mark * 20,
        b"\x1aE\xdf\xa3" + base64.b64encode(mark),
        matroska([mark * 10], codec=b"V_" + mark),
        element(0x1A45DFA3, element(0x4286, b"\x09"), element(0x4282, mark), element(0x4287, b"\x09")),
        base[:300] + mark * 30 + base[300:],
        base.replace(b"avc1", b"hunt").replace(b"isom", mark[:4]),
        avi([mark * 4], mark[:4]),
        b"\0\0\0\x18ftyp" + mark,
        replace_box(base, [b"moov", b"trak", b"mdia", b"hdlr"], bytes(8) + b"vide" + bytes(12) + mark),
    ]
    level = av.logging.get_level()
    av.logging.set_level(av.logging.FATAL)
    try:
        for number, content in enumerate(cases):
            for verb in (telecine.probe, telecine.load):
                try:
                    verb(content)
                except telecine.TelecineError as error:
                    shown: BaseException | None = error
                    while shown is not None:
                        assert "hunt" not in f"{shown}{shown.args}", f"case {number}"
                        shown = shown.__cause__
    finally:
        av.logging.set_level(level)


def test_credentials_of_a_url_are_in_no_message() -> None:
    """Nor its query, whatever goes wrong."""
    for url in (
        f"http://user:{SECRET}@127.0.0.1:9/clip.mp4?token={SECRET}",
        f"https://{SECRET}@[::1]:9/clip.mp4#{SECRET}",
        f"rtsp://user:{SECRET}@127.0.0.1/cam",
        f"http://user:{SECRET}@127.0.0.1:port/clip.mp4?{SECRET}",
        f"file://{SECRET}/etc/passwd",
    ):
        with pytest.raises(telecine.TelecineError) as caught:
            telecine.load(url)
        assert SECRET not in f"{caught.value}{caught.value.args}"


def test_nothing_is_printed_whatever_is_read(tmp_path: Path) -> None:
    """FFmpeg has much to say about damage, and PyAV about errors of ours that it had to drop."""
    code = """
        import telecine
        from support.clips import CLIPS
        for clip in CLIPS.values():
            if clip.damaged or "hostile" in clip.tags:
                for options in ({}, {"threads": 1, "timeout": 1e-3}, {"errors": "strict"}):
                    try:
                        telecine.load(clip.path(), **options)
                    except telecine.TelecineError:
                        pass
    """
    for clip in CLIPS.values():
        if clip.damaged or "hostile" in clip.tags:
            clip.path()
    done = run_python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_av_log_level_of_the_user_is_kept() -> None:
    """PyAV is silent by default; a user who wants FFmpeg's log enables it."""
    level = av.logging.get_level()
    try:
        av.logging.set_level(av.logging.FATAL)
        telecine.load(CLIPS["base.mp4"].path(), num_frames=1)
        assert av.logging.get_level() == av.logging.FATAL
    finally:
        av.logging.set_level(level)
