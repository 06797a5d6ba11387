"""Videos from base64, files and URLs in vLLM, with telecine's codec and connector."""

from __future__ import annotations

import asyncio
import base64
import io
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from PIL import Image

from support.clips import CLIPS

pytest.importorskip("vllm", reason="needs vLLM: scripts/test vllm")

from vllm.exceptions import VLLMUnprocessableEntityError
from vllm.multimodal.hasher import MultiModalHasher
from vllm.multimodal.media.connector import MEDIA_CONNECTOR_REGISTRY

from telecine.integrations.vllm import register

register()
CLIP = CLIPS["h264_pyramid.mp4"]
INDICES = [0, 8, 16, 25, 33, 42, 50, 59]
CODEC = {"video": {"backend": "telecine", "num_frames": 8}}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/moved.mp4":
            self.send_response(302)
            self.send_header("Location", "/clip.mp4")
            self.end_headers()
            return
        known = self.path.startswith("/clip.mp4")
        body = CLIP.bytes() if known else b"gone"
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def connector(name: str, **options: Any) -> Any:
    options = {"media_io_kwargs": CODEC, "allowed_local_media_path": str(CLIP.path().parent)} | options
    return MEDIA_CONNECTOR_REGISTRY.load(name, **options)


def as_data(content: bytes, kind: str = "video/mp4") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def check(loaded: Any) -> None:
    frames, metadata = loaded.media
    assert metadata["frames_indices"] == INDICES
    assert np.abs(frames.astype(int) - CLIP.reference().frames[INDICES]).max() <= 2
    assert bytes(loaded.original_bytes) == CLIP.bytes()


@pytest.mark.parametrize("name", ["http", "telecine"])
def test_connectors_load_base64_files_and_urls(name, server):
    one = connector(name, allowed_media_domains=["127.0.0.1"])
    for url in (as_data(CLIP.bytes()), CLIP.path().as_uri(), f"{server}/clip.mp4"):
        check(one.fetch_video(url))


@pytest.mark.parametrize("name", ["http", "telecine"])
def test_connectors_load_many_videos_at_once_in_vllms_loader_threads(name, server):
    one = connector(name, allowed_media_domains=["127.0.0.1"])
    urls = [as_data(CLIP.bytes()), CLIP.path().as_uri(), f"{server}/clip.mp4"] * 8

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(one.fetch_video_async(url) for url in urls))

    for loaded in asyncio.run(all_of_them()):
        check(loaded)


@pytest.mark.parametrize("name", ["http", "telecine"])
def test_a_models_own_class_is_kept_by_the_codec_and_replaced_by_the_loader(name):
    url = CLIP.path().as_uri()
    one = connector(name).fetch_video(url, video_processor="Qwen3VLVideoProcessor")
    assert one.media[1]["frames_indices"] == [0, 20, 39, 59]
    other = connector(name, media_io_kwargs={"video": {"video_backend": "telecine", "num_frames": 3}})
    assert other.fetch_video(url, video_processor="Qwen3VLVideoProcessor").media[1]["frames_indices"] == [0, 30, 59]


def test_the_environment_variable_alone_does_nothing_for_a_model_with_a_bound_class(monkeypatch):
    monkeypatch.setenv("VLLM_VIDEO_LOADER_BACKEND", "telecine")
    plain = connector("http", media_io_kwargs={})
    loaded = plain.fetch_video(CLIP.path().as_uri(), video_processor="Qwen3VLVideoProcessor")
    assert loaded.media[1]["video_backend"] == "opencv"


def test_a_file_is_mapped_and_hashed_like_its_bytes():
    mapped = connector("telecine").fetch_video(CLIP.path().as_uri())
    read = connector("http").fetch_video(CLIP.path().as_uri())
    assert isinstance(mapped.original_bytes, memoryview)
    assert isinstance(read.original_bytes, bytes)
    hashes = [
        MultiModalHasher.hash_kwargs("sha256", video=type(each)(each.media[0], each.original_bytes))
        for each in (mapped, read)
    ]
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("codec", [{"backend": "opencv"}, {"video_backend": "nemotron_vl", "backend": "telecine"}])
def test_other_codecs_get_the_bytes_of_a_file(codec):
    loaded = connector("telecine", media_io_kwargs={"video": {"num_frames": 8, **codec}}).fetch_video(
        CLIP.path().as_uri()
    )
    assert isinstance(loaded.original_bytes, bytes)
    assert loaded.media[1]["frames_indices"] == INDICES


def test_files_outside_the_allowed_folder_are_refused(tmp_path):
    outside = tmp_path / "clip.mp4"
    outside.write_bytes(CLIP.bytes())
    with pytest.raises(ValueError, match="must be a subpath"):
        connector("telecine").fetch_video(outside.as_uri())
    with pytest.raises(RuntimeError, match="allowed-local-media-path"):
        connector("telecine", allowed_local_media_path="").fetch_video(outside.as_uri())


def test_a_missing_file_is_bad_input():
    with pytest.raises(ValueError, match="cannot be opened"):
        connector("telecine").fetch_video((CLIP.path().parent / "missing.mp4").as_uri())


def test_private_hosts_are_reached_only_if_they_are_listed_and_then_without_redirects(server):
    with pytest.raises(VLLMUnprocessableEntityError, match="not on the public internet"):
        connector("telecine").fetch_video(f"{server}/clip.mp4")
    listed = connector("telecine", allowed_media_domains=["127.0.0.1"])
    check(listed.fetch_video(f"{server}/clip.mp4?token=1"))
    with pytest.raises(VLLMUnprocessableEntityError, match="redirects"):
        listed.fetch_video(f"{server}/moved.mp4")
    with pytest.raises(ValueError, match="allowed domains"):
        listed.fetch_video("http://127.0.0.2/clip.mp4")


@pytest.mark.parametrize("url", ["http://127.0.0.1\\@127.0.0.2/clip.mp4", "http://127.0.0.1@127.0.0.2/clip.mp4"])
def test_the_checked_host_of_a_url_is_the_one_that_is_fetched_from(url):
    with pytest.raises((ValueError, VLLMUnprocessableEntityError), match=r"allowed domains|not valid|not a valid"):
        connector("telecine", allowed_media_domains=["127.0.0.1"]).fetch_video(url)


def test_http_404_of_the_server_is_an_unprocessable_entity(server):
    listed = connector("telecine", allowed_media_domains=["127.0.0.1"])
    with pytest.raises(VLLMUnprocessableEntityError, match="HTTP 404"):
        listed.fetch_video(f"{server}/gone.mp4")


def test_vllms_limit_for_downloads_holds(server, monkeypatch):
    from vllm import envs

    monkeypatch.setattr(envs, "VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB", 0.001, raising=False)
    listed = connector("telecine", allowed_media_domains=["127.0.0.1"])
    with pytest.raises(VLLMUnprocessableEntityError, match="max_fetch_bytes"):
        listed.fetch_video(f"{server}/clip.mp4")


def test_vllms_download_cache_is_used(server, monkeypatch, tmp_path):
    monkeypatch.setenv("VLLM_MEDIA_CACHE", str(tmp_path))
    listed = connector("telecine", allowed_media_domains=["127.0.0.1"])
    check(listed.fetch_video(f"{server}/clip.mp4"))
    (kept,) = tmp_path.iterdir()
    assert kept.read_bytes() == CLIP.bytes()
    check(asyncio.run(listed.fetch_video_async(f"{server}/clip.mp4")))


def test_lists_of_jpeg_pictures_keep_their_metadata():
    def picture(level: int) -> str:
        buffer = io.BytesIO()
        Image.new("RGB", (32, 32), (level, level, level)).save(buffer, "JPEG")
        return base64.b64encode(buffer.getvalue()).decode()

    kwargs = {"num_frames": -1, "fps": 2.0, "frames_indices": [3, 9], "total_num_frames": 12, "duration": 6.0}
    url = f"data:video/jpeg;base64,{picture(10)},{picture(200)}"
    found = [connector(name, media_io_kwargs={"video": kwargs}).fetch_video(url).media for name in ("http", "telecine")]
    assert found[0][1] == found[1][1]
    assert found[1][1]["frames_indices"] == [3, 9]
    assert np.array_equal(found[0][0], found[1][0])


def test_images_are_loaded_by_vllms_own_connector():
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(buffer, "PNG")
    url = as_data(buffer.getvalue(), "image/png")
    assert connector("telecine").fetch_image(url).size == (8, 8)


@pytest.mark.parametrize("content", [b"", b"no video", b"\x00" * 5000], ids=["empty", "text", "zeros"])
def test_bad_input_is_a_value_error_from_base64_and_from_a_file(content, tmp_path):
    path = tmp_path / "clip.mp4"
    path.write_bytes(content)
    one = connector("telecine", allowed_local_media_path=str(tmp_path))
    for url in (as_data(content), path.as_uri()):
        with pytest.raises(ValueError):
            one.fetch_video(url)
