"""What a request gives back: the frames, the facts of the video, and the report of what was done."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from telecine.index.video_info import VideoInfo

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    from telecine.timeline import Timeline

__all__ = ["Frame", "Frames", "Report"]

_FINEST_RATE = 1000
"""Largest rate of a virtual constant timeline, per second: its times are then right to half a millisecond."""


@dataclass(frozen=True)
class Report:
    """What a request really did."""

    backend: str
    """Name of the backend that decoded."""
    device: str
    """Where the frames are: "cpu", "cuda:0"."""
    packets_total: int
    """Packets of the video stream."""
    packets_fed: int
    """Packets given to the decoder."""
    lost: tuple[int, ...] = ()
    """Wanted frame indices that could not be decoded, each once, ascending."""
    fallback_reason: str | None = None
    """Why another backend than the first choice decoded, or None."""
    notes: tuple[str, ...] = ()
    """What else was remarkable: times rebuilt, file cut off, size changed in mid-stream."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each stage: "source", "index", "plan", "decode" (of which "convert"). From a pool also "queue", the
    time spent waiting, which the others then leave out."""
    index_cached: bool = False
    """Whether the packet index was known from an earlier request."""

    @property
    def packets_skipped(self) -> int:
        """Packets that did not have to be decoded."""
        return self.packets_total - self.packets_fed


@dataclass(frozen=True, eq=False)
class Frame:
    """One returned frame."""

    index: int
    timestamp: float
    image: Any
    """``uint8 [H, W, 3]`` RGB, a view of :attr:`Frames.data`."""


@dataclass(frozen=True, eq=False)
class Frames:
    """Decoded frames with their true labels: ``data[i]`` is frame ``indices[i]``, shown at ``timestamps[i]``."""

    data: Any
    """``uint8 [N, H, W, 3]`` RGB. NumPy on the CPU; on a GPU a torch tensor where torch is installed, else an array
    with ``__dlpack__``."""
    indices: npt.NDArray[np.int64]
    """``int64 [N]`` frame indices."""
    timestamps: npt.NDArray[np.float64]
    """``float64 [N]`` seconds after the first presentable frame."""
    info: VideoInfo
    report: Report
    timeline: Timeline = field(repr=False)
    """When every frame of the video is shown, not only the returned ones."""

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[Frame]:
        for index, timestamp, image in zip(self.indices, self.timestamps, self.data, strict=True):
            yield Frame(int(index), float(timestamp), image)

    def __repr__(self) -> str:
        height, width = self.data.shape[1:3]
        kept = f"{len(self)} x {height}x{width} of {self.info.num_frames}"
        return f"Frames({kept}, {self.info.codec}, {self.report.backend})"

    def numpy(self) -> npt.NDArray[np.uint8]:
        """The frames as ``uint8 [N, H, W, 3]`` in host memory; a copy only if they are on a GPU."""
        if isinstance(self.data, np.ndarray):
            return self.data
        if hasattr(self.data, "cpu"):
            return np.asarray(self.data.cpu())
        return np.asarray(self.data.to_host())

    def torch(self) -> torch.Tensor:
        """The frames as a torch tensor ``uint8 [N, H, W, 3]`` where they are, without a copy.

        Raises:
            BackendUnavailable: torch is not installed.
        """
        try:
            import torch
        except ImportError as error:
            from telecine.errors import BackendUnavailable

            raise BackendUnavailable("Frames.torch() needs PyTorch: pip install torch") from error
        if isinstance(self.data, torch.Tensor):
            return self.data
        return torch.from_numpy(self.data) if isinstance(self.data, np.ndarray) else torch.from_dlpack(self.data)

    def metadata(self) -> dict[str, Any]:
        """What transformers' and vLLM's processors are told: the keys of ``VideoMetadata`` and ``do_sample_frames``.

        They compute a frame's time as index / fps. That is true for a constant rate only, so for a variable one a
        virtual constant timeline is reported: a rate F, ``round(timestamp * F)`` as indices and ``round(duration * F)``
        as the total. F is the coarsest rate on whose grid all times of the video lie, but at most 1000 per second.

        ``do_sample_frames`` is False: the frames are sampled already.
        """
        info = self.info
        fps, total, indices = info.average_fps, info.num_frames, self.indices
        if info.variable_frame_rate:
            grid = math.gcd(*(int(step) for step in np.unique(np.diff(self.timeline.ticks))))
            fps = min(float(_FINEST_RATE), float(1 / (grid * self.timeline.time_base)))
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
        """The pair that transformers' video processors take: the frames, and their ``VideoMetadata``.

        ``processor(videos=[video], video_metadata=[metadata], do_sample_frames=False)`` then gives the tokens and times
        that the processor's own loader would.

        Raises:
            BackendUnavailable: transformers is not installed.
        """
        try:
            from transformers.video_utils import VideoMetadata
        except ImportError as error:
            from telecine.errors import BackendUnavailable

            raise BackendUnavailable("Frames.for_processor() needs transformers: pip install transformers") from error
        told = self.metadata()
        del told["do_sample_frames"]
        # a NumPy array or a torch tensor is taken as it is; an array of another library is not
        known = isinstance(self.data, np.ndarray) or type(self.data).__module__.startswith("torch")
        return self.data if known else self.torch(), VideoMetadata(**told)

    def sheet(self, columns: int | None = None, width: int = 1280) -> Image:
        """A contact sheet: the frames side by side, with index and time under each.

        Args:
            columns: frames per row; chosen from their number and shape when omitted.
            width: of the sheet, pixels.

        Returns:
            A Pillow image; ``save("sheet.jpg")`` writes it.
        """
        from telecine.contact_sheet import contact_sheet

        return contact_sheet(self.numpy(), self.indices, self.timestamps, columns=columns, width=width)
