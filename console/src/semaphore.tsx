// One semaphore: its holders, and its queue.
import { useEffect, useState } from "preact/hooks";
import { post } from "./api.js";
import { BreakDialog } from "./break.js";
import { type Observations, type Seen, idOf, isSemaphore, stateOf } from "./observations.js";
import { Chip, Empty, LeaseBar, permits } from "./parts.js";
import { Text, plain } from "./text.js";
import { Timeline } from "./timeline.js";
import type { Lock } from "./wire.js";

type Kind = "holder" | "ticket";

/**
 * `opened` is new with every look: its content is changed in place, and would not be drawn again by itself.
 */
export function SemaphoreDetails({ opened: { seen, entries } }: { opened: { seen: Seen; entries: Observations } }) {
  const { lock } = seen;
  const [breaking, setBreaking] = useState<{ kind: Kind; shown: Lock; seen: Seen } | undefined>(undefined);
  const semaphore = JSON.stringify([lock.key, lock.sortKey]);
  useEffect(() => setBreaking(undefined), [semaphore]);
  if (!isSemaphore(lock)) return null;
  const list = (kind: Kind, ids: string[]) => (
    <ol class="entries" aria-label={kind === "holder" ? "Holders" : "Queue"}>
      {ids
        .map((id) => entries.locks.get(idOf({ key: lock.key, sortKey: id })))
        .filter((entry) => entry !== undefined)
        .map((entry) => (
          <Entry key={entry.id} seen={entry} onBreak={() => setBreaking({ kind, shown: entry.lock, seen: entry })} />
        ))}
    </ol>
  );
  return (
    <>
      <div class="status">
        <Chip state={seen.gone ? "gone" : "semaphore"} />
        <span>{permits(lock)}</span>
      </div>
      <p class="explain">A semaphore gives its permits to several holders. Each has a lease of its own.</p>
      <h3>Holders</h3>
      {lock.holders.length === 0 && <Empty title="All permits are free." />}
      {list(
        "holder",
        lock.holders.map((holder) => holder.holderId),
      )}
      {lock.queue.length > 0 && <h3>Queue</h3>}
      {list(
        "ticket",
        lock.queue.map((ticket) => ticket.ticketId),
      )}
      {breaking && (
        <BreakDialog
          of={breaking.kind}
          shown={breaking.shown}
          seen={breaking.seen}
          send={(shown) => breakEntry(lock, shown)}
          onShow={(shown) => setBreaking({ ...breaking, shown })}
          onClose={() => setBreaking(undefined)}
        />
      )}
      <h3>Timeline, as this page saw it</h3>
      <Timeline events={seen.events} />
    </>
  );
}

/** An entry is observed as a lock whose sort key is its id. */
function breakEntry({ key, sortKey }: Lock, entry: Lock): Promise<unknown> {
  const { sortKey: holderId, recordVersionNumber: version } = entry;
  return post("/v1/semaphore/break", { key, holderId, version, ...(sortKey == null ? {} : { sortKey }) });
}

function Entry({ seen, onBreak }: { seen: Seen; onBreak: () => void }) {
  const { ownerName, fencingToken, permits = 1 } = seen.lock;
  const isStale = stateOf(seen) === "stale";
  return (
    <li class={`entry${isStale ? " entry-stale" : ""}`}>
      <div class="status">
        <strong>
          <Text of={ownerName} />
        </strong>
        <span class="quiet">
          {permits} {permits === 1 ? "permit" : "permits"}
        </span>
        {isStale && <Chip state="stale" />}
        {fencingToken != null && <span class="mono quiet">{fencingToken}</span>}
      </div>
      <div class="status">
        <LeaseBar seen={seen} />
        <button type="button" class="button button-danger" aria-label={`Break ${plain(ownerName)}…`} onClick={onBreak}>
          Break…
        </button>
      </div>
    </li>
  );
}
