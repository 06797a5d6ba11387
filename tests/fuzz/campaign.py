"""Runs many cases in a child process with a watchdog, and collects the findings."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fuzz import container_mutations, packet_mutations, remux_mutations  # noqa: F401
from fuzz.mutations import describe_case
from fuzz.verdicts import HARD_VERDICTS

__all__ = ["CASE_SECONDS", "Campaign", "Record"]

CASE_SECONDS = 30.0
"""Longest time of a case; a longer one is a hang."""
_TESTS = Path(__file__).resolve().parents[1]
_MAX_STDERR = 3000


@dataclass(frozen=True)
class Record:
    """A finding of a campaign; its number and backend repeat it."""

    number: int
    backend: str
    verdict: str
    case: str
    mutator: str
    detail: str

    @property
    def is_hard(self) -> bool:
        """True if no backend may behave so."""
        return self.verdict in HARD_VERDICTS

    def __str__(self) -> str:
        return f"{self.verdict}: --replay {self.number} --backend {self.backend}: {self.case}: {self.detail}"


@dataclass
class Campaign:
    """Runs cases on backends in a child process, which is restarted after a crash or a hang."""

    backends: tuple[str, ...]
    case_seconds: float = CASE_SECONDS
    outcomes: Counter[str] = field(default_factory=Counter)
    records: list[Record] = field(default_factory=list)
    cases: int = 0
    slowest: tuple[float, int] = (0.0, 0)
    worker_command: tuple[str, ...] = (sys.executable, "-m", "fuzz.worker")

    def __post_init__(self) -> None:
        self._worker: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._pending = b""

    def run(
        self,
        numbers: Iterable[int],
        seconds: float = float("inf"),
        wanted: Callable[[str, str], bool] = lambda seed, mutator: True,
        report: Callable[[Record], None] = lambda record: None,
    ) -> None:
        """Run cases until the numbers or the time end.

        Args:
            numbers: one for each case.
            seconds: time after which no further case is started.
            wanted: given the name of the intact file and of the first mutator, returns True for cases to run.
            report: called with each finding.
        """
        started = time.monotonic()
        try:
            for number in numbers:
                if time.monotonic() - started > seconds:
                    break
                seed, mutator = describe_case(number)
                if not wanted(seed, mutator):
                    continue
                self.cases += 1
                for backend in self.backends:
                    for record in self.run_one(number, backend, mutator):
                        self.records.append(record)
                        report(record)
        finally:
            self.close()

    def run_one(self, number: int, backend: str, mutator: str) -> list[Record]:
        """Run one case on one backend and return its findings."""
        worker = self._start()
        assert worker.stdin is not None
        deadline = time.monotonic() + self.case_seconds
        answers: list[dict[str, Any]] = []
        try:
            worker.stdin.write(json.dumps({"number": number, "backend": backend}).encode() + b"\n")
            worker.stdin.flush()
            while len(answers) < 2 and (line := self._read_line(deadline)) is not None:
                answers.append(json.loads(line))
        except OSError:
            pass
        case = answers[0]["case"] if answers else "not made"
        if len(answers) == 2:
            result = answers[1]
            self.outcomes[f"{backend}: {result['outcome']}"] += 1
            self.slowest = max(self.slowest, (result["seconds"], number))
            return [Record(number, backend, verdict, case, mutator, text) for verdict, text in result["findings"]]
        verdict = "hang" if worker.poll() is None and time.monotonic() > deadline else "crash"
        said = self._end_worker()
        self.outcomes[f"{backend}: {verdict}"] += 1
        return [Record(number, backend, verdict, case, mutator, said)]

    def close(self) -> None:
        """End the child process."""
        if self._worker is not None:
            self._end_worker()

    def _start(self) -> subprocess.Popen[bytes]:
        if self._worker is None:
            path = os.pathsep.join(filter(None, [str(_TESTS), os.environ.get("PYTHONPATH")]))
            self._stderr = tempfile.TemporaryFile()
            self._worker = subprocess.Popen(
                self.worker_command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
                env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
        return self._worker

    def _read_line(self, deadline: float) -> bytes | None:
        """Return the next line of the child; None if it ended or the time is up."""
        assert self._worker is not None and self._worker.stdout is not None
        descriptor = self._worker.stdout.fileno()
        while b"\n" not in self._pending:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            received = os.read(descriptor, 1 << 16) if ready else b""
            if not received:
                return None
            self._pending += received
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _end_worker(self) -> str:
        """Kill the child, and return its exit status and the end of its standard error."""
        worker, self._worker, self._pending = self._worker, None, b""
        stderr, self._stderr = self._stderr, None
        assert worker is not None and stderr is not None and worker.stdin is not None and worker.stdout is not None
        try:
            worker.wait(0.5)
        except subprocess.TimeoutExpired:
            worker.kill()
        status = worker.wait()
        worker.stdin.close()
        worker.stdout.close()
        with stderr:
            stderr.seek(0)
            said = stderr.read().decode(errors="replace")[-_MAX_STDERR:]
        return f"exit status {status}\n{said}"
