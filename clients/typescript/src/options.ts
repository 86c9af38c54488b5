/** What a caller can choose, and what is refused of it. */
import { InvalidRequestError } from "./errors.js";
import type { Guard } from "./guard.js";
import type { Wait } from "./pacing.js";
import type { Runtime } from "./runtime.js";
import type { Fetch, Token } from "./transport.js";

/** Options of a client. All durations in milliseconds. */
export interface ClientOptions {
  /** Where the service is, with the stage if there is one: `https://abc.execute-api.eu-central-1.amazonaws.com/prod`. */
  url: string | URL;
  /** Who holds the locks, for people to read: 1 to 1024 bytes. Default: `hostname:pid`. */
  ownerName?: string | undefined;
  /** Sent as `Authorization: Bearer`. A function is called for each request. */
  token?: Token | undefined;
  /** Sends the requests, instead of the global `fetch`: to sign them, to trace them, to go through a proxy. It must not try again. */
  fetch?: Fetch | undefined;
  /** Default lease: 100 to 86400000. Default: 20000. */
  lease?: number | undefined;
  /** Between two polls of a held lock, if the service does not ask for more. Default: 1000. */
  pollInterval?: number | undefined;
  /** How long a wait goes on after the lease of the holder that was found. Default: 2000. */
  waitMargin?: number | undefined;
  /**
   * Told of a release that failed where throwing it would hide the result, or the error, of the work under the lock: at the end of
   * `withLock` and of `await using`. A lock that could not be released is free one lease after its last heartbeat.
   */
  onReleaseError?: ((error: unknown, guard: Guard) => void) | undefined;
  /** Clock, timers and chance, for tests. */
  runtime?: Runtime | undefined;
}

/** Which lock, on a table with a sort key; and what ends the call early. */
export interface CallOptions {
  sortKey?: string | undefined;
  /** Ends the call, at whatever it waits for; it rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
}

/** How a held lock is kept. All durations in milliseconds. */
export interface GuardOptions {
  /** Between two heartbeats: at most half the lease. Default: a quarter of it. `false`: heartbeats are yours to send. */
  heartbeatInterval?: number | false | undefined;
  /**
   * Goes on believing in the lock when its lease has run out and the service cannot be reached. **Another holder may have taken it over
   * meanwhile.** Only for work where two at once are better than none. Default: false.
   */
  holdOnUnavailable?: boolean | undefined;
  /** Called when the lease has less than `atRiskBelow` left: once for each lease that was not renewed in time. */
  onAtRisk?: ((guard: Guard) => void) | undefined;
  /** Above 0. Default: half the lease. */
  atRiskBelow?: number | undefined;
}

/** Options of `tryAcquire`. */
export interface TryAcquireOptions extends CallOptions, GuardOptions {
  /** For people to read: 1 to 1024 bytes. Default: the client's. */
  ownerName?: string | undefined;
  /** How long others must see no heartbeat before they may take over, in milliseconds: 100 to 86400000. Default: the client's. */
  lease?: number | undefined;
  /** The payload to store, at most 256 KiB. Default: what the row has stays. */
  data?: string | Uint8Array | undefined;
  /** If false, the payload is stored only where the row has none. Default: true. */
  replaceData?: boolean | undefined;
  /** If true, a missing row is refused with {@link LockNotFoundError}. Default: false. */
  onlyIfExists?: boolean | undefined;
  /** Further attributes of the row, at most 50. */
  attributes?: Record<string, unknown> | undefined;
  /**
   * How a dead holder is noticed: `"rvn"`, by this client's own observation of its versions; `"clock"`, by the servers' clocks, at
   * once and with trust in them. Default: `"rvn"`.
   */
  staleness?: "rvn" | "clock" | undefined;
}

/** Options of `acquire` and `withLock`. */
export interface AcquireOptions extends TryAcquireOptions {
  /** How long to wait. Default: `"lease"`. */
  wait?: Wait | undefined;
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

/** Refuses what could not keep a lock of this lease. */
export function checkGuardOptions({ heartbeatInterval, atRiskBelow }: GuardOptions, lease: number): void {
  if (typeof heartbeatInterval === "number" && !(heartbeatInterval > 0 && heartbeatInterval <= lease / 2)) {
    throw new InvalidRequestError("The heartbeat interval must be above 0 and at most half the lease.", "heartbeatInterval");
  }
  if (atRiskBelow !== undefined && !(atRiskBelow > 0)) {
    throw new InvalidRequestError("atRiskBelow must be above 0 milliseconds.", "atRiskBelow");
  }
}
