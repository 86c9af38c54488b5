/** Work under a guard, which is released at the end. */
import { finished } from "./bodies.js";
import type { Context } from "./context.js";
import { type Kept, within } from "./flow.js";
import { leave, type Scoped } from "./leaving.js";
import { keepAlive } from "./timers.js";

/**
 * Runs `body`. Where that fails, the guard is released before the error comes out. The process stays alive meanwhile.
 */
export async function work<Guard extends AsyncDisposable & Kept, T>(
  context: Context,
  guard: Guard,
  body: (guard: Guard) => T | Promise<T>,
): Promise<T> {
  const letGo = keepAlive(context.runtime);
  try {
    return finished(await within(guard, () => body(guard)));
  } catch (error) {
    await guard[Symbol.asyncDispose]();
    throw error;
  } finally {
    letGo();
  }
}

/** Runs `body` under the guard, and releases. An error of `body` comes out as it is; one of the release is reported. */
export async function under<Guard extends Scoped, T>(
  context: Context,
  guard: Guard,
  body: (guard: Guard) => T | Promise<T>,
): Promise<T> {
  const result = await work(context, guard, body);
  await leave(context, guard);
  return result;
}
