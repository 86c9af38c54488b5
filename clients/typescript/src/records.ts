/**
 * Records of idempotency: the occurrence of an event that is done, its result, and the time until which it counts.
 *
 * The occurrence is a number. The result of the first one counts until its time is over; then the second one is due.
 * While an attempt is in progress, the record is a held lock.
 */
import type { TryAcquireOptions } from "./acquire.js";
import { hexOf } from "./derived.js";
import { AlreadyDoneError, CorruptRecordError, InvalidRequestError, PayloadMismatchError } from "./errors.js";
import type { Guard } from "./guard.js";
import type { Held } from "./held.js";
import type { Lock } from "./lock.js";
import type { ReleaseOptions } from "./options.js";
import { jsonOf } from "./transport.js";

/** The largest record in bytes, as the service takes them. */
const LARGEST = 256 * 1024;

/** The longest time in milliseconds for which the service remembers an occurrence, if not for ever. */
const LONGEST_TTL = 10 * 366 * 86_400_000;

/** A record as the lock's data. */
export interface Record {
  /** The hash of the payload; empty where none is compared. */
  readonly payload: string;
  /** The time, in milliseconds since 1970, until which the result counts. */
  readonly until: number;
  readonly result: unknown;
}

/** An attempt that was granted. */
export interface Attempt {
  readonly kind: "attempt";
  readonly guard: Guard;
  readonly occurrence: string;
}

/** A result that counts. */
export interface Known {
  readonly kind: "known";
  readonly record: Record;
}

/** Returns the SHA-256 of a payload's JSON, whose members may come in any order. */
export async function hashOf(payload: unknown): Promise<string> {
  const text = JSON.stringify(JSON.parse(jsonOf(payload ?? null, "payload")), (_, value: unknown) =>
    typeof value === "object" && value !== null && !Array.isArray(value)
      ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)))
      : value,
  );
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return hexOf(new Uint8Array(digest));
}

/** Reads the record of a lock. */
export function recordOf(lock: Lock): Record {
  try {
    const { payload, until, result } = JSON.parse(lock.text ?? "") as Partial<Record>;
    if (typeof payload === "string" && typeof until === "number") return { payload, until, result };
  } catch {
    // The error below says it.
  }
  throw new CorruptRecordError(`The data of ${JSON.stringify(lock.key)} is no record of idempotency.`);
}

/** Refuses another payload under the same key. */
export function compare({ payload }: Record, seen: string, key: string): void {
  if (payload !== seen) throw new PayloadMismatchError(`Another payload came under the key ${JSON.stringify(key)}.`);
}

/** Begins an attempt by `ask`, unless there is a result that counts at this time, in milliseconds since 1970; default: now. */
export async function begin(
  ask: (options: TryAcquireOptions) => Promise<Guard | Held>,
  payload: string,
  at?: number,
): Promise<Attempt | Held | Known> {
  for (let number = 1; ; ) {
    const occurrence = String(number).padStart(10, "0");
    try {
      const asked = await ask({ occurrence, data: textOf({ payload, until: 0, result: null }), staleness: "clock" });
      return asked.kind === "held" ? asked : { kind: "attempt", guard: asked, occurrence };
    } catch (error) {
      if (!(error instanceof AlreadyDoneError) || error.lock?.lastOccurrence === undefined) throw error;
      const record = recordOf(error.lock);
      if ((at ?? Date.now()) < record.until) return { kind: "known", record };
      number = Number(error.lock.lastOccurrence) + 1;
    }
  }
}

/** Returns the end of an attempt that succeeded. The row may go when the result counts no more. */
export function leavingOf({ occurrence }: Attempt, record: Record): Omit<ReleaseOptions, "sortKey"> {
  const left = Math.max(1, record.until - Date.now());
  return { completed: occurrence, completedTtl: left <= LONGEST_TTL ? left : undefined, data: textOf(record) };
}

function textOf({ payload, until, result }: Record): string {
  const text = jsonOf({ payload, until, result: result ?? null }, "result");
  if (new TextEncoder().encode(text).length > LARGEST)
    throw new InvalidRequestError("The result is too large: a record has at most 256 KiB.", "result");
  return text;
}
