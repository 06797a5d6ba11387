"""Options of backends, and backends of other packages: checked before anything is decoded."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from fractions import Fraction
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import telecine
from support.clips import CLIPS
from telecine.backends.pyav.backend import PyAVBackend
from telecine.settings import choose
from telecine.validation import Option, check, real, shown, whole

backends_module = importlib.import_module("telecine.backends.base")
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
        (Option(int, 1, "", 0, 4), [0, 4, np.int64(3), np.uint8(4)], [-1, 5, 1.0, True, np.True_, "1", np.float64(1)]),
        (
            Option(float, 1.0, "", 0.5),
            [0.5, 1, math.inf, np.float32(0.5), np.int64(2), Fraction(1, 2), 10**400],
            [0.4, math.nan, True, np.True_, "1", 1j, -(10**400)],
        ),
        (Option(bool, True, ""), [True, False], [1, 0, "true"]),
        (Option(str, "a", "", choices=("a", "b")), ["a", "b"], ["c", 1, b"a"]),
        (Option(str, "", ""), ["", "any"], [1]),
        (Option(int, None, ""), [-5, 10**9], [0.5]),
    ],
)
def test_what_an_option_accepts(option: Option, accepted: list[Any], refused_values: list[Any]) -> None:
    for value in accepted:
        assert option.read(value) == (real(value) if option.kind is float else value)
        assert type(option.read(value)) is option.kind  # a number of Python, whatever was given
    assert [option.read(value) for value in refused_values] == [None] * len(refused_values)
    assert option.allowed()


def test_numbers_are_told_from_what_only_looks_like_them() -> None:
    assert [whole(value) for value in (3, np.int8(3), np.uint64(2**63))] == [3, 3, 2**63]
    assert [whole(value) for value in (True, 3.0, np.float64(3), "3", None, [3])] == [None] * 6
    assert [real(value) for value in (3, np.float32(0.5), Fraction(1, 4), 10**400)] == [3.0, 0.5, 0.25, math.inf]
    assert real(-(10**400)) == -math.inf
    assert [real(value) for value in (True, np.True_, "3", None, 1j)] == [None] * 5


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_a_message_quotes_any_value_at_a_bounded_length() -> None:
    assert shown("x") == "'x'"
    assert len(shown(list(range(1000)))) == 103
    assert shown(10**5000) == "something of type int that cannot be printed"
    assert shown(Unprintable()) == "something of type Unprintable that cannot be printed"


@pytest.mark.parametrize(
    "value", [1, 0, object(), "gpu", "", "cuda:", "cuda:-1", "cuda:\u00b2", "cuda:1_0", "cuda0", "cpu:0"]
)
def test_a_device_is_one_of_three_strings(value: Any) -> None:
    refused('it must be "cpu", "cuda" or "cuda:N", a string with N from 0 to 127', device=value)


@pytest.mark.parametrize("number", ["128", "99999999999", "9" * 5000])
def test_no_machine_has_that_many_devices(number: str) -> None:
    refused("N from 0 to 127", device=f"cuda:{number}")


def test_a_device_has_one_name() -> None:
    assert choose("auto", "cuda:007") == ("auto", "cuda:7")
    assert choose("nvdec", "cuda:127") == ("nvdec", "cuda:127")


@pytest.mark.parametrize("value", [5, ["pyav"], "", {}, 10**5000], ids=lambda value: type(value).__name__)
def test_a_backend_is_a_name(value: Any) -> None:
    refused("the backends are pyav, ", backend=value)


@pytest.mark.parametrize("limits", [{}, {"max_pixels": 3}, 3, False])
def test_limits_are_limits_and_nothing_else(limits: Any) -> None:
    refused("limits is", limits=limits)
    with pytest.raises(telecine.OptionsError, match=r"it must be a telecine\.Limits, or None"):
        telecine.probe(CLIP.path(), limits=limits)


@pytest.mark.parametrize("errors", ["lenient", ["strict"], np.array([1, 2]), None])
def test_errors_are_recovered_from_or_raised(errors: Any) -> None:
    refused('it must be "recover" or "strict"', errors=errors)


def test_numbers_of_numpy_are_numbers_everywhere() -> None:
    frames = telecine.load(
        CLIP.path(), num_frames=np.int64(2), size=(np.int64(32), np.uint8(48)), threads=np.int64(1),
        timeout=np.float32(60), limits=telecine.Limits(max_pixels=np.int64(2**26), read_timeout=np.float32(5)),  # type: ignore[arg-type]
    )  # fmt: skip
    assert frames.data.shape == (2, 32, 48, 3)
    assert telecine.load(CLIP.path(), num_frames=1, size=np.int64(32)).data.shape[1] == 32


def test_options_come_complete() -> None:
    own = {"one": Option(int, 1, ""), "two": Option(str, "x", "")}
    assert check("mine", {"two": "y"}, own, {}) == {"one": 1, "two": "y"}


def test_every_backend_declares_its_options() -> None:
    for name in backends_module.TABLE:
        for option in backends_module.get(name).options.values():
            assert option.meaning
            assert option.default is None or option.read(option.default) == option.default


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
        "from telecine.backends.pyav.backend import PyAVBackend\nclass Acme(PyAVBackend):\n    pass\n"
    )
    source = Path(telecine.__file__).parent.parent
    script = "import sys, telecine; print(telecine.load(sys.argv[1], num_frames=1, backend='acme').report.backend)"
    done = subprocess.run(
        [sys.executable, "-c", script, str(CLIP.path())], capture_output=True, text=True,
        env={"PYTHONPATH": f"{tmp_path}:{source}"}, timeout=60,
    )  # fmt: skip
    assert done.stdout.strip() == "acme", done.stderr


def test_the_contract_asks_for_a_device_before_it_starts(capsys: pytest.CaptureFixture[str]) -> None:
    """Or each case would wait for a thread that has failed."""
    from telecine.testing import CASES, run
    from telecine.testing.__main__ import main

    with pytest.raises(telecine.OptionsError, match="device is 'tpu'"):
        run(CASES[0], "pyav", "tpu")
    assert main(["pyav", "--device", "tpu"]) == 2
    assert "device is 'tpu'" in capsys.readouterr().err
