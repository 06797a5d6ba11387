"""The page of the service in headless Chromium: add a stream, its captions appear, stop it."""

from __future__ import annotations

import shutil
import threading
import time

import pytest

from support.clips import CLIPS
from support.fake_openai import fake_openai
from telecine.server.config import ServerConfig
from telecine.server.run import make_server

pytest.importorskip("fastapi")
pytest.importorskip("openai")
playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

if CHROMIUM is None:
    pytest.skip("needs Chromium", allow_module_level=True)

TOKEN = "a" * 32


@pytest.fixture
def page():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.problems = []
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        yield page
        browser.close()


@pytest.fixture
def model():
    with fake_openai() as fake:
        yield fake


@pytest.fixture
def url(tmp_path, model):
    (tmp_path / "clip.mp4").write_bytes(CLIPS["base.mp4"].path().read_bytes())
    server = make_server(
        ServerConfig(
            port=0,
            database=tmp_path / "state.sqlite",
            tokens={TOKEN: "me"},
            files=tmp_path,
            caption_url=model.url,
            model="toy",
        )
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join()


def test_a_person_signs_in_adds_a_stream_reads_captions_and_stops_it(page, url, model):
    model.words = ["<img src=x onerror=alert(1)>", " <b>bold</b>"]
    page.goto(url)
    page.fill("[name=token]", TOKEN)
    page.click("text=Sign in")
    page.wait_for_selector("#access", state="hidden")
    page.fill("[name=uri]", "clip.mp4")
    page.fill("[name=every]", "0.5")
    page.click("text=Watch")
    page.wait_for_selector("li")
    assert "<img src=x onerror=alert(1)> <b>bold</b>" in page.inner_text("li"), "captions are text, not HTML"
    page.wait_for_selector("section img:not([hidden])")
    assert page.evaluate("document.querySelector('section img').naturalWidth") == 960
    assert page.inner_text("section b") == "clip.mp4"
    page.click("text=Stop")
    page.wait_for_selector("section", state="detached")
    assert page.problems == []


def test_a_refused_stream_shows_the_reason(page, url):
    page.goto(url)
    page.fill("[name=token]", TOKEN)
    page.click("text=Sign in")
    page.wait_for_selector("#access", state="hidden")
    page.fill("[name=uri]", "missing.mp4")
    page.click("text=Watch")
    page.wait_for_function("document.querySelector('#message').textContent.includes('no file in the folder')")
    assert page.locator("section").count() == 0 and page.problems == []
