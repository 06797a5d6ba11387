"""The media connector ``telecine``: maps local files instead of reading them, and fetches under telecine's limits.

A host that ``--allowed-media-domains`` lists may be in a private network; no other host may. Media other than videos,
and lists of JPEG pictures (``data:video/jpeg``), are left to vLLM.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from telecine.deadline import Deadline
from telecine.errors import BackendUnavailable, SourceError
from telecine.limits import Limits
from telecine.source.http import fetch, is_public, resolve
from telecine.source.source import open_source

__all__ = ["make_connector"]

_NEEDS_BYTES = frozenset({"nemotron_vl"})
"""Loaders that pass the encoded video on to code that expects ``bytes``."""


def make_connector(base: Any) -> Any:
    """Return the subclass of vLLM's ``MediaConnector`` for its registry."""
    from vllm.multimodal.media.connector import global_thread_pool

    class TelecineMediaConnector(base):  # type: ignore[misc]  # vLLM's class is known at run time only
        """vLLM's connector, with videos from files and from the network loaded by telecine."""

        def load_from_url(self, url: str, media_io: Any, *, fetch_timeout: int | None = None) -> Any:
            if not _is_http_video(url, media_io):
                return super().load_from_url(url, media_io, fetch_timeout=fetch_timeout)
            cached = self._get_cached_bytes(url)
            return media_io.load_bytes(self._fetch(url, fetch_timeout) if cached is None else cached)

        async def load_from_url_async(self, url: str, media_io: Any, *, fetch_timeout: int | None = None) -> Any:
            if not _is_http_video(url, media_io):
                return await super().load_from_url_async(url, media_io, fetch_timeout=fetch_timeout)
            loop = asyncio.get_running_loop()
            data = await loop.run_in_executor(global_thread_pool, self._get_cached_bytes, url)
            if data is None:
                # a slow server must not hold one of the few threads that decode
                data = await asyncio.to_thread(self._fetch, url, fetch_timeout)
            return await loop.run_in_executor(global_thread_pool, media_io.load_bytes, data)

        def _load_file_url(self, url_spec: Any, media_io: Any) -> Any:
            # vLLM decides if the file may be read, and then calls load_file
            mapped = SimpleNamespace(load_file=functools.partial(_load_mapped_file, media_io))
            accepts = _is_video(media_io) and _accepts_memoryview(media_io)
            return super()._load_file_url(url_spec, mapped if accepts else media_io)

        def _fetch(self, url: str, fetch_timeout: int | None) -> bytes:
            from vllm.exceptions import VLLMUnprocessableEntityError

            address = _parse_address(url)
            self._assert_url_in_allowed_media_domains(address)
            try:
                limits = _limits()
                if self.allowed_media_domains and _is_private(address):
                    # the host is listed; the target of a redirect may not be
                    limits = replace(limits, allow_private_hosts=True, max_redirects=0)
                data = b"".join(self._download(url, limits, Deadline(fetch_timeout)))
            except ValueError as error:  # telecine's errors, and that of vLLM's download budget
                raise VLLMUnprocessableEntityError(
                    f"Failed to fetch media from URL: {error}", parameter="video_url"
                ) from error
            self._put_cached_bytes(url, data)
            return data

        def _download(self, url: str, limits: Limits, deadline: Deadline) -> Iterator[bytes]:
            budget = getattr(self, "download_budget", None)
            with contextlib.closing(fetch(url, limits, deadline)) as chunks:
                for chunk in chunks:
                    if budget is not None:
                        budget.charge(len(chunk))
                    yield chunk

    return TelecineMediaConnector


def _load_mapped_file(media_io: Any, filepath: Any) -> Any:
    """Do the same as ``media_io.load_file``, but map the file instead of reading it."""
    # not closed here: vLLM keeps a view of the bytes to hash them, and the mapping ends with the last view
    return media_io.load_bytes(open_source(filepath, Limits(), Deadline()).data)


def _is_video(media_io: Any) -> bool:
    from vllm.multimodal.media import VideoMediaIO

    return isinstance(media_io, VideoMediaIO)


def _is_http_video(url: str, media_io: Any) -> bool:
    return _is_video(media_io) and url.partition(":")[0].lower().startswith("http")


def _accepts_memoryview(media_io: Any) -> bool:
    """Return True if telecine decodes. Other codecs need ``bytes``."""
    from vllm.multimodal.video import VIDEO_LOADER_REGISTRY

    classes, loader = VIDEO_LOADER_REGISTRY.name2class, type(media_io.video_loader)
    if any(classes.get(name) is loader for name in _NEEDS_BYTES):
        return False
    return media_io.kwargs.get("backend") == "telecine" or loader is classes.get("telecine")


def _limits() -> Limits:
    from vllm import envs

    megabytes = envs.VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB
    limits = Limits() if envs.VLLM_MEDIA_URL_ALLOW_REDIRECTS else Limits(max_redirects=0)
    return replace(limits, max_fetch_bytes=int(megabytes * (1 << 20))) if megabytes > 0 else limits


def _parse_address(url: str) -> SimpleNamespace:
    """Return hostname and port of a URL, by the parser of the fetch: another parser could find another host."""
    try:
        import httpx
    except ImportError as error:
        raise BackendUnavailable("fetching URLs needs httpx: pip install 'telecine[vllm]'") from error
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise SourceError("the URL of the video is not valid") from error
    return SimpleNamespace(hostname=parsed.host, port=parsed.port)


def _is_private(address: SimpleNamespace) -> bool:
    try:
        return not all(map(is_public, resolve(address.hostname, address.port or 0)))
    except (OSError, ValueError):
        return False  # the fetch reports the error
