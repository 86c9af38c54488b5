/** The time for which a holder may believe in its lock (rules C2 and C10). */

interface Renewal {
  readonly sentAt: number;
  readonly duration: number;
}

/**
 * The account of one acquisition's lease, in milliseconds of the holder's own monotonic clock.
 *
 * A lease counts from before its request was first sent. A request without an answer may be carried out late, and then
 * the row has the lease of that request. A shorter lease therefore caps the belief from its sending on. The answer to a
 * request ends the cap: no request with a lower number can be carried out any more. One request is under way at a time.
 */
export class Lease {
  /** The last request that is known to have been carried out. */
  #renewed: Renewal | undefined;
  #sent: (Renewal & { readonly sequence: number }) | undefined;
  #cap = Infinity;

  /** A holder believes in its lease less `delay` milliseconds. */
  constructor(private readonly delay = 0) {}

  /**
   * Records that a request with this number and lease is about to be sent. The same number again is a repeat.
   */
  send(sequence: number, duration: number, now: number): void {
    if (this.#sent?.sequence !== sequence) this.#sent = { sequence, sentAt: now, duration };
    this.#cap = Math.min(this.#cap, this.#sent.sentAt + duration - this.delay);
  }

  /** Records that the request was carried out, and the answer names this lease. */
  renewed(duration: number): void {
    if (this.#sent === undefined) throw new Error("no request was sent");
    this.#renewed = { sentAt: this.#sent.sentAt, duration };
    this.#cap = Infinity;
  }

  /** The first sending of the request from which the lease counts. -Infinity before the grant. */
  get startedAt(): number {
    return this.#renewed?.sentAt ?? -Infinity;
  }

  /** The lease that heartbeats must keep pace with: the last renewal's, or less where a shorter one was sent since. */
  get believed(): number {
    return this.#renewed === undefined ? 0 : this.validUntil - this.#renewed.sentAt;
  }

  /** The end of the belief. -Infinity before the grant. */
  get validUntil(): number {
    if (this.#renewed === undefined) return -Infinity;
    return Math.min(this.#renewed.sentAt + this.#renewed.duration - this.delay, this.#cap);
  }
}
