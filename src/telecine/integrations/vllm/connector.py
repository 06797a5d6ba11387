"""The media connector ``telecine``: maps local files instead of reading them, and fetches under telecine's limits.

A host that ``--allowed-media-domains`` lists may be in a private network; any other may not.

What is not a video, and lists of JPEG pictures (``data:video/jpeg``), go the way they always went.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import replace
from typing import Any, NamedTuple

from telecine.deadline import Deadline
from telecine.errors import BackendUnavailable, SourceError
from telecine.limits import Limits
from telecine.source.http import fetch, is_public
from telecine.source.source import Source, open_source

__all__ = ["make_connector"]

_KEEPS_THE_BYTES = frozenset({"nemotron_vl"})
"""Loaders that hand the encoded video on; a view of a file is not what its receivers expect."""


def make_connector(base: Any) -> Any:
    """The class that vLLM's registry holds.

    Args:
        base: vLLM's ``MediaConnector``.
    """
    from vllm.multimodal.media.connector import global_thread_pool

    class TelecineMediaConnector(base):  # type: ignore[misc]  # vLLM's class is known at run time only
        """As vLLM's own, but for videos from files and from the network."""

        def load_from_url(self, url: str, media_io: Any, *, fetch_timeout: int | None = None) -> Any:
            if not _is_video(media_io) or not _scheme(url).startswith("http"):
                return super().load_from_url(url, media_io, fetch_timeout=fetch_timeout)
            cached = self._get_cached_bytes(url)
            data = cached if cached is not None else self._fetched(url, media_io, fetch_timeout)
            return media_io.load_bytes(data)

        async def load_from_url_async(self, url: str, media_io: Any, *, fetch_timeout: int | None = None) -> Any:
            if not _is_video(media_io) or not _scheme(url).startswith("http"):
                return await super().load_from_url_async(url, media_io, fetch_timeout=fetch_timeout)
            loop = asyncio.get_running_loop()
            data = await loop.run_in_executor(global_thread_pool, self._get_cached_bytes, url)
            if data is None:
                # a slow server must not hold one of the few threads that decode
                data = await asyncio.to_thread(self._fetched, url, media_io, fetch_timeout)
            return await loop.run_in_executor(global_thread_pool, media_io.load_bytes, data)

        def _load_file_url(self, url_spec: Any, media_io: Any) -> Any:
            if not _is_video(media_io) or not _takes_views(media_io):
                return super()._load_file_url(url_spec, media_io)
            # vLLM decides whether the file may be read, and asks for it by this method
            return super()._load_file_url(url_spec, _Mapped(media_io))

        def _fetched(self, url: str, media_io: Any, fetch_timeout: int | None) -> bytes:
            from vllm.exceptions import VLLMUnprocessableEntityError

            address = _address(url)
            self._assert_url_in_allowed_media_domains(address)
            budget = getattr(self, "download_budget", None)
            try:
                limits = _limits()
                if self.allowed_media_domains and _is_private(address):
                    # listed by name; a redirect could lead to one that is not
                    limits = replace(limits, allow_private_hosts=True, max_redirects=0)
                data = _download(url, limits, Deadline(fetch_timeout), budget)
            except ValueError as error:  # ours, and that of vLLM's budget for downloads
                raise VLLMUnprocessableEntityError(
                    f"Failed to fetch media from URL: {error}", parameter="video_url"
                ) from error
            self._put_cached_bytes(url, data)
            return data

    return TelecineMediaConnector


class _Mapped:
    """Stands in for a ``VideoMediaIO`` where vLLM has it read a file: the file is mapped."""

    def __init__(self, media_io: Any) -> None:
        self._media_io = media_io

    def load_file(self, filepath: Any) -> Any:
        source: Source = open_source(filepath, Limits(), Deadline())
        # not closed here: vLLM keeps a view of the bytes to hash them, and the mapping goes with the last view
        return self._media_io.load_bytes(source.data)


def _is_video(media_io: Any) -> bool:
    from vllm.multimodal.media import VideoMediaIO

    return isinstance(media_io, VideoMediaIO)


def _takes_views(media_io: Any) -> bool:
    """Whether what decodes can read from mapped memory: telecine can, others want ``bytes``."""
    from vllm.multimodal.video import VIDEO_LOADER_REGISTRY

    loader = type(media_io.video_loader)
    if any(VIDEO_LOADER_REGISTRY.name2class.get(name) is loader for name in _KEEPS_THE_BYTES):
        return False
    return media_io.kwargs.get("backend") == "telecine" or loader is VIDEO_LOADER_REGISTRY.name2class.get("telecine")


def _scheme(url: str) -> str:
    return url.partition(":")[0].lower()


def _limits() -> Limits:
    from vllm import envs

    megabytes = envs.VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB
    limits = Limits(max_redirects=Limits.max_redirects if envs.VLLM_MEDIA_URL_ALLOW_REDIRECTS else 0)
    return replace(limits, max_fetch_bytes=int(megabytes * (1 << 20))) if megabytes > 0 else limits


class _Address(NamedTuple):
    hostname: str
    port: int | None


def _address(url: str) -> _Address:
    """Where a URL leads, by the parser that fetching uses: two parsers could disagree about the host."""
    try:
        import httpx
    except ImportError as error:
        raise BackendUnavailable("fetching URLs needs httpx: pip install 'telecine[vllm]'") from error
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise SourceError("the URL of the video is not valid") from error
    return _Address(parsed.host, parsed.port)


def _is_private(address: _Address) -> bool:
    try:
        found = socket.getaddrinfo(address.hostname, address.port, type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return False  # fetching it says what is wrong
    return not all(is_public(str(entry[4][0])) for entry in found)


def _download(url: str, limits: Limits, deadline: Deadline, budget: Any) -> bytes:
    pieces = []
    with contextlib.closing(fetch(url, limits, deadline)) as chunks:
        for chunk in chunks:
            if budget is not None:
                budget.charge(len(chunk))
            pieces.append(chunk)
    return b"".join(pieces)
