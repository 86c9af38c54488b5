/** How long a holder may believe in its lock (rule C2). */

/**
 * The account of one acquisition's lease, in milliseconds of the holder's own monotonic clock.
 *
 * A lease counts from before its request was sent. A request without an answer may be carried out at any later time, and then
 * observers wait for the lease that *it* carried: so until one with an answer replaces it, and as long as it may still arrive,
 * the holder counts the shorter of the two. One request is under way at a time.
 */
export class Lease {
  /** The last request that is known to have been carried out. */
  #renewed: { sentAt: number; duration: number } | undefined;
  #underWay: { sentAt: number; duration: number } | undefined;
  /** Requests that were given up: when the first was sent, by the lease that it carried. */
  readonly #givenUp = new Map<number, number>();

  /** A request that carries this lease is about to be sent. */
  begin(duration: number, now: number): void {
    this.#underWay = { sentAt: now, duration };
  }

  /** It was carried out, and the answer names this lease. */
  renewed(duration: number): void {
    if (this.#underWay === undefined) throw new Error("no request is under way");
    this.#renewed = { sentAt: this.#underWay.sentAt, duration };
    this.#underWay = undefined;
  }

  /** It was not carried out. */
  refused(): void {
    this.#underWay = undefined;
  }

  /** It has no answer, and nobody waits for one any more. It may be carried out yet. */
  gaveUp(): void {
    if (this.#underWay === undefined) return;
    const { sentAt, duration } = this.#underWay;
    if (!this.#givenUp.has(duration)) this.#givenUp.set(duration, sentAt);
    this.#underWay = undefined;
  }

  /** Whether a request may have been carried out without anybody knowing. */
  get unanswered(): boolean {
    return this.#underWay !== undefined || this.#givenUp.size > 0;
  }

  /** When the request was sent that the lease counts from. -Infinity before the grant. */
  get startedAt(): number {
    return this.#renewed?.sentAt ?? -Infinity;
  }

  /** The lease that counts after the next renewal: the last one's, or a shorter one that may still arrive. */
  get counted(): number {
    return Math.min(this.#renewed?.duration ?? Infinity, ...this.#givenUp.keys());
  }

  /** From this time on nothing is held. -Infinity before the grant. */
  get validUntil(): number {
    if (this.#renewed === undefined) return -Infinity;
    const { sentAt: start, duration } = this.#renewed;
    let until = start + duration;
    const consider = (shorter: number, sentAt: number): void => {
      until = Math.min(until, Math.max(start, sentAt) + shorter);
    };
    if (this.#underWay) consider(this.#underWay.duration, this.#underWay.sentAt);
    for (const [shorter, sentAt] of this.#givenUp) consider(shorter, sentAt);
    return until;
  }
}
