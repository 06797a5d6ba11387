"""The decoder for SGLang and its registration. A fake hook registry takes the place of SGLang."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest

from support.clips import CLIPS
from telecine.errors import DecodeError, OptionsError
from telecine.integrations.sglang import TelecineVideoDecoder, register

CLIP = CLIPS["h264_pyramid.mp4"]


@pytest.fixture
def hooks(monkeypatch) -> list[Any]:
    found: list[Any] = []
    module = types.ModuleType("sglang.srt.plugins.hook_registry")
    module.HookRegistry = types.SimpleNamespace(register=lambda *hook: found.append(hook))  # type: ignore[attr-defined]
    module.HookType = types.SimpleNamespace(REPLACE="replace")  # type: ignore[attr-defined]
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return found


@pytest.mark.parametrize("named", [None, "", "other", "telecines"])
def test_register_does_nothing_unless_sglang_plugins_names_telecine(hooks, monkeypatch, named):
    if named is None:
        monkeypatch.delenv("SGLANG_PLUGINS", raising=False)
    else:
        monkeypatch.setenv("SGLANG_PLUGINS", named)
    register()
    assert hooks == []


def test_register_replaces_the_decoder_if_sglang_plugins_names_telecine(hooks, monkeypatch):
    monkeypatch.setenv("SGLANG_PLUGINS", "other, telecine")
    register()
    assert hooks == [("sglang.srt.utils.video_decoder.VideoDecoderWrapper", TelecineVideoDecoder, "replace")]


def test_register_logs_a_warning_if_sglang_has_no_plugin_hooks(monkeypatch, caplog):
    monkeypatch.setenv("SGLANG_PLUGINS", "telecine")
    monkeypatch.setitem(sys.modules, "sglang", types.ModuleType("sglang"))
    register()
    assert "SGLang keeps its own decoder" in caplog.text


@pytest.mark.parametrize("source", ["path", "bytes"])
def test_the_decoder_returns_frames_by_index(source):
    expected = CLIP.reference().frames
    with TelecineVideoDecoder(str(CLIP.path()) if source == "path" else CLIP.bytes()) as decoder:
        assert (len(decoder), decoder.avg_fps, decoder.frame_shape) == (60, 30.0, (144, 192))
        frames = decoder.get_frames_at([5, 40, 5])
        assert np.abs(frames.astype(int) - expected[[5, 40, 5]]).max() <= 2
        assert np.abs(decoder[-1].astype(int) - expected[59]).max() <= 2
        assert decoder.source_bytes == CLIP.bytes()
        with pytest.raises(IndexError):
            decoder[60]
        with pytest.raises(OptionsError):
            decoder.get_frames_at([60])
    with pytest.raises(DecodeError, match="closed"):
        decoder.get_frames_at([0])
    assert decoder.source_bytes is None


def test_a_frame_that_cannot_be_decoded_is_an_error():
    decoder = TelecineVideoDecoder(CLIPS["noise_key.mp4"].bytes())
    with pytest.raises(DecodeError, match="could not be decoded"):
        decoder.get_frames_at(range(len(decoder)))


def test_the_decoder_returns_frames_as_a_tensor():
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    tensor = TelecineVideoDecoder(CLIP.bytes(), num_decode_threads=4).get_frames_as_tensor([1, 2])
    assert tensor.shape == (2, 144, 192, 3)
    assert tensor.dtype == torch.uint8
