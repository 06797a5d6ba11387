"""telecine turns encoded video into the frames that vision-language models want.

:func:`load` decodes the wanted frames of a video and labels each with its true index and time; :func:`probe` says what
a video is; :func:`list_backends` says what works on this machine. Importing this package brings in neither torch nor
CUDA nor a decoder library, and starts no thread.
"""

from telecine.api import load, open, probe
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
from telecine.pixels.geometry import Fit
from telecine.pool import Pool, PoolFuture
from telecine.sampling.select import Sampling
from telecine.timeline import Timeline
from telecine.video import FrameChunks, Video

__version__ = "0.1.0"

__all__ = [
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
    "NoVideoError",
    "OptionsError",
    "OverloadedError",
    "Pool",
    "PoolFuture",
    "Report",
    "Sampling",
    "SourceError",
    "TelecineError",
    "Timeline",
    "UnsupportedVideoError",
    "Video",
    "VideoInfo",
    "list_backends",
    "load",
    "open",
    "probe",
]
