// The history of one lock, as the service keeps it. A service that keeps none has no such section.
import { useEffect, useState } from "preact/hooks";
import { ApiError, get } from "./api.js";
import { Text } from "./text.js";
import type { History, HistoryEntry, Lock } from "./wire.js";

/** The events of one look. Older ones follow on demand. */
const PAGE = "50";

/** The time after which a stack has recorded the event that the page has just seen. */
const LATER_MS = 5000;

const EVENTS: Record<HistoryEntry["event"], string> = {
  acquired: "Acquired",
  renewed: "Acquired again",
  takenOver: "Taken over",
  released: "Released",
  broken: "Broken by an operator",
  expired: "Expired",
  deleted: "Deleted",
};

/** What the service told, from the newest event on. */
interface Told {
  entries: HistoryEntry[];
  cursor?: string | undefined;
}

/** `lock` is read again with each new version of it. */
export function LockHistory({ lock }: { lock: Lock }) {
  const [told, setTold] = useState<Told | undefined>(undefined);
  const [failure, setFailure] = useState<string | undefined>(undefined);
  const key = JSON.stringify([lock.key, lock.sortKey]);

  async function read(before: Told | undefined, isCurrent: () => boolean): Promise<void> {
    try {
      const sortKey = lock.sortKey ?? undefined;
      const page = await get<History>("/v1/history", { key: lock.key, sortKey, limit: PAGE, cursor: before?.cursor });
      if (!isCurrent()) return;
      setTold({ entries: [...(before?.entries ?? []), ...page.entries], cursor: page.nextCursor ?? undefined });
      setFailure(undefined);
    } catch (error) {
      if (!isCurrent()) return;
      // The service keeps no history, or is of a version that has none.
      const isNone = error instanceof ApiError && error.status === 404;
      setFailure(isNone ? undefined : error instanceof Error ? error.message : String(error));
    }
  }

  useEffect(() => {
    let current = true;
    setTold(undefined);
    void read(undefined, () => current);
    // The service tells an event some seconds after it happened.
    const again = setTimeout(() => void read(undefined, () => current), LATER_MS);
    return () => {
      current = false;
      clearTimeout(again);
    };
  }, [key, lock.state, lock.fencingToken]);

  if (failure !== undefined) return <p class="notice notice-bad">{failure}</p>;
  if (told === undefined) return null;
  return (
    <>
      <h3>History, as the service keeps it</h3>
      {told.entries.length === 0 && <p class="explain">The service has recorded no event of this lock.</p>}
      <ol class="timeline" tabIndex={0} aria-label="History">
        {told.entries.map((entry, index) => (
          <li key={`${told.entries.length - index}`} class={`event event-${entry.event}`}>
            <span class="event-name">{EVENTS[entry.event]}</span>
            <time>{new Date(entry.atMs).toISOString().replace("T", " ").slice(0, 19)}</time>
            <span class="event-detail">
              <Text of={entry.ownerName ?? "unreadable"} />
              {entry.previousOwnerName != null && (
                <>
                  {" after "}
                  <Text of={entry.previousOwnerName} />
                </>
              )}
              {entry.fencingToken != null && <span class="mono quiet"> {entry.fencingToken}</span>}
            </span>
          </li>
        ))}
      </ol>
      {told.cursor !== undefined && (
        <button type="button" class="button" onClick={() => void read(told, () => true)}>
          Older…
        </button>
      )}
    </>
  );
}
