"""The one source of time, randomness and new lease ids."""

from __future__ import annotations

import random
import sys
import time
import uuid
from typing import TYPE_CHECKING, NamedTuple

from ._timing import was_suspended_ms

if TYPE_CHECKING:
    from ._call import Purpose


def _holder_clock() -> int | None:
    # A lease also runs out while the machine sleeps, so the clock must not stop with it. On Linux that is
    # CLOCK_BOOTTIME; on macOS CLOCK_MONOTONIC goes on (and time.monotonic(), there, does not).
    if hasattr(time, "CLOCK_BOOTTIME"):
        return int(time.CLOCK_BOOTTIME)
    if sys.platform == "darwin":
        return int(time.CLOCK_MONOTONIC)
    return None


class Clocks(NamedTuple):
    """The clocks of the system in milliseconds. In a suspension that the monotonic one does not count, only the wall
    clock goes on."""

    before: int
    wall: float
    after: int

    def show_suspension_until(self, now: Clocks) -> bool:
        """Whether the process was suspended since these clocks were read. A pause between two readings is none."""
        return was_suspended_ms(now.after - self.before, now.wall - self.wall)


class World:
    """The inputs beside the arguments. A test passes its own."""

    _clock = _holder_clock()

    def now(self) -> float:
        """Seconds on a clock that never steps and does not stop in sleep. Its zero means nothing."""
        return time.monotonic() if self._clock is None else time.clock_gettime(self._clock)

    def now_ms(self) -> int:
        """The same clock in whole milliseconds, for the rules."""
        return int(self.now() * 1000)

    def epoch_ms(self) -> float:
        """Milliseconds since 1970 on the wall clock, which only saved observations use."""
        return time.time() * 1000

    def clocks(self) -> Clocks:
        """Both clocks, read together."""
        return Clocks(self.now_ms(), self.epoch_ms(), self.now_ms())

    def chance(self) -> float:
        """A random number from 0 to 1, to keep waiters out of step."""
        return random.random()  # noqa: S311

    def new_id(self) -> str:
        """A fresh lease id, request id or transaction id, which cannot be guessed."""
        return str(uuid.uuid4())

    # The draws of the rules.

    def fraction(self, _purpose: Purpose) -> float:
        return self.chance()

    def id(self, _purpose: Purpose) -> str:
        return self.new_id()
