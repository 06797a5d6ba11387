"""Every error telecine raises, in one tree.

::

    TelecineError
    ├── OptionsError        (ValueError)    the call is wrong: an option, a value, a combination
    ├── SourceError         (ValueError)    what was given is not a readable video file
    │   └── NoVideoError                    it is a media file, but has no video that can be decoded
    ├── DecodeError         (ValueError)    the video is damaged where it was asked for
    ├── LimitError          (ValueError)    the request is larger than the limits allow
    ├── BackendUnavailable  (ImportError)   the chosen backend does not work on this machine
    ├── DeadlineError       (TimeoutError)  the time given was used up
    └── Cancelled                           somebody withdrew the request

Each class is also the built-in that a Python user would expect, and each carries the exit code of the command line and
the HTTP status of a server, so that the edges need one ``except TelecineError``. Bad input is a ``ValueError``: serving
engines turn that into an HTTP 400.

A message says what was given, what is allowed and what to do. It never holds bytes of the input, nor the credentials or
the query of a URL.
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
    "SourceError",
    "TelecineError",
]


class TelecineError(Exception):
    """Base of all errors of this package."""

    exit_code: int = 1
    http_status: int = 500


class OptionsError(TelecineError, ValueError):
    """The call is wrong: an unknown option, a value out of range, options that contradict each other."""

    exit_code = 2
    http_status = 400


class SourceError(TelecineError, ValueError):
    """The source cannot be read as a video file: missing, empty, text, truncated before its header, not a video."""

    exit_code = 3
    http_status = 400


class NoVideoError(SourceError):
    """The source is a media file without a video stream that can be decoded."""


class DecodeError(TelecineError, ValueError):
    """The video is damaged: nothing could be decoded or, with ``errors="strict"``, a wanted frame is lost."""

    exit_code = 3
    http_status = 400


class LimitError(TelecineError, ValueError):
    """The request is larger than a limit allows."""

    exit_code = 4
    http_status = 413


class BackendUnavailable(TelecineError, ImportError):
    """The chosen backend does not work on this machine; the message says why and what to install."""

    exit_code = 5
    http_status = 501


class DeadlineError(TelecineError, TimeoutError):
    """The request did not finish within its ``timeout``."""

    exit_code = 6
    http_status = 504


class Cancelled(TelecineError):
    """The request was withdrawn before it finished."""

    exit_code = 130
    http_status = 499
