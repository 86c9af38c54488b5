"""Waiting and background work of a client: the one difference between threads and event loops.

The rules of the client are coroutines, written once. Under an event loop they are awaited. The synchronous
client runs them with `run`: there every wait blocks the thread, so that they never suspend.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeAlias, TypeVar

T = TypeVar("T")

Task: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""Work for the background."""


class Event(Protocol):
    """An event that is set once."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...

    async def wait(self, timeout: float | None) -> bool:
        """Returns when the event is set, or after `timeout` seconds. Returns whether it is set."""
        ...


class Mutex(Protocol):
    """A mutex, which one caller holds at a time."""

    def try_acquire(self) -> bool: ...

    async def acquire(self) -> None: ...

    def release(self) -> None: ...


class Runtime(Protocol):
    """The means of a client."""

    ends: bool
    """Whether the program, or the event loop, ends."""

    def event(self) -> Event: ...

    def mutex(self) -> Mutex: ...

    async def sleep(self, seconds: float) -> None: ...

    async def finish(self, work: Callable[[], Awaitable[T]]) -> T:
        """Does the work, and completes it even if the caller is cancelled meanwhile."""
        ...

    async def unless_left(
        self, work: Callable[[], Coroutine[Any, Any, T]], pause: Callable[[float], Awaitable[None]]
    ) -> T:
        """Does the work, and abandons it as soon as `pause` raises: with that exception."""
        ...

    def schedule(self, task: Task, at: float, *, at_exit: bool = False) -> None:
        """Runs the task in the background at this time; an earlier plan for the same task is dropped.
        `at_exit`: a program that ends before runs the task at once, for about a second."""
        ...

    def cancel(self, task: Task) -> None:
        """Drops the plan for this task. It may be running."""
        ...

    def after_fork_in_child(self) -> None:
        """Leaves the background work, and all waiting callers, to the parent."""
        ...


def run(work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise RuntimeError("a synchronous client cannot suspend")
