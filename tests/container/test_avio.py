"""Exceptions raised while FFmpeg reads: by signal handlers, by the deadline, by the progress callback."""

from __future__ import annotations

import gc
import io
import itertools
from collections.abc import Iterator

import pytest

import telecine
from support.children import run_python
from support.clips import CLIPS
from telecine.container.avio import SourceFile
from telecine.deadline import Deadline

_LOADS_WITH_SIGNALS = """
    import collections, os, random, signal, sys, threading, time
    import telecine

    class AlarmError(Exception): pass
    class AlarmExit(BaseException): pass

    def handler(signum, frame):
        raise expected("raised by the signal handler")

    def load():
        telecine.probe(path)
        return telecine.load(path, num_frames=2, threads=1).indices.tolist()

    path, rounds = sys.argv[1], int(sys.argv[2])
    signal.signal(signal.SIGALRM, handler)
    result = load()
    begin = time.perf_counter()
    load()
    seconds = time.perf_counter() - begin
    outcomes, random = collections.Counter(), random.Random(4)
    for expected in (KeyboardInterrupt, AlarmError, AlarmExit, TimeoutError, ValueError) * rounds:
        try:
            if expected is KeyboardInterrupt:
                sender = threading.Timer(random.uniform(0, seconds), os.kill, (os.getpid(), signal.SIGINT))
                sender.start()
            else:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, seconds))
            outcome = "complete" if load() == result else "wrong frames"
            signal.setitimer(signal.ITIMER_REAL, 0)
            if expected is KeyboardInterrupt:
                sender.join()
        except BaseException as error:
            outcome = "itself" if type(error) is expected else f"{expected.__name__} became {error!r}"
        outcomes[outcome] += 1
    print(dict(outcomes))
"""


@pytest.mark.parametrize("name", ["mpeg2.mpg", "h264.ts", "mpeg4.avi", "base.mp4", "ffv1.mkv"])
def test_exception_of_a_signal_handler_at_a_random_time_comes_out_as_itself(name: str) -> None:
    """FFmpeg's callbacks and our ``except`` clauses neither replace nor print it.

    The result may also be complete: PyAV drops an exception that is raised while it makes a traceback at the end of the
    file, for about 0.1 ms.
    """
    rounds = 12
    done = run_python(_LOADS_WITH_SIGNALS, CLIPS[name].path(), str(rounds))
    assert (done.returncode, done.stderr) == (0, "")
    outcomes = eval(done.stdout)
    assert set(outcomes) <= {"itself", "complete"}, outcomes
    assert sum(outcomes.values()) == 5 * rounds
    assert outcomes["itself"] > rounds


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError, ValueError, telecine.SourceError])
@pytest.mark.parametrize("name", ["ffv1.mkv", "h264_paff.ts", "mpeg2_closed_gop.ts", "mpeg2.mpg"])
def test_exception_of_the_progress_callback_comes_out_at_every_read(name: str, error: type[BaseException]) -> None:
    """FFmpeg takes it for the end of the file, and may try again or find a shorter video."""
    path = CLIPS[name].path()
    calls = itertools.count()
    telecine.probe(path, timeout=Deadline(on_progress=lambda *_: next(calls)))
    for failing in range(0, next(calls), 3):
        numbers = itertools.count()

        def fail(*_: object, numbers: Iterator[int] = numbers, failing: int = failing) -> None:
            if next(numbers) == failing:
                raise error("raised by the callback")

        with pytest.raises(error, match="raised by the callback"):
            telecine.probe(path, timeout=Deadline(on_progress=fail))


def test_source_file_reads_and_seeks_like_a_binary_file() -> None:
    """Also beyond the end, and in the order that FFmpeg uses to find out the size."""
    content, read = bytes(range(100)), list[tuple[int, int]]()
    ours, reference = (
        SourceFile(memoryview(content), Deadline(), lambda *given: read.append(given)),
        io.BytesIO(content),
    )
    for offset, whence, count in [(0, 0, 10), (5, 1, 3), (-1, 2, 4), (50, 0, 60), (200, 0, 5), (7, 0, 2)]:
        ours.seek(offset, whence)
        assert ours.tell() == reference.seek(offset, whence)
        expected = reference.read(count)
        assert ours.read(count) == expected
        assert ours.tell() == reference.tell()
        assert read[-1][1] == len(expected) and content[read[-1][0] :].startswith(expected)


def test_source_file_raises_its_first_error_once_and_reads_nothing_after_it() -> None:
    """A second error does not hide the cause."""
    deadline = Deadline()
    file = SourceFile(memoryview(b"content"), deadline, lambda offset, size: None)
    file.raise_error()
    deadline.cancel()
    assert file.read(4) == b""
    with pytest.raises(telecine.Cancelled):
        file.raise_error()
    assert file.read(4) == b""
    file.raise_error()


def test_source_file_frees_the_bytes_without_the_garbage_collector() -> None:
    """A mapped file can be unmapped as soon as the demuxer is gone, after an error too."""
    gc.disable()
    try:
        for cancelled in (False, True):
            data, deadline = memoryview(bytearray(100)), Deadline()
            file = SourceFile(data, deadline, lambda offset, size: None)
            assert len(file.read(10)) == 10
            if cancelled:
                deadline.cancel()
                file.read(10)
                with pytest.raises(telecine.Cancelled):
                    file.raise_error()
            del file
            data.release()
    finally:
        gc.enable()
