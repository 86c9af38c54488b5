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
  /** Further attributes of the row. Sets are lists, binary values base64. */
  readonly attributes?: Readonly<Record<string, unknown>>;
}

export function lockFromWire(wire: components["schemas"]["Lock"]): Lock {
  return {
    key: wire.key,
    ...(typeof wire.sortKey === "string" && { sortKey: wire.sortKey }),
    state: wire.state,
    ownerName: wire.ownerName,
    recordVersionNumber: wire.recordVersionNumber,
    leaseDurationMs: wire.leaseDurationMs,
    ...(typeof wire.fencingToken === "number" && { fencingToken: wire.fencingToken }),
    ...fromWire(wire),
    ...(wire.attributes && { attributes: wire.attributes }),
  };
}
