"""The command ``telecine live``: segments of a live stream, as a view in the terminal or as JSON lines."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from telecine.api import live
from telecine.cli.writers import save_sheet
from telecine.errors import OptionsError
from telecine.live.captions import DEFAULT_PROMPT, Caption, Captioner
from telecine.live.segments import Segment
from telecine.live.stream import LiveStream
from telecine.source.urls import printable

__all__ = ["add_caption_arguments", "add_live_arguments", "parse_seconds", "watch"]

_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def add_live_arguments(parser: argparse.ArgumentParser, parse_size: Callable[[str], Any]) -> None:
    """Add the arguments of ``telecine live``."""
    add = parser.add_argument
    add("uri", metavar="URI", help="URI of the stream, as rtsp://host/path; or a file, which is played in real time")
    add("--every", type=parse_seconds, default=10.0, metavar="T", help="from one segment to the next: 10s, 500ms, 2m")
    add("--frames", type=int, default=8, metavar="N", help="frames of a segment")
    add("--overlap", type=parse_seconds, default=0.0, metavar="T", help="time that a segment shares with the last one")
    add("--size", type=parse_size, metavar="SIZE", help="length of the short side, or HEIGHTxWIDTH; pixels")
    add("--key-frames", action="store_true", help="decode key frames only")
    add("--transport", default="tcp", metavar="NAME", help="transport of RTSP: tcp or udp")
    add("--timeout", type=parse_seconds, default=10.0, metavar="T", help="silence after which it connects again")
    add("--jsonl", action="store_true", help="print one JSON document per line, also in a terminal")
    add("--save", type=Path, metavar="DIR", help="write the contact sheet of each segment into this folder")
    add_caption_arguments(parser)


def add_caption_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose the model."""
    add = parser.add_argument_group("captions", "the key of the server is OPENAI_API_KEY").add_argument
    add("--caption", metavar="URL", help="OpenAI-compatible server, as http://localhost:8000/v1")
    add("--model", default="", metavar="NAME", help="model of that server")
    text = "template: $previous is the caption before, $start and $end are seconds, $time is UTC"
    add("--prompt", default=DEFAULT_PROMPT, metavar="TEXT", help=text)
    text = "video: vLLM's video/jpeg with times (needs --trust-request-mm-kwargs there); images: any server"
    add("--frames-as", default="video", metavar="FORM", help=text)


def parse_seconds(text: str) -> float:
    """Return a duration, as 10, 10s, 500ms, 2m or 1h, in seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write it as 10s, 500ms, 2m or 1h")
    return float(match[1]) * _UNITS[match[2]]


def watch(arguments: argparse.Namespace) -> Iterator[str]:
    """Run the command. Yields JSON lines, none if there is a view in the terminal."""
    captioner = None
    if arguments.caption is not None:
        if not arguments.model:
            raise OptionsError("--caption needs the name of the model; give --model")
        captioner = Captioner(arguments.caption, arguments.model, arguments.prompt, frames_as=arguments.frames_as)
    if arguments.save is not None:
        try:
            arguments.save.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionsError(
                f"the folder {printable(str(arguments.save))} cannot be made: {error.strerror}; choose another path"
            ) from error
    options = {name: getattr(arguments, name) for name in ("every", "frames", "overlap", "size", "key_frames")}
    with (
        live(arguments.uri, transport=arguments.transport, timeout=arguments.timeout, **options) as stream,
        asyncio.Runner() as runner,
        _show(stream, arguments.jsonl) as view,
    ):
        previous = ""
        for segment in stream:
            caption = None
            view.show(segment)
            if captioner is not None:
                caption = runner.run(captioner.caption(segment, previous, view.show_text))
                previous = caption.text or previous
            document = _describe(segment, caption)
            if arguments.save is not None:
                document |= _save(segment, arguments.save)
            view.finish(document)
            if not isinstance(view, _View):
                yield json.dumps(document)
        if captioner is not None:
            runner.run(captioner.close())


def _describe(segment: Segment, caption: Caption | None) -> dict[str, Any]:
    facts = {name: value for name, value in vars(segment).items() if name != "frames"}
    rows = zip(segment.frames.indices.tolist(), segment.frames.timestamps.tolist(), strict=True)
    frames = [{"index": index, "timestamp": timestamp} for index, timestamp in rows]
    return facts | {"frames": frames, "caption": None if caption is None else asdict(caption)}


def _save(segment: Segment, folder: Path) -> dict[str, Any]:
    """Write the contact sheet. A full disk must not end a stream that is watched for weeks."""
    # a sequence begins at 0 again when the command is started again
    time = datetime.fromtimestamp(segment.wall_end, UTC)
    path = folder / f"{time:%Y%m%dT%H%M%SZ}_{segment.sequence:06d}.jpg"
    unfinished = path.with_name(f".{path.name}")
    try:
        save_sheet(segment.frames.sheet(), unfinished)
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        return {"sheet": None, "sheet_error": error.strerror or type(error).__name__}
    return {"sheet": str(path)}


class _NoView:
    """JSON lines only."""

    def show(self, segment: Segment) -> None:
        """Show a segment that has come."""

    def show_text(self, text: str) -> None:
        """Show the caption so far."""

    def finish(self, document: dict[str, Any]) -> None:
        """Show a segment and its caption, now complete."""


class _View(_NoView):
    """A table in the terminal, drawn again several times a second."""

    def __init__(self, stream: LiveStream) -> None:
        self._stream = stream
        self._segment: Segment | None = None
        self._dropped = 0
        self._text = self._error = ""

    def show(self, segment: Segment) -> None:
        self._segment = segment
        self._dropped += segment.dropped_segments

    def show_text(self, text: str) -> None:
        self._text, self._error = text, ""

    def finish(self, document: dict[str, Any]) -> None:
        caption = document["caption"] or {}
        self._text = caption.get("text") or self._text
        self._error = caption.get("error") or document.get("sheet_error") or ""

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        stream, segment = self._stream, self._segment
        stats = stream.stats
        table = Table(title=Text(stream.name), show_header=False, title_justify="left")
        rows = {"state": stream.state, "frames/s": f"{stats.fps:.2f}"}
        if segment is not None:
            rows["time"] = datetime.fromtimestamp(segment.wall_end).isoformat(" ", "seconds")
            rows["age"] = f"{segment.age:.2f} s"
        rows["dropped"] = f"{self._dropped} segments, {stats.dropped_frames} frames, {stats.dropped_packets} packets"
        rows["reconnects"] = str(stats.reconnects)
        rows["caption"] = self._text
        if problem := self._error or ("" if stream.state == "live" else stream.error or ""):
            rows["problem"] = problem
        for name, value in rows.items():
            # a caption must not contain the terminal's control sequences
            table.add_row(name, Text(printable(value, 2000)))
        return table


@contextlib.contextmanager
def _show(stream: LiveStream, jsonl: bool) -> Iterator[_NoView]:
    if jsonl or sys.stdout is None or not sys.stdout.isatty():
        yield _NoView()
        return
    try:
        from rich.live import Live
    except ImportError:
        sys.stderr.write("telecine: JSON lines, since rich is not installed; pip install 'telecine[live]'\n")
        yield _NoView()
        return
    view = _View(stream)
    with Live(view, refresh_per_second=4):
        yield view
