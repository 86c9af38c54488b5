"""Runs tasks at their time: heartbeats, the ends of leases, callbacks, releases in the background."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from typing import TYPE_CHECKING

from ._runtime import Task, run

if TYPE_CHECKING:
    from ._world import World


_log = logging.getLogger("leasehold")

_MOST_THREADS = 32
"""A service that hangs delays a heartbeat for at most a quarter of its lease. This many locks are therefore
renewed in time, however long each request takes, and four times as many within one lease."""

_IDLE_SECONDS = 1.0
"""A caller of many short locks, one after the other, finds the thread of the one before."""


class Keeper:
    """A timer whose tasks may block.

    One daemon thread waits for the earliest task. When it takes one, and others are due while it runs, a
    second thread waits in its place, up to a bound; a thread that comes back and finds another one waiting
    ends. There is one thread at rest, and after a second with nothing to keep there is none.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._changed = threading.Condition()
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Task]] = []
        self._due: dict[Task, int] = {}  # the entry of the heap that counts
        self._threads = 0
        self._waiting = False

    def schedule(self, task: Task, at: float) -> None:
        """Runs the task at this time; an earlier plan for the same task is dropped."""
        with self._changed:
            order = self._due[task] = next(self._order)
            heapq.heappush(self._heap, (at, order, task))
            if self._heap[0][1] == order or self._threads == 0:
                self._call_somebody()

    def cancel(self, task: Task) -> None:
        """Drops the plan for this task. It may be running."""
        with self._changed:
            self._due.pop(task, None)
            self._drop_outdated()
            if not self._heap:
                self._changed.notify()

    def _call_somebody(self) -> None:
        if self._waiting:
            self._changed.notify()
        elif self._threads < _MOST_THREADS:
            self._threads += 1
            try:
                threading.Thread(target=self._work, name="leasehold-keeper", daemon=True).start()
            except RuntimeError:  # the interpreter ends, or the machine has no threads left
                self._threads -= 1
                if threading.main_thread().is_alive():
                    _log.warning("no thread for the heartbeats could be started")

    def _work(self) -> None:
        while (task := self._next()) is not None:
            try:
                run(task())
            except Exception:
                _log.exception("a task of the lock client failed")
            del task  # the wait keeps no task alive

    def _next(self) -> Task | None:
        with self._changed:
            while True:
                self._drop_outdated()
                is_idle = not self._heap and not self._waiting
                if is_idle and (self._is_changed_within(_IDLE_SECONDS) or self._heap):
                    continue
                if not self._heap or self._waiting:
                    self._threads -= 1
                    return None
                at, _, task = self._heap[0]
                wait = at - self._world.now()
                if wait <= 0:
                    heapq.heappop(self._heap)
                    del self._due[task]
                    self._drop_outdated()
                    if self._heap:
                        self._call_somebody()
                    return task
                self._is_changed_within(wait)

    def _is_changed_within(self, seconds: float) -> bool:
        """Waits for a change."""
        self._waiting = True
        try:
            return self._changed.wait(min(seconds, threading.TIMEOUT_MAX))
        finally:
            self._waiting = False

    def _drop_outdated(self) -> None:
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][1]:
            heapq.heappop(self._heap)
