"""What a pool takes where nobody says: never more than there is, and always enough to work."""

from __future__ import annotations

import numpy as np
import pytest

from support.pool_cases import MB
from telecine import OptionsError, Pool
from telecine.pool import config


@pytest.fixture
def machine(monkeypatch):
    """Pretends to have so many cores and so much memory."""

    def pretend(cores, memory):
        monkeypatch.delenv("TELECINE_POOL_SIZE", raising=False)
        monkeypatch.setattr(config, "usable_cores", lambda: cores)
        monkeypatch.setattr(config, "usable_memory", lambda: memory)

    return pretend


@pytest.mark.parametrize(
    ("cores", "memory", "used"),
    [(2, 16 << 30, 2), (128, 512 << 30, 128), (128, 10 << 30, 53), (8, 400 * MB, 2), (8, 100 * MB, 1), (8, 0, 1)],
)
def test_a_pool_uses_as_many_cores_as_the_memory_has_room_for(machine, cores, memory, used):
    machine(cores, memory)
    chosen = Pool()._workers.config
    assert chosen.cores == used
    assert chosen.memory >= used * 48 * MB  # as much to decode in as is set aside for packet indexes


def test_the_default_pool_is_made_on_such_a_machine_too(machine, monkeypatch):
    machine(128, 10 << 30)
    monkeypatch.setattr(Pool, "_default", None)
    assert Pool.default()._workers.config.cores == 53


def test_memory_that_is_given_decides_how_many_cores_are_used(machine):
    machine(16, 64 << 30)
    assert Pool(memory=300 * MB)._workers.config.cores == 3
    with pytest.raises(OptionsError, match="memory is 10"):
        Pool(memory=10)


def test_cores_that_are_asked_for_and_cannot_be_had_are_refused(machine, monkeypatch):
    machine(128, 1 << 30)
    with pytest.raises(OptionsError, match="128 cores take up to"):
        Pool(threads=128)
    monkeypatch.setenv("TELECINE_POOL_SIZE", "128")
    with pytest.raises(OptionsError, match="128 cores take up to"):
        Pool()
    assert Pool(threads=4)._workers.config.cores == 4


def test_numbers_may_be_those_of_numpy(machine):
    machine(8, 16 << 30)
    chosen = Pool(threads=np.int64(2), queue=np.uint8(3), cache=np.int32(0))._workers.config
    assert (chosen.cores, chosen.queue, chosen.cache) == (2, 3, 0)


@pytest.mark.parametrize("value", [True, 2.0, np.float32(2), "2", 0, -1, 10**5000], ids=type)
def test_what_is_no_whole_number_in_range_is_refused(machine, value):
    machine(8, 16 << 30)
    with pytest.raises(OptionsError, match=r"^threads is .*must be a whole number from 1 to") as caught:
        Pool(threads=value)
    assert len(str(caught.value)) < 300
