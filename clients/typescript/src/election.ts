/** Leader election: one lock, whose payload is the leader's address (rule K6). */
import type { AcquireOptions } from "./acquire.js";
import { checkBody } from "./bodies.js";
import type { Client } from "./client.js";
import type { Guard } from "./guard.js";
import type { Held } from "./held.js";
import type { Lock } from "./lock.js";
import type { CallOptions } from "./options.js";
import type { Payload } from "./payload.js";
import { LinkedController } from "./timers.js";

/** Options of a campaign. By default the wait has no end. */
export type CampaignOptions = Omit<AcquireOptions, "data" | "replaceData">;

/** A leader. */
export interface Leader extends Payload {
  readonly ownerName: string;
  /** A token above the tokens of all earlier leaders. Absent if another kind of client wrote the row. */
  readonly fencingToken?: number;
}

/** An election among all campaigners for the same key. */
export class Election {
  constructor(
    private readonly client: Client,
    readonly key: string,
    /** The value that followers see while this candidate leads, such as its address. */
    readonly value: string | Uint8Array,
  ) {}

  /** Waits until this candidate leads. To resign is to release the guard. */
  async campaign(options: CampaignOptions = {}): Promise<Guard | Held> {
    return this.client.acquire(this.key, { wait: Infinity, ...options, data: this.value });
  }

  /**
   * Campaigns, and runs `body` while this candidate leads. `signal` is aborted when the leadership is lost, or when the
   * option `signal` is: then `body` has to end. After a loss the candidate campaigns again, once `body` has ended.
   * Resolves with the result of `body`.
   */
  async lead<T>(
    body: (guard: Guard, signal: AbortSignal) => T | Promise<T>,
    options: CampaignOptions = {},
  ): Promise<T> {
    checkBody(body, "body");
    for (;;) {
      let led: Guard | undefined;
      try {
        return await this.client.withLock(
          this.key,
          async (guard) => {
            led = guard;
            const stop = new LinkedController(options.signal, guard.signal);
            try {
              return await body(guard, stop.signal);
            } finally {
              stop.unlink();
            }
          },
          { wait: Infinity, ...options, data: this.value },
        );
      } catch (error) {
        options.signal?.throwIfAborted();
        if (led?.lost === undefined) throw error;
      }
    }
  }

  /**
   * Yields the present leader, and each later one; undefined while there is none. A dead leader leads until
   * another one follows.
   */
  async *observe(options: CallOptions = {}): AsyncGenerator<Leader | undefined, void, undefined> {
    let shown: string | undefined;
    for await (const lock of this.client.observe(this.key, options)) {
      const leader = leaderOf(lock);
      const next = JSON.stringify([leader?.fencingToken, leader?.ownerName, leader?.text]);
      if (next !== shown) yield leader;
      shown = next;
    }
  }
}

function leaderOf(lock: Lock | undefined): Leader | undefined {
  if (lock?.state !== "held") return undefined;
  const { ownerName, fencingToken, data, text } = lock;
  return {
    ownerName,
    ...(fencingToken !== undefined && { fencingToken }),
    ...(data && { data }),
    ...(text !== undefined && { text }),
  };
}
