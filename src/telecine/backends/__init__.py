"""What a backend is, and the table of them.

The contract. A backend is a class with one method, ``decode(request) -> Decoded``, and ``status()``, which says
whether it works on this machine. There are two kinds. A *packet backend* executes ``request.plan``: it feeds the
planned packets and no others. A *whole-file backend* hands ``request.source.data`` to a library and asks it for
``request.plan.frames``. Both must keep these rules:

- ``data[i]`` is frame ``plan.frames[i]``, at ``geometry``'s size, by the rule of :mod:`telecine.pixels`. A frame is
  identified by the packet it came from or by its time, never by counting what comes out.
- A frame that cannot be decoded, or that was built on a damaged one, is left out: ``kept[i]`` is False and its row
  undefined. It is never replaced by another.
- Nothing decodable is not an error here: ``kept`` is all False, and the caller decides.
- ``request.deadline`` is checked between small steps.
- Errors of the library are converted here; only errors of :mod:`telecine.errors` come out.
- It starts no threads of its own beside those of the decoder, samples nothing, and keeps no reference to the frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from telecine.demux import Demuxer
from telecine.errors import OptionsError
from telecine.frames import VideoInfo
from telecine.index import PacketIndex
from telecine.limits import Deadline
from telecine.pixels import Geometry
from telecine.plan import DecodePlan
from telecine.source import Source

__all__ = ["TABLE", "Backend", "BackendStatus", "DecodeRequest", "Decoded", "backends", "get"]


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
    """The backend's own options, checked by it."""


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
    """One way of decoding. Thread-safe: many decodes may run at once."""

    def decode(self, request: DecodeRequest) -> Decoded:
        """Decode the frames of a request; see the contract at the top of this module."""
        ...

    def status(self) -> BackendStatus:
        """Say whether this backend works here. Never raises."""
        ...


TABLE: dict[str, str] = {
    "pyav": "telecine.backends.pyav:PyAVBackend",
}
"""Name of each backend and where it is; imported on first use."""

_made: dict[str, Backend] = {}


def get(name: str) -> Backend:
    """The backend of a name, made on first use.

    Raises:
        OptionsError: there is none of that name.
    """
    if name not in TABLE:
        raise OptionsError(f"backend is {name!r}; the backends are {', '.join(TABLE)} and auto")
    if name not in _made:
        module, attribute = TABLE[name].split(":")
        # two threads may both make one; the first to be stored is the one that stays
        _made.setdefault(name, getattr(import_module(module), attribute)())
    return _made[name]


def backends() -> list[BackendStatus]:
    """Say of every backend whether it works on this machine, and why not."""
    return [get(name).status() for name in TABLE]
