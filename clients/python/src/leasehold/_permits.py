"""One acquisition of permits: its lease id, its ticket, its plan, and its end (K4 of docs/client.md)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from ._acquisition import Held, Requests, TooLate
from ._guard import BasePermitGuard, Granted, Holding
from ._numbers import Numbered
from ._payload import payload_base64, payload_text
from ._plan import MOST_NAMES, Ask, Enqueue, Look, plan
from ._timing import Backoff, Budget, lease_to_ms, poll_pause, request_timeout, wait_timeout
from ._watching import WatchFailed, watch
from .errors import LeaseholdError, LockHeld, LockLost, LockNotFound, QueueFull, Superseded, Unavailable
from .model import (
    Entry,
    LockName,
    LockView,
    PermitsGrant,
    ReleaseOutcome,
    SemaphoreView,
)
from .observations import Observation

if TYPE_CHECKING:
    from . import _wire
    from ._core import Core
    from ._watching import Pause

P = TypeVar("P", bound=BasePermitGuard)

_Request: TypeAlias = tuple[Literal["acquire", "enqueue"], Any]
"""A request without its number."""


@dataclass(frozen=True)
class Want:
    """The permits that are asked for."""

    name: LockName
    capacity: int
    permits: int
    owner_name: str
    lease: float
    ticket_lease: float
    """Seconds without a refresh of the ticket after which others may pass it."""
    data: bytes | str | None
    by_clock: bool
    """Whether the service judges which holders are dead, for requests that name none."""


class PermitsAcquisition(Requests[_Request], Generic[P]):
    """Requests permits, and waits in the queue."""

    def __init__(self, core: Core, want: Want, holding: Holding, guard: type[P]) -> None:
        self._want = want
        self._guard = guard
        self._budget: Budget | None = None
        self._shown: SemaphoreView | None = None  # the view in the last answer that had one
        self._asked = 0.0  # before the last request was sent
        self._since = 0.0  # the arrival of the first view that shows the last change
        self._until = 0.0  # before the request for the last of these views: a late answer shows an old row
        super().__init__(core, want.name, want.lease, holding)

    def _begin(self) -> None:
        super()._begin()
        self._ticket: str | None = None
        self._number = 0  # the ticket's; another one, if the ticket was taken for dead
        self._refresh_at = math.inf
        self._must_ask = True  # whatever the plan says
        self._must_read = False  # the view is older than the ticket
        self._queue_was_full = False
        self._names: tuple[Entry, ...] = ()  # the names of the last request
        self._refused = False  # the last request was refused, and nothing was seen since
        # Of the last answer before this lease id had a claim: of a view, then of refusals.
        self._epoch = self._core.entries.epoch(self.name)

    def waits_for(self, guards: Sequence[Any]) -> bool:
        # A holder of some permits may still get others: the capacity may change.
        own = [guard for guard in guards if isinstance(guard, BasePermitGuard) and guard.is_of(self.name)]
        return any(self._want.permits <= guard.capacity == guard.permits for guard in own)

    async def once(self) -> P | Held:
        """One request, without a ticket, and another one where the first was too old. Raises `LeaseholdError`s."""
        timeout = request_timeout(self._want.lease)
        result = await self._ask(self._known_names(), timeout)
        if result is None and isinstance(step := self._plan(math.inf), Ask):
            result = await self._ask(step.names, timeout)
        return self._held() if result is None else result

    async def wait(self, budget: Budget, poll_interval: float | None, sleep: Pause) -> P | Held:
        """Sends a request, and then waits in the queue, until the budget is used up. Raises `Unavailable`
        only if no answer ever came, and other `LeaseholdError`s at once. `sleep` may raise, to end the
        wait."""
        world = self._core.world
        backoff = Backoff(world.chance)
        self._budget = budget
        while True:
            left = max(0.0, budget.deadline - world.now())
            trouble: LeaseholdError
            not_before = 0.0
            try:
                result = await self._turn(left, poll_interval, sleep)
                if result is not None:
                    return result
                backoff = Backoff(world.chance)
                continue
            except TooLate as error:
                trouble, pause, self._must_ask = error, 0.0, True
            except Unavailable as error:
                trouble, not_before = error, error.retry_after
                pause = backoff.pause(not_before)
            except Superseded as error:
                trouble, pause = error, backoff.pause()
                # A ticket has no token: a waiter that asks out of turn would overtake others.
                self._must_ask = self._must_ask or error.fencing_token is not None
            except LockLost as error:
                # This lease id has ended: its ticket was taken for dead, or an operator broke it.
                trouble, pause = error, backoff.pause()
                self.abandon()
                self._begin()
            except QueueFull as error:
                trouble, pause = error, poll_pause(poll_interval, 0.0, world.chance())
                self._queue_was_full = True
                self._see(error.lock)
            left = budget.deadline - world.now()
            if left <= 0 or left < not_before:
                if self._shown is not None:
                    return self._held()
                raise trouble
            await sleep(min(pause, left))

    async def _release(self, lease_id: str, key: int, timeout: float) -> ReleaseOutcome:
        return await self._core.api.release_permits(self.name, lease_id, timeout)

    async def _turn(self, left: float, poll_interval: float | None, sleep: Pause) -> P | Held | None:
        """The next request or look. `Held`: the wait is over. `None`: it goes on."""
        timeout = wait_timeout(self._want.lease, left)
        if self._numbers.open is not None:
            return await self._send_next(self._numbers.open.content, timeout)
        if self._must_ask:
            result = await self._ask(self._known_names() if self._ticket is None else (), timeout)
            return self._held() if result is None and left == 0.0 else result
        if left > 0.0 and (self._ticket is None or self._core.world.now() >= self._refresh_at):
            return await self._enqueue(self._dead_tickets(), timeout)
        if self._must_read:
            await self._read(timeout)
            return None
        step = self._plan(left)
        was_refused = not isinstance(step, Look) and self._refused and step.names == self._names
        if isinstance(step, Ask) and not was_refused:
            result = await self._ask(step.names, timeout, step.turn)
            return self._held() if result is None and left == 0.0 else result
        if left == 0.0:
            return self._held()
        if isinstance(step, Look):
            await self._look(step.seconds, poll_interval, sleep)
        elif was_refused:
            # The same request was refused just now, and nothing has changed since.
            await sleep(min(left, poll_pause(poll_interval, 0.0, self._core.world.chance())))
            await self._read(timeout)
        else:
            return await self._enqueue(step.names, timeout)
        return None

    async def _look(self, within: float, poll_interval: float | None, sleep: Pause) -> None:
        """Returns once the semaphore has changed, or about at the end of this time."""
        assert self._shown is not None  # noqa: S101
        asked = 0.0
        self._asked = self._core.world.now()
        if poll_interval is None and self._core.can_watch:
            try:
                self._see(await watch(self._core, self.name, self._shown.changed, within, sleep))
                return
            except WatchFailed as error:
                asked = error.retry_after
        await sleep(min(within, poll_pause(poll_interval, asked, self._core.world.chance())))
        await self._read(request_timeout(self._want.lease))

    async def _read(self, timeout: float) -> None:
        self._asked = self._core.world.now()
        try:
            self._see(await self._core.api.get_semaphore(self.name, timeout))
        except LockNotFound:
            self._see(None)

    def _see(self, view: LockView | None) -> None:
        """Records the view in an answer."""
        if not isinstance(view, SemaphoreView):
            self._must_ask = True  # the service tells the state
            return
        if self._shown is not None and self._shown.changed == view.changed:
            self._until = self._asked
        else:
            self._since = self._until = self._core.world.now()
        self._shown, self._must_read, self._refused = view, False, False
        self._core.entries.see(view)
        if self._budget is not None:
            # Counts one lease of the holders and tickets that may be dead, beginning with the first refusal.
            own = next((ticket.number for ticket in view.queue if ticket.id == self._ticket), math.inf)
            ahead: list[Entry] = [*view.holders, *(t for t in view.queue if t.number < own)]
            signs_of_life = " ".join(entry.version for entry in ahead)
            longest = max((entry.lease for entry in ahead), default=0.0)
            self._budget.saw(signs_of_life, longest, self._core.world.now())

    def _held(self) -> Held:
        view = self._shown
        assert view is not None  # noqa: S101
        now = self._core.world.now()
        others = [entry for entry in view.entries if entry.id != self._ticket]
        observations = [self._core.entries.observation(self.name, entry) for entry in others]
        first = min(observations, key=lambda o: o.stale_at, default=Observation(view.changed, 0.0, now))
        return Held(view, first, max(0.0, first.stale_at - now))

    def _plan(self, left: float) -> Ask | Enqueue | Look:
        assert self._shown is not None  # noqa: S101
        now = self._core.world.now()
        refresh_in = max(0.0, self._refresh_at - now)
        unchanged, watched = max(0.0, self._until - self._since), now - self._since
        return plan(self._shown, self._want.permits, self._ticket, self._stale_in, refresh_in, left, unchanged, watched)

    def _stale_in(self, entry: Entry) -> float:
        return self._core.entries.stale_in(self.name, entry)

    def _known_names(self) -> tuple[Entry, ...]:
        """The dead entries that this client's earlier calls have shown."""
        view = self._core.entries.view(self.name)
        if view is None or self._want.by_clock:
            return ()
        step = plan(view, self._want.permits, None, self._stale_in, None, math.inf, 0.0, 0.0)
        return step.names if isinstance(step, Ask) else ()

    async def _ask(
        self, names: tuple[Entry, ...], timeout: float, turn: Literal["own", "passing"] | None = None
    ) -> P | None:
        # A waiter vouches for its turn by the view that shows it. If not, the service looks for itself.
        shown = self._shown.epoch if turn and self._shown is not None else ""
        epoch = self._epoch if self._ticket is None else shown
        request = {
            **self._common(names),
            "leaseDurationMs": lease_to_ms(self._want.lease),
            "data": payload_text(self._want.data),
            "dataBase64": payload_base64(self._want.data),
            "staleness": "clock" if self._want.by_clock and not names else None,
            "number": None if self._ticket is None else self._number,
            "epoch": epoch or None,
            "passes": True if epoch and turn == "passing" else None,
        }
        self._names = names
        return await self._send_next(("acquire", request), timeout)

    def _dead_tickets(self) -> tuple[Entry, ...]:
        """The dead that a request for a ticket names, after the queue was full."""
        if not self._queue_was_full or self._shown is None:
            return ()
        dead = [ticket for ticket in self._shown.queue if self._stale_in(ticket) <= 0]
        return tuple(dead[:MOST_NAMES])

    async def _enqueue(self, names: tuple[Entry, ...], timeout: float) -> P | None:
        """Takes a place in the queue, or renews it."""
        request = {
            **self._common(names),
            "leaseDurationMs": lease_to_ms(self._want.ticket_lease),
            "number": None if self._ticket is None else self._number,
            "epoch": self._epoch if self._ticket is None else None,
        }
        self._names = names
        return await self._send_next(("enqueue", request), timeout)

    def _common(self, names: Iterable[Entry]) -> dict[str, object]:
        """The members that both requests share."""
        want = self._want
        observed: list[_wire.ObservedEntry] = [
            {"holderId": entry.id, "version": entry.version, "permits": entry.permits} for entry in names
        ]
        return {
            "key": want.name[0],
            "sortKey": want.name[1],
            "ownerName": want.owner_name,
            "permits": want.permits,
            "capacity": want.capacity,
            "leaseId": self._lease_id,
            "observed": observed,
        }

    async def _send_next(self, content: _Request, timeout: float) -> P | None:
        """Sends the request without an answer again, or else this one. `None` if there are no permits yet."""
        self._asked = self._core.world.now()
        try:
            answer = await self._send(content, timeout, self._call)
        except LockHeld as error:
            if not isinstance(error.lock, SemaphoreView):
                raise Unavailable("the answer is not that of a semaphore") from error
            self._must_ask = False
            self._see(error.lock)
            self._refused, self._epoch = True, error.lock.epoch or None
            return None
        if isinstance(answer, Ticketed):
            self._must_read = self._must_read or self._number != answer.number or bool(self._names)
            self._ticket, self._number, self._queue_was_full = answer.ticket_id, answer.number, False
            self._refresh_at = answer.sent + self._want.ticket_lease / 3
            return None
        self._core.entries.age(self.name, answer.epoch)
        granted = self._believe(Granted(answer.outcome, answer.owner_name, capacity=answer.capacity))
        return self._guarded(self._guard, answer.renewal, granted)

    async def _call(self, numbered: Numbered[_Request], timeout: float) -> PermitsGrant | Ticketed:
        route, request = numbered.content
        body = {**request, **numbered.number}
        if route == "enqueue":
            ticket_id, number = await self._core.api.enqueue(body, timeout)
            return Ticketed(ticket_id, number, numbered.sent)
        return await self._core.api.acquire_permits(body, timeout)


@dataclass(frozen=True)
class Ticketed:
    """The answer to a request for a ticket."""

    ticket_id: str
    number: int
    """Its place in the queue, counted from 1 since the semaphore was made."""
    sent: float
    """The time at which the request was first sent."""
