/** What was seen of other holders' locks, and since when (rules C3 and C9). */
import { InvalidRequestError } from "./errors.js";
import type { Runtime } from "./runtime.js";

/** An observation as it is kept between two processes: plain JSON. */
export interface SavedObservation {
  key: string;
  sortKey?: string;
  recordVersionNumber: string;
  /** The lease of the record, in milliseconds. */
  leaseDurationMs: number;
  /** When this version was first seen, in milliseconds since the epoch. */
  firstSeenEpochMs: number;
}

interface Observation {
  saved: SavedObservation;
  /** When the lock is stale, on the monotonic clock. */
  staleFrom: number;
}

/** More than any process waits for at once. The oldest are forgotten, which costs their waiters a lease and nothing else. */
const MOST_OBSERVATIONS = 10_000;

export class Observations {
  readonly #observations = new Map<string, Observation>();

  constructor(private readonly runtime: Runtime) {}

  /** The lock was found held. To be called after the answer arrived. Returns when it is stale, on the monotonic clock. */
  found(key: string, sortKey: string | undefined, recordVersionNumber: string, leaseDurationMs: number): number {
    const firstSeenEpochMs = Math.round(this.runtime.epoch());
    const saved = { key, ...(sortKey !== undefined && { sortKey }), recordVersionNumber, leaseDurationMs, firstSeenEpochMs };
    const known = this.#observations.get(id(saved));
    if (known && sameVersion(known.saved, saved)) return known.staleFrom;
    const staleFrom = this.runtime.now() + leaseDurationMs;
    this.#put({ saved, staleFrom });
    return staleFrom;
  }

  /** The version that was seen for its whole lease, if there is one. */
  stale(key: string, sortKey: string | undefined): string | undefined {
    const known = this.#observations.get(id({ key, sortKey }));
    return known && this.runtime.now() >= known.staleFrom ? known.saved.recordVersionNumber : undefined;
  }

  /** Nobody else holds the lock any more. */
  forget(key: string, sortKey: string | undefined): void {
    this.#observations.delete(id({ key, sortKey }));
  }

  save(): SavedObservation[] {
    return [...this.#observations.values()].map(({ saved }) => ({ ...saved }));
  }

  load(list: readonly SavedObservation[], margin: number): void {
    const now = this.runtime.now();
    const epoch = this.runtime.epoch();
    // All or nothing: half a list would be hard to explain.
    const loaded = list.map((entry): Observation => {
      const saved = checked(entry);
      // One from the future starts again.
      saved.firstSeenEpochMs = Math.min(saved.firstSeenEpochMs, Math.round(epoch));
      return { saved, staleFrom: now + (saved.firstSeenEpochMs + saved.leaseDurationMs + margin - epoch) };
    });
    for (const observation of loaded) {
      const known = this.#observations.get(id(observation.saved));
      if (known && sameVersion(known.saved, observation.saved)) {
        known.saved.firstSeenEpochMs = Math.min(known.saved.firstSeenEpochMs, observation.saved.firstSeenEpochMs);
        known.staleFrom = Math.min(known.staleFrom, observation.staleFrom);
      } else if (!known || known.saved.firstSeenEpochMs < observation.saved.firstSeenEpochMs) {
        this.#put(observation);
      }
    }
  }

  #put(observation: Observation): void {
    const name = id(observation.saved);
    // Deleted first, so that the map's order is that of the last change.
    this.#observations.delete(name);
    this.#observations.set(name, observation);
    for (const oldest of this.#observations.keys()) {
      if (this.#observations.size <= MOST_OBSERVATIONS) break;
      this.#observations.delete(oldest);
    }
  }
}

const id = ({ key, sortKey }: { key: string; sortKey?: string | undefined }): string => JSON.stringify([key, sortKey]);

const sameVersion = (one: SavedObservation, other: SavedObservation): boolean =>
  one.recordVersionNumber === other.recordVersionNumber && one.leaseDurationMs === other.leaseDurationMs;

/** A copy of what is an observation. Refuses all else: a lease that is not a number would make a live lock stale. */
function checked(entry: unknown): SavedObservation {
  const { key, sortKey, recordVersionNumber, leaseDurationMs, firstSeenEpochMs } = (entry ?? {}) as Partial<Record<string, unknown>>;
  const wrong = (field: string): never => {
    throw new InvalidRequestError(`A saved observation has no usable ${field}.`, field);
  };
  const isDuration = (value: unknown): value is number => typeof value === "number" && Number.isFinite(value) && value > 0;
  return {
    key: typeof key === "string" ? key : wrong("key"),
    ...(sortKey != null && { sortKey: typeof sortKey === "string" ? sortKey : wrong("sortKey") }),
    recordVersionNumber: typeof recordVersionNumber === "string" ? recordVersionNumber : wrong("recordVersionNumber"),
    leaseDurationMs: isDuration(leaseDurationMs) ? leaseDurationMs : wrong("leaseDurationMs"),
    firstSeenEpochMs: isDuration(firstSeenEpochMs) ? firstSeenEpochMs : wrong("firstSeenEpochMs"),
  };
}
