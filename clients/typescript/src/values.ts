/** The JavaScript side of DynamoDB values. */

/**
 * An item as it is read: its attributes by name.
 *
 * Texts, booleans and null are themselves, binary values `Uint8Array`s, maps objects, lists arrays, sets `Set`s. A
 * number is a `number` if that is exact, a `bigint` if it is an integer beyond 2^53, and an {@link ExactNumber}
 * otherwise.
 */
// biome-ignore lint/suspicious/noExplicitAny: what is in a table is known to the caller, not to the compiler
export type Item = Record<string, any>;

/** A number that neither `number` nor `bigint` can hold, such as one with twenty decimal places. */
export class ExactNumber {
  constructor(
    /** The digits, as DynamoDB has them: up to 38. */
    readonly text: string,
  ) {}

  toString(): string {
    return this.text;
  }
}
