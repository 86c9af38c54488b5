/** Returning to a lock that was released (rule C4). */
import { isAtOnce, returnPause } from "./pacing.js";
import { Recent } from "./recent.js";

interface LastRelease {
  readonly at: number;
  /** The first release of a series after which the client returned at once. */
  readonly first: number;
  readonly wasWanted: boolean;
  returned: boolean;
}

/** The last releases of one client. */
export class Releases {
  readonly #last = new Recent<LastRelease>();

  /** Records that this client released the lock just now. `wasWanted`: whether somebody waits for it. */
  released(key: string, sortKey: string | undefined, wasWanted: boolean, now: number): void {
    const last = this.#last.get(key, sortKey);
    const first = last?.returned === true ? last.first : now;
    this.#last.set(key, sortKey, { at: now, first, wasWanted, returned: false });
  }

  /** Notes that this client requests the lock again. Returns the pause before its first request. */
  returns(
    { key, sortKey }: { key: string; sortKey: string | undefined },
    pollInterval: number | undefined,
    now: number,
    random: number,
  ): number {
    const last = this.#last.get(key, sortKey);
    if (last === undefined) return 0;
    const unwantedFor = last.wasWanted ? undefined : now - last.first;
    last.returned = isAtOnce(unwantedFor);
    return returnPause(now - last.at, unwantedFor, pollInterval, random);
  }
}
