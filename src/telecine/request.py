"""The options of a request: declared once, checked before the source is read.

:class:`LoadOptions` gives the names and types of all options to type checkers. :func:`telecine.load`,
:class:`telecine.Pool` and :class:`telecine.Video` take them as ``**options``, and :class:`Request` checks the values.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Protocol,
    SupportsFloat,
    SupportsIndex,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
)

import numpy as np
import numpy.typing as npt

from telecine.backends.registry import prepare_backend
from telecine.errors import OptionsError
from telecine.frames import Layout
from telecine.index.packet_index import PacketIndex
from telecine.index.video_info import VideoInfo
from telecine.limits import Limits
from telecine.pixels.geometry import Fit, Size
from telecine.sampling.select import Sampling, select
from telecine.settings import choose_backend
from telecine.validation import Option

if TYPE_CHECKING:
    from _typeshed import SupportsRead
    from typing_extensions import Buffer

__all__ = ["LoadOptions", "OpenOptions", "Request", "SamplingOptions", "SizeLike", "SourceLike", "show_options"]

Function = TypeVar("Function", bound=Callable[..., Any])


class _SupportsOpen(Protocol):
    """An object that opens a file, as fsspec's ``OpenFile``."""

    def open(self, *args: Any, **kwargs: Any) -> Any: ...


class _Array(Protocol):
    """An array or tensor of any library."""

    def tolist(self) -> Any: ...


SourceLike: TypeAlias = (
    "str | os.PathLike[str] | Buffer | SupportsRead[bytes] | _SupportsOpen | _Array | Mapping[str, Any]"
)
"""An encoded video: path, URL, bytes, ``uint8`` array or tensor, binary file object, or a ``{"path", "bytes"}`` row."""

SizeLike: TypeAlias = "SupportsIndex | tuple[SupportsIndex, SupportsIndex] | list[int] | Fit | None"
"""Length of the short side, (height, width), or a rule; display pixels."""

Errors: TypeAlias = Literal["recover", "strict"]
Padding: TypeAlias = Literal["repeat"]
PolicyName: TypeAlias = Literal[
    "clef_omni", "embedding_gemma2", "glm46v", "glm4v", "glm5next", "glmga", "key_frames", "llava_onevision2",
    "minimax_m3_vl", "molmo2", "muse_spark", "nemotron_vl", "openpangu", "qwen2_vl", "qwen3_vl", "vllm_dynamic",
    "vllm_uniform",
]  # fmt: skip


class SamplingOptions(TypedDict, total=False):
    """The options that choose frames; the fields of :class:`telecine.Sampling`."""

    num_frames: SupportsIndex | None
    fps: SupportsFloat | None
    min_frames: SupportsIndex | None
    max_frames: SupportsIndex | None
    indices: Sequence[SupportsIndex] | _Array | None
    timestamps: Sequence[SupportsFloat] | _Array | None
    start: SupportsFloat | None
    end: SupportsFloat | None
    policy: PolicyName | None


class OutputOptions(TypedDict, total=False):
    """The options that choose the form of the result, and what decodes it."""

    size: SizeLike
    layout: Layout
    pad: Padding | None
    backend: str | None
    device: str | None
    errors: Errors
    limits: Limits | None


class BackendOptions(TypedDict, total=False):
    """The options of the built-in backends; docs/backends.md says which backend takes which."""

    threads: SupportsIndex | None
    out: Literal["auto", "torch", "array", "numpy"] | None
    num_ffmpeg_threads: SupportsIndex | None
    seek_mode: Literal["exact", "approximate"] | None
    frame_recovery: bool | None
    hw_decoders: SupportsIndex | None
    max_width: SupportsIndex | None
    max_height: SupportsIndex | None
    pool_size: SupportsIndex | None
    timeout_sec: SupportsFloat | None


class OpenOptions(OutputOptions, BackendOptions, total=False):
    """The options of :func:`telecine.open` but ``timeout``."""


class LoadOptions(SamplingOptions, OutputOptions, BackendOptions, total=False):
    """All options of :func:`telecine.load` but ``timeout``."""


_CHOICES = {
    "errors": Option(str, "recover", choices=get_args(Errors)),
    "layout": Option(str, "NHWC", choices=get_args(Layout)),
    "pad": Option(str, choices=get_args(Padding)),
}


@dataclass(frozen=True, eq=False)
class Request:
    """A request with checked options. The source is not opened yet."""

    source: Any
    sampling: Sampling
    size: Size
    layout: Layout
    pad: Padding | None
    backend: str
    device: str
    errors: Errors
    limits: Limits
    options: Mapping[str, Any]
    """The backend's own options, checked, with their defaults."""

    @classmethod
    def of(cls, source: SourceLike, **options: Unpack[LoadOptions]) -> Request:
        """Check the options of :func:`telecine.load`, and that the backend works here; return the request."""
        given: dict[str, Any] = {**options}
        chosen: dict[str, Any] = {}
        for name, option in _CHOICES.items():
            value = given.pop(name, option.default)
            chosen[name] = value if value is option.default else option.check(name, value)
        sampling = Sampling(**{field.name: given.pop(field.name, None) for field in fields(Sampling)})
        limits, size = Limits.of(given.pop("limits", None)), given.pop("size", None)
        backend, device = choose_backend(given.pop("backend", None), given.pop("device", None))
        options_of_backend = prepare_backend(backend, device, given)
        request = cls(
            source, sampling, size, backend=backend, device=device, limits=limits, options=options_of_backend, **chosen
        )
        if request.pad is not None and request.fixed_count is None:
            raise OptionsError(
                f"pad is {request.pad!r}, which needs a fixed number of frames: "
                "give num_frames, max_frames, indices or timestamps"
            )
        return request

    @property
    def fixed_count(self) -> int | None:
        """Number of frames that ``pad`` fills up to; None if the options do not fix one."""
        explicit = self.sampling.indices if self.sampling.indices is not None else self.sampling.timestamps
        if explicit is not None:
            return len(explicit)
        counts = [count for count in (self.sampling.num_frames, self.sampling.max_frames) if count is not None]
        return min(counts, default=None)

    def output_count(self, num_frames: int) -> int:
        """Return the number of rows of a result that has ``num_frames`` frames: more if ``pad`` adds to it."""
        return num_frames if self.pad is None else max(num_frames, self.fixed_count or 0)

    def choose(self, index: PacketIndex, info: VideoInfo) -> tuple[npt.NDArray[np.int64], Size]:
        """Return the frame indices and the frame size. Integrations with rules of their own override it."""
        return select(self.sampling, index.timeline), self.size


def show_options(declaration: type[Any]) -> Callable[[Function], Function]:
    """Return a decorator that shows the fields of a declaration, as :class:`LoadOptions`, in place of ``**options``.

    ``help()`` and editors that inspect the running function then list the options by name.
    """

    defaults = {name: option.default for name, option in _CHOICES.items()}

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        named = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name))
            for name in declaration.__annotations__
        ]
        function.__signature__ = signature.replace(parameters=named + options)  # type: ignore[attr-defined]
        return function

    return decorate
