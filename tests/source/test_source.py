"""Every kind of source becomes the same read-only bytes, or one clear error; nothing leaks."""

from __future__ import annotations

import array
import base64
import bz2
import ctypes
import errno
import gc
import gzip
import io
import mmap
import os
import socket
import tempfile
import threading
import time
import urllib.parse
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telecine.deadline import Deadline
from telecine.errors import Cancelled, DeadlineError, LimitError, OptionsError, OverloadedError, SourceError
from telecine.limits import Limits
from telecine.source import spool, urls
from telecine.source.source import Source, open_source

VIDEO = b"\x00\x00\x00\x18ftypmp42" + bytes(range(256)) * 40
LARGE = VIDEO * 500
assert len(LARGE) > spool._MAX_IN_MEMORY


def opened(source: object, limits: Limits | None = None, deadline: Deadline | None = None) -> Source:
    return open_source(source, limits or Limits(), deadline or Deadline(60))


def data_url(content: bytes, head: str = "video/mp4;base64") -> str:
    return f"data:{head},{base64.b64encode(content).decode()}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "clip.mp4"
    path.write_bytes(VIDEO)
    return path


class Stream:
    """A file object without a descriptor, which gives its bytes in pieces as a socket would."""

    def __init__(self, content: bytes, most: int = 100_000) -> None:
        self._content = io.BytesIO(content)
        self._most = most
        self.asked: list[int] = []

    def read(self, size: int = -1) -> bytes:
        self.asked.append(size)
        return self._content.read(min(size, self._most))


def test_data_is_a_flat_read_only_view_for_every_type_of_source(path: Path) -> None:
    kinds: dict[str, object] = {
        "str": str(path),
        "path": path,
        "bytes": VIDEO,
        "bytearray": bytearray(VIDEO),
        "memoryview": memoryview(VIDEO),
        "numpy": np.frombuffer(VIDEO, np.uint8).copy(),
        "int8": np.frombuffer(VIDEO, np.int8),
        "array": array.array("B", VIDEO),
        "ctypes": (ctypes.c_ubyte * len(VIDEO)).from_buffer_copy(VIDEO),
        "BytesIO": io.BytesIO(VIDEO),
        "stream": Stream(VIDEO),
        "data": data_url(VIDEO),
        "file": path.as_uri(),
    }
    for kind, given_source in kinds.items():
        with opened(given_source, Limits(allow_file_urls=True)) as source:
            view = source.data
            assert view == VIDEO, kind
            assert (view.readonly, view.c_contiguous, view.ndim, view.format) == (True, True, 1, "B"), kind
            assert source.size == len(VIDEO), kind
            view.release()


def test_source_name_is_short_and_shows_its_type(path: Path) -> None:
    assert opened(path).name == opened(str(path)).name == "clip.mp4"
    assert opened(VIDEO).name == f"bytes ({len(VIDEO)} bytes)"
    assert opened(np.frombuffer(VIDEO, np.uint8)).name == f"ndarray ({len(VIDEO)} bytes)"
    assert opened(data_url(VIDEO)).name == f"data: URL ({len(VIDEO)} bytes)"
    assert opened(io.BytesIO(VIDEO)).name == "BytesIO object"
    with path.open("rb") as file:
        assert opened(file).name == "clip.mp4"
    odd = path.with_name("a\nb\x1b[31m" + "x" * 150 + ".mp4")
    odd.write_bytes(VIDEO)
    name = opened(odd).name
    assert name.startswith("a?b?[31m") and name.endswith("x.mp4") and len(name) == 80
    assert "clip.mp4" in repr(opened(path)) and str(len(VIDEO)) in repr(opened(path))


def test_close_may_be_repeated_and_ends_the_use_of_data(path: Path) -> None:
    for given_source in (path, VIDEO, data_url(VIDEO)):
        source = opened(given_source)
        source.close()
        source.close()
        with pytest.raises(OptionsError, match="closed"):
            _ = source.data


def test_a_view_that_outlives_the_source_stays_valid(path: Path) -> None:
    with opened(path) as source:
        part = source.data[4:12]
        picture = np.frombuffer(source.data, np.uint8)
    assert bytes(part) == b"ftypmp42"
    assert bytes(picture[4:12]) == b"ftypmp42"


def test_a_closed_path_source_frees_its_mapping(path: Path) -> None:
    source = opened(path)
    mapping = source._mapping
    assert mapping is not None
    source.close()
    assert mapping.closed


def test_a_file_is_mapped_and_not_read(path: Path) -> None:
    with path.open("r+b") as file, opened(path) as source:
        file.write(b"RIFF")
        file.flush()
        assert bytes(source.data[:4]) == b"RIFF"


def test_a_file_replaced_by_renaming_leaves_the_open_source_as_it_was(path: Path) -> None:
    with opened(path) as source:
        other = path.with_name("other")
        other.write_bytes(b"\x00other")
        os.replace(other, path)
        assert source.data == VIDEO


def test_opening_and_closing_many_times_leaks_no_descriptor(path: Path) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(10_000):
        source = opened(path)
        if number % 2:
            source.close()
    del source
    for _ in range(500):
        for wrong in (path.parent, path.parent / "missing", "/dev/zero", path.with_name("text.mp4")):
            with pytest.raises(SourceError):
                opened(wrong)
    gc.collect()
    # fewer, where the server of an earlier test lets go of its last connection meanwhile
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.mkdir(), r"clip is a folder, not a regular file"),
        (os.mkfifo, r"clip is a named pipe, not a regular file"),
        (lambda path: path.symlink_to(path.parent), r"clip is a folder"),
        (lambda path: path.symlink_to("/dev/zero"), r"clip is a device"),
        (lambda path: path.symlink_to("/dev/null"), r"clip is a device"),
        (lambda path: path.symlink_to(path), r"clip cannot be opened: Too many levels of symbolic links"),
        (lambda path: path.touch(), r"clip is empty"),
        (lambda path: None, r"clip cannot be opened: No such file or directory; the path was '.*/clip'"),
    ],
    ids=["folder", "fifo", "link to folder", "link to zero", "link to null", "link to itself", "empty", "missing"],
)
def test_path_that_is_no_regular_file_is_refused_by_its_kind(
    make: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    make(tmp_path / "clip")
    with pytest.raises(SourceError, match=message):
        opened(tmp_path / "clip")


def test_a_link_to_a_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "clip.mp4").symlink_to("fifo")
    with pytest.raises(SourceError, match="named pipe"):
        opened(tmp_path / "clip.mp4")


def test_a_link_to_a_file_is_followed(path: Path) -> None:
    link = path.with_name("link.mp4")
    link.symlink_to(path)
    assert opened(link).data == VIDEO


def test_sockets_and_files_of_proc_are_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        with pytest.raises(SourceError, match="cannot be opened"):
            opened(tmp_path / "socket")
    with pytest.raises(SourceError, match="is empty"):
        opened("/proc/self/mem")
    with pytest.raises(SourceError, match=r"cannot be mapped|is text"):
        opened("/sys/kernel/mm/transparent_hugepage/enabled")


def test_a_file_without_permission_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> int:  # chmod does not stop root
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(SourceError, match=r"^clip\.mp4 cannot be opened: Permission denied$"):
        opened(path)


def test_mapped_file_is_the_checked_one_even_if_the_path_is_replaced(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = path.with_name("secret")
    secret.write_bytes(b"\x00secret")
    real = os.fstat

    def swap(descriptor: int) -> os.stat_result:
        if secret.exists():
            os.replace(secret, path)
        return real(descriptor)

    monkeypatch.setattr(os, "fstat", swap)
    assert opened(path).data == VIDEO
    assert path.read_bytes() == b"\x00secret"


@pytest.mark.parametrize("wrong", ["", "a\x00b.mp4", "\ud800.mp4"])
def test_invalid_path_is_refused(wrong: str) -> None:
    with pytest.raises(SourceError):
        opened(wrong)


def test_base64_as_a_path_is_explained_and_not_quoted() -> None:
    for size in (400, 100_000):
        text = base64.b64encode(bytes(range(256)) * (size // 256 + 1)).decode()
        with pytest.raises(SourceError, match="base64 is given as 'data:;base64") as caught:
            opened(text)
        assert text[:12] not in str(caught.value) and text[-12:] not in str(caught.value)


def test_url_as_a_pathlib_path_is_explained_and_not_quoted() -> None:
    with pytest.raises(SourceError, match="a URL is given as a str") as caught:
        opened(Path("https://user:pa55@video.example/clip.mp4?token=t0ken"))
    assert "pa55" not in str(caught.value) and "t0ken" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "https//user:pa55@video.example/clip.mp4?token=t0ken",
        "xhttps:/user:pa55@video.example/clip.mp4?token=t0ken",
        "user:pa55@video.example/t0ken",
        "video.example/clip.mp4?pa55=t0ken",
        "my https://user:pa55@video.example/t0ken",
        " \thttps//pa55.example/t0ken",
        "http/pa55/t0ken",
        "user:pa55@video.example/t0ken\0",
        "line\nuser:pa55@video.example/t0ken",
    ],
)
def test_path_that_may_be_a_mistyped_url_is_not_quoted(text: str) -> None:
    for source in (text, Path(text)):
        with pytest.raises(SourceError, match="a path that looks like a URL cannot be opened") as caught:
            opened(source)
        assert "pa55" not in str(caught.value) and "t0ken" not in str(caught.value)


def test_file_with_url_characters_in_its_name_is_opened(tmp_path: Path) -> None:
    for name in ("me@home.mp4", "what?.mp4", "http.mp4", " blank .mp4 "):
        (tmp_path / name).write_bytes(VIDEO)
        assert opened(str(tmp_path / name)).name == name
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(SourceError, match=r"\.mp4 *is empty"):
            opened(tmp_path / name)


@pytest.mark.parametrize("url", [" {}", "{}\n", "\t {} \r\n"])
def test_blanks_around_a_url_are_ignored(url: str) -> None:
    data = f"data:;base64,{base64.b64encode(VIDEO).decode()}"
    assert opened(url.format(data)).data == VIDEO
    with pytest.raises(SourceError, match=r"127\.0\.0\.1 is not on the public internet") as caught:
        opened(url.format("https://user:pa55@127.0.0.1/clip.mp4?token=t0ken"))
    assert "pa55" not in str(caught.value) and "t0ken" not in str(caught.value)


def test_file_object_named_by_a_url_is_shown_without_secrets() -> None:
    file = io.BytesIO(b"")
    file.name = "https://user:pa55@video.example/clip.mp4?token=t0ken"  # type: ignore[attr-defined]
    with pytest.raises(SourceError, match=r"^video\.example/clip\.mp4 is empty"):
        opened(file)


def test_a_path_with_colons_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("talk: part 1.mp4", "12:30.mp4", "data.mp4"):
        Path(name).write_bytes(VIDEO)
        assert opened(name).data == VIDEO


def test_a_str_that_looks_like_a_url_is_never_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data:clip.mp4").write_bytes(VIDEO)
    Path("rtsp:").mkdir()
    Path("rtsp:/clip.mp4").write_bytes(VIDEO)
    with pytest.raises(SourceError, match="no comma"):
        opened("data:clip.mp4")
    with pytest.raises(OptionsError):
        opened("rtsp://clip.mp4")
    assert opened(Path("data:clip.mp4")).data == VIDEO


@pytest.mark.parametrize("url", ["rtsp://u:pw@cam.example/1", "s3://bucket/key", "ftp://x/y", "RTMP://x", "gopher://x"])
def test_other_url_schemes_are_refused_with_the_accepted_sources(url: str) -> None:
    with pytest.raises(OptionsError, match=r"(?i)^(rtsp|s3|ftp|rtmp|gopher): URLs are not read.*http\(s\)") as caught:
        opened(url)
    assert "pw" not in str(caught.value) and "cam.example" not in str(caught.value)


@pytest.mark.parametrize("wrong", [None, 3, 1.5, ["clip.mp4"], object(), Path])
def test_other_types_are_refused_with_the_accepted_sources(wrong: object) -> None:
    with pytest.raises(OptionsError, match=f"the source is a {type(wrong).__name__}; accepted are a path"):
        opened(wrong)


def test_buffers_are_used_without_a_copy() -> None:
    buffer = bytearray(VIDEO)
    numbers = np.frombuffer(VIDEO, np.uint8).copy()
    with opened(buffer) as source, opened(numbers) as other:
        buffer[0] = numbers[0] = 9
        assert source.data[0] == other.data[0] == 9


def test_a_bytearray_cannot_be_resized_until_the_source_is_closed() -> None:
    buffer = bytearray(VIDEO)
    source = opened(buffer)
    with pytest.raises(BufferError):
        buffer.append(0)
    with pytest.raises(BufferError):
        buffer.clear()
    source.close()
    buffer.append(0)


def test_refused_bytearray_is_released_while_the_exception_is_kept() -> None:
    buffer = bytearray(b"just some text")
    with pytest.raises(SourceError) as caught:
        opened(buffer)
    buffer.append(0)
    assert caught.value.__traceback__ is not None


def test_the_buffer_is_kept_alive_as_long_as_the_source() -> None:
    class Buffer(bytearray):
        pass

    buffer = Buffer(VIDEO)
    gone = weakref.ref(buffer)
    source = opened(buffer)
    del buffer
    gc.collect()
    assert gone() is not None and source.data == VIDEO
    source.close()
    gc.collect()
    assert gone() is None


def test_mmap_of_the_caller_is_used_without_a_copy(path: Path) -> None:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        with opened(mapping) as source:
            assert source.data == VIDEO
        mapping.seek(0)


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((4, 6, 8, 3), np.uint8),
        np.zeros(10, np.float32),
        np.zeros(10, np.uint16),
        np.zeros(20, np.uint8)[::2],
        np.array(3, np.uint8),
        memoryview(VIDEO)[::2],
        array.array("i", [1, 2]),
    ],
    ids=["frames", "float", "uint16", "strided", "scalar", "strided view", "ints"],
)
def test_buffers_that_are_not_one_dimensional_bytes_are_refused(wrong: object) -> None:
    with pytest.raises(OptionsError, match="a buffer must be one-dimensional, contiguous and of single bytes"):
        opened(wrong)


def test_buffers_that_cannot_be_read_are_refused() -> None:
    view = memoryview(VIDEO)
    view.release()
    with pytest.raises(OptionsError, match="memoryview whose memory cannot be read"):
        opened(view)
    with pytest.raises(OptionsError, match="ndarray whose memory cannot be read"):
        opened(np.zeros(3, "datetime64[s]"))


class Astray:
    """A path that gives none."""

    def __init__(self, given: object) -> None:
        self.given = given

    def __fspath__(self) -> Any:
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


@pytest.mark.parametrize("given", [7, None, RuntimeError("gone")], ids=repr)
def test_a_path_object_that_gives_no_path_is_refused(given: object) -> None:
    with pytest.raises(OptionsError, match="Astray that gives no path"):
        opened(Astray(given))


TEXTS = {
    "lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n",
        "is a Git-LFS pointer, not the video: run git lfs pull",
    ),
    "html": (b"\n<!DOCTYPE html>\n<html><head><title>404</title></head></html>", "is an HTML page, not a video"),
    "xhtml": (b'<?xml version="1.0"?><html xmlns="x"></html>', "is an HTML page"),
    "s3": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "is XML text"),
    "json": (b' {"error": "expired"}', "is JSON text"),
    "m3u8": (b"#EXTM3U\n#EXTINF:10,\nfile:///etc/passwd\n", r"is an HLS playlist \(m3u8\), not a video"),
    "m3u8 bom": (b"\xef\xbb\xbf#EXTM3U\nhttp://x/a.ts\n", "is an HLS playlist"),
    "m3u8 binary": (b"#EXTM3U\n\x00\xff\xfe", "is an HLS playlist"),
    "ffconcat": (b"ffconcat version 1.0\nfile /etc/passwd\n", "is an ffconcat list"),
    "sdp": (b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\nc=IN IP4 127.0.0.1\r\n", "is an SDP session description"),
    "mpd": (b'<?xml version="1.0"?>\n<MPD xmlns="urn:mpeg:dash:schema:mpd:2011"/>', "is a DASH manifest"),
    "plain": (b"hello, world\n", "is text, not a video"),
    "utf-8": ("Grüße, 世界\n".encode() * 1000, "is text"),
    "path": (b"/home/user/clip.mp4", "is text, not a video$"),
    "data": (data_url(VIDEO).encode(), "is the text of a data: URL in bytes; give it as a str"),
    "blank": (b" \n\n", "is text"),
}


@pytest.mark.parametrize(("content", "message"), TEXTS.values(), ids=TEXTS.keys())
def test_text_is_refused_by_its_kind_in_every_type_of_source(content: bytes, message: str, path: Path) -> None:
    path.write_bytes(content)
    for given_source in (path, content, io.BytesIO(content), Stream(content), data_url(content)):
        hinted = message.removesuffix("$") if isinstance(given_source, bytes) else message
        with pytest.raises(SourceError, match=hinted) as caught:
            opened(given_source)
        hint = "; a path or a URL is given as a str" in str(caught.value)
        assert hint == (isinstance(given_source, bytes) and "is text" in message)
        assert not [secret for secret in ("passwd", "AccessDenied", "12345", "hello") if secret in str(caught.value)]


@pytest.mark.parametrize(
    "start",
    [
        b"\x00\x00\x00\x18ftypmp42",
        b"\x1a\x45\xdf\xa3",
        b"RIFF\x10\x00\x00\x00AVI ",
        b"\x47\x40\x00\x10",
        b"\x00\x00\x00\x01\x67",
        b"GIF89a\x10\x00\x10\x00",
        b"FLV\x01",
        b"OggS\x00",
        b"\xff\xd8\xff\xe0",
        b"\xff\xfb\x90\x64",
        b"plain words first" + b"a" * 4000 + b"\x00",
        b"\xc3",
    ],
)
def test_binary_content_is_accepted(start: bytes) -> None:
    assert opened(start).data == start


def test_text_with_a_character_across_the_checked_bytes_is_text() -> None:
    with pytest.raises(SourceError, match="is text"):
        opened(b"a" * 4095 + "é".encode() * 10)


@pytest.mark.parametrize(
    "empty", [b"", bytearray(), np.zeros(0, np.uint8), io.BytesIO(), Stream(b""), "data:,", "data:;base64,"]
)
def test_empty_source_is_refused(empty: object) -> None:
    with pytest.raises(SourceError, match="is empty"):
        opened(empty)


@pytest.mark.parametrize("position", [0, 1000, 5000])
def test_a_plain_file_is_mapped_from_its_position_on(position: int, path: Path) -> None:
    for buffering in (-1, 0):
        with path.open("rb", buffering=buffering) as file:
            file.read(position)
            source = opened(file)
        # the file object is closed by now
        assert source.data == VIDEO[position:]
        assert source._mapping is not None


def test_unflushed_bytes_of_a_temporary_file_are_read() -> None:
    for make in (tempfile.TemporaryFile, tempfile.NamedTemporaryFile):
        with make() as file:
            file.write(b"head" + VIDEO)
            file.seek(4)
            with opened(file) as source:
                assert source.data == VIDEO
                assert source._mapping is not None


def test_decompressing_file_object_is_read_and_not_mapped(tmp_path: Path) -> None:
    for module in (gzip, bz2):
        packed = tmp_path / "clip.packed"
        with module.open(packed, "wb") as file:
            file.write(VIDEO)
        with module.open(packed, "rb") as file:
            assert opened(file).data == VIDEO
        with module.open(packed, "rb") as inner, io.BufferedReader(inner) as file:
            assert opened(file).data == VIDEO


def test_other_file_objects_are_read_from_their_position_on() -> None:
    for content in (VIDEO, LARGE):
        for file in (io.BytesIO(content), tempfile.SpooledTemporaryFile(), io.BufferedReader(io.BytesIO(content))):
            with file:
                if isinstance(file, tempfile.SpooledTemporaryFile):
                    file.write(content)
                file.seek(5)
                with opened(file) as source:
                    assert source.data == content[5:]


def test_a_long_stream_goes_to_an_unlinked_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with opened(Stream(LARGE)) as source:
        assert source.data == LARGE
        assert source._mapping is not None
        assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_read_to_its_end() -> None:
    reader, writer = os.pipe()

    def feed() -> None:
        with os.fdopen(writer, "wb") as file:
            file.write(LARGE)

    thread = threading.Thread(target=feed)
    thread.start()
    with os.fdopen(reader, "rb") as file:
        assert opened(file).data == LARGE
    thread.join()


def test_writing_to_a_bytesio_later_does_not_change_the_source() -> None:
    file = io.BytesIO(VIDEO)
    with opened(file) as source:
        file.write(b"RIFF")
        file.truncate(10)
        assert source.data == VIDEO
        file.close()
        assert source.data == VIDEO


def test_a_file_object_at_its_end_is_told_to_seek(path: Path) -> None:
    with path.open("rb") as file:
        file.read()
        with pytest.raises(SourceError, match=r"clip\.mp4 is empty.*seek\(0\) first"):
            opened(file)


def test_text_mode_is_refused(path: Path) -> None:
    with (
        path.open(encoding="latin-1") as file,
        pytest.raises(OptionsError, match=r"clip\.mp4 is open in text mode.*'rb'"),
    ):
        opened(file)
    with pytest.raises(OptionsError, match="text mode"):
        opened(io.StringIO("text"))


def test_file_objects_that_give_no_bytes_are_refused(path: Path) -> None:
    class Texts:
        def read(self, size: int) -> Any:
            return "text"

    class Nothing:
        def read(self, size: int) -> Any:
            return None

    class Later:
        async def read(self, size: int) -> bytes:
            return VIDEO

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for file, kind in ((Texts(), "str"), (Nothing(), "NoneType"), (Later(), "coroutine")):
            with pytest.raises(OptionsError, match=f"gave {kind}, not bytes"):
                opened(file)
        gc.collect()


def test_closed_and_write_only_file_objects_are_refused(path: Path) -> None:
    with path.open("rb") as closed:
        pass
    for file in (closed, io.BytesIO(VIDEO)):
        file.close()
        with pytest.raises(OptionsError, match="closed"):
            opened(file)
    with path.open("ab") as writer, pytest.raises(SourceError, match="reading failed with UnsupportedOperation"):
        opened(writer)


def test_an_error_of_the_file_object_is_named_and_not_quoted() -> None:
    class Broken:
        name = 7

        def read(self, size: int) -> bytes:
            raise EOFError("https://user:pa55@video.example broke off")

    with pytest.raises(SourceError, match=r"^Broken object: reading failed with EOFError$"):
        opened(Broken())


def test_full_disk_is_an_overload_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    with tempfile.NamedTemporaryFile() as place:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full(place.name, "r+"))
        with pytest.raises(OverloadedError, match=r"temporary folder \(No space left on device\).*TMPDIR"):
            opened(Stream(LARGE))


@pytest.mark.parametrize(
    "head",
    [
        "video/mp4;base64",
        "video/jpeg;base64",
        "application/octet-stream;base64",
        "text/html;charset=utf-8;base64",
        ";base64",
        "VIDEO/MP4; BASE64",
        "video/mp4;base64;codecs=avc1",
    ],
)
def test_the_type_of_a_data_url_is_ignored(head: str) -> None:
    assert opened(data_url(VIDEO, head)).data == VIDEO
    assert opened("DATA" + data_url(VIDEO, head)[4:]).data == VIDEO


@given(
    content=st.binary(min_size=1, max_size=90).map(lambda content: b"\x00" + content),
    url_safe=st.booleans(),
    padding=st.sampled_from(["", "=", "==", None]),
    blanks=st.lists(st.tuples(st.integers(0, 200), st.sampled_from([" ", "\n", "\r\n", "\t"])), max_size=8),
    escaped=st.sampled_from(["", "+/=", "+", "="]),
    piece=st.integers(4, 40),
)
def test_base64_is_decoded_in_every_spelling(
    content: bytes,
    url_safe: bool,
    padding: str | None,
    blanks: list[tuple[int, str]],
    escaped: str,
    piece: int,
) -> None:
    text = (base64.urlsafe_b64encode if url_safe else base64.b64encode)(content).decode()
    if padding is not None:
        text = text.rstrip("=") + padding
    for position, blank in blanks:
        text = text[:position] + blank + text[position:]
    for character in escaped:
        text = text.replace(character, urllib.parse.quote(character, safe="").lower())
    with mock.patch.object(urls, "_CHUNK_CHARACTERS", piece):
        assert opened("data:video/mp4;base64," + text).data == content


@given(content=st.binary(min_size=1, max_size=60).map(lambda content: b"\x00" + content), piece=st.integers(4, 20))
def test_data_url_without_base64_is_percent_decoded(content: bytes, piece: int) -> None:
    with mock.patch.object(urls, "_CHUNK_CHARACTERS", piece):
        assert opened("data:application/octet-stream," + urllib.parse.quote(content)).data == content


@pytest.mark.parametrize(
    "text",
    ["AAAA*AAA", "AAAAA", "AA==AAAA", "=AAA", "AAAA====A", "AAAA" + "=" * 20, "ÄAAA", "AAA%", "AAA%zz", "AAAA\x00AAA"],
)
def test_invalid_base64_is_refused(text: str) -> None:
    for piece in (4, 6, 1 << 20):
        with mock.patch.object(urls, "_CHUNK_CHARACTERS", piece), pytest.raises(SourceError, match="base64") as caught:
            opened("data:video/mp4;base64," + text)
        assert text not in str(caught.value)


def test_several_pictures_in_one_data_url_are_not_a_video() -> None:
    with pytest.raises(SourceError, match="several parts in one URL are not one video"):
        opened("data:video/jpeg;base64,/9j/4AAQ,/9j/4AAQ")


@pytest.mark.parametrize("url", ["data:", "data:video/mp4;base64", "data:" + ";" * 5000 + ",AAAA", "data:,\ud800"])
def test_malformed_data_url_is_refused(url: str) -> None:
    with pytest.raises(SourceError, match=r"^data: URL: "):
        opened(url)


def test_large_data_url_is_refused_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(*args: object) -> None:
        raise AssertionError("decoded before the limit was checked")

    monkeypatch.setattr(urls, "_unquote", decode)
    limits = Limits(max_fetch_bytes=1000)
    for url in (data_url(bytes(1001 + 2)), "data:," + "a" * 1001, "data:," + "%00" * 1001):
        with pytest.raises(LimitError, match=r"1000 bytes of limits\.max_fetch_bytes"):
            opened(url, limits)


def test_a_data_url_of_exactly_the_limit_is_accepted() -> None:
    for size in (999, 1000, 1001):
        content = bytes(size)
        text = base64.encodebytes(content).decode()
        for url in (
            data_url(content),
            "data:;base64," + text,
            "data:;base64," + urllib.parse.quote(text),
            "data:," + "%00" * size,
        ):
            assert opened(url, Limits(max_fetch_bytes=size)).size == size
            with pytest.raises(LimitError, match="max_fetch_bytes"):
                opened(url, Limits(max_fetch_bytes=size - 1))


@pytest.mark.timing
def test_a_long_data_url_is_decoded_fast() -> None:
    url = data_url(bytes(64 << 20))
    begun = time.perf_counter()
    assert opened(url).size == 64 << 20
    # some 0.4 s here; a decoder that works by character takes a minute
    assert time.perf_counter() - begun < 8


def test_deadline_is_checked_while_a_data_url_is_decoded() -> None:
    deadline = Deadline()
    real = urllib.parse.unquote_to_bytes

    def cancel(text: str) -> bytes:
        deadline.cancel()
        return real(text)

    with mock.patch.object(urls, "unquote_to_bytes", cancel), pytest.raises(Cancelled, match="decoding the data: URL"):
        opened(data_url(bytes(4 << 20)), deadline=deadline)


FILES = Limits(allow_file_urls=True)


def test_file_urls_are_off_unless_the_limits_allow_them(path: Path) -> None:
    with pytest.raises(OptionsError, match=r"allow_file_urls=True"):
        opened(path.as_uri())


def test_file_urls_name_a_path_decoded_once(tmp_path: Path) -> None:
    for name in ("clip.mp4", "a b.mp4", "ä.mp4", "a%20b.mp4", "a?b#c.mp4", os.fsdecode(b"\xff.mp4")):
        (tmp_path / name).write_bytes(VIDEO + os.fsencode(name))
        quoted = urllib.parse.quote(os.fsencode(tmp_path / name))
        for start in ("file://", "file:", "FILE://localhost", "file://LocalHost"):
            with opened(start + quoted, FILES) as source:
                assert source.data == VIDEO + os.fsencode(name)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file://host.example/clip.mp4", "names another host"),
        ("file://127.0.0.1/clip.mp4", "names another host"),
        ("file://user:pa55@localhost/clip.mp4", "names another host"),
        ("file:clip.mp4", "not absolute"),
        ("file:", "not absolute"),
        ("file://", "not absolute"),
        ("file://localhost", "not absolute"),
        ("file:///clip.mp4?x", "query or fragment"),
        ("file:///clip.mp4#t=3", "query or fragment"),
        ("file:///a%00b.mp4", "not a valid path"),
        ("file:///dev/zero", "is a device"),
        ("file:///dev%2fzero", "is a device"),
        ("file:///missing/clip.mp4", "No such file"),
        ("file:///%252e%252e/clip.mp4", "No such file"),
    ],
)
def test_invalid_file_url_is_refused(url: str, message: str) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        opened(url, FILES)
    assert "pa55" not in str(caught.value)


def test_max_bytes_holds_for_every_kind_of_source(path: Path) -> None:
    size = len(VIDEO)
    makers: list[Callable[[], object]] = [
        lambda: path,
        lambda: VIDEO,
        lambda: bytearray(VIDEO),
        lambda: io.BytesIO(VIDEO),
        lambda: Stream(VIDEO),
        lambda: path.open("rb"),
        lambda: data_url(VIDEO),
        lambda: path.as_uri(),
    ]
    for make in makers:
        for most, allowed in ((size, True), (size - 1, False)):
            source = make()
            try:
                if allowed:
                    assert opened(source, Limits(max_bytes=most, allow_file_urls=True)).size == size
                else:
                    with pytest.raises(LimitError, match=rf"{most} bytes of limits\.max_bytes"):
                        opened(source, Limits(max_bytes=most, allow_file_urls=True))
            finally:
                if isinstance(source, io.IOBase):
                    source.close()


def test_a_sparse_file_of_terabytes_is_refused_by_its_size(tmp_path: Path) -> None:
    with (tmp_path / "huge.mp4").open("wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(LimitError, match=r"huge\.mp4: 4398046511104 bytes, more than"):
        opened(tmp_path / "huge.mp4")


def test_an_endless_stream_ends_at_the_limit_and_is_not_read_past_it() -> None:
    class Endless:
        given = 0

        def read(self, size: int) -> bytes:
            self.given += size
            return bytes(size)

    stream = Endless()
    with pytest.raises(LimitError, match="max_bytes"):
        opened(stream, Limits(max_bytes=6_000_000))
    assert stream.given == 6_000_001


@pytest.mark.timing
def test_a_slow_stream_ends_by_the_deadline() -> None:
    class Slow:
        def read(self, size: int) -> bytes:
            time.sleep(0.02)
            return b"\x00"

    begun = time.monotonic()
    with pytest.raises(DeadlineError, match="reading Slow object"):
        opened(Slow(), deadline=Deadline(0.2))
    assert time.monotonic() - begun < 2


def test_a_cancelled_request_opens_nothing(path: Path) -> None:
    deadline = Deadline()
    deadline.cancel()
    with pytest.raises(Cancelled, match="opening the source"):
        opened(path, deadline=deadline)
