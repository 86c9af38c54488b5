/** What the parts of one client share. */
import type { Guard } from "./guard.js";
import type { Observations } from "./observations.js";
import type { Runtime } from "./runtime.js";
import type { Service } from "./service.js";

export interface Context {
  readonly service: Service;
  readonly runtime: Runtime;
  readonly observations: Observations;
  readonly ownerName: string;
  /** In milliseconds, as are the next two. */
  readonly lease: number;
  readonly pollInterval: number;
  readonly waitMargin: number;
  /** Those that are held, or being released. */
  readonly guards: Set<Guard>;
  /** Acquisitions that go on, and clean-ups after those that were abandoned. They never reject. */
  readonly underWay: Set<Promise<unknown>>;
  /** Aborted when the client is closed. */
  readonly closed: AbortSignal;
  /** Tells the caller of a release that failed where nothing may be thrown. Never throws. */
  releaseFailed(error: unknown, guard: Guard): void;
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
