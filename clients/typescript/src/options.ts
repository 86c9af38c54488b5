/** What a caller can choose, and what is refused of it. */
import { InvalidRequestError } from "./errors.js";

/** Which lock, on a table with a sort key; and what ends the call early. */
export interface CallOptions {
  sortKey?: string | undefined;
  /** Ends the call, at whatever it waits for; it rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
}

/** Options of a heartbeat. */
export interface HeartbeatOptions extends CallOptions {
  /** A new lease, in milliseconds: 100 to 86400000. Default: the guard's; without a guard, the record's. */
  lease?: number | undefined;
  /** A new payload; `null` removes it. Default: it stays. */
  data?: string | Uint8Array | null | undefined;
}

/** Options of a release. */
export interface ReleaseOptions extends CallOptions {
  /** What to leave to the next holder. Default: what is there. Not with `delete`. */
  data?: string | Uint8Array | undefined;
  /**
   * The occurrence that the lock was acquired for, which is done: no later acquire is granted for it. Not with
   * `delete`.
   */
  completed?: string | undefined;
  /** Deletes the row. Default: false; the row stays, and with it its data and the order of its fencing tokens. */
  delete?: boolean | undefined;
}

/** Returns the lease, if it is one. */
export function checkLease(lease: number): number {
  if (Number.isInteger(lease) && lease >= 100 && lease <= 86_400_000) return lease;
  throw new InvalidRequestError("A lease is 100 to 86400000 whole milliseconds.", "lease");
}

/** Returns the duration, if it is one. */
export function checkDuration(name: string, duration: number): number {
  if (duration >= 0) return duration;
  throw new InvalidRequestError(`${name} must be 0 or more milliseconds.`, name);
}
