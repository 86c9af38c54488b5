/** Observations of other holders' locks (rules C3 and C9). */
import { InvalidRequestError } from "./errors.js";
import { staleAfter } from "./pacing.js";
import { Recent } from "./recent.js";
import type { Runtime } from "./runtime.js";

/** An observation for another process: plain JSON. */
export interface SavedObservation {
  key: string;
  sortKey?: string;
  recordVersionNumber: string;
  /** The lease of the record, in milliseconds. */
  leaseDurationMs: number;
  /** The time at which this version was first seen, in milliseconds since the epoch. */
  firstSeenEpochMs: number;
}

interface Observation {
  saved: SavedObservation;
  /** The time from which the lock is stale, on the monotonic clock. */
  staleFrom: number;
}

/** The held locks that a client found, and the times of their first sight. */
export class Observations {
  readonly #observations = new Recent<Observation>();

  constructor(private readonly runtime: Runtime) {}

  /**
   * Records a held lock, after the answer arrived. Returns the time from which it is stale, on the monotonic
   * clock.
   */
  found(key: string, sortKey: string | undefined, recordVersionNumber: string, leaseDurationMs: number): number {
    // The time is rounded up: an observation may seem younger than it is, and never older.
    const firstSeenEpochMs = Math.ceil(this.runtime.epoch());
    const saved = {
      key,
      ...(sortKey !== undefined && { sortKey }),
      recordVersionNumber,
      leaseDurationMs,
      firstSeenEpochMs,
    };
    const known = this.#observations.get(key, sortKey);
    if (known && sameVersion(known.saved, saved)) return known.staleFrom;
    const staleFrom = this.runtime.now() + staleAfter(leaseDurationMs);
    this.#observations.set(key, sortKey, { saved, staleFrom });
    return staleFrom;
  }

  /** Returns the version that was seen for its whole lease, if there is one. */
  stale(key: string, sortKey: string | undefined): string | undefined {
    const known = this.#observations.get(key, sortKey);
    return known && this.runtime.now() >= known.staleFrom ? known.saved.recordVersionNumber : undefined;
  }

  /** Forgets a lock that no other owner holds any more. */
  forget(key: string, sortKey: string | undefined): void {
    this.#observations.delete(key, sortKey);
  }

  save(): SavedObservation[] {
    return [...this.#observations.values()].map(({ saved }) => ({ ...saved }));
  }

  load(list: readonly SavedObservation[], margin: number): void {
    const now = this.runtime.now();
    const epoch = this.runtime.epoch();
    // The load is all or nothing: a list that was loaded in part would be hard to explain.
    const loaded = list.map((entry): Observation => {
      const saved = checked(entry);
      // An observation from the future starts again.
      saved.firstSeenEpochMs = Math.min(saved.firstSeenEpochMs, Math.ceil(epoch));
      return { saved, staleFrom: now + (saved.firstSeenEpochMs + staleAfter(saved.leaseDurationMs) + margin - epoch) };
    });
    for (const observation of loaded) {
      const { key, sortKey } = observation.saved;
      const known = this.#observations.get(key, sortKey);
      if (known && sameVersion(known.saved, observation.saved)) {
        known.saved.firstSeenEpochMs = Math.min(known.saved.firstSeenEpochMs, observation.saved.firstSeenEpochMs);
        known.staleFrom = Math.min(known.staleFrom, observation.staleFrom);
      } else if (!known || known.saved.firstSeenEpochMs < observation.saved.firstSeenEpochMs) {
        this.#observations.set(key, sortKey, observation);
      }
    }
  }
}

const sameVersion = (one: SavedObservation, other: SavedObservation): boolean =>
  one.recordVersionNumber === other.recordVersionNumber && one.leaseDurationMs === other.leaseDurationMs;

/**
 * Returns a copy of a well-formed observation, and refuses any other. A lease that is not a number would make
 * a live lock stale.
 */
function checked(entry: unknown): SavedObservation {
  const { key, sortKey, recordVersionNumber, leaseDurationMs, firstSeenEpochMs } = (entry ?? {}) as Partial<
    Record<string, unknown>
  >;
  const wrong = (field: string): never => {
    throw new InvalidRequestError(`A saved observation has no usable ${field}.`, field);
  };
  const isDuration = (value: unknown): value is number =>
    typeof value === "number" && Number.isFinite(value) && value > 0;
  return {
    key: typeof key === "string" ? key : wrong("key"),
    ...(sortKey != null && { sortKey: typeof sortKey === "string" ? sortKey : wrong("sortKey") }),
    recordVersionNumber: typeof recordVersionNumber === "string" ? recordVersionNumber : wrong("recordVersionNumber"),
    leaseDurationMs: isDuration(leaseDurationMs) ? leaseDurationMs : wrong("leaseDurationMs"),
    firstSeenEpochMs: isDuration(firstSeenEpochMs) ? firstSeenEpochMs : wrong("firstSeenEpochMs"),
  };
}
