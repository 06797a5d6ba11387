"""The progress line: shown after a second, and removed when the work is done."""

from __future__ import annotations

import io

import pytest

from support.clips import CLIPS
from telecine import load, probe
from telecine.cli.progress import Progress
from telecine.deadline import Deadline


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def lines(stream):
    return [line.rstrip() for line in stream.getvalue().split("\r") if line.strip()]


def test_nothing_is_shown_within_the_first_second(clock):
    stream = Terminal()
    progress = Progress(stream, clock=clock)
    for step in range(100):
        clock.now = 100 + step / 101
        progress("decoding", step, 100)
    progress.clear()
    assert stream.getvalue() == ""


def test_the_line_shows_stage_percentage_and_amounts(clock):
    stream = Terminal()
    progress = Progress(stream, clock=clock)
    clock.now += 2
    progress("decoding", 25, 100)
    assert lines(stream) == ["decoding  [#######-----------------------]  25%  25 of 100 packets"]


def test_updates_are_at_least_an_interval_apart(clock):
    stream = Terminal()
    progress = Progress(stream, interval=0.1, clock=clock)
    for step in range(1000):
        clock.now = 102 + step / 1000
        progress("decoding", step, 1000)
    assert 9 <= len(lines(stream)) <= 11


def test_a_stage_of_unknown_length_shows_seconds(clock):
    stream = Terminal()
    progress = Progress(stream, clock=clock)
    clock.now += 3
    progress("fetching the video", 0, 0)
    assert lines(stream) == ["fetching the video  3 s"]


def test_a_finished_stage_is_not_shown_again(clock):
    stream = Terminal()
    progress = Progress(stream, clock=clock)
    for doing, done in [("reading the packets", 5), ("decoding", 1), ("reading the packets", 1), ("decoding", 2)]:
        clock.now += 2
        progress(doing, done, 10)
    assert [line.split("  ")[0] for line in lines(stream)] == ["reading the packets", "decoding", "decoding"]


def test_more_work_than_expected_is_shown_as_100_percent(clock):
    stream = Terminal()
    progress = Progress(stream, clock=clock)
    clock.now += 2
    progress("decoding", 15, 10)
    assert "100%  10 of 10 packets" in stream.getvalue()


def test_the_line_is_overwritten_with_blanks_at_the_end(clock):
    stream = Terminal()
    progress = Progress(stream, clock=clock)
    clock.now += 2
    progress("decoding", 1, 10)
    shown = len(lines(stream)[0])
    progress.clear()
    assert stream.getvalue().endswith("\r" + " " * shown + "\r")


def test_a_stream_that_is_no_terminal_gets_whole_lines(clock):
    stream = io.StringIO()
    progress = Progress(stream, clock=clock)
    clock.now += 2
    progress("decoding", 1, 2)
    progress.clear()
    assert stream.getvalue() == "decoding  [###############---------------]  50%  1 of 2 packets\n"


def test_by_default_progress_is_shown_on_a_terminal_only(monkeypatch):
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with Progress.shown(None) as watch:
        assert watch is None
    with Progress.shown(True) as watch:
        assert watch is not None
    monkeypatch.setattr("sys.stderr", Terminal())
    with Progress.shown(None) as watch:
        assert watch is not None
    with Progress.shown(False) as watch:
        assert watch is None


def test_a_request_reports_every_packet_that_it_decodes():
    seen = []
    frames = load(
        CLIPS["base.mp4"].path(), indices=[5, 40], timeout=Deadline(on_progress=lambda *amounts: seen.append(amounts))
    )
    fed = frames.report.packets_fed
    assert [(done, total) for doing, done, total in seen if doing == "decoding"] == [(i, fed) for i in range(fed)]
    assert seen[0][0] == "opening the source"


def test_a_probe_reports_the_bytes_that_it_reads():
    path = CLIPS["base.mp4"].path()
    seen = []
    probe(path, timeout=Deadline(on_progress=lambda *amounts: seen.append(amounts)))
    sizes = {total for doing, _, total in seen if doing == "reading the packets" and total}
    assert sizes == {path.stat().st_size}
