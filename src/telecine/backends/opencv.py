"""OpenCV's VideoCapture, given a reel in memory."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from telecine.backends.base import Backend, BackendStatus, Decoded, DecodeRequest, MemoryCost
from telecine.backends.remux.output_buffers import HostOutput
from telecine.backends.remux.remux import Reel, make_reel
from telecine.bitstream import can_contain_fields
from telecine.bitstream.annexb import AnnexBConverter
from telecine.bitstream.hevc import is_progressive
from telecine.errors import UnsupportedVideoError
from telecine.plan.damage import unreliable_targets
from telecine.plan.ranges import DecodeRange, split_at_closed_points, split_at_resets
from telecine.system import usable_cores
from telecine.validation import Option

__all__ = ["OpenCVBackend"]

_SINGLE_THREADED = frozenset({"mpeg4"})
"""With several threads FFmpeg hands out a frame of these before it knows whether it was damaged."""
_MAYBE_MISSING = frozenset({"av1"})
"""Codecs that wheels of OpenCV open, and then give nothing of."""
_TOLD = frozenset({"mpeg2video", "vc1", "wmv3"})
"""Codecs of maybe interlaced pictures for which FFmpeg has told when it opened the file whether the first one is."""
_MAX_THREADS = 16
_SAMPLE = 64
"""Every so many lines of two pictures are compared first."""
_INSTALL = "pip install 'telecine[opencv]', which is opencv-python-headless 4.13 or newer"


class OpenCVBackend(Backend):
    """Decodes with OpenCV, which brings an FFmpeg of its own.

    OpenCV gives pictures as 8-bit BGR, converted by itself, and says nothing of damage inside a picture.
    """

    name = "opencv"
    options: Mapping[str, Option] = {
        "frame_recovery": Option(
            bool,
            True,
            "go on behind a packet that ends OpenCV's reading: what was lost is tried once more from the nearest "
            "random access point; what cannot be decoded stays lost, and no other frame takes its place",
        ),
    }
    detects_damage = False
    differences: Mapping[str, str] = {"noise": "OpenCV does not report damage: frames are as FFmpeg conceals it"}
    tolerances: Mapping[str, int] = {"ten-bit": 24, "size": 12}

    def status(self) -> BackendStatus:
        """See :meth:`telecine.backends.Backend.status`."""
        try:
            import cv2
        except Exception as error:
            system = (
                "; on a bare system it needs libGL: apt-get install libgl1 libglib2.0-0" if "lib" in str(error) else ""
            )
            return self.make_status(None, f"cv2 cannot be imported ({error}): {_INSTALL}{system}")
        version = str(cv2.__version__)
        if not hasattr(cv2, "IStreamReader"):
            return self.make_status(version, f"OpenCV {version} cannot read from memory: {_INSTALL}")
        if cv2.CAP_FFMPEG not in cv2.videoio_registry.getStreamBufferedBackends():
            return self.make_status(version, f"OpenCV {version} was built without FFmpeg: {_INSTALL}")
        return self.make_status(version)

    def memory_cost(self, request: DecodeRequest) -> MemoryCost:
        """See :meth:`telecine.backends.Backend.memory_cost`. The planned packets are in memory twice."""
        return request.cpu_cost(_threads(request)) + MemoryCost(request.packet_bytes)

    def decode(self, request: DecodeRequest) -> Decoded:
        """See :meth:`telecine.backends.Backend.decode`."""
        rows = HostOutput(request)
        threads = _threads(request)
        for runs in split_at_resets(request.plan.ranges):
            _decode(request, runs, rows, threads)
            if request.options["frame_recovery"]:
                _recover(request, runs, rows)
        return rows.decoded()


def _threads(request: DecodeRequest) -> int:
    return 1 if request.index.codec in _SINGLE_THREADED else min(_MAX_THREADS, request.cores or usable_cores())


def _recover(request: DecodeRequest, runs: tuple[DecodeRange, ...], rows: HostOutput) -> None:
    for run in runs:
        for part in split_at_closed_points(request.index, run):
            wanted = [row for where in part.targets.values() for row in where]
            if not rows.kept[wanted].all():
                _decode(request, (part,), rows, threads=1)


def _decode(request: DecodeRequest, runs: tuple[DecodeRange, ...], rows: HostOutput, threads: int) -> None:
    """Decode runs that need no restart in between, and withdraw what damage has touched."""
    fields = _may_hold_fields(request, runs[0])
    known = request.info.interlaced or bool(request.index.second_field.any())
    if known or (fields and _begins_interlaced(request, runs[0])):
        raise UnsupportedVideoError(
            f"{request.source.name}: its pictures are interlaced, and OpenCV's conversion fails on those without "
            "saying so; use backend='pyav'"
        )
    reel = make_reel(request.reader, runs, request.deadline)
    parts = [part for run in runs for part in split_at_closed_points(request.index, run)] if reel.changes else []
    if len(parts) > 1:
        # OpenCV would scale what follows to the first size, in its own way
        for part in parts:
            _decode(request, (part,), rows, threads)
        return
    seen: set[int] = set()
    last: npt.NDArray[np.uint8] | None = None
    capture = _open(reel, threads)
    # to the very end, so that a frame that does not come out is noticed wherever it is
    for position in _grab_all(capture, reel, request):
        wanted = position in reel.targets
        # what it cannot convert comes out as the picture that was converted before, so there has to be one
        if wanted or (fields and last is None):
            done, picture = capture.retrieve()
            if wanted and (not done or (last is not None and _left_over(request, reel, position, picture, last))):
                continue
            if wanted:
                _put(rows, reel.targets[position], picture)
            last = picture
        seen.add(position)
    if not seen and request.index.codec in _MAYBE_MISSING:
        raise UnsupportedVideoError(
            f"{request.source.name}: OpenCV gave no frame of it; its FFmpeg seems to have no decoder for "
            f"{request.index.codec} without a GPU. Use backend='pyav'"
        )
    lost = unreliable_targets(request.index, runs, reel.missing(seen))
    rows.kept[[row for run in runs for ordinal in lost for row in run.targets.get(ordinal, ())]] = False


def _may_hold_fields(request: DecodeRequest, run: DecodeRange) -> bool:
    """Whether there may be interlaced pictures in a run, as far as its first packet and the headers tell."""
    codec = request.index.codec
    if codec not in ("h264", "hevc"):
        return codec in _TOLD or codec == "mpeg4"
    stream = AnnexBConverter(codec, request.demuxer.extradata)
    for _, packet in request.reader.read(run.packets[:1]):
        stream.convert(memoryview(packet), True, True)
    if codec == "hevc":
        return not all(is_progressive(header) for header in stream.sequence_headers)
    return any(can_contain_fields(codec, header) for header in stream.sequence_headers)


def _begins_interlaced(request: DecodeRequest, run: DecodeRange) -> bool:
    """Whether the first picture of a run holds two fields, by its own word: the header speaks of those at the start."""
    at_start = run.packets[0] == np.argmax(request.index.random_access > 0)
    if at_start and request.index.codec in _TOLD:
        return False
    import av

    template: Any = request.demuxer.stream.codec_context
    context: Any = av.CodecContext.create(template.codec, "r")
    context.extradata, context.codec_tag = template.extradata, template.codec_tag
    context.thread_count = 1
    try:
        for _, packet in request.reader.read(run.packets[:1]):
            pictures = context.decode(packet) + context.decode(None)
            return any(picture.interlaced_frame for picture in pictures)
    except av.error.FFmpegError:
        pass  # nothing is known then, and OpenCV will not get further
    return False


def _put(rows: HostOutput, where: tuple[int, ...], picture: npt.NDArray[np.uint8]) -> None:
    import cv2

    if rows.is_frame_shape(picture.shape):
        cv2.cvtColor(picture, cv2.COLOR_BGR2RGB, dst=rows.data[where[0]])
        rows.repeat_first(where)
    else:
        rows.write(where, picture, "bgr24")


def _grab_all(capture: Any, reel: Reel, request: DecodeRequest) -> Iterator[int]:
    """Yield the position of each picture that comes out; none twice, and none whose time is nobody's."""
    import cv2

    done: set[int] = set()
    start = reel.start()
    while capture.grab():
        request.deadline.check("decoding", len(done), reel.expected)
        position = reel.at(start + capture.get(cv2.CAP_PROP_POS_MSEC))
        if position is not None and position not in done:
            done.add(position)
            yield position


def _left_over(
    request: DecodeRequest, reel: Reel, position: int, picture: npt.NDArray[np.uint8], last: npt.NDArray[np.uint8]
) -> bool:
    """Whether a picture is not the one at ``position``, but the one that was converted before it.

    Where OpenCV cannot convert a picture, as with an interlaced one, it gives the one before it and reports success.
    Two that are the same are mostly true all the same, a slide for instance; so the second is decoded once more, by a
    capture that has converted nothing yet and has nothing to leave over.
    """
    if picture.shape != last.shape or not np.array_equal(picture[::_SAMPLE], last[::_SAMPLE]):
        return False
    if not np.array_equal(picture, last):
        return False
    capture = _open(reel, threads=1)
    for found in _grab_all(capture, reel, request):
        if found == position:
            done, again = capture.retrieve()
            return not done or not np.array_equal(again, picture)
    return True


def _open(reel: Reel, threads: int) -> Any:
    """A capture of a reel. It is closed when it is dropped, and never by ``release()``.

    OpenCV lets go of the reader inside ``release()``, where it does not hold Python's lock: that ends the process.
    """
    import cv2

    # OpenCV's own stubs ask for its C++ interface; what it really asks for is a BufferedIOBase of Python's. It must be
    # one that is not written in Python: what a signal handler raises in there ends the process
    reader: Any = io.BytesIO(reel.data)
    capture = cv2.VideoCapture(reader, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, threads])
    if not capture.isOpened():
        raise UnsupportedVideoError(f"OpenCV {cv2.__version__}: its FFmpeg has no decoder for this; use backend='pyav'")
    # a reel has no orientation, but the bitstream may carry one
    capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 0)
    return capture
