/** Work under a guard, which is released at the end. */
import type { Context } from "./context.js";
import { LockLostError } from "./errors.js";
import { keepAlive } from "./timers.js";

/** A guard of whatever kind, as a scope uses it. */
interface Scoped extends AsyncDisposable {
  release(): Promise<unknown>;
  /** Reports a release that failed. */
  releaseFailed(error: unknown): void;
}

/**
 * Runs `body`. Where that fails, the guard is released before the error comes out. The process stays alive meanwhile.
 */
export async function work<Guard extends AsyncDisposable, T>(
  context: Context,
  guard: Guard,
  body: (guard: Guard) => T | Promise<T>,
): Promise<T> {
  const letGo = keepAlive(context.runtime);
  try {
    return await body(guard);
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
  try {
    await guard.release();
  } catch (error) {
    if (error instanceof LockLostError) throw error;
    guard.releaseFailed(error);
  }
  return result;
}
