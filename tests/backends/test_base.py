"""The base class of backends: its defaults, and the memory that a request takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.clips import CLIPS
from telecine.backends import Backend, BackendStatus, Decoded, DecodeRequest, MemoryCost
from telecine.backends.pyav.backend import PyAVBackend
from telecine.backends.registry import BUILT_IN, get_backend
from telecine.deadline import Deadline
from telecine.errors import OptionsError
from telecine.pipeline import RequestHooks, run_request
from telecine.request import Request

CLIP = CLIPS["base.mp4"]


class Minimal(Backend):
    """A backend that defines no more than it must."""

    name = "minimal"

    def status(self) -> BackendStatus:
        return self.make_status("1.0")

    def decode(self, request: DecodeRequest) -> Decoded:
        return PyAVBackend().decode(request)


@pytest.fixture(scope="module")
def request_for_ten_frames() -> DecodeRequest:
    requests: list[DecodeRequest] = []

    class Record(RequestHooks):
        def reserve_memory(self, decode: DecodeRequest, backend: Backend) -> Any:
            requests.append(decode)
            return super().reserve_memory(decode, backend)

    run_request(Request.of(CLIP.path(), num_frames=10), Deadline(), Record())
    return requests[0]


def test_a_backend_without_a_decode_method_cannot_be_created() -> None:
    class Incomplete(Backend):
        name = "incomplete"

        def status(self) -> BackendStatus:
            return self.make_status(None)

    with pytest.raises(TypeError, match="decode"):
        Incomplete()  # type: ignore[abstract]


def test_the_defaults_are_those_of_a_backend_for_the_cpu() -> None:
    backend = Minimal()
    assert backend.status() == BackendStatus("minimal", True, None, "1.0", ("cpu",))
    assert backend.options == {}
    assert backend.detects_damage
    assert backend.gauges() == {}
    assert backend.decodes_on_cpu("cpu")
    assert not backend.decodes_on_cpu("cuda")


def test_a_status_with_a_reason_is_not_usable() -> None:
    status = Minimal().make_status(None, "it is not installed: pip install it")
    assert (status.usable, status.reason) == (False, "it is not installed: pip install it")


@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_a_device_of_another_type_is_refused_by_default(device: str) -> None:
    Minimal().check_device("cpu", {})
    with pytest.raises(OptionsError, match=f"device is '{device}'; minimal puts frames on \"cpu\" only"):
        Minimal().check_device(device, {})


def test_memory_covers_the_frames_and_the_pictures_of_each_thread(request_for_ten_frames: DecodeRequest) -> None:
    request = request_for_ten_frames
    output = 10 * CLIP.width * CLIP.height * 3
    assert request.output_bytes == output
    assert request.picture_bytes == (CLIP.width + 128) * (CLIP.height + 64) * 3 // 2
    one, four = Minimal().memory_cost(replace(request, cores=1)), Minimal().memory_cost(replace(request, cores=4))
    assert one.host > output + 16 * request.picture_bytes
    assert four.host - one.host == 3 * 16 * request.picture_bytes
    assert one.device == 0


def test_a_picture_of_more_bits_or_of_an_unknown_format_takes_more_memory(
    request_for_ten_frames: DecodeRequest,
) -> None:
    request = request_for_ten_frames
    deep = replace(request, info=replace(request.info, pixel_format="yuv420p10le", bit_depth=10))
    unknown = replace(request, info=replace(request.info, pixel_format="unknown", bit_depth=0))
    assert deep.picture_bytes == 2 * request.picture_bytes
    assert unknown.picture_bytes > 2 * deep.picture_bytes


def test_costs_of_two_decodes_add_up() -> None:
    assert MemoryCost(1, 2) + MemoryCost(3) == MemoryCost(4, 2)


@pytest.mark.parametrize("name", [*BUILT_IN, "auto"])
def test_every_built_in_backend_states_its_memory(name: str, request_for_ten_frames: DecodeRequest) -> None:
    backend = get_backend(name)
    assert backend.options is not None
    options = {option: declared.default for option, declared in backend.options.items()}
    for device in backend.devices:
        request = replace(request_for_ten_frames, device=device, options=options, cores=2)
        cost = backend.memory_cost(request)
        assert cost.host > 0
        assert (cost.host if device == "cpu" else cost.device) >= request.output_bytes


def test_frames_in_chunks_are_those_of_one_decode(request_for_ten_frames: DecodeRequest) -> None:
    """By default, groups of frames are decoded one after another."""
    request = replace(request_for_ten_frames, options={})
    whole = Minimal().decode(request)
    chunks = list(Minimal().decode_chunks(request, 4))
    assert max(len(chunk.kept) for chunk in chunks) == 4
    assert np.array_equal(np.concatenate([chunk.data for chunk in chunks]), whole.data)
