/**
 * The functions that a client calls under a lock, for an occurrence, under a lead, or in a transaction.
 *
 * Work that begins after its function has returned is done under none of them. A generator function is refused before
 * anything is sent, and a result with work to be done before the occurrence is completed or the transaction committed.
 */
import { InvalidRequestError } from "./errors.js";

const AT_ONCE = "let it do all its work before it returns.";

/** Refuses a generator function, and what is no function. `field` names the argument. */
export function checkBody(body: unknown, field: string): void {
  if (typeof body !== "function") throw new InvalidRequestError(`${field} must be a function.`, field);
  const kind = Object.prototype.toString.call(body);
  if (kind !== "[object GeneratorFunction]" && kind !== "[object AsyncGeneratorFunction]") return;
  const name = typeof body === "function" && body.name !== "" ? body.name : "The function";
  const reason = "is a generator function, whose work begins after it has returned";
  throw new InvalidRequestError(`${name} ${reason}: ${AT_ONCE}`, field);
}

/**
 * Generators, and what `map` and `filter` of an iterator return: they run code of the caller's when they are read. Other
 * iterators, such as those of a list, have nothing to do.
 */
const LAZY = /^\[object (Generator|AsyncGenerator|Iterator Helper)\]$/;

/** Returns the result of a body, unless its work is still to be done. */
export function finished<T>(result: T): T {
  const kind = LAZY.exec(Object.prototype.toString.call(result))?.[1];
  if (kind === undefined) return result;
  throw new InvalidRequestError(`The function returned a lazy ${kind}, whose work is still to be done: ${AT_ONCE}`);
}
