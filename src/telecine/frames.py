"""The result of a request: frames with their indices and times, and a report of the decode."""

from __future__ import annotations

import base64
import io
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from telecine.contact_sheet import contact_sheet
from telecine.errors import BackendUnavailable, OptionsError
from telecine.index.video_info import VideoInfo
from telecine.notes import Note
from telecine.timeline import Timeline

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

__all__ = ["Frame", "Frames", "Layout", "Report", "permuted"]

Layout: TypeAlias = Literal["NHWC", "NCHW"]
"""Order of the axes of a batch of frames: channels last or channels first."""

_MAX_RATE = 1000
"""Largest rate of a virtual constant timeline, per second: its times are then exact to half a millisecond."""
_MAX_SHEET_FRAMES = 60
"""Frames that a notebook shows of one result."""


@dataclass(frozen=True)
class Report:
    """Report of a decode: the backend, the packets fed, lost frames, time per stage."""

    backend: str
    """Name of the backend that decoded."""
    device: str
    """Device of the frames: "cpu", "cuda:0"."""
    packets_total: int
    """Packets of the video stream."""
    packets_fed: int
    """Packets given to the decoder."""
    lost: tuple[int, ...] = ()
    """Wanted frame indices that could not be decoded, each once, ascending."""
    fallback_reason: str | None = None
    """Reason why another backend than the first choice decoded, or None."""
    notes: tuple[Note, ...] = ()
    """Repairs and choices, those of :attr:`VideoInfo.notes` first: times rebuilt, size changed in mid-stream."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each stage: "source", "index", "plan", "decode" (of which "convert"). From a pool also "queue", the
    time spent waiting, which the other stages then leave out."""
    bytes_read: int = 0
    """Bytes of the source that were read for tables, index and decode; those that are read twice count twice."""
    index_cached: bool = False
    """True if the packet index was known from an earlier request."""
    damage_checked: bool = True
    """False if the backend does not ask its decoder about damage inside pictures: damaged frames may then be among the
    result, also with ``errors="strict"``."""

    @property
    def packets_skipped(self) -> int:
        """Packets that did not have to be decoded."""
        return self.packets_total - self.packets_fed


@dataclass(frozen=True, eq=False, repr=False)
class Frame:
    """One frame of a result."""

    index: int
    """Position in presentation order among the presentable frames of the video, from 0."""
    timestamp: float
    """Seconds after the first presentable frame."""
    image: Any
    """``uint8 [H, W, 3]`` RGB (``[3, H, W]`` with ``layout="NCHW"``), a view of :attr:`Frames.data`."""
    layout: Layout = "NHWC"
    """Layout of the :class:`Frames` that the frame is from."""

    def __repr__(self) -> str:
        height, width = _picture_size(self.image.shape, self.layout)
        return f"Frame({self.index} at {self.timestamp:.3f} s, {height}x{width})"

    def pil(self) -> Image:
        """Return the frame as a Pillow image, copied to host memory."""
        from PIL import Image

        host = _to_host(self.image)
        return Image.fromarray(np.ascontiguousarray(host.transpose(1, 2, 0) if self.layout == "NCHW" else host))


@dataclass(frozen=True, eq=False, repr=False)
class Frames:
    """Decoded frames: ``data[i]`` is frame ``indices[i]`` of the video, shown at ``timestamps[i]``.

    A sequence of :class:`Frame`. ``frames[i]`` is one of them; a slice, a list of positions or a ``bool`` mask gives
    ``Frames`` again. ``numpy.asarray(frames)`` gives the pixels. In a notebook a result is shown as its contact sheet.
    """

    data: Any
    """``uint8 [N, H, W, 3]`` RGB, or ``[N, 3, H, W]`` with ``layout="NCHW"``. NumPy on the CPU; on a GPU a torch tensor
    if torch is installed, else an array with ``__dlpack__``."""
    indices: npt.NDArray[np.int64]
    """``int64 [N]`` frame indices."""
    timestamps: npt.NDArray[np.float64]
    """``float64 [N]`` seconds after the first presentable frame."""
    mask: npt.NDArray[np.bool_]
    """``bool [N]``: False for the repeats of the last frame that ``pad="repeat"`` added, True for all others."""
    info: VideoInfo
    """Facts about the video."""
    report: Report
    """Facts about the decode."""
    timeline: Timeline
    """Times of all frames of the video, not only of the returned ones."""
    layout: Layout = "NHWC"
    """Order of the axes of :attr:`data`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of :attr:`data`."""
        return tuple(int(side) for side in self.data.shape)

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[Frame]:
        return (self[position] for position in range(len(self)))

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> Frame: ...

    @overload
    def __getitem__(self, key: slice | Sequence[int] | Sequence[bool] | npt.NDArray[Any]) -> Frames: ...

    def __getitem__(self, key: Any) -> Frame | Frames:
        if hasattr(key, "__index__") and not getattr(key, "shape", ()):
            position = range(len(self))[operator.index(key)]
            return Frame(
                int(self.indices[position]), float(self.timestamps[position]), self.data[position], self.layout
            )
        if isinstance(key, slice) and (key.step is None or key.step > 0):
            rows: Any = key
        else:  # torch has no negative steps, and DLPack arrays take numbers only
            rows = np.ascontiguousarray(np.arange(len(self))[key])
            if rows.ndim != 1:
                raise OptionsError(f"frames are chosen by an array of {rows.ndim} dimensions; it must have one")
        by_frame = ("data", "indices", "timestamps", "mask")
        return replace(self, **{name: getattr(self, name)[rows] for name in by_frame})

    def __repr__(self) -> str:
        height, width = _picture_size(self.shape[1:], self.layout)
        size = f"{len(self)} x {height}x{width} of {self.info.num_frames}"
        return f"Frames({size}, {self.info.codec}, {self.report.backend})"

    def _repr_html_(self) -> str:
        """Return the contact sheet as an ``<img>`` element, for notebooks."""
        import html

        caption = f"<div>{html.escape(repr(self))}</div>"
        if len(self) == 0:
            return caption
        step = math.ceil(len(self) / _MAX_SHEET_FRAMES)
        file = io.BytesIO()
        self[::step].sheet().save(file, "JPEG", quality=85)
        return f'{caption}<img src="data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}">'

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return the pixels as a NumPy array, by NumPy's rules for ``dtype`` and ``copy``."""
        on_host = isinstance(self.data, np.ndarray)
        if copy is False and not on_host:
            raise OptionsError("copy is False, but frames on a GPU must be copied to be a NumPy array; leave copy out")
        return np.array(self.numpy(), dtype=dtype, copy=copy if on_host else None)

    def with_layout(self, layout: Layout) -> Frames:
        """Return the same frames with their axes in another order; a view, nothing is copied."""
        if layout == self.layout:
            return self
        axes = (0, 3, 1, 2) if layout == "NCHW" else (0, 2, 3, 1)
        return replace(self, data=permuted(self.data, axes), layout=layout)

    def pad_to(self, count: int) -> Frames:
        """Return ``count`` frames: these, then the last one repeated. The same frames if there are no fewer."""
        if len(self) >= count:
            return self
        padded = self[np.minimum(np.arange(count), len(self) - 1)]
        return replace(padded, mask=np.pad(self.mask, (0, count - len(self))))

    def numpy(self) -> npt.NDArray[np.uint8]:
        """Return :attr:`data` in host memory; a copy only if it is on a GPU."""
        return _to_host(self.data)

    def torch(self) -> torch.Tensor:
        """Return :attr:`data` as a torch tensor on the same device, without a copy.

        Raises:
            BackendUnavailable: PyTorch is not installed.
        """
        try:
            import torch
        except ImportError as error:
            raise BackendUnavailable("Frames.torch() needs PyTorch: pip install torch") from error
        if isinstance(self.data, torch.Tensor):
            return self.data
        return torch.from_numpy(self.data) if isinstance(self.data, np.ndarray) else torch.from_dlpack(self.data)

    def metadata(self) -> dict[str, Any]:
        """Return what the video processors of transformers and vLLM need: the fields of ``VideoMetadata``.

        Processors compute the time of a frame as index / fps, which holds for a constant rate only. For a variable rate
        the result therefore describes a virtual constant timeline: a rate F, ``round(timestamp * F)`` as indices and
        ``round(duration * F)`` as the total. F is the coarsest rate on whose grid all times of the video lie, but at
        most 1000 per second.

        ``do_sample_frames`` is False: the frames are sampled already.
        """
        info = self.info
        fps, total, indices = info.average_fps, info.num_frames, self.indices
        if info.variable_frame_rate:
            grid = math.gcd(*(int(step) for step in np.unique(np.diff(self.timeline.ticks))))
            fps = min(float(_MAX_RATE), float(1 / (grid * self.timeline.time_base)))
            indices = np.rint(self.timestamps * fps).astype(np.int64)
            total = max(round(info.duration * fps), int(np.rint(self.timeline.seconds()[-1] * fps)) + 1)
        return {
            "total_num_frames": total,
            "fps": fps,
            "width": info.width,
            "height": info.height,
            "duration": info.duration,
            "video_backend": f"telecine-{self.report.backend}",
            "frames_indices": [int(index) for index in indices],
            "do_sample_frames": False,
        }

    def for_processor(self) -> tuple[Any, Any]:
        """Return the frames and their ``VideoMetadata``, as transformers' video processors take them.

        ``processor(videos=[video], video_metadata=[metadata], do_sample_frames=False)`` then gives the tokens and times
        that the processor's own loader would give.

        Raises:
            BackendUnavailable: transformers is not installed.
        """
        try:
            from transformers.video_utils import VideoMetadata
        except ImportError as error:
            raise BackendUnavailable("Frames.for_processor() needs transformers: pip install transformers") from error
        metadata = self.metadata()
        del metadata["do_sample_frames"]
        # processors take NumPy arrays and torch tensors; arrays of other libraries are converted
        is_accepted = isinstance(self.data, np.ndarray) or type(self.data).__module__.startswith("torch")
        return self.data if is_accepted else self.torch(), VideoMetadata(**metadata)

    def sheet(self, columns: int | None = None, width: int = 1280) -> Image:
        """Return a contact sheet: the frames side by side, with index and time under each.

        Args:
            columns: frames per row; chosen from their number and shape when omitted.
            width: width of the sheet, pixels.

        Returns:
            A Pillow image; ``save("sheet.jpg")`` writes it.
        """
        images = self.with_layout("NHWC").numpy()
        return contact_sheet(images, self.indices, self.timestamps, columns=columns, width=width)


def permuted(data: Any, axes: tuple[int, ...]) -> Any:
    """Return a view of an array or tensor with its axes in another order."""
    return data.transpose(axes) if isinstance(data, np.ndarray) else data.permute(axes)


def _picture_size(shape: Sequence[int], layout: Layout) -> tuple[int, int]:
    """Return (height, width) from the shape of one frame."""
    height, width = shape[1:] if layout == "NCHW" else shape[:2]
    return height, width


def _to_host(data: Any) -> npt.NDArray[np.uint8]:
    if isinstance(data, np.ndarray):
        return data
    return np.asarray(data.cpu() if hasattr(data, "cpu") else data.to_host())
