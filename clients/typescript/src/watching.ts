/** Waiting by watching: one read that waits, in place of polls (rule K1). */
import type { Context } from "./context.js";
import { isTransient, LockNotFoundError } from "./errors.js";
import { type Lock, lockFromWire, type SemaphoreView, watchedVersion } from "./lock.js";
import { pollPause, requestTimeout, watchDuration } from "./pacing.js";
import { sleepUntil } from "./timers.js";

/**
 * Whether this client watches. A client with a poll interval polls, and so does one whose service has no
 * watches.
 */
export function watches({ pollInterval, watching }: Context): boolean {
  return pollInterval === undefined && watching.isPossible;
}

/** The result of a watch: the row as it is now, or undefined if the row is gone. */
export interface Sight {
  readonly lock: Lock | SemaphoreView | undefined;
}

/**
 * Resolves with the key's row after a change, or when `until` is reached. A watch that failed, or that ended early
 * without news, resolves with undefined, after one poll pause. An empty version is that of a key without a row.
 */
export async function watch(
  context: Context,
  target: { key: string; sortKey: string | undefined },
  version: string,
  until: number,
  signal: AbortSignal,
): Promise<Sight | undefined> {
  const { runtime, service, watching } = context;
  const sentAt = runtime.now();
  const waitMs = watchDuration(until - sentAt);
  let retryAfter = 0;
  try {
    const answer = await service.ask(
      "watch",
      { ...target, version, waitMs },
      { timeout: waitMs + requestTimeout(), signal },
    );
    const lock = lockFromWire(answer);
    if (watchedVersion(lock) !== version || runtime.now() >= sentAt + waitMs) return { lock };
  } catch (error) {
    signal.throwIfAborted();
    const isOver = version !== "" || runtime.now() >= sentAt + waitMs;
    if (error instanceof LockNotFoundError && isOver) return { lock: undefined };
    if (isTransient(error)) retryAfter = error.retryAfter;
    else if (!(error instanceof LockNotFoundError)) watching.isPossible = false;
  }
  const pause = pollPause(undefined, retryAfter, runtime.random());
  await sleepUntil(runtime, Math.min(until, runtime.now() + pause), signal);
  return undefined;
}
