"""The streams of the service: captures, captions and events. All methods belong to one event loop."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from telecine.api import live
from telecine.errors import OptionsError, OverloadedError, SourceError, TelecineError
from telecine.live.captions import Caption, Captioner
from telecine.live.segments import Segment
from telecine.live.stream import LiveStream
from telecine.server.config import ServerConfig
from telecine.server.store import Store, StoredStream

__all__ = ["Stream", "Streams"]

_log = logging.getLogger("telecine.server")

_KEEPALIVE_SECONDS = 15.0
"""Seconds between comments on a silent event stream, so that proxies keep it and a lost client is noticed."""
_EVENTS_AT_ONCE = 50
_RESTART_SECONDS = 5.0
"""Seconds until a stream goes on whose event could not be stored."""
_SHEET_WIDTH = 960


class Stream:
    """A stream that is watched, or was."""

    def __init__(self, stored: StoredStream, source: LiveStream | None) -> None:
        self.stored, self.source = stored, source
        self.counts: Counter[str] = Counter()
        """Numbers since the service began: segments, captions, caption_errors, dropped_segments."""
        self.caption: dict[str, Any] | None = None
        """The last event."""
        self.sheet: bytes | None = None
        """Contact sheet of the last segment, JPEG."""
        self.age: float | None = None
        self.error: str | None = None
        self.task: asyncio.Task[None] | None = None
        self.changed = asyncio.Event()
        """Set at the next event and at the end; then replaced."""
        self.is_over = stored.ended is not None

    def notify(self) -> None:
        """Wake everybody who waits for the next event."""
        self.changed.set()
        self.changed = asyncio.Event()

    @property
    def state(self) -> str:
        """State of the connection, or "ended", "failed", "closed"."""
        return self.stored.ended or ("closed" if self.source is None else self.source.state)

    def describe(self) -> dict[str, Any]:
        """Return the stream for a client, without the credentials of its URI."""
        stored = self.stored
        return {
            "id": stored.id,
            "object": "stream",
            "created": int(stored.created),
            "uri": stored.request["name"],
            **{name: stored.request[name] for name in ("every", "frames", "prompt", "model")},
            "state": self.state,
            "error": self.error or (self.source.error if self.source else None),
            "fps": round(self.source.stats.fps, 3) if self.source else 0.0,
            "reconnects": self.source.stats.reconnects if self.source else 0,
            "age": self.age,
            **{name: self.counts[name] for name in ("segments", "captions", "caption_errors", "dropped_segments")},
            "last_event": self.caption,
        }


class Streams:
    """All streams of the service."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._store = Store(config.database, config.max_events)
        self._streams: dict[str, Stream] = {}
        self._clients: Counter[str] = Counter()
        self.is_stopping = False

    def resume(self) -> None:
        """Watch again what was watched when the service ended."""
        owners = set(self._config.tokens.values()) or {""}
        for stored in self._store.streams():
            if stored.owner not in owners:
                _log.warning("stream %s is not resumed: its owner has no token", stored.id)
                continue
            stream = self._streams[stored.id] = Stream(stored, None)
            if events := self._store.events(stored.id, self._store.last_event(stored.id) - 1, 1):
                stream.caption = json.loads(events[0][1]) | {"event": events[0][0]}
            if stored.ended is None:
                try:
                    self._start(stream)
                except TelecineError as error:  # the settings allow it no more
                    stream.error, stream.is_over = str(error), True

    def add(self, owner: str, request: dict[str, Any]) -> Stream:
        """Watch a stream: ``uri``, ``every``, ``frames``, ``prompt`` and ``model``. Raises TelecineError."""
        if self.is_stopping:
            raise OverloadedError("the service is shutting down; try again later")
        if len(self.of_owner(owner)) >= self._config.max_streams:
            raise OverloadedError(f"there are {self._config.max_streams} streams, as many as allowed; delete one")
        request["prompt"] = request["prompt"] or self._config.prompt
        request["model"] = request["model"] or self._config.model
        stream = Stream(StoredStream(secrets.token_hex(8), owner, request, time.time()), None)
        self._start(stream)
        try:
            self._store.add(stream.stored)
        except TelecineError:
            self._stop(stream)
            raise
        self._streams[stream.stored.id] = stream
        return stream

    def of_owner(self, owner: str) -> list[Stream]:
        """Return the streams of an owner, the oldest first."""
        return [stream for stream in self._streams.values() if stream.stored.owner == owner]

    def all(self) -> list[Stream]:
        """Return all streams."""
        return list(self._streams.values())

    def get(self, owner: str, number: str) -> Stream | None:
        """Return a stream of an owner; None if there is none, or it is another owner's."""
        stream = self._streams.get(number)
        return stream if stream is not None and stream.stored.owner == owner else None

    def delete(self, stream: Stream) -> None:
        """Stop a stream, and delete it and its events."""
        self._store.delete(stream.stored.id)
        del self._streams[stream.stored.id]
        self._stop(stream)

    async def events(self, stream: Stream, after: int | None) -> AsyncGenerator[str, None]:
        """Yield server-sent events as they come, those after a number first; by default only new ones.

        Each client reads the database at its own pace, so a slow one holds up nobody.
        """
        owner, number = stream.stored.owner, stream.stored.id
        if self._clients[owner] >= self._config.max_clients:
            raise OverloadedError(f"there are {self._config.max_clients} open event streams, as many as allowed")
        self._clients[owner] += 1
        try:
            last = self._store.last_event(number) if after is None else after
            yield ": connected\n\n"
            while True:
                changed, is_over = stream.changed, stream.is_over or self.is_stopping
                rows = self._store.events(number, last, _EVENTS_AT_ONCE)
                for last, data in rows:
                    yield f"id: {last}\ndata: {data}\n\n"
                if rows:
                    continue
                if is_over:
                    # without [DONE] a client connects again, and goes on after the restart
                    yield ": the service is restarting\n\n" if not stream.is_over else "data: [DONE]\n\n"
                    return
                try:
                    await asyncio.wait_for(changed.wait(), _KEEPALIVE_SECONDS)
                except TimeoutError:
                    yield ": keepalive\n\n"
        finally:
            self._clients[owner] -= 1

    async def stop(self) -> None:
        """Stop all streams; they are resumed when the service starts again."""
        self.is_stopping = True
        tasks = [stream.task for stream in self._streams.values() if stream.task is not None]
        for stream in self._streams.values():
            self._stop(stream, is_over=stream.is_over)
        await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """Close the database."""
        self._store.close()

    def _start(self, stream: Stream) -> None:
        request, config = stream.stored.request, self._config
        uri, hosts = request["uri"], config.stream_hosts
        if "://" not in uri:
            uri, hosts = _path_in(config.files, uri), None
        stream.source = live(
            uri, every=request["every"], frames=request["frames"], allowed_hosts=hosts, limits=config.limits
        )
        request["name"] = stream.source.name
        stream.task = asyncio.create_task(self._run(stream, stream.source))

    def _stop(self, stream: Stream, is_over: bool = True) -> None:
        stream.is_over = is_over
        if stream.task is not None:
            stream.task.cancel()
        stream.notify()

    async def _run(self, stream: Stream, source: LiveStream) -> None:
        request, config = stream.stored.request, self._config
        captioner = None
        state = "ended"
        try:
            async with source:
                if config.caption_url is not None:
                    captioner = Captioner(
                        config.caption_url, request["model"], request["prompt"], frames_as=config.frames_as
                    )
                previous = ""
                async for segment in source:
                    previous = await self._handle(stream, segment, captioner, previous)
        except TelecineError as error:
            stream.error, state = str(error), "failed"
        except Exception:
            _log.exception("stream %s failed", stream.stored.id)
            stream.error, state = "internal error; the log of the service has it", "failed"
        finally:
            if captioner is not None:
                await captioner.close()
        stream.stored.ended, stream.is_over = state, True
        stream.notify()
        try:
            self._store.end(stream.stored.id, state)
        except OverloadedError as error:  # a restart then plays the stream again
            _log.error("%s", error)

    async def _handle(self, stream: Stream, segment: Segment, captioner: Captioner | None, previous: str) -> str:
        """Make the event of a segment. Returns the caption for the next prompt."""
        stream.counts["segments"] += 1
        stream.counts["dropped_segments"] += segment.dropped_segments
        stream.age = round(segment.age, 3)
        stream.sheet = await asyncio.to_thread(_sheet, segment)
        caption = None
        if captioner is not None:
            caption = await captioner.caption(segment, previous)
            stream.counts["captions" if caption.error is None else "caption_errors"] += 1
        document = _chunk(stream.stored, segment, caption)
        while True:
            try:
                number = self._store.add_event(stream.stored.id, document)
                break
            except OverloadedError as error:
                _log.error("%s", error)
                await asyncio.sleep(_RESTART_SECONDS)
        stream.caption = document | {"event": number}
        stream.notify()
        return previous if caption is None else caption.text or previous


def _path_in(folder: Path | None, name: str) -> str:
    """Return the path of a file in a folder. Raises an error that does not tell which files there are elsewhere."""
    if folder is None:
        raise OptionsError("uri is not a URL; give one as rtsp://host/path")
    path = (folder / name).resolve() if "\0" not in name else folder
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise SourceError("uri is the path of no file in the folder of the service; give one relative to it, or a URL")
    return str(path)


def _sheet(segment: Segment) -> bytes:
    file = io.BytesIO()
    segment.frames.sheet(width=_SHEET_WIDTH).save(file, "JPEG", quality=80)
    return file.getvalue()


def _chunk(stored: StoredStream, segment: Segment, caption: Caption | None) -> dict[str, Any]:
    """Return the event of a segment: a ``chat.completion.chunk`` of OpenAI's API, with the facts in ``telecine``."""
    facts = {name: value for name, value in vars(segment).items() if name != "frames"}
    usage = None
    if caption is not None:
        facts["caption"] = asdict(caption)
        if caption.prompt_tokens is not None and caption.completion_tokens is not None:
            tokens = {"prompt_tokens": caption.prompt_tokens, "completion_tokens": caption.completion_tokens}
            usage = tokens | {"total_tokens": sum(tokens.values())}
    choice = {
        "index": 0,
        "delta": {"role": "assistant", "content": "" if caption is None else caption.text},
        "finish_reason": "stop" if caption is None else caption.finish_reason,
    }
    return {
        "id": f"{stored.id}-{secrets.token_hex(6)}",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": stored.request["model"],
        "choices": [choice],
        "usage": usage,
        "telecine": facts | {"num_frames": len(segment.frames)},
    }
