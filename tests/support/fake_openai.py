"""A fake OpenAI server: streams answers, slowly or not, fails as told, and keeps the requests that it got."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["FakeOpenAI", "fake_openai"]


class FakeOpenAI:
    """State of the server."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        """Bodies of the requests."""
        self.keys: list[str | None] = []
        """Headers of authorization."""
        self.failures: list[int | str] = []
        """The next requests fail: an HTTP status, "silent", "cut" in the middle of the answer, "error" in it."""
        self.words = ["A", " cat", " sleeps."]
        self.word_delay = 0.0
        """Seconds before each word."""
        self.running, self.most_running = 0, 0
        """Requests at once: now, and at most."""
        self.released = threading.Event()
        """Ends the silence of "silent" requests and all delays."""
        self.lock = threading.Lock()


def _chunk(text: str, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "toy", "choices": [choice]}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeOpenAI

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        fake = self.fake
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with fake.lock:
            fake.requests.append(body)
            fake.keys.append(self.headers["authorization"])
            failure = fake.failures.pop(0) if fake.failures else None
            fake.running += 1
            fake.most_running = max(fake.most_running, fake.running)
        with contextlib.suppress(OSError):
            self._answer(failure)
        with fake.lock:
            fake.running -= 1
        self.close_connection = True

    def _answer(self, failure: int | str | None) -> None:
        if isinstance(failure, int):
            text = json.dumps({"error": {"message": f"told to fail; key {self.headers['authorization']}"}}).encode()
            self.send_response(failure)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
            return
        if failure == "silent":
            self.fake.released.wait(30)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for position, word in enumerate(self.fake.words):
            self.fake.released.wait(self.fake.word_delay)
            self._event(_chunk(word))
            if failure == "cut":
                return
            if failure == "error" and position == 1:
                self._event({"error": {"message": "engine died", "code": 500}})
                return
        self._event(_chunk("", "stop"))
        usage = {"prompt_tokens": 70, "completion_tokens": 3, "total_tokens": 73}
        self._event({**_chunk(""), "choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, document: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(document)}\n\n".encode())
        self.wfile.flush()


@contextlib.contextmanager
def fake_openai() -> Iterator[FakeOpenAI]:
    """Run a server on the loopback interface."""
    fake = FakeOpenAI()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": fake}))
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield fake
    finally:
        fake.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
