"""One retried request, or the requests under one lease id and the release of what they leave behind (C1, C5, C6
and C10 of docs/client.md).

A pure machine: events go in, actions come out. It is the port of `call.rs` of the crate leasehold-client-core, and
replays the traces that were recorded from it (clients/vectors/traces). All times are whole milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar, cast

from ._numbers import Ending, Numbered, Numbers
from ._timing import UNREACHED_BOUND_MS, backoff_ms, request_timeout_ms

R = TypeVar("R")

Purpose: TypeAlias = Literal["backoff", "request-id", "heartbeat"]


class Chance(Protocol):
    """The draws of a machine."""

    def fraction(self, purpose: Purpose) -> float:
        """Draws evenly from 0 to 1."""
        ...

    def id(self, purpose: Purpose) -> str:
        """Draws a fresh id that nobody can guess."""
        ...


@dataclass
class Memory:
    """The knowledge of one client, which its calls share."""

    answered: bool = False
    """Whether the service has answered a request."""


@dataclass(frozen=True)
class Terms:
    """The settings of a call."""

    longest: int
    """The longest time-out of a request."""
    bound: int | None
    """The bound of a retried request; `None`: it has none."""
    lease: int | None = None
    """The lease that bounds the time-outs."""
    delay: int = 0
    """The end of a granted lease that the holder does not believe in."""


@dataclass(frozen=True)
class Start(Generic[R]):
    """A caller asks. Under a lease id the request is sent once; otherwise it is retried."""

    request: R
    timeout: int = 0
    """The time-out of a request under a lease id."""


@dataclass(frozen=True)
class Done:
    """The request was carried out."""

    lease: int | None = None
    """The lease of the grant; `None` where the answer grants nothing."""
    found: bool = True
    """Whether a release found something to release."""


@dataclass(frozen=True)
class Refused:
    """A repeat would be refused again."""


@dataclass(frozen=True)
class Lost:
    """The lease id has ended."""


@dataclass(frozen=True)
class WasSuperseded:
    """A request with a higher number was carried out."""

    sequence: int


@dataclass(frozen=True)
class Retryable:
    """The answer says nothing about the lock: throttled, or unavailable."""

    retry_after: int
    may_apply: bool
    """Whether the request may be carried out all the same. A gateway's refusal came before the service."""


Reply: TypeAlias = Done | Refused | Lost | WasSuperseded | Retryable
Cause: TypeAlias = Literal["not-sent", "unreached", "cut-off", "timed-out"]


@dataclass(frozen=True)
class Ended:
    """The one end of a send: the answer, or the cause why there is none."""

    send: int
    end: Reply | Cause


Event: TypeAlias = Start[R] | Ended | Literal["tick", "cancel", "taken"]


@dataclass(frozen=True)
class Plain(Generic[R]):
    """The request of a retried call."""

    request: R


@dataclass(frozen=True)
class Release:
    """The release of the lease id on the key at this position."""

    key: int


@dataclass(frozen=True)
class Send(Generic[R]):
    """Sends a request. Exactly one `Ended` follows, also after an `Abandon`."""

    send: int
    what: Plain[R] | Numbered[R] | Release
    timeout: int


@dataclass(frozen=True)
class Abandon:
    """Nobody waits for the answer of this send any more."""

    send: int


@dataclass(frozen=True)
class WakeAt:
    """Asks for a tick at this time. The last such time counts."""

    time: int


@dataclass(frozen=True)
class Finish:
    """The caller's call returns. The driver attaches the answer, or its own error, of the send."""

    outcome: Literal["answered", "too-late", "failed"]
    send: int


Action: TypeAlias = Send[R] | Abandon | WakeAt | Finish | Literal["background"]
"""`background`: the work that follows outlives the caller's call."""

State: TypeAlias = Literal[
    "idle", "asking", "paused", "granted", "leaving", "releasing", "release-paused", "doubting", "ended"
]


class Call(Generic[R]):
    """One retried request, or the requests under one lease id."""

    def __init__(self, terms: Terms, keys: int = 0) -> None:
        """`keys`: the number of keys of the lease id; 0: the call has no lease id."""
        self._terms = terms
        self._keys = keys
        self.state: State = "idle"
        self.numbers: Numbers[R] = Numbers()
        self.may_hold = False
        """Whether the lease id may hold something, now or later."""
        self.send = 0
        """The number of the last send."""
        self.until = 0
        """The time that the state waits for."""
        self._request: R | None = None
        self._began = 0
        self._end: int | None = 0  # of the retries
        self._failures = 0
        self._key = 0  # the key that is released next
        self._found = True  # each release so far found something
        self._doubts = False  # a request may arrive after its release

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.state == "ended"

    def step(self, memory: Memory, event: Event[R], now: int, chance: Chance) -> tuple[str, list[Action[R]]]:
        """Takes one event. Returns the branch that it took, and the actions in order."""
        actions: list[Action[R]] = []
        if isinstance(event, Start):
            return self._start(event, now, chance, actions), actions
        if isinstance(event, Ended):
            if not isinstance(event.end, str):
                memory.answered = True
            return self._ended(event, memory.answered, now, chance, actions), actions
        if event == "tick":
            return self._tick(now, actions), actions
        if event == "cancel":
            return self._cancel(now, actions), actions
        if self.state != "granted":
            return "stale", actions
        self.state = "ended"
        return "taken", actions

    def _start(self, event: Start[R], now: int, chance: Chance, actions: list[Action[R]]) -> str:
        if self.state != "idle":
            return "stale"
        if self._keys == 0:
            self._request = event.request
            self._try_for(now)
            self._ask(now, actions)
            return "started"
        branch = "started" if self.numbers.open is None else "repeated"
        numbered = self.numbers.next(event.request, now, lambda: chance.id("request-id"))
        self._send(numbered, event.timeout, actions)
        self.state = "asking"
        return branch

    def _ended(self, event: Ended, answered: bool, now: int, chance: Chance, actions: list[Action[R]]) -> str:
        send, end = event.send, event.end
        if end == "unreached" and not answered:
            soon = self._began + UNREACHED_BOUND_MS
            self._end = soon if self._end is None else min(self._end, soon)
        if send != self.send:
            return "stale"
        if self.state == "asking" and self._keys == 0:
            return self._plain_ended(send, end, now, chance, actions)
        if self.state == "asking":
            branch = self._numbered_ended(end, now)
            self.state = "granted" if branch == "granted" else "idle"
            if branch in ("granted", "noted"):
                actions.append(Finish("answered", send))
            else:
                actions.append(Finish("too-late" if branch == "granted-too-late" else "failed", send))
            return branch
        if self.state == "leaving":
            branch = self._numbered_ended(end, now)
            if not self.may_hold:
                self.state = "ended"
                return "nothing-to-release"
            self._give_back(branch not in ("granted", "granted-too-late", "noted"), now, actions)
            return "released-after-request"
        if self.state == "releasing":
            return self._release_ended(end, now, chance, actions)
        return "stale"

    def _plain_ended(self, send: int, end: Reply | Cause, now: int, chance: Chance, actions: list[Action[R]]) -> str:
        retry_after = _retryable(end)
        if retry_after is not None:
            until = self._next_try(retry_after, now, chance)
            if until is not None:
                self._pause("paused", until, actions)
                return "paused-to-retry"
            self.state = "ended"
            actions.append(Finish("failed", send))
            return "given-up"
        self.state = "ended"
        if isinstance(end, Done):
            actions.append(Finish("answered", send))
            return "answered"
        actions.append(Finish("failed", send))
        return "refused"

    def _numbered_ended(self, end: Reply | Cause, now: int) -> str:
        """Records what the end of a request under the lease id tells."""
        sent = now if self.numbers.open is None else self.numbers.open.sent
        ending: Ending = "told"
        match end:
            case Done(lease=None):
                branch = "noted"
            case Done(lease=int(lease)):
                is_over = now - sent >= lease - self._terms.delay
                branch = "granted-too-late" if is_over else "granted"
            case Refused():
                branch = "denied"
            case Lost():
                branch = "lease-id-ended"
            case WasSuperseded(sequence):
                branch, ending = "superseded", sequence
            case _:
                arrives = may_apply(end)
                branch = "may-apply" if arrives else "did-not-arrive"
                ending = "may-apply" if arrives else "untold"
        self.numbers.ended(ending)
        if branch == "lease-id-ended":
            # A late copy is refused. Of several locks, others may be the lease id's.
            self.may_hold = self.may_hold and self._keys > 1
        elif branch not in ("denied", "did-not-arrive"):
            self.may_hold = True
        return branch

    def _tick(self, now: int, actions: list[Action[R]]) -> str:
        if self.state not in ("paused", "release-paused", "doubting"):
            return "nothing-due"
        if now < self.until:
            actions.append(WakeAt(self.until))
            return "nothing-due"
        if self.state == "paused":
            if self._end is not None and now >= self._end:
                self.state = "ended"
                actions.append(Finish("failed", self.send))
                return "woken-too-late"
            self._ask(now, actions)
            return "retried"
        if self.state == "doubting":
            self._give_back(False, now, actions)
            return "looked-again"
        self._release(now, actions)
        return "released-again"

    def _cancel(self, now: int, actions: list[Action[R]]) -> str:
        if self.state == "asking" and self._keys == 0:
            self.state = "ended"
            actions.append(Abandon(self.send))
            return "abandoned"
        if self.state == "asking":
            self.state = "leaving"
            actions.append("background")
            return "left-during-request"
        if self.state in ("granted", "idle") and self.may_hold:
            actions.append("background")
            self._give_back(self.state != "granted", now, actions)
            return "left-something"
        if self.state in ("idle", "paused"):
            self.state = "ended"
            return "left-nothing"
        return "stale"

    def _give_back(self, doubts: bool, now: int, actions: list[Action[R]]) -> None:
        """Releases the lease id on all of its keys. `doubts`: the request may arrive after the release."""
        self._key, self._found, self._doubts = 0, True, doubts
        self._try_for(now)
        self._release(now, actions)

    def _release(self, now: int, actions: list[Action[R]]) -> None:
        self._send(Release(self._key), self._timeout(now), actions)
        self.state = "releasing"

    def _release_ended(self, end: Reply | Cause, now: int, chance: Chance, actions: list[Action[R]]) -> str:
        retry_after = _retryable(end)
        if retry_after is not None:
            until = self._next_try(retry_after, now, chance)
            if until is not None:
                self._pause("release-paused", until, actions)
                return "paused-to-release"
        self._found = self._found and isinstance(end, Done) and end.found
        self._key += 1
        if self._key < self._keys:
            self._release(now, actions)
            return "next-key"
        if self._found or not self._doubts:
            self.state = "ended"
            return "gave-back"
        self._pause("doubting", now + self._terms.longest, actions)
        return "found-nothing"

    def _ask(self, now: int, actions: list[Action[R]]) -> None:
        self._send(Plain(cast("R", self._request)), self._timeout(now), actions)
        self.state = "asking"

    def _send(self, what: Plain[R] | Numbered[R] | Release, timeout: int, actions: list[Action[R]]) -> None:
        self.send += 1
        actions.append(Send(self.send, what, timeout))

    def _pause(self, state: State, until: int, actions: list[Action[R]]) -> None:
        self.state, self.until = state, until
        actions.append(WakeAt(until))

    def _try_for(self, now: int) -> None:
        self._began, self._failures = now, 0
        self._end = None if self._terms.bound is None else now + self._terms.bound

    def _timeout(self, now: int) -> int:
        left = None if self._end is None else max(0, self._end - now)
        return request_timeout_ms(self._terms.longest, self._terms.lease, left)

    def _next_try(self, retry_after: int, now: int, chance: Chance) -> int | None:
        """The time of the next try, if there is time for one."""
        self._failures += 1
        next_try = now + backoff_ms(self._failures, retry_after, chance.fraction("backoff"))
        return next_try if self._end is None or next_try < self._end else None


def may_apply(end: Reply | Cause) -> bool | None:
    """Whether the request may be carried out all the same; `None`: the answer tells its end."""
    if isinstance(end, str):
        return end in ("cut-off", "timed-out")
    return end.may_apply if isinstance(end, Retryable) else None


def _retryable(end: Reply | Cause) -> int | None:
    """The shortest pause before another try, if the end is worth one."""
    if isinstance(end, str):
        return 0
    return end.retry_after if isinstance(end, Retryable) else None
