"""The backends by name: built-in ones, and those of other packages, found by entry points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from telecine.backends.base import Backend, BackendStatus
from telecine.errors import BackendUnavailable, OptionsError
from telecine.validation import Option, check_options

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["BUILT_IN", "ENTRY_POINT_GROUP", "backend_names", "get_backend", "list_backends", "prepare_backend"]

BUILT_IN: dict[str, str] = {
    "pyav": "telecine.backends.pyav.backend:PyAVBackend",
    "nvdec": "telecine.backends.nvdec.backend:NvdecBackend",
    "opencv": "telecine.backends.opencv:OpenCVBackend",
    "torchcodec": "telecine.backends.torchcodec:TorchCodecBackend",
    "pynvvideocodec": "telecine.backends.pynvvideocodec.backend:PyNvVideoCodecBackend",
    "deepstream": "telecine.backends.deepstream.backend:DeepStreamBackend",
}
"""Class of each built-in backend by its name; its module is imported on first use."""

ENTRY_POINT_GROUP = "telecine.backends"
"""Group of entry points by which other packages add backends: name to class."""

_AUTO = "telecine.backends.auto:AutoBackend"
"""The backend that decodes for a GPU if none is named."""

_instances: dict[str, Backend] = {}


def backend_names() -> list[str]:
    """Return the names of all backends, built-in ones first. None of them is imported."""
    return [*BUILT_IN, *(name for name in sorted(_entry_points()) if name not in BUILT_IN)]


def get_backend(name: str) -> Backend:
    """Return the backend of a name. It is created on first use."""
    if name not in _instances:
        if name in BUILT_IN or name == "auto":
            module, attribute = BUILT_IN.get(name, _AUTO).split(":")
            created: Backend = getattr(import_module(module), attribute)()
        else:
            created = _load_entry_point(name)
        # two threads may both create one: the first one that is stored stays
        _instances.setdefault(name, created)
    return _instances[name]


def prepare_backend(name: str, device: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Check that a backend works with this device and these options. Return the options with their defaults."""
    backend = get_backend(name)
    declared = backend.options
    if declared is not None:
        # the owner of an option only matters for the message, and finding it imports the module of every backend
        others = {} if options.keys() <= declared.keys() else {other: _options_of(other) for other in BUILT_IN}
        options = check_options(name, options, declared, others)
    status = backend.status()
    if not status.usable:
        raise BackendUnavailable(f"{name}: {status.reason}")
    backend.check_device(device, options)
    return dict(options)


def list_backends() -> list[BackendStatus]:
    """Return the status of every backend: whether it works on this machine, on which devices, and why not."""
    found = []
    for name in backend_names():
        try:
            found.append(replace(get_backend(name).status(), name=name))
        except Exception as error:  # a backend of another package may break the contract; the others still work
            found.append(BackendStatus(name, False, str(error), None))
    for name, points in _entry_points().items():
        if name in BUILT_IN:
            package = _package_name(points[0])
            reason = f"the package {package} names its backend {name}, which is the name of a built-in one"
            found.append(BackendStatus(f"{package}:{name}", False, reason, None))
    return found


def _options_of(name: str) -> Mapping[str, Option]:
    try:
        return get_backend(name).options or {}
    except Exception:  # a backend that cannot be created has no options to suggest
        return {}


def _entry_points() -> dict[str, list[EntryPoint]]:
    """Return the entry points of other packages by name."""
    from importlib.metadata import entry_points  # slow to import

    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        found.setdefault(point.name, []).append(point)
    return found


def _load_entry_point(name: str) -> Backend:
    points = _entry_points().get(name)
    if points is None:
        raise OptionsError(f"backend is {name!r}; the backends are {', '.join(backend_names())} and auto")
    if len(points) > 1:
        packages = " and ".join(_package_name(point) for point in points)
        raise BackendUnavailable(f"{name}: {packages} both provide a backend of this name; remove one of them")
    package = f"{name}: the package {_package_name(points[0])} is broken"
    try:
        created = points[0].load()()
    except Exception as error:  # any error of that package
        raise BackendUnavailable(f"{package} ({type(error).__name__}: {error})") from error
    if not isinstance(created, Backend):
        raise BackendUnavailable(f"{package} ({points[0].value} is not derived from telecine.backends.Backend)")
    return created


def _package_name(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value
