"""The command ``telecine serve``: the service for captions and decoding."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from telecine.cli.live import add_caption_arguments
from telecine.server.config import ServerConfig, read_tokens
from telecine.server.run import serve

__all__ = ["add_serve_arguments", "run_service"]


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``telecine serve``."""
    add = parser.add_argument
    add(
        "--host",
        default=ServerConfig.host,
        metavar="ADDRESS",
        help="address to listen on; by default this machine's own",
    )
    add("--port", type=int, default=ServerConfig.port, metavar="N")
    add("--database", type=Path, default=ServerConfig.database, metavar="FILE", help="streams and events (SQLite)")
    add("--token-file", type=Path, metavar="FILE", help="lines OWNER TOKEN; needed to listen for other machines")
    add("--allow-host", action="append", metavar="HOST", help="host that streams may be from; may be repeated")
    add("--allow-private", action="store_true", help="allow streams from hosts of a private network")
    add("--files", type=Path, metavar="DIR", help="folder whose files may be played as streams")
    add("--max-streams", type=int, default=ServerConfig.max_streams, metavar="N", help="streams of one owner")
    add_caption_arguments(parser)


def run_service(arguments: argparse.Namespace) -> Iterable[str]:
    """Run the service until it is told to stop."""
    serve(
        ServerConfig(
            host=arguments.host,
            port=arguments.port,
            database=arguments.database,
            tokens={} if arguments.token_file is None else read_tokens(arguments.token_file),
            allowed_hosts=None if arguments.allow_host is None else frozenset(arguments.allow_host),
            allow_private_hosts=arguments.allow_private,
            files=arguments.files,
            caption_url=arguments.caption,
            model=arguments.model,
            prompt=arguments.prompt,
            frames_as=arguments.frames_as,
            max_streams=arguments.max_streams,
        )
    )
    return ()
