"""Build the extension if it is not installed, and the fake driver; both are cached."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
NATIVE = ROOT / "src/telecine/native"
FAKE = Path(__file__).resolve().parent
_CACHE = Path(os.environ.get("TELECINE_NATIVE_CACHE", ROOT / ".cache/native"))


def _digest(*folders: Path) -> str:
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted(p for folder in folders for p in folder.iterdir() if p.suffix in (".h", ".cpp", ".ptx")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _compiler() -> str:
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and shutil.which(name):
            return name
    pytest.skip("no C++ compiler, so the NVDEC extension cannot be tested here")


@functools.cache
def fake_driver(*definitions: str) -> Path:
    """Build the fake of libcuda and libnvcuvid; ``definitions`` are preprocessor names: ``FAKE_OLD_DRIVER``."""
    compiler = _compiler()
    target = _CACHE / f"fake-{_digest(NATIVE, FAKE)}{''.join(definitions)}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        command = [compiler, "-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", f"-I{NATIVE}"]
        sources = [str(FAKE / f"fake_{name}.cpp") for name in ("cuda", "cuvid", "threads")]
        defines = [f"-D{name}" for name in definitions]
        subprocess.run([*command, *defines, "-o", str(partial), *sources, "-ldl"], check=True)
        partial.replace(target)
    return target


@functools.cache
def extension_file() -> Path:
    """Return the file of ``telecine._nvdec``, installed or built."""
    installed = importlib.util.find_spec("telecine._nvdec")
    if installed is not None and installed.origin is not None:
        return Path(installed.origin)
    _compiler()
    for tool in ("cmake", "ninja"):
        if shutil.which(tool) is None:
            pytest.skip(f"the NVDEC extension is not installed, and without {tool} it cannot be built for the tests")
    if importlib.util.find_spec("nanobind") is None:
        pytest.skip("the NVDEC extension is not installed, and without nanobind it cannot be built for the tests")
    # one folder for all versions of the sources: ninja rebuilds only changes, and nanobind itself compiles slowly
    folder = _CACHE / f"build-{sys.implementation.cache_tag}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        configure = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(folder)]
        configure.append(f"-DPython_EXECUTABLE={sys.executable}")
        for command in (configure, ["cmake", "--build", str(folder)]):
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return folder / f"_nvdec{importlib.machinery.EXTENSION_SUFFIXES[0]}"


def native() -> ModuleType:
    """Import ``telecine._nvdec``, installed or built."""
    if "telecine._nvdec" not in sys.modules:
        load_extension(extension_file())
    return sys.modules["telecine._nvdec"]


def load_extension(path: Path) -> None:
    """Make ``import telecine._nvdec`` use the file at ``path``."""
    import telecine

    spec = importlib.util.spec_from_file_location("telecine._nvdec", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["telecine._nvdec"] = module
    spec.loader.exec_module(module)
    telecine._nvdec = module  # type: ignore[attr-defined]
