/** In place of the helpers of Powertools' suite: its layer for tests keeps its records in Leasehold. */
import { Client } from "leasehold";
import { LeaseholdPersistenceLayer } from "leasehold/powertools";
import { expect, vi } from "vitest";
import { BasePersistenceLayer } from "../../src/persistence/BasePersistenceLayer.js";
import type { IdempotencyRecord } from "../../src/persistence/IdempotencyRecord.js";

const client = new Client({ url: process.env["POWERTOOLS_SERVICE"] ?? "" });

/** Makes the members that the suite spies on public. */
class Layer extends LeaseholdPersistenceLayer {
  override _putRecord = (record: IdempotencyRecord) => super._putRecord(record);
  override _updateRecord = (record: IdempotencyRecord) => super._updateRecord(record);
  override _deleteRecord = (record: IdempotencyRecord) => super._deleteRecord(record);
  override _getRecord = (key: string) => super._getRecord(key);
}

/** The tests of the suite share events and layers: each test has records of its own. */
class PersistenceLayerTestClass extends BasePersistenceLayer {
  readonly #layers = new Map<string | undefined, Layer>();

  #layer(): Layer {
    const test = expect.getState().currentTestName;
    const layer = this.#layers.get(test) ?? new Layer(client, { prefix: `${crypto.randomUUID()}/`, margin: 300 });
    this.#layers.set(test, layer);
    return layer;
  }

  public _putRecord = vi.fn((record: IdempotencyRecord) => this.#layer()._putRecord(record));
  public _updateRecord = vi.fn((record: IdempotencyRecord) => this.#layer()._updateRecord(record));
  public _deleteRecord = vi.fn((record: IdempotencyRecord) => this.#layer()._deleteRecord(record));
  public _getRecord = vi.fn((key: string) => this.#layer()._getRecord(key));
}

export { PersistenceLayerTestClass };
