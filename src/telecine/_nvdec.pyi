"""The NVDEC engine, a C++ extension with its sources in src/telecine/native; missing if it could not be built."""

from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex, TypedDict, overload

import numpy as np
import numpy.typing as npt

CLOSED: int
"""Packet flag: closed random access point. Nothing after it refers to anything before, so damage ends here."""
REQUIRED: int
"""Packet flag: if it brings no reliable picture, the following pictures are unreliable."""
CORRUPT: int
"""Packet flag: the container reports missing bytes."""
OPEN: int
"""Packet flag: open random access point. Leading pictures that follow may refer to pictures before it."""
LEADING: int
"""Packet flag: leading picture of the random access point before it."""

class NvdecError(RuntimeError):
    """``args`` are the message and its kind: "unusable", "unsupported", "limit", "memory", "threads" or "driver"."""

class Caps(TypedDict):
    """Capabilities of a GPU's video decoder; sizes are (height, width)."""

    supported: bool
    num_engines: int
    min_size: tuple[int, int]
    max_size: tuple[int, int]
    output_formats: int

class Stats(TypedDict):
    """Counters of a GPU's engine since the start of the process, and its current state."""

    requests: int
    ranges: int
    pictures: int
    frames: int
    workers: int
    queued_ranges: int
    running_ranges: int
    sessions_made: int
    sessions_reused: int
    sessions_reconfigured: int
    sessions_evicted: int
    sessions_destroyed_after_error: int
    sessions_idle: int
    session_bytes: int

class Geometry:
    """Size, rotation and colour of the output frames; ``matrix`` is a code point of ITU-T H.273."""

    def __init__(
        self,
        width: int,
        height: int,
        quarter_turns: int = 0,
        mirrored: bool = False,
        matrix: int = 2,
        full_range: bool = False,
        bicubic: bool = True,
    ) -> None: ...

class Output:
    """Memory of ``rows`` packed frames from device address ``pointer`` on; ``stream`` is its owner's CUDA stream."""

    def __init__(self, pointer: int, rows: int, stream: int = 0) -> None: ...

class Result:
    """The result of one call of :func:`decode`."""

    @property
    def loss(self) -> bytes:
        """A code for each target: 0 decoded, 1 missing, 2 damaged, 3 timestamp mismatch, 4 failed, 5 stopped."""

    @property
    def pictures(self) -> int:
        """Number of decoded pictures."""

    @property
    def stopped(self) -> bool:
        """True if the deadline or a cancellation ended it early."""

    @property
    def failure(self) -> str | None:
        """Message of the first failure of the machine, not of the video; None without one."""

    @property
    def failure_kind(self) -> str:
        """Kind of :attr:`failure`, as in :class:`NvdecError`."""

class DeviceArray:
    """Frames ``uint8 [N, H, W, 3]`` on a GPU, for programs without torch."""

    def __init__(self, device: int, shape: tuple[int, int, int, int]) -> None: ...
    @property
    def shape(self) -> tuple[int, int, int, int]: ...
    @property
    def pointer(self) -> int: ...
    @property
    def device(self) -> int: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, key: SupportsIndex) -> DeviceView: ...
    @overload
    def __getitem__(self, key: Any) -> Any:
        """Return one frame as a view without axis 0; the frames of a slice, a list or a mask as a copy."""

    def permute(self, axes: Sequence[int]) -> DeviceView:
        """Return a view with the axes in another order; axis 0 stays the first."""

    def rows(self, indices: npt.NDArray[np.int64]) -> DeviceArray: ...
    def fill(self, frames: npt.NDArray[np.uint8]) -> None:
        """Copy frames of the same shape from host memory."""

    def to_host(self) -> npt.NDArray[np.uint8]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a DLPack capsule, versioned for ``max_version`` (1, 0) or later.

        The frames are complete, so no work is enqueued on ``stream``. Export to the CPU, (1, 0), makes a copy.

        Raises:
            BufferError: the memory is on another device, or ``copy`` is False and the export needs a copy.
            ValueError: ``stream`` is 0 or below -1.
        """
    def __dlpack_device__(self) -> tuple[int, int]: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

class DeviceView:
    """A view of a :class:`DeviceArray` without a copy: one frame, or all frames with their axes in another order."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def device(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: Any) -> Any: ...
    def permute(self, axes: Sequence[int]) -> DeviceView: ...
    def to_host(self) -> npt.NDArray[np.uint8]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

class Surface:
    """A decoded picture in device memory, in NVDEC's layout.

    Args:
        address: of the luma plane, which the chroma follows: interleaved, or two planes for 4:4:4.
        pitch: bytes from row to row.
        rows: of the luma plane.
        width: of the picture in pixels.
        height: of the picture in pixels.
        depth: used bits of a sample: 8, or 10, 12 or 16 in the upper bits of 16.
        chroma: "420", "422" or "444".
    """

    def __init__(
        self, address: int, pitch: int, rows: int, width: int, height: int, depth: int, chroma: str
    ) -> None: ...

class SurfaceConverter:
    """Converts surfaces into frames of an output, on the output's stream. Not thread-safe."""

    def __init__(self, device: int, geometry: Geometry, output: Output) -> None: ...
    def put(self, surface: Surface, rows: npt.NDArray[np.int64]) -> None:
        """Enqueue the conversion of a surface into output rows. It must not change before :meth:`finish`."""

    def finish(self) -> None:
        """Wait until all frames are written."""

def load(cuda: str, cuvid: str) -> None:
    """Set the driver libraries to load, for tests. Call :func:`shutdown` before."""

def device_count() -> int: ...
def driver_version() -> str:
    """Return the newest CUDA version that the driver supports: "13.0"."""

def device_name(device: int) -> str: ...
def pci_address(device: int) -> str: ...
def caps(device: int, codec: str, chroma: str, depth: int) -> Caps:
    """Return the capabilities of the video decoder for a codec by FFmpeg's name, "420", "422" or "444", and bits."""

def refusal(device: int, codec: str, chroma: str, depth: int, width: int, height: int) -> str | None:
    """Return the reason if the device cannot decode such a video; None if it can."""

def decode(
    device: int,
    codec: str,
    extradata: bytes,
    packets: list[Any],
    display_order: npt.NDArray[np.int64],
    flags: npt.NDArray[np.uint8],
    ranges: npt.NDArray[np.int64],
    targets: npt.NDArray[np.int64],
    geometry: Geometry,
    output: Output,
    timeout: float | None = None,
    cancelled: Callable[[], bool] | None = None,
    trust_references: bool = True,
    max_pixels: int = ...,
) -> Result:
    """Decode packets into an output, without the GIL. After the return only ``output.stream`` has work enqueued.

    Args:
        device: number of the GPU.
        codec: FFmpeg's name: "h264", "hevc", "vp8" or "vp9".
        extradata: the stream's codec private data.
        packets: P objects with the buffer protocol.
        display_order: ``int64 [P]`` position of each packet in display order, distinct within a range.
        flags: ``uint8 [P]`` packet flags.
        ranges: ``int64 [R, 2]`` (start, stop) of the decode ranges in ``packets``, ascending; each starts at a random
            access point.
        targets: ``int64 [K, 2]`` (position in ``packets``, output row).
        geometry: of the frames.
        output: memory for the frames.
        timeout: seconds.
        cancelled: called every few milliseconds; returns True if the request is cancelled.
        trust_references: True if a picture without its references is damaged; False for streams without exact random
            access points.
        max_pixels: limit of a picture's width times height.
    """

def to_host(device: int, pointer: int, shape: tuple[int, int, int, int], stream: int = 0) -> npt.NDArray[np.uint8]:
    """Copy frames to pinned host memory, after the work on ``stream``. The memory is reused when the array is freed."""

def synchronize(device: int, stream: int = 0) -> None:
    """Wait for all work on a stream."""

def warm_up(device: int, codec: str, chroma: str, depth: int, width: int, height: int, count: int) -> None:
    """Create idle sessions in advance."""

def configure(
    device: int, workers: int | None = None, session_bytes: int | None = None, idle_sessions: int = 16
) -> None:
    """Set limits. ``workers`` only before the first decode; ``session_bytes`` of GPU memory for all sessions."""

def stats(device: int) -> Stats: ...
def shutdown() -> bool:
    """Stop the threads and free the GPU memory until the next decode. Returns True if they ended in time."""

def _convert_packet(
    codec: str, extradata: bytes, packet: bytes, with_parameter_sets: bool
) -> tuple[bytes, list[int], bool]: ...
