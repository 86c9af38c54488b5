/** A lock that is held. */
import { type Grant, type GuardHost, type GuardOptions, type HeartbeatBody, Holding, type ReleaseOutcome, type Renewal } from "./holding.js";
import type { Lease } from "./lease.js";
import type { Numbered } from "./numbers.js";
import type { HeartbeatOptions, ReleaseOptions } from "./options.js";
import { changeToWire, fromWire, toWire, type WirePayload } from "./payload.js";
import type { Answers, SendOptions } from "./service.js";

/** The answer that the guard of a lock is made of. */
export interface LockGrant extends Grant, WirePayload {
  readonly previousOwnerName?: string | null | undefined;
}

/** The part of a heartbeat that a lock has beside what every kind has. */
interface Change extends WirePayload {
  readonly deleteData?: boolean | undefined;
}

/** A lock that is held, until it is released or lost. */
export class Guard extends Holding<Change> {
  /** Who had the lock before, where that is known. */
  readonly previousOwnerName: string | undefined;
  /** The payload of the row at the time of the grant: what was stored with it, or what the predecessor left. */
  readonly data: Uint8Array | undefined;
  /** The same as text, where it is UTF-8. */
  readonly text: string | undefined;
  readonly #host: GuardHost;

  /** @internal */
  constructor(host: GuardHost, grant: LockGrant, lease: Lease, options: GuardOptions) {
    super(host, grant, lease, options);
    this.#host = host;
    this.previousOwnerName = grant.previousOwnerName ?? undefined;
    const payload = fromWire(grant);
    this.data = payload.data;
    this.text = payload.text;
  }

  /** Changes with every heartbeat. */
  get recordVersionNumber(): string {
    return this.currentVersion;
  }

  /**
   * Renews the lease now, and changes lease or payload if asked to. Tried again while the service cannot be reached,
   * for the rest of the lease.
   *
   * @throws {LockLostError} the lock is lost, or its release has begun.
   * @throws {UnavailableError | ThrottledError} it cannot be known; the lock is held until its lease runs out.
   * @throws {InvalidRequestError} and other refusals: nothing was changed.
   */
  async heartbeat(options: Omit<HeartbeatOptions, "sortKey"> = {}): Promise<void> {
    await this.renewBy(() => changeToWire(options.data), options);
  }

  release(options: Omit<ReleaseOptions, "sortKey"> = {}): Promise<ReleaseOutcome> {
    const { key, sortKey, leaseId } = this;
    const request = { key, sortKey, leaseId, delete: options.delete, completed: options.completed, ...toWire(options.data) };
    return this.releaseBy((sendOptions) => this.#host.service.ask("release", request, sendOptions), options.signal);
  }

  override toJSON(): Record<string, unknown> {
    return { ...super.toJSON(), recordVersionNumber: this.recordVersionNumber };
  }

  protected async sendHeartbeat(request: Numbered<HeartbeatBody & Change>, sendOptions: SendOptions): Promise<Renewal> {
    return renewalOf(await this.#host.service.ask("heartbeat", request, sendOptions));
  }
}

/** What every kind of heartbeat is answered with. */
function renewalOf({ recordVersionNumber, leaseDurationMs, fencingToken }: Answers["heartbeat"]): Renewal {
  return { version: recordVersionNumber, leaseDurationMs, fencingToken };
}
