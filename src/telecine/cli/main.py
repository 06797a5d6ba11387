"""The command line: ``telecine probe``, ``telecine sample``, ``telecine compare``, ``telecine bench``,
``telecine doctor``.

Results go to standard output, messages and progress to standard error. The exit code is that of the error's class.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import telecine
from telecine.api import load, probe
from telecine.backends.registry import BUILT_IN
from telecine.cli.bench import add_bench_arguments, bench
from telecine.cli.compare import Comparison, compare, write_sheet
from telecine.cli.doctor import describe, examine
from telecine.cli.progress import Progress
from telecine.cli.writers import as_document, claim, claim_sheet, is_folder, plain, table
from telecine.deadline import Deadline
from telecine.errors import BackendUnavailable, OptionsError, TelecineError
from telecine.frames import Frames
from telecine.index.video_info import VideoInfo
from telecine.request import LoadOptions
from telecine.sampling.policies import KEY_FRAMES, POLICIES
from telecine.source.urls import format_source, printable

__all__ = ["main"]

Number = TypeVar("Number", int, float)

_FEW = 8
"""Frames that are sampled where nothing is said about which."""
_ALL = 0
"""What ``-n all`` is read as."""
_LONGEST_TABLE = 24
_EXIT_CODES = """\
exit codes: 0 done, 1 compare: a frame was taken for another, 2 wrong usage, 3 bad video, 4 over a limit,
5 backend not usable, 6 timeout, 130 interrupted
"""
_log = logging.getLogger("telecine.cli.main")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: its arguments; those of the process when omitted.

    Returns:
        The exit code: 0, or the one of the error's class in :mod:`telecine.errors`.
    """
    _prepare_streams()
    try:
        arguments = _parser().parse_args(argv)
        with _logging():
            _print(arguments.run(arguments))
    except TelecineError as error:
        _say(str(error))
        return error.exit_code
    except SystemExit as end:  # argparse: --help or wrong usage
        return int(end.code or 0)
    except KeyboardInterrupt:
        return 130
    return int(getattr(arguments, "exit_code", 0))


def _prepare_streams() -> None:
    """Make any text printable, and messages go nowhere where the caller closed their stream: Python then has None."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # for the rest of the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _print(lines: Iterable[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    if sys.stdout is None:
        raise OptionsError("standard output cannot be written: it is closed")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # or Python writes what it still holds once more at exit, and complains
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # a reader that has read enough closes its end, as `head` does
        if not isinstance(error, BrokenPipeError):
            raise OptionsError(f"standard output cannot be written: {error.strerror}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="telecine",
        description="Encoded video in, the frames a vision-language model wants out.",
        epilog=_EXIT_CODES,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"telecine {telecine.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], Iterable[str]], text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text, epilog=_EXIT_CODES, allow_abbrev=False)
        added.set_defaults(run=run)
        added.add_argument("--json", action="store_true", help="print one JSON document")
        return added

    one = command("probe", _probe, "Say what a video is, without decoding it.")
    _add_source(one)
    one = command("sample", _sample, f"Decode chosen frames of a video; {_FEW}, evenly spread, unless told otherwise.")
    _add_source(one)
    _add_sampling(one)
    _add_decoding(one)
    one = command("compare", _compare, "Let every usable backend decode a video, and say whether they agree.")
    _add_source(one)
    _add_comparison(one)
    one = command("bench", bench, "Measure how many clips per second this machine decodes.")
    add_bench_arguments(one)
    one = command("doctor", _doctor, "Say what works on this machine, and why not.")
    one.add_argument("--vllm", action="store_true", help="say what of telecine is on in vLLM, which is imported for it")
    return parser


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="path or URL of the video; - is standard input")
    parser.add_argument("--timeout", type=float, metavar="S", help="seconds, over all")
    parser.add_argument(
        "--progress", action=argparse.BooleanOptionalAction, help="show progress; by default on a terminal"
    )


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which frames")
    add = group.add_argument
    add("-n", "--num-frames", type=_count, metavar="N", help='so many, evenly spread; or "all"')
    add("--fps", type=float, metavar="F", help="frames per second of video; with -n, no more than those")
    add("--min-frames", type=int, metavar="N", help="at least so many")
    add("--max-frames", type=int, metavar="N", help="at most so many")
    add("--indices", type=_list_of(int), metavar="I,I,...", help="exactly these frame indices, counted from 0")
    add("--timestamps", type=_list_of(float), metavar="S,S,...", help="the frames nearest to these times, seconds")
    add("--start", type=float, metavar="S", help="only frames from this time on, seconds after the first frame")
    add("--end", type=float, metavar="S", help="only frames before this time")
    add("--policy", metavar="NAME", help=f"a model's own rule: {', '.join(sorted([KEY_FRAMES, *POLICIES]))}")


def _add_decoding(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how, and where to")
    add = group.add_argument
    add("--size", type=_size, metavar="SIZE", help="length of the short side, or HEIGHTxWIDTH; pixels")
    add("--backend", metavar="NAME", help=f"{', '.join(BUILT_IN)} or auto")
    add("--device", metavar="NAME", help="cpu, cuda or cuda:N")
    add("--errors", choices=("recover", "strict"), default="recover", help="leave out lost frames, or fail")
    add(
        "-o",
        "--output",
        metavar="TARGET",
        help="contact sheet (.jpg, .png), arrays (.npz), or a folder for one PNG per frame; replaces what is there",
    )


def _add_comparison(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-n", "--num-frames", type=int, default=_FEW, metavar="N", help="evenly spread, each with its neighbours")
    add("--device", default="cpu", metavar="NAME", help="cpu, cuda or cuda:N")
    add("--sheet", metavar="TARGET", help="contact sheet (.jpg, .png): a line of frames for each backend")


def _count(text: str) -> int:
    return _ALL if text == "all" else _positive(text)


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'{text!r} is not a whole number from 1 on, nor "all"')
    return int(text)


def _list_of(kind: Callable[[str], Number]) -> Callable[[str], list[Number]]:
    def parse(text: str) -> list[Number]:
        try:
            return [kind(part) for part in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers with commas between") from None

    return parse


def _size(text: str) -> int | tuple[int, int]:
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isascii() and side.isdecimal() and int(side) > 0 for side in sides):
        raise argparse.ArgumentTypeError(f"{text!r} is neither the length of the short side nor HEIGHTxWIDTH")
    return int(sides[0]) if len(sides) == 1 else (int(sides[0]), int(sides[1]))


def _source(file: str) -> tuple[Any, str]:
    """What to open, and a name for it that can be printed."""
    if file == "-":
        if sys.stdin is None:
            raise OptionsError("FILE is -, and standard input is closed; pipe a video into it or give a path")
        if sys.stdin.isatty():
            raise OptionsError("FILE is -, and standard input is a terminal; pipe a video into it or give a path")
        return sys.stdin.buffer, "standard input"
    if file.startswith("data:"):
        return file, "data: URL"
    return file, format_source(file)


def _probe(arguments: argparse.Namespace) -> Iterable[str]:
    source, name = _source(arguments.file)
    with Progress.shown(arguments.progress) as watch:
        info = probe(source, timeout=Deadline(arguments.timeout, watch))
    return [json.dumps(plain(info), indent=2)] if arguments.json else [name, *table(_facts(info))]


def _sample(arguments: argparse.Namespace) -> Iterable[str]:
    source, name = _source(arguments.file)
    target: str | None = arguments.output
    with (
        Progress.shown(arguments.progress) as watch,
        contextlib.nullcontext() if target is None else claim(target, arguments.file) as write,
    ):
        deadline = Deadline(arguments.timeout, watch)
        options = {name: value for name, value in vars(arguments).items() if name in LoadOptions.__annotations__}
        frames = load(source, timeout=deadline, **options | {"num_frames": _num_frames(arguments)})
        if write is not None:
            write(frames, deadline)
    _remark(frames)
    if arguments.json:
        document = as_document(frames, folder=target is not None and is_folder(target))
        return [json.dumps(document | {"output": target}, indent=2)]
    return _summary(name, frames, target)


def _num_frames(arguments: argparse.Namespace) -> int | None:
    if arguments.num_frames is not None:
        return None if arguments.num_frames == _ALL else int(arguments.num_frames)
    choosers = ("fps", "min_frames", "max_frames", "indices", "timestamps", "policy")
    return _FEW if all(getattr(arguments, name) is None for name in choosers) else None


def _remark(frames: Frames) -> None:
    """What the user must not miss, on standard error."""
    report = frames.report
    for stage, seconds in report.seconds.items():
        _log.debug("%s took %.3f s", stage, seconds)
    if report.lost:
        some = ", ".join(map(str, report.lost[:8])) + (", ..." if len(report.lost) > 8 else "")
        _say(f"{len(report.lost)} of the wanted frames could not be decoded: {some}")
    if report.fallback_reason:
        _say(f"decoded by {report.backend}: {report.fallback_reason}")
    for note in report.notes:
        _say(note)


def _facts(info: VideoInfo) -> list[tuple[str, str]]:
    depth = f", {info.bit_depth} bit" if info.bit_depth else ""
    turned = f", turned {info.rotation} degrees clockwise" if info.rotation else ""
    mirrored = ", mirrored" if info.mirrored else ""
    ratio = info.sample_aspect_ratio
    pixels = "" if ratio == 1 else f", pixels {ratio.numerator}:{ratio.denominator}"
    rate = f"{info.average_fps:.6g} per second" if info.average_fps else "at an unknown rate"
    matrix = "bt601 (untagged)" if info.color_space == "unknown" else info.color_space
    color_range = "tv (untagged)" if info.color_range == "unknown" else info.color_range
    return [
        ("video", f"{info.codec}, {info.pixel_format}{depth}{', interlaced' if info.interlaced else ''}"),
        ("size", f"{info.width}x{info.height}{turned}{mirrored}{pixels}"),
        ("frames", f"{info.num_frames}, {rate}{' on average, unevenly spaced' if info.variable_frame_rate else ''}"),
        ("duration", f"{info.duration:.3f} s, from {info.start_time:.3f} s on the container's clock"),
        ("colour", f"matrix {matrix}, range {color_range}"),
        ("container", f"{info.container}, stream {info.stream_index}"),
    ]


def _summary(name: str, frames: Frames, target: str | None) -> Iterator[str]:
    info, report = frames.info, frames.report
    height, width = frames.data.shape[1:3]
    yield f"{len(frames)} of {info.num_frames} frames of {name}, {width}x{height}"
    rows = [
        f"  {f'#{index}':>8} {timestamp:>12.3f} s"
        for index, timestamp in zip(frames.indices, frames.timestamps, strict=True)
    ]
    if len(rows) > _LONGEST_TABLE:
        hidden = len(rows) - _LONGEST_TABLE + 1
        rows[_LONGEST_TABLE - 2 : -1] = [f"  {'...':>8} {hidden:>6} more; --json lists all"]
    yield from rows
    yield (
        f"{report.backend} on {report.device}: {report.packets_fed} of {report.packets_total} packets decoded "
        f"in {sum(v for stage, v in report.seconds.items() if stage != 'convert'):.2f} s"
    )
    if target is not None:
        yield f"written to {printable(target, 200)}"


def _compare(arguments: argparse.Namespace) -> Iterable[str]:
    source, name = _source(arguments.file)
    target: str | None = arguments.sheet
    with (
        Progress.shown(arguments.progress) as watch,
        contextlib.nullcontext() if target is None else claim_sheet(target, arguments.file) as place,
    ):
        deadline = Deadline(arguments.timeout, watch)
        found = compare(source, num_frames=arguments.num_frames, device=arguments.device, timeout=deadline)
        if place is not None:
            place(lambda path: write_sheet(found, path))
    # two that do not mean the same frames: nothing failed, and yet nothing is right
    arguments.exit_code = 0 if found.agree else 1
    if arguments.json:
        document = {"info": plain(found.info), "indices": found.indices, "agree": found.agree}
        return [json.dumps(document | {"backends": [asdict(row) for row in found.rows]}, indent=2)]
    return _comparison(name, found)


def _comparison(name: str, found: Comparison) -> Iterator[str]:
    yield name
    yield from table(_facts(found.info))
    yield ""
    yield f"{len(found.indices)} frames: {', '.join(map(str, found.indices[:12]))}{', ...' * (len(found.indices) > 12)}"
    for row in found.rows:
        spent = "" if row.seconds is None else f"{row.seconds * 1000:.0f} ms"
        pixels = "" if row.largest is None else f"pixels within {row.largest}"
        lost = f"{len(row.lost)} lost" if row.lost else ""
        parts = [part for part in (spent, pixels, lost, printable(row.detail, 300)) if part]
        yield f"  {row.backend:<15} {row.verdict:<13} {', '.join(parts)}"


def _doctor(arguments: argparse.Namespace) -> Iterable[str]:
    if arguments.vllm:
        from telecine.integrations.vllm.doctor import report

        text, is_on = report(arguments.json)
        arguments.exit_code = 0 if is_on else BackendUnavailable.exit_code
        return text
    found = examine()
    if arguments.json:
        return [json.dumps(found, indent=2)]
    return describe(found)


def _say(message: str) -> None:
    sys.stderr.write(f"telecine: {message}\n")


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    """Show what the package logs, at the level that ``TELECINE_LOG`` names. Off without it."""
    name = os.environ.get("TELECINE_LOG")
    if not name:
        yield
        return
    levels = ("debug", "info", "warning", "error", "critical")
    if name.lower() not in levels:
        raise OptionsError(f"TELECINE_LOG is {printable(name)!r}; it must be one of: {', '.join(levels)}")
    logger, handler = logging.getLogger("telecine"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(name.upper())
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
