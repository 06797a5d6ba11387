"""What works on this machine, and why not: the facts behind ``telecine doctor``."""

from __future__ import annotations

import ctypes
import os
import platform
from dataclasses import asdict
from importlib import metadata
from typing import Any

import telecine
from telecine.backends.registry import list_backends
from telecine.cli.writers import table
from telecine.system import usable_cores

__all__ = ["describe", "examine"]

_GPL_PARTS = ("libx264", "libx265", "libxvid", "libvidstab", "librubberband")
"""Libraries that make an FFmpeg that is linked with them GPL as a whole."""


def examine() -> dict[str, Any]:
    """Look at this machine, changing nothing. torch is looked up, not imported; no GPU is initialised.

    Returns:
        A dict fit for JSON: ``telecine``, ``python``, ``platform``, ``backends``, ``ffmpeg``, ``libraries``,
        ``cores``, ``cuda_driver`` and ``environment``.
    """
    return {
        "telecine": telecine.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": usable_cores(),
        "backends": [asdict(status) for status in list_backends()],
        "ffmpeg": _ffmpeg(),
        "libraries": {name: _version(name) for name in ("av", "numpy", "pillow", "httpx", "torch")},
        "cuda_driver": _cuda_driver(),
        "environment": {name: os.environ[name] for name in sorted(os.environ) if name.startswith("TELECINE_")},
    }


def describe(found: dict[str, Any]) -> list[str]:
    """What :func:`examine` found, for people: a line each."""
    heading = f"telecine {found['telecine']}, Python {found['python']}, {found['platform']}, {found['cores']} cores"
    works = [
        (b["name"], f"usable, {b['version']}" if b["usable"] else f"not usable: {b['reason']}")
        for b in found["backends"]
    ]
    variables = table(list(found["environment"].items())) or ["  no TELECINE_ variable is set"]
    libraries = table(_libraries(found))
    return [heading, "", "backends", *table(works), "", "libraries", *libraries, "", "environment", *variables]


def _libraries(found: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [(name, version or "not found") for name, version in found["libraries"].items()]
    ffmpeg = found["ffmpeg"]
    if ffmpeg:
        parts = f"; built with {', '.join(ffmpeg['gpl_parts'])}, under the GPL" if ffmpeg["gpl_parts"] else ""
        rows.insert(1, ("ffmpeg", f"{ffmpeg['version']}, inside av; by its own word {ffmpeg['licence']}{parts}"))
    driver = found["cuda_driver"]
    rows.append(("cuda", f"driver for CUDA up to {driver}" if driver else "no NVIDIA driver found"))
    return rows


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _ffmpeg() -> dict[str, Any] | None:
    """The FFmpeg inside PyAV, by its own word; None without PyAV."""
    try:
        import av
        from av import _core
    except ImportError:
        return None
    codec = getattr(_core, "library_meta", {}).get("libavcodec", {})
    configuration = str(codec.get("configuration", ""))
    return {
        "version": str(av.ffmpeg_version_info),
        "licence": str(codec.get("license", "unknown")),
        "gpl_parts": [part for part in _GPL_PARTS if f"--enable-{part}" in configuration.split()],
    }


def _cuda_driver() -> str | None:
    """The newest CUDA that the NVIDIA driver supports, "13.0"; None without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        version = ctypes.c_int()
        # needs no cuInit: neither a context nor memory on a GPU comes of asking
        if driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"
