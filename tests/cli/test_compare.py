"""The command ``telecine compare``: each backend in a process of its own, and the exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import telecine
from support.clips import CLIPS
from telecine.cli.compare import compare

SOURCE = Path(telecine.__file__).parent.parent
CLIP = CLIPS["h264_pyramid.mp4"]
# misbehaving backends of another package, which the command finds by their entry points
BAD = """
    import os, time
    from dataclasses import replace
    import numpy as np, telecine
    from telecine.backends.pyav.backend import PyAVBackend

    class Neighbour(PyAVBackend):
        def decode(self, request):
            frames = np.minimum(request.plan.frames + 1, request.index.num_frames - 1)
            return replace(super().decode(request), data=telecine.load(request.source.data, indices=frames).data)

    class Crash(PyAVBackend):
        def decode(self, request):
            os.kill(os.getpid(), 11)

    class Hang(PyAVBackend):
        def decode(self, request):
            time.sleep(600)

    class Tinted(PyAVBackend):
        def decode(self, request):
            decoded = super().decode(request)
            return replace(decoded, data=np.clip(decoded.data, 0, 245) + 9)

    class Missing(PyAVBackend):
        def decode(self, request):
            decoded = super().decode(request)
            return replace(decoded, kept=decoded.kept & (np.arange(len(decoded.kept)) != 2))
"""


def run(tmp_path: Path, *arguments: str, seconds: float = 120, **bad: str) -> subprocess.CompletedProcess[str]:
    """Run ``telecine compare`` with these misbehaving backends, and a time limit for each backend."""
    info = tmp_path / "bad_video-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-video\nVersion: 1.0\n")
    points = "\n".join(f"{name} = bad_video:{value}" for name, value in bad.items())
    (info / "entry_points.txt").write_text(f"[telecine.backends]\n{points}\n")
    (tmp_path / "bad_video.py").write_text(textwrap.dedent(BAD))
    script = (
        "import sys, telecine.cli.compare; from telecine.cli.main import main; "
        f"telecine.cli.compare._MAX_SECONDS = {seconds}; sys.exit(main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", script, "compare", *arguments],
        capture_output=True, text=True, timeout=100, env=os.environ | {"PYTHONPATH": f"{tmp_path}:{SOURCE}"},
    )  # fmt: skip


def rows(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {row["backend"]: row for row in json.loads(done.stdout)["backends"]}


def test_all_usable_backends_agree() -> None:
    found = compare(CLIP.path(), num_frames=3)
    assert found.agree
    assert found.rows[0].backend == "pyav"
    assert found.rows[0].verdict == "reference"
    assert {row.verdict for row in found.rows[1:]} <= {"same"}
    assert found.indices == (0, 1, 29, 30, 31, 58, 59)
    usable = [status.name for status in telecine.list_backends() if status.usable]
    assert sorted(row.backend for row in found.rows) == sorted(usable)
    assert all(row.seconds is not None and row.seconds > 0 for row in found.rows)


def test_a_backend_that_returns_the_next_frame_gives_exit_code_1(tmp_path: Path) -> None:
    done = run(tmp_path, str(CLIP.path()), "--json", neighbour="Neighbour")
    assert done.returncode == 1, done.stderr
    row = rows(done)["neighbour"]
    assert row["verdict"] == "other frames"
    assert "looks like frame" in row["detail"]
    assert json.loads(done.stdout)["agree"] is False


def test_a_backend_that_crashes_is_a_row_of_the_result(tmp_path: Path) -> None:
    done = run(tmp_path, str(CLIP.path()), "--json", crash="Crash")
    assert done.returncode == 0, done.stderr
    assert rows(done)["crash"]["verdict"] == "crashed"
    assert f"signal {int(signal.SIGSEGV)}" in rows(done)["crash"]["detail"]


def test_a_backend_that_hangs_is_a_row_of_the_result(tmp_path: Path) -> None:
    done = run(tmp_path, str(CLIP.path()), "--json", seconds=6, hang="Hang")
    assert done.returncode == 0, done.stderr
    assert rows(done)["hang"]["verdict"] == "failed"
    assert rows(done)["hang"]["detail"] == "gave no answer within 6 s"


@pytest.mark.parametrize("seconds", ["0.3", "4"])
def test_a_timeout_gives_exit_code_6(tmp_path: Path, seconds: str) -> None:
    """The timeout passes before the reference has answered, or while another backend hangs."""
    done = run(tmp_path, str(CLIP.path()), "--timeout", seconds, hang="Hang")
    assert (done.returncode, done.stdout) == (6, "")
    assert done.stderr == f"telecine: the timeout of {seconds} s passed while comparing backends\n"


def test_limits_hold_for_every_backend() -> None:
    """The error of a child process keeps its class, and its message names the source."""
    with pytest.raises(telecine.LimitError, match=r"2 frames asked for; limits\.max_frames is 1") as caught:
        compare(CLIP.path(), num_frames=1, limits=telecine.Limits(max_frames=1))
    assert CLIP.path().name in str(caught.value)
    with pytest.raises(telecine.LimitError, match=r"limits\.max_pixels is 100"):
        compare(CLIP.path(), limits=telecine.Limits(max_pixels=100))
    assert compare(CLIP.path(), num_frames=1, limits=telecine.Limits(max_frames=2)).agree


def test_a_video_that_the_reference_cannot_decode_is_a_decode_error(tmp_path: Path) -> None:
    noise = tmp_path / "noise.mp4"
    data = bytearray(CLIPS["prores.mov"].path().read_bytes())
    start = data.index(b"mdat") + 4
    stop = data.index(b"moov") - 4 if data.index(b"moov") > start else len(data)
    data[start:stop] = bytes(stop - start)
    noise.write_bytes(data)
    with pytest.raises(telecine.DecodeError):
        telecine.load(noise)
    with pytest.raises(telecine.DecodeError, match=r"the reference, pyav, cannot decode it: noise\.mp4: "):
        compare(noise)
    assert run(tmp_path, str(noise)).returncode == 3


def test_messages_name_the_source_and_not_its_memory_file() -> None:
    with pytest.raises(telecine.SourceError) as caught:
        compare(b"\0" * 5000)
    assert str(caught.value).startswith("bytes (5000 bytes)")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_frames": 0}, "num_frames is 0; it must be a whole number from 1 on"),
        ({"num_frames": -5}, "num_frames is -5"),
        ({"num_frames": 2.0}, "num_frames is 2.0"),
        ({"num_frames": True}, "num_frames is True"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"limits": {}}, "limits is {}"),
        ({"timeout": 0}, "timeout is 0"),
    ],
)
def test_a_wrong_argument_is_refused_before_the_source_is_opened(options: dict[str, Any], message: str) -> None:
    with pytest.raises(telecine.OptionsError) as caught:
        compare("absent.mp4", **options)
    assert message in str(caught.value)


def test_a_sheet_that_cannot_be_written_is_refused_before_anything_is_decoded(tmp_path: Path) -> None:
    for target in ("x.foo", "x", "absent/x.png"):
        done = run(tmp_path, "absent.mp4", "--sheet", str(tmp_path / target))
        assert done.returncode == 2, done.stderr
        assert "must be the path of a contact sheet" in done.stderr or "cannot be written" in done.stderr


def test_pixel_differences_and_lost_frames_are_reported(tmp_path: Path) -> None:
    done = run(tmp_path, str(CLIP.path()), "--json", tinted="Tinted", missing="Missing")
    assert done.returncode == 0, done.stderr
    found = rows(done)
    assert (found["tinted"]["verdict"], found["tinted"]["largest"]) == ("differs", 9)
    assert found["missing"]["lost"] == [json.loads(done.stdout)["indices"][2]]
    assert found["missing"]["verdict"] == "same"


def test_the_contact_sheet_has_a_row_for_each_backend(tmp_path: Path) -> None:
    from PIL import Image

    target = tmp_path / "sheet.png"
    done = run(tmp_path, str(CLIP.path()), "-n", "4", "--sheet", str(target), one="Missing", two="Missing")
    assert done.returncode == 0, done.stderr
    assert "frames" in done.stdout
    with Image.open(target) as sheet:
        assert sheet.height > sheet.width / 4


def test_a_file_that_is_no_video_gives_exit_code_3(tmp_path: Path) -> None:
    bad = tmp_path / "bad.mp4"
    bad.write_bytes(b"no video")
    done = run(tmp_path, str(bad))
    assert done.returncode == 3
    assert done.stderr.startswith("telecine: ")


def test_clips_of_one_and_two_frames_are_compared(tmp_path: Path) -> None:
    for name in ("one_frame.mp4", "two_frames.mp4"):
        found = compare(CLIPS[name].path())
        assert found.agree
        assert len(found.indices) == CLIPS[name].num_frames
