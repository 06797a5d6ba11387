"""Captions: what a request contains, and what a slow, failing or streaming server does to the result."""

from __future__ import annotations

import asyncio
import base64
import io
import sys
import time

import numpy as np
import pytest
from PIL import Image

import telecine
from support.clips import CLIPS
from support.fake_openai import FakeOpenAI, fake_openai
from telecine.live.captions import Captioner
from telecine.live.segments import Segment

pytest.importorskip("openai")


@pytest.fixture
def server():
    with fake_openai() as fake:
        yield fake


def segment(name: str = "base.mp4", sequence: int = 3, num_frames: int = 4) -> Segment:
    frames = telecine.load(CLIPS[name].path(), num_frames=num_frames)
    return Segment(frames, sequence, 30.0, 39.5, 1000.0, 1009.5, "arrival", 0.1, dropped_segments=2)


def ask(server: FakeOpenAI, given: Segment | None = None, previous: str = "", on_text=None, url=None, **options):
    async def run():
        captioner = Captioner(url or server.url, "toy", **options)
        try:
            return await captioner.caption(given or segment(), previous, on_text)
        finally:
            await captioner.close()

    return asyncio.run(run())


def parts(request: dict) -> list[dict]:
    return request["messages"][0]["content"]


def pictures(url: str, kind: str) -> list[np.ndarray]:
    prefix, _, content = url.partition(",")
    assert prefix == f"data:{kind};base64"
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(text, validate=True)))) for text in content.split(",")]


@pytest.mark.parametrize("name", ["base.mp4", "vfr.mp4"])
def test_a_request_has_the_frames_as_video_jpeg_with_their_true_indices_and_rate(server, name):
    given = segment(name)
    ask(server, given, quality=95)
    (request,) = server.requests
    video, text = parts(request)
    assert (video["type"], text["type"]) == ("video_url", "text")
    decoded = pictures(video["video_url"]["url"], "video/jpeg")
    assert len(decoded) == len(given.frames)
    for picture, frame in zip(decoded, given.frames, strict=True):
        assert np.abs(picture.astype(int) - frame.image).mean() < 8
    facts = request["media_io_kwargs"]["video"]
    times = np.array(facts["frames_indices"]) / facts["fps"]
    assert np.allclose(times, given.frames.timestamps, atol=1e-3)
    assert facts["do_sample_frames"] is False and facts["total_num_frames"] > max(facts["frames_indices"])
    assert set(facts) == {"fps", "frames_indices", "total_num_frames", "duration", "do_sample_frames"}


def test_frames_as_images_are_one_part_each_and_the_request_has_no_field_of_vllm(server):
    ask(server, frames_as="images")
    (request,) = server.requests
    *images, _ = parts(request)
    assert [len(pictures(part["image_url"]["url"], "image/jpeg")) for part in images] == [1] * 4
    assert "media_io_kwargs" not in request


def test_a_caption_has_text_times_latency_and_tokens(server):
    server.word_delay = 0.02
    seen = []
    caption = ask(server, on_text=seen.append)
    assert (caption.text, caption.error, caption.finish_reason) == ("A cat sleeps.", None, "stop")
    assert (caption.sequence, caption.start, caption.end) == (3, 30.0, 39.5)
    assert (caption.wall_start, caption.wall_end, caption.dropped_segments) == (1000.0, 1009.5, 2)
    assert (caption.prompt_tokens, caption.completion_tokens, caption.attempts) == (70, 3, 1)
    assert 0 < caption.first_token_latency < caption.latency
    assert seen == ["A", "A cat", "A cat sleeps."]


def test_the_prompt_is_a_template_and_braces_and_dollars_in_it_are_kept(server):
    prompt = 'As {"json": 5$} $5 $$x: before: $previous; $start-$end s, $time, $frames frames, $unknown'
    ask(server, previous="a dog ran", prompt=prompt)
    ask(server, prompt="$previous")
    first, second = (parts(request)[-1]["text"] for request in server.requests)
    times = "30.0-39.5 s, 1970-01-01T00:16:49+00:00"
    assert first == 'As {"json": 5$} $5 $x: before: a dog ran; ' + times + ", 4 frames, $unknown"
    assert second == "none"


@pytest.mark.parametrize("failure", [500, 503, 429, 408, "cut", "error"])
def test_a_failure_that_may_pass_is_tried_again(server, failure):
    server.failures = [failure]
    caption = ask(server)
    assert (caption.text, caption.error, caption.attempts) == ("A cat sleeps.", None, 2)


@pytest.mark.parametrize("status", [400, 401, 404, 413])
def test_a_refused_request_is_not_tried_again_and_its_error_hides_the_key(server, status):
    server.failures = [status]
    caption = ask(server, api_key="sk-secret")
    assert caption.attempts == 1 and f"HTTP {status}" in caption.error and "told to fail" in caption.error
    assert server.keys == ["Bearer sk-secret"] and "secret" not in caption.error


def test_a_server_that_keeps_failing_gives_an_error_after_the_retries(server):
    server.failures = [500, "cut"]
    caption = ask(server, retries=1)
    assert caption.attempts == 2 and "before it was complete" in caption.error and caption.text == "A"


def test_a_silent_server_gives_an_error_at_the_timeout(server):
    server.failures = ["silent"]
    caption = ask(server, timeout=0.5)
    assert "no complete answer within 0.5 s" in caption.error and 0.4 < caption.latency < 10


def test_the_timeout_holds_for_a_server_that_drips_words(server):
    server.words, server.word_delay = ["word "] * 1000, 0.05
    caption = ask(server, timeout=1)
    assert "no complete answer within 1 s" in caption.error and caption.text.startswith("word word")
    assert caption.latency < 20


def test_a_server_that_cannot_be_reached_gives_an_error_without_the_credentials_of_its_url(server):
    caption = ask(server, url="http://user:pass@127.0.0.1:9/v1", retries=0)
    assert caption.error.startswith("127.0.0.1/v1:") and "pass" not in caption.error


def test_an_answer_without_text_is_an_error(server):
    server.words = ["  "]
    assert "without text" in ask(server).error


@pytest.mark.parametrize("suffix", ["", "/", "/chat/completions"])
def test_the_url_may_be_that_of_the_api_or_of_its_end_point(server, suffix):
    assert ask(server, url=server.url + suffix).error is None


def test_the_url_without_a_path_gets_v1(server):
    assert ask(server, url=server.url.removesuffix("/v1")).error is None


def test_a_model_slower_than_the_stream_describes_the_newest_segment(server):
    server.words, server.word_delay = ["slow"], 0.9

    async def run():
        captioner = Captioner(server.url, "toy", prompt="$previous")
        async with telecine.live(CLIPS["base.mp4"].path(), every=0.25, frames=1) as stream:
            found = [pair async for pair in captioner.watch(stream)]
        await captioner.close()
        return found

    found = asyncio.run(run())
    sequences = [segment.sequence for segment, _ in found]
    assert sequences == sorted(set(sequences)) and server.most_running == 1
    assert sum(caption.dropped_segments for _, caption in found) == sequences[-1] + 1 - len(sequences) > 0
    assert [parts(request)[-1]["text"] for request in server.requests[:2]] == ["none", "slow"]


def test_a_caption_that_is_cancelled_ends_at_once(server):
    server.failures = ["silent"]
    given = segment()

    async def run():
        captioner = Captioner(server.url, "toy")
        task = asyncio.create_task(captioner.caption(given))
        while not server.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await captioner.close()

    started = time.monotonic()
    asyncio.run(run())
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("ftp://host/v1", {}),
        ("host:8000", {}),
        ("http://[", {}),
        ("http://host", {"retries": -1}),
        ("http://host", {"timeout": 0}),
        ("http://host", {"frames_as": "gif"}),
        ("http://host", {"max_tokens": 0}),
        ("http://host", {"prompt": None}),
    ],
)
def test_a_wrong_option_is_refused(url, options):
    with pytest.raises(telecine.OptionsError):
        Captioner(url, "toy", **options)


def test_without_openai_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(telecine.BackendUnavailable, match="pip install"):
        Captioner("http://host", "toy")
