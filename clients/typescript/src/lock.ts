/** What anyone may know of a lock. */
import { fromWire, type Payload } from "./payload.js";
import type { components } from "./wire.js";

/** The public view of a lock. */
export interface Lock extends Payload {
  readonly key: string;
  readonly sortKey?: string;
  readonly state: "held" | "released";
  /** Who holds it, or held it last. For people to read: it proves nothing. */
  readonly ownerName: string;
  /** Changes with every acquire and heartbeat. */
  readonly recordVersionNumber: string;
  /** How long the version must be seen unchanged before the lock is stale, in milliseconds. */
  readonly leaseDurationMs: number;
  /** Absent where another client wrote the row. */
  readonly fencingToken?: number;
  /** The last occurrence that was completed. */
  readonly lastOccurrence?: string;
  /** The occurrence that the holder runs. */
  readonly occurrence?: string;
  /** Further attributes of the row. Sets are lists, binary values base64. */
  readonly attributes?: Readonly<Record<string, unknown>>;
}

/** A holder of permits. */
export interface Holder extends Payload {
  /** Its public name. It proves nothing. */
  readonly holderId: string;
  readonly ownerName: string;
  /** Changes with every heartbeat of this holder. */
  readonly version: string;
  /** How long the version must be seen unchanged before the holder is dead, in milliseconds. */
  readonly leaseDurationMs: number;
  readonly permits: number;
  readonly fencingToken: number;
}

/** One that waits for permits. */
export interface Ticket {
  /** Its public name. It proves nothing. */
  readonly ticketId: string;
  readonly ownerName: string;
  /** Changes with every renewal. */
  readonly version: string;
  /** How long the version must be seen unchanged before the ticket is dead, in milliseconds. */
  readonly leaseDurationMs: number;
  /** How many permits it waits for. */
  readonly permits: number;
  /** Its place: lower numbers go first. */
  readonly number: number;
}

/** The public view of a semaphore. As a lock it is held by `leasehold:semaphore`, under a lease that never ends. */
export interface SemaphoreView extends Lock {
  readonly kind: "semaphore";
  readonly capacity: number;
  /** How many permits are free. */
  readonly available: number;
  /** New whenever permits came back, and whenever the queue or the capacity changed. Not by heartbeats. */
  readonly changed: string;
  /** The oldest first. */
  readonly holders: readonly Holder[];
  /** The first in the line first. */
  readonly queue: readonly Ticket[];
}

/** Whether this is the view of a semaphore. */
export function isSemaphore(lock: Lock): lock is SemaphoreView {
  return "kind" in lock;
}

/** Returns what a watch compares. */
export function watchedVersion(lock: Lock): string {
  return isSemaphore(lock) ? lock.changed : lock.recordVersionNumber;
}

export function lockFromWire(wire: components["schemas"]["Lock"]): Lock | SemaphoreView {
  return {
    key: wire.key,
    ...(typeof wire.sortKey === "string" && { sortKey: wire.sortKey }),
    state: wire.state,
    ownerName: wire.ownerName,
    recordVersionNumber: wire.recordVersionNumber,
    leaseDurationMs: wire.leaseDurationMs,
    ...(typeof wire.fencingToken === "number" && { fencingToken: wire.fencingToken }),
    ...fromWire(wire),
    ...(typeof wire.lastOccurrence === "string" && { lastOccurrence: wire.lastOccurrence }),
    ...(typeof wire.occurrence === "string" && { occurrence: wire.occurrence }),
    ...(wire.attributes && { attributes: wire.attributes }),
    ...semaphoreFromWire(wire),
  };
}

/** The members that a semaphore has beside those of a lock. */
function semaphoreFromWire(wire: Partial<components["schemas"]["SemaphoreState"]>): Omit<SemaphoreView, keyof Lock> | undefined {
  const { kind, capacity = 0, available = 0, changed = "", holders = [], queue = [] } = wire;
  if (kind !== "semaphore") return undefined;
  const visible = holders.map(({ data, dataBase64, ...holder }) => ({ ...holder, ...fromWire({ data, dataBase64 }) }));
  return { kind, capacity, available, changed, holders: visible, queue };
}

/** The view of one of several locks that are held: nothing where it is incomplete. */
export function refusedFromWire(wire: components["schemas"]["RefusedLock"]): Lock[] {
  const { state, ownerName, recordVersionNumber, leaseDurationMs } = wire;
  if (state == null || ownerName == null || recordVersionNumber == null || leaseDurationMs == null) return [];
  const { key, sortKey, fencingToken } = wire;
  const known = { key, state, ownerName, recordVersionNumber, leaseDurationMs };
  return [{ ...known, ...(sortKey != null && { sortKey }), ...(fencingToken != null && { fencingToken }) }];
}
