"""The workers of the DeepStream backend: a limited number per process, each with a decoder that it keeps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from telecine.backends.deepstream.bitstream_builder import InputFile
from telecine.deadline import Deadline
from telecine.errors import BackendUnavailable

__all__ = ["POLL_SECONDS", "Worker", "WorkerPool", "load_library"]

POLL_SECONDS = 0.05
"""Time between two checks of the deadline during a wait."""


def load_library() -> Any:
    """Import NVIDIA's package. It may raise any exception."""
    from nvidia import deepstream_videodecode

    return deepstream_videodecode


class Worker:
    """A pool of the library with a single worker, so that it is known which decoder a call gets."""

    def __init__(self) -> None:
        try:
            self.pool = load_library().DecodePool(num_workers=1)
        except Exception as error:  # torch, CUDA and GStreamer have errors of their own
            raise BackendUnavailable(f"deepstream cannot be started: {type(error).__name__}: {error}") from error
        self.decoder_key = ""
        """The ``decoder_key`` of the last file."""


class WorkerPool:
    """At most ``size`` workers. Thread-safe. Creating a decoder takes a third of a second, so workers are kept."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._num_taken = 0
        self._free: list[Worker] = []  # in the order of their last use
        self._changed = threading.Condition()
        self._building = threading.Lock()

    def build_in_turn(self, files: Iterator[InputFile], deadline: Deadline) -> Iterator[InputFile]:
        """Yield files, each built by one request at a time.

        The library runs Python code at every picture: the fewer threads compete for the interpreter, the faster it is.
        """
        while True:
            while not self._building.acquire(timeout=POLL_SECONDS):
                deadline.check("waiting for others to read their packets")
            try:
                file = next(files, None)
            finally:
                self._building.release()
            if file is None:
                return
            yield file

    def take(self, decoder_key: str, deadline: Deadline) -> Worker:
        """Take a worker for one call: one with a matching decoder, else a new one, else the one idle for longest."""
        while True:
            deadline.check("waiting for a worker")
            with self._changed:
                if self._num_taken < self.size:
                    worker = self._choose(decoder_key)
                    self._num_taken += 1
                    break
                self._changed.wait(POLL_SECONDS)
        if worker is None:
            try:
                worker = Worker()  # outside the lock, since it starts CUDA
            except BaseException:
                with self._changed:
                    self._num_taken -= 1
                    self._changed.notify()
                raise
        worker.decoder_key = decoder_key
        return worker

    def _choose(self, decoder_key: str) -> Worker | None:
        """Remove and return a free worker; None if a new one is to be created."""
        match = next((i for i, worker in enumerate(self._free) if worker.decoder_key == decoder_key), None)
        if match is None and self._num_taken + len(self._free) < self.size:
            return None
        return self._free.pop(match or 0)

    def give_back(self, worker: Worker, reusable: bool) -> None:
        """End a call. A worker that is not reusable is shut down."""
        with self._changed:
            self._num_taken -= 1
            if reusable:
                self._free.append(worker)
            self._changed.notify()
        if not reusable:
            # it waits for the worker, for seconds
            threading.Thread(target=worker.pool.shutdown, name="telecine-deepstream-end", daemon=True).start()
