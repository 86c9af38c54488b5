"""The caller's timing rules (C2 to C7 of docs/client.md): no clock, no I/O.

All times are seconds. The current time and the random numbers are arguments.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Literal, TypeAlias

from ._durations import Duration, seconds_of
from .errors import InvalidRequest

Wait: TypeAlias = Duration | Literal["lease", "extend"] | None
"""The bound of a wait for a held lock. A duration; `lease`: one observed lease and a margin, enough to outlive a
holder that died before the wait began; `extend`: the same, begun again whenever the holder sent a heartbeat;
`None`: without a bound."""

OPERATION_BOUND_MS = 10_000
OPERATION_BOUND = OPERATION_BOUND_MS / 1000
"""Bound of the retries of an operation that is not an acquire or a heartbeat."""

_LEAVE_BOUND_MS = 2000
"""Bound of the release at the end of a block, and of `close`. The release then goes on in the background."""

SIDE_BY_SIDE = 32
"""Releases at once, of a client that closes: each has a connection."""

UNREACHED_BOUND_MS = 1500
UNREACHED_BOUND = UNREACHED_BOUND_MS / 1000
"""Bound of the same, and of a wait for which the caller chose no seconds, where no connection can be made to
a service that has never answered: a mistake in the set-up."""

_SHORTEST_TIMEOUT_MS = 200
LONGEST_TIMEOUT_MS = 5000
"""The longest time-out of a request."""

_LAST_LOOK = 1.0
"""Least time for a request at the end of a wait: too short a time-out would waste it."""

LONGEST_WATCH = 20.0
"""The longest watch that the service allows, in seconds."""

_AT_ONCE = 1.0  # a lock that nobody wanted is taken again at once for this long; a waiter marks it within
_POLL_INTERVAL = 1.0
_SHORTEST_POLL = 0.05

_LONGEST_RETRY_AFTER = 60.0

_SHORTEST_RETRY_PAUSE_MS = 10
"""The shortest pause, which keeps retries from running in a tight loop."""

_SUSPENSION_MS = 100
"""The wall clock's lead over a monotonic one that shows a suspension. Adjustments of a clock in use are slower."""


def lease_to_ms(lease: float) -> int:
    """Converts to milliseconds, for the wire. Raises `InvalidRequest` outside of 0.1 to 86400 seconds."""
    if not 0.1 <= lease <= 86400:
        raise InvalidRequest(f"a lease is 0.1 to 86400 seconds, not {lease}", "lease")
    return round(lease * 1000)


def stale_after(lease: float) -> float:
    """Age at which an observed version is stale: the record's lease and a thousandth, for clocks that run
    at slightly different speeds, rounded up to a millisecond."""
    # Rounding first to a billionth keeps binary fractions from adding a millisecond.
    return math.ceil(round(lease * 1001, 6)) / 1000


def heartbeat_interval_ms(lease: int) -> int:
    """The interval of heartbeats that the caller did not choose: a quarter of the lease."""
    return lease // 4


def longest_heartbeat_interval_ms(lease: int) -> int:
    """The longest interval of heartbeats that can keep a lease: half of it."""
    return lease // 2


def heartbeat_pause_ms(interval: int, chance: float) -> int:
    """The time from the sending of one heartbeat to the next: shorter by up to a tenth."""
    return interval - math.floor(interval * (0.1 * chance))


def heartbeat_retry_pause_ms(pause: int, left: int) -> int:
    """The pause before a heartbeat is retried: at least 10 ms, and at most a third of the rest of the lease."""
    return max(_SHORTEST_RETRY_PAUSE_MS, pause if left <= 0 else min(pause, left // 3))


def was_suspended_ms(monotonic: int, wall: float) -> bool:
    """Whether the process was suspended while its monotonic clock and the wall clock went on by so much. A wall clock
    that is set forward looks the same, and costs a heartbeat."""
    return wall >= monotonic + _SUSPENSION_MS


def leave_bound_ms(left: int) -> int:
    """The wait for a release at the end of a block, with this much of the lease left."""
    return min(left, _LEAVE_BOUND_MS)


def leave_bound(left: float = math.inf) -> float:
    """The same in seconds, and for `close`."""
    return min(left, _LEAVE_BOUND_MS / 1000)


def retry_after(header: str | None) -> float:
    """The pause that an answer asks for: a whole number of seconds, up to a minute. A date is ignored,
    because it compares the clocks of two machines."""
    seconds = (header or "").strip(" \t")
    return min(_LONGEST_RETRY_AFTER, float(seconds)) if re.fullmatch("[0-9]+", seconds) else 0.0


def poll_pause(chosen: float | None, asked: float, chance: float) -> float:
    """The pause before the next poll of a held lock. A chosen interval overrides the service's. The pause is
    longer by up to a quarter, so that waiters do not move in step."""
    interval = max(_POLL_INTERVAL, asked) if chosen is None else max(_SHORTEST_POLL, chosen)
    return interval * (1 + 0.25 * chance)


def is_at_once(unwanted_for: float | None) -> bool:
    """Whether a released key is requested again without a pause: nobody waited at its last releases, which began
    `unwanted_for` seconds ago, for less than a second."""
    return unwanted_for is not None and unwanted_for < _AT_ONCE


def return_pause(released_ago: float | None, unwanted_for: float | None, chosen: float | None, chance: float) -> float:
    """The pause before a released key is requested again: one poll, counted from the release, so that others
    come first. None where nobody waited at the last releases, which began `unwanted_for` ago, for a second."""
    if released_ago is None or is_at_once(unwanted_for):
        return 0.0
    return max(0.0, poll_pause(chosen, 0.0, chance) - released_ago)


def mark_pause(chance: float) -> float:
    """The time that a waiter waits before it marks the lock."""
    return _AT_ONCE * chance


def request_timeout(lease: float | None, left: float = math.inf) -> float:
    """The time-out of one request: a quarter of the lease, 0.2 to 5 s, and no more than the rest of the
    operation."""
    lease_ms = None if lease is None else int(lease * 1000)
    left_ms = None if left == math.inf else max(0, math.ceil(left * 1000))
    return request_timeout_ms(LONGEST_TIMEOUT_MS, lease_ms, left_ms) / 1000


def request_timeout_ms(longest: int, lease: int | None, left: int | None) -> int:
    """The same in milliseconds, within `longest`; `None`: without a bound."""
    whole = longest if lease is None else min(longest, max(lease // 4, _SHORTEST_TIMEOUT_MS))
    return whole if left is None else min(whole, max(left, _SHORTEST_TIMEOUT_MS))


def endpoint_timeout(timeout: float, endpoints: int) -> float:
    """The part of a request's time-out that one of so many endpoints has. They share the time of an answer, at most
    5 s; each has at least 0.2 s, as far as three quarters of that time allow. The service's own wait comes on top."""
    if endpoints < 2:
        return timeout
    answer = min(timeout, LONGEST_TIMEOUT_MS / 1000)
    return timeout - answer + min(answer * 3 / 4, max(answer / endpoints, _SHORTEST_TIMEOUT_MS / 1000))


def wait_timeout(lease: float, left: float) -> float:
    """The time-out of a request within a wait, whose last look has a second too."""
    return request_timeout(lease, max(left, _LAST_LOOK))


def backoff_ms(failures: int, asked: int, chance: float) -> int:
    """The pause after so many failures in a row, from 1: random, from zero to 100 ms, 200 ms, … 2 s, and not
    shorter than the service asked for."""
    ceiling: int = min(100 << min(failures - 1, 10), 2000)
    return max(asked, math.floor(ceiling * chance))


class Backoff:
    """Pauses between retries."""

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance
        self._failures = 0

    def pause(self, asked: float = 0.0) -> float:
        """The next pause; not shorter than the service asked for."""
        self._failures += 1
        return backoff_ms(self._failures, round(asked * 1000), self._chance()) / 1000


class Budget:
    """The end of a wait."""

    def __init__(self, wait: Wait, now: float, margin: float) -> None:
        self._relative = wait in ("lease", "extend")
        self._extend = wait == "extend"
        self._margin = margin
        self._version: str | None = None
        if wait is None:
            self.deadline = math.inf
        elif self._relative:
            self.deadline = now + OPERATION_BOUND  # until a holder was seen, there is no lease to count
        else:
            self.deadline = now + seconds_of(wait, "wait")

    def unreached(self, begun: float) -> None:
        """Notes that no connection can be made, and that the service has never answered."""
        if self._relative:
            self.deadline = min(self.deadline, begun + UNREACHED_BOUND)

    def saw(self, version: str, lease: float, now: float) -> None:
        """Records an answer that showed the lock held at this version, for this lease."""
        if self._relative and (self._version is None or (self._extend and version != self._version)):
            self._version = version
            self.deadline = now + stale_after(lease) + self._margin
