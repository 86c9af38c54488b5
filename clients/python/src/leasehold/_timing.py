"""The caller's timing rules: no clock, no I/O. All times are seconds; `now` is handed in."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, TypeAlias

from .errors import InvalidRequest

Wait: TypeAlias = float | Literal["lease", "extend"] | None
"""How long to wait for a held lock: seconds; `lease`, one observed lease and a margin, enough to outlive a
holder that died before the wait began; `extend`, the same, begun again whenever the holder showed a sign of
life; `None`, without a bound."""

OPERATION_BOUND = 10.0
"""For how long an operation that is not an acquire or a heartbeat is tried again."""

_SHORTEST_TIMEOUT = 0.2
_LONGEST_TIMEOUT = 5.0


def lease_to_ms(lease: float) -> int:
    """Milliseconds, for the wire. Raises `InvalidRequest` outside of 0.1 to 86400 seconds."""
    if not 0.1 <= lease <= 86400:
        raise InvalidRequest(f"a lease is 0.1 to 86400 seconds, not {lease}", "lease")
    return round(lease * 1000)


def heartbeat_every(wanted: float | None, lease: float) -> float:
    """A quarter of the lease unless told. Raises `InvalidRequest` for more than half the lease."""
    if wanted is None:
        return lease / 4
    if not 0 < wanted <= lease / 2:
        raise InvalidRequest(f"must be above 0 and at most half the lease ({lease} s)", "heartbeat_interval")
    return wanted


def heartbeat_pause(interval: float, chance: float) -> float:
    """Up to a tenth shorter, so that the heartbeats of many locks do not move in step."""
    return interval * (1 - 0.1 * chance)


def heartbeat_retry_pause(pause: float, rest: float) -> float:
    """At most a third of what is left of the lease, whatever was asked: patience must not cost the lock."""
    return max(0.0, min(pause, rest / 3))


def poll_pause(interval: float, retry_after: float, chance: float) -> float:
    """Up to a quarter longer, so that waiters do not move in step."""
    return max(interval, retry_after) * (1 + 0.25 * chance)


def request_timeout(lease: float | None, rest: float = math.inf) -> float:
    """Of one request: a quarter of the lease, 0.2 to 5 s, and no longer than the rest of the operation."""
    whole = _LONGEST_TIMEOUT if lease is None else min(_LONGEST_TIMEOUT, lease / 4)
    return max(_SHORTEST_TIMEOUT, min(whole, rest))


class Backoff:
    """Pauses between tries: random, from zero to 0.1 s, 0.2 s, … 2 s."""

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance
        self._ceiling = 0.1

    def pause(self, retry_after: float = 0.0) -> float:
        """The next pause; not shorter than the service asked for."""
        ceiling, self._ceiling = self._ceiling, min(2.0, self._ceiling * 2)
        return max(retry_after, ceiling * self._chance())


class Budget:
    """Until when an acquire waits."""

    def __init__(self, wait: Wait, now: float, lease: float, margin: float) -> None:
        """`lease`: the caller's own, which stands in until a holder's was observed."""
        self._relative = wait in ("lease", "extend")
        self._extend = wait == "extend"
        self._margin = margin
        self._version: str | None = None
        if wait is None:
            self.deadline = math.inf
        elif isinstance(wait, str):
            if not self._relative:
                raise InvalidRequest(f"must be seconds, 'lease', 'extend' or None, not {wait!r}", "wait")
            self.deadline = now + lease + margin
        elif wait >= 0:
            self.deadline = now + wait
        else:
            raise InvalidRequest(f"must not be negative: {wait}", "wait")

    def saw(self, version: str, lease: float, now: float) -> None:
        """An answer showed the lock held at this version, for this lease."""
        if self._relative and (self._version is None or (self._extend and version != self._version)):
            self._version = version
            self.deadline = now + lease + self._margin


class Lease:
    """Until when a holder may believe in its lock, by its own clock.

    A lease counts from before its request was sent. A request without an answer may be carried out late,
    and then writes the lease that it carries: never before it was sent, and, to be of effect, after the
    last request that was answered. So it bounds the belief by its own lease from the later of the two.
    """

    def __init__(self, sent: float, seconds: float, unanswered: float | None = None) -> None:
        """`unanswered`: when a request of this acquisition was sent first that has no answer, if any was."""
        self.seconds = seconds
        self._sent = sent
        self._under_way: tuple[float, float] | None = None
        self._lost: dict[float, float] = {}  # lease -> when first sent
        self._faith = -math.inf
        if unanswered is not None:
            self._lost[seconds] = unanswered

    def send(self, now: float, seconds: float) -> None:
        """A request that carries this lease is about to be sent. One at a time."""
        self._under_way = (now, seconds)

    def refused(self) -> None:
        """The request under way was answered, and did nothing."""
        self._under_way = None

    def unanswered(self) -> None:
        """The request under way was given up, and may still be carried out."""
        if self._under_way is not None:
            sent, seconds = self._under_way
            self._lost.setdefault(seconds, sent)
            self._under_way = None

    def renewed(self, seconds: float) -> None:
        """The request under way succeeded; the answer named this lease."""
        if self._under_way is not None:
            self._sent, self.seconds = self._under_way[0], seconds
            self._under_way = None

    def hold_on(self, now: float) -> None:
        """Believe for one lease more, though the service cannot be reached. Another may hold the lock."""
        self._faith = now + self.seconds

    @property
    def ends(self) -> float:
        """Until when nobody else can have taken the lock over."""
        ends = self._sent + self.seconds
        for seconds, sent in self._lost.items():
            ends = min(ends, max(sent, self._sent) + seconds)
        if self._under_way is not None:
            sent, seconds = self._under_way
            ends = min(ends, sent + seconds)
        return ends

    @property
    def believed_until(self) -> float:
        """As `ends`, or later by `hold_on`."""
        return max(self.ends, self._faith)
