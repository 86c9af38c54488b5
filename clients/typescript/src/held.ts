/** The other result of an acquire: another owner holds the lock. */
import { LockHeldError } from "./errors.js";
import type { Lock } from "./lock.js";

/** Another owner holds the lock. */
export class Held<View extends Lock = Lock> {
  /** Tells the two results of an acquire apart. */
  readonly kind = "held";
  /** The lock as it was last seen. */
  readonly lock: View;
  /** All held locks of a request for several. */
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
    throw new LockHeldError(
      `${this.lock.ownerName} holds the lock ${JSON.stringify(this.lock.key)}.`,
      this.lock,
      this.#error.retryAfter,
      this.locks,
    );
  }
}
