"""The plan of a waiter for permits (K5 of docs/client.md): no clock, no I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ._timing import LONGEST_WATCH
from .model import Entry, SemaphoreView

PATIENCE = 5.0
"""Seconds in which a waiter may leave permits that it could take, before those behind it pass."""
MOST_NAMES = 10
"""The most entries that one request may name."""


@dataclass(frozen=True)
class Ask:
    """Request the permits now, and name these dead entries."""

    names: tuple[Entry, ...] = ()
    turn: Literal["own", "passing"] | None = None
    """The view shows that it is the ticket's turn, or that the tickets ahead are dead or leave their permits."""


@dataclass(frozen=True)
class Enqueue:
    """Take a place in the queue, or renew it, and name these dead entries, the first of too many."""

    names: tuple[Entry, ...]


@dataclass(frozen=True)
class Look:
    """Look for at most this long before the next plan."""

    seconds: float


def plan(
    view: SemaphoreView,
    permits: int,
    ticket_id: str | None,
    stale_in: Callable[[Entry], float],
    refresh_in: float | None,
    left: float,
    unchanged: float,
    watched: float,
) -> Ask | Enqueue | Look:
    """`stale_in`: seconds until the entry is dead if it is not renewed. `refresh_in`: seconds until the
    ticket must be refreshed. `left`: seconds left of the wait. `unchanged`: seconds for which the views have
    shown no change. `watched`: seconds since the first of these views."""
    own = next((ticket for ticket in view.queue if ticket.id == ticket_id), None)
    if permits > view.capacity or (own is None and ticket_id is not None):
        return Ask()  # the service tells the reason
    ahead = [
        ticket
        for ticket in view.queue
        if ticket.permits <= view.capacity and (own is None or ticket.number < own.number)
    ]
    alive = [ticket for ticket in ahead if stale_in(ticket) > 0]
    needed, is_left = permits, False
    for ticket in alive:
        fits = view.available >= needed - permits + ticket.permits
        if fits and unchanged >= PATIENCE:
            continue  # it leaves permits that it could take
        is_left = is_left or fits
        needed += ticket.permits
    dead = sorted((holder for holder in view.holders if stale_in(holder) <= 0), key=lambda h: (-h.permits, h.id))
    names: list[Entry] = [] if own is not None else [*ahead]
    covered = view.available
    while covered < needed and dead:
        names.append(dead[0])
        covered += dead.pop(0).permits
    # The service counts the living for a caller without a ticket.
    if covered >= needed and not (alive and own is None):
        if len(names) > MOST_NAMES:
            return Enqueue(tuple(names[:MOST_NAMES]))
        if own is not None:
            # The grant removes them, so that nobody behind waits for them again.
            dead_ahead = [ticket for ticket in ahead if stale_in(ticket) <= 0]
            names += dead_ahead[: MOST_NAMES - len(names)]
        wanted = permits + sum(ticket.permits for ticket in ahead if ticket not in names)
        return Ask(tuple(names), None if own is None else "own" if covered >= wanted else "passing")
    waited_for: list[Entry] = [*ahead, *view.holders]
    times = [stale_in(entry) for entry in waited_for]
    within = min([left, LONGEST_WATCH, *(time for time in times if time > 0)])
    if is_left:
        within = min(within, max(0.0, PATIENCE - watched))
    return Look(within if refresh_in is None else min(within, refresh_in))
