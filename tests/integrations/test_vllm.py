"""The plugin inside the real vLLM."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.clips import CLIPS

pytest.importorskip("vllm", reason="needs vLLM: scripts/test vllm")

from vllm import envs
from vllm.config.multimodal import MultiModalConfig
from vllm.multimodal import gpu_ipc_memory, video_decoders
from vllm.multimodal.media import ImageMediaIO, VideoMediaIO
from vllm.multimodal.media.connector import merge_media_io_kwargs
from vllm.multimodal.video import VIDEO_LOADER_REGISTRY

import telecine
from telecine.cli.main import main
from telecine.integrations.vllm import decode_pool, plugin, register, state

register()
SAMPLERS = sorted(set(VIDEO_LOADER_REGISTRY.name2class) - {"telecine", "pynvvideocodec"})
REPEATS_LAST = {"glm46v", "glm5next", "glmga"}
"""Classes that repeat the last index to make the count even; vLLM's OpenCV codec drops the repeat."""
KEYS = {"total_num_frames", "fps", "duration", "video_backend", "frames_indices", "do_sample_frames"}


def load(data: bytes, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
    return VideoMediaIO(ImageMediaIO(), **kwargs).load_bytes(data).media


@pytest.fixture(scope="module")
def clip() -> bytes:
    return CLIPS["h264_long_gop.mp4"].bytes()


def test_vllm_finds_the_plugin_by_its_entry_point():
    script = (
        "from support import torchvision_on_cpu; torchvision_on_cpu.prepare();"
        "import vllm.plugins; vllm.plugins.load_general_plugins(); vllm.plugins.load_general_plugins();"
        "from vllm.multimodal.video import VIDEO_LOADER_REGISTRY as r; import torch;"
        "assert 'telecine' in r.name2class; assert not torch.cuda.is_initialized();"
        "print('found')"
    )
    folder = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith("found"), done.stderr


def test_every_part_is_on_and_registering_again_changes_nothing():
    before = dict(VIDEO_LOADER_REGISTRY.name2class), MultiModalConfig.use_gpu_video_backend
    register()
    assert before == (VIDEO_LOADER_REGISTRY.name2class, MultiModalConfig.use_gpu_video_backend)
    assert set(state()["parts"].values()) == {"on"}
    assert "telecine" in state()["connectors"]
    assert state()["loaders"]["qwen3_vl"].startswith('"backend": "telecine"; bound to ')


def test_doctor_prints_the_state_of_every_part(capsys):
    assert main(["doctor", "--vllm"]) == 0
    text = capsys.readouterr().out
    assert "codec      on" in text
    assert "molmo2" in text
    assert main(["doctor", "--vllm", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parts"]["guard"] == "on"


def test_a_part_that_this_vllm_lacks_is_off_with_a_reason_and_the_others_are_on(monkeypatch, caplog):
    monkeypatch.setattr(plugin, "_state", {})
    monkeypatch.delattr(video_decoders, "_BACKEND_OPTION_DEFAULTS")
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    plugin.register()
    assert plugin._state["codec"].startswith("off: vllm.multimodal.video_decoders has no _BACKEND_OPTION_DEFAULTS")
    assert plugin._state["loader"] == "on"
    assert "Use the loader" in caplog.text


def test_register_never_raises_into_vllm(monkeypatch):
    monkeypatch.setattr(plugin, "_state", {})
    monkeypatch.setattr(plugin, "_PARTS", {"codec": (lambda: 1 / 0, "Do without")})
    plugin.register()
    assert plugin._state == {"codec": "off: ZeroDivisionError: division by zero. Do without"}


@pytest.mark.parametrize("name", ["h264_long_gop.mp4", "hevc.mp4", "rotated90.mp4"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampling_class_gives_the_same_frames_as_with_opencv(sampler, name):
    data = CLIPS[name].bytes()
    theirs, told = load(data, video_backend=sampler, num_frames=8, backend="opencv")
    ours, tells = load(data, video_backend=sampler, num_frames=8, backend="telecine")
    indices = list(tells["frames_indices"])
    # vLLM's glmga repeats the last frame of an odd number without telling its index
    assert len(ours) in ((len(indices), len(indices) + 1) if sampler == "glmga" else (len(indices),))
    assert isinstance(ours, np.ndarray)
    if sampler in REPEATS_LAST:
        assert len(ours) % 2 == 0
        indices = list(dict.fromkeys(indices))
        ours, told["frames_indices"] = ours[: len(indices)], list(dict.fromkeys(told["frames_indices"]))
        theirs = theirs[: len(indices)]
    assert indices == told["frames_indices"]
    assert np.abs(ours.astype(int) - theirs).max() <= 2
    for key in ("total_num_frames", "fps", "duration", "do_sample_frames"):
        assert tells[key] == pytest.approx(told[key]), key
    assert tells["video_backend"].startswith("telecine")


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_frames_are_those_of_the_ffmpeg_command_line(sampler):
    clip = CLIPS["h264_pyramid.mp4"]
    frames, told = load(clip.bytes(), video_backend=sampler, num_frames=8, backend="telecine")
    expected = clip.reference().frames[told["frames_indices"]]
    assert np.abs(frames.astype(int) - expected).max() <= 2


def test_patched_classes_still_decode_with_opencv_if_backend_names_it(clip):
    for name in ("molmo2", "openpangu"):
        _, told = load(clip, video_backend=name, num_frames=8, backend="opencv")
        assert told["video_backend"].startswith("opencv")


def test_metadata_has_the_keys_that_vllm_expects(clip):
    for kwargs in ({"backend": "telecine"}, {"video_backend": "telecine"}):
        assert set(load(clip, num_frames=8, **kwargs)[1]) == KEYS


def test_a_variable_rate_is_described_as_a_constant_one_with_true_times():
    clip = CLIPS["vfr.mp4"]
    for kwargs in ({"backend": "telecine"}, {"video_backend": "telecine"}):
        frames, told = load(clip.bytes(), num_frames=8, **kwargs)
        times = [index / told["fps"] for index in told["frames_indices"]]
        shown = [int(np.argmin(np.abs(np.array(clip.times) - time))) for time in times]
        assert np.allclose(times, np.array(clip.times)[shown], atol=1e-3)
        assert max(told["frames_indices"]) < told["total_num_frames"]
        assert not told["do_sample_frames"]
        assert np.abs(frames.astype(int) - clip.reference().frames[shown]).max() <= 2


def test_metadata_of_all_frames_let_the_processor_sample_by_true_indices():
    data = CLIPS["vfr.mp4"].bytes()
    for kwargs in ({"backend": "telecine"}, {"video_backend": "telecine"}):
        frames, told = load(data, num_frames=-1, **kwargs)
        assert told["do_sample_frames"]
        assert told["frames_indices"] == list(range(len(frames))) == list(range(told["total_num_frames"]))


def test_frames_that_cannot_be_decoded_are_left_out_with_their_indices():
    clip = CLIPS["noise_reference.mp4"]
    frames, told = load(clip.bytes(), video_backend="molmo2", num_frames=-1, backend="telecine")
    kept = told["frames_indices"]
    assert 0 < len(kept) < clip.num_frames
    assert len(frames) == len(kept)
    assert not told["do_sample_frames"]
    intact = [row for row, index in enumerate(kept) if index not in clip.damaged]
    expected = clip.reference().frames
    assert intact
    assert all(np.abs(frames[row].astype(int) - expected[kept[row]]).max() <= 2 for row in intact[:5])


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({"num_frames": 4}, [0, 40, 79, 119]),
        ({"num_frames": 32, "policy": "qwen3_vl"}, [0, 17, 34, 51, 68, 85, 102, 119]),
        ({"num_frames": 32, "policy": "qwen3_vl", "fps": 1}, [0, 40, 79, 119]),
        ({"num_frames": 32, "timestamps": [1.0, 0.5, 1.0]}, [30, 15, 30]),
        ({"num_frames": 32, "indices": [7, 3]}, [7, 3]),
        ({"num_frames": 2, "fps": 1, "start": 1}, [30, 119]),
        ({"num_frames": -1, "fps": 1}, [0, 30, 60, 90]),
        ({"num_frames": 3, "fps": -1, "frame_recovery": True, "max_duration": 300}, [0, 60, 119]),
    ],
    ids=str,
)
def test_the_loader_chooses_frames_by_telecines_own_sampling(clip, kwargs, expected):
    frames, told = load(clip, video_backend="telecine", **kwargs)
    assert told["frames_indices"] == expected
    assert not told["do_sample_frames"]
    assert len(frames) == len(expected)


def test_the_environment_variable_reaches_models_without_a_bound_class(clip, monkeypatch):
    monkeypatch.setenv("VLLM_VIDEO_LOADER_BACKEND", "telecine")
    monkeypatch.setattr(envs, "VLLM_VIDEO_LOADER_BACKEND", "telecine", raising=False)
    assert load(clip, num_frames=4)[1]["video_backend"] == "telecine"


def test_fit_size_and_max_pixels_set_the_frame_size(clip):
    plain, _ = load(clip, video_backend="qwen3_vl", backend="telecine")
    assert plain.shape[1:3] == (144, 192)
    fitted, _ = load(clip, video_backend="qwen3_vl", backend="telecine", fit="auto")
    assert fitted.shape[1:3] == (128, 192)
    halved, _ = load(clip, num_frames=4, backend="telecine", size=[72, 96])
    assert halved.shape[1:3] == (72, 96)
    least, _ = load(clip, num_frames=4, video_backend="telecine", max_pixels=7000)
    assert least.shape[1] * least.shape[2] <= 7000


def test_a_request_over_vllms_limits_is_refused_before_decoding(clip, monkeypatch):
    monkeypatch.setattr(envs, "VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES", 144 * 192 * 3 * 4, raising=False)
    assert len(load(clip, num_frames=4, backend="telecine")[0]) == 4
    with pytest.raises(ValueError, match="VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES"):
        load(clip, num_frames=5, backend="telecine")
    assert len(load(clip, num_frames=32, backend="telecine", size=[36, 48])[0]) == 32
    monkeypatch.setattr(envs, "VLLM_MAX_IMAGE_PIXELS", 1000, raising=False)
    for name in ("backend", "video_backend"):
        with pytest.raises(ValueError, match="VLLM_MAX_IMAGE_PIXELS"):
            load(clip, num_frames=1, **{name: "telecine"})


@pytest.mark.parametrize(
    "data",
    [b"", b"no video", b"\x00" * 5000, "audio.mp4", "no_moov.mp4"],
    ids=["empty", "text", "zeros", "audio", "no index"],
)
def test_bad_input_is_a_value_error(data):
    data = CLIPS[data].bytes() if isinstance(data, str) else data
    for kwargs in ({"backend": "telecine"}, {"video_backend": "telecine"}, {"video_backend": "molmo2"}):
        with pytest.raises(ValueError):
            load(data, num_frames=4, **{"backend": "telecine"} | kwargs)


@pytest.mark.parametrize(
    "wrong",
    [{"fit": "gemini"}, {"size": [0, 4]}, {"device": "tpu"}, {"pool_size": -1}, {"timeout_sec": 0}],
    ids=str,
)
def test_wrong_options_are_value_errors(clip, wrong):
    for name in ("backend", "video_backend"):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            load(clip, num_frames=4, **{name: "telecine"}, **wrong)
    with pytest.raises(ValueError, match="has no option colour"):
        load(clip, video_backend="telecine", colour="blue")
    with pytest.raises(ValueError, match="backend is 'opencv'"):
        load(clip, video_backend="telecine", backend="opencv")


def test_an_option_of_telecine_is_refused_by_other_codecs(clip):
    with pytest.raises(ValueError, match="fit is not supported by the 'opencv' backend"):
        load(clip, backend="opencv", fit="qwen3_vl")


def test_timeout_sec_raises_a_timeout_error(clip):
    with pytest.raises(TimeoutError):
        load(clip, num_frames=-1, backend="telecine", timeout_sec=1e-6)


def merged(start: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    return (merge_media_io_kwargs({"video": start}, {"video": request}) or {})["video"]


def test_a_request_may_change_what_costs_no_gpu_memory_and_nothing_else():
    start = {"backend": "telecine", "device": "cpu", "pool_size": 2, "timeout_sec": 60.0, "fit": "qwen3_vl"}
    request = {"timeout_sec": 5.0, "max_pixels": 500_000, "device": "cuda", "pool_size": 16, "hw_decoders": 9}
    request |= {"max_width": 9999, "max_height": 9999}
    assert merged(start, request) == start | {"timeout_sec": 5.0, "max_pixels": 500_000}
    assert "fit" not in merged(start, {"backend": "opencv"})


def test_a_request_cannot_choose_telecine_on_a_gpu_that_was_not_reserved_for_it():
    for name in ("backend", "video_backend"):
        assert merged({"device": "cuda", name: "torchcodec"}, {name: "telecine"})[name] == "torchcodec"
        assert merged({"device": "cuda", name: "telecine"}, {name: "telecine"})[name] == "telecine"
        assert merged({}, {name: "telecine"})[name] == "telecine"


def test_gpu_memory_is_reserved_at_start_when_telecine_decodes_on_a_gpu(monkeypatch):
    def left(**video: Any) -> int:
        config = MultiModalConfig(media_io_kwargs={"video": video})
        return gpu_ipc_memory.reserve_mm_ipc_gpu_memory(80 << 30, config)

    untouched = left(backend="opencv")
    assert left(backend="telecine") == untouched
    assert left(backend="telecine", device="cuda") < untouched - (1 << 30)
    assert left(video_backend="telecine", device="cuda:0") < untouched - (1 << 30)


def test_a_decode_on_a_gpu_holds_a_lease_from_vllms_budget(monkeypatch):
    budget = gpu_ipc_memory.MultiModalGPUMemoryPool(1 << 30)
    monkeypatch.setattr(gpu_ipc_memory, "_GLOBAL_POOL", budget)
    with decode_pool._lease_vram(1 << 20, "cuda"):
        assert budget.available_bytes == (1 << 30) - (1 << 20)
        with pytest.raises(ValueError, match="exceeds the total pool size"):
            decode_pool._lease_vram(2 << 30, "cuda")
    assert budget.available_bytes == 1 << 30


def test_frames_decoded_on_a_gpu_reach_host_memory_inside_the_lease(monkeypatch, clip):
    asked = {}

    def load_with_callback(pool: Any, choose_frames: Any, data: bytes, **options: Any) -> Any:
        asked.update(options)
        return telecine.load(data, num_frames=2)

    monkeypatch.setattr(decode_pool, "load_with_callback", load_with_callback)
    load(clip, video_backend="telecine", num_frames=2, device="cuda")
    assert (asked["device"], asked["out"]) == ("cuda", "numpy")


def test_eight_loader_threads_get_the_same_frames_as_one(clip):
    alone, _ = load(clip, num_frames=16, backend="telecine")
    with ThreadPoolExecutor(8) as pool:
        for frames, _ in pool.map(lambda _: load(clip, num_frames=16, backend="telecine"), range(24)):
            assert np.array_equal(frames, alone)
