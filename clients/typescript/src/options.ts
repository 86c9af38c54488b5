/** The options of a caller, and their checks. */
import { type Duration, millisecondsOf } from "./duration.js";
import { InvalidRequestError } from "./errors.js";
import type { Bound, Wait } from "./pacing.js";

/** The sort key, on a table that has one, and the signal that ends the call. */
export interface CallOptions {
  sortKey?: string | undefined;
  /** Ends the call during any wait; the call rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
}

/** Options of a heartbeat. */
export interface HeartbeatOptions extends CallOptions {
  /** A new lease, in milliseconds: 100 to 86400000. Default: the guard's; without a guard, the record's. */
  lease?: Duration | undefined;
  /** A new payload; `null` removes it. Default: unchanged. */
  data?: string | Uint8Array | null | undefined;
}

/** Options of a release. */
export interface ReleaseOptions extends CallOptions {
  /** The data for the next holder. Default: unchanged. Not with `delete`. */
  data?: string | Uint8Array | undefined;
  /** The occurrence of the lock, which is now done: no later acquire is granted for it. Not with `delete`. */
  completed?: string | undefined;
  /**
   * The time for which that occurrence is remembered at least. After it, and the retention of all rows, the row may
   * go. Default: for ever.
   */
  completedTtl?: Duration | undefined;
  /** Deletes the row. By default the row stays, with its data and the order of its fencing tokens. */
  delete?: boolean | undefined;
}

/** Returns the members of a release that say what is done. */
export function completionOf({ completed, completedTtl }: ReleaseOptions): {
  completed?: string;
  completedTtlMs?: number;
} {
  return {
    ...(completed === undefined ? {} : { completed }),
    ...(completedTtl === undefined ? {} : { completedTtlMs: Math.ceil(millisecondsOf(completedTtl, "completedTtl")) }),
  };
}

/** Returns a valid lease in milliseconds, and refuses any other value. */
export function checkLease(lease: Duration): number {
  const milliseconds = millisecondsOf(lease, "lease");
  if (Number.isInteger(milliseconds) && milliseconds >= 100 && milliseconds <= 86_400_000) return milliseconds;
  throw new InvalidRequestError("A lease is 100 to 86400000 whole milliseconds.", "lease");
}

/** Refuses what is no whole number in the range, if it is given. */
export function checkWhole(number: number | undefined, name: string, least: number, most?: number): void {
  if (number === undefined || (Number.isInteger(number) && number >= least && number <= (most ?? number))) return;
  const range = most === undefined ? `${least} or more` : `${least} to ${most}`;
  throw new InvalidRequestError(`${name} must be a whole number, ${range}, not ${String(number)}.`, name);
}

/** Returns the bound of a wait, and refuses any other value. */
export function checkWait(wait: Wait): Bound {
  return wait === "lease" || wait === "extend" ? wait : millisecondsOf(wait, "wait");
}
