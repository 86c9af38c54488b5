/** The options of a caller, and their checks. */
import { InvalidRequestError } from "./errors.js";

/** The sort key, on a table that has one, and the signal that ends the call. */
export interface CallOptions {
  sortKey?: string | undefined;
  /** Ends the call during any wait; the call rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
}

/** Options of a heartbeat. */
export interface HeartbeatOptions extends CallOptions {
  /** A new lease, in milliseconds: 100 to 86400000. Default: the guard's; without a guard, the record's. */
  lease?: number | undefined;
  /** A new payload; `null` removes it. Default: unchanged. */
  data?: string | Uint8Array | null | undefined;
}

/** Options of a release. */
export interface ReleaseOptions extends CallOptions {
  /** The data for the next holder. Default: unchanged. Not with `delete`. */
  data?: string | Uint8Array | undefined;
  /** The occurrence of the lock, which is now done: no later acquire is granted for it. Not with `delete`. */
  completed?: string | undefined;
  /** Deletes the row. By default the row stays, with its data and the order of its fencing tokens. */
  delete?: boolean | undefined;
}

/** Returns a valid lease, and refuses any other value. */
export function checkLease(lease: number): number {
  if (Number.isInteger(lease) && lease >= 100 && lease <= 86_400_000) return lease;
  throw new InvalidRequestError("A lease is 100 to 86400000 whole milliseconds.", "lease");
}

/** Returns a valid duration, and refuses any other value. */
export function checkDuration(name: string, duration: number): number {
  if (duration >= 0) return duration;
  throw new InvalidRequestError(`${name} must be 0 or more milliseconds.`, name);
}
