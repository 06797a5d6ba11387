"""The routes of the service, as a FastAPI application.

Handlers are defined inside functions and their annotations are evaluated at once (no ``from __future__ import
annotations``): FastAPI reads them, and it is imported only here, since it is optional.
"""

import io
import json
import logging
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

import telecine
from telecine.errors import BackendUnavailable, LimitError, OverloadedError, TelecineError
from telecine.frames import Frames
from telecine.live.captions import encode_jpegs
from telecine.metrics import METRICS
from telecine.pool import Pool
from telecine.server.config import ServerConfig, is_loopback
from telecine.server.metrics import StreamCollector
from telecine.server.streams import Stream, Streams

__all__ = ["create_app"]

_log = logging.getLogger("telecine.server")
_PAGE = Path(__file__).with_name("page.html")
_MAX_FRAMES = 256
"""Frames of one segment, and of one request for frames."""
_MAX_JSON_BYTES = 1 << 20
_ERROR_RESPONSE = {
    "description": "An error in the form of OpenAI's API.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["error"],
                "properties": {
                    "error": {
                        "type": "object",
                        "required": ["message", "type", "code"],
                        "properties": {
                            "message": {"type": "string"},
                            "type": {"type": "string", "description": "Class of the error in telecine.errors."},
                            "code": {"type": "integer", "description": "HTTP status."},
                        },
                    }
                },
            }
        }
    },
}
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src blob:; connect-src 'self'"
"""Content security policy of the page: captions are text of a model, and a stream may contain instructions for it."""


def create_app(config: ServerConfig) -> Any:
    """Return the application. Its streams start and end with its lifespan; ``app.state.streams`` has them.

    Raises:
        BackendUnavailable: FastAPI or prometheus-client is not installed.
        OptionsError: The database cannot be opened.
    """
    try:
        import prometheus_client
        from fastapi import FastAPI
    except ImportError as error:
        raise BackendUnavailable("the service needs FastAPI: pip install 'telecine[server]'") from error
    streams, registry = Streams(config), prometheus_client.CollectorRegistry()
    METRICS.register(registry)
    registry.register(StreamCollector(streams))

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        streams.resume()
        try:
            yield
        finally:
            await streams.stop()
            streams.close()

    app = FastAPI(
        title="telecine",
        version=telecine.__version__,
        lifespan=lifespan,
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        responses=dict.fromkeys(("4XX", "5XX"), _ERROR_RESPONSE),
    )
    app.state.streams = streams
    _add_error_handlers(app)
    owner_of = _make_owner_of(config)
    _add_general_routes(app, owner_of, registry)
    _add_list_routes(app, owner_of, streams)
    _add_stream_routes(app, owner_of, streams)
    _add_frames_route(app, owner_of, config)
    return app


def _add_error_handlers(app: Any) -> None:
    """Answer errors as OpenAI's API does: ``{"error": {"message", "type", "code"}}``."""
    from fastapi import Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse
    from starlette.exceptions import HTTPException

    def answer(status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
        own = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "5"}}.get(status, {})
        content = {"error": {"message": message, "type": kind, "code": status}}
        return JSONResponse(content, status, {**own, **(headers or {})})

    async def on_telecine(request: Request, error: TelecineError) -> JSONResponse:
        return answer(error.http_status, type(error).__name__, str(error))

    async def on_http(request: Request, error: HTTPException) -> JSONResponse:
        return answer(error.status_code, "OptionsError", str(error.detail), error.headers)

    async def on_invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        # without the values given: they may contain credentials
        found = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5]]
        return answer(422, "OptionsError", "; ".join(found))

    app.add_exception_handler(TelecineError, on_telecine)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_invalid)


def _make_owner_of(config: ServerConfig) -> Any:
    """Return the dependency that checks the bearer token and gives its owner."""
    from fastapi import Depends, HTTPException, Request
    from fastapi.security import HTTPBearer

    scheme = HTTPBearer(auto_error=False, description="A token of the service; none on the loopback interface.")

    def owner_of(request: Request, credentials: Annotated[Any, Depends(scheme)]) -> str:
        if not config.tokens and not is_loopback(request.url.hostname or ""):
            # a web page whose host name was pointed at this machine (DNS rebinding)
            raise HTTPException(403, "the host of the request is not this machine; use http://localhost")
        owner = config.owner_of(request.headers.get("authorization"))
        if owner is None:
            raise HTTPException(401, "there is no valid token; send the header Authorization: Bearer TOKEN")
        return owner

    return owner_of


def _add_general_routes(app: Any, owner_of: Any, registry: Any) -> None:
    import prometheus_client
    from fastapi import Depends
    from fastapi.responses import HTMLResponse, Response

    async def page() -> HTMLResponse:
        """Return the page that shows the streams."""
        return HTMLResponse(_PAGE.read_text(), headers={"content-security-policy": _POLICY})

    async def health() -> dict[str, str]:
        """Return the state of the service."""
        return {"status": "stopping" if app.state.streams.is_stopping else "ok"}

    async def metrics(owner: Annotated[str, Depends(owner_of)]) -> Response:
        """Return the metrics for Prometheus."""
        return Response(prometheus_client.generate_latest(registry), media_type=prometheus_client.CONTENT_TYPE_LATEST)

    app.add_api_route("/", page, response_class=HTMLResponse, include_in_schema=False)
    app.add_api_route("/health", health)
    app.add_api_route("/metrics", metrics, response_class=Response)


def _add_list_routes(app: Any, owner_of: Any, streams: Streams) -> None:
    from fastapi import Depends, Request
    from fastapi.exceptions import RequestValidationError
    from pydantic import BaseModel, ConfigDict, Field, ValidationError

    class StreamRequest(BaseModel):
        """A stream to watch."""

        model_config = ConfigDict(extra="forbid")
        uri: str = Field(min_length=1, max_length=2048, description="URI of the stream, with its credentials.")
        every: float = Field(10.0, ge=0.5, le=3600, description="Seconds from one caption to the next.")
        frames: int = Field(8, ge=1, le=_MAX_FRAMES, description="Frames of a segment.")
        prompt: str = Field("", max_length=8000, description="Template of the prompt; the service's if empty.")
        model: str = Field("", max_length=200, description="Model; the service's if empty.")

    owner_type = Annotated[str, Depends(owner_of)]

    async def add(request: Request, owner: owner_type) -> dict[str, Any]:
        """Watch a stream."""
        text = await _read_body(request, _MAX_JSON_BYTES)
        try:
            return streams.add(owner, StreamRequest.model_validate_json(text).model_dump()).describe()
        except ValidationError as error:
            raise RequestValidationError(error.errors()) from None

    async def list_streams(owner: owner_type) -> dict[str, Any]:
        """List the streams of the token."""
        return {"object": "list", "data": [stream.describe() for stream in streams.of_owner(owner)]}

    # FastAPI would read a body of any size, and before it checks the token
    schema = {"application/json": {"schema": StreamRequest.model_json_schema()}}
    extra = {"requestBody": {"required": True, "content": schema}}
    app.add_api_route("/v1/streams", add, methods=["POST"], status_code=201, openapi_extra=extra)
    app.add_api_route("/v1/streams", list_streams)


def _add_stream_routes(app: Any, owner_of: Any, streams: Streams) -> None:
    from fastapi import Depends, Header, HTTPException, Path
    from fastapi.responses import Response, StreamingResponse

    def find(owner: Annotated[str, Depends(owner_of)], id: Annotated[str, Path(max_length=64)]) -> Stream:
        if (stream := streams.get(owner, id)) is None:
            raise HTTPException(404, "there is no such stream; GET /v1/streams lists them")
        return stream

    stream_type = Annotated[Stream, Depends(find)]

    async def show(stream: stream_type) -> dict[str, Any]:
        """Return the state of a stream."""
        return stream.describe()

    async def delete(stream: stream_type) -> Response:
        """Stop a stream, and delete it and its events."""
        streams.delete(stream)
        return Response(status_code=204)

    async def sheet(stream: stream_type) -> Response:
        """Return the contact sheet of the newest segment."""
        if stream.sheet is None:
            raise HTTPException(404, "there is no segment yet; try again after the first one")
        return Response(stream.sheet, media_type="image/jpeg", headers={"cache-control": "no-store"})

    async def events(
        stream: stream_type,
        last_event_id: Annotated[int | None, Header(ge=0, lt=1 << 63)] = None,
    ) -> StreamingResponse:
        """Return captions as server-sent events, each a ``chat.completion.chunk``; after Last-Event-ID if given."""
        body = streams.events(stream, last_event_id)
        first = await anext(body)  # a refusal has a status of its own

        async def whole() -> AsyncIterator[str]:
            try:
                yield first
                async for event in body:
                    yield event
            finally:
                await body.aclose()

        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(whole(), media_type="text/event-stream", headers=headers)

    app.add_api_route("/v1/streams/{id}", show)
    app.add_api_route("/v1/streams/{id}", delete, methods=["DELETE"], status_code=204, response_class=Response)
    app.add_api_route("/v1/streams/{id}/sheet.jpg", sheet, response_class=Response)
    app.add_api_route("/v1/streams/{id}/events", events, response_class=StreamingResponse)


def _add_frames_route(app: Any, owner_of: Any, config: ServerConfig) -> None:
    from fastapi import Depends, Query, Request
    from fastapi.concurrency import run_in_threadpool
    from fastapi.responses import Response

    running: Counter[str] = Counter()

    async def frames(
        request: Request,
        owner: Annotated[str, Depends(owner_of)],
        num_frames: Annotated[int, Query(ge=1, le=_MAX_FRAMES)] = 8,
        fps: Annotated[float | None, Query(ge=0.001, le=1000)] = None,
        start: Annotated[float | None, Query(ge=0)] = None,
        end: Annotated[float | None, Query(gt=0)] = None,
        size: Annotated[int | None, Query(ge=1, le=8192)] = None,
        format: Literal["jpeg", "npz"] = "jpeg",
    ) -> Response:
        """Decode frames of the video in the body: JSON with JPEG files in base64, or the arrays of an .npz file."""
        if running[owner] >= config.max_decodes:
            raise OverloadedError(f"{config.max_decodes} videos are being decoded, as many as allowed; try again later")
        running[owner] += 1
        try:
            body = await _read_body(request, config.max_body_bytes)
            found = await Pool.default().aload(
                body,
                num_frames=num_frames,
                fps=fps,
                start=start,
                end=end,
                size=size,
                limits=config.limits,
                timeout=config.decode_timeout,
                caller=owner,
            )
            write = _as_npz if format == "npz" else _as_json
            kind = "application/octet-stream" if format == "npz" else "application/json"
            return Response(await run_in_threadpool(write, found), media_type=kind)
        finally:
            running[owner] -= 1

    content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    extra = {"requestBody": {"required": True, "content": content}}
    app.add_api_route("/v1/frames", frames, methods=["POST"], response_class=Response, openapi_extra=extra)


async def _read_body(request: Any, max_bytes: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        if len(body) + len(part) > max_bytes:
            raise LimitError(f"the body has more than the {max_bytes} bytes allowed; send a smaller one")
        body += part
    return bytes(body)


def _as_json(frames: Frames) -> bytes:
    rows = [
        {"index": frame.index, "timestamp": frame.timestamp, "jpeg": b64encode(jpeg).decode()}
        for frame, jpeg in zip(frames, encode_jpegs(frames), strict=True)
    ]
    document = {"frames": rows, "metadata": frames.metadata(), "lost": frames.report.lost}
    return json.dumps(document).encode()


def _as_npz(frames: Frames) -> bytes:
    file = io.BytesIO()
    arrays: dict[str, Any] = {"frames": frames.numpy(), "indices": frames.indices, "timestamps": frames.timestamps}
    np.savez(file, **arrays, metadata=np.array(json.dumps(frames.metadata())))
    return file.getvalue()
