"""The NVDEC extension and processes: a missing driver, import, fork, exit."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import time

import pytest

from support.clips import CLIPS
from support.fake_driver import build


def _run_python(code: str, *arguments: str, preload: str = "") -> str:
    """Run ``code`` in a new interpreter that has imported ``_nvdec``, and return its output."""
    prelude = f"""
        import os, sys
        sys.path[:0] = {[str(build.ROOT / "src"), str(build.ROOT / "tests")]!r}
        from pathlib import Path
        import numpy
        from support.fake_driver import build
        threads = len(os.listdir("/proc/self/task"))
        build.load_extension(Path({str(build.extension_file())!r}))
        from telecine import _nvdec
    """
    command = [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(code), *arguments]
    with tempfile.TemporaryDirectory() as folder:
        library = ""
        if preload:  # the loader splits the variable at blanks, which the path may contain
            library = f"{folder}/preload.so"
            os.symlink(preload, library)
        environment = {**os.environ, "LD_PRELOAD": library}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(
    ("cuda", "cuvid", "reason"),
    [
        ("/nowhere/libcuda.so", "fake", "no NVIDIA driver"),
        ("fake", "/nowhere/libnvcuvid.so", "NVIDIA_DRIVER_CAPABILITIES"),
        ("fake", "old", "too old"),
    ],
)
def test_a_missing_or_old_driver_is_named_in_the_error(cuda: str, cuvid: str, reason: str) -> None:
    paths = {"fake": str(build.fake_driver()), "old": str(build.fake_driver("FAKE_OLD_DRIVER"))}
    code = """
        _nvdec.load(sys.argv[1], sys.argv[2])
        for _ in range(2):
            try:
                _nvdec.device_count()
            except _nvdec.NvdecError as error:
                print(error.args)
    """
    output = _run_python(code, paths.get(cuda, cuda), paths.get(cuvid, cuvid)).splitlines()
    assert len(output) == 2 and all(reason in line and "'unusable'" in line for line in output)


def test_a_driver_without_devices_is_an_error() -> None:
    fake = str(build.fake_driver())
    code = """
        import ctypes
        ctypes.CDLL(sys.argv[1]).fake_set(b"devices", ctypes.c_long(0))
        _nvdec.load(sys.argv[1], sys.argv[1])
        try:
            _nvdec.device_count()
        except _nvdec.NvdecError as error:
            print(error)
    """
    assert "finds no device" in _run_python(code, fake)


@pytest.mark.timing
def test_a_forked_child_gets_an_error_and_the_parent_decodes_on() -> None:
    code = """
        from support.fake_driver.double import Double
        from support.fake_driver.stream import gop
        double = Double()
        double.nvdec = _nvdec
        _nvdec.load(double.path, double.path)
        assert double.decode(gop(0, 5), [4])[0].loss == b"\\0"
        child = os.fork()
        if child == 0:
            try:
                double.decode(gop(0, 5), [4])
            except _nvdec.NvdecError as error:
                os._exit(7 if "forked" in str(error) else 8)
            os._exit(9)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        assert double.decode(gop(0, 5), [4])[0].loss == b"\\0"
        if os.fork() == 0:
            sys.exit(0)  # the exit handlers of a child must not wait for threads that it does not have
        print(os.waitstatus_to_exitcode(os.wait()[1]))
    """
    started = time.perf_counter()
    assert _run_python(code).split() == ["7", "0"]
    assert time.perf_counter() - started < 20


def test_a_process_can_exit_during_a_decode() -> None:
    code = """
        import threading, time
        from support.fake_driver.double import Double
        from support.fake_driver.stream import gop
        double = Double()
        double.nvdec = _nvdec
        _nvdec.load(double.path, double.path)
        double.set(slow_microseconds=5000)
        threading.Thread(target=lambda: double.decode(gop(0, 4000), [3999]), daemon=True).start()
        while _nvdec.stats(0)["running_ranges"] == 0:
            time.sleep(0.001)
        print("leaving")
    """
    assert _run_python(code).strip() == "leaving"


def test_importing_the_extension_starts_no_thread_and_loads_no_driver() -> None:
    code = """
        print(len(os.listdir("/proc/self/task")) - threads, "libcuda" in Path("/proc/self/maps").read_text())
    """
    assert _run_python(code).split() == ["0", "False"]


@pytest.mark.timing
@pytest.mark.parametrize(("allowed", "outcome"), [(0, "threads"), (1, "decoded"), (3, "decoded")])
def test_without_threads_a_request_fails_and_the_engine_stays_usable(allowed: int, outcome: str) -> None:
    code = """
        import time
        from support.fake_driver.double import HANDLES, Double
        from support.fake_driver.stream import gop
        double = Double()
        double.nvdec = _nvdec
        _nvdec.load(double.path, double.path)
        double.set(threads_left=int(sys.argv[1]))
        for _ in range(2):
            try:
                assert double.decode(gop(0, 5), [4])[0].loss == b"\\0"
                print("decoded")
            except _nvdec.NvdecError as error:
                print(error.args[1])
                assert double.count("events") == 0, "an event is left"
        print(_nvdec.stats(0)["workers"])
        double.set(threads_left=-1)
        assert double.decode(gop(0, 5), [4])[0].loss == b"\\0"
        print(_nvdec.stats(0)["workers"])
        started = time.perf_counter()
        assert _nvdec.shutdown() and time.perf_counter() - started < 2
        assert double.decode(gop(0, 5), [4])[0].loss == b"\\0"
        assert _nvdec.shutdown()
        assert not any(double.count(name) for name in HANDLES)
    """
    output = _run_python(code, str(allowed), preload=str(build.fake_driver())).split()
    assert output == [outcome, outcome, str(allowed), "4"]


def test_without_threads_nvdec_is_overloaded_and_auto_decodes_on_the_cpu() -> None:
    code = """
        import ctypes
        import telecine
        library = ctypes.CDLL(sys.argv[1])
        _nvdec.load(sys.argv[1], sys.argv[1])
        library.fake_set(b"threads_left", ctypes.c_long(0))
        options = dict(indices=[0], device="cuda", out="numpy")
        try:
            telecine.load(sys.argv[2], backend="nvdec", **options)
        except telecine.OverloadedError as error:
            print(error)
        report = telecine.load(sys.argv[2], threads=1, **options).report
        print(report.backend, report.fallback_reason)
    """
    fake, clip = str(build.fake_driver()), str(CLIPS["base.mp4"].path())
    named, fallback = _run_python(code, fake, clip, preload=fake).splitlines()
    assert named.startswith("nvdec: no thread can be started for decoding")
    assert fallback.startswith("pyav nvdec: no thread can be started")
