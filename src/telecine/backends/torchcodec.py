"""TorchCodec's VideoDecoder, given a reel in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from telecine.backends import BackendStatus, Decoded, DecodeRequest
from telecine.backends.placing import HostRows, TorchRows
from telecine.cores import usable_cores
from telecine.errors import BackendUnavailable
from telecine.options import Option
from telecine.plan import Run
from telecine.reel import STEP, Reel, by_halves, chapters, cut, doubtful, make_reel

if TYPE_CHECKING:
    import torch

__all__ = ["TorchCodecBackend"]

_CHUNK_BYTES = 16 << 20
"""Of frames that are asked for at a time: what is held twice, and what passes between two looks at the deadline."""
_MAX_THREADS = 16
_INSTALL = "pip install 'telecine[torchcodec]'; it also needs the libraries of FFmpeg (apt-get install ffmpeg)"


class TorchCodecBackend:
    """Decodes with TorchCodec, on the CPU or on a GPU.

    It uses the FFmpeg of the system. On the CPU its pixels follow the rule; on a GPU they are those of its own kernels.
    It says nothing of damage inside a picture.
    """

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
    tolerances: Mapping[str, int] = {"size": 12}
    differences: Mapping[str, str] = {"noise": "TorchCodec does not tell; the frames are as FFmpeg conceals the damage"}

    def status(self) -> BackendStatus:
        """See :class:`telecine.backends.Backend`."""
        try:
            import torchcodec
            import torchcodec.decoders
        except Exception as error:  # where it finds no FFmpeg it raises a RuntimeError of many lines
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            return BackendStatus("torchcodec", False, f"torchcodec cannot be imported ({reason}): {_INSTALL}", None)
        return BackendStatus("torchcodec", True, None, str(torchcodec.__version__))

    def decode(self, request: DecodeRequest) -> Decoded:
        """See :class:`telecine.backends.Backend`."""
        rows = _rows(request)
        notes: set[str] = set()
        for runs in cut(request.plan.runs):
            _decode(request, runs, rows, notes)
        return rows.decoded(tuple(sorted(notes)))


def _rows(request: DecodeRequest) -> HostRows | TorchRows:
    import torch

    if request.device == "cpu":
        return HostRows(request)
    device = torch.device(request.device)
    if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        raise BackendUnavailable(
            f"torchcodec: device is {request.device!r}, and torch sees {torch.cuda.device_count()} GPUs; "
            'use device="cpu", or a build of torch for CUDA'
        )
    return TorchRows(request, device)


def _decode(
    request: DecodeRequest, runs: tuple[Run, ...], rows: HostRows | TorchRows, notes: set[str], again: bool = False
) -> None:
    """Decode runs that need no restart in between; a second time in parts where that fails."""
    reel = make_reel(request.demuxer, request.index, runs, request.deadline)
    seen: set[int] = set()
    try:
        for position, picture in _pictures(request, reel, notes):
            _put(rows, reel.targets[position], picture)
            seen.add(position)
    except RuntimeError:
        # one packet that the decoder refuses ends a call, and so does a picture of another size; what was right so far
        # stays, and the rest is tried in the smallest parts that can be decoded by themselves
        pass
    missing = {ordinal for run in runs for ordinal in run.targets if reel.position[ordinal] not in seen}
    if missing and not again:
        _retry(request, runs, rows, notes, missing)
        return
    lost = doubtful(request.index, runs, missing | reel.corrupt)
    rows.kept[[row for run in runs for ordinal in lost for row in run.targets.get(ordinal, ())]] = False


def _retry(
    request: DecodeRequest, runs: tuple[Run, ...], rows: HostRows | TorchRows, notes: set[str], missing: set[int]
) -> None:
    def whole(run: Run) -> bool:
        _decode(request, (run,), rows, notes, again=True)
        return all(rows.kept[where[0]] for where in run.targets.values())

    for run in runs:
        for part in chapters(request.index, run):
            if missing & part.targets.keys():
                for ordinal in by_halves(request.index, part, whole):
                    rows.kept[list(part.targets[ordinal])] = False


def _pictures(request: DecodeRequest, reel: Reel, notes: set[str]) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield (position, picture) of wanted frames. A picture is known by its time, not by having been asked for."""
    import torch
    from torchcodec.decoders import VideoDecoder

    threads = request.options["num_ffmpeg_threads"]
    decoder = VideoDecoder(
        torch.frombuffer(reel.data, dtype=torch.uint8),
        dimension_order="NHWC",
        num_ffmpeg_threads=min(_MAX_THREADS, request.cores or usable_cores()) if threads is None else threads,
        device=request.device,
        # its own approximate mode counts by the rate in the header, and is wrong where that is
        **(
            {"seek_mode": "exact"} if request.options["seek_mode"] == "exact" else {"custom_frame_mappings": _map(reel)}
        ),
    )
    number = {position: at for at, position in enumerate(reel.present())}
    wanted = [position for position in reel.targets if position in number]
    geometry = request.geometry
    chunk = max(1, _CHUNK_BYTES // (geometry.stored_height * geometry.stored_width * 3))
    for first in range(0, len(wanted), chunk):
        request.deadline.check("decoding", first, len(wanted))
        asked = wanted[first : first + chunk]
        batch = decoder.get_frames_at([number[position] for position in asked])
        for position, seconds, picture in zip(asked, batch.pts_seconds.tolist(), batch.data, strict=True):
            if reel.at(seconds * 1000) == position:
                yield position, picture
    if request.device != "cpu" and getattr(decoder, "cpu_fallback", False):
        notes.add(f"torchcodec decoded on the CPU and copied to {request.device}: {decoder.cpu_fallback}")


def _map(reel: Reel) -> str:
    """What a scan would find, in the words of ffprobe."""
    frames = [{"pts": at * STEP, "duration": STEP, "key_frame": int(key)} for at, key in reel.present().items()]
    return json.dumps({"frames": frames})


def _put(rows: HostRows | TorchRows, where: tuple[int, ...], picture: torch.Tensor) -> None:
    if isinstance(rows, TorchRows):
        rows.put(where, picture)
    else:
        rows.put(where, picture.numpy())
