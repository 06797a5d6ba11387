"""Defaults of a pool: never more than the machine has, and always enough to work."""

from __future__ import annotations

import numpy as np
import pytest

from support.pool_cases import MB
from telecine import OptionsError, Pool
from telecine.pool import config


@pytest.fixture
def machine(monkeypatch):
    """Returns a function that fakes the number of cores and the bytes of memory."""

    def pretend(cores, memory):
        monkeypatch.delenv("TELECINE_POOL_SIZE", raising=False)
        monkeypatch.setattr(config, "usable_cores", lambda: cores)
        monkeypatch.setattr(config, "usable_memory", lambda: memory)

    return pretend


@pytest.mark.parametrize(
    ("cores", "memory", "used"),
    [(2, 16 << 30, 2), (128, 512 << 30, 128), (128, 10 << 30, 53), (8, 400 * MB, 2), (8, 100 * MB, 1), (8, 0, 1)],
)
def test_a_pool_uses_as_many_cores_as_its_memory_allows(machine, cores, memory, used):
    machine(cores, memory)
    chosen = Pool()._workers.config
    assert chosen.cores == used
    assert chosen.memory >= used * 48 * MB  # as much to decode in as is set aside for packet indexes


def test_the_default_pool_fits_a_machine_with_many_cores_and_little_memory(machine, monkeypatch):
    machine(128, 10 << 30)
    monkeypatch.setattr(Pool, "_default", None)
    assert Pool.default()._workers.config.cores == 53


def test_the_memory_argument_bounds_the_default_number_of_cores(machine):
    machine(16, 64 << 30)
    assert Pool(memory=300 * MB)._workers.config.cores == 3
    with pytest.raises(OptionsError, match="memory is 10"):
        Pool(memory=10)


def test_more_threads_than_the_memory_allows_are_refused(machine, monkeypatch):
    machine(128, 1 << 30)
    with pytest.raises(OptionsError, match="128 cores take up to"):
        Pool(threads=128)
    monkeypatch.setenv("TELECINE_POOL_SIZE", "128")
    with pytest.raises(OptionsError, match="128 cores take up to"):
        Pool()
    assert Pool(threads=4)._workers.config.cores == 4


def test_numbers_may_be_numpy_scalars(machine):
    machine(8, 16 << 30)
    chosen = Pool(threads=np.int64(2), queue=np.uint8(3), cache=np.int32(0))._workers.config
    assert (chosen.cores, chosen.queue, chosen.cache) == (2, 3, 0)


@pytest.mark.parametrize("value", [True, 2.0, np.float32(2), "2", 0, -1, 10**5000], ids=type)
def test_a_value_that_is_no_whole_number_in_range_is_refused(machine, value):
    machine(8, 16 << 30)
    with pytest.raises(OptionsError, match=r"^threads is .*must be a whole number from 1 to") as caught:
        Pool(threads=value)
    assert len(str(caught.value)) < 300
