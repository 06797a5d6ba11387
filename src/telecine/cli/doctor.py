"""The command ``telecine doctor``: which backends and libraries work on this machine, and why others do not."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict
from importlib import metadata
from typing import Any

import telecine
from telecine.backends.registry import list_backends
from telecine.cli.writers import format_table
from telecine.system import usable_cores

__all__ = ["describe", "describe_vllm", "examine"]

_GPL_LIBRARIES = ("libx264", "libx265", "libxvid", "libvidstab", "librubberband")
"""Libraries that put an FFmpeg linked with them under the GPL."""


def examine() -> dict[str, Any]:
    """Return the facts about this machine, fit for JSON. torch is not imported, and no GPU is initialised."""
    return {
        "telecine": telecine.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": usable_cores(),
        "backends": [asdict(status) for status in list_backends()],
        "ffmpeg": _examine_ffmpeg(),
        "libraries": {name: _version(name) for name in ("av", "numpy", "pillow", "httpx", "torch")},
        "cuda_driver": _cuda_driver(),
        "environment": {name: os.environ[name] for name in sorted(os.environ) if name.startswith("TELECINE_")},
    }


def describe(found: dict[str, Any]) -> list[str]:
    """Return the result of :func:`examine` as lines of text."""
    heading = f"telecine {found['telecine']}, Python {found['python']}, {found['platform']}, {found['cores']} cores"
    backends = [
        (each["name"], f"usable, {each['version']}" if each["usable"] else f"not usable: {each['reason']}")
        for each in found["backends"]
    ]
    libraries = [(name, version or "not found") for name, version in found["libraries"].items()]
    ffmpeg, driver = found["ffmpeg"], found["cuda_driver"]
    if ffmpeg:
        gpl = f"; built with {', '.join(ffmpeg['gpl_libraries'])}, under the GPL" if ffmpeg["gpl_libraries"] else ""
        libraries.insert(1, ("ffmpeg", f"{ffmpeg['version']}, inside av; reported licence {ffmpeg['licence']}{gpl}"))
    libraries.append(("cuda", f"driver for CUDA up to {driver}" if driver else "no NVIDIA driver found"))
    variables = format_table(found["environment"].items()) or ["  no TELECINE_ variable is set"]
    return [
        *(heading, "", "backends", *format_table(backends)),
        *("", "libraries", *format_table(libraries)),
        *("", "environment", *variables),
    ]


def describe_vllm(found: dict[str, Any]) -> Iterator[str]:
    """Yield the state of the vLLM plugin, from :func:`telecine.integrations.vllm.state`, as lines of text."""
    yield f"vLLM {found['vllm'] or 'is not usable here'}"
    yield "parts"
    yield from format_table(found["parts"].items())
    if found["vllm"] is None:
        return
    yield "loaders, and how telecine decodes for them"
    yield from format_table(found["loaders"].items())
    yield "media connectors (VLLM_MEDIA_CONNECTOR)"
    yield f"  {', '.join(found['connectors'])}"
    yield 'options of the codec, in the part "video" of --media-io-kwargs'
    yield f"  {', '.join(found['codec_options'])}"
    yield "environment"
    yield from format_table((name, value or "not set") for name, value in found["chosen"].items())


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _examine_ffmpeg() -> dict[str, Any] | None:
    """Return version and licence of the FFmpeg inside PyAV, as it reports them; None without PyAV."""
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
        "gpl_libraries": [name for name in _GPL_LIBRARIES if f"--enable-{name}" in configuration.split()],
    }


def _cuda_driver() -> str | None:
    """Return the newest CUDA version that the NVIDIA driver supports, such as "13.0"; None without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        version = ctypes.c_int()
        # needs no cuInit: the call makes no context and takes no GPU memory
        if driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"
