"""Files of which only the needed ranges are read: what is requested, and servers and files that misbehave."""

from __future__ import annotations

import contextlib
import http.server
import io
import random
import re
import threading
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import telecine
from support.ffmpeg_cli import ffmpeg

INDICES = [3, 100, 195]
LOCAL = telecine.Limits(allow_private_hosts=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranges")


@pytest.fixture(scope="module")
def film(folder: Path) -> bytes:
    """Return an MP4 file of 50 MB and 200 frames, whose tables are at its end."""
    path = folder / "film.mp4"
    noise = "testsrc2=size=640x360:rate=25:duration=8,noise=alls=100:allf=t"
    encoding = "-c:v libx264 -preset ultrafast -b:v 50M -minrate 50M -maxrate 50M -bufsize 5M -g 25 -pix_fmt yuv420p"
    ffmpeg(["-f", "lavfi", "-i", noise, *encoding.split(), path])
    data = path.read_bytes()
    assert len(data) > 40 << 20
    return data


@pytest.fixture(scope="module")
def expected(film: bytes) -> Any:
    return telecine.load(film, indices=INDICES, size=90).data


class Server:
    """A server of one file. ``fault`` may answer a request itself: it returns True if it has."""

    def __init__(self, data: bytes) -> None:
        self.data, self.tag, self.date, self.reads_ranges = data, '"1"', "", True
        self.fault: Callable[[Any, int, int], bool] = lambda handler, start, stop: False
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.sent = 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.seen.append((self.path, dict(self.headers.items())))
                with contextlib.suppress(OSError):
                    outer.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.listener.daemon_threads = True
        threading.Thread(target=self.listener.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.listener.server_port}/film.mp4"

    def answer(self, handler: Any) -> None:
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers.get("Range", ""))
        if match is None or not self.reads_ranges or handler.headers.get("If-Range", self.tag) != self.tag:
            self.send(handler, 200, 0, len(self.data))
            return
        start, stop = int(match[1]), int(match[2]) + 1 if match[2] else len(self.data)
        if not self.fault(handler, start, stop):
            self.send(handler, 206, start, stop)

    def send(self, handler: Any, status: int, start: int, stop: int, body: bytes | None = None) -> None:
        body = self.data[start:stop] if body is None else body
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        if self.tag:
            handler.send_header("ETag", self.tag)
        if self.date:
            handler.send_header("Last-Modified", self.date)
        if status == 206:
            handler.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(self.data)}")
        handler.end_headers()
        for at in range(0, len(body), 1 << 16):
            handler.wfile.write(body[at : at + (1 << 16)])
            self.sent += len(body[at : at + (1 << 16)])


@pytest.fixture
def server(film: bytes) -> Iterator[Server]:
    server = Server(film)
    yield server
    server.listener.shutdown()
    server.listener.server_close()


def load(source: Any, limits: telecine.Limits = LOCAL, **options: Any) -> Any:
    return telecine.load(source, indices=INDICES, size=90, limits=limits, **options).data


def with_tables_first(film: bytes, folder: Path) -> bytes:
    path = folder / "tables_first.mp4"
    if not path.exists():
        ffmpeg(["-i", folder / "film.mp4", "-c", "copy", "-movflags", "+faststart", path])
    return path.read_bytes()


@pytest.mark.parametrize("tables_first", [False, True])
def test_of_a_url_only_the_ranges_of_the_wanted_frames_are_fetched(
    server: Server, expected: Any, film: bytes, folder: Path, tables_first: bool
) -> None:
    if tables_first:
        server.data = with_tables_first(film, folder)
    limits = telecine.Limits(allow_private_hosts=True, max_fetch_bytes=len(film) // 2)
    np.testing.assert_array_equal(load(server.url, limits), expected)
    assert len(server.seen) <= 16
    assert all(headers.get("If-Range") == server.tag for _, headers in server.seen[1:])


def test_probing_a_url_fetches_a_small_part(server: Server, film: bytes) -> None:
    limits = telecine.Limits(allow_private_hosts=True, max_fetch_bytes=4 << 20)
    assert telecine.probe(server.url, limits=limits) == telecine.probe(film)
    assert len(server.seen) <= 10


def ignoring_if_range(server: Server) -> Callable[[Any], None]:
    """Return an answer for every request that does not look at the condition."""
    real = server.answer

    def answer(handler: Any) -> None:
        del handler.headers["If-Range"]
        real(handler)

    return answer


def test_a_date_is_enough_to_know_the_version(server: Server, expected: Any) -> None:
    server.tag = ""
    server.date = "Tue, 01 Dec 2026 10:00:00 GMT"
    server.answer = ignoring_if_range(server)  # type: ignore[method-assign]
    np.testing.assert_array_equal(load(server.url), expected)
    assert len(server.seen) > 2
    with telecine.open(server.url, limits=LOCAL) as video:
        server.date = "Tue, 01 Dec 2026 10:00:01 GMT"
        with pytest.raises(telecine.SourceError, match="changed on the server"):
            video[150]


@pytest.mark.parametrize("reason", ["ignores ranges", "gives no version", "answers with a part"])
def test_a_file_is_fetched_whole_if_ranges_cannot_be_trusted(server: Server, expected: Any, reason: str) -> None:
    if reason == "ignores ranges":
        server.reads_ranges = False
    elif reason == "gives no version":
        server.tag = ""
    else:
        server.fault = lambda handler, start, stop: server.send(handler, 206, 0, 1000) or True  # type: ignore
    np.testing.assert_array_equal(load(server.url), expected)
    assert len(server.seen) == (2 if reason == "answers with a part" else 1)
    limits = telecine.Limits(allow_private_hosts=True, max_fetch_bytes=len(server.data) // 2)
    with pytest.raises(telecine.LimitError, match="max_fetch_bytes"):
        load(server.url, limits)


@pytest.mark.parametrize("name", ["fragments.mp4", "film.mkv"])
def test_containers_without_whole_tables_are_fetched_whole(
    server: Server, expected: Any, folder: Path, name: str
) -> None:
    ffmpeg(["-i", folder / "film.mp4", "-c", "copy", "-movflags", "frag_keyframe+empty_moov", folder / name])
    server.data = (folder / name).read_bytes()
    np.testing.assert_array_equal(load(server.url), expected)
    assert server.sent >= len(server.data)


@pytest.mark.parametrize("honours_if_range", [True, False])
def test_a_file_that_changes_while_it_is_read_is_an_error(server: Server, honours_if_range: bool) -> None:
    with telecine.open(server.url, limits=LOCAL) as video:
        server.data = server.data[: len(server.data) // 2] + bytes(len(server.data) // 2)
        server.tag = '"2"'
        if not honours_if_range:
            server.answer = ignoring_if_range(server)  # type: ignore[method-assign]
        with pytest.raises(telecine.SourceError, match="changed on the server"):
            video[150]


def test_a_file_that_grows_while_it_is_read_is_an_error(server: Server) -> None:
    with telecine.open(server.url, limits=LOCAL) as video:
        server.data += bytes(1000)
        with pytest.raises(telecine.SourceError, match="changed on the server"):
            video[150]


@pytest.mark.parametrize("lie", ["other offset", "other bytes", "too many bytes", "no range"])
def test_a_server_that_lies_about_ranges_gives_an_error_and_no_frame(server: Server, lie: str) -> None:
    def answer(handler: Any, start: int, stop: int) -> bool:
        body = server.data[start:stop]
        if lie == "other offset":
            server.send(handler, 206, start + 1, stop + 1)
        elif lie == "other bytes":
            server.send(handler, 206, start, stop - 5)
        elif lie == "too many bytes":
            server.send(handler, 206, start, stop, body + bytes(1 << 20))
        else:
            server.send(handler, 200, start, stop)
        return True

    with telecine.open(server.url, limits=LOCAL) as video:
        server.fault = answer
        with pytest.raises(telecine.SourceError, match=r"sent other bytes|sent more bytes|changed on the server"):
            video[150]


@pytest.mark.parametrize("fault", ["reset", "short", "busy"])
def test_requests_that_fail_at_random_are_sent_again(server: Server, expected: Any, fault: str) -> None:
    choices = random.Random(1)
    faults = []

    def answer(handler: Any, start: int, stop: int) -> bool:
        if not start or choices.random() > 0.3:
            return False
        faults.append(start)
        if fault == "busy":
            handler.send_error(503)
        elif fault == "short":
            handler.send_response(206)
            handler.send_header("ETag", server.tag)
            handler.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(server.data)}")
            handler.end_headers()
            handler.wfile.write(server.data[start : (start + stop) // 2])
        else:
            handler.connection.close()
        return True

    server.fault = answer
    for _ in range(3):
        np.testing.assert_array_equal(load(server.url), expected)
    assert faults


def test_a_server_that_fails_forever_is_one_error(server: Server) -> None:
    server.fault = lambda handler, start, stop: start > 0 and (handler.send_error(503) or True)  # type: ignore
    with pytest.raises(telecine.SourceError, match="HTTP 503"):
        load(server.url)


def test_a_server_that_stalls_is_ended_by_the_timeout(server: Server) -> None:
    stalled = threading.Event()
    server.fault = lambda handler, start, stop: start > 0 and (stalled.wait(30) or True)
    try:
        with pytest.raises(telecine.DeadlineError):
            load(server.url, timeout=1)
    finally:
        stalled.set()


def test_fetched_bytes_count_for_the_limit_and_the_size_does_not(server: Server, film: bytes) -> None:
    limits = telecine.Limits(allow_private_hosts=True, max_fetch_bytes=len(film) // 3, max_bytes=len(film) // 2)
    with telecine.open(server.url, limits=limits, size=90) as video:
        assert video.load(indices=[150]).shape == (1, 90, 160, 3)
        with pytest.raises(telecine.LimitError, match="max_fetch_bytes"):
            for _ in video:
                pass


def test_no_byte_is_fetched_twice(server: Server, film: bytes) -> None:
    with telecine.open(server.url, limits=LOCAL, size=90) as video:
        for _ in range(2):
            assert len(list(video)) == 200
    ranges = [re.findall(r"\d+", headers["Range"]) for _, headers in server.seen[1:]]
    assert sum(int(stop) + 1 - int(start) for start, stop in ranges) <= len(film)


def test_requests_after_a_redirect_go_to_its_target_until_that_expires(server: Server, expected: Any) -> None:
    real, expired = server.answer, set()

    def answer(handler: Any) -> None:
        if handler.path == "/film.mp4":
            handler.send_response(302)
            handler.send_header("Location", f"/signed/{len(server.seen)}")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
        elif handler.path in expired:
            handler.send_error(403)
        else:
            real(handler)

    server.answer = answer  # type: ignore[method-assign]
    with telecine.open(server.url, limits=LOCAL, size=90) as video:
        expired.update(path for path, _ in server.seen)
        np.testing.assert_array_equal(video.load(indices=INDICES).data, expected)
    assert 2 <= sum(path == "/film.mp4" for path, _ in server.seen) <= 8


def test_a_redirect_to_a_private_host_is_refused_in_later_requests_too(server: Server) -> None:
    def answer(handler: Any, start: int, stop: int) -> bool:
        if start:
            handler.send_response(302)
            handler.send_header("Location", "http://0x7f.1/film.mp4")
            handler.end_headers()
        return start > 0

    server.fault = answer
    with pytest.raises(telecine.SourceError, match="neither a host name nor four decimal numbers"):
        load(server.url)


def test_many_threads_read_one_opened_url(server: Server, expected: Any) -> None:
    with telecine.open(server.url, limits=LOCAL, size=90) as video, ThreadPoolExecutor(16) as threads:
        for data in threads.map(lambda _: video.load(indices=INDICES).data, range(32)):
            np.testing.assert_array_equal(data, expected)


def test_closing_leaves_no_thread(server: Server) -> None:
    before = set(threading.enumerate())
    with telecine.open(server.url, limits=LOCAL, size=90) as video:
        video.load(indices=INDICES)
    assert [thread.name for thread in set(threading.enumerate()) - before if "fetch" in thread.name] == []


class CountedFile(io.RawIOBase):
    """A seekable file object that counts the bytes that it gives."""

    def __init__(self, data: bytes) -> None:
        self._file, self.given = io.BytesIO(data), 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def read(self, size: int = -1) -> bytes:
        chunk = self._file.read(min(size, 100_000) if size > 0 else size)  # fewer than asked for is allowed
        self.given += len(chunk)
        return chunk


def test_of_a_seekable_file_object_only_the_needed_bytes_are_read(film: bytes, expected: Any) -> None:
    file = CountedFile(b"in front" + film)
    file.seek(8)
    np.testing.assert_array_equal(load(file), expected)
    assert file.given < len(film) // 2


def test_the_file_of_an_fsspec_open_file_stays_open_until_the_video_is_closed(film: bytes, expected: Any) -> None:
    with fsspec.open("memory://ranges/film.mp4", "wb") as file:
        file.write(film)
    with telecine.open(fsspec.open("memory://ranges/film.mp4"), size=90) as video:
        np.testing.assert_array_equal(video.load(indices=INDICES).data, expected)


def test_a_file_object_that_fails_is_one_error(film: bytes) -> None:
    file = CountedFile(film)
    with telecine.open(file, size=90) as video:
        file.read = lambda size=-1: 1 // 0  # type: ignore[assignment, method-assign]
        with pytest.raises(telecine.SourceError, match="reading failed with ZeroDivisionError"):
            video[150]


def test_a_file_object_that_was_truncated_is_one_error(film: bytes) -> None:
    file = CountedFile(film)
    with telecine.open(file, size=90) as video:
        file._file.truncate(10 << 20)
        with pytest.raises(telecine.SourceError, match="the file was changed or is cut off"):
            video[150]


def test_file_objects_that_seek_slowly_are_read_once(film: bytes, expected: Any, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "film.zip", "w") as archive:
        archive.writestr("film.mp4", film)
    with zipfile.ZipFile(tmp_path / "film.zip") as archive, archive.open("film.mp4") as file:
        np.testing.assert_array_equal(load(file), expected)
        assert file.tell() == len(film)
