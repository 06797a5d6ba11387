"""Other libraries that decode on an NVIDIA GPU, used as in their documentation.

Each function returns a context manager. Its value decodes the clip once and returns the wanted frames as
``uint8 [N, H, W, 3]``, on the GPU if the library leaves them there.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

__all__ = ["PEERS", "GpuFrames", "NotInstalled"]

Decode = Callable[[], Any]


class NotInstalled(Exception):
    """The peer cannot be used on this machine."""


@contextlib.contextmanager
def pynvvideocodec(data: bytes, indices: list[int], threads: int) -> Iterator[Decode]:
    """Use one SimpleDecoder per thread, reused for the next clip by ``reconfigure_decoder``."""
    try:
        import PyNvVideoCodec as nvc
        import torch
    except ImportError as error:
        raise NotInstalled(str(error)) from error
    # a decoder can be created from bytes or a path, but the next clip must be a path
    descriptor = os.memfd_create("clip")
    os.write(descriptor, data)
    path = f"/proc/self/fd/{descriptor}"
    local = threading.local()

    def decode() -> Any:
        if not hasattr(local, "decoder"):
            local.decoder = nvc.SimpleDecoder(
                path, gpu_id=0, use_device_memory=True, output_color_type=nvc.OutputColorType.RGB
            )
        else:
            local.decoder.reconfigure_decoder(path)
        frames = local.decoder.get_batch_frames_by_index(indices)
        return GpuFrames(torch.stack([torch.from_dlpack(frame).clone() for frame in frames]))

    try:
        yield decode
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def deepstream(data: bytes, indices: list[int], threads: int) -> Iterator[Decode]:
    """Use a pool with one worker per thread, at most 16; frames stay on the GPU."""
    try:
        from nvidia import deepstream_videodecode as ds
    except (ImportError, OSError) as error:
        raise NotInstalled(str(error)) from error
    pool = ds.DecodePool(num_workers=min(16, threads))
    codec = ds.probe_metadata(data)[5]

    def decode() -> Any:
        result = pool.decode(data, target_indices=indices, codec=codec, max_frames=len(indices))
        if result.error:
            raise RuntimeError(result.error)
        return GpuFrames(result.frames[: result.n_kept])

    try:
        yield decode
    finally:
        pool.shutdown()


@contextlib.contextmanager
def torchcodec(data: bytes, indices: list[int], threads: int) -> Iterator[Decode]:
    """Use a new VideoDecoder on CUDA for each clip."""
    try:
        from torchcodec.decoders import VideoDecoder
    except (ImportError, RuntimeError, OSError) as error:
        raise NotInstalled(str(error)) from error

    def decode() -> Any:
        decoder = VideoDecoder(data, device="cuda", dimension_order="NHWC", seek_mode="approximate")
        return GpuFrames(decoder.get_frames_at(indices).data)

    yield decode


class GpuFrames:
    """Frames on the GPU, copied to the host only when they are iterated."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __len__(self) -> int:
        return len(self._tensor)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._tensor.cpu().numpy())


PEERS: dict[str, Callable[[bytes, list[int], int], AbstractContextManager[Decode]]] = {
    "pynvvideocodec": pynvvideocodec,
    "deepstream": deepstream,
    "torchcodec": torchcodec,
}
