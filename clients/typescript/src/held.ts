/** The other result of an acquire: someone else has the lock. */
import { LockHeldError } from "./errors.js";
import type { Lock } from "./lock.js";

/** Someone else holds the lock. */
export class Held<View extends Lock = Lock> {
  /** Tells the two results of an acquire apart. */
  readonly kind = "held";
  /** The lock as it was last seen. */
  readonly lock: View;
  /** All that are held, where several were asked for. */
  readonly locks: readonly Lock[];
  readonly #error: LockHeldError;

  /** @internal */
  constructor(error: LockHeldError, lock: View) {
    this.lock = lock;
    this.locks = error.locks;
    this.#error = error;
  }

  /** Treats giving up as an error. @throws {LockHeldError} always. */
  granted(): never {
    throw new LockHeldError(`${this.lock.ownerName} holds the lock ${JSON.stringify(this.lock.key)}.`, this.lock, this.#error.retryAfter, this.locks);
  }
}
