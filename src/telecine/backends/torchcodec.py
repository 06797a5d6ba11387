"""TorchCodec's VideoDecoder, given a reel in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from telecine.backends.base import Backend, BackendStatus, Decoded, DecodeRequest, MemoryCost
from telecine.backends.cuda_output import check_gpu
from telecine.backends.remux.output_buffers import HostOutput, TorchOutput
from telecine.backends.remux.remux import STEP, Reel, make_reel
from telecine.plan.damage import unreliable_targets
from telecine.plan.ranges import DecodeRange, find_undecodable_targets, split_at_closed_points
from telecine.system import usable_cores
from telecine.validation import Option

if TYPE_CHECKING:
    import torch
    from torchcodec.decoders import VideoDecoder

__all__ = ["TorchCodecBackend"]

_CHUNK_BYTES = 16 << 20
"""Of frames that are asked for at a time: what is held twice, and what passes between two looks at the deadline."""
_MAX_THREADS = 16
_ON_GPU = frozenset("h264 hevc vp8 vp9 av1".split())
"""Codecs that a GPU decodes to the bit as FFmpeg does; it may yet not know one of them."""
_CONVERTED_ON_GPU = frozenset(("yuv420p", "yuvj420p"))
"""FFmpeg's names of the pixel formats that TorchCodec's conversion on a GPU takes as they are. What has more bits it
makes 8 bits first, and grey it gives colours."""
_INSTALL = "pip install 'telecine[torchcodec]'; it also needs the libraries of FFmpeg (apt-get install ffmpeg)"


class TorchCodecBackend(Backend):
    """Decodes with TorchCodec, on the CPU or on a GPU.

    It uses the FFmpeg of the system. On the CPU its pixels follow the rule; on a GPU they are those of its own kernels.
    It says nothing of damage inside a picture.
    """

    name = "torchcodec"
    devices = ("cpu", "cuda")
    options: Mapping[str, Option] = {
        "num_ffmpeg_threads": Option(
            int, None, "threads of one decode on the CPU; 0 lets FFmpeg choose; as many as cores when omitted", 0, 64
        ),
        "seek_mode": Option(
            str,
            "exact",
            "taken as TorchCodec takes it, and without effect: TorchCodec is told where every frame is, and neither "
            "scans the file nor guesses",
            choices=("exact", "approximate"),
        ),
    }
    detects_damage = False
    differences: Mapping[str, str] = {"noise": "TorchCodec does not report damage: frames are as FFmpeg conceals it"}
    tolerances: Mapping[str, int] = {"size": 12}

    def status(self) -> BackendStatus:
        """See :meth:`telecine.backends.Backend.status`."""
        try:
            import torchcodec
            import torchcodec.decoders
        except Exception as error:  # where it finds no FFmpeg it raises a RuntimeError of many lines
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            return self.make_status(None, f"torchcodec cannot be imported ({reason}): {_INSTALL}")
        return self.make_status(str(torchcodec.__version__))

    def check_device(self, device: str, options: Mapping[str, Any]) -> None:
        """See :meth:`telecine.backends.Backend.check_device`."""
        super().check_device(device, options)
        if device != "cpu":
            check_gpu(device, "torch")

    def memory_cost(self, request: DecodeRequest) -> MemoryCost:
        """See :meth:`telecine.backends.Backend.memory_cost`. The CPU decodes what the GPU cannot."""
        remuxed = MemoryCost(request.packet_bytes)
        if request.device == "cpu":
            return request.cpu_cost(_threads(request) or usable_cores()) + remuxed
        return request.gpu_cost() + request.cpu_cost(1) + remuxed

    def decode(self, request: DecodeRequest) -> Decoded:
        """See :meth:`telecine.backends.Backend.decode`."""
        decoding = _Decoding(request)
        decoding.decode()
        return decoding.rows.decoded(tuple(sorted(decoding.notes)))


def _rows(request: DecodeRequest) -> HostOutput | TorchOutput:
    import torch

    if request.device == "cpu":
        return HostOutput(request)
    return TorchOutput(request, torch.device(request.device))


def _threads(request: DecodeRequest) -> int:
    threads: int | None = request.options["num_ffmpeg_threads"]
    return min(_MAX_THREADS, request.cores or usable_cores()) if threads is None else threads


class _Decoding:
    """One request: its rows, and the device that decodes for them."""

    def __init__(self, request: DecodeRequest) -> None:
        self.rows = _rows(request)
        self.notes: set[str] = set()
        self._request = request
        self._index = request.index
        self._device = request.device
        codec, picture, pixels = request.index.codec, request.index.picture, request.info.pixel_format
        pixels = "gray" if picture is not None and picture.monochrome else pixels
        if codec not in _ON_GPU or pixels not in _CONVERTED_ON_GPU:
            self._decode_on_cpu(f"its pictures of {codec} in {pixels} would be other ones on a GPU")

    def _decode_on_cpu(self, reason: str) -> None:
        if self._device != "cpu":
            self._device = "cpu"
            self.notes.add(f"torchcodec decoded on the CPU and copied to {self._request.device}: {reason}")

    def decode(self) -> None:
        """Fill the rows."""
        self._decode(self._request.plan.ranges)
        if self._device != "cpu" and not self.rows.kept.any():
            self._decode_on_cpu("the GPU gave no frame of it; it may not know this codec or this size")
            self._decode(self._request.plan.ranges)

    def _decode(self, runs: tuple[DecodeRange, ...], again: bool = False) -> None:
        """Decode runs, all with one decoder; a second time in parts where that fails."""
        reel = make_reel(self._request.reader, runs, self._request.deadline)
        seen: set[int] = set()
        try:
            for position, picture in self._pictures(reel):
                _put(self.rows, reel.targets[position], picture)
                seen.add(position)
        except RuntimeError:
            # one packet that the decoder refuses ends a call, and so does a picture of another size; what was right so
            # far stays, and the rest is tried in the smallest parts that can be decoded by themselves
            pass
        missing = {ordinal for run in runs for ordinal in run.targets if reel.position[ordinal] not in seen}
        if missing and not again:
            self._retry(runs, missing)
            return
        lost = unreliable_targets(self._index, runs, missing | reel.corrupt)
        self.rows.kept[[row for run in runs for ordinal in lost for row in run.targets.get(ordinal, ())]] = False

    def _retry(self, runs: tuple[DecodeRange, ...], missing: set[int]) -> None:
        def whole(run: DecodeRange) -> bool:
            self._decode((run,), again=True)
            return all(self.rows.kept[where[0]] for where in run.targets.values())

        for run in runs:
            for part in split_at_closed_points(self._index, run):
                if missing & part.targets.keys():
                    for ordinal in find_undecodable_targets(self._index, part, whole):
                        self.rows.kept[list(part.targets[ordinal])] = False

    def _pictures(self, reel: Reel) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield (position, picture) of wanted frames. A picture is known by its time, not by having been asked for."""
        decoder = self._open(reel)
        number = {position: at for at, position in enumerate(reel.present())}
        wanted = [position for position in reel.targets if position in number]
        geometry = self._request.geometry
        chunk = max(1, _CHUNK_BYTES // (geometry.stored_height * geometry.stored_width * 3))
        for first in range(0, len(wanted), chunk):
            self._request.deadline.check("decoding", first, len(wanted))
            asked = wanted[first : first + chunk]
            batch = decoder.get_frames_at([number[position] for position in asked])
            for position, seconds, picture in zip(asked, batch.pts_seconds.tolist(), batch.data, strict=True):
                if reel.at(seconds * 1000) == position:
                    yield position, picture
        if self._device != "cpu" and getattr(decoder, "cpu_fallback", False):
            self.notes.add(f"torchcodec decoded on the CPU and copied to {self._device}: {decoder.cpu_fallback}")

    def _open(self, reel: Reel) -> VideoDecoder:
        import torch
        from torchcodec.decoders import VideoDecoder, set_cuda_backend

        # TorchCodec's other way to NVDEC keeps decoders for later videos that need another one, and shows wrong frames;
        # on a CPU it takes neither name
        with set_cuda_backend("ffmpeg") if self._device != "cpu" else nullcontext():
            return VideoDecoder(
                torch.frombuffer(reel.data, dtype=torch.uint8),
                dimension_order="NHWC",
                num_ffmpeg_threads=_threads(self._request),
                device=self._device,
                custom_frame_mappings=_map(reel),
            )


def _map(reel: Reel) -> str:
    """What a scan would find, in the words of ffprobe; but of the key frames, only those where it must restart.

    At each key frame between two wanted frames TorchCodec would seek, though all that is in a reel has to be decoded.
    That empties the decoder's threads.
    """
    first, *others = reel.present()
    starts = {first, *(reel.position[int(run.packets[0])] for run in reel.ranges[1:] if run.reset)}
    frames = [{"pts": at * STEP, "duration": STEP, "key_frame": int(at in starts)} for at in (first, *others)]
    return json.dumps({"frames": frames})


def _put(rows: HostOutput | TorchOutput, where: tuple[int, ...], picture: torch.Tensor) -> None:
    if isinstance(rows, TorchOutput):
        rows.write(where, picture)
    else:
        rows.write(where, picture.numpy())
