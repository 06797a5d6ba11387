"""A fake of nvidia-deepstream-videodecode-cu13: the interface of 9.0.2 with its faults, and FFmpeg as the decoder."""

from __future__ import annotations

import io
import threading
import types
from typing import Any

import av
import numpy as np

from support.clips import read_number
from support.fake_nvidia import Tensor, to_rgb

__all__ = ["FakeDeepStream"]


class FakeDeepStream(types.ModuleType):
    """The package ``nvidia.deepstream_videodecode``, with the behaviour observed on an H200.

    A worker keeps its decoder while the codec hint stays the same. If another stream needs a larger one, its pictures
    come in the wrong order here, with the right count. It converts colours by the primaries of the stream that the
    decoder was created for. Pictures of another size than the file's header says are scaled to that size.

    Args:
        dead: calls after which a worker dies and its caller waits forever.
        drops: numbers painted on pictures that the decoder does not return.
        slow: every call ends with the library's own timeout.
        fails: every call ends with this error, before the first picture.
        leading: return undecodable leading pictures of an open random access point of H.264 at the start.
        scales_to: (width, height) of all frames, instead of the size in the file's header.
    """

    def __init__(
        self,
        dead: int | None = None,
        drops: tuple[int, ...] = (),
        slow: bool = False,
        fails: str = "",
        leading: bool = False,
        scales_to: tuple[int, int] | None = None,
    ) -> None:
        super().__init__("nvidia.deepstream_videodecode")
        self.__version__ = "9.0.2"
        self.pools: list[Any] = []
        self.calls: list[dict[str, Any]] = []
        self.dead, self.drops, self.slow, self.fails, self.leading = dead, drops, slow, fails, leading
        self.scales_to = scales_to
        library = self

        class DecodePool:
            def __init__(self, num_workers: int = 8, drop_interval: int = 0) -> None:
                self.num_workers = num_workers
                self.closed = False
                self.hint = ""
                self.made_for: tuple[bytes, Any] | None = None
                library.pools.append(self)

            def decode(self, data: bytes, **arguments: Any) -> Any:
                return library._decode(self, data, **arguments)

            def shutdown(self) -> None:
                self.closed = True

        self.DecodePool = DecodePool

    def _decode(
        self,
        pool: Any,
        data: bytes,
        target_indices: list[int],
        codec: str = "",
        max_frames: int = 8,
        timeout_sec: float = 30.0,
    ) -> Any:
        assert isinstance(data, bytes) and pool.num_workers == 1
        self.calls.append({"codec": codec, "indices": target_indices, "data": data, "timeout": timeout_sec})
        if self.dead is not None and len(self.calls) > self.dead and pool is self.pools[0]:
            threading.Event().wait()
        if self.slow:
            return self._result([], 0, f"timeout after {timeout_sec}s")
        if self.fails:
            return self._result([], 0, self.fails)
        pictures, sequence, size = _decoded(data, self.leading)
        size = self.scales_to or size
        primaries = int(pictures[0].color_primaries) if pictures else 2
        if pool.made_for is None or codec != pool.hint:
            pool.hint, pool.made_for = codec, (sequence, primaries)
        if pool.made_for[0] != sequence:
            pictures = [*pictures[1:], *pictures[:1]]
        kept: list[Any] = []
        total = 0
        for picture in pictures:
            image = _painted(picture, pool.made_for[1])
            if image is None:
                return self._result([], 1, "Internal data stream error.")
            if self.drops and read_number(image) in self.drops:
                continue
            total += 1
            if (picture.width, picture.height) != size:
                image = av.VideoFrame.from_ndarray(image, "rgb24").reformat(*size, interpolation="POINT").to_ndarray()
            if total - 1 in target_indices:
                kept.append(image)
            if len(kept) == max_frames:
                break
        return self._result(kept, total, "")

    @staticmethod
    def _result(kept: list[Any], total: int, error: str) -> Any:
        frames = Tensor(np.stack(kept)) if kept else None
        return types.SimpleNamespace(frames=frames, n_kept=len(kept), n_total=total, fps=0.0, error=error)


def _decoded(data: bytes, leading: bool) -> tuple[list[Any], bytes, tuple[int, int]]:
    """Return the pictures of a file, its first sequence parameter set, and the (width, height) in its header."""
    pictures: list[Any] = []
    with av.open(io.BytesIO(data), "r") as file:
        context = file.streams.video[0].codec_context
        context.thread_count = 1
        if leading:
            context.flags2 |= av.codec.context.Flags2.show_all.value
        packets = list(file.demux(video=0))
        first = bytes(packets[0])
        for packet in packets:
            try:
                pictures += packet.decode()
            except av.error.FFmpegError:
                pass  # GStreamer's parser skips what it cannot read
    units = (unit.rstrip(b"\0") for unit in first.split(b"\0\0\1")[1:])
    sequence = next((unit for unit in units if unit[0] & 0x1F == 7 or unit[0] >> 1 == 33), b"")
    return pictures, sequence, _header_size(data)


def _header_size(data: bytes) -> tuple[int, int]:
    """Return PixelWidth and PixelHeight of a Matroska file whose elements have sizes of eight bytes."""
    at = data.index(b"\xe0\x01")  # Video
    sides = []
    for name in (0xB0, 0xBA):
        at = data.index(bytes([name, 1]), at)
        length = int.from_bytes(data[at + 2 : at + 9], "big")
        sides.append(int.from_bytes(data[at + 9 : at + 9 + length], "big"))
    return sides[0], sides[1]


def _painted(picture: Any, primaries: int) -> np.ndarray[Any, Any] | None:
    """Convert a picture to RGB by the matrix of its primaries; None if the library does not know them."""
    matrices = {1: 1, 2: 5, 6: 5}
    if primaries not in matrices:
        return None
    picture.colorspace = matrices[primaries]
    return to_rgb(picture)
