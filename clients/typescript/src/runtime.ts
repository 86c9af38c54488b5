/**
 * Time, timers and chance: everything that a test must be able to decide, in one place.
 */

import type { Chance } from "./call.js";

/** Where the client takes time and chance from. Replace it in tests; nothing else needs to. */
export interface Runtime {
  /** Milliseconds on a clock that never steps. Only differences of it are used. */
  now(): number;
  /** Milliseconds since the epoch, by the wall clock. Used for saved observations, and to notice a suspension. */
  epoch(): number;
  /** A number from 0 to below 1. */
  random(): number;
  /** A fresh unguessable id. */
  uuid(): string;
  /**
   * Calls `callback` after about `delay` milliseconds (0 to 2^31 - 1), and returns what cancels that. A `background`
   * timer does not keep the process alive.
   */
  after(delay: number, callback: () => void, background: boolean): () => void;
}

// Node 20.0 to 20.5 lack the symbol that `await using` looks for; later ones register it under this very name.
(Symbol as { asyncDispose?: symbol }).asyncDispose ??= Symbol.for("nodejs.asyncDispose");

interface Global {
  process?: {
    pid?: number;
    env?: Record<string, string | undefined>;
    getBuiltinModule?: (name: "node:os") => { hostname(): string } | undefined;
  };
  Deno?: { unrefTimer?: (timer: unknown) => void };
}
const host = globalThis as unknown as Global;

export const systemRuntime: Runtime = {
  now: () => performance.now(),
  epoch: () => Date.now(),
  random: () => Math.random(),
  uuid: () => crypto.randomUUID(),
  after(delay, callback, background) {
    const timer: unknown = setTimeout(callback, delay);
    if (background) {
      if (typeof timer === "number") host.Deno?.unrefTimer?.(timer);
      else (timer as { unref?: () => void }).unref?.();
    }
    return () => {
      clearTimeout(timer as ReturnType<typeof setTimeout>);
    };
  },
};

/** The clocks of the system. In a suspension that the monotonic one does not count, only the wall clock goes on. */
export interface Clocks {
  readonly before: number;
  readonly wall: number;
  readonly after: number;
}

/** Reads both clocks together. */
export function clocksOf(runtime: Runtime): Clocks {
  return { before: runtime.now(), wall: runtime.epoch(), after: runtime.now() };
}

/** Returns the draws of the rules. */
export function drawsOf(runtime: Runtime): Chance {
  return { fraction: () => runtime.random(), id: () => runtime.uuid() };
}

/** `hostname:pid`, or what there is of it. */
export function defaultOwnerName(): string {
  const hostname =
    host.process?.getBuiltinModule?.("node:os")?.hostname() ?? host.process?.env?.["HOSTNAME"] ?? "unknown";
  const pid = host.process?.pid;
  return pid === undefined ? hostname : `${hostname}:${pid}`;
}

/** The part of undici's `EnvHttpProxyAgent` that matters here. */
type ProxyAgent = new (options: { noProxy: string }) => object;

/**
 * Returns a dispatcher for `fetch` that asks no proxy, where Node sends all requests through the one of the environment
 * (`NODE_USE_ENV_PROXY`); undefined elsewhere. Node keeps its dispatcher under these symbols for other copies of undici:
 * under the second one since Node 26, with a wrapper for older copies under the first.
 */
export function loopbackDispatcher(): object | undefined {
  const known = globalThis as unknown as Record<symbol, object | undefined>;
  const current = ["undici.globalDispatcher.2", "undici.globalDispatcher.1"].map((name) => known[Symbol.for(name)]);
  const agent = current.find((dispatcher) => dispatcher?.constructor.name === "EnvHttpProxyAgent");
  return agent && new (agent.constructor as ProxyAgent)({ noProxy: "*" });
}
