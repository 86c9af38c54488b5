/** The capacity that transactions consume. */
import type { components } from "./wire.js";

/** The capacity units of one table and its indexes, in the sense of DynamoDB. */
export interface ConsumedCapacity {
  /** Multiples of one half. */
  readonly readUnits: number;
  readonly writeUnits: number;
}

/**
 * Adds up the capacity units that transactions consume, all their tries included. A call that failed, and what the
 * service does after its answer, count nothing.
 */
export class CapacityMeter {
  readonly #sums = new Map<string, ConsumedCapacity>();

  /** The sums so far, by table. */
  get consumed(): ReadonlyMap<string, ConsumedCapacity> {
    return this.#sums;
  }

  /** Adds what an answer tells. @internal */
  add(told: readonly components["schemas"]["ConsumedCapacity"][] | null | undefined): void {
    for (const { tableName, readCapacityUnits, writeCapacityUnits } of told ?? []) {
      const { readUnits, writeUnits } = this.#sums.get(tableName) ?? { readUnits: 0, writeUnits: 0 };
      this.#sums.set(tableName, {
        readUnits: readUnits + readCapacityUnits,
        writeUnits: writeUnits + writeCapacityUnits,
      });
    }
  }
}
