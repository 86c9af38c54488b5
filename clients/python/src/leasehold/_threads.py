"""The runtime of the synchronous client: every wait blocks the thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from ._keeper import Keeper
from ._runtime import run

if TYPE_CHECKING:
    from ._runtime import Task
    from ._world import World

T = TypeVar("T")

LOOK_AGAIN = 0.05
"""Seconds after which a waiting thread checks whether its caller has left."""


class Threads:
    """Works in the background with the keeper's threads."""

    ends = False

    def __init__(self, world: World) -> None:
        self._world = world
        self._keeper = Keeper(world)

    def event(self) -> ThreadEvent:
        return ThreadEvent()

    def mutex(self) -> ThreadMutex:
        return ThreadMutex()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def finish(self, work: Callable[[], Awaitable[T]]) -> T:
        return await work()

    async def unless_left(
        self, work: Callable[[], Coroutine[Any, Any, T]], pause: Callable[[float], Awaitable[None]]
    ) -> T:
        # A thread cannot be interrupted: abandoned work ends with its own time-out.
        done = threading.Event()
        results: list[T] = []
        errors: list[BaseException] = []

        def to_the_end() -> None:
            try:
                results.append(run(work()))
            except BaseException as error:
                errors.append(error)
            done.set()

        threading.Thread(target=to_the_end, name="leasehold-watch", daemon=True).start()
        while not done.wait(LOOK_AGAIN):
            await pause(0)
        await pause(0)
        if errors:
            raise errors.pop()  # nothing keeps the frames of its traceback alive
        return results[0]

    def schedule(self, task: Task, at: float, *, at_exit: bool = False) -> None:
        # The exit waits for tasks with `at_exit`: the threads continue until then.
        self._keeper.schedule(task, at)

    def cancel(self, task: Task) -> None:
        self._keeper.cancel(task)

    def after_fork_in_child(self) -> None:
        self._keeper = Keeper(self._world)


class ThreadEvent:
    """An event that threads wait for."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()

    async def wait(self, timeout: float | None) -> bool:
        return self._event.wait(timeout)


class ThreadMutex:
    """A mutex for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def try_acquire(self) -> bool:
        return self._lock.acquire(blocking=False)

    async def acquire(self) -> None:
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()
