"""TorchCodec's VideoDecoder as a backend; it reads remuxed files in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from telecine.backends.base import Backend, BackendStatus, Decoded, DecodeRequest, MemoryCost, first_line
from telecine.backends.cuda_output import check_gpu
from telecine.backends.remux.output_buffers import HostOutput, TorchOutput
from telecine.backends.remux.remux import STEP_MILLISECONDS, RemuxedFile, check_pictures, remux
from telecine.bitstream.h273 import FULL_RANGE, RANGES
from telecine.errors import UnsupportedVideoError
from telecine.notes import Note
from telecine.plan.damage import unreliable_rows
from telecine.plan.ranges import DecodeRange, find_undecodable_targets, output_rows, split_at_closed_points
from telecine.system import usable_cores
from telecine.validation import Option

if TYPE_CHECKING:
    import torch
    from torchcodec.decoders import VideoDecoder

__all__ = ["TorchCodecBackend"]

_CHUNK_BYTES = 16 << 20
"""Bytes of frames per call of TorchCodec. They are held twice, and the deadline is checked between calls."""
_EXACT_ON_GPU = frozenset("h264 hevc vp8 vp9 av1".split())
"""Codecs that a GPU decodes exactly as FFmpeg does, if it supports them."""
_CONVERTED_EXACTLY_ON_GPU = frozenset(("yuv420p", "yuvj420p"))
"""Pixel formats that TorchCodec converts by the rule on a GPU. It reduces others to 8 bits first, and colours grey."""
_INSTALL = "pip install 'telecine[torchcodec]'; it also needs the libraries of FFmpeg (apt-get install ffmpeg)"


class TorchCodecBackend(Backend):
    """Decodes with TorchCodec, on the CPU or on a GPU.

    It uses the FFmpeg of the system. On the CPU its pixels follow the rule; on a GPU its own kernels convert them. It
    does not report damage inside a picture.
    """

    name = "torchcodec"
    devices = ("cpu", "cuda")
    options: Mapping[str, Option] = {
        "num_ffmpeg_threads": Option(int, low=0, high=64),
        "seek_mode": Option(str, "exact", choices=("exact", "approximate")),  # without effect
    }
    detects_damage = False
    tolerances: Mapping[str, int] = {"size": 12}
    refused_cases = frozenset({"hdr-rotated"})

    def status(self) -> BackendStatus:
        try:
            import torchcodec
            import torchcodec.decoders
        except Exception as error:  # without FFmpeg's libraries it raises a RuntimeError of many lines
            return self.make_status(None, f"torchcodec cannot be imported ({first_line(error)}): {_INSTALL}")
        return self.make_status(str(torchcodec.__version__))

    def check_device(self, device: str, options: Mapping[str, Any]) -> None:
        super().check_device(device, options)
        if device != "cpu":
            check_gpu(device, "torch")

    def memory_cost(self, request: DecodeRequest) -> MemoryCost:
        remuxed = MemoryCost(request.packet_bytes)
        if request.device == "cpu":
            threads = request.decoder_threads(request.options["num_ffmpeg_threads"]) or usable_cores()
            return request.cpu_cost(threads) + remuxed
        return request.gpu_cost() + request.cpu_cost(1) + remuxed  # the CPU decodes what the GPU cannot

    def decode(self, request: DecodeRequest) -> Decoded:
        check_pictures(request)
        info = request.info
        if info.color_range == RANGES[FULL_RANGE] and info.pixel_format.startswith(("yuv4", "nv", "p0", "p2")):
            # FFmpeg's names yuvj420p and so on, of 8-bit H.264, HEVC and JPEG, contain the range
            raise UnsupportedVideoError(
                f"{request.demuxer.name}: TorchCodec takes {info.pixel_format} of full range for limited range; use "
                "backend='pyav'"
            )
        return _PlanDecoder(request).decode()


class _PlanDecoder:
    """Executes the plan of one request. Not thread-safe."""

    def __init__(self, request: DecodeRequest) -> None:
        self._output = HostOutput(request) if request.device == "cpu" else TorchOutput(request, request.device)
        self._request, self._index, self._device = request, request.index, request.device
        self._notes: set[Note] = set()
        codec, picture, pixels = request.index.codec, request.index.picture, request.info.pixel_format
        pixels = "gray" if picture is not None and picture.monochrome else pixels
        is_exact = codec in _EXACT_ON_GPU and pixels in _CONVERTED_EXACTLY_ON_GPU
        if self._device != "cpu" and not is_exact:
            self._device = "cpu"
            self._note_cpu(f"frames of {codec} in {pixels} differ on a GPU")

    def _note_cpu(self, reason: object) -> None:
        text = f"torchcodec decoded on the CPU and copied to {self._request.device}: {reason}"
        self._notes.add(Note("cpu-decode", text))

    def decode(self) -> Decoded:
        """Decode the plan, on the CPU if the GPU returns no frame."""
        self._decode(self._request.plan.ranges)
        if self._device != "cpu" and not self._output.kept.any():
            self._device = "cpu"
            self._note_cpu("the GPU returned no frame; it may not support this codec or size")
            self._decode(self._request.plan.ranges)
        return self._output.decoded(tuple(sorted(self._notes)))

    def _decode(self, ranges: tuple[DecodeRange, ...], is_retry: bool = False) -> None:
        """Decode ranges with one decoder; retry the independent ranges in which frames are missing."""
        file = remux(self._request.reader, ranges, self._request.deadline)
        decoded: set[int] = set()
        # A call fails at one packet that the decoder refuses, and at a change of the picture size. Frames of earlier
        # calls are right; the others are decoded again in smaller files.
        with suppress(RuntimeError, ValueError):
            for position, picture in self._pictures(file):
                self._output.write_tensor(file.targets[position], picture)
                decoded.add(position)
        missing = {target for target in output_rows(ranges) if file.positions[target] not in decoded}
        if missing and not is_retry:
            self._retry(ranges, missing)
        else:
            self._output.kept[unreliable_rows(self._index, ranges, missing, file.omitted)] = False

    def _retry(self, ranges: tuple[DecodeRange, ...], missing: set[int]) -> None:
        def decode_all(range_: DecodeRange) -> bool:
            self._decode((range_,), is_retry=True)
            return all(self._output.kept[rows[0]] for rows in range_.targets.values())

        for independent in split_at_closed_points(self._index, ranges):
            if missing & independent.targets.keys():
                for target in find_undecodable_targets(self._index, independent, decode_all):
                    self._output.kept[list(independent.targets[target])] = False

    def _pictures(self, file: RemuxedFile) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield (display position, picture) of the wanted frames, identified by the time that TorchCodec returns."""
        if file.is_empty:
            return
        decoder = self._open(file)
        frame_number = {position: number for number, position in enumerate(file.packet_positions())}
        wanted = [position for position in file.targets if position in frame_number]
        geometry = self._request.geometry
        chunk = max(1, _CHUNK_BYTES // (geometry.stored_height * geometry.stored_width * 3))
        for start in range(0, len(wanted), chunk):
            self._request.deadline.check("decoding", start, len(wanted))
            positions = wanted[start : start + chunk]
            batch = decoder.get_frames_at([frame_number[position] for position in positions])
            for position, seconds, picture in zip(positions, batch.pts_seconds.tolist(), batch.data, strict=True):
                if file.position_at(seconds * 1000) == position:
                    yield position, picture
        if self._device != "cpu" and getattr(decoder, "cpu_fallback", False):
            self._note_cpu(decoder.cpu_fallback)

    def _open(self, file: RemuxedFile) -> VideoDecoder:
        import torch
        from torchcodec.decoders import VideoDecoder, set_cuda_backend

        # TorchCodec's other NVDEC backend reuses decoders for later videos that need another one, and shows wrong
        # frames. On the CPU no name is allowed
        with set_cuda_backend("ffmpeg") if self._device != "cpu" else nullcontext():
            return VideoDecoder(
                torch.frombuffer(file.data, dtype=torch.uint8),
                dimension_order="NHWC",
                num_ffmpeg_threads=self._request.decoder_threads(self._request.options["num_ffmpeg_threads"]),
                device=self._device,
                custom_frame_mappings=_frame_mappings(file),
            )


def _frame_mappings(file: RemuxedFile) -> str:
    """Return the frames of a file as ffprobe lists them, with only those as key frames at which it must seek."""
    # TorchCodec would seek at each key frame between two wanted frames, which empties the decoder's threads, although
    # all packets of the file have to be decoded
    positions = file.packet_positions()
    starts = [int(range_.packets[0]) for range_ in file.ranges[1:] if range_.reset]
    seek_points = {positions[0], *(file.positions[start] for start in starts)}
    frames = [
        {"pts": position * STEP_MILLISECONDS, "duration": STEP_MILLISECONDS, "key_frame": int(position in seek_points)}
        for position in positions
    ]
    return json.dumps({"frames": frames})
