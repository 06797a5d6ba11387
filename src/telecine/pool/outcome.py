"""What becomes of a job: its frames, or one error of this package, whatever was raised on the way."""

from __future__ import annotations

import traceback

from telecine.errors import Cancelled, DeadlineError, LimitError, TelecineError
from telecine.frames import Frames
from telecine.pool.job import Job

__all__ = ["foreign", "outcome", "verdict"]


def outcome(job: Job) -> tuple[Frames | None, BaseException | None]:
    """Do a job in this thread: its frames, or its error. Nothing is raised, whatever comes of it."""
    try:
        return job.do(), None
    except TelecineError as error:
        failure: TelecineError = error
    except BaseException as error:
        # a backend may raise only our errors; one that does not must not take its thread along, nor whoever waits
        failure = foreign(error, job.backend)
        failure.__cause__ = error
    _clear_frames(failure)
    return None, failure


def foreign(error: BaseException, backend: str) -> TelecineError:
    """What a request fails with where something else was raised than an error of this package. Its text is not quoted:
    it may hold what the input says."""
    if isinstance(error, MemoryError):
        return LimitError("there was not enough memory for the request; ask for fewer frames or a smaller size")
    return TelecineError(f"the request failed in {backend} with {type(error).__name__}")


def _clear_frames(failure: BaseException) -> None:
    """Let go of what was local where an error came through: who keeps it would keep the frames as well."""
    seen: set[int] = set()
    link: BaseException | None = failure
    while link is not None and id(link) not in seen:  # an error may be its own cause
        seen.add(id(link))
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__


def verdict(job: Job) -> TelecineError:
    """What a job fails with that is ended from outside, because its time is up or it was withdrawn."""
    if job.deadline.cancelled:
        return Cancelled(f"the request was cancelled while {job.doing}")
    stuck = f", and {job.backend} did not return" if job.written_off else ""
    return DeadlineError(f"the timeout of {job.deadline.seconds:g} s passed while {job.doing}{stuck}")
