"""OpenCV's VideoCapture as a backend; it reads remuxed files in memory."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from telecine.backends.base import SINGLE_THREADED_CODECS, Backend, BackendStatus, Decoded, DecodeRequest, MemoryCost
from telecine.backends.remux.output_buffers import HostOutput
from telecine.backends.remux.remux import RemuxedFile, check_pictures, remux
from telecine.bitstream import can_contain_fields
from telecine.bitstream.annexb import AnnexBConverter
from telecine.bitstream.h273 import HDR_TRANSFERS, UNSPECIFIED
from telecine.bitstream.hevc import is_progressive
from telecine.errors import UnsupportedVideoError
from telecine.plan.damage import unreliable_rows
from telecine.plan.ranges import DecodeRange, split_at_closed_points, split_at_resets
from telecine.validation import Option

__all__ = ["OpenCVBackend"]

_CODECS_WITHOUT_DECODER = frozenset({"av1"})
"""Codecs that wheels of OpenCV open although they have no decoder for them."""
_KNOWN_AT_START = frozenset({"mpeg2video", "vc1", "wmv3"})
"""Codecs with interlaced pictures of which FFmpeg knows the first one when it opens a file."""
_PRIMARIES = (1, UNSPECIFIED, 4, 5, 6, 7)
"""Colour primaries (H.273 table 2) of BT.709, BT.470, BT.601 and SMPTE 240M; OpenCV 5 converts others."""
_INSTALL = "pip install 'telecine[opencv]', which is opencv-python-headless 4.13 or newer"
_SYSTEM_LIBRARIES = "; on a bare system it needs libGL: apt-get install libgl1 libglib2.0-0"
_Picture = npt.NDArray[np.uint8]


class OpenCVBackend(Backend):
    """Decodes with OpenCV, which contains an FFmpeg of its own.

    OpenCV returns pictures as 8-bit BGR, by its own conversion, and does not report damage inside a picture.
    """

    name = "opencv"
    options: Mapping[str, Option] = {"frame_recovery": Option(bool, True)}
    detects_damage = False
    tolerances: Mapping[str, int] = {"size": 12}
    refused_cases = frozenset({"10-bit", "hdr", "hdr-rotated", "interlaced"})

    def status(self) -> BackendStatus:
        try:
            import cv2
        except Exception as error:
            system = _SYSTEM_LIBRARIES if "lib" in str(error) else ""
            return self.make_status(None, f"cv2 cannot be imported ({error}): {_INSTALL}{system}")
        version = str(cv2.__version__)
        if not hasattr(cv2, "IStreamReader"):
            return self.make_status(version, f"OpenCV {version} cannot read from memory: {_INSTALL}")
        if cv2.CAP_FFMPEG not in cv2.videoio_registry.getStreamBufferedBackends():
            return self.make_status(version, f"OpenCV {version} was built without FFmpeg: {_INSTALL}")
        return self.make_status(version)

    def memory_cost(self, request: DecodeRequest) -> MemoryCost:
        # the planned packets are in memory twice
        return request.cpu_cost(_threads(request)) + MemoryCost(request.packet_bytes)

    def decode(self, request: DecodeRequest) -> Decoded:
        check_pictures(request)
        _check_colors(request)
        output = HostOutput(request)
        for ranges in split_at_resets(request.plan.ranges):
            _decode(request, ranges, output, _threads(request))
            # each independent range with lost frames is decoded once more, in a file of its own
            again = split_at_closed_points(request.index, ranges) if request.options["frame_recovery"] else []
            for independent in again:
                if not all(output.kept[rows[0]] for rows in independent.targets.values()):
                    _decode(request, (independent,), output, threads=1)
        return output.decoded()


def _check_colors(request: DecodeRequest) -> None:
    """Raise UnsupportedVideoError for colours that OpenCV converts in another way."""
    info, reason = request.info, None
    if info.color_primaries not in _PRIMARIES or info.color_trc in HDR_TRANSFERS:
        reason = "HDR or wide-gamut colours, which OpenCV converts to BT.709"
    elif info.bit_depth > 8 and not info.pixel_format.startswith(("yuv444p", "gbr", "gray")):
        reason = f"{info.bit_depth} bits per component, which OpenCV converts with errors"
    if reason is not None:
        raise UnsupportedVideoError(f"{request.demuxer.name}: it has {reason}; use backend='pyav'")


def _threads(request: DecodeRequest) -> int:
    return 1 if request.index.codec in SINGLE_THREADED_CODECS else request.decoder_threads()


def _decode(request: DecodeRequest, ranges: tuple[DecodeRange, ...], output: HostOutput, threads: int) -> None:
    """Decode the ranges of one decode pass, and mark the rows of unreliable frames as not kept."""
    may_have_fields = _may_have_fields(request, ranges[0])
    is_interlaced = request.info.interlaced or bool(request.index.second_field.any())
    if is_interlaced or (may_have_fields and _starts_interlaced(request, ranges[0])):
        raise UnsupportedVideoError(
            f"{request.source.name}: its pictures are interlaced, and OpenCV's conversion of those fails without an "
            "error; use backend='pyav'"
        )
    file = remux(request.reader, ranges, request.deadline)
    independent = split_at_closed_points(request.index, ranges) if file.has_sps_changes else []
    if len(independent) > 1:
        # in one file, OpenCV would scale to the first size by a rule of its own
        for range_ in independent:
            _decode(request, (range_,), output, threads)
        return
    if file.is_empty:
        return
    decoded: set[int] = set()
    previous: _Picture | None = None
    # to the end of the file: a frame that is missing anywhere must be noticed
    for position, capture in _decode_positions(request, file, threads):
        is_target = position in file.targets
        # a picture that OpenCV cannot convert is returned as the one converted before it, so there must be one
        if is_target or (may_have_fields and previous is None):
            is_converted, picture = capture.retrieve()
            if is_target:
                if not is_converted or (previous is not None and _is_stale(request, file, position, picture, previous)):
                    continue
                _write(output, file.targets[position], picture)
            previous = picture
        decoded.add(position)
    if not decoded and request.index.codec in _CODECS_WITHOUT_DECODER:
        raise UnsupportedVideoError(
            f"{request.source.name}: OpenCV returned no frame of it; its FFmpeg seems to have no decoder for "
            f"{request.index.codec} without a GPU. Use backend='pyav'"
        )
    missing = file.missing_packets(decoded)
    output.kept[unreliable_rows(request.index, ranges, missing, file.omitted)] = False


def _may_have_fields(request: DecodeRequest, range_: DecodeRange) -> bool:
    """Return True if pictures of a range may be interlaced, according to extradata and the first packet."""
    codec = request.index.codec
    if codec not in ("h264", "hevc"):
        return codec in _KNOWN_AT_START or codec == "mpeg4"
    converter = AnnexBConverter(codec, request.demuxer.extradata)
    _, packet = next(request.reader.read(range_.packets[:1]))
    converter.convert(memoryview(packet), True, True)
    if codec == "hevc":
        return not all(is_progressive(header) for header in converter.sequence_headers)
    return any(can_contain_fields(codec, header) for header in converter.sequence_headers)


def _starts_interlaced(request: DecodeRequest, range_: DecodeRange) -> bool:
    """Return True if the first picture of a range is interlaced. The index knows that only of the first in the file."""
    is_first = range_.packets[0] == np.argmax(request.index.random_access > 0)
    if is_first and request.index.codec in _KNOWN_AT_START:
        return False
    import av

    decoder = request.demuxer.new_decoder(request.max_pixels)
    try:
        _, packet = next(request.reader.read(range_.packets[:1]))
        return any(picture.interlaced_frame for picture in decoder.decode(packet) + decoder.decode(None))
    except av.error.FFmpegError:
        return False  # OpenCV cannot decode it either


def _write(output: HostOutput, rows: tuple[int, ...], picture: _Picture) -> None:
    import cv2

    if output.is_frame_shape(picture.shape):
        cv2.cvtColor(picture, cv2.COLOR_BGR2RGB, dst=output.data[rows[0]])
        output.repeat_first(rows)
    else:
        output.write(rows, picture, "bgr24")


def _decode_positions(request: DecodeRequest, file: RemuxedFile, threads: int) -> Iterator[tuple[int, Any]]:
    """Yield the display position of each decoded picture, without repeats and unknown times, and the capture."""
    import cv2

    done: set[int] = set()
    capture, start = _open_capture(file, threads), file.start_milliseconds()
    while capture.grab():
        request.deadline.check("decoding", len(done), file.num_frames)
        position = file.position_at(start + capture.get(cv2.CAP_PROP_POS_MSEC))
        if position is not None and position not in done:
            done.add(position)
            yield position, capture


def _is_stale(request: DecodeRequest, file: RemuxedFile, position: int, picture: _Picture, previous: _Picture) -> bool:
    """Return True if a picture is a stale copy of the one converted before it."""
    # OpenCV returns that copy, and reports success, if it cannot convert a picture, an interlaced one for instance.
    # Equal pictures are mostly genuine, as in a slide show. So the second one is decoded again by a new capture, which
    # has converted nothing that it could return instead
    if not all(np.array_equal(picture[::step], previous[::step]) for step in (64, 1)):  # a few lines first
        return False
    for found, capture in _decode_positions(request, file, threads=1):
        if found == position:
            is_converted, again = capture.retrieve()
            return not is_converted or not np.array_equal(again, picture)
    return True


def _open_capture(file: RemuxedFile, threads: int) -> Any:
    """Open a file with OpenCV. It is closed when the capture is freed; never call ``release()``."""
    # in `release()` OpenCV frees its Python reader without holding the GIL, which ends the process
    import cv2

    # OpenCV's stubs ask for its C++ interface, but it takes a Python BufferedIOBase. One written in C: if a signal
    # handler raised in Python code called by OpenCV, the process would end
    reader: Any = io.BytesIO(file.data)
    capture = cv2.VideoCapture(reader, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, threads])
    if not capture.isOpened():
        raise UnsupportedVideoError(f"OpenCV {cv2.__version__}: its FFmpeg has no decoder for this; use backend='pyav'")
    # the file has no orientation, but the bitstream may have one
    capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 0)
    return capture
