"""The commands ``live`` and ``serve``: their output, their ends, and what they refuse."""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from PIL import Image

from support.clips import CLIPS
from support.fake_openai import fake_openai
from telecine.cli.live import parse_seconds
from telecine.cli.main import main

BASE = str(CLIPS["base.mp4"].path())
ARGUMENTS = ["live", BASE, "--every", "500ms", "--frames", "2"]


@pytest.fixture
def model():
    pytest.importorskip("openai")
    with fake_openai() as fake:
        yield fake


class Terminal(io.StringIO):
    """Standard output that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def lines(capsys, *arguments) -> list[dict]:
    code = main([*ARGUMENTS, *map(str, arguments)])
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    return [json.loads(line) for line in captured.out.splitlines()]


def process(*arguments: str, **options) -> subprocess.Popen:
    """Start the command in a process of its own. It reacts to SIGINT even if this process ignores it."""
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    code += "from telecine.cli.main import main; sys.exit(main())"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen([sys.executable, "-W", "error", "-c", code, *arguments], **pipes)


def test_segments_are_json_lines_when_the_output_is_no_terminal(capsys):
    documents = lines(capsys)
    assert [document["sequence"] for document in documents] == list(range(len(documents))) and len(documents) >= 2
    for document in documents:
        assert document["caption"] is None and document["start"] <= document["end"]
        assert 1 <= len(document["frames"]) <= 2 and set(document["frames"][0]) == {"index", "timestamp"}


def test_captions_are_in_the_lines_and_the_previous_one_in_the_prompt(capsys, model):
    documents = lines(
        capsys, "--caption", model.url, "--model", "toy", "--prompt", "After $previous", "--frames-as", "images"
    )
    assert {document["caption"]["text"] for document in documents} == {"A cat sleeps."}
    prompts = [request["messages"][0]["content"][-1]["text"] for request in model.requests]
    assert prompts[:2] == ["After none", "After A cat sleeps."] and model.requests[0]["model"] == "toy"


def test_contact_sheets_are_saved_under_the_names_in_the_lines(capsys, tmp_path):
    folder = tmp_path / "new" / "sheets"
    documents = lines(capsys, "--save", folder)
    assert sorted(map(str, folder.iterdir())) == sorted(document["sheet"] for document in documents)
    for document in documents:
        with Image.open(document["sheet"]) as sheet:
            assert sheet.width == 1280


def test_a_sheet_that_cannot_be_written_does_not_end_the_stream(capsys, tmp_path, monkeypatch):
    def fail(sheet, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("telecine.cli.live.save_sheet", fail)
    documents = lines(capsys, "--save", tmp_path)
    assert len(documents) >= 2
    assert {(document["sheet"], document["sheet_error"]) for document in documents} == {
        (None, "No space left on device")
    }


def test_a_terminal_shows_the_state_and_the_caption_without_control_sequences_of_the_model(monkeypatch, model):
    pytest.importorskip("rich")
    model.words = ["A \x1b[2Jcat", " sleeps."]
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    assert main([*ARGUMENTS, "--caption", model.url, "--model", "toy"]) == 0
    shown = terminal.getvalue()
    for text in ("base.mp4", "frames/s", "age", "dropped", "reconnects", "cat sleeps."):
        assert text in shown, text
    assert "\x1b[2Jcat" not in shown and "{" not in shown


def test_jsonl_prints_lines_in_a_terminal_too(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main([*ARGUMENTS, "--jsonl"]) == 0
    assert all(json.loads(line) for line in terminal.getvalue().splitlines())


def test_an_interrupt_ends_the_command_while_a_server_says_nothing():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        running = process("live", f"rtsp://127.0.0.1:{server.getsockname()[1]}/x")
        with server.accept()[0]:
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=30)
    assert (running.returncode, out, err) == (130, "", "")


def test_an_outage_is_logged_only_if_that_is_asked_for(capfd, monkeypatch):
    """Python itself would print the warnings, in the middle of the view of a terminal."""
    monkeypatch.setattr(
        "telecine.cli.live._NoView.show", lambda *_: logging.getLogger("telecine.live").warning("outage")
    )
    assert main(ARGUMENTS) == 0
    assert capfd.readouterr().err == ""
    monkeypatch.setenv("TELECINE_LOG", "warning")
    assert main(ARGUMENTS) == 0
    assert "telecine.live: outage" in capfd.readouterr().err


def test_an_interrupt_ends_the_command_while_it_waits_for_a_caption(model):
    model.failures = ["silent"]
    running = process(*ARGUMENTS, "--caption", model.url, "--model", "toy")
    deadline = time.monotonic() + 60
    while not model.requests:
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=30)
    assert (running.returncode, out, err) == (130, "", "")


def test_a_reader_that_has_enough_ends_the_command():
    running = process(*ARGUMENTS)
    first = running.stdout.readline()
    running.stdout.close()
    assert json.loads(first)["sequence"] == 0
    assert running.wait(30) == 0 and running.stderr.read() == ""
    running.stderr.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["live", "ftp://host/x"], "scheme"),
        (["live", BASE, "--frames", "0"], "frames"),
        (["live", BASE, "--every", "0"], "every"),
        (["live", BASE, "--every", "10 parsecs"], "duration"),
        (["live", BASE, "--transport", "pigeon"], "transport"),
        (["live", BASE, "--caption", "http://localhost:1"], "--model"),
        (["live", BASE, "--save", "/dev/null/x"], "choose another path"),
        (["serve", "--host", "0.0.0.0"], "token"),
        (["serve", "--token-file", "/nonexistent"], "token file"),
        (["serve", "--caption", "http://localhost:1"], "--model"),
    ],
)
def test_a_wrong_argument_is_refused_with_its_name(capsys, arguments, message):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10", 10), ("10s", 10), ("500ms", 0.5), ("2m", 120), ("1.5h", 5400), (".5s", 0.5), ("2 min", 120)],
)
def test_a_duration_has_a_unit_or_is_seconds(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1", "1e3", "nan", "10 s s", "10x"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="10s"):
        parse_seconds(text)


def test_serve_says_that_its_port_is_taken(capsys, tmp_path):
    pytest.importorskip("fastapi")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port), "--database", str(tmp_path / "state.sqlite")]) == 2
    assert f"127.0.0.1:{port}" in capsys.readouterr().err
    assert not os.path.exists("telecine.sqlite")
