"""The public functions of telecine: load frames, and read the facts of a video."""

from __future__ import annotations

from typing import Unpack

from telecine.deadline import Deadline, Timeout
from telecine.frames import Frames
from telecine.index.video_info import VideoInfo, read_video_info
from telecine.limits import Limits
from telecine.pipeline import run_request
from telecine.request import LoadOptions, OpenOptions, Request, SourceLike, show_options
from telecine.source.source import open_source
from telecine.video import Video

__all__ = ["load", "open", "probe"]


@show_options(LoadOptions)
def load(source: SourceLike, *, timeout: Timeout = None, **options: Unpack[LoadOptions]) -> Frames:
    """Decode the frames asked for, and only the packets that they need.

    Without an option that chooses frames, all frames are returned. Numbers may be NumPy scalars.

    Args:
        source: path, bytes-like object, binary file object, ``data:`` or ``http(s)`` URL; docs/sources.md has all.
        timeout: seconds for the whole call, or a :class:`telecine.Deadline` to cancel or watch it.
        num_frames: number of frames, spread evenly; all frames if the video has fewer.
        fps: frames per second of video, by true time. With ``num_frames``, the smaller count.
        min_frames: least number of frames if ``fps`` gives fewer.
        max_frames: largest number of frames.
        indices: these frame indices, in this order, repeats included.
        timestamps: the frames nearest to these times, seconds after the first frame; any order, repeats included.
        start: choose among the frames from this time on, seconds after the first frame.
        end: choose among the frames before this time.
        policy: a model's own sampling rule by name, as "qwen3_vl"; docs/sampling.md lists them.
        size: (height, width), the length of the short side, or a :class:`telecine.Fit`; display pixels.
        layout: "NHWC" or "NCHW", the order of the axes of the result. With "NCHW", pyav fills planes that are
            contiguous; other backends give a transposed view without a copy.
        pad: "repeat" fills a result that has fewer frames than ``num_frames``, ``max_frames``, ``indices`` or
            ``timestamps`` ask for, by repeating the last frame. ``Frames.mask`` is False for the repeats.
        backend: name of the backend, or "auto": "pyav" for the CPU, and for CUDA "nvdec", which falls back to "pyav"
            for a video that the hardware cannot decode. A named backend never falls back. ``TELECINE_BACKEND`` when
            omitted.
        device: device of the returned frames: "cpu", "cuda" or "cuda:1". ``TELECINE_DEVICE`` when omitted.
        errors: "recover" leaves out frames that cannot be decoded and lists them in ``report.lost``; "strict" raises.
        limits: upper bounds of the request; the defaults of :class:`telecine.Limits` when omitted.
        **options: the options above, and those of the backend: ``threads`` of pyav, ``out`` of nvdec;
            docs/backends.md has all.

    Returns:
        The frames, ``uint8 [N, H, W, 3]`` RGB (``[N, 3, H, W]`` with ``layout="NCHW"``), with their indices and times.

    Raises:
        OptionsError: An option is wrong.
        SourceError: The source cannot be read, or is no video.
        DecodeError: Nothing could be decoded, or with ``errors="strict"`` not every frame.
        LimitError: The request exceeds a limit.
        BackendUnavailable: The named backend does not work on this machine.
        DeadlineError: The timeout passed.
    """
    return run_request(Request.of(source, **options), Deadline.of(timeout))


def probe(source: SourceLike, *, limits: Limits | None = None, timeout: Timeout = None) -> VideoInfo:
    """Read the facts of a video from its packets and headers, without decoding it.

    Args:
        source: as for :func:`load`.
        limits: upper bounds of the request; the defaults of :class:`telecine.Limits` when omitted.
        timeout: seconds for the whole call, or a :class:`telecine.Deadline` to cancel or watch it.

    Raises:
        OptionsError: An argument is wrong.
        SourceError: The source cannot be read, or is no video.
        LimitError: The video exceeds a limit.
        DeadlineError: The timeout passed.
    """
    limits, deadline = Limits.of(limits), Deadline.of(timeout)
    with open_source(source, limits, deadline) as opened:
        return read_video_info(opened, limits, deadline)


@show_options(OpenOptions)
def open(source: SourceLike, *, timeout: Timeout = None, **options: Unpack[OpenOptions]) -> Video:
    """Open a video and index its packets once, to answer many requests.

    Use it as a context manager: ``with telecine.open(path) as video: ...``. docs/video.md shows what it can do.

    Args:
        source: as :func:`load` takes it.
        timeout: seconds for opening, and for each request that has no timeout of its own; or a
            :class:`telecine.Deadline` for all of them together.
        **options: ``backend``, ``device``, ``errors``, ``limits``, ``size``, ``layout`` and options of the backend, as
            :func:`load` takes them. They hold for each request that does not give them again.

    Raises:
        TelecineError: as :func:`load` says, but for errors of decoding.
    """
    return Video(source, timeout=timeout, **options)
