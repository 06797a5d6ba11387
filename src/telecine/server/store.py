"""Streams and their events in SQLite. For one thread at a time."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from telecine.errors import OptionsError, OverloadedError

__all__ = ["Store", "StoredStream"]

_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS streams (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, request TEXT NOT NULL, created REAL NOT NULL, ended TEXT);
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, stream TEXT NOT NULL, data TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS events_of_stream ON events (stream, id);
"""
# AUTOINCREMENT: the number of a deleted event is not given again


@dataclass
class StoredStream:
    """A stream that the service was asked to watch."""

    id: str
    owner: str
    request: dict[str, Any]
    """The body of the request, with the URI and its credentials."""
    created: float
    ended: str | None = None
    """State in which it ended for good, "ended" or "failed"; None for one that a restart resumes."""


class Store:
    """The database. One process may use it at a time.

    Raises:
        OptionsError: the file cannot be opened, or another process has it open.
    """

    def __init__(self, path: Path, max_events: int) -> None:
        self._max_events = max_events
        try:
            # only the owner may read it: URIs contain passwords
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            # opened before the event loop runs, which may be in another thread
            self._database = sqlite3.connect(path, isolation_level=None, timeout=1, check_same_thread=False)
            # two services would number and caption the same streams
            self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._database.executescript(_SCHEMA)
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute("COMMIT")
        except (OSError, sqlite3.Error) as error:
            raise OptionsError(
                f"the database {path.name} cannot be opened: {error}; "
                "choose another file, or end the service that uses it"
            ) from error

    def add(self, stream: StoredStream) -> None:
        """Add a stream."""
        row = (stream.id, stream.owner, json.dumps(stream.request), stream.created, stream.ended)
        self._write("INSERT INTO streams VALUES (?, ?, ?, ?, ?)", row)

    def end(self, stream: str, state: str) -> None:
        """Record that a stream has ended for good."""
        self._write("UPDATE streams SET ended = ? WHERE id = ?", (state, stream))

    def delete(self, stream: str) -> None:
        """Delete a stream and its events."""
        self._write("DELETE FROM streams WHERE id = ?", (stream,))
        self._write("DELETE FROM events WHERE stream = ?", (stream,))

    def streams(self) -> list[StoredStream]:
        """Return all streams, the oldest first."""
        rows = self._database.execute("SELECT id, owner, request, created, ended FROM streams ORDER BY created, id")
        return [StoredStream(row[0], row[1], json.loads(row[2]), row[3], row[4]) for row in rows]

    def add_event(self, stream: str, data: Mapping[str, Any]) -> int:
        """Add an event and return its number; those beyond the number kept are deleted."""
        number = self._write("INSERT INTO events (stream, data) VALUES (?, ?)", (stream, json.dumps(data)))
        oldest = "SELECT id FROM events WHERE stream = ? ORDER BY id DESC LIMIT 1 OFFSET ?"
        self._write(f"DELETE FROM events WHERE stream = ? AND id <= ({oldest})", (stream, stream, self._max_events))
        return number

    def events(self, stream: str, after: int, count: int) -> list[tuple[int, str]]:
        """Return the numbers and JSON documents of the next events of a stream."""
        query = "SELECT id, data FROM events WHERE stream = ? AND id > ? ORDER BY id LIMIT ?"
        return self._database.execute(query, (stream, after, count)).fetchall()

    def last_event(self, stream: str) -> int:
        """Return the number of the newest event of a stream, 0 if there is none."""
        query = "SELECT coalesce(max(id), 0) FROM events WHERE stream = ?"
        return int(self._database.execute(query, (stream,)).fetchone()[0])

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _write(self, statement: str, values: tuple[Any, ...]) -> int:
        try:
            return self._database.execute(statement, values).lastrowid or 0
        except sqlite3.OperationalError as error:  # the disk is full, or the file is gone
            raise OverloadedError(f"the database cannot be written: {error}") from error
