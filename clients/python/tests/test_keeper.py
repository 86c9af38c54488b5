"""The timer: due tasks run in time, whatever other tasks do."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest
from conftest import eventually, keeper_threads

from leasehold._keeper import Keeper
from leasehold._world import World

WORLD = World()


def test_tasks_run_at_their_times() -> None:
    keeper = Keeper(WORLD)
    start = WORLD.now()
    done: list[tuple[str, float]] = []
    both = threading.Event()

    async def first() -> None:
        done.append(("first", WORLD.now() - start))

    async def second() -> None:
        done.append(("second", WORLD.now() - start))
        both.set()

    keeper.schedule(second, start + 3)
    keeper.schedule(first, start + 2)
    assert both.wait(60)
    assert [name for name, _ in done] == ["first", "second"]
    assert done[0][1] >= 2
    assert done[1][1] >= 3


def test_later_plan_replaces_the_earlier_one() -> None:
    keeper = Keeper(WORLD)
    runs: list[float] = []
    start = WORLD.now()

    async def task() -> None:
        runs.append(WORLD.now() - start)

    keeper.schedule(task, start + 2)
    keeper.schedule(task, start + 3)
    eventually(lambda: runs)
    time.sleep(0.1)
    assert len(runs) == 1
    assert runs[0] >= 3


def test_cancelled_task_does_not_run_and_the_thread_ends() -> None:
    eventually(lambda: keeper_threads() == 0)
    keeper = Keeper(WORLD)
    runs: list[None] = []

    async def task() -> None:
        runs.append(None)

    keeper.schedule(task, WORLD.now() + 5)
    assert keeper_threads() == 1
    keeper.cancel(task)
    eventually(lambda: keeper_threads() == 0)
    assert not runs


def test_tasks_that_block_do_not_delay_others() -> None:
    keeper = Keeper(WORLD)
    let_go = threading.Event()
    blocked = [threading.Event() for _ in range(20)]

    async def block(event: threading.Event) -> None:
        event.set()
        let_go.wait(60)

    try:
        for event in blocked:
            keeper.schedule(partial(block, event), WORLD.now())
        assert all(event.wait(60) for event in blocked), "all twenty are under way at once"
    finally:
        let_go.set()
    eventually(lambda: keeper_threads() == 0)


def test_threads_are_bounded_and_all_tasks_get_a_turn() -> None:
    keeper = Keeper(WORLD)
    done: list[None] = []
    most = [0]

    async def task() -> None:
        most[0] = max(most[0], keeper_threads())
        time.sleep(0.01)
        done.append(None)

    for _ in range(200):
        keeper.schedule(lambda: task(), WORLD.now())
    eventually(lambda: len(done) == 200)
    assert most[0] <= 32
    eventually(lambda: keeper_threads() == 0)


def test_task_that_fails_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    keeper = Keeper(WORLD)
    ran = threading.Event()

    async def bad() -> None:
        raise RuntimeError("a bug")

    async def good() -> None:
        ran.set()

    keeper.schedule(bad, WORLD.now())
    keeper.schedule(good, WORLD.now() + 0.05)
    assert ran.wait(60)
    eventually(lambda: "a bug" in caplog.text)


def test_short_plans_one_after_the_other_share_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold._keeper._IDLE_SECONDS", 5.0)
    keeper = Keeper(WORLD)
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def counted(thread: threading.Thread) -> None:
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", counted)

    async def task() -> None:
        raise AssertionError("it was cancelled")

    for _ in range(20):
        keeper.schedule(task, WORLD.now() + 60)
        time.sleep(0.01)
        keeper.cancel(task)
        time.sleep(0.01)
    assert len(started) == 1
    eventually(lambda: keeper_threads() == 0)
