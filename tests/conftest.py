"""Fixtures of every test: default settings, no network, and a skip without a GPU for tests that need one."""

from __future__ import annotations

import ipaddress
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from support.clips import CLIPS, Clip

# read during a test; all other variables TELECINE_... are the library's, or were read before
_KEPT_VARIABLES = {"TELECINE_TEST_CACHE"}


@pytest.fixture
def clip(request: pytest.FixtureRequest) -> Clip:
    """Return the clip that ``@pytest.mark.parametrize("clip", ["base.mp4"], indirect=True)`` names."""
    return CLIPS[request.param]


@pytest.fixture(autouse=True)
def _default_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the settings of the user's shell."""
    for name in os.environ.keys() - _KEPT_VARIABLES:
        if name.startswith("TELECINE_"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse connections and look-ups that leave this machine; those of C libraries are not seen."""
    for method in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, method, _loopback_only(getattr(socket.socket, method)))
    monkeypatch.setattr(socket, "getaddrinfo", _local_names_only(socket.getaddrinfo))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs a GPU if there is none; fail it if ``TELECINE_REQUIRE_GPU`` is set."""
    if item.get_closest_marker("gpu") and not Path("/dev/nvidiactl").exists():
        if os.environ.get("TELECINE_REQUIRE_GPU"):
            pytest.fail("TELECINE_REQUIRE_GPU is set, but there is no NVIDIA GPU (/dev/nvidiactl)", pytrace=False)
        pytest.skip("needs an NVIDIA GPU")


def _loopback_only(method: Any) -> Any:
    def guarded(self: socket.socket, *arguments: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            _check(arguments[-1][0])
        return method(self, *arguments)

    return guarded


def _local_names_only(look_up: Any) -> Any:
    def guarded(host: Any, *arguments: Any, **options: Any) -> Any:
        if host is not None:
            _check(host.decode() if isinstance(host, bytes) else host)
        return look_up(host, *arguments, **options)

    return guarded


def _check(host: str) -> None:
    try:
        allowed = ipaddress.ip_address(host).is_loopback
    except ValueError:
        allowed = host in ("", "localhost")
    if not allowed:
        raise RuntimeError(f"a test tried to reach {host}; tests stay on this machine")
