"""Captions of segments by any server with an OpenAI-compatible ``/v1/chat/completions``.

The consumer of a live stream gets the newest segment, so a model that is slower than the stream always describes the
newest one, and :attr:`Caption.dropped_segments` counts those that it missed.
"""

from __future__ import annotations

import asyncio
import base64
import io
import os
import random
import string
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from telecine.errors import BackendUnavailable, OptionsError
from telecine.frames import Frames
from telecine.live.segments import Segment
from telecine.source.urls import printable, url_name
from telecine.validation import Option, check_int

__all__ = ["DEFAULT_PROMPT", "Caption", "Captioner", "FrameForm", "encode_jpegs"]

FrameForm: TypeAlias = Literal["video", "images"]
"""Form of the frames in a request: one ``video_url`` in vLLM's ``video/jpeg`` form, or one ``image_url`` per frame."""

DEFAULT_PROMPT = "Describe in one or two sentences what happens in this video."

_VIDEO_FIELDS = ("fps", "frames_indices", "total_num_frames", "duration", "do_sample_frames")
"""Fields of ``Frames.metadata()`` that vLLM takes for ``video/jpeg``."""
_RETRIED = (408, 409, 429)
"""HTTP statuses, beside those from 500 on, after which another attempt may succeed."""
_MIN_BACKOFF_SECONDS = 0.5
_MAX_PREVIOUS_CHARACTERS = 2000
"""Characters of the previous caption that a prompt contains; a model that repeats itself must not fill its context."""


@dataclass(frozen=True)
class Caption:
    """The answer of a model for one segment."""

    text: str
    """The answer; as far as it was received if there is an error."""
    model: str
    sequence: int
    """Number of the segment."""
    start: float
    """Stream time of the segment's first frame, seconds."""
    end: float
    """Stream time of the segment's last frame, seconds."""
    wall_start: float
    """Wall-clock time of ``start``, seconds since 1970 (UTC)."""
    wall_end: float
    """Wall-clock time of ``end``."""
    latency: float
    """Seconds from the first attempt to the end of the answer, with encoding and further attempts."""
    first_token_latency: float | None = None
    """Seconds from the first attempt to the first text; None if there was none."""
    prompt_tokens: int | None = None
    """Tokens of the prompt, with those of the frames; None if the server does not say."""
    completion_tokens: int | None = None
    finish_reason: str | None = None
    """Reason why the answer ended: "stop", or "length" if it was cut at ``max_tokens``."""
    attempts: int = 1
    dropped_segments: int = 0
    """Segments that got no caption since the last one, because the model was slow."""
    error: str | None = None
    """Reason why there is no complete answer; None if there is one."""


class _Answer:
    """An answer as it arrives."""

    def __init__(self) -> None:
        self.text = ""
        self.first_token: float | None = None
        self.finish_reason: str | None = None
        self.usage: Any = None


class Captioner:
    """Asks a model about segments, one at a time.

    Args:
        url: URL of the server, as ``http://localhost:8000/v1``.
        model: name of the model there.
        prompt: template of the prompt. ``$previous`` stands for the previous caption, ``$start`` and ``$end`` for the
            stream times in seconds, ``$time`` for the UTC time of the last frame, ``$frames`` for the number of frames.
        frames_as: "video" for vLLM, which must run with ``--trust-request-mm-kwargs`` to take the true times of the
            frames; "images" for servers that only take images.
        api_key: key for the server; ``OPENAI_API_KEY`` when omitted.
        max_tokens: length of an answer at most.
        timeout: seconds for a caption with all its attempts.
        retries: attempts after the first one, if the server is overloaded, fails or cannot be reached.
        quality: JPEG quality of the frames.

    Raises:
        OptionsError: An option is wrong.
        BackendUnavailable: The library ``openai`` is not installed.
    """

    def __init__(
        self,
        url: str,
        model: str,
        prompt: str = DEFAULT_PROMPT,
        *,
        frames_as: FrameForm = "video",
        api_key: str | None = None,
        max_tokens: int = 256,
        timeout: float = 60,
        retries: int = 2,
        quality: int = 85,
    ) -> None:
        self._base_url = _base_url(url)
        self._model, self._prompt = (
            Option(str).check("model", model),
            string.Template(Option(str).check("prompt", prompt)),
        )
        self._frames_as = Option(str, choices=("video", "images")).check("frames_as", frames_as)
        self._max_tokens = check_int("max_tokens", max_tokens, 1)
        self._timeout = Option(float, low=0.01, high=86_400).check("timeout", timeout)
        self._retries = check_int("retries", retries, 0, 100)
        self._quality = check_int("quality", quality, 1, 95)
        try:
            import openai
        except ImportError as error:
            raise BackendUnavailable("captions need openai: pip install 'telecine[live]'") from error
        # the client refuses to start without a key, and servers of one's own have none
        self._api_key = api_key or os.environ.get("OPENAI_API_KEY") or "EMPTY"
        self._client = openai.AsyncOpenAI(
            base_url=self._base_url, api_key=self._api_key, timeout=self._timeout, max_retries=0
        )

    async def caption(
        self, segment: Segment, previous: str = "", on_text: Callable[[str], object] | None = None
    ) -> Caption:
        """Return the model's answer for a segment. An outage of the server is the ``error`` of the caption.

        Args:
            segment: the segment.
            previous: the previous caption, for ``$previous`` in the prompt.
            on_text: called with the text so far, while it arrives.
        """
        started = time.monotonic()
        answer, attempts, error = _Answer(), 0, None
        try:
            async with asyncio.timeout(self._timeout):
                request = await asyncio.to_thread(self._request, segment, previous)
                while True:
                    answer, attempts = _Answer(), attempts + 1
                    error, may_retry = await self._attempt(request, answer, on_text)
                    if error is None or not may_retry or attempts > self._retries:
                        break
                    # random, so that many streams do not ask a restarted server at the same moment
                    await asyncio.sleep(_MIN_BACKOFF_SECONDS * 2 ** (attempts - 1) * random.uniform(0.5, 1))
        except TimeoutError:
            error = f"no complete answer within {self._timeout:g} s" + (f"; before that: {error}" if error else "")
        return Caption(
            text=answer.text.strip(),
            model=self._model,
            sequence=segment.sequence,
            start=segment.start,
            end=segment.end,
            wall_start=segment.wall_start,
            wall_end=segment.wall_end,
            latency=time.monotonic() - started,
            first_token_latency=None if answer.first_token is None else answer.first_token - started,
            prompt_tokens=getattr(answer.usage, "prompt_tokens", None),
            completion_tokens=getattr(answer.usage, "completion_tokens", None),
            finish_reason=answer.finish_reason,
            attempts=attempts,
            dropped_segments=segment.dropped_segments,
            error=error,
        )

    async def watch(self, stream: AsyncIterator[Segment]) -> AsyncIterator[tuple[Segment, Caption]]:
        """Yield each segment that the model has time for, with its caption."""
        previous = ""
        async for segment in stream:
            caption = await self.caption(segment, previous)
            previous = caption.text or previous
            yield segment, caption

    async def close(self) -> None:
        """Close the connections to the server."""
        await self._client.close()

    async def _attempt(
        self, request: dict[str, Any], answer: _Answer, on_text: Callable[[str], object] | None
    ) -> tuple[str | None, bool]:
        """Fill the answer. Returns (the reason why it is not complete or None, True if another attempt may help)."""
        import openai

        try:
            async with await self._client.chat.completions.create(**request) as chunks:
                async for chunk in chunks:
                    answer.usage = chunk.usage or answer.usage
                    for choice in chunk.choices:
                        answer.finish_reason = choice.finish_reason or answer.finish_reason
                        if choice.delta.content:
                            answer.first_token = answer.first_token or time.monotonic()
                            answer.text += choice.delta.content
                            if on_text is not None:
                                on_text(answer.text)
        except openai.APIStatusError as error:
            code = error.status_code
            return f"{self._name} answered with HTTP {code}: {self._clean(error)}", code in _RETRIED or code >= 500
        except Exception as error:  # of the client, its HTTP library, or a malformed answer
            return f"{self._name}: {self._clean(error) or type(error).__name__}", True
        if answer.finish_reason is None:  # a proxy that ends the connection in the middle
            return f"{self._name} ended the answer before it was complete", True
        return (None, False) if answer.text.strip() else (f"{self._name} answered without text", False)

    @property
    def _name(self) -> str:
        return url_name(self._base_url)

    def _clean(self, error: Exception) -> str:
        """Return the message of an error without the key and without what a URL may contain."""
        return printable(str(error).replace(self._api_key, "…").replace(self._base_url, self._name), 200)

    def _request(self, segment: Segment, previous: str) -> dict[str, Any]:
        """Return the arguments of the request."""
        frames = segment.frames
        prompt = self._prompt.safe_substitute(
            previous=previous[-_MAX_PREVIOUS_CHARACTERS:] or "none",
            start=f"{segment.start:.1f}",
            end=f"{segment.end:.1f}",
            time=datetime.fromtimestamp(segment.wall_end, UTC).isoformat(timespec="seconds"),
            frames=len(frames),
        )
        pictures = [base64.b64encode(jpeg).decode() for jpeg in encode_jpegs(frames, self._quality)]
        extra: dict[str, Any] = {}
        if self._frames_as == "video":
            parts = [{"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{','.join(pictures)}"}}]
            metadata = frames.metadata()
            extra = {"media_io_kwargs": {"video": {field: metadata[field] for field in _VIDEO_FIELDS}}}
        else:
            parts = [
                {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{picture}"}} for picture in pictures
            ]
        return {
            "model": self._model,
            "messages": [{"role": "user", "content": [*parts, {"type": "text", "text": prompt}]}],
            "max_tokens": self._max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "extra_body": extra,
        }


def encode_jpegs(frames: Frames, quality: int = 85) -> list[bytes]:
    """Return each frame as a JPEG file."""
    encoded = []
    for frame in frames:
        file = io.BytesIO()
        frame.pil().save(file, "JPEG", quality=quality)
        encoded.append(file.getvalue())
    return encoded


def _base_url(url: str) -> str:
    """Return the URL up to ``/v1``; without a path, that is added. Raises OptionsError."""
    text = Option(str).check("url", url).strip()
    try:
        parts = urlsplit(text)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_valid = False
    if not is_valid:
        raise OptionsError("the URL of the caption server is not http(s)://host:port/v1; give the URL of its API")
    text = text.rstrip("/").removesuffix("/chat/completions")
    return text if urlsplit(text).path else f"{text}/v1"
