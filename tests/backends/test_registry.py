"""The backends by name: built-in ones and those of other packages, and what is checked before a source is opened."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import telecine
from support.clips import CLIPS
from telecine.backends import Backend, registry
from telecine.backends.pyav.backend import PyAVBackend
from telecine.backends.registry import BUILT_IN, ENTRY_POINT_GROUP, get_backend, list_backends, prepare_backend
from telecine.testing import CASES, run_case
from telecine.testing.__main__ import main

CLIP = CLIPS["base.mp4"]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "backend_package"


class Outside(PyAVBackend):
    """A backend as another package may provide it."""


class FailsToLoad(PyAVBackend):
    """A backend whose library is broken."""

    def __init__(self) -> None:
        raise OSError("libfoo.so: cannot open shared object file")


class NotDerived:
    """A class that has the methods of a backend, but not its base class."""


def install(monkeypatch: pytest.MonkeyPatch, *points: tuple[str, str]) -> None:
    """Let other packages provide backends, each by name and ``module:class``, until the test ends."""
    found = [EntryPoint(name, value, ENTRY_POINT_GROUP) for name, value in points]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: found if group == ENTRY_POINT_GROUP else [])
    monkeypatch.setattr(registry, "_instances", {})


def here(name: str) -> str:
    return f"{__name__}:{name}"


def test_importing_the_package_of_backends_gives_the_package() -> None:
    script = "import telecine, telecine.backends; print(telecine.backends.Backend.__name__, telecine.backends.__path__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("Backend ["), done.stderr


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_backend_is_derived_and_declares_what_it_takes(name: str) -> None:
    backend = get_backend(name)
    assert isinstance(backend, Backend)
    assert backend.name == name
    assert set(backend.devices) <= {"cpu", "cuda"}
    assert backend.options is not None
    for option in backend.options.values():
        assert option.default is None or option.parse(option.default) == option.default
    assert backend.detects_damage == (name in ("pyav", "nvdec"))


@pytest.mark.parametrize("detects", [True, False])
def test_the_report_says_if_the_backend_checks_pictures_for_damage(
    monkeypatch: pytest.MonkeyPatch, detects: bool
) -> None:
    backend = PyAVBackend()
    backend.detects_damage = detects
    monkeypatch.setitem(registry._instances, "pyav", backend)
    for options in ({}, {"errors": "strict"}):
        assert telecine.load(CLIPS["base.mp4"].path(), num_frames=2, **options).report.damage_checked is detects
    with telecine.open(CLIPS["base.mp4"].path()) as video:
        assert [frames.report.damage_checked for frames in video.iterate(chunk_frames=30)] == [detects] * 2


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_status_names_its_backend_and_its_devices(name: str) -> None:
    (status,) = [status for status in list_backends() if status.name == name]
    assert status.devices == get_backend(name).devices
    assert status.usable == (status.reason is None)


def test_a_named_backend_that_does_not_work_here_says_why() -> None:
    unusable = [status for status in list_backends() if not status.usable]
    assert unusable, "at least one backend needs a library that is not installed"
    for status in unusable:
        with pytest.raises(telecine.BackendUnavailable) as caught:
            telecine.load(CLIP.path(), backend=status.name)
        assert status.reason is not None
        assert status.reason in str(caught.value)
        assert "install" in status.reason or "driver" in status.reason or "GPU" in status.reason


def test_auto_is_not_listed_as_a_backend() -> None:
    assert "auto" not in BUILT_IN
    assert "auto" not in {status.name for status in list_backends()}


def test_a_backend_that_only_serves_the_cpu_refuses_a_gpu_before_the_source_is_opened() -> None:
    pytest.importorskip("cv2")
    with pytest.raises(telecine.OptionsError, match=r'device is \'cuda\'; opencv puts frames on "cpu" only'):
        telecine.load("absent.mp4", backend="opencv", device="cuda")


@pytest.mark.parametrize("backend", ["pyav", "auto"])
def test_a_gpu_that_does_not_exist_is_refused_before_the_source_is_opened(backend: str) -> None:
    with pytest.raises(telecine.BackendUnavailable) as caught:
        telecine.load("absent.mp4", backend=backend, device="cuda:100")
    assert "GPU" in str(caught.value) or "driver" in str(caught.value) or "_nvdec" in str(caught.value)


def test_pyav_uploads_the_frames_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = sys.modules[PyAVBackend.__module__]
    monkeypatch.setattr(module, "check_gpu", lambda device, out: None)
    monkeypatch.setattr(module, "upload", lambda frames, device, out: (frames + 1, f"{device}:0"))
    expected = telecine.load(CLIP.path(), num_frames=3, backend="pyav")
    frames = telecine.load(CLIP.path(), num_frames=3, backend="pyav", device="cuda")
    assert frames.report.device == "cuda:0"
    assert (frames.data == expected.data + 1).all()
    assert get_backend("pyav").decodes_on_cpu("cuda")


def test_options_are_returned_with_their_defaults() -> None:
    assert prepare_backend("pyav", "cpu", {"threads": 2}).items() >= {"threads": 2}.items()
    assert prepare_backend("pyav", "cpu", {})["threads"] is None


# backends of other packages


def test_a_backend_of_another_package_is_used_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ("mine", here("Outside")))
    frames = telecine.load(CLIP.path(), backend="mine", num_frames=2)
    assert frames.report.backend == "mine"
    assert "mine" in [status.name for status in list_backends()]
    monkeypatch.setenv("TELECINE_BACKEND", "mine")
    assert telecine.load(CLIP.path(), num_frames=1).report.backend == "mine"
    with pytest.raises(telecine.OptionsError, match=r"the backends are pyav,.* mine and auto"):
        telecine.load(CLIP.path(), backend="nonsense")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("no_such_module:Backend", "ModuleNotFoundError"),
        (here("NoSuchClass"), "AttributeError"),
        (here("FailsToLoad"), "libfoo.so"),
        (here("NotDerived"), "is not derived from telecine.backends.Backend"),
    ],
)
def test_a_broken_package_breaks_only_its_own_backend(monkeypatch: pytest.MonkeyPatch, value: str, reason: str) -> None:
    install(monkeypatch, ("mine", value))
    with pytest.raises(telecine.BackendUnavailable, match=rf"mine: the package .* is broken.*{reason}"):
        telecine.load(CLIP.path(), backend="mine")
    status = {status.name: status for status in list_backends()}
    assert status["pyav"].usable
    assert not status["mine"].usable
    assert len(telecine.load(CLIP.path(), num_frames=1)) == 1


def test_another_package_cannot_take_the_name_of_a_built_in_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ("pyav", here("FailsToLoad")))
    assert telecine.load(CLIP.path(), num_frames=1, backend="pyav").report.backend == "pyav"
    (intruder,) = [status for status in list_backends() if status.name.endswith(":pyav")]
    assert not intruder.usable
    assert intruder.reason is not None
    assert "built-in" in intruder.reason


def test_two_packages_with_one_backend_name_are_both_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ("mine", here("Outside")), ("mine", here("Outside")))
    with pytest.raises(telecine.BackendUnavailable, match="both provide a backend of this name"):
        telecine.load(CLIP.path(), backend="mine")


def test_the_example_package_of_the_docs_is_found_and_passes_the_suite(tmp_path: Path) -> None:
    """With real metadata, as an installer writes it, in a process of its own."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = tmp_path / "simple_backend-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    ((group, points),) = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    shutil.copy(EXAMPLE / "simple_backend.py", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "telecine.testing", "simple", "--json"], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcomes = {outcome["case"]: outcome["verdict"] for outcome in json.loads(done.stdout)}
    assert outcomes == dict.fromkeys((case.name for case in CASES), "same")


def test_the_suite_asks_for_a_device_before_it_starts(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise each case would wait for a thread that has failed."""
    with pytest.raises(telecine.OptionsError, match="device is 'tpu'"):
        run_case(CASES[0], "pyav", "tpu")
    assert main(["pyav", "--device", "tpu"]) == 2
    assert "device is 'tpu'" in capsys.readouterr().err
