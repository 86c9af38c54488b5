/** A held lock. */
import {
  type Grant,
  type GuardHost,
  type GuardOptions,
  type HeartbeatBody,
  Holding,
  type ReleaseOutcome,
  type Renewal,
} from "./holding.js";
import type { Numbered } from "./numbers.js";
import { completionOf, type HeartbeatOptions, type ReleaseOptions } from "./options.js";
import { changeToWire, toWire } from "./data.js";
import { fromWire, type WirePayload } from "./payload.js";
import type { Answers, SendOptions } from "./service.js";

/** The answer that a lock's guard is made of. */
export interface LockGrant extends Grant, WirePayload {
  readonly previousOwnerName?: string | null | undefined;
}

/** The part of a heartbeat that only locks have. */
interface Change extends WirePayload {
  readonly deleteData?: boolean | undefined;
}

/** A held lock, until it is released or lost. */
export class Guard extends Holding<Change> {
  /** The previous owner, if it is known. */
  readonly previousOwnerName: string | undefined;
  /** The payload of the row at the time of the grant: the one that was just stored, or the predecessor's. */
  readonly data: Uint8Array | undefined;
  /** The payload as text, if it is UTF-8. */
  readonly text: string | undefined;
  readonly #host: GuardHost;

  /** @internal */
  constructor(host: GuardHost, grant: LockGrant, sentAt: number, options: GuardOptions) {
    super(host, grant, sentAt, options);
    this.#host = host;
    this.previousOwnerName = grant.previousOwnerName ?? undefined;
    const payload = fromWire(grant);
    this.data = payload.data;
    this.text = payload.text;
  }

  /**
   * Whether somebody waits for the lock, as far as a heartbeat has told. A holder may release the lock earlier than
   * planned.
   */
  get wanted(): boolean {
    return this.isWanted;
  }

  /** @internal */
  override blocks(host: object, key: string, sortKey: string | undefined, permits?: number): boolean {
    return permits === undefined && super.blocks(host, key, sortKey);
  }

  /** The version, which changes with every heartbeat. */
  get recordVersionNumber(): string {
    return this.currentVersion;
  }

  /**
   * Renews the lease now, and changes lease or payload if the options say so. Retries for the rest of the lease while
   * the service cannot be reached.
   *
   * @throws {LockLostError} the lock is lost, or its release has begun.
   * @throws {UnavailableError | ThrottledError} the outcome is unknown; the lock is held until its lease runs out.
   * @throws {InvalidRequestError} and other refusals: nothing was changed.
   */
  async renew(options: Omit<HeartbeatOptions, "sortKey"> = {}): Promise<void> {
    await this.renewBy(() => changeToWire(options.data), options);
  }

  release(options: Omit<ReleaseOptions, "sortKey"> = {}): Promise<ReleaseOutcome> {
    const { key, sortKey, leaseId } = this;
    const request = {
      key,
      sortKey,
      leaseId,
      delete: options.delete,
      ...completionOf(options),
      ...toWire(options.data),
    };
    const leaving = {
      send: (sendOptions: SendOptions) => this.#host.service.ask("release", request, sendOptions),
      stores: options.data !== undefined || options.completed !== undefined,
    };
    return this.releaseBy(leaving, options.signal);
  }

  override toJSON(): Record<string, unknown> {
    return { ...super.toJSON(), recordVersionNumber: this.recordVersionNumber };
  }

  protected async sendHeartbeat(request: Numbered<HeartbeatBody & Change>, sendOptions: SendOptions): Promise<Renewal> {
    const numbered = { ...request, fencingToken: this.fencingToken };
    const answer = await this.#host.service.ask("heartbeat", numbered, sendOptions);
    return renewalOf(answer);
  }
}

/** The common part of the answers to heartbeats. */
function renewalOf({ recordVersionNumber, wanted, ...rest }: Answers["heartbeat"]): Renewal {
  return { version: recordVersionNumber, isWanted: wanted ?? false, ...rest };
}
