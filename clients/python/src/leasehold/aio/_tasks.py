"""The runtime of the asynchronous client: tasks of `asyncio` or `trio`."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

if TYPE_CHECKING:
    from .._runtime import Task
    from .._world import World

T = TypeVar("T")

_log = logging.getLogger("leasehold")

_AT_EXIT = 1.0
"""Seconds that background work has when the event loop ends before it."""


class Tasks:
    """Works in the background with tasks that belong to no caller: no caller's cancellation ends them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._plans: dict[Task, _Plan] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop keeps no reference
        self.ends = False

    def event(self) -> TaskEvent:
        return TaskEvent()

    def mutex(self) -> TaskMutex:
        return TaskMutex()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    async def finish(self, work: Callable[[], Awaitable[T]]) -> T:
        done = anyio.Event()
        results: list[T] = []
        errors: list[Exception] = []

        async def to_the_end() -> None:
            try:
                results.append(await work())
            except Exception as error:
                errors.append(error)
            done.set()

        self.schedule(to_the_end, self._world.now(), at_exit=True)
        await done.wait()
        if errors:
            raise errors[0]
        return results[0]

    async def unless_left(
        self, work: Callable[[], Coroutine[Any, Any, T]], pause: Callable[[float], Awaitable[None]]
    ) -> T:
        results: list[T] = []
        errors: list[Exception] = []
        async with anyio.create_task_group() as tasks:

            async def do() -> None:
                try:
                    results.append(await work())
                except Exception as error:
                    errors.append(error)
                tasks.cancel_scope.cancel()

            tasks.start_soon(do)
            try:
                await pause(math.inf)
            except Exception as left:
                errors.append(left)
            tasks.cancel_scope.cancel()
        if errors:
            raise errors.pop()  # nothing keeps the frames of its traceback alive
        return results[0]

    def schedule(self, task: Task, at: float, *, at_exit: bool = False) -> None:
        self.cancel(task)
        if self.ends:
            return  # no new task would ever run
        plan = self._plans[task] = _Plan(task, at, at_exit)
        if _in_trio():
            import trio

            trio.lowlevel.spawn_system_task(self._run, plan)
        else:
            running = asyncio.get_running_loop().create_task(self._run(plan), name="leasehold")
            self._tasks.add(running)
            running.add_done_callback(self._tasks.discard)

    def cancel(self, task: Task) -> None:
        plan = self._plans.pop(task, None)
        if plan is not None:
            plan.waiting.cancel()

    def after_fork_in_child(self) -> None:
        self._plans, self._tasks = {}, set()

    async def _run(self, plan: _Plan) -> None:
        try:
            with plan.waiting:
                while (rest := plan.at - self._world.now()) > 0:
                    await anyio.sleep(rest)
            if self._plans.get(plan.task) is plan:
                del self._plans[plan.task]
                await _logged(plan.task)
        except anyio.get_cancelled_exc_class():
            self.ends = True  # nothing else cancels these tasks
            if plan.at_exit:
                with anyio.move_on_after(_AT_EXIT, shield=True):
                    await _logged(plan.task)
            raise


class _Plan:
    """A task and its time."""

    def __init__(self, task: Task, at: float, at_exit: bool) -> None:
        self.task = task
        self.at = at
        self.at_exit = at_exit
        self.waiting = anyio.CancelScope()


async def _logged(task: Task) -> None:
    try:
        await task()
    except Exception:
        _log.exception("a task of the lock client failed")


def _in_trio() -> bool:
    trio = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_run())


class TaskEvent:
    """An event that tasks wait for."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()

    async def wait(self, timeout: float | None) -> bool:
        with anyio.move_on_after(timeout):
            await self._event.wait()
        return self._event.is_set()


class TaskMutex:
    """A mutex for tasks."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()

    def try_acquire(self) -> bool:
        try:
            self._lock.acquire_nowait()
        except anyio.WouldBlock:
            return False
        return True

    async def acquire(self) -> None:
        await self._lock.acquire()

    def release(self) -> None:
        self._lock.release()
