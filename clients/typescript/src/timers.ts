/** Waiting on the runtime's clock, and ending a wait early. */
import type { Runtime } from "./runtime.js";

/** The longest time of `setTimeout`. A longer timer fires at once. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/**
 * Calls `callback` once the monotonic clock shows `time`, never before. Returns a function that cancels the
 * call.
 */
export function at(runtime: Runtime, time: number, callback: () => void, background = false): () => void {
  let cancel = (): void => undefined;
  const arm = (): void => {
    const delay = Math.max(0, Math.min(Math.ceil(time - runtime.now()), LONGEST_TIMER_MS));
    // Timers may fire a little early, and long ones fire in stages.
    const fired = (): void => {
      if (runtime.now() >= time) callback();
      else arm();
    };
    cancel = runtime.after(delay, fired, background);
  };
  if (time < Infinity) arm();
  return () => {
    cancel();
  };
}

/** Resolves once the monotonic clock shows `time`; rejects with the signal's reason when that is aborted first. */
export async function sleepUntil(
  runtime: Runtime,
  time: number,
  signal?: AbortSignal,
  background = false,
): Promise<void> {
  let cancel = (): void => undefined;
  const slept = new Promise<void>((resolve) => {
    cancel = at(runtime, time, resolve, background);
  });
  try {
    await abortable(slept, signal);
  } finally {
    cancel();
  }
}

/**
 * Keeps the process alive until the returned function is called, while a caller waits for background work.
 */
export function keepAlive(runtime: Runtime): () => void {
  let cancel = (): void => undefined;
  const stay = (): void => {
    cancel = runtime.after(LONGEST_TIMER_MS, stay, false);
  };
  stay();
  return () => {
    cancel();
  };
}

/**
 * Resolves as `promise`, unless the signal is aborted first: then it rejects with the signal's reason, and
 * the promise continues.
 */
export async function abortable<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return promise;
  let unlisten = (): void => undefined;
  const aborted = new Promise<never>((_, reject) => {
    unlisten = onAbort(signal, () => {
      // The reason is whatever the caller aborted with.
      reject(signal.reason);
    });
  });
  try {
    return await Promise.race([aborted, promise]);
  } finally {
    unlisten();
  }
}

const callbacks = new WeakMap<AbortSignal, Set<() => void>>();

/**
 * Calls `callback` when the signal is aborted, at once if it is aborted already. Returns a function that
 * cancels the call. A signal has one listener for all callbacks, because Node warns of a leak from eleven
 * listeners on, and one signal may end a hundred waits.
 */
function onAbort(signal: AbortSignal, callback: () => void): () => void {
  if (signal.aborted) {
    callback();
    return () => undefined;
  }
  const known = callbacks.get(signal);
  const all = known ?? new Set();
  if (!known) {
    callbacks.set(signal, all);
    const callAll = (): void => {
      for (const each of all) each();
    };
    signal.addEventListener("abort", callAll, { once: true });
  }
  all.add(callback);
  return () => {
    all.delete(callback);
  };
}

/** A controller that is aborted with any of the signals, until `unlink` is called. */
export class LinkedController extends AbortController {
  readonly #links: (() => void)[];

  constructor(...signals: (AbortSignal | undefined)[]) {
    super();
    this.#links = signals
      .filter((signal) => signal !== undefined)
      .map((signal) =>
        onAbort(signal, () => {
          this.abort(signal.reason);
        }),
      );
  }

  unlink(): void {
    for (const unlink of this.#links) unlink();
  }
}
