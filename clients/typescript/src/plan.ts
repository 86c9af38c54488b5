/** The next step of a waiter for permits (rules K3 and K5). */
import type { Holder, SemaphoreView, Ticket } from "./lock.js";
import { LONGEST_WATCH_MS, staleAfter } from "./pacing.js";
import { Recent } from "./recent.js";
import type { Runtime } from "./runtime.js";

/** The largest number of dead entries that one request names. */
export const MOST_NAMES = 10;

/** The time in which a waiter may leave permits that it could take, before those behind it pass. */
const PATIENCE_MS = 5000;

/** A dead holder or ticket, as a request names it. */
export interface DeadEntry {
  readonly holderId: string;
  readonly version: string;
  readonly permits: number;
}

/**
 * An acquire that names these entries. `own`: the view shows that it is the ticket's turn. `passing`: the view shows that
 * the tickets ahead are dead, or leave permits that they could take.
 */
export interface Ask {
  readonly ask: readonly DeadEntry[];
  readonly turn?: "own" | "passing";
}

/**
 * The next step: an acquire that names these entries, an enqueue that names the first of too many, or a look for at most
 * this time, in milliseconds.
 */
export type Plan = Ask | { readonly enqueue: readonly DeadEntry[] } | { readonly waitMs: number };

/** The waiter that the plan is for. */
export interface Wanted {
  readonly permits: number;
  /** The caller's own ticket. */
  readonly ticketId: string | undefined;
  /** The time until the ticket must be refreshed, in milliseconds. */
  readonly refreshIn: number;
  /** The rest of the wait. */
  readonly left: number;
  /** The time for which the views have shown no change, in milliseconds. */
  readonly unchanged: number;
  /** The time since the first of these views, in milliseconds. */
  readonly watched: number;
}

/** The part of a view that decides. */
export type Permits = Pick<SemaphoreView, "capacity" | "available"> & {
  readonly holders: readonly Pick<Holder, "holderId" | "version" | "leaseDurationMs" | "permits">[];
  readonly queue: readonly Pick<Ticket, "ticketId" | "version" | "leaseDurationMs" | "permits" | "number">[];
};

/** Returns the time for which an entry was seen with this version. */
export type AgeOf = (id: string, version: string) => number;

interface Entry {
  readonly name: DeadEntry;
  /** The time until the entry is dead, in milliseconds: 0 or less if it is dead. */
  readonly left: number;
}

/** Decides whether to request the permits, and which entries to name as dead. */
export function plan(view: Permits, wanted: Wanted, ageOf: AgeOf): Plan {
  const entry = (
    holderId: string,
    { version, leaseDurationMs, permits }: { version: string; leaseDurationMs: number; permits: number },
  ): Entry => ({
    name: { holderId, version, permits },
    left: staleAfter(leaseDurationMs) - ageOf(holderId, version),
  });
  const own = view.queue.find(({ ticketId }) => ticketId === wanted.ticketId);
  // The answer of the service tells what became of the ticket, or that the capacity does not suffice.
  if ((wanted.ticketId !== undefined && !own) || wanted.permits > view.capacity) return { ask: [] };
  const isAhead = (ticket: Permits["queue"][number]): boolean =>
    ticket.permits <= view.capacity && (!own || ticket.number < own.number);
  const ahead = view.queue.filter(isAhead).map((ticket) => entry(ticket.ticketId, ticket));
  const holders = view.holders.map((holder) => entry(holder.holderId, holder));
  const lives = [...ahead, ...holders].map(({ left }) => left).filter((left) => left > 0);
  const { unchanged, watched } = wanted;
  let reserved = 0;
  for (const { name, left } of ahead) {
    if (left <= 0) continue;
    const fits = view.available >= reserved + name.permits;
    // A waiter that leaves permits that it could take is passed.
    if (fits && unchanged >= PATIENCE_MS) continue;
    if (fits) lives.push(PATIENCE_MS - watched);
    reserved += name.permits;
  }
  const wait = { waitMs: Math.max(0, Math.min(...lives, wanted.refreshIn, wanted.left, LONGEST_WATCH_MS)) };
  // The service counts the living for a caller without a ticket.
  if (!own && ahead.some(({ left }) => left > 0)) return wait;
  const names = own ? [] : ahead.map(({ name }) => name);
  let missing = wanted.permits + reserved - view.available;
  let free = view.available;
  const dead = holders.filter(({ left }) => left <= 0).map(({ name }) => name);
  dead.sort((one, other) => other.permits - one.permits || (one.holderId < other.holderId ? -1 : 1));
  for (const name of dead) {
    if (missing <= 0) break;
    names.push(name);
    missing -= name.permits;
    free += name.permits;
  }
  if (missing > 0) return wait;
  if (names.length > MOST_NAMES) return { enqueue: names.slice(0, MOST_NAMES) };
  if (!own) return { ask: names };
  // The grant removes them, so that nobody behind waits for them again.
  const deadAhead = ahead.filter(({ left }) => left <= 0).map(({ name }) => name);
  names.push(...deadAhead.slice(0, MOST_NAMES - names.length));
  const rest = ahead.filter(({ name }) => !names.includes(name)).reduce((sum, { name }) => sum + name.permits, 0);
  return { ask: names, turn: free >= rest + wanted.permits ? "own" : "passing" };
}

/** The last view of each semaphore, and the time since when each of its entries has its version. */
export class Sightings {
  readonly #sightings = new Recent<{ view: SemaphoreView; since: Map<string, { version: string; time: number }> }>();
  readonly #epochs = new Recent<string>();

  constructor(private readonly runtime: Runtime) {}

  /** Records a view of the semaphore, after the answer arrived. Entries that the view lacks are forgotten. */
  saw(view: SemaphoreView): void {
    const known = this.#sightings.get(view.key, view.sortKey)?.since;
    const time = this.runtime.now();
    const entries = [
      ...view.holders.map(({ holderId, version }) => [holderId, version] as const),
      ...view.queue.map(({ ticketId, version }) => [ticketId, version] as const),
    ];
    const since = new Map(
      entries.map(([id, version]) => {
        const before = known?.get(id);
        return [id, before?.version === version ? before : { version, time }];
      }),
    );
    this.#sightings.set(view.key, view.sortKey, { view, since });
    this.aged(view.key, view.sortKey, view.epoch);
  }

  /** Records the epoch that an answer shows. An older service shows none. */
  aged(key: string, sortKey: string | undefined, epoch: string | undefined): void {
    if (epoch) this.#epochs.set(key, sortKey, epoch);
  }

  /** Records a grant whose answer shows no epoch: the row has at least this token, and the tickets of before. */
  granted(key: string, sortKey: string | undefined, token: number): void {
    const known = this.epoch(key, sortKey)?.split(".")[1];
    if (known !== undefined) this.aged(key, sortKey, `${token}.${known}`);
  }

  /** Returns the last epoch of the semaphore: a request with it is refused when it arrives too late. */
  epoch(key: string, sortKey: string | undefined): string | undefined {
    return this.#epochs.get(key, sortKey);
  }

  /** Returns the last view. */
  last(key: string, sortKey: string | undefined): SemaphoreView | undefined {
    return this.#sightings.get(key, sortKey)?.view;
  }

  /** Returns the present ages of the semaphore's entries. */
  ages(key: string, sortKey: string | undefined): AgeOf {
    const since = this.#sightings.get(key, sortKey)?.since;
    const now = this.runtime.now();
    return (id, version) => {
      const seen = since?.get(id);
      return seen?.version === version ? now - seen.time : 0;
    };
  }
}
