/** A map that forgets its oldest entries. */

/** More keys than any process works on at once. */
const MAX_ENTRIES = 10_000;

/** Keeps the last {@link MAX_ENTRIES} entries that were set, by lock. */
export class Recent<Value> {
  readonly #entries = new Map<string, Value>();

  get(key: string, sortKey: string | undefined): Value | undefined {
    return this.#entries.get(id(key, sortKey));
  }

  set(key: string, sortKey: string | undefined, value: Value): void {
    const name = id(key, sortKey);
    // Deleted first: a map keeps the order of insertion.
    this.#entries.delete(name);
    this.#entries.set(name, value);
    for (const oldest of this.#entries.keys()) {
      if (this.#entries.size <= MAX_ENTRIES) break;
      this.#entries.delete(oldest);
    }
  }

  delete(key: string, sortKey: string | undefined): void {
    this.#entries.delete(id(key, sortKey));
  }

  values(): IterableIterator<Value> {
    return this.#entries.values();
  }
}

const id = (key: string, sortKey: string | undefined): string => JSON.stringify([key, sortKey]);
