"""Stand-ins for the libraries that need an NVIDIA GPU: the same interface, with FFmpeg doing the work.

They were written from the Python sources in the wheels of PyNvVideoCodec 2.0.4 and 2.2.4 and of
nvidia-deepstream-videodecode-cu13 9.0.2, and they have the faults of those libraries where an adapter has to cope.
"""

from __future__ import annotations

import threading
import types
import warnings
from collections.abc import Iterator
from enum import Enum
from typing import Any

import av
import numpy as np
import pytest

from clips import read_number
from telecine.convert import Converter
from telecine.pixels import Geometry

__all__ = ["FakeDeepStream", "Tensor", "fake_pynvvideocodec", "fake_torch", "install"]


def install(monkeypatch: pytest.MonkeyPatch, **modules: Any) -> None:
    """Make ``import`` find these, until the test ends; two underscores in a name are a dot."""
    for name, module in modules.items():
        monkeypatch.setitem(__import__("sys").modules, name.replace("__", "."), module)


class Tensor:
    """As much of a torch tensor as is used of one."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        return self.array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self.array[key])

    def __iter__(self) -> Iterator[Tensor]:
        return (Tensor(one) for one in self.array)


def fake_torch(gpus: int = 1) -> Any:
    """torch, as far as it says whether there is a GPU."""
    module: Any = types.ModuleType("torch")
    module.cuda = types.SimpleNamespace(is_available=lambda: gpus > 0, device_count=lambda: gpus)
    return module


class _Format(Enum):
    NV12 = 1
    P016 = 2
    YUV444 = 3
    NV16 = 4


class _Frame:
    """A decoded frame in host memory."""

    def __init__(self, picture: Any) -> None:
        self._pts = picture.pts
        planes = [
            np.frombuffer(memoryview(plane), np.uint8).reshape(plane.height, plane.line_size)
            for plane in picture.planes
        ]
        name = picture.format.name
        width, height = picture.width, picture.height
        if name == "yuv444p":
            self.format = _Format.YUV444
            self._data = np.concatenate([plane[:, :width] for plane in planes])
        elif name.startswith("yuv420p10"):
            self.format = _Format.P016
            words = [plane.view("<u2") << 6 for plane in planes]
            self._data = self._joined(words, width, height)
        else:
            self.format = _Format.NV16 if name.startswith("yuv422p") else _Format.NV12
            self._data = self._joined(planes, width, height)

    @staticmethod
    def _joined(planes: list[Any], width: int, height: int) -> Any:
        half = -(-width // 2)
        chroma = np.stack([planes[1][:, :half], planes[2][:, :half]], axis=-1).reshape(planes[1].shape[0], -1)
        return np.ascontiguousarray(np.concatenate([planes[0][:, :width], chroma[:, :width]]))

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self._data.shape, 1)

    def getPTS(self) -> int:
        return int(self._pts)

    def GetPtrToPlane(self, plane: int) -> int:
        return int(self._data.ctypes.data)


def fake_pynvvideocodec(version: str = "2.0.4") -> Any:
    """PyNvVideoCodec of a version. ``made`` are its decoders, with the arguments that they were made with."""
    module: Any = types.ModuleType("PyNvVideoCodec")
    module.__version__ = version
    module.OutputColorType = Enum("OutputColorType", "NATIVE RGB RGBP")
    module.made = []

    class SimpleDecoder:
        def __init__(self, enc_file_path: Any, gpu_id: int = 0, **arguments: Any) -> None:
            if not isinstance(enc_file_path, str):
                raise TypeError(f"this version takes paths, not {type(enc_file_path).__name__}")
            module.made.append(arguments | {"path": enc_file_path, "gpu_id": gpu_id})
            self._pictures = []
            with av.open(enc_file_path) as file:
                file.streams.video[0].codec_context.thread_count = 1
                self._count = file.streams.video[0].frames
                try:
                    for packet in file.demux(video=0):
                        self._pictures += packet.decode()
                except av.error.FFmpegError as error:
                    module.failed = error
            if not self._count:
                raise Exception("Elementary streams not supported by Simple Decoder. Invalid input stream.")
            self._pictures.sort(key=lambda picture: picture.pts)

        def __len__(self) -> int:
            return int(self._count)

        def get_batch_frames_by_index(self, indices: list[int]) -> list[_Frame]:
            if len(set(indices)) < len(indices) or list(indices) != sorted(indices):
                warnings.warn("Duplicates are not supported and have been removed", stacklevel=2)
            # by count, as the library does it: what could not be decoded shifts what follows
            return [_Frame(self._pictures[index]) for index in indices]

    module.SimpleDecoder = SimpleDecoder
    return module


def _rgb(picture: Any) -> np.ndarray[Any, Any]:
    image = np.empty((picture.height, picture.width, 3), np.uint8)
    Converter(Geometry(picture.height, picture.width, 0, False, picture.height, picture.width))(picture, image)
    return image


class FakeDeepStream(types.ModuleType):
    """The package ``nvidia.deepstream_videodecode``.

    Args:
        dead: after so many calls a worker dies, and its caller waits for ever.
        drops: numbers on pictures that the decoder does not give.
        slow: every call ends with the library's own timeout.
    """

    def __init__(self, dead: int | None = None, drops: tuple[int, ...] = (), slow: bool = False) -> None:
        super().__init__("nvidia.deepstream_videodecode")
        self.__version__ = "9.0.2"
        self.pools: list[Any] = []
        self.calls: list[dict[str, Any]] = []
        self.dead, self.drops, self.slow = dead, drops, slow
        library = self

        class DecodePool:
            def __init__(self, num_workers: int = 8, drop_interval: int = 0) -> None:
                self.num_workers = num_workers
                self.closed = False
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
        target_indices: list[int] | None = None,
        target_pts_ns: list[int] | None = None,
        codec: str = "",
        max_frames: int = 8,
        timeout_sec: float = 30.0,
    ) -> Any:
        assert isinstance(data, bytes)
        self.calls.append({"codec": codec, "indices": target_indices, "times": target_pts_ns, "timeout": timeout_sec})
        if self.dead is not None and len(self.calls) > self.dead and pool is self.pools[0]:
            threading.Event().wait()
        if self.slow:
            return self._result([], 0, f"timeout after {timeout_sec}s")
        kept, total, cursor, error = [], 0, 0, ""
        targets = sorted(target_pts_ns or ())
        pictures = []
        with av.open(__import__("io").BytesIO(data)) as file:
            file.streams.video[0].codec_context.thread_count = 1
            try:
                for packet in file.demux(video=0):
                    pictures += packet.decode()
            except av.error.FFmpegError:
                pass  # GStreamer's parser passes over what it cannot read
        for picture in pictures:
            image = _rgb(picture)
            if self.drops and read_number(image) in self.drops:
                continue
            total += 1
            if target_pts_ns is not None:
                when = round(picture.time * 1e9)
                if cursor >= len(targets) or when < targets[cursor]:
                    continue
                while cursor < len(targets) and targets[cursor] <= when:
                    cursor += 1
            elif total - 1 not in (target_indices or ()):
                continue
            if len(kept) < max_frames:
                kept.append(image)
            if len(kept) == max_frames:
                break
        return self._result(kept, total, error)

    @staticmethod
    def _result(kept: list[Any], total: int, error: str) -> Any:
        frames = Tensor(np.stack(kept)) if kept else None
        return types.SimpleNamespace(frames=frames, n_kept=len(kept), n_total=total, fps=0.0, error=error)
