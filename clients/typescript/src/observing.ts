/** The changes of a key (rule K6). */
import type { Context } from "./context.js";
import { LockNotFoundError, WrongKindError } from "./errors.js";
import { isSemaphore, type Lock, lockFromWire, type SemaphoreView, watchedVersion } from "./lock.js";
import { pollPause } from "./pacing.js";
import { retrying, type SendOptions } from "./service.js";
import { LinkedController, sleepUntil } from "./timers.js";
import { watch, watches } from "./watching.js";

interface Target {
  readonly key: string;
  readonly sortKey: string | undefined;
}

type View = Lock | SemaphoreView | undefined;

/** Yields the present view of the key, and its view after each change. Retries after temporary failures. */
export async function* observe(
  context: Context,
  target: Target,
  signal: AbortSignal | undefined,
): AsyncGenerator<View, void, undefined> {
  const stop = new LinkedController(signal, context.closed);
  try {
    let view = await read(context, target, stop.signal);
    for (;;) {
      yield view;
      const shown = versionOf(view);
      while (versionOf(view) === shown) view = await look(context, target, view, stop.signal);
    }
  } finally {
    stop.unlink();
  }
}

/** A grant of permits changes the record, and not what a watch compares. */
const versionOf = (view: View): string => view?.recordVersionNumber ?? "";

/** Waits for a change, or for the longest time of a look, and returns the view then. */
async function look(context: Context, target: Target, view: View, signal: AbortSignal): Promise<View> {
  const { runtime, pollInterval } = context;
  // The watch of a released lock has nothing to wait for.
  const isWatchable = !view || isSemaphore(view) || view.state === "held";
  if (isWatchable && watches(context)) {
    const sight = await watch(context, target, view ? watchedVersion(view) : "", Infinity, signal);
    if (sight) return sight.lock;
  } else {
    await sleepUntil(runtime, runtime.now() + pollPause(pollInterval, 0, runtime.random()), signal);
  }
  return read(context, target, signal);
}

async function read(context: Context, target: Target, signal: AbortSignal): Promise<View> {
  const { runtime, service } = context;
  const ask = async (sendOptions: SendOptions) => {
    try {
      return await service.ask("get", target, sendOptions);
    } catch (error) {
      if (!(error instanceof WrongKindError)) throw error;
      return service.ask("semaphore-get", target, sendOptions);
    }
  };
  try {
    return lockFromWire(await retrying(runtime, ask, { until: Infinity, signal }));
  } catch (error) {
    if (error instanceof LockNotFoundError) return undefined;
    throw error;
  }
}
