"""The NVDEC engine, in C++; src/telecine/native has its sources. Built where a compiler is there, else missing."""

from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex, TypedDict, overload

import numpy as np
import numpy.typing as npt

RESTART: int
"""Packet flag: decoding can start here and nothing after it refers to what lies before, so damage ends here."""
NEEDED: int
"""Packet flag: if it brings no sound picture, what follows is not sound either."""
CORRUPT: int
"""Packet flag: the container says that bytes of it are missing."""
OPEN: int
"""Packet flag: decoding can start here, but for the leading pictures that follow."""
LEADING: int
"""Packet flag: may need what lies before the point of access in front of it."""

class NvdecError(RuntimeError):
    """``args`` are the message and its kind: "unusable", "unsupported", "memory" or "driver"."""

class Caps(TypedDict):
    supported: bool
    num_engines: int
    min_size: tuple[int, int]
    max_size: tuple[int, int]
    output_formats: int

class Stats(TypedDict):
    requests: int
    runs: int
    pictures: int
    frames: int
    workers: int
    queued_runs: int
    running_runs: int
    sessions_made: int
    sessions_reused: int
    sessions_reconfigured: int
    sessions_evicted: int
    sessions_destroyed_after_error: int
    sessions_idle: int
    session_bytes: int

class Geometry:
    """How pictures become frames: ``width`` and ``height`` of the output; ``matrix`` is a code point of ITU-T H.273."""

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
    """``rows`` packed frames from device address ``pointer`` on; ``stream`` is the caller's, as an integer."""

    def __init__(self, pointer: int, rows: int, stream: int = 0) -> None: ...

class Result:
    @property
    def loss(self) -> bytes:
        """For each wanted pair: 0 kept, 1 missing, 2 damaged, 3 mislabelled, 4 failed, 5 stopped."""

    @property
    def pictures(self) -> int:
        """Pictures decoded."""

    @property
    def stopped(self) -> bool:
        """Whether the deadline or a withdrawal ended it early."""

    @property
    def failure(self) -> str | None:
        """What went wrong with the machine, not the video, in at least one run."""

    @property
    def failure_kind(self) -> str:
        """As in :class:`NvdecError`; only with :attr:`failure`."""

class DeviceArray:
    """``uint8 [N, H, W, 3]`` on a GPU, for programs without torch."""

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
    def __dlpack__(self, **options: Any) -> Any: ...
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
    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

def load(cuda: str, cuvid: str) -> None:
    """For tests: the libraries to use from now on. Call :func:`shutdown` before."""

def device_count() -> int: ...
def driver_version() -> str:
    """The CUDA version that the driver knows: "13.0"."""

def device_name(device: int) -> str: ...
def pci_address(device: int) -> str: ...
def caps(device: int, codec: str, chroma: str, depth: int) -> Caps:
    """What the decoder can do. ``codec`` is FFmpeg's name, ``chroma`` "420", "422" or "444"."""

def refusal(device: int, codec: str, chroma: str, depth: int, width: int, height: int) -> str | None:
    """Why such a video cannot be decoded on the device; None if it can."""

def decode(
    device: int,
    codec: str,
    extradata: bytes,
    packets: list[Any],
    orders: npt.NDArray[np.int64],
    flags: npt.NDArray[np.uint8],
    runs: npt.NDArray[np.int64],
    wanted: npt.NDArray[np.int64],
    geometry: Geometry,
    output: Output,
    timeout: float | None = None,
    cancelled: Callable[[], bool] | None = None,
    trust_references: bool = True,
    max_pixels: int = ...,
) -> Result:
    """Decode a request, without the GIL. Nothing is in the queue any more when this returns; ``output.stream`` waits.

    Args:
        device: number of the GPU.
        codec: FFmpeg's name.
        extradata: the stream's codec private data.
        packets: P objects with the buffer protocol.
        orders: ``int64 [P]`` place of each in presentation order: distinct, ascending in display order.
        flags: ``uint8 [P]`` of the packet flags.
        runs: ``int64 [R, 2]`` (start, stop) of packets, ascending; each begins at a random access point.
        wanted: ``int64 [K, 2]`` (packet, output row).
        geometry: of the frames.
        output: where they go.
        timeout: seconds.
        cancelled: asked every few milliseconds whether the request is withdrawn.
        trust_references: whether a picture without its references is damaged; false for streams without exact access.
        max_pixels: of a picture, width times height.
    """

def to_host(device: int, pointer: int, shape: tuple[int, int, int, int], stream: int = 0) -> npt.NDArray[np.uint8]:
    """Copy frames to pinned host memory, behind the work on ``stream``. The memory is reused when the array dies."""

def synchronize(device: int, stream: int = 0) -> None:
    """Wait for all work on a stream."""

def warm_up(device: int, codec: str, chroma: str, depth: int, width: int, height: int, count: int) -> None:
    """Make sessions so that the next decode finds them warm."""

def configure(
    device: int, workers: int | None = None, session_bytes: int | None = None, idle_sessions: int = 16
) -> None:
    """Limits: ``workers`` before the first decode only; ``session_bytes`` of GPU memory for all sessions together."""

def stats(device: int) -> Stats: ...
def shutdown() -> bool:
    """Stop the threads and free what is held on the GPUs. The next decode starts anew."""

def _prepare(codec: str, extradata: bytes, packet: bytes, with_headers: bool) -> tuple[bytes, list[int], bool]: ...
