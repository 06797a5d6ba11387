"""The command line: results, messages and exit codes."""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest
from PIL import Image

import telecine.cli.main
from support.clips import CLIPS, read_number
from telecine import errors, list_backends, load, probe
from telecine.cli.main import main
from telecine.deadline import Deadline

BASE = str(CLIPS["base.mp4"].path())


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def results(capsys, *arguments):
    """Return the standard output of a command that succeeds and prints nothing on standard error."""
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    return out


@pytest.fixture
def no_settings(monkeypatch):
    """Remove the TELECINE_ variables of the shell, which the doctor would list."""
    for name in list(os.environ):
        if name.startswith("TELECINE_"):
            monkeypatch.delenv(name)


def process(*arguments, **options):
    """Start the command in a process of its own. It reacts to SIGINT even if this process ignores it."""
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    code += "from telecine.cli.main import main; sys.exit(main())"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([sys.executable, "-W", "error", "-c", code, *arguments], **pipes)


# probe


@pytest.mark.parametrize("clip", ["base.mp4", "vfr.mp4", "rotated90.mp4"], indirect=True)
def test_probe_json_has_every_field_of_video_info(capsys, clip):
    document = json.loads(results(capsys, "probe", clip.path(), "--json"))
    facts = asdict(probe(clip.path()))
    facts |= {"sample_aspect_ratio": "1/1", "notes": []}
    assert document == facts


def test_probe_shows_notes_with_their_codes(capsys):
    path = CLIPS["mpeg4.avi"].path()
    assert "note" in results(capsys, "probe", path) and "[times-rebuilt]" in results(capsys, "probe", path)
    (note,) = json.loads(results(capsys, "probe", path, "--json"))["notes"]
    assert note["code"] == "times-rebuilt" and "rebuilt" in note["text"]


def test_probe_prints_the_properties_in_aligned_lines(capsys):
    name, *lines = results(capsys, "probe", BASE).splitlines()
    assert name == BASE
    assert {line[:13] for line in lines} == {
        f"  {word:<11}" for word in ("video", "size", "frames", "duration", "colour", "container", "read")
    }
    assert "  frames     60, 30 per second" in lines
    assert "  size       96x64" in lines


def test_probe_prints_rotation_and_a_variable_rate(capsys):
    assert "rotated by 90 degrees clockwise" in results(capsys, "probe", CLIPS["rotated90.mp4"].path())
    assert "variable" in results(capsys, "probe", CLIPS["vfr.mp4"].path())


# sample


def test_sample_takes_eight_frames_by_default(capsys):
    document = json.loads(results(capsys, "sample", BASE, "--json"))
    assert [row["index"] for row in document["frames"]] == load(BASE, num_frames=8).indices.tolist()
    assert document["output"] is None


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["-n", "5"], {"num_frames": 5}),
        (["-n", "all"], {}),
        (["--num-frames", "3", "--start", "0.5", "--end", "1.5"], {"num_frames": 3, "start": 0.5, "end": 1.5}),
        (["--fps", "7.5"], {"fps": 7.5}),
        (["--fps", "4", "-n", "3"], {"fps": 4, "num_frames": 3}),
        (["--fps", "1", "--min-frames", "9"], {"fps": 1, "min_frames": 9}),
        (["--fps", "30", "--max-frames", "9"], {"fps": 30, "max_frames": 9}),
        (["--max-frames", "9"], {"max_frames": 9}),
        (["--indices", "9,0,9"], {"indices": [9, 0, 9]}),
        (["--timestamps", "1.5,0.2"], {"timestamps": [1.5, 0.2]}),
        (["--policy", "key_frames"], {"policy": "key_frames"}),
        (["--policy", "qwen3_vl"], {"policy": "qwen3_vl"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_sample_chooses_the_same_frames_as_load(capsys, arguments, options):
    document = json.loads(results(capsys, "sample", BASE, *arguments, "--json"))
    frames = load(BASE, **options)
    assert [(row["index"], row["timestamp"]) for row in document["frames"]] == list(
        zip(frames.indices.tolist(), frames.timestamps.tolist(), strict=True)
    )
    assert document["info"]["num_frames"] == 60
    assert document["report"]["packets_fed"] == frames.report.packets_fed


@pytest.mark.parametrize(("size", "shape"), [("32", (32, 48)), ("20x50", (20, 50))])
def test_sample_size_is_the_short_side_or_height_times_width(capsys, tmp_path, size, shape):
    results(capsys, "sample", BASE, "-n", 1, "--size", size, "-o", tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as arrays:
        assert arrays["frames"].shape == (1, *shape, 3)


def test_sample_lists_the_frames_and_the_packets_decoded(capsys):
    lines = results(capsys, "sample", BASE, "--indices", "0,47").splitlines()
    assert lines[0] == f"2 of 60 frames of {BASE}, 96x64"
    assert [line.split() for line in lines[1:3]] == [["#0", "0.000", "s"], ["#47", "1.567", "s"]]
    assert lines[3].startswith("pyav on cpu: ") and "of 60 packets decoded" in lines[3]


def test_sample_shortens_a_long_list_of_frames_and_prints_how_many_are_left_out(capsys):
    lines = results(capsys, "sample", BASE, "-n", "all").splitlines()
    listed = [line for line in lines if line.lstrip().startswith("#")]
    (gap,) = [line for line in lines if "--json lists all" in line]
    assert len(lines) < 30
    assert len(listed) + int(gap.split()[1]) == 60
    assert listed[-1].split()[0] == "#59"


def test_sample_writes_a_folder_of_frames_and_names_the_files(capsys, tmp_path):
    document = json.loads(results(capsys, "sample", BASE, "-n", 3, "-o", f"{tmp_path}/frames/", "--json"))
    assert document["output"] == f"{tmp_path}/frames/"
    for row in document["frames"]:
        with Image.open(tmp_path / "frames" / row["file"]) as picture:
            assert read_number(np.asarray(picture)) == row["index"]
    on_disk = json.loads((tmp_path / "frames/frames.json").read_text())
    assert on_disk["frames"] == document["frames"]


def test_sample_names_lost_frames_on_standard_error(capsys):
    clip = CLIPS["truncated.mp4"]
    code, out, err = run(capsys, "sample", clip.path(), "--indices", f"0,{clip.lost[0]}", "--json")
    assert code == 0
    assert [row["index"] for row in json.loads(out)["frames"]] == [0]
    assert f"1 of the requested frames could not be decoded: {clip.lost[0]}\n" in err
    code, out, err = run(capsys, "sample", clip.path(), "--indices", f"0,{clip.lost[0]}", "--errors", "strict")
    assert (code, out) == (3, "")
    assert err.startswith("telecine: ") and err.count("\n") == 1


def test_a_target_that_cannot_be_written_is_refused_before_the_video_is_opened(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(telecine.cli.main, "load", lambda *_, **__: pytest.fail("the video was opened"))
    monkeypatch.chdir(tmp_path)  # a message shortens long paths
    for target in ("absent/sheet.jpg", "film.mp4"):
        code, out, err = run(capsys, "sample", BASE, "-o", target)
        assert (code, out) == (2, "") and target in err


# sources


def test_probe_reads_standard_input(capsys, monkeypatch):
    stdin = io.TextIOWrapper(io.BytesIO(CLIPS["base.mp4"].bytes()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert results(capsys, "probe", "-").startswith("standard input\n")


def test_probe_reads_a_pipe_to_its_end():
    out, err = process("probe", "-", "--json").communicate(CLIPS["base.mp4"].bytes())
    assert json.loads(out)["num_frames"] == 60 and err == b""


def test_a_terminal_as_standard_input_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", argparse.Namespace(isatty=lambda: True))
    code, out, err = run(capsys, "probe", "-")
    assert (code, out) == (2, "") and "terminal" in err


def test_credentials_and_query_of_a_url_are_not_shown(capsys, monkeypatch):
    info = probe(BASE)
    monkeypatch.setattr(telecine.cli.main, "probe", lambda *_, **__: info)
    out = results(capsys, "probe", "https://user:secret@example.org/a/clip.mp4?token=secret")
    assert "clip.mp4" in out and "secret" not in out


def test_a_name_that_no_terminal_can_show_is_still_opened(capsys, tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff\n\x1b[2J.mp4"
    os.symlink(BASE, path)
    out = results(capsys, "probe", os.fsdecode(path))
    assert "\x1b" not in out and out.splitlines()[0].endswith("[2J.mp4")


# errors


@pytest.mark.parametrize("kind", [getattr(errors, name) for name in errors.__all__], ids=lambda kind: kind.__name__)
def test_every_error_is_one_line_and_the_exit_code_of_its_class(capsys, monkeypatch, tmp_path, kind):
    def fail(*_, **__):
        raise kind("what, and what to do")

    monkeypatch.setattr(telecine.cli.main, "load", fail)
    code, out, err = run(capsys, "sample", BASE, "-o", tmp_path / "sheet.jpg")
    assert (code, out, err) == (kind.exit_code, "", "telecine: what, and what to do\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (2, []),
        (2, ["frobnicate"]),
        (2, ["sample"]),
        (2, ["sample", BASE, "--fps", "fast"]),
        (2, ["sample", BASE, "-n", "0"]),
        (2, ["sample", BASE, "-n", "-3"]),
        (2, ["sample", BASE, "-n", "1_0"]),
        (2, ["sample", BASE, "--indices", "1,two"]),
        (2, ["sample", BASE, "--indices", "60"]),
        (2, ["sample", BASE, "--indices", "-1"]),
        (2, ["sample", BASE, "--indices", "1", "--fps", "2"]),
        (2, ["sample", BASE, "--size", "0"]),
        (2, ["sample", BASE, "--size", "1x2x3"]),
        (2, ["sample", BASE, "--policy", "nobody"]),
        (2, ["sample", BASE, "--backend", "nobody"]),
        (2, ["sample", BASE, "--device", "tpu"]),
        (2, ["sample", BASE, "--start", "9"]),
        (2, ["sample", BASE, "--timeout", "0"]),
        (2, ["sample", BASE, "--timeout", "inf"]),
        (2, ["sample", BASE, "--device", "cuda:99999999999"]),
        (2, ["compare", BASE, "-n", "0"]),
        (2, ["compare", BASE, "-n", "-5"]),
        (2, ["compare", BASE, "--device", "tpu"]),
        (2, ["compare", BASE, "--sheet", "x.foo"]),
        (2, ["compare", BASE, "--sheet", "/nonexistent/x.png"]),
        (3, ["probe", "absent.mp4"]),
        (3, ["probe", __file__]),
        (3, ["probe", str(CLIPS["audio.mp4"].path())]),
        (3, ["probe", str(CLIPS["no_moov.mp4"].path())]),
        (4, ["sample", BASE, "--size", "100000x100000"]),
        (6, ["sample", BASE, "--timeout", "1e-9"]),
        (0, ["--help"]),
        (0, ["sample", "--help"]),
        (0, ["--version"]),
    ],
    ids=lambda value: " ".join(os.path.basename(v) for v in value) if isinstance(value, list) else str(value),
)
def test_a_command_returns_the_documented_exit_code(capsys, code, arguments):
    got, out, err = run(capsys, *arguments)
    assert got == code, err
    assert (out if code == 0 else err) and not (err if code == 0 else out)


def test_ctrl_c_is_quiet_and_leaves_nothing_behind(capsys, monkeypatch, tmp_path):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(telecine.cli.main, "load", interrupted)
    assert run(capsys, "sample", BASE, "-o", tmp_path / "frames") == (130, "", "")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_a_process_that_waits_for_its_input():
    with process("probe", "-") as waiting:
        # more than a pipe holds: once it is written, the command is reading, and waits for the rest
        waiting.stdin.write(bytes(2 << 20))
        waiting.stdin.flush()
        waiting.send_signal(signal.SIGINT)
        waiting.wait(20)
        assert (waiting.stdout.read(), waiting.stderr.read(), waiting.returncode) == (b"", b"", 130)


def test_a_closed_pipe_behind_standard_output_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    running = process("sample", BASE, stdout=writer)
    os.close(writer)
    _, err = running.communicate()
    assert (running.returncode, err) == (0, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_behind_standard_output_is_an_error():
    with open("/dev/full", "wb") as full:
        running = process("probe", BASE, stdout=full)
        _, err = running.communicate()
    assert running.returncode == 2
    assert err == b"telecine: standard output cannot be written: No space left on device\n"


def shell(line, *arguments):
    """Run a shell line with the function telecine. Returns exit code, standard output and standard error."""
    command = "import sys; from telecine.cli.main import main; sys.exit(main())"
    define = f"telecine() {{ {shlex.quote(sys.executable)} -W error -c '{command}' \"$@\"; }}\n"
    done = subprocess.run(["sh", "-c", define + line, "sh", *map(str, arguments)], capture_output=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_closed_standard_streams_give_no_traceback():
    closed = b"telecine: FILE is -, and standard input is closed; pipe a video into it or give a path\n"
    assert shell("telecine probe - <&-") == (2, b"", closed)
    closed = b"telecine: standard output cannot be written: it is closed\n"
    assert shell('telecine probe "$1" >&-', BASE) == (2, b"", closed)
    code, out, err = shell('telecine probe "$1" 2>&-', BASE)
    assert (code, out.splitlines()[0], err) == (0, BASE.encode(), b"")
    assert shell("telecine probe absent.mp4 2>&-") == (3, b"", b"")
    assert shell("telecine probe absent.mp4 --progress <&- >&- 2>&-") == (3, b"", b"")
    assert shell("telecine sample 2>&-") == (2, b"", b"")


def test_names_that_the_encoding_of_the_terminal_lacks_are_escaped(tmp_path):
    os.symlink(BASE, tmp_path / "\u00e9.mp4")
    code, out, err = shell('PYTHONUTF8=1 PYTHONIOENCODING=ascii telecine probe "$1"', tmp_path / "\u00e9.mp4")
    assert (code, err) == (0, b"")
    assert out.splitlines()[0] == f"{tmp_path}/\\xe9.mp4".encode()
    code, out, err = shell("PYTHONUTF8=1 PYTHONIOENCODING=ascii:strict telecine probe /absent/\u00e9.mp4")
    assert (code, out) == (3, b"") and b"\\xe9.mp4" in err and b"Traceback" not in err


# doctor


def test_doctor_lists_every_backend_as_usable_or_with_the_reason(capsys, monkeypatch, no_settings):
    monkeypatch.setenv("TELECINE_DEVICE", "cpu")
    document = json.loads(results(capsys, "doctor", "--json"))
    assert document["backends"] == [asdict(status) | {"devices": list(status.devices)} for status in list_backends()]
    assert document["environment"] == {"TELECINE_DEVICE": "cpu"}
    assert document["cores"] >= 1
    assert document["ffmpeg"]["licence"]
    out = results(capsys, "doctor")
    for status in list_backends():
        assert status.name in out and (status.usable or status.reason in out)
    assert "TELECINE_DEVICE  cpu" in out


def test_doctor_prints_what_is_missing_and_returns_0(capsys, monkeypatch, no_settings):
    broken = list_backends()[0].__class__("nobody", False, "nobody is not installed: pip install nobody", None)
    monkeypatch.setattr("telecine.cli.doctor.list_backends", lambda: [broken])
    out = results(capsys, "doctor")
    assert "nobody  not usable: nobody is not installed: pip install nobody" in out
    assert "no TELECINE_ variable is set" in out


def test_doctor_does_not_import_torch():
    script = "import sys; from telecine.cli.main import main; main(['doctor']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], stdout=subprocess.DEVNULL).returncode == 0


# settings of the command line


def test_telecine_log_sets_the_level_of_the_printed_log(capsys, monkeypatch):
    monkeypatch.setenv("TELECINE_LOG", "debug")
    code, _, err = run(capsys, "sample", BASE)
    assert code == 0 and "telecine.cli.main: decode took" in err
    assert logging.getLogger("telecine").handlers == []
    monkeypatch.setenv("TELECINE_LOG", "error")
    results(capsys, "sample", BASE)
    monkeypatch.setenv("TELECINE_LOG", "loud")
    code, _, err = run(capsys, "sample", BASE)
    assert code == 2 and "debug, info, warning, error, critical" in err


def test_telecine_backend_and_device_are_the_defaults(capsys, monkeypatch):
    monkeypatch.setenv("TELECINE_BACKEND", "nobody")
    assert run(capsys, "sample", BASE)[0] == 2
    results(capsys, "sample", BASE, "--backend", "pyav")
    monkeypatch.setenv("TELECINE_DEVICE", "tpu")
    assert run(capsys, "sample", BASE, "--backend", "pyav")[0] == 2
    results(capsys, "sample", BASE, "--backend", "pyav", "--device", "cpu")


def test_progress_option_shows_progress_without_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("telecine.cli.progress._DELAY_SECONDS", -1.0)
    code, out, err = run(capsys, "sample", BASE, "--progress")
    assert code == 0 and err == "opening the source  0 s\n" and "opening" not in out
    results(capsys, "sample", BASE)


def test_the_timeout_option_is_the_deadline_of_the_request(capsys, monkeypatch):
    info, seen = probe(BASE), []
    monkeypatch.setattr(telecine.cli.main, "probe", lambda _, timeout: seen.append(timeout) or info)
    results(capsys, "probe", BASE, "--timeout", "2.5")
    assert isinstance(seen[0], Deadline) and seen[0].seconds == 2.5


def test_python_m_telecine_runs_the_command_line() -> None:
    done = subprocess.run([sys.executable, "-m", "telecine", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("telecine ")
