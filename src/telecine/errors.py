"""The errors of telecine, in one tree.

::

    TelecineError
    ├── OptionsError           (ValueError)    bad request: an option, a value, a combination of them
    ├── SourceError            (ValueError)    bad video: the source is not a readable media file
    │   └── NoVideoError                       bad video: a media file without a video that can be decoded
    ├── DecodeError            (ValueError)    bad video: damaged where frames were asked for
    ├── UnsupportedVideoError  (ValueError)    bad video for this backend: a codec or pixel format it cannot decode
    ├── LimitError             (ValueError)    the request is larger than a limit allows
    ├── BackendUnavailable     (ImportError)   a library, a driver or a device is missing
    ├── OverloadedError        (RuntimeError)  the machine is full: queue, threads, memory, disk
    ├── DeadlineError          (TimeoutError)  the timeout of the request passed
    └── Cancelled                              the request was cancelled

Each class is also the built-in exception that a Python user expects. Each has the exit code of the command line and the
HTTP status of a server, so both need a single ``except TelecineError``. Bad requests and bad videos are ``ValueError``,
which serving engines turn into HTTP 400. Overload is not: the same request may succeed later.

A message says what was given, what is allowed and what to do. It never contains bytes of the input, nor the credentials
or the query of a URL. Exceptions that the user's own code raises, such as ``KeyboardInterrupt``, come out unchanged.
"""

from __future__ import annotations

__all__ = [
    "BackendUnavailable",
    "Cancelled",
    "DeadlineError",
    "DecodeError",
    "LimitError",
    "NoVideoError",
    "OptionsError",
    "OverloadedError",
    "SourceError",
    "TelecineError",
    "UnsupportedVideoError",
]


class TelecineError(Exception):
    """Base class of all errors of this package."""

    exit_code: int = 1
    """Exit code of the command line."""
    http_status: int = 500
    """HTTP status for a server to answer with."""

    def __init_subclass__(cls, exit_code: int | None = None, http_status: int | None = None) -> None:
        super().__init_subclass__()
        cls.exit_code, cls.http_status = exit_code or cls.exit_code, http_status or cls.http_status


class OptionsError(TelecineError, ValueError, exit_code=2, http_status=400):
    """The request is wrong: an unknown option, a value out of range, or options that contradict each other."""


class SourceError(TelecineError, ValueError, exit_code=3, http_status=400):
    """The source cannot be read as a media file: it is missing, empty, truncated in its header, or something else."""


class NoVideoError(SourceError):
    """The source is a media file without a video stream that can be decoded."""


class DecodeError(TelecineError, ValueError, exit_code=3, http_status=400):
    """The video is damaged: no frame could be decoded or, with ``errors="strict"``, a requested frame is lost."""


class UnsupportedVideoError(TelecineError, ValueError, exit_code=3, http_status=415):
    """This backend, GPU or FFmpeg build cannot decode this codec, pixel format or size; another backend may."""


class LimitError(TelecineError, ValueError, exit_code=4, http_status=413):
    """The request is larger than a limit allows; it fails in the same way each time."""


class BackendUnavailable(TelecineError, ImportError, exit_code=5, http_status=501):
    """A library, a driver or a device is missing on this machine; the message says what to install or to choose."""


class OverloadedError(TelecineError, RuntimeError, exit_code=7, http_status=503):
    """The machine is full: a queue, its threads, its memory or its disk. The same request may succeed later."""


class DeadlineError(TelecineError, TimeoutError, exit_code=6, http_status=504):
    """The request did not finish within its timeout."""


class Cancelled(TelecineError, exit_code=130, http_status=499):
    """The request was cancelled before it finished."""
