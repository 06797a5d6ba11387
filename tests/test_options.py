"""Options of backends, and backends of other packages: checked before anything is decoded."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import telecine
from clips import CLIPS
from telecine.backends.pyav import PyAVBackend
from telecine.options import Option, check

backends_module = importlib.import_module("telecine.backends")
CLIP = CLIPS["base.mp4"]


def refused(message: str, **options: Any) -> None:
    with pytest.raises(telecine.OptionsError) as caught:
        telecine.load(CLIP.path(), **options)
    assert message in str(caught.value)


def test_an_option_of_another_backend_says_whose_it_is() -> None:
    refused("seek_mode is an option of torchcodec, not of pyav; its options are: threads", seek_mode="exact")
    refused("hw_decoders is an option of pynvvideocodec, not of opencv", backend="opencv", hw_decoders=1)


def test_whose_an_option_is_does_not_depend_on_what_is_installed() -> None:
    refused("seek_mode is an option of torchcodec, not of deepstream", backend="deepstream", seek_mode="exact")


def test_an_unknown_option_lists_the_known_ones() -> None:
    refused("pyav has no option thread; its options are: threads", thread=1)
    refused("its options are: num_ffmpeg_threads, seek_mode", backend="torchcodec", nonsense=1)


def test_an_unknown_backend_lists_the_known_ones() -> None:
    refused("backend is 'nonsense'; the backends are pyav, ", backend="nonsense")


@pytest.mark.parametrize("value", [0, 65, "4", 2.0, True])
def test_a_value_out_of_bounds_says_what_is_allowed(value: Any) -> None:
    refused("for pyav it must be a whole number from 1 to 64", threads=value)


def test_none_is_as_if_it_had_not_been_given() -> None:
    assert len(telecine.load(CLIP.path(), num_frames=1, threads=None)) == 1


@pytest.mark.parametrize(
    ("option", "accepted", "refused_values"),
    [
        (Option(int, 1, "", 0, 4), [0, 4], [-1, 5, 1.0, True, "1"]),
        (Option(float, 1.0, "", 0.5), [0.5, 1, math.inf], [0.4, math.nan, True, "1"]),
        (Option(bool, True, ""), [True, False], [1, 0, "true"]),
        (Option(str, "a", "", choices=("a", "b")), ["a", "b"], ["c", 1, b"a"]),
        (Option(str, "", ""), ["", "any"], [1]),
        (Option(int, None, ""), [-5, 10**9], [0.5]),
    ],
)
def test_what_an_option_accepts(option: Option, accepted: list[Any], refused_values: list[Any]) -> None:
    assert all(option.accepts(value) for value in accepted)
    assert not any(option.accepts(value) for value in refused_values)
    assert option.allowed()


def test_options_come_complete() -> None:
    own = {"one": Option(int, 1, ""), "two": Option(str, "x", "")}
    assert check("mine", {"two": "y"}, own, {}) == {"one": 1, "two": "y"}


def test_every_backend_declares_its_options() -> None:
    for name in backends_module.TABLE:
        for option in backends_module.get(name).options.values():
            assert option.meaning
            assert option.default is None or option.accepts(option.default)


def test_a_named_backend_that_does_not_work_here_says_why() -> None:
    unusable = [status for status in telecine.backends() if not status.usable]
    assert unusable, "at least the GPU's are unusable where there is none"
    for status in unusable:
        with pytest.raises(telecine.BackendUnavailable) as caught:
            telecine.load(CLIP.path(), backend=status.name)
        assert status.reason is not None
        assert status.reason in str(caught.value)
        assert "install" in status.reason or "driver" in status.reason or "GPU" in status.reason


class FromOutside(PyAVBackend):
    """What another package might bring."""


class Broken:
    def __init__(self) -> None:
        raise OSError("libfoo.so: cannot open shared object file")


def outside(monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    """Let other packages have these entry points, until the test ends."""
    found = [EntryPoint(name, value, backends_module.GROUP) for name, value in points.items()]
    monkeypatch.setattr(backends_module, "entry_points", lambda group: found if group == backends_module.GROUP else [])
    monkeypatch.setattr(backends_module, "_made", {})


def test_a_backend_of_another_package_is_used_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    outside(monkeypatch, mine="test_options:FromOutside")
    frames = telecine.load(CLIP.path(), backend="mine", num_frames=2)
    assert frames.report.backend == "mine"
    assert "mine" in [status.name for status in telecine.backends()]
    monkeypatch.setenv("TELECINE_BACKEND", "mine")
    assert telecine.load(CLIP.path(), num_frames=1).report.backend == "mine"
    refused("the backends are pyav,", backend="nonsense")


@pytest.mark.parametrize("value", ["no_such_module:Backend", "test_options:NoSuchClass", "test_options:Broken"])
def test_a_broken_one_breaks_only_its_own_name(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    outside(monkeypatch, mine=value)
    with pytest.raises(telecine.BackendUnavailable, match=r"mine: the package .* is broken"):
        telecine.load(CLIP.path(), backend="mine")
    status = {status.name: status for status in telecine.backends()}
    assert status["pyav"].usable
    assert not status["mine"].usable
    assert len(telecine.load(CLIP.path(), num_frames=1)) == 1


def test_a_built_in_name_cannot_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    outside(monkeypatch, pyav="test_options:Broken")
    assert telecine.load(CLIP.path(), num_frames=1, backend="pyav").report.backend == "pyav"
    (intruder,) = [status for status in telecine.backends() if status.name.endswith(":pyav")]
    assert not intruder.usable
    assert intruder.reason is not None
    assert "built-in" in intruder.reason


def test_two_packages_with_one_name_are_both_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("mine", "test_options:FromOutside", backends_module.GROUP) for _ in range(2)]
    monkeypatch.setattr(backends_module, "entry_points", lambda group: points)
    monkeypatch.setattr(backends_module, "_made", {})
    with pytest.raises(telecine.BackendUnavailable, match="both bring a backend of this name"):
        telecine.load(CLIP.path(), backend="mine")


def test_an_installed_package_is_found(tmp_path: Path) -> None:
    """With real metadata, in a process of its own."""
    info = tmp_path / "acme_video-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-video\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[telecine.backends]\nacme = acme_video:Acme\n")
    (tmp_path / "acme_video.py").write_text(
        "from telecine.backends.pyav import PyAVBackend\nclass Acme(PyAVBackend):\n    pass\n"
    )
    source = Path(telecine.__file__).parent.parent
    script = "import sys, telecine; print(telecine.load(sys.argv[1], num_frames=1, backend='acme').report.backend)"
    done = subprocess.run(
        [sys.executable, "-c", script, str(CLIP.path())], capture_output=True, text=True,
        env={"PYTHONPATH": f"{tmp_path}:{source}"}, timeout=60,
    )  # fmt: skip
    assert done.stdout.strip() == "acme", done.stderr
