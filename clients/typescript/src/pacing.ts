/**
 * Pauses, bounds and time-outs of rules C3, C4, C5 and C7, as pure functions. All in milliseconds; `random` is from 0
 * to 1.
 */

import type { Duration } from "./duration.js";

/** The default interval between two polls. */
const POLL_MS = 1000;
/** A lock that nobody wanted is taken again at once for this long. A waiter marks a lock within this time. */
const AT_ONCE_MS = 1000;
/** The shortest poll interval that a caller can choose: about the time of one answer. */
const SHORTEST_POLL_MS = 50;
/** The longest time-out of a request. */
export const LONGEST_REQUEST_MS = 5000;
/** The shortest time-out: below it, a slow network could never renew a short lease. */
const SHORTEST_REQUEST_MS = 200;
/** The shortest time-out in a wait: the last look must not be wasted. */
export const LAST_LOOK_MS = 1000;
/** The longest watch that the service allows. */
export const LONGEST_WATCH_MS = 20_000;
/** The longest `Retry-After`: a proxy must not put a waiter to sleep for a day. */
const LONGEST_RETRY_AFTER_MS = 60_000;
/** The shortest pause between two tries of a heartbeat. */
const SHORTEST_RETRY_MS = 10;
/** The wall clock's lead over a monotonic one that shows a suspension. Adjustments of a clock in use are slower. */
const SUSPENSION_MS = 100;
/** The time-out of one call of a transaction: the service may wait for other transactions for ten seconds. */
export const TRANSACTION_CALL_MS = 15_000;
/** The bound of a release, a look or a break, with all retries; and of a wait until a holder was seen. */
export const OPERATION_BOUND_MS = 10_000;
/** The bound of a release at the end of a scope, and of `close`. It then goes on in the background. */
const LEAVE_BOUND_MS = 2000;
/**
 * The bound of the same, and of a wait for which the caller chose no time, where no connection can be made to a service
 * that has never answered: a mistake in the set-up.
 */
export const UNREACHED_BOUND_MS = 1500;

/**
 * Whether the process was suspended while its monotonic clock and the wall clock went on by so much. A wall clock that is
 * set forward looks the same, and costs a heartbeat.
 */
export function wasSuspended(monotonic: number, wall: number): boolean {
  return wall >= monotonic + SUSPENSION_MS;
}

/**
 * Returns the pause that a `Retry-After` header asks for. Only whole seconds count: a date would compare two clocks.
 */
export function retryAfterMs(header: string | null | undefined): number {
  const digits = header?.trim() ?? "";
  return /^[0-9]+$/.test(digits) ? Math.min(Number(digits) * 1000, LONGEST_RETRY_AFTER_MS) : 0;
}

/** Returns the time-out of a request for, or under, a lease, with this much of its operation left. */
export function requestTimeout(lease = Infinity, left = Infinity, shortest = SHORTEST_REQUEST_MS): number {
  const longest = Math.min(LONGEST_REQUEST_MS, Math.max(SHORTEST_REQUEST_MS, Math.floor(lease / 4)));
  return Math.min(longest, Math.max(left, shortest));
}

/**
 * Returns the part of a request's time-out that one of so many endpoints has. They share the time of an answer, at most
 * 5 s; each has at least 200 ms, as far as three quarters of that time allow. The service's own wait comes on top.
 */
export function endpointTimeout(timeout: number, endpoints: number): number {
  if (endpoints < 2) return timeout;
  const answer = Math.min(timeout, LONGEST_REQUEST_MS);
  return timeout - answer + Math.min((answer * 3) / 4, Math.max(answer / endpoints, SHORTEST_REQUEST_MS));
}

/** Returns the pause after this many requests in a row without a useful answer, from 1. */
export function retryPause(failures: number, retryAfter: number, random: number): number {
  const ceiling = Math.min(100 * 2 ** (failures - 1), 2000);
  return Math.max(retryAfter, Math.floor(random * ceiling));
}

/**
 * Returns the pause before the next try of a heartbeat, with this much of the lease left: patience must not
 * cost the lock.
 */
export function heartbeatRetryPause(pause: number, left: number): number {
  // With nothing left, a holder that holds on has nothing to lose.
  return Math.max(SHORTEST_RETRY_MS, left > 0 ? Math.min(pause, left / 3) : pause);
}

/**
 * Returns the pause between two polls of a held lock: longer by up to a quarter, so that waiters do not move in step.
 */
export function pollPause(chosen: number | undefined, retryAfter: number, random: number): number {
  const interval = chosen === undefined ? Math.max(POLL_MS, retryAfter) : Math.max(chosen, SHORTEST_POLL_MS);
  return interval * (1 + random / 4);
}

/**
 * Returns the time that a watch asks the service to wait, in whole milliseconds. `left` is the time until its
 * client must act.
 */
export function watchDuration(left: number): number {
  return Math.ceil(Math.min(left, LONGEST_WATCH_MS));
}

/**
 * Returns the pause before a client requests a key again that it released `releasedAgo`: one poll, so that
 * others come first. None where nobody waited at the last releases, which began `unwantedFor` ago, for a second.
 */
export function returnPause(
  releasedAgo: number | undefined,
  unwantedFor: number | undefined,
  chosen: number | undefined,
  random: number,
): number {
  if (releasedAgo === undefined || isAtOnce(unwantedFor)) return 0;
  return Math.max(0, pollPause(chosen, 0, random) - releasedAgo);
}

/** Whether a client returns at once to a lock that nobody wanted, for this long. */
export function isAtOnce(unwantedFor: number | undefined): boolean {
  return unwantedFor !== undefined && unwantedFor < AT_ONCE_MS;
}

/** Returns the time that a waiter waits before it marks the lock. */
export function markPause(random: number): number {
  return AT_ONCE_MS * random;
}

/** Returns the default interval of heartbeats. */
export function heartbeatInterval(lease: number): number {
  return lease / 4;
}

/** Returns the longest interval of heartbeats that can keep a lease. */
export function longestHeartbeatInterval(lease: number): number {
  return lease / 2;
}

/** Returns the time from one heartbeat to the next: shorter by up to a tenth, so that holders do not move in step. */
export function heartbeatPause(interval: number, random: number): number {
  return interval - Math.floor(interval * (0.1 * random));
}

/** Returns the wait for a release at the end of a scope, with this much of the lease left. */
export function leaveBound(left: number): number {
  return Math.min(left, LEAVE_BOUND_MS);
}

/**
 * Returns the time for which an observer must see one version: the lease and a thousandth, for clocks that
 * differ in speed.
 */
export function staleAfter(lease: number): number {
  return lease + Math.ceil(lease / 1000);
}

/**
 * The bound of a wait for a held lock:
 *
 * * milliseconds, or a text such as `"20s"`; `Infinity` for no bound;
 * * `"lease"`: one lease of the found holder, plus a margin: enough to outlive a holder that died before the wait
 *   began;
 * * `"extend"`: the same, begun again whenever the holder sent a heartbeat or the lock changed hands.
 */
export type Wait = Duration | "lease" | "extend";

/** The same, with its time in milliseconds. */
export type Bound = number | "lease" | "extend";

/** The bound of one wait. */
export class WaitBudget {
  /** The end of the wait, on the monotonic clock. No request is begun after it. */
  deadline: number;
  #seen: string | undefined;

  constructor(
    private readonly wait: Bound,
    private readonly margin: number,
    now: number,
  ) {
    this.deadline = now + (typeof wait === "number" ? wait : OPERATION_BOUND_MS);
  }

  /** Records that no connection can be made, and that the service has never answered. */
  unreached(begunAt: number): void {
    if (typeof this.wait !== "number") this.deadline = Math.min(this.deadline, begunAt + UNREACHED_BOUND_MS);
  }

  /** Records that the lock was found held, under this version and lease. */
  found(recordVersionNumber: string, lease: number, now: number): void {
    const first = this.#seen === undefined;
    const moved = this.#seen !== recordVersionNumber;
    this.#seen = recordVersionNumber;
    if ((this.wait === "lease" && first) || (this.wait === "extend" && moved))
      this.deadline = now + staleAfter(lease) + this.margin;
  }
}
