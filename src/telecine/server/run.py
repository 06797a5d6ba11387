"""Runs the service in uvicorn until it is told to stop."""

from __future__ import annotations

from typing import Any

from telecine.errors import BackendUnavailable, OptionsError
from telecine.live.captions import Captioner
from telecine.server.app import create_app
from telecine.server.config import ServerConfig

__all__ = ["make_server", "serve"]

_SHUTDOWN_SECONDS = 10
"""Seconds that requests have to end after SIGTERM."""


def make_server(config: ServerConfig) -> Any:
    """Return the service as a ``uvicorn.Server``. Arguments and errors as for :func:`serve`."""
    try:
        import uvicorn
    except ImportError as error:
        raise BackendUnavailable("the service needs uvicorn: pip install 'telecine[server]'") from error
    if config.caption_url is not None:
        # refuse wrong options now, not with the first stream
        Captioner(config.caption_url, config.model, config.prompt, frames_as=config.frames_as)
    app = create_app(config)

    class Server(uvicorn.Server):
        async def shutdown(self, *arguments: Any, **options: Any) -> None:
            # before uvicorn waits for open responses: event streams end only with their streams
            await app.state.streams.stop()
            await super().shutdown(*arguments, **options)

    settings = uvicorn.Config(
        app,
        config.host,
        config.port,
        log_level="warning",
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        # anybody can send the header Forwarded
        proxy_headers=False,
        server_header=False,
    )
    return Server(settings)


def serve(config: ServerConfig) -> None:
    """Run the service until SIGTERM or SIGINT.

    Raises:
        BackendUnavailable: A library is not installed.
        OptionsError: An option is wrong, the address is in use, or the database cannot be opened.
    """
    server = make_server(config)
    try:
        server.run()
    except SystemExit as end:  # uvicorn has logged the reason
        raise OptionsError(f"the service cannot listen on {config.host}:{config.port}; choose another --port") from end
