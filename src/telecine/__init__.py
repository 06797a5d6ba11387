"""telecine turns encoded video into the frames that vision-language models want.

:func:`load` decodes the wanted frames of a video and labels each with its true index and time; :func:`probe` says what
a video is; :func:`backends` says what works on this machine. Importing this package brings in neither torch nor CUDA
nor a decoder library, and starts no thread.
"""

from telecine.backends.base import BackendStatus, backends
from telecine.backends.nvdec.backend import stats as nvdec_stats
from telecine.backends.nvdec.backend import warm_up
from telecine.errors import (
    BackendUnavailable,
    Cancelled,
    DeadlineError,
    DecodeError,
    LimitError,
    NoVideoError,
    OptionsError,
    SourceError,
    TelecineError,
)
from telecine.frames import Frame, Frames, Report
from telecine.index.video_info import VideoInfo, probe
from telecine.limits import Limits
from telecine.pipeline import load
from telecine.pixels.geometry import Fit
from telecine.pool import Pool

__version__ = "0.1.0"

__all__ = [
    "BackendStatus",
    "BackendUnavailable",
    "Cancelled",
    "DeadlineError",
    "DecodeError",
    "Fit",
    "Frame",
    "Frames",
    "LimitError",
    "Limits",
    "NoVideoError",
    "OptionsError",
    "Pool",
    "Report",
    "SourceError",
    "TelecineError",
    "VideoInfo",
    "backends",
    "load",
    "nvdec_stats",
    "probe",
    "warm_up",
]
