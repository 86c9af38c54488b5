/** The end of the process: locks that it forgot are released. */
import type { Holding } from "./holding.js";
import { messageOf } from "./transport.js";

interface Process {
  once(event: "beforeExit", listener: () => void): void;
}

/** The guards of all clients that are still there. */
const all = new Set<WeakRef<Set<Holding>>>();
let listens = false;

/**
 * Releases these guards, with a warning, when the process has nothing left to do. A process that is ended otherwise, by
 * `process.exit` or a signal, cannot send anything: its locks are free one lease after their last heartbeats.
 */
export function releaseAtExit(guards: Set<Holding>): void {
  for (const known of all) if (known.deref() === undefined) all.delete(known);
  all.add(new WeakRef(guards));
  const { process } = globalThis as { process?: Partial<Process> };
  if (listens || process?.once === undefined) return;
  listens = true;
  process.once("beforeExit", () => {
    for (const known of all) for (const guard of known.deref() ?? []) forgotten(guard);
  });
}

function forgotten(guard: Holding): void {
  if (!guard.valid) return;
  const name = JSON.stringify(guard.key);
  console.warn(`leasehold: the lock ${name} was never released: it is released at the end of the program.`);
  guard.release().catch((error: unknown) => {
    console.warn(`leasehold: the lock ${name} could not be released: ${messageOf(error)}`);
  });
}
