"""The public functions of telecine: load frames and audio, read the facts of a video, and watch a live stream."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any, Literal, SupportsFloat, SupportsIndex, Unpack

from telecine.audio import Audio, AudioRequest, find_first_frame, read_audio
from telecine.backends.registry import prepare_backend
from telecine.deadline import Deadline, Timeout
from telecine.frames import Frames
from telecine.index.video_info import VideoInfo, read_video_info
from telecine.limits import Limits
from telecine.live.capture import LiveOptions
from telecine.live.connection import ConnectionOptions
from telecine.live.stream import LiveStream
from telecine.live.uris import LiveUri, check_host
from telecine.pipeline import run_request
from telecine.pixels.geometry import fit_size
from telecine.request import LoadOptions, OpenOptions, Request, SizeLike, SourceLike, show_options
from telecine.settings import choose_backend
from telecine.source.source import open_source
from telecine.validation import Option
from telecine.video import Video

__all__ = ["live", "load", "load_audio", "open", "probe"]

_SECONDS, _OVERLAP = Option(float, low=0.05, high=86_400), Option(float, low=0, high=86_400)
_FLAG, _TRANSPORT = Option(bool), Option(str, choices=("tcp", "udp"))


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


def load_audio(
    source: SourceLike,
    *,
    start: SupportsFloat | None = None,
    end: SupportsFloat | None = None,
    sample_rate: SupportsIndex | None = None,
    channels: SupportsIndex | None = None,
    limits: Limits | None = None,
    timeout: Timeout = None,
) -> Audio:
    """Decode the audio of a video, aligned to its frames: silence where the audio begins later than the video.

    Damaged packets become silence. docs/audio.md says how processors of omni models take the result.

    Args:
        source: as for :func:`load`; a file without a video too.
        start: begin at this time, seconds after the first frame of the video, or after the first sample without one.
        end: end at this time; the result is shorter if the audio ends before.
        sample_rate: samples per second, 1000 to 768 000; that of the audio when omitted.
        channels: number of channels, 1 to 8, mixed as FFmpeg does; those of the audio when omitted.
        limits: upper bounds of the request; the defaults of :class:`telecine.Limits` when omitted.
        timeout: seconds for the whole call, or a :class:`telecine.Deadline` to cancel or watch it.

    Returns:
        ``(data, sample_rate)``: the samples, ``float32 [samples, channels]``, and their rate.

    Raises:
        OptionsError: An argument is wrong.
        SourceError: The source cannot be read, or has no audio.
        DecodeError: Nothing could be decoded.
        LimitError: The request exceeds a limit.
        DeadlineError: The timeout passed.
    """
    request = AudioRequest.of(start, end, sample_rate, channels, limits)
    deadline = Deadline.of(timeout)
    with open_source(source, request.limits, deadline) as opened:
        zero = find_first_frame(opened, request.limits, deadline)
        return read_audio(opened, zero, request, deadline)


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


def live(
    uri: str | os.PathLike[str],
    *,
    every: SupportsFloat,
    frames: SupportsIndex,
    overlap: SupportsFloat = 0,
    size: SizeLike = None,
    device: str | None = None,
    key_frames: bool = False,
    transport: Literal["tcp", "udp"] = "tcp",
    timeout: SupportsFloat = 10,
    verify_tls: bool = True,
    allowed_hosts: Collection[str] | None = None,
    limits: Limits | None = None,
) -> LiveStream:
    """Watch a live stream: frames of the last seconds, again and again, until told to stop.

    The result is an iterator and an async iterator of :class:`telecine.Segment`. It connects again after every outage.
    docs/live.md describes it, with a table of symptoms.

    Args:
        uri: ``rtsp``, ``rtsps``, ``rtmp``, ``rtmps``, ``http(s)`` (HLS, FLV, MPEG-TS), ``udp``, ``tcp`` or ``srt`` URI,
            or the path of a file, which is played in real time.
        every: seconds from one segment to the next.
        frames: frames in a segment, at most, spread evenly over it; the last one is the newest.
        overlap: seconds that a segment covers also of the one before it.
        size: as for :func:`load`.
        device: device of the returned frames, as for :func:`load`. Decoding is on the CPU.
        key_frames: True to decode key frames only, which takes least time; a segment has those that there are.
        transport: transport of the media of RTSP. With "udp" packets may be lost.
        timeout: seconds without a byte from the server after which the connection is given up, also while it opens.
            For cameras that send only when something moves and give no other sign of life, a long time.
        verify_tls: False to accept any certificate of an ``rtsps`` or ``rtmps`` server.
        allowed_hosts: hosts that may be reached, if the URI comes from someone else; private ones also need
            ``limits.allow_private_hosts``. None if the caller is trusted.
        limits: ``max_pixels`` and ``max_output_bytes`` hold for each segment.

    Raises:
        OptionsError: An option is wrong.
        SourceError: The host is not in ``allowed_hosts``.
        BackendUnavailable: The device cannot be used.
    """
    checked = LiveUri.of(uri)
    if allowed_hosts is not None:
        check_host(checked.host, allowed_hosts)
    checked_size: Any = tuple(size) if isinstance(size, list) else size
    fit_size(checked_size, 1080, 1920)
    device = choose_backend("auto", device)[1]
    prepare_backend("pyav", device, {})
    connection = _connection_options(timeout, transport, verify_tls, allowed_hosts, limits)
    options = LiveOptions(
        every=_SECONDS.check("every", every),
        frames=Option(int, low=1, high=connection.limits.max_frames).check("frames", frames),
        overlap=_OVERLAP.check("overlap", overlap),
        size=checked_size,
        device=device,
        key_frames=_FLAG.check("key_frames", key_frames),
        connection=connection,
    )
    return LiveStream(checked, options)


def _connection_options(
    timeout: SupportsFloat,
    transport: str,
    verify_tls: bool,
    allowed_hosts: Collection[str] | None,
    limits: Limits | None,
) -> ConnectionOptions:
    return ConnectionOptions(
        timeout=_SECONDS.check("timeout", timeout),
        transport=_TRANSPORT.check("transport", transport),
        verify_tls=_FLAG.check("verify_tls", verify_tls),
        allowed_hosts=None if allowed_hosts is None else frozenset(allowed_hosts),
        limits=Limits.of(limits),
    )
