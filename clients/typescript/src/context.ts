/** The state that the parts of one client share. */
import type { GuardHost } from "./holding.js";
import type { Lines } from "./line.js";
import type { Observations } from "./observations.js";
import type { Sightings } from "./plan.js";

export interface Context extends GuardHost {
  readonly observations: Observations;
  /** The lines of this client's waiters. */
  readonly lines: Lines;
  readonly sightings: Sightings;
  readonly ownerName: string;
  /** The default lease in milliseconds, as are the next two. */
  readonly lease: number;
  /** The poll interval; undefined if the caller chose none. */
  readonly pollInterval: number | undefined;
  readonly waitMargin: number;
  /** Whether the service has watches, as far as this client knows. */
  readonly watching: { isPossible: boolean };
  /** Acquisitions in progress, and clean-ups of abandoned ones. They never reject. */
  readonly underWay: Set<Promise<unknown>>;
  /** Aborted when the client is closed. */
  readonly closed: AbortSignal;
}

/** Lets `close` wait for `work`. */
export function track(context: Context, work: Promise<unknown>): void {
  const settled = work.then(
    () => undefined,
    () => undefined,
  );
  context.underWay.add(settled);
  void settled.then(() => context.underWay.delete(settled));
}
