/** The end of a scope: a release that no outage holds up (rule C8). */
import { LockLostError } from "./errors.js";
import type { Kept } from "./flow.js";
import { leaveBound } from "./pacing.js";
import type { Runtime } from "./runtime.js";
import type { Logger } from "./telemetry.js";
import { at } from "./timers.js";

/** A guard of whatever kind, as a scope uses it. */
export interface Scoped extends AsyncDisposable, Kept {
  readonly key?: string;
  readonly keys?: readonly string[];
  remaining(): number;
  release(): Promise<unknown>;
  /** Reports a release that failed. */
  releaseFailed(error: unknown): void;
}

/**
 * Releases within the rest of the lease, or two seconds; the release then goes on in the background, with a warning.
 *
 * @throws {LockLostError} it was lost.
 */
export async function leave(
  { runtime, logger }: { runtime: Runtime; logger: Logger },
  guard: Omit<Scoped, keyof AsyncDisposable>,
): Promise<void> {
  const bound = leaveBound(guard.valid ? guard.remaining() : Infinity);
  let isLate = false;
  let cancel = (): void => undefined;
  const late = new Promise<void>((resolve) => {
    cancel = at(runtime, runtime.now() + bound, () => {
      isLate = true;
      resolve();
    });
  });
  const released = guard.release().then(
    () => undefined,
    (error: unknown) => {
      // A loss after the end of the scope is that of a lease that ran out meanwhile.
      if (error instanceof LockLostError && isLate) return;
      if (error instanceof LockLostError) throw error;
      guard.releaseFailed(error);
    },
  );
  try {
    await Promise.race([released, late]);
  } finally {
    cancel();
  }
  if (isLate) {
    const key = (guard.keys ?? [guard.key]).map((each) => JSON.stringify(each)).join(", ");
    logger.warn(`${key} is not released yet, which goes on in the background.`, { key });
  }
}
