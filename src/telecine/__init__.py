"""Decode the frames of a video that a vision-language model needs, each with its true index and time.

- :func:`load` decodes chosen frames of a video: by count, rate, index, time, or a model's own sampling rule.
- :func:`load_audio` decodes the audio of the same window.
- :func:`probe` reads the facts of a video without decoding it.
- :func:`open` indexes a video once and answers many requests; long videos come in chunks of bounded memory.
- :func:`live` watches a camera or stream: frames of the last seconds, again and again.
- :class:`Pool` decodes many videos at once, within the cores and the memory of the machine.
- :func:`list_backends` lists the decoders that work on this machine.

Importing the package loads neither torch nor CUDA nor a decoder library, and starts no thread. All errors are
subclasses of :class:`TelecineError`.
"""

from telecine.api import live, load, load_audio, open, probe
from telecine.audio import Audio
from telecine.backends.base import BackendStatus
from telecine.backends.registry import list_backends
from telecine.deadline import Deadline
from telecine.errors import (
    BackendUnavailable,
    Cancelled,
    DeadlineError,
    DecodeError,
    LimitError,
    NoVideoError,
    OptionsError,
    OverloadedError,
    SourceError,
    TelecineError,
    UnsupportedVideoError,
)
from telecine.frames import Frame, Frames, Report
from telecine.index.video_info import VideoInfo
from telecine.limits import Limits
from telecine.live.segments import Segment
from telecine.live.stream import LiveStream
from telecine.notes import Note
from telecine.pixels.geometry import Fit
from telecine.pool import Pool, PoolFuture
from telecine.sampling.select import Sampling
from telecine.timeline import Timeline
from telecine.video import FrameChunks, Video

__version__ = "0.1.0"

__all__ = [
    "Audio",
    "BackendStatus",
    "BackendUnavailable",
    "Cancelled",
    "Deadline",
    "DeadlineError",
    "DecodeError",
    "Fit",
    "Frame",
    "FrameChunks",
    "Frames",
    "LimitError",
    "Limits",
    "LiveStream",
    "NoVideoError",
    "Note",
    "OptionsError",
    "OverloadedError",
    "Pool",
    "PoolFuture",
    "Report",
    "Sampling",
    "Segment",
    "SourceError",
    "TelecineError",
    "Timeline",
    "UnsupportedVideoError",
    "Video",
    "VideoInfo",
    "list_backends",
    "live",
    "load",
    "load_audio",
    "open",
    "probe",
]
