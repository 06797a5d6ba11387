"""What a backend is, and the table of them.

The contract. A backend is a class with one method, ``decode(request) -> Decoded``, and ``status()``, which says
whether it works on this machine. There are two kinds. A *packet backend* executes ``request.plan``: it feeds the
planned packets and no others. A *whole-file backend* has a library that takes nothing but files: it gives that library
the planned packets as a file in memory (:mod:`telecine.backends.remux.remux`). Both must keep these rules:

- ``data[i]`` is frame ``plan.frames[i]``, at ``geometry``'s size, by the rule of :mod:`telecine.pixels.geometry`. A
  frame is identified by the packet it came from or by its time. Where a library tells neither, by its number, and then
  the count of all that came out must be proven to be that of the stream.
- A frame that cannot be decoded, or that was built on a damaged one, is left out: ``kept[i]`` is False and its row
  undefined. It is never replaced by another.
- Nothing decodable is not an error here: ``kept`` is all False, and the caller decides.
- ``request.deadline`` is checked between small steps.
- Errors of the library are converted here; only errors of :mod:`telecine.errors` come out.
- It leaves no thread behind beside those of the decoder, samples nothing, and keeps no reference to the frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from telecine.container.demuxer import Demuxer
from telecine.deadline import Deadline
from telecine.errors import BackendUnavailable, OptionsError
from telecine.frames import Layout
from telecine.index.packet_index import PacketIndex
from telecine.index.video_info import VideoInfo
from telecine.limits import Limits
from telecine.pixels.geometry import Geometry
from telecine.plan.decode_plan import DecodePlan
from telecine.plan.packet_reader import PacketReader
from telecine.source.source import Source
from telecine.validation import Option, check

__all__ = [
    "GROUP",
    "TABLE",
    "Backend",
    "BackendStatus",
    "DecodeRequest",
    "Decoded",
    "backends",
    "get",
    "names",
    "ready",
]


@dataclass(frozen=True, eq=False)
class DecodeRequest:
    """All that a backend may know of a request."""

    source: Source
    demuxer: Demuxer
    """Of the source; standing anywhere. Packet backends read their packets from it."""
    index: PacketIndex
    info: VideoInfo
    plan: DecodePlan
    geometry: Geometry
    deadline: Deadline
    device: str
    """"cpu", "cuda" or "cuda:1"."""
    options: Mapping[str, Any]
    """The backend's own options: complete and checked where it declares them."""
    max_pixels: int = Limits.max_pixels
    """Width times height of a picture at most: a stream may change its size at any key frame."""
    cores: int | None = None
    """Processor cores that the decode may keep busy; None for all that this process may use."""
    layout: Layout = "NHWC"
    """Layout that the caller gets. ``Decoded.data`` is ``[N, H, W, 3]`` in any case, but for "NCHW" a backend may make
    it a view of memory in that order, which then needs no copy."""

    @property
    def reader(self) -> PacketReader:
        """Reader of the planned packets."""
        return PacketReader(self.demuxer, self.index)


@dataclass(frozen=True, eq=False)
class Decoded:
    """What a backend gives back."""

    data: Any
    """``uint8 [N, H, W, 3]`` RGB on the device asked for."""
    kept: npt.NDArray[np.bool_]
    """``bool [N]`` which rows are filled."""
    device: str
    """Where ``data`` is."""
    notes: tuple[str, ...] = ()
    """For the report: what was remarkable."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall time of parts of the decode: "convert", "copy"."""
    backend: str | None = None
    """Who decoded, where that is not the backend that was asked."""
    fallback_reason: str | None = None
    """Why it was another one."""
    packets_fed: int | None = None
    """Packets fed to the decoder; None for all packets of the plan."""


@dataclass(frozen=True)
class BackendStatus:
    """Whether a backend works on this machine."""

    name: str
    usable: bool
    reason: str | None
    """Why not, and what to do about it; None when it is usable."""
    version: str | None
    """Of the library it stands on."""


class Backend(Protocol):
    """One way of decoding. Thread-safe: many decodes may run at once.

    A class may declare ``options``, a mapping from names to :class:`telecine.validation.Option`: then
    ``request.options`` has all of them, checked. Without it, the backend checks what it is given itself.
    """

    def decode(self, request: DecodeRequest) -> Decoded:
        """Decode the frames of a request; see the contract at the top of this module."""
        ...

    def status(self) -> BackendStatus:
        """Say whether this backend works here. Never raises."""
        ...


TABLE: dict[str, str] = {
    "pyav": "telecine.backends.pyav.backend:PyAVBackend",
    "nvdec": "telecine.backends.nvdec.backend:NvdecBackend",
    "opencv": "telecine.backends.opencv:OpenCVBackend",
    "torchcodec": "telecine.backends.torchcodec:TorchCodecBackend",
    "pynvvideocodec": "telecine.backends.pynvvideocodec.backend:PyNvVideoCodecBackend",
    "deepstream": "telecine.backends.deepstream.backend:DeepStreamBackend",
}
"""Name of each backend and where it is; imported on first use."""

_AUTO = "telecine.backends.auto:NvdecOrPyAV"
"""What decodes for a GPU when no backend is named."""

GROUP = "telecine.backends"
"""The group of entry points by which other packages add backends of their own: name to class."""

_made: dict[str, Backend] = {}


def names() -> list[str]:
    """The names of all backends, those of other packages behind the built-in ones. None of them is imported."""
    return [*TABLE, *(name for name in sorted(_outside()) if name not in TABLE)]


def get(name: str) -> Backend:
    """The backend of a name, made on first use.

    Raises:
        OptionsError: there is none of that name.
        BackendUnavailable: the package that brings it is broken.
    """
    if name not in _made:
        if name in TABLE or name == "auto":
            module, attribute = TABLE.get(name, _AUTO).split(":")
            made: Backend = getattr(import_module(module), attribute)()
        else:
            made = _load(name)
        # two threads may both make one; the first to be stored is the one that stays
        _made.setdefault(name, made)
    return _made[name]


def ready(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Make sure that a backend can be used with these options, before anything is read or decoded.

    Returns:
        The options, complete with their defaults.

    Raises:
        OptionsError: an option is not the backend's, or has a value that is not allowed.
        BackendUnavailable: it does not work on this machine; the message says why and what to install.
    """
    backend = get(name)
    declared = getattr(backend, "options", None)
    if declared is not None:
        # whose an option is matters for the message alone, and finding out imports every backend's module
        others = {} if options.keys() <= declared.keys() else {other: _options_of(other) for other in TABLE}
        options = check(name, options, declared, others)
    status = backend.status()
    if not status.usable:
        raise BackendUnavailable(f"{name}: {status.reason}")
    return dict(options)


def backends() -> list[BackendStatus]:
    """Say of every backend whether it works on this machine, and why not."""
    found = []
    for name in names():
        try:
            found.append(replace(get(name).status(), name=name))
        except Exception as error:  # a backend of another package may break its word, and must break nothing else
            found.append(BackendStatus(name, False, str(error), None))
    for name, points in _outside().items():
        if name in TABLE:
            owner = _package(points[0])
            reason = f"the package {owner} calls its backend {name}, which is the name of a built-in one"
            found.append(BackendStatus(f"{owner}:{name}", False, reason, None))
    return found


def _options_of(name: str) -> Mapping[str, Option]:
    try:
        return getattr(get(name), "options", None) or {}
    except Exception:  # one that cannot be made has none to offer, and is not what was asked for
        return {}


def _outside() -> dict[str, list[EntryPoint]]:
    """The entry points of other packages, by name."""
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        found.setdefault(point.name, []).append(point)
    return found


def _load(name: str) -> Backend:
    points = _outside().get(name)
    if points is None:
        raise OptionsError(f"backend is {name!r}; the backends are {', '.join(names())} and auto")
    if len(points) > 1:
        owners = " and ".join(_package(point) for point in points)
        raise BackendUnavailable(f"{name}: {owners} both bring a backend of this name; remove one of them")
    try:
        made: Backend = points[0].load()()
    except Exception as error:  # whatever it is, it is that package's
        raise BackendUnavailable(
            f"{name}: the package {_package(points[0])} is broken ({type(error).__name__}: {error})"
        ) from error
    return made


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value
