/** Retries of requests that have numbers: heartbeats, and requests for a ticket (rules C5, C7 and C10). */
import { isAboutItsNumber, isRetryable, isTransient, isUnreached } from "./errors.js";
import { OPERATION_BOUND_MS, requestTimeout, retryPause, UNREACHED_BOUND_MS } from "./pacing.js";
import type { Runtime } from "./runtime.js";
import type { RetryOptions, SendOptions } from "./service.js";
import { sleepUntil } from "./timers.js";

/** Options of retries whose requests have numbers. */
export interface TurnOptions extends RetryOptions {
  /** Adjusts a pause, in milliseconds. */
  pace?: ((pause: number) => number) | undefined;
  /** Tells the errors that are worth another request. Default: {@link isRetryable}. */
  retryable?: ((error: unknown) => boolean) | undefined;
}

/** Sends heartbeats, or requests for a ticket, until one has a useful answer, within the bound. */
export async function retryingTurns<T>(
  runtime: Runtime,
  request: (options: SendOptions) => Promise<T>,
  options: TurnOptions = {},
): Promise<T> {
  const begunAt = runtime.now();
  const { lease, signal } = options;
  let { until = begunAt + OPERATION_BOUND_MS } = options;
  const { background = false, pace = (pause: number): number => pause, retryable = isRetryable } = options;
  for (let failures = 1; ; failures += 1) {
    signal?.throwIfAborted();
    const timeout = requestTimeout(lease, until - runtime.now());
    try {
      return await request({ timeout, signal });
    } catch (error) {
      if (signal?.aborted || !retryable(error)) throw error;
      if (isUnreached(error)) until = Math.min(until, begunAt + UNREACHED_BOUND_MS);
      const pause = isAboutItsNumber(error)
        ? 0
        : retryPause(failures, isTransient(error) ? error.retryAfter : 0, runtime.random());
      const next = runtime.now() + pace(pause);
      if (next >= until) throw error;
      await sleepUntil(runtime, next, signal, background);
      if (runtime.now() >= until) throw error;
    }
  }
}
