// The locks as this page saw them: when a version was first seen, and what changed since. Pure: time comes from the caller.
import type { Lock, Semaphore } from "./wire.js";

/** Observers wait the lease and a thousandth of it, for clocks that run at slightly different speeds. */
const DRIFT = 1.001;
/** Longest timeline of one lock. */
const MAX_EVENTS = 100;

export type State = "held" | "stale" | "released";
export type EventKind =
  | "seen"
  | "acquired"
  | "renewed"
  | "reacquired"
  | "changed hands"
  | "taken over"
  | "changed"
  | "released"
  | "gone";

export interface Event {
  kind: EventKind;
  /** The monotonic time of the (last) answer that showed the event. */
  at: number;
  /** The number of repeats in a row. */
  count: number;
  ownerName: string;
  previousOwnerName?: string;
  fencingToken?: number;
}

/** One lock, with the history of this page's looks at it. */
export interface Seen {
  id: string;
  lock: Lock;
  /** The key in lower case, for filters. */
  searchKey: string;
  searchOwner: string;
  /** The arrival of the first answer with this version. */
  since: number;
  /** The sending of the last request whose answer had this version. */
  confirmed: number;
  /** Whether the version was there at the first look, and may be older than `since` says. */
  olderThanSeen: boolean;
  events: Event[];
  gone: boolean;
}

export function idOf(lock: { key: string; sortKey?: string | null }): string {
  return lock.sortKey == null ? lock.key : `${lock.key}\0${lock.sortKey}`;
}

/** Time without a heartbeat after which the lock is stale. */
export function staleAfterMs(lock: Lock): number {
  return lock.leaseDurationMs * DRIFT;
}

export function isSemaphore(lock: Lock): lock is Lock & Semaphore {
  return lock.kind === "semaphore";
}

/** Names of all holders. */
export function ownersOf(lock: Lock): string {
  return isSemaphore(lock) ? lock.holders.map((holder) => holder.ownerName).join(", ") : lock.ownerName;
}

/** A version is stale only when a request that was sent after the lease was over still found it. */
export function stateOf(seen: Seen): State {
  if (seen.lock.state !== "held") return "released";
  // Each holder has a lease of its own.
  if (isSemaphore(seen.lock)) return seen.lock.holders.length > 0 ? "held" : "released";
  return seen.confirmed - seen.since >= staleAfterMs(seen.lock) ? "stale" : "held";
}

/** All locks of a service, as this page saw them. */
export class Observations {
  readonly locks = new Map<string, Seen>();
  /** False until one listing was read to its end: its rows were there before. */
  complete = false;

  /** Records one lock of an answer to a request of the time `asked` that arrived at `arrived`. */
  observe(lock: Lock, asked: number, arrived: number): Seen {
    const id = idOf(lock);
    const seen = this.locks.get(id);
    if (!seen) {
      const created = this.create(id, lock, asked, arrived);
      this.locks.set(id, created);
      return created;
    }
    // An answer to an earlier request that arrives late shows an earlier state.
    if (asked < seen.confirmed) return seen;
    if (seen.gone || seen.lock.recordVersionNumber !== lock.recordVersionNumber || seen.lock.state !== lock.state) {
      record(seen, eventOf(seen, lock, arrived));
      seen.since = arrived;
      seen.olderThanSeen = false;
      seen.gone = false;
    }
    seen.lock = lock;
    seen.searchOwner = ownersOf(lock).toLowerCase();
    seen.confirmed = asked;
    return seen;
  }

  /**
   * Ends a whole listing whose first request was sent at `started`. Locks that the listing did not show are
   * gone.
   */
  endListing(started: number, now: number): void {
    for (const seen of this.locks.values()) {
      if (seen.confirmed < started) this.remove(seen, now);
    }
    this.complete = true;
  }

  /** Records that the service has no such lock. */
  remove(seen: Seen, now: number): void {
    record(seen, { kind: "gone", at: now, count: 1, ownerName: seen.lock.ownerName });
    seen.gone = true;
    this.locks.delete(seen.id);
  }

  private create(id: string, lock: Lock, asked: number, arrived: number): Seen {
    const kind = !this.complete ? "seen" : lock.state === "held" ? "acquired" : "released";
    return {
      id,
      lock,
      searchKey: (lock.sortKey == null ? lock.key : `${lock.key} ${lock.sortKey}`).toLowerCase(),
      searchOwner: ownersOf(lock).toLowerCase(),
      since: arrived,
      confirmed: asked,
      olderThanSeen: !this.complete,
      events: [{ kind, at: arrived, count: 1, ownerName: ownersOf(lock), ...tokenOf(lock) }],
      gone: false,
    };
  }
}

function tokenOf(lock: Lock): { fencingToken?: number } {
  return lock.fencingToken == null ? {} : { fencingToken: lock.fencingToken };
}

function eventOf(before: Seen, lock: Lock, at: number): Event {
  const event = { at, count: 1, ownerName: lock.ownerName, ...tokenOf(lock) };
  if (isSemaphore(lock)) return { kind: "changed", ...event, ownerName: ownersOf(lock) };
  if (lock.state !== "held") return { kind: "released", ...event };
  if (before.lock.state !== "held" || before.gone) return { kind: "acquired", ...event };
  const sameOwner = before.lock.ownerName === lock.ownerName;
  if (sameOwner && before.lock.fencingToken === lock.fencingToken) return { kind: "renewed", ...event };
  if (sameOwner) return { kind: "reacquired", ...event };
  const kind = stateOf(before) === "stale" ? "taken over" : "changed hands";
  return { kind, ...event, previousOwnerName: before.lock.ownerName };
}

function record(seen: Seen, event: Event): void {
  const last = seen.events.at(-1);
  const mayRepeat = event.kind === "renewed" || event.kind === "changed";
  if (mayRepeat && last?.kind === event.kind && last.ownerName === event.ownerName) {
    last.count += 1;
    last.at = event.at;
    return;
  }
  seen.events.push(event);
  if (seen.events.length > MAX_EVENTS) seen.events.shift();
}
