/** The end of the process: locks that it forgot are released. */
import type { Holding } from "./holding.js";
import type { Logger } from "./telemetry.js";
import { messageOf } from "./transport.js";

interface Process {
  once(event: "beforeExit", listener: () => void): void;
}

/** The guards of all clients that are still there. */
const all = new Set<{ guards: WeakRef<Set<Holding>>; logger: Logger }>();
let listens = false;

/**
 * Releases these guards, with a warning, when the process has nothing left to do. A process that is ended otherwise, by
 * `process.exit` or a signal, cannot send anything: its locks are free one lease after their last heartbeats.
 */
export function releaseAtExit(guards: Set<Holding>, logger: Logger): void {
  for (const known of all) if (known.guards.deref() === undefined) all.delete(known);
  all.add({ guards: new WeakRef(guards), logger });
  const { process } = globalThis as { process?: Partial<Process> };
  if (listens || process?.once === undefined) return;
  listens = true;
  process.once("beforeExit", () => {
    for (const known of all) for (const guard of known.guards.deref() ?? []) forgotten(guard, known.logger);
  });
}

function forgotten(guard: Holding, logger: Logger): void {
  if (!guard.valid) return;
  const { key } = guard;
  const name = JSON.stringify(key);
  logger.warn(`the lock ${name} was never released: it is released at the end of the program.`, { key });
  guard.release().catch((error: unknown) => {
    logger.warn(`the lock ${name} could not be released: ${messageOf(error)}`, { key, error });
  });
}
