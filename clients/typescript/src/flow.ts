/** The guards of the running flow: of a scope, and of everything that was started in it. */

import { WouldDeadlockError } from "./errors.js";

/** A guard, as the flow knows it. */
export interface Kept {
  readonly valid: boolean;
  /** Whether a wait of the same client for this key can only end with this guard. */
  blocks(host: object, key: string, sortKey: string | undefined, permits?: number): boolean;
}

interface Storage {
  getStore(): readonly Kept[] | undefined;
  run<R>(store: readonly Kept[], body: () => R): R;
}

interface Hooks {
  AsyncLocalStorage: new () => Storage;
}

const { process } = globalThis as { process?: { getBuiltinModule?: (name: string) => Hooks | undefined } };
const hooks = process?.getBuiltinModule?.("node:async_hooks");
/** Absent where the platform cannot follow a flow: there nobody is warned. */
const storage = hooks && new hooks.AsyncLocalStorage();

/** Runs `body` in the flow of this guard. */
export function within<R>(guard: Kept, body: () => R): R {
  return storage ? storage.run([guard, ...(storage.getStore() ?? [])], body) : body();
}

/** Refuses a wait that only the running flow itself could end. */
export function refuseDeadlock(host: object, key: string, sortKey: string | undefined, permits?: number): void {
  if (heldHere().some((guard) => guard.blocks(host, key, sortKey, permits))) throw new WouldDeadlockError(key);
}

/** Returns the held guards of the running flow, the inner ones first. */
export function heldHere(): readonly Kept[] {
  return (storage?.getStore() ?? []).filter(({ valid }) => valid);
}
