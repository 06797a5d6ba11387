"""The command ``telecine``: probe, sample, live, serve, compare, bench, doctor.

Results go to standard output, messages and progress to standard error. The exit code is that of the error's class.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import telecine
from telecine.api import load, probe
from telecine.backends.registry import BUILT_IN
from telecine.bitstream.h273 import HDR_TRANSFERS
from telecine.cli.bench import add_bench_arguments, bench, parse_count
from telecine.cli.compare import Comparison, compare, write_sheet
from telecine.cli.doctor import describe, describe_vllm, examine
from telecine.cli.live import add_live_arguments, watch
from telecine.cli.progress import Progress
from telecine.cli.serve import add_serve_arguments, run_service
from telecine.cli.writers import (
    as_document,
    claim,
    claim_sheet,
    claim_wav,
    format_table,
    is_folder,
    to_json_types,
    write_wav,
)
from telecine.deadline import Deadline
from telecine.errors import BackendUnavailable, OptionsError, TelecineError
from telecine.frames import Frames
from telecine.index.video_info import VideoInfo
from telecine.request import LoadOptions, SamplingOptions
from telecine.sampling.policies import KEY_FRAMES, POLICIES
from telecine.source.urls import format_source, printable

__all__ = ["main"]

_DEFAULT_NUM_FRAMES = 8
"""Number of frames if no option chooses frames."""
_ALL_FRAMES = 0
"""Value of ``-n all``."""
_MAX_ROWS = 24
"""Frames that are listed at most; ``--json`` lists all."""
_CHOOSERS = SamplingOptions.__annotations__.keys() - {"num_frames", "start", "end"}
"""Options that choose frames without ``-n``."""
_EXIT_CODES = """\
exit codes: 0 success, 1 compare: a backend returned other frames, 2 wrong usage, 3 bad video, 4 over a limit,
5 backend not usable, 6 timeout, 7 machine full, 130 interrupted
"""
_log = logging.getLogger("telecine.cli.main")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, or that of the error's class in :mod:`telecine.errors`.

    Args:
        argv: arguments of the command; those of the process when omitted.
    """
    _prepare_streams()
    try:
        arguments = _parser().parse_args(argv)
        with _logging(getattr(arguments, "log_level", None)):
            _print(arguments.run(arguments))
    except TelecineError as error:
        _warn(str(error))
        return error.exit_code
    except SystemExit as end:  # argparse: --help or wrong usage
        return int(end.code or 0)
    except KeyboardInterrupt:
        return 130
    return int(getattr(arguments, "exit_code", 0))


def _prepare_streams() -> None:
    """Make the standard streams accept any text. A stream that the caller closed is None in Python."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # for the rest of the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        if not _write(f"{line}\n"):
            break


def _write(text: str) -> bool:
    """Write to standard output. Returns False if nobody reads it any more."""
    if sys.stdout is None:
        raise OptionsError("standard output cannot be written: it is closed")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # at exit Python would write its buffer again, and report the error once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # a reader that has enough closes its end, as `head` does
        if not isinstance(error, BrokenPipeError):
            raise OptionsError(f"standard output cannot be written: {error.strerror}") from error
        return False
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="telecine",
        description="Decode the frames of a video that a vision-language model needs.",
        epilog=_EXIT_CODES,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"telecine {telecine.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, run: Callable[[argparse.Namespace], Iterable[str]], text: str, *, has_json: bool = True
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text, epilog=_EXIT_CODES, allow_abbrev=False)
        added.set_defaults(run=run)
        if has_json:
            added.add_argument("--json", action="store_true", help="print one JSON document")
        return added

    _add_source(command("probe", _probe, "Print the properties of a video without decoding it."))
    one = command("sample", _sample, f"Decode frames of a video; by default {_DEFAULT_NUM_FRAMES}, evenly spread.")
    _add_source(one)
    _add_sampling(one)
    _add_decoding(one)
    text = "Watch a live stream: a segment every few seconds, and its caption if there is a model."
    add_live_arguments(command("live", watch, text, has_json=False), _size)
    text = "Run the service: captions of live streams and decoding over HTTP."
    one = command("serve", run_service, text, has_json=False)
    one.set_defaults(log_level="warning")
    add_serve_arguments(one)
    one = command("compare", _compare, "Decode a video with every usable backend and compare the frames.")
    _add_source(one)
    one.add_argument("-n", "--num-frames", type=int, default=_DEFAULT_NUM_FRAMES, metavar="N",
                     help="evenly spread frames, each with its neighbours")  # fmt: skip
    one.add_argument("--device", default="cpu", metavar="NAME", help="cpu, cuda or cuda:N")
    text = "contact sheet (.jpg, .png) with a row for each backend"
    one.add_argument("--sheet", dest="output", metavar="TARGET", help=text)
    add_bench_arguments(command("bench", bench, "Measure how many clips per second this machine decodes."))
    one = command("doctor", _doctor, "Print which backends work on this machine, and why others do not.")
    one.add_argument("--vllm", action="store_true", help="print the state of the vLLM plugin; imports vLLM")
    return parser


def _add_source(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help="path or URL of the video; - is standard input")
    add("--timeout", type=float, metavar="S", help="seconds for the whole command")
    add("--progress", action=argparse.BooleanOptionalAction, help="show progress; by default on a terminal")


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("which frames").add_argument
    add("-n", "--num-frames", type=_num_frames_or_all, metavar="N", help='number of frames, evenly spread; or "all"')
    add("--fps", type=float, metavar="F", help="frames per second of video; with -n, at most N frames")
    add("--min-frames", type=int, metavar="N", help="minimum number of frames")
    add("--max-frames", type=int, metavar="N", help="maximum number of frames")
    add("--indices", type=functools.partial(_list, int), metavar="I,I,...", help="these frame indices, counted from 0")
    add("--timestamps", type=functools.partial(_list, float), metavar="S,S,...",
        help="the frames nearest to these times, seconds")  # fmt: skip
    add("--start", type=float, metavar="S", help="only frames from this time on, seconds after the first frame")
    add("--end", type=float, metavar="S", help="only frames before this time")
    add("--policy", metavar="NAME", help=f"sampling rule of a model: {', '.join(sorted([KEY_FRAMES, *POLICIES]))}")


def _add_decoding(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("decoding and output").add_argument
    add("--size", type=_size, metavar="SIZE", help="length of the short side, or HEIGHTxWIDTH; pixels")
    add("--backend", metavar="NAME", help=f"{', '.join(BUILT_IN)} or auto")
    add("--device", metavar="NAME", help="cpu, cuda or cuda:N")
    add("--errors", default="recover", metavar="MODE", help="frames that cannot be decoded: recover (skip) or strict")
    text = "contact sheet (.jpg, .png), arrays (.npz), or a folder for one PNG per frame; existing files are replaced"
    add("-o", "--output", metavar="TARGET", help=text)
    add("--audio", metavar="FILE", help="write the audio from --start to --end too (.wav)")


def _num_frames_or_all(text: str) -> int:
    try:
        return _ALL_FRAMES if text == "all" else parse_count(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f'{error}, nor "all"') from None


def _list(parse: Callable[[str], float], text: str) -> list[float]:
    try:
        return [parse(item) for item in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers separated by commas") from None


def _size(text: str) -> int | tuple[int, int]:
    try:
        height, *width = map(parse_count, text.lower().split("x", 1))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither the length of the short side nor HEIGHTxWIDTH") from None
    return (height, *width) if width else height  # type: ignore[return-value]


@contextlib.contextmanager
def _prepare(arguments: argparse.Namespace, claim: Callable[..., Any] = claim) -> Iterator[tuple[Any, ...]]:
    """Yield the source, its name, the deadline, and the writer of the claimed target or None."""
    source: Any = arguments.file
    name = "data: URL" if source.startswith("data:") else format_source(source)
    if source == "-":
        if sys.stdin is None or sys.stdin.isatty():
            state = "closed" if sys.stdin is None else "a terminal"
            raise OptionsError(f"FILE is -, and standard input is {state}; pipe a video into it or give a path")
        source, name = sys.stdin.buffer, "standard input"
    target = getattr(arguments, "output", None)
    with (
        Progress.shown(arguments.progress) as progress,
        contextlib.nullcontext() if target is None else claim(target, arguments.file) as writer,
    ):
        yield source, name, Deadline(arguments.timeout, progress), writer


def _probe(arguments: argparse.Namespace) -> Iterable[str]:
    with _prepare(arguments) as (source, name, deadline, _):
        info = probe(source, timeout=deadline)
    return [json.dumps(to_json_types(info), indent=2)] if arguments.json else [name, *format_table(_facts(info))]


def _sample(arguments: argparse.Namespace) -> Iterable[str]:
    target: str | None = arguments.output
    options = {name: value for name, value in vars(arguments).items() if name in LoadOptions.__annotations__}
    if options["num_frames"] == _ALL_FRAMES:
        options["num_frames"] = None
    elif all(options[name] is None for name in ("num_frames", *_CHOOSERS)):
        options["num_frames"] = _DEFAULT_NUM_FRAMES
    with contextlib.ExitStack() as stack:
        source, name, deadline, writer = stack.enter_context(_prepare(arguments))
        if arguments.audio is None:
            frames = load(source, timeout=deadline, **options)
        else:
            write_file = stack.enter_context(claim_wav(arguments.audio, arguments.file))
            with telecine.open(source, timeout=deadline) as video:
                frames = video.load(**options)
                audio = video.audio(start=arguments.start, end=arguments.end)
            write_file(lambda path: write_wav(audio, path))
        if writer is not None:
            writer(frames, deadline)
    report = frames.report
    for stage, seconds in report.seconds.items():
        _log.debug("%s took %.3f s", stage, seconds)
    if report.lost:
        some = ", ".join(map(str, report.lost[:8])) + (", ..." if len(report.lost) > 8 else "")
        _warn(f"{len(report.lost)} of the requested frames could not be decoded: {some}")
    if report.fallback_reason:
        _warn(f"decoded by {report.backend}: {report.fallback_reason}")
    for note in report.notes:
        _warn(f"{note} [{note.code}]")
    if arguments.json:
        document = as_document(frames, folder=target is not None and is_folder(target))
        return [json.dumps(document | {"output": target}, indent=2)]
    return _summary(name, frames, target)


def _facts(info: VideoInfo) -> list[tuple[str, str]]:
    depth = f", {info.bit_depth} bit" if info.bit_depth else ""
    rotated = f", rotated by {info.rotation} degrees clockwise" if info.rotation else ""
    mirrored = ", mirrored" if info.mirrored else ""
    ratio = info.sample_aspect_ratio
    pixels = "" if ratio == 1 else f", pixels {ratio.numerator}:{ratio.denominator}"
    rate = f"{info.average_fps:.6g} per second" if info.average_fps else "at an unknown rate"
    matrix = "bt601 (untagged)" if info.color_space == "unknown" else info.color_space
    color_range = "tv (untagged)" if info.color_range == "unknown" else info.color_range
    transfer = f", transfer {HDR_TRANSFERS[info.color_trc]}" if info.color_trc in HDR_TRANSFERS else ""
    return [
        ("video", f"{info.codec}, {info.pixel_format}{depth}{', interlaced' if info.interlaced else ''}"),
        ("size", f"{info.width}x{info.height}{rotated}{mirrored}{pixels}"),
        ("frames", f"{info.num_frames}, {rate}{' on average, variable' if info.variable_frame_rate else ''}"),
        ("duration", f"{info.duration:.3f} s, from {info.start_time:.3f} s on the container's clock"),
        ("colour", f"matrix {matrix}, range {color_range}{transfer}"),
        ("container", f"{info.container}, stream {info.stream_index}"),
        ("read", f"{info.bytes_read / 1e6:.2f} MB of the source"),
        *(("note", f"{note} [{note.code}]") for note in info.notes),
    ]


def _summary(name: str, frames: Frames, target: str | None) -> Iterator[str]:
    info, report = frames.info, frames.report
    height, width = frames.data.shape[1:3]
    yield f"{len(frames)} of {info.num_frames} frames of {name}, {width}x{height}"
    rows = [
        f"  {f'#{index}':>8} {timestamp:>12.3f} s"
        for index, timestamp in zip(frames.indices, frames.timestamps, strict=True)
    ]
    if len(rows) > _MAX_ROWS:
        rows[_MAX_ROWS - 2 : -1] = [f"  {'...':>8} {len(rows) - _MAX_ROWS + 1:>6} more; --json lists all"]
    yield from rows
    seconds = sum(value for stage, value in report.seconds.items() if stage != "convert")
    yield (
        f"{report.backend} on {report.device}: {report.packets_fed} of {report.packets_total} packets decoded "
        f"in {seconds:.2f} s"
    )
    if target is not None:
        yield f"written to {printable(target, 200)}"


def _compare(arguments: argparse.Namespace) -> Iterable[str]:
    with _prepare(arguments, claim_sheet) as (source, name, deadline, write_file):
        found = compare(source, num_frames=arguments.num_frames, device=arguments.device, timeout=deadline)
        if write_file is not None:
            write_file(lambda path: write_sheet(found, path))
    arguments.exit_code = 0 if found.agree else 1
    if arguments.json:
        document = {"info": to_json_types(found.info), "indices": found.indices, "agree": found.agree}
        return [json.dumps(document | {"backends": [asdict(row) for row in found.rows]}, indent=2)]
    return _comparison(name, found)


def _comparison(name: str, found: Comparison) -> Iterator[str]:
    yield name
    yield from format_table(_facts(found.info))
    yield ""
    yield f"{len(found.indices)} frames: {', '.join(map(str, found.indices[:12]))}{', ...' * (len(found.indices) > 12)}"
    for row in found.rows:
        seconds = "" if row.seconds is None else f"{row.seconds * 1000:.0f} ms"
        pixels = "" if row.largest is None else f"pixels within {row.largest}"
        lost = f"{len(row.lost)} lost" if row.lost else ""
        facts = [fact for fact in (seconds, pixels, lost, printable(row.detail, 300)) if fact]
        yield f"  {row.backend:<15} {row.verdict:<13} {', '.join(facts)}"


def _doctor(arguments: argparse.Namespace) -> Iterable[str]:
    if arguments.vllm:
        from telecine.integrations.vllm import state

        with contextlib.redirect_stdout(sys.stderr):  # vLLM logs there while it is imported
            found = state()
        is_on = all(value == "on" for value in found["parts"].values())
        arguments.exit_code = 0 if is_on else BackendUnavailable.exit_code
    else:
        found = examine()
    if arguments.json:
        return [json.dumps(found, indent=2)]
    return describe_vllm(found) if arguments.vllm else describe(found)


def _warn(message: str) -> None:
    sys.stderr.write(f"telecine: {message}\n")


@contextlib.contextmanager
def _logging(default: str | None) -> Iterator[None]:
    """Print the log messages of the package at the level in ``TELECINE_LOG``; none without it and a default."""
    logger = logging.getLogger("telecine")
    name = os.environ.get("TELECINE_LOG") or default
    if not name:
        # else Python prints warnings itself
        logger.addHandler(silent := logging.NullHandler())
        try:
            yield
        finally:
            logger.removeHandler(silent)
        return
    levels = ("debug", "info", "warning", "error", "critical")
    if name.lower() not in levels:
        raise OptionsError(f"TELECINE_LOG is {printable(name)!r}; it must be one of: {', '.join(levels)}")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(name.upper())
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
