"""The order in which the scheduler grants cores, with a fake clock."""

from __future__ import annotations

import random

import pytest

from telecine.pool.scheduler import Scheduler, Task

pytestmark = pytest.mark.timing


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Machine:
    """A scheduler with a fake clock; its tasks yield as soon as they are asked to."""

    def __init__(self, cores, can_start=lambda: True):
        self.clock = Clock()
        self.scheduler = Scheduler(cores, can_start, self.clock)
        self.granted = []

    def add(self, expected, caller=None):
        task = Task(caller, expected, lambda: self.granted.append(task))
        self.scheduler.add(task)
        return task

    def decode(self, task):
        return self.scheduler.start_decode(task)

    def wait(self, seconds):
        """Let time pass in steps of the watchdog."""
        for _ in range(round(seconds / 0.05)):
            self.clock.now += 0.05
            self.scheduler.schedule()
            for task in [task for task in self.scheduler.running if task.must_yield]:
                self.scheduler.yield_cores(task)


def test_a_single_task_gets_all_cores_when_it_decodes():
    machine = Machine(8)
    task = machine.add(1)
    assert task.cores == 1
    assert machine.decode(task) == 8
    machine.scheduler.remove(task)
    assert machine.scheduler.free_cores == 8


def test_tasks_that_start_together_share_the_cores():
    machine = Machine(8)
    first, second = machine.add(1), machine.add(1)
    assert machine.decode(first) == 4
    assert machine.decode(second) == 4


def test_with_more_tasks_than_cores_each_running_one_has_one_core():
    machine = Machine(2)
    tasks = [machine.add(1) for _ in range(6)]
    assert [task.cores for task in tasks] == [1, 1, 0, 0, 0, 0]
    assert machine.decode(tasks[0]) == 1


def test_equal_tasks_run_in_order_of_arrival_without_preemption():
    machine = Machine(1)
    tasks = [machine.add(2.0) for _ in range(4)]
    for i, task in enumerate(tasks):
        assert task.cores == 1 and machine.granted == tasks[: i + 1]
        machine.decode(task)
        machine.wait(2.0)
        assert task.cores == 1
        machine.scheduler.remove(task)


def test_the_shortest_waiting_task_runs_first():
    machine = Machine(1)
    running = machine.add(0.1)
    longer, shorter = machine.add(5.0), machine.add(0.5)
    machine.scheduler.remove(running)
    assert (longer.cores, shorter.cores) == (0, 1)


def test_a_long_task_yields_to_a_short_one_and_continues_with_its_cores():
    machine = Machine(2)
    long = machine.add(600.0)
    assert machine.decode(long) == 2
    machine.wait(1)
    short = machine.add(0.1)
    assert long.must_yield and short.cores == 0
    machine.wait(0.05)
    assert (long.cores, short.cores) == (0, 1)
    assert machine.decode(short) == 2
    machine.scheduler.remove(short)
    assert long.cores == 2


def test_a_long_task_that_still_reads_packets_yields_so_that_a_short_one_gets_all_cores():
    machine = Machine(2)
    long = machine.add(600.0)
    machine.wait(1)
    short = machine.add(0.1)
    assert (long.cores, short.cores) == (1, 1)
    assert machine.decode(short) == 2 and long.must_yield
    machine.wait(0.05)
    assert (long.cores, short.cores) == (0, 2)
    machine.scheduler.remove(short)
    assert long.cores == 1


def test_equal_tasks_that_read_packets_keep_their_cores():
    machine = Machine(2)
    first, second = machine.add(1), machine.add(1)
    assert machine.decode(first) == 1 and not second.must_yield


def test_remaining_seconds_follow_from_the_pace_of_the_decode():
    machine = Machine(1)
    task = machine.add(0.5)
    machine.wait(1.0)
    machine.decode(task)
    machine.wait(2.0)
    task.fraction_done = 0.25
    assert task.remaining_seconds() == pytest.approx(6.0)


def test_a_long_task_gets_a_quarter_of_the_time_beside_endless_short_ones():
    machine = Machine(1)
    long = machine.add(600.0)
    machine.decode(long)
    machine.wait(1)
    before = long.run_seconds
    short = machine.add(0.1)
    for _ in range(400):  # twenty seconds in which a short task always waits or runs
        machine.wait(0.05)
        if short.cores and short.run_seconds >= 0.1:
            machine.scheduler.remove(short)
            short = machine.add(0.1)
    assert 0.2 < (long.run_seconds - before) / 20 < 0.35


def test_of_several_long_tasks_the_oldest_progresses():
    machine = Machine(1)
    longs = [machine.add(600.0) for _ in range(3)]
    short = machine.add(0.1)
    for _ in range(400):
        machine.wait(0.05)
        if short.cores and short.run_seconds >= 0.1:
            machine.scheduler.remove(short)
            short = machine.add(0.1)
    assert longs[0].run_seconds > 3
    assert longs[0].run_seconds > 2 * (longs[1].run_seconds + longs[2].run_seconds)


def test_a_thousand_tasks_of_one_caller_do_not_delay_another_caller():
    machine = Machine(1)
    crowd = [machine.add(0.2, "crowd") for _ in range(1000)]
    for task in crowd[:5]:
        machine.wait(0.2)
        machine.scheduler.remove(task)
    single = machine.add(1.0, "single")
    machine.wait(0.1)
    assert (crowd[5].cores, single.cores) == (1, 0)  # a running task that is nearly done is not preempted
    machine.scheduler.remove(crowd[5])
    assert single.cores == 1


def test_most_short_tasks_of_a_busy_caller_are_not_delayed_by_the_long_task_of_another():
    machine = Machine(1)
    long = machine.add(600.0, "long")
    machine.decode(long)
    machine.wait(5)
    waits, short, asked = [], machine.add(0.2, "short"), machine.clock.now
    while len(waits) < 100:
        machine.wait(0.05)
        if short.run_seconds >= 0.2:
            waits.append(machine.clock.now - asked)
            machine.scheduler.remove(short)
            short, asked = machine.add(0.2, "short"), machine.clock.now
    assert sorted(waits)[50] < 0.3
    assert max(waits) < 1.0


def test_two_callers_share_equally_whatever_the_length_of_their_tasks():
    machine = Machine(1)
    long = machine.add(600.0, "long")
    machine.decode(long)
    machine.wait(5)
    before, served = long.run_seconds, 0.0
    short = machine.add(0.2, "short")
    for _ in range(800):
        machine.wait(0.05)
        if short.run_seconds >= 0.2:
            served += short.run_seconds
            machine.scheduler.remove(short)
            short = machine.add(0.2, "short")
    assert served / 40 == pytest.approx(0.5, abs=0.08)
    assert (long.run_seconds - before) / 40 == pytest.approx(0.5, abs=0.08)


def test_only_started_tasks_run_while_no_other_can_start():
    able = [False]
    machine = Machine(1, lambda: able[0])
    waiting = machine.add(0.1)
    task = Task(None, 5.0, lambda: None, started=True)
    machine.scheduler.add(task)
    assert (waiting.cores, task.cores) == (0, 1)
    machine.scheduler.remove(task)
    assert waiting.cores == 0
    able[0] = True
    machine.scheduler.schedule()
    assert waiting.cores == 1


def test_a_core_does_not_idle_for_long_while_a_task_waits_for_more():
    machine = Machine(2)
    long = machine.add(600.0)
    assert machine.decode(long) == 2
    machine.wait(1)
    other = machine.add(1.0)
    machine.wait(0.5)
    assert (long.cores, other.cores) == (0, 1)
    machine.wait(1)  # the other task does not decode, so that the second core is idle
    assert (long.cores, other.cores) == (1, 1)


def test_removing_a_task_twice_or_while_it_waits():
    machine = Machine(1)
    running, waiting = machine.add(1), machine.add(1)
    machine.scheduler.remove(waiting)
    machine.scheduler.remove(waiting)
    machine.scheduler.remove(running)
    machine.scheduler.remove(running)
    assert machine.scheduler.free_cores == 1 and not machine.scheduler.running


def test_usage_of_idle_callers_is_forgotten():
    machine = Machine(1)
    keeper = machine.add(1e6, "keeper")
    for i in range(3000):
        machine.scheduler.remove(machine.add(0.1, i))
    assert keeper.cores == 1
    assert len(machine.scheduler._used) < 1100


@pytest.mark.parametrize("seed", range(12))
def test_random_tasks_never_share_a_core_and_all_end(seed):
    draw = random.Random(seed)
    machine = Machine(draw.choice([1, 2, 4]))
    work, left = {}, {}

    def step():
        for task in list(machine.scheduler.running):
            if not task.is_decoding and draw.random() < 0.5:
                machine.decode(task)
        busy = {task: task.cores for task in machine.scheduler.running}
        leaving = sum(task.cores for task in busy if task.must_yield)
        assert machine.scheduler.free_cores >= -leaving and all(cores >= 1 for cores in busy.values())
        machine.wait(0.05)
        for task, cores in busy.items():
            left[task] -= 0.05 * cores
            task.fraction_done = max(0.0, 1 - left[task] / work[task])
            if left[task] <= 0:
                machine.scheduler.remove(task)
                del left[task]

    for _ in range(600):
        if draw.random() < 0.15:
            seconds = draw.choice([0.05, 0.2, 1.0, 8.0])
            task = machine.add(seconds * draw.uniform(0.2, 4), draw.choice("abc"))
            work[task] = left[task] = seconds
        step()
    steps = 0
    most = sum(left.values()) / 0.05 + 40 * len(left)  # at least one core is busy, except for some moments
    while left:
        step()
        steps += 1
        assert steps <= most
    assert machine.scheduler.free_cores == machine.scheduler.cores
