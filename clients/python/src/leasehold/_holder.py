"""What is held under one lease id: heartbeats, belief, loss and end (C2, C7, C8 and C10 of docs/client.md).

A pure machine: events go in, actions come out. It is the port of `holder.rs` of the crate leasehold-client-core, and
replays the traces that were recorded from it (clients/vectors/traces). All times are whole milliseconds.

Belief is asked, not told: `valid`, `remaining` and `loss` are functions of the state and the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar

from ._call import Cause, Chance, Refused, Retryable
from ._numbers import Ending, Numbered, Numbers
from ._timing import (
    backoff_ms,
    heartbeat_interval_ms,
    heartbeat_pause_ms,
    heartbeat_retry_pause_ms,
    leave_bound_ms,
    longest_heartbeat_interval_ms,
    request_timeout_ms,
)
from .errors import LossReason

R = TypeVar("R")

Fault: TypeAlias = Literal["delay", "interval", "warning"]


@dataclass(frozen=True)
class HolderTerms:
    """The settings of a holder."""

    longest: int
    """The longest time-out of a request."""
    beats: int | Literal["quarterly", "manual"] = "quarterly"
    """The interval of heartbeats; `quarterly`: every quarter of the lease; `manual`: by the caller alone."""
    delay: int = 0
    """The end of each lease that the holder does not believe in."""
    holds_on: bool = False
    """Whether the holder believes on after its lease, while the service cannot be reached."""
    max_hold: int | None = None
    """The longest time to hold."""

    def believed(self, lease: int) -> int:
        """The part of a lease that the holder believes in."""
        return max(0, lease - self.delay)

    def interval(self, believed: int) -> int | None:
        """The time between heartbeats under a lease that is believed in for this long."""
        if self.beats == "manual":
            return None
        return heartbeat_interval_ms(believed) if self.beats == "quarterly" else self.beats

    def fault(self, lease: int, warns_at: int | None = None) -> Fault | None:
        """The setting that cannot keep this lease. A warning must not come although all is well."""
        believed = self.believed(lease)
        if believed == 0:
            return "delay"
        interval = self.interval(believed)
        if interval is not None and not 0 < interval <= longest_heartbeat_interval_ms(believed):
            return "interval"
        if warns_at is not None and warns_at >= believed - (interval or 0):
            return "warning"
        return None


@dataclass(frozen=True)
class Grant:
    """A grant. `sent`: the time of the first sending of its request."""

    sent: int
    lease: int
    token: int
    sequence: int


@dataclass(frozen=True)
class Renew(Generic[R]):
    """A caller wants a heartbeat with this change."""

    call: int
    change: R
    lease: int | None = None


@dataclass(frozen=True)
class Leave:
    """A caller waits for its heartbeat no more."""

    call: int


@dataclass(frozen=True)
class Renewed:
    """The heartbeat was carried out."""

    lease: int
    token: int
    wanted: bool = False


@dataclass(frozen=True)
class WasLost:
    """The lease id holds nothing any more."""

    reason: LossReason


@dataclass(frozen=True)
class TokenSuperseded:
    """A request with a higher number was carried out, on a row with this token."""

    sequence: int
    token: int | None


Reply: TypeAlias = Renewed | Refused | WasLost | TokenSuperseded | Retryable


@dataclass(frozen=True)
class BeatEnded:
    """The one end of a heartbeat: the answer, or the cause why there is none."""

    send: int
    end: Reply | Cause


@dataclass(frozen=True)
class WarnAt:
    """A caller wants a warning when no more than this is left; `None`: half of the lease."""

    left: int | None


@dataclass(frozen=True)
class Untold:
    """A try of the release, which was sent then, has no answer that tells its end. The next try, or `Returned`,
    follows. `may_apply`: it may be carried out all the same. `stores`: it stores data or a completed occurrence, of
    which only an answer tells."""

    sent: int
    may_apply: bool
    stores: bool


@dataclass(frozen=True)
class Returned:
    """The release came to its end. `failed`: it may be tried again."""

    end: Literal["done", "failed"] | WasLost


@dataclass(frozen=True)
class Revoke:
    """The belief ends for this reason, and what was held is given back."""

    reason: LossReason


Event: TypeAlias = (
    Renew[R]
    | Leave
    | BeatEnded
    | WarnAt
    | Untold
    | Returned
    | Revoke
    | Literal["start", "tick", "release", "detach", "suspended", "forked"]
)


@dataclass(frozen=True)
class Beat(Generic[R]):
    """The content of a heartbeat. Each names its lease."""

    lease: int
    change: R | None
    call: int | None


@dataclass(frozen=True)
class SendBeat(Generic[R]):
    """Sends a heartbeat. One `BeatEnded` follows, unless the send is abandoned."""

    send: int
    beat: Numbered[Beat[R]]
    timeout: int


@dataclass(frozen=True)
class AbandonBeat:
    """The answer of this send does not matter any more."""

    send: int


@dataclass(frozen=True)
class WakeAt:
    """Asks for a tick at this time. The last such time counts."""

    time: int


@dataclass(frozen=True)
class TakeOver:
    """The answer of this send has the present version, and what else the driver keeps."""

    send: int


Outcome: TypeAlias = Literal["renewed", "failed", "ended"]
"""The result of a caller's heartbeat."""


@dataclass(frozen=True)
class FinishRenew:
    """A caller's heartbeat is over. `failed`: the driver attaches its own error of the send."""

    call: int
    outcome: Outcome
    send: int | None = None


@dataclass(frozen=True)
class AtRisk:
    """So little is left of the lease. `risk`: the position of its `WarnAt` among all."""

    risk: int
    left: int


@dataclass(frozen=True)
class TellLost:
    """The loss, once."""

    reason: LossReason


@dataclass(frozen=True)
class GiveBack:
    """Gives back what was held, by a retried request under this lease. `Returned` follows. The end of a scope waits
    for no longer than `patience`."""

    lease: int
    patience: int


Action: TypeAlias = SendBeat[R] | AbandonBeat | WakeAt | TakeOver | FinishRenew | AtRisk | TellLost | GiveBack

State: TypeAlias = Literal["held", "releasing", "unreleased", "released", "detached", "lost"]


@dataclass
class _Risk:
    left: int | None
    told: bool = False


class Holder(Generic[R]):
    """What is held under one lease id."""

    def __init__(self, terms: HolderTerms, grant: Grant) -> None:
        self.terms = terms
        self.state: State = "held"
        self.token = grant.token
        self.lease = grant.lease
        """The lease of the last answer."""
        self.until = grant.sent + terms.believed(grant.lease)
        """The end of the belief. A heartbeat with a shorter lease caps it from its sending on, because it may be
        carried out without an answer. A higher number that is answered lifts the cap."""
        self.numbers: Numbers[Beat[R]] = Numbers(grant.sequence)
        self.under_way: int | None = None
        self.wanted = False
        """Whether a heartbeat told that somebody waits."""
        self.trouble: int | None = None
        """The send that failed last, if no later one succeeded."""
        self._reason: LossReason | None = None
        self._renewed_at = grant.sent
        # The end of the belief of a holder that holds on: one lease after the next try. A holder that stood still for
        # longer knows nothing.
        self._faith: int | None = None
        self._hold_ends: int | None = None
        self._sends = 0
        self._renewals: list[Renew[R]] = []
        self._due: int | None = None  # None: a heartbeat is under way, or the caller sends them
        self._failures = 0
        self._renumbered = False  # the last answer was about the number of its heartbeat, and not about the lock
        self._risks: list[_Risk] = []
        self._suspended: int | None = None  # the last number before a suspension
        self._may_be_given_back = False  # a release that left within the lease has no answer
        self._wake: int | None = None

    def valid(self, now: int) -> bool:
        """Whether the holder believes that it holds."""
        return self.state == "held" and self._suspended is None and self._over(now) is None

    def remaining(self, now: int) -> int:
        """The rest of the lease; 0 without belief."""
        if not self.valid(now):
            return 0
        return max(0, (self.until if self._hold_ends is None else min(self.until, self._hold_ends)) - now)

    @property
    def in_doubt(self) -> bool:
        """Whether the process was suspended, and no heartbeat was answered since. Nothing is believed, and nothing is
        lost."""
        return self.state == "held" and self._suspended is not None

    def loss(self, now: int) -> LossReason | None:
        """The reason of the loss, if there is one."""
        return self._over(now) if self.state == "held" else self._reason

    def _over(self, now: int) -> LossReason | None:
        if now >= self.until and (self._faith is None or now >= self._faith):
            return "expired"
        return "max-hold" if self._hold_ends is not None and now >= self._hold_ends else None

    def step(self, event: Event[R], now: int, chance: Chance) -> tuple[str, list[Action[R]]]:
        """Takes one event. Returns the branch that it took, and the actions in order."""
        actions: list[Action[R]] = []
        over = self._ends(now, actions)
        branch = self._take(event, over, now, chance, actions)
        self._ends(now, actions)  # a refusal in an outage ends the belief past the lease
        self._plan(now, actions)
        return branch, actions

    def _ends(self, now: int, actions: list[Action[R]]) -> LossReason | None:
        """Ends the hold if the time has ended the belief. Returns the reason."""
        over = self._over(now) if self.state == "held" else None
        if over is not None:
            self._lose(over, actions)
        return over

    def _take(
        self, event: Event[R], over: LossReason | None, now: int, chance: Chance, actions: list[Action[R]]
    ) -> str:
        held = self.state == "held"
        match event:
            case "start" if held:
                self._hold_ends = None if self.terms.max_hold is None else now + self.terms.max_hold
                self._next_beat(chance)
                return "started"
            case Renew() if held:
                self._renewals.append(event)
                if self.under_way is not None:
                    return "queued"
                self._beat(now, chance, actions)
                return "asked"
            case Renew(call):
                actions.append(FinishRenew(call, "ended"))
                return "asked-too-late"
            case Leave(call):
                return self._leave(call)
            case BeatEnded(send, end) if self.under_way == send:
                self.under_way = None
                return self._ended(send, end, now, chance, actions)
            case "tick":
                self._wake = None
                return self._tick(over, now, chance, actions)
            case WarnAt(left) if held:
                self._risks.append(_Risk(left))
                return "warned-later"
            case "release" if held:
                give_back = self._give_back(now)
                self._finish_hold("releasing", actions)
                actions.append(give_back)
                return "gives-back"
            case "release" if self.state == "unreleased":
                actions.append(self._give_back(now))
                self.state = "releasing"
                return "gives-back-again"
            case "release":
                return "nothing-to-give-back"
            case Untold(sent, may_apply, stores) if self.state == "releasing":
                # A release that left later may have met another holder.
                if not may_apply or stores or self._suspended is not None or sent >= self.until:
                    return "still-to-give-back"
                self._may_be_given_back = True
                return "may-be-given-back"
            case Returned(end) if self.state == "releasing":
                return self._returned(end, actions)
            case "detach" if held:
                self._finish_hold("detached", actions)
                return "detached"
            case Revoke(reason) if held:
                give_back = self._give_back(now)
                self._lose(reason, actions)
                actions.append(give_back)
                return "revoked"
            case "suspended" if held:
                self._suspended = self.numbers.last
                if self.under_way is None and self.terms.beats != "manual":
                    self._beat(now, chance, actions)
                return "suspended"
            case "suspended" if self.state in ("releasing", "unreleased"):
                # The clock does not show that a later release leaves after the lease.
                self.until = min(self.until, now)
                return "suspended"
            case "forked" if held:
                self._lose("forked", actions)
                return "forked"
        return "stale"

    def _leave(self, call: int) -> str:
        left = [renewal for renewal in self._renewals if renewal.call != call]
        if len(left) == len(self._renewals):
            return "stale"
        self._renewals = left
        if not left and self.terms.beats == "manual":
            self._due = None
        return "left"

    def _tick(self, over: LossReason | None, now: int, chance: Chance, actions: list[Action[R]]) -> str:
        if over is not None:
            return "held-too-long" if over == "max-hold" else "expired"
        if self.state != "held":
            return "nothing-due"
        left = self.until - now
        warns = False
        for index, risk in enumerate(self._risks):
            if not risk.told and now >= self._warns_at(risk):
                risk.told = True
                if left > 0:  # after a long pause there is no risk to report
                    warns = True
                    actions.append(AtRisk(index, left))
        if self._due is not None and now >= self._due:
            self._beat(now, chance, actions)
            return "beat-again" if self._failures > 0 else "beat"
        return "warned" if warns else "nothing-due"

    def _ended(self, send: int, end: Reply | Cause, now: int, chance: Chance, actions: list[Action[R]]) -> str:
        beat = self.numbers.open
        if beat is None:
            return "stale"
        match end:
            case Renewed(lease, token, wanted):
                self.numbers.ended("told")
                self.wanted = self.wanted or wanted
                if token != self.token:
                    self._lose("taken-over", actions)
                    return "ghost"
                if self._suspended is not None and beat.sequence <= self._suspended:
                    self._beat(now, chance, actions)
                    return "renewed-before-suspension"
                if now - beat.sent >= self.terms.believed(lease):
                    self.trouble = send
                    self._again(now, chance, actions)
                    return "renewed-too-late"
                actions.append(TakeOver(send))
                self._renewed(int(beat.sent), lease)
                self._finish(beat.content.call, "renewed", None, actions)
                if not self._renewals:
                    self._next_beat(chance)
                    return "renewed"
                self._beat(now, chance, actions)
                return "renewed-and-next"
            case WasLost(reason):
                self.numbers.ended("told")
                self._lose(reason, actions)
                return "lost-by-answer"
            case TokenSuperseded(sequence, token):
                self.numbers.ended(sequence)
                if token is not None and token != self.token:
                    self._lose("taken-over", actions)
                    return "ghost"
                return "superseded" if self._again(now, chance, actions) else "superseded-again"
            case Refused():
                self.numbers.ended("told")
                self.trouble, self._faith, self._renumbered = send, None, False
                was_wanted = self._finish(beat.content.call, "failed", send, actions)
                self._pause(0, now, chance)
                return "asked-in-vain" if was_wanted else "refused"
            case Retryable(retry_after, may_apply):
                self.numbers.ended("may-apply" if may_apply else "untold")
                return self._failed(send, retry_after, now, chance, actions)
        ending: Ending = "may-apply" if end in ("cut-off", "timed-out") else "untold"
        self.numbers.ended(ending)
        return self._failed(send, 0, now, chance, actions)

    def _failed(self, send: int, retry_after: int, now: int, chance: Chance, actions: list[Action[R]]) -> str:
        """Records a failure that tells nothing."""
        self.trouble, self._renumbered = send, False
        over = now >= self.until
        if over:  # callers do not wait for the end of an outage
            self._finish_all("failed", send, actions)
        self._pause(retry_after, now, chance)
        self._hold_on(now)
        return "held-on" if over else "failed"

    def _renewed(self, sent: int, lease: int) -> None:
        self._renewed_at, self.lease, self.until = sent, lease, sent + self.terms.believed(lease)
        self.trouble, self._faith, self._suspended = None, None, None
        self._failures, self._renumbered = 0, False
        for risk in self._risks:
            risk.told = False

    def _next_beat(self, chance: Chance) -> None:
        """Plans the next heartbeat, which keeps pace with the part of the lease that is believed in."""
        believed = self.until - self._renewed_at
        interval = self.terms.interval(believed)
        if interval is None:
            return
        # An interval that was chosen before may be too long for a shortened lease.
        interval = min(interval, longest_heartbeat_interval_ms(believed))
        self._due = self._renewed_at + heartbeat_pause_ms(interval, chance.fraction("heartbeat"))

    def _again(self, now: int, chance: Chance, actions: list[Action[R]]) -> bool:
        """Sends the next heartbeat at once; or after a pause, if the last answer was about its number as well.
        Returns whether it was sent at once."""
        if self._renumbered:
            self._pause(0, now, chance)
            self._hold_on(now)
            return False
        self._renumbered = True
        self._beat(now, chance, actions)
        return True

    def _hold_on(self, now: int) -> None:
        """Believes for one lease from the next try, if the holder holds on."""
        if self.terms.holds_on:
            self._faith = (now if self._due is None else self._due) + self.terms.believed(self.lease)

    def _pause(self, retry_after: int, now: int, chance: Chance) -> None:
        """Plans the next try."""
        self._failures += 1
        pause = backoff_ms(self._failures, retry_after, chance.fraction("backoff"))
        next_try = now + heartbeat_retry_pause_ms(pause, self.until - now)
        self._due = next_try if self.terms.beats != "manual" or self._renewals else None

    def _beat(self, now: int, chance: Chance, actions: list[Action[R]]) -> None:
        """Sends the open heartbeat again, or a new one: the first that a caller waits for, or a plain one."""
        renewal = self._renewals[0] if self._renewals else None
        if renewal is None:
            fresh: Beat[R] = Beat(self.lease, None, None)
        else:
            fresh = Beat(self.lease if renewal.lease is None else renewal.lease, renewal.change, renewal.call)
        beat = self.numbers.next(fresh, now, lambda: chance.id("request-id"))
        lease = beat.content.lease
        self.until = min(self.until, int(beat.sent) + self.terms.believed(lease))
        believed = self.until - self._renewed_at
        timeout = request_timeout_ms(self.terms.longest, min(lease, believed), self.until - now)
        self._sends += 1
        self.under_way, self._due = self._sends, None
        actions.append(SendBeat(self._sends, beat, timeout))

    def _finish(self, call: int | None, outcome: Outcome, send: int | None, actions: list[Action[R]]) -> bool:
        """Tells the caller of a heartbeat its result, if it still waits. Returns whether it does."""
        if not self._renewals or self._renewals[0].call != call:
            return False
        actions.append(FinishRenew(self._renewals.pop(0).call, outcome, send))
        return True

    def _finish_all(self, outcome: Outcome, send: int | None, actions: list[Action[R]]) -> None:
        actions.extend(FinishRenew(renewal.call, outcome, send) for renewal in self._renewals)
        self._renewals = []

    def _give_back(self, now: int) -> GiveBack:
        return GiveBack(self.lease, leave_bound_ms(self.remaining(now)))

    def _returned(self, end: Literal["done", "failed"] | WasLost, actions: list[Action[R]]) -> str:
        if isinstance(end, WasLost) and self._may_be_given_back:
            self.state = "released"
            return "was-given-back"
        if isinstance(end, WasLost):
            self._lose(end.reason, actions)
            return "was-lost"
        self.state = "released" if end == "done" else "unreleased"
        return "gave-back" if end == "done" else "not-given-back"

    def _lose(self, reason: LossReason, actions: list[Action[R]]) -> None:
        self._reason = reason
        self._finish_hold("lost", actions)
        actions.append(TellLost(reason))

    def _finish_hold(self, state: State, actions: list[Action[R]]) -> None:
        """Ends the belief, and the heartbeats with it."""
        self.state = state
        if self.under_way is not None:
            actions.append(AbandonBeat(self.under_way))
            self.under_way = None
        self._finish_all("ended", None, actions)

    def _warns_at(self, risk: _Risk) -> int:
        return max(0, self.until - (self.lease // 2 if risk.left is None else risk.left))

    def _plan(self, now: int, actions: list[Action[R]]) -> None:
        """Asks for the next tick, if its time has changed."""
        if self.state != "held":
            return
        times = [self._warns_at(risk) for risk in self._risks if not risk.told]
        if self._due is not None:
            times.append(self._due)
        # Past its end, a lease is held through an outage.
        times += [end for end in (self.until, self._faith) if end is not None and end > now]
        if self._hold_ends is not None:
            times.append(self._hold_ends)
        if min(times) != self._wake:
            self._wake = min(times)
            actions.append(WakeAt(self._wake))
