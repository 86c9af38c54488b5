/** Work under a guard, which is released at the end. */
import type { Context } from "./context.js";
import { LockLostError } from "./errors.js";
import type { Holding } from "./holding.js";
import { keepAlive } from "./timers.js";

/** Runs `body` under the guard, and releases. An error of `body` comes out as it is; one of the release is reported. */
export async function under<Guard extends Holding, T>(context: Context, guard: Guard, body: (guard: Guard) => T | Promise<T>): Promise<T> {
  let result: T;
  const letGo = keepAlive(context.runtime);
  try {
    result = await body(guard);
  } catch (error) {
    await guard[Symbol.asyncDispose]();
    throw error;
  } finally {
    letGo();
  }
  try {
    await guard.release();
  } catch (error) {
    if (error instanceof LockLostError) throw error;
    context.releaseFailed(error, guard);
  }
  return result;
}
