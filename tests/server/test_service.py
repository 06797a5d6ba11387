"""The service: streams, events, frames, access and limits, over HTTP; and what survives a killed process."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

import telecine
from support.clips import CLIPS, read_number
from support.fake_openai import fake_openai
from support.ffmpeg_cli import ffmpeg
from telecine.server.config import ServerConfig, read_tokens
from telecine.server.run import make_server
from telecine.server.store import Store, StoredStream

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("openai")

TOKEN, OTHER = "a" * 32, "b" * 32
BASE = CLIPS["base.mp4"]


@pytest.fixture
def model():
    with fake_openai() as fake:
        yield fake


@pytest.fixture
def files(tmp_path):
    """Return a folder with a short clip and a long one."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "short.mp4").write_bytes(BASE.path().read_bytes())
    ffmpeg(["-stream_loop", "60", "-i", BASE.path(), "-c", "copy", folder / "long.ts"])
    return folder


@contextlib.contextmanager
def service(tmp_path: Path, **options):
    """Run the service in a thread; yields a client."""
    server = make_server(ServerConfig(port=0, database=tmp_path / "state.sqlite", **options))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:
            client.app = server.config.app
            yield client
    finally:
        server.should_exit = True
        thread.join()


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def add(client, uri="long.ts", **options) -> str:
    answer = client.post("/v1/streams", json={"uri": uri, "every": 0.5, "frames": 2} | options)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def events(client, stream: str, count: int | None = None, last: int | None = None) -> list[tuple[int, dict]]:
    """Return numbers and documents of the next events; until the end without a count."""
    headers = {} if last is None else {"last-event-id": str(last)}
    found = []
    with client.stream("GET", f"/v1/streams/{stream}/events", headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        number = None
        for line in answer.iter_lines():
            if line.startswith("id: "):
                number = int(line[4:])
            elif line == "data: [DONE]":
                break
            elif line.startswith("data: "):
                found.append((number, json.loads(line[6:])))
                if len(found) == count:
                    break
    return found


def test_captions_of_a_stream_arrive_as_events_in_the_form_of_openai(tmp_path, files, model):
    with service(tmp_path, files=files, caption_url=model.url, model="toy") as client:
        number = add(client, "short.mp4", prompt="$previous?")
        found = events(client, number, last=0)
        shown = client.get(f"/v1/streams/{number}").json()
    assert len(found) >= 2 and [key for key, _ in found] == sorted({key for key, _ in found})
    for _, event in found:
        assert event["object"] == "chat.completion.chunk" and event["model"] == "toy"
        (choice,) = event["choices"]
        assert choice["delta"]["content"] == "A cat sleeps." and choice["finish_reason"] == "stop"
        assert event["usage"] == {"prompt_tokens": 70, "completion_tokens": 3, "total_tokens": 73}
        assert event["telecine"]["caption"]["error"] is None and event["telecine"]["num_frames"] in (1, 2)
    from openai.types.chat import ChatCompletionChunk

    ChatCompletionChunk.model_validate(found[0][1])
    assert shown["state"] == "ended" and shown["captions"] == len(found)
    assert shown["last_event"]["event"] == found[-1][0]
    prompts = [request["messages"][0]["content"][-1]["text"] for request in model.requests]
    assert prompts[:2] == ["none?", "A cat sleeps.?"]


def test_without_a_model_the_events_have_the_segments_alone(tmp_path, files):
    with service(tmp_path, files=files) as client:
        found = events(client, add(client, "short.mp4"), last=0)
    assert found and all(event["choices"][0]["delta"]["content"] == "" for _, event in found)
    assert [event["telecine"]["sequence"] for _, event in found] == list(range(len(found)))


def test_an_event_stream_goes_on_after_the_last_event_id(tmp_path, files):
    with service(tmp_path, files=files) as client:
        number = add(client)
        first = events(client, number, 2, last=0)
        rest = events(client, number, 2, last=first[0][0])
        new = events(client, number, 1)
    assert rest[0] == first[1]
    assert new[0][0] > rest[0][0], "without a number only new events come"


def test_a_failing_model_does_not_end_the_stream(tmp_path, files, model):
    model.failures = [400]
    with service(tmp_path, files=files, caption_url=model.url, model="toy") as client:
        number = add(client)
        (_, failed), (_, good) = events(client, number, 2, last=0)
        assert client.get(f"/v1/streams/{number}").json()["caption_errors"] == 1
    assert "HTTP 400" in failed["telecine"]["caption"]["error"]
    assert good["choices"][0]["delta"]["content"] == "A cat sleeps."


def test_streams_are_listed_shown_and_deleted(tmp_path, files):
    with service(tmp_path, files=files) as client:
        number = add(client)
        (listed,) = client.get("/v1/streams").json()["data"]
        assert listed["id"] == number and listed["uri"] == "long.ts" and listed["every"] == 0.5
        events(client, number, 1)
        sheet = client.get(f"/v1/streams/{number}/sheet.jpg")
        assert Image.open(io.BytesIO(sheet.content)).width == 960
        assert client.delete(f"/v1/streams/{number}").status_code == 204
        assert client.get("/v1/streams").json()["data"] == []
        for path in ("", "/events", "/sheet.jpg"):
            assert client.get(f"/v1/streams/{number}{path}").status_code == 404
        assert client.delete(f"/v1/streams/{number}").status_code == 404


def test_deleting_a_stream_ends_its_event_streams_and_its_capture(tmp_path, files):
    with service(tmp_path, files=files) as client:
        number = add(client)
        stream = client.app.state.streams.get("", number)
        found = []
        reader = threading.Thread(target=lambda: found.extend(events(client, number, last=0)))
        reader.start()
        while not found and not stream.counts["segments"]:
            time.sleep(0.05)
        client.delete(f"/v1/streams/{number}")
        reader.join(20)
        assert not reader.is_alive()
        deadline = time.monotonic() + 20
        while stream.source.state != "closed":
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_two_hundred_clients_get_every_event_and_a_slow_one_holds_up_nobody(tmp_path, files):
    async def read(client, number, count):
        found = []
        async with client.stream("GET", f"/v1/streams/{number}/events", headers={"last-event-id": "0"}) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("id: "):
                    found.append(int(line[4:]))
                if len(found) == count:
                    return found
        return found

    async def read_all(url, number):
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits, trust_env=False) as client:
            return await asyncio.gather(*(read(client, number, 4) for _ in range(200)))

    with service(tmp_path, files=files) as client:
        number = add(client)
        url = client.base_url
        with socket.create_connection((url.host, url.port)) as slow:  # never reads
            slow.sendall(f"GET /v1/streams/{number}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            found = asyncio.run(read_all(str(url), number))
    assert len(found) == 200 and all(each == found[0] for each in found) and len(found[0]) == 4


def test_event_streams_are_limited_and_a_closed_one_makes_room(tmp_path, files):
    with service(tmp_path, files=files, max_clients=1) as client:
        number = add(client)
        path = f"/v1/streams/{number}/events"
        with client.stream("GET", path) as first:
            assert first.status_code == 200
            assert client.get(path).status_code == 503
        deadline = time.monotonic() + 20
        while True:
            with client.stream("GET", path) as again:
                if again.status_code == 200:
                    break
            assert time.monotonic() < deadline
            time.sleep(0.05)


# frames


@pytest.mark.parametrize("name", ["base.mp4", "vp9_altref.webm", "mpeg2_open_gop.ts"])
def test_frames_of_a_video_in_the_body_come_as_arrays_or_pictures(tmp_path, name):
    clip = CLIPS[name]
    expected = telecine.load(clip.path(), num_frames=5)
    with service(tmp_path) as client:
        body = clip.path().read_bytes()
        arrays = np.load(io.BytesIO(client.post("/v1/frames?num_frames=5&format=npz", content=body).content))
        document = client.post("/v1/frames?num_frames=5", content=body).json()
    assert (arrays["frames"] == expected.data).all()
    assert (arrays["indices"] == expected.indices).all() and (arrays["timestamps"] == expected.timestamps).all()
    assert json.loads(str(arrays["metadata"])) == document["metadata"] == expected.metadata()
    assert [row["index"] for row in document["frames"]] == expected.indices.tolist()
    for row, index in zip(document["frames"], expected.indices, strict=True):
        picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(row["jpeg"]))))
        assert read_number(picture) == index


@pytest.mark.parametrize(
    ("query", "body", "status"),
    [
        ("", b"not a video", 400),
        ("", b"", 400),
        ("?num_frames=0", b"x", 422),
        ("?num_frames=100000", b"x", 422),
        ("?format=gif", b"x", 422),
        ("?fps=nan", b"x", 422),
        ("?size=99999", b"x", 422),
        ("", b"x" * 200_001, 413),
    ],
)
def test_a_wrong_request_for_frames_is_refused_in_the_form_of_openai(tmp_path, query, body, status):
    with service(tmp_path, max_body_bytes=200_000) as client:
        answer = client.post(f"/v1/frames{query}", content=body)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == status and answer.json()["error"]["message"]


def test_a_body_without_a_length_is_limited_too(tmp_path):
    with service(tmp_path, max_body_bytes=200_000) as client:
        answer = client.post("/v1/frames", content=(b"x" * 10_000 for _ in range(30)))
        large = client.post("/v1/streams", content=(b" " * 100_000 for _ in range(30)))
    assert (answer.status_code, large.status_code) == (413, 413)


# access


def test_a_service_for_other_machines_needs_tokens():
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.com"):
        with pytest.raises(telecine.OptionsError, match="token"):
            ServerConfig(host=host)
        ServerConfig(host=host, tokens={TOKEN: "me"})
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        ServerConfig(host=host)


@pytest.mark.parametrize(
    "headers", [{}, bearer("c" * 32), bearer(TOKEN[:-1]), {"authorization": f"Basic {TOKEN}"}, bearer("é")]
)
def test_without_a_valid_token_nothing_is_answered_but_health_and_the_page(tmp_path, headers):
    headers = {name: value.encode() for name, value in headers.items()}
    with service(tmp_path, tokens={TOKEN: "me"}) as client:
        for method, path in [
            ("GET", "/v1/streams"),
            ("POST", "/v1/streams"),
            ("GET", "/v1/streams/x"),
            ("GET", "/v1/streams/x/events"),
            ("GET", "/v1/streams/x/sheet.jpg"),
            ("DELETE", "/v1/streams/x"),
            ("POST", "/v1/frames"),
            ("GET", "/metrics"),
        ]:
            answer = client.request(method, path, headers=headers)
            assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer", path
        assert client.get("/health", headers=headers).json() == {"status": "ok"}
        assert client.get("/", headers=headers).status_code == 200


def test_streams_belong_to_the_owner_of_the_token_and_are_counted_for_each(tmp_path, files):
    with service(tmp_path, files=files, tokens={TOKEN: "me", OTHER: "you"}, max_streams=1) as client:
        client.headers = bearer(TOKEN)
        number = add(client)
        refused = client.post("/v1/streams", json={"uri": "long.ts"})
        assert refused.status_code == 503 and "delete one" in refused.json()["error"]["message"]
        client.headers = bearer(OTHER)
        assert client.get("/v1/streams").json()["data"] == []
        for method in ("GET", "DELETE"):
            assert client.request(method, f"/v1/streams/{number}").status_code == 404
        add(client)


def test_a_page_of_another_host_name_cannot_use_a_service_without_tokens(tmp_path):
    """A name that was pointed at this machine (DNS rebinding)."""
    with service(tmp_path) as client:
        assert client.get("/v1/streams", headers={"host": "evil.example:8090"}).status_code == 403
        for host in ("localhost:8090", "127.0.0.1", "[::1]:8090"):
            assert client.get("/v1/streams", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "uri",
    ["../state.sqlite", "/etc/passwd", "nothing.mp4", ".", "a\0b", "file:///etc/passwd", "ftp://x/y", "rtsp://"],
)
def test_only_files_of_the_folder_are_played(tmp_path, files, uri):
    (files / "link.mp4").symlink_to("/etc/passwd")
    with service(tmp_path, files=files) as client:
        for each in (uri, "link.mp4"):
            answer = client.post("/v1/streams", json={"uri": each})
            assert answer.status_code == 400 and "passwd" not in answer.text
        assert client.get("/v1/streams").json()["data"] == []


def test_hosts_of_streams_are_those_of_the_allow_list(tmp_path):
    with service(tmp_path, tokens={TOKEN: "me"}, allowed_hosts=frozenset({"camera.example"})) as client:
        answer = client.post("/v1/streams", json={"uri": "rtsp://127.0.0.1/x"}, headers=bearer(TOKEN))
    assert answer.status_code == 400 and "allowed_hosts" in answer.json()["error"]["message"]
    assert ServerConfig(tokens={TOKEN: "me"}).stream_hosts == frozenset()
    assert ServerConfig().stream_hosts is None


def test_credentials_of_a_uri_are_in_no_answer_and_only_the_owner_may_read_the_database(tmp_path):
    with service(tmp_path) as client:
        add(client, "rtsp://user:secret1@127.0.0.1:9/stream?key=secret2")
        deadline = time.monotonic() + 20
        while client.get("/v1/streams").json()["data"][0]["error"] is None:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        texts = [client.get(path).text for path in ("/v1/streams", "/metrics")]
        wrong = client.post("/v1/streams", json={"uri": "rtsp://u:secret3@h/", "every": "x", "more": "secret4"})
        texts.append(wrong.text)
    assert wrong.status_code == 422
    assert [text for text in texts if "secret" in text] == []
    assert (tmp_path / "state.sqlite").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("text", ["", "owner short", TOKEN, f"{TOKEN} a b", "# only a comment\n"])
def test_a_wrong_token_file_is_refused(tmp_path, text):
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(telecine.OptionsError, match="OWNER TOKEN") as caught:
        read_tokens(path)
    assert TOKEN not in str(caught.value)


def test_a_token_file_has_owners_and_tokens(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"# comment\nme {TOKEN}\n\nyou  {OTHER}\n")
    assert read_tokens(path) == {TOKEN: "me", OTHER: "you"}
    with pytest.raises(telecine.OptionsError, match="cannot be read"):
        read_tokens(tmp_path / "missing")


# descriptions


def test_the_metrics_have_the_streams_by_id(tmp_path, files):
    with service(tmp_path, files=files) as client:
        number = add(client, "short.mp4")
        count = len(events(client, number, last=0))
        client.post("/v1/frames", content=BASE.path().read_bytes())
        text = client.get("/metrics").text
    assert f'telecine_stream_segments_total{{stream="{number}"}} {float(count)}' in text
    assert f'telecine_stream_state{{state="ended",stream="{number}"}} 1.0' in text
    assert 'telecine_requests_total{backend="pyav",outcome="ok"}' in text


def test_openapi_describes_every_route(tmp_path):
    with service(tmp_path) as client:
        document = client.get("/openapi.json").json()
    assert set(document["paths"]) == {
        "/health",
        "/metrics",
        "/v1/frames",
        "/v1/streams",
        "/v1/streams/{id}",
        "/v1/streams/{id}/events",
        "/v1/streams/{id}/sheet.jpg",
    }
    body = document["paths"]["/v1/streams"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["properties"]) == {"uri", "every", "frames", "prompt", "model"} and body["required"] == ["uri"]


def test_openapi_describes_errors_as_they_are(tmp_path):
    with service(tmp_path) as client:
        paths = client.get("/openapi.json").json()["paths"]
        answer = client.request("PUT", "/health")
    for methods in paths.values():
        for operation in methods.values():
            assert {"4XX", "5XX"} <= set(operation["responses"]) and "422" not in operation["responses"]
    assert answer.status_code == 405 and answer.headers["allow"] == "GET"
    assert set(answer.json()["error"]) == {"message", "type", "code"}


def test_the_page_loads_nothing_from_elsewhere(tmp_path):
    with service(tmp_path) as client:
        page = client.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "http://" not in page.text.replace("rtsp://", "") and "https://" not in page.text
    assert "innerHTML" not in page.text


# state


def test_the_number_of_an_event_is_never_given_twice(tmp_path):
    numbers = []
    for _ in range(3):
        store = Store(tmp_path / "state.sqlite", max_events=2)
        store.add(StoredStream("s", "", {}, 0.0))
        numbers += [store.add_event("s", {}) for _ in range(3)]
        assert [number for number, _ in store.events("s", 0, 10)] == numbers[-2:], "only the newest are kept"
        store.delete("s")
        assert store.events("s", 0, 10) == []
        store.close()
    assert numbers == list(range(1, 10))


def test_a_database_that_another_service_uses_is_refused(tmp_path):
    store = Store(tmp_path / "state.sqlite", 10)
    script = (
        "import sys; from pathlib import Path; from telecine.server.store import Store; Store(Path(sys.argv[1]), 10)"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "state.sqlite"], capture_output=True, text=True)
    store.close()
    assert "OptionsError" in done.stderr and "end the service that uses it" in done.stderr


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "state.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(telecine.OptionsError, match="choose another file"):
        Store(tmp_path / "state.sqlite", 10)


class Process:
    """The command ``telecine serve`` in a process of its own."""

    def __init__(self, tmp_path, files, model) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "telecine", "serve", "--port", str(port), "--files", str(files)]
        command += ["--database", str(tmp_path / "state.sqlite"), "--caption", model.url, "--model", "toy"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False)
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(httpx.TransportError):
                self.client.get("/health")
                break
            assert self.process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            self.process.stderr.close()
            self.client.close()


def test_streams_go_on_after_a_kill_and_no_event_comes_twice_or_is_missing(tmp_path, files, model):
    seen, number = [], None
    for _ in range(3):
        running = Process(tmp_path, files, model)
        try:
            number = number or add(running.client)
            for _ in range(3):
                last = seen[-1][0] if seen else 0
                seen += events(running.client, number, 1, last=last)
        finally:
            running.end(signal.SIGKILL)
    running = Process(tmp_path, files, model)
    try:
        whole = events(running.client, number, len(seen), last=0)
    finally:
        running.end(signal.SIGTERM)
    assert whole == seen, "the same events under the same numbers"
    assert len({key for key, _ in seen}) == len({event["id"] for _, event in seen}) == 9


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_service_while_clients_and_a_silent_model_are_connected(tmp_path, files, model, number):
    running = Process(tmp_path, files, model)
    model.failures = ["silent"] * 10
    stream = add(running.client)
    while not model.requests:
        time.sleep(0.05)
    with running.client.stream("GET", f"/v1/streams/{stream}/events") as answer:
        lines = answer.iter_lines()
        assert next(lines) == ": connected"
        started = time.monotonic()
        os.kill(running.process.pid, number)
        rest = list(lines)
        running.process.wait(30)
        errors = running.process.stderr.read()
    assert "data: [DONE]" not in rest, "a client connects again after the restart"
    assert time.monotonic() - started < 9 and errors == ""
    running.end(signal.SIGKILL)
    store = Store(tmp_path / "state.sqlite", 10)
    assert [each.ended for each in store.streams()] == [None]
    store.close()


def test_a_full_disk_delays_events_and_ends_neither_streams_nor_the_service(tmp_path, files, monkeypatch):
    monkeypatch.setattr("telecine.server.streams._RESTART_SECONDS", 0.05)
    write, failures = Store._write, []

    def fail_at_first(store, statement, values):
        kind = statement.split()[0]
        if (
            kind in ("INSERT", "UPDATE")
            and "streams VALUES" not in statement
            and failures.count(kind) < (3 if kind == "INSERT" else 1)
        ):
            failures.append(kind)
            raise telecine.OverloadedError("the database cannot be written: disk is full")
        return write(store, statement, values)

    monkeypatch.setattr(Store, "_write", fail_at_first)
    with service(tmp_path, files=files) as client:
        number = add(client, "short.mp4")
        found = events(client, number, last=0)
        assert found and client.get(f"/v1/streams/{number}").json()["state"] == "ended"
        task = client.app.state.streams.get("", number).task
    assert task.exception() is None and failures == ["INSERT"] * 3 + ["UPDATE"]


def test_an_ended_stream_is_not_played_again_after_a_restart(tmp_path, files):
    with service(tmp_path, files=files) as client:
        number = add(client, "short.mp4")
        first = events(client, number, last=0)
    with service(tmp_path, files=files) as client:
        assert events(client, number, last=0) == first
        assert client.get(f"/v1/streams/{number}").json()["state"] == "ended"
