"""The options of ``--media-io-kwargs``, and parts of the plugin that need no vLLM."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from telecine import Fit
from telecine.cli.main import main
from telecine.errors import LimitError, OptionsError
from telecine.integrations.vllm import decode_pool, plugin
from telecine.integrations.vllm.gpu_memory_guard import uses_gpu
from telecine.integrations.vllm.options import STARTUP_ONLY, DecodeOptions, default_options

HD: Any = SimpleNamespace(width=1920, height=1080)


class Qwen2VLVideoBackend: ...


class TelecineOfIt(Qwen2VLVideoBackend): ...


def test_take_from_removes_the_options_that_it_returns():
    given = {"device": "cpu", "timeout_sec": 5, "fps": 2, "fit": None}
    options = DecodeOptions.take_from(given)
    assert (options.timeout_sec, options.fit, given) == (5, None, {"fps": 2})


def test_options_that_cost_gpu_memory_cannot_be_set_by_a_request():
    assert set(STARTUP_ONLY) < set(default_options())
    assert set(default_options()) - set(STARTUP_ONLY) == {"timeout_sec", "size", "fit", "max_pixels"}


def test_the_default_device_is_that_of_the_environment(monkeypatch):
    assert default_options()["device"] == "cpu"
    monkeypatch.setenv("TELECINE_DEVICE", "cuda:1")
    assert DecodeOptions.take_from({}).on_gpu
    assert not DecodeOptions.take_from({"device": "cpu"}).on_gpu


@pytest.mark.parametrize(
    "wrong",
    [
        {"pool_size": 0},
        {"pool_size": True},
        {"hw_decoders": "2"},
        {"timeout_sec": 0},
        {"timeout_sec": float("nan")},
        {"max_pixels": 1.5},
        {"max_width": 1920},
        {"fit": "gemini"},
        {"fit": ["qwen3_vl"]},
        {"fit": "x" * 10_000},
        {"size": [4, 4], "fit": "qwen3_vl"},
        {"size": 224, "max_pixels": 100},
    ],
    ids=lambda wrong: str(wrong)[:40],
)
def test_wrong_values_are_value_errors_that_name_the_option(wrong):
    with pytest.raises(OptionsError, match=next(iter(wrong))) as caught:
        DecodeOptions.take_from(dict(wrong))
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("options", "count", "expected"),
    [
        ({}, 8, None),
        ({"size": [360, 640]}, 8, (360, 640)),
        ({"size": 224}, 8, 224),
        ({"max_pixels": 1920 * 1080}, 8, None),
        ({"max_pixels": 480_000}, 8, Fit(max_pixels=480_000)),
        ({"fit": "qwen3_vl"}, 26, (736, 1280)),
        ({"fit": "qwen3_vl", "max_pixels": 8_000_000}, 26, (416, 736)),
        ({"fit": "auto"}, 8, None),
        ({"fit": "qwen"}, 26, (736, 1280)),
    ],
    ids=str,
)
def test_size_fit_and_max_pixels_choose_the_frame_size(options, count, expected):
    assert DecodeOptions.take_from(dict(options)).frame_size(object, count, HD) == expected


def test_fit_auto_follows_the_sampling_class():
    for fit in ("auto", "qwen"):
        assert DecodeOptions(fit=fit).frame_size(TelecineOfIt, 26, HD) == (1092, 1932)


def test_videos_over_max_width_and_height_are_refused_in_either_orientation():
    options = DecodeOptions(max_width=1080, max_height=1920)
    options.check_source(HD)
    with pytest.raises(LimitError, match="1920x1088; max_width and max_height allow 1080x1920"):
        options.check_source(SimpleNamespace(width=1920, height=1088))


@pytest.mark.parametrize(
    ("video", "loader", "expected"),
    [
        ({"backend": "telecine", "device": "cuda"}, "opencv", True),
        ({"video_backend": "telecine", "device": "cuda:1"}, "opencv", True),
        ({"device": "cuda"}, "telecine", True),
        ({"backend": "telecine"}, "opencv", False),
        ({"backend": "torchcodec", "device": "cuda"}, "opencv", False),
        ({"video_backend": "qwen3_vl", "device": "cuda"}, "telecine", False),
    ],
    ids=str,
)
def test_gpu_memory_is_needed_only_with_the_device_cuda(video, loader, expected):
    assert uses_gpu(video, loader) is expected


def test_doctor_reports_that_vllm_cannot_be_imported(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setitem(sys.modules, "vllm.multimodal.video", None)
    monkeypatch.setattr(plugin, "_state", {})
    assert main(["doctor", "--vllm"]) == 5
    assert "vllm.multimodal.video cannot be imported" in capsys.readouterr().out


def test_threads_that_make_the_pool_at_the_same_time_get_the_same_one(monkeypatch):
    """No lock is held while a pool is made, as vLLM may fork at any time; so two threads may make one each."""
    made, both = [], threading.Barrier(2)

    def make_pool(options):
        both.wait(10)
        made.append(object())
        return made[-1]

    monkeypatch.setattr(decode_pool, "_pools", {})
    monkeypatch.setattr(decode_pool, "_make_pool", make_pool)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(decode_pool.pool_for, [DecodeOptions()] * 2)
    assert len(made) == 2
    assert first is second is decode_pool.pool_for(DecodeOptions())
