"""Observations of locks that others hold (an observer counts from after the answer)."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from ._timing import stale_after
from .errors import InvalidRequest

if TYPE_CHECKING:
    from typing_extensions import NotRequired

    from ._world import World
    from .model import Entry, LockName, LockView, SemaphoreView

_KEPT = 10_000  # enough for any caller's locks; the bound keeps a client of many keys from growing


class SavedObservation(TypedDict):
    """An observation that outlives the process; the same document in every language."""

    key: str
    sortKey: NotRequired[str]
    recordVersionNumber: str
    leaseDurationMs: int
    firstSeenEpochMs: int


@dataclass(frozen=True)
class Observation:
    """A version, and the time since it was first seen."""

    record_version_number: str
    lease: float
    """The record's own lease, in seconds."""
    first_seen: float
    """The time of the first answer, on this client's monotonic clock."""
    margin: float = 0.0
    """Seconds added to the lease, if the wall clocks of several machines measured the age."""

    @property
    def stale_at(self) -> float:
        """The time from which the lock may be taken over, unless its version changes."""
        return self.first_seen + stale_after(self.lease) + self.margin


class Observations:
    """The observations of one client, kept across its calls. Safe to use from several threads."""

    def __init__(self, world: World, margin: float) -> None:
        self._world = world
        self._margin = margin
        self._seen: dict[LockName, Observation] = {}
        self.reset_lock()

    def reset_lock(self) -> None:
        """Replaces the mutex in the child of a fork: its holder may be a thread that does not exist there."""
        self._lock = threading.Lock()

    def see(self, lock: LockView) -> Observation:
        """Records an answer that has arrived. A changed version starts a new observation."""
        name = (lock.key, lock.sort_key)
        with self._lock:
            known = self._seen.pop(name, None)
            if known is None or (known.record_version_number, known.lease) != (
                lock.record_version_number,
                lock.lease,
            ):
                known = Observation(lock.record_version_number, lock.lease, self._world.now())
            self._insert(name, known)
            return known

    def forget(self, name: LockName) -> None:
        """Forgets a lock that is free, or held by this client."""
        with self._lock:
            self._seen.pop(name, None)

    def stale_version(self, name: LockName) -> str | None:
        """The version to send with an acquire: one that was seen for its lease and a thousandth."""
        with self._lock:
            known = self._seen.get(name)
        if known is None or self._world.now() < known.stale_at:
            return None
        return known.record_version_number

    def save(self) -> list[SavedObservation]:
        """All observations, measured by the wall clock."""
        now, epoch_ms = self._world.now(), self._world.epoch_ms()
        with self._lock:
            seen = list(self._seen.items())
        saved: list[SavedObservation] = []
        for (key, sort_key), known in seen:
            entry: SavedObservation = {
                "key": key,
                "recordVersionNumber": known.record_version_number,
                "leaseDurationMs": round(known.lease * 1000),
                # Rounded up: an observation may seem younger than it is, never older.
                "firstSeenEpochMs": math.ceil(epoch_ms - (now - known.first_seen) * 1000),
            }
            if sort_key is not None:
                entry["sortKey"] = sort_key
            saved.append(entry)
        return saved

    def load(self, saved: Iterable[SavedObservation]) -> None:
        """Adds saved observations. An observation of this client's stays, unless the saved one is of the same
        version and older. Raises `InvalidRequest` for a malformed entry, before anything is added."""
        now, epoch_ms = self._world.now(), self._world.epoch_ms()
        loaded = [_loaded(entry, now, epoch_ms, self._margin) for entry in saved]
        with self._lock:
            for name, observation in loaded:
                known = self._seen.get(name)
                if known is None or (
                    (known.record_version_number, known.lease) == (observation.record_version_number, observation.lease)
                    and observation.stale_at < known.stale_at
                ):
                    self._seen.pop(name, None)
                    self._insert(name, observation)

    def _insert(self, name: LockName, observation: Observation) -> None:
        self._seen[name] = observation
        if len(self._seen) > _KEPT:
            del self._seen[next(iter(self._seen))]  # the one not seen for longest


class Entries:
    """The observations of the holders and tickets of semaphores (K3). Safe to use from several threads."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: dict[LockName, tuple[SemaphoreView, dict[str, Observation]]] = {}
        self._epochs: dict[LockName, str] = {}
        self.reset_lock()

    def reset_lock(self) -> None:
        """As `Observations.reset_lock`."""
        self._lock = threading.Lock()

    def see(self, view: SemaphoreView) -> None:
        """Records a view that has arrived. Entries that it does not show are forgotten."""
        now = self._world.now()
        with self._lock:
            _, known = self._seen.pop(view.name, (view, {}))
            self._seen[view.name] = (
                view,
                {entry.id: _going_on(known.get(entry.id), entry, now) for entry in view.entries},
            )
            if len(self._seen) > _KEPT:
                del self._seen[next(iter(self._seen))]
        self.age(view.name, view.epoch)

    def age(self, name: LockName, epoch: str) -> None:
        """Records the epoch that an answer shows. An older service shows none."""
        if not epoch:
            return
        with self._lock:
            self._epochs.pop(name, None)
            self._epochs[name] = epoch
            if len(self._epochs) > _KEPT:
                del self._epochs[next(iter(self._epochs))]

    def granted(self, name: LockName, token: int) -> None:
        """Records a grant whose answer shows no epoch: the row has at least this token, and the tickets of before."""
        known = self.epoch(name)
        if known is not None:
            self.age(name, f"{token}.{known.split('.')[1]}")

    def epoch(self, name: LockName) -> str | None:
        """Returns the last epoch of the semaphore: a request with it is refused when it arrives too late."""
        with self._lock:
            return self._epochs.get(name)

    def view(self, name: LockName) -> SemaphoreView | None:
        """Returns the last view of the semaphore."""
        with self._lock:
            return self._seen[name][0] if name in self._seen else None

    def observation(self, name: LockName, entry: Entry) -> Observation:
        """Returns the observation of an entry, which is new if the entry was not seen before."""
        with self._lock:
            known = self._seen[name][1].get(entry.id) if name in self._seen else None
        return _going_on(known, entry, self._world.now())

    def stale_in(self, name: LockName, entry: Entry) -> float:
        """Seconds until the entry is dead, unless it is renewed."""
        return self.observation(name, entry).stale_at - self._world.now()


def _going_on(known: Observation | None, entry: Entry, now: float) -> Observation:
    """Returns the present observation if it continues, or else a new one."""
    if known is not None and (known.record_version_number, known.lease) == (entry.version, entry.lease):
        return known
    return Observation(entry.version, entry.lease, now)


def _loaded(entry: SavedObservation, now: float, epoch_ms: float, margin: float) -> tuple[LockName, Observation]:
    try:
        name = (entry["key"], entry.get("sortKey"))
        version, lease_ms = entry["recordVersionNumber"], entry["leaseDurationMs"]
        age = (epoch_ms - entry["firstSeenEpochMs"]) / 1000
        readable = isinstance(name[0], str) and isinstance(version, str) and lease_ms >= 0
    except (AttributeError, KeyError, TypeError) as error:
        raise InvalidRequest("no saved observation: a member is missing", "observations") from error
    if not readable or not isinstance(name[1], str | None) or not math.isfinite(age):
        raise InvalidRequest("no saved observation: a member is of the wrong kind", "observations")
    # A time in the future starts the observation again.
    return name, Observation(version, lease_ms / 1000, now - max(0.0, age), margin)
