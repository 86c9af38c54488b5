// One lock: all that is known of it, what this page saw happen to it, and the way to break it.
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, post } from "./api.js";
import { age, duration } from "./format.js";
import { type Event, type Seen, stateOf } from "./observations.js";
import { Chip, Empty, LeaseBar } from "./parts.js";
import { go, lookNow, now, nowSeconds, route, selected, selectedError } from "./store.js";
import { Text } from "./text.js";
import type { Lock } from "./wire.js";

/** Longest payload shown whole. */
const MAX_SHOWN = 20_000;

export function LockPanel() {
  const heading = useRef<HTMLHeadingElement>(null);
  const at = route.value;
  const id = at.name === "lock" ? JSON.stringify([at.key, at.sortKey]) : "";
  useEffect(() => heading.current?.focus(), [id]);
  if (at.name !== "lock") return null;
  const { value } = selected;
  return (
    <aside class="panel" aria-labelledby="lock-title">
      <header class="panel-head">
        <h2 id="lock-title" class="mono" tabIndex={-1} ref={heading}>
          <Text of={at.key} />
          {at.sortKey !== undefined && (
            <span class="sort-key">
              {" "}
              / <Text of={at.sortKey} />
            </span>
          )}
        </h2>
        <a class="close" href="#/locks" aria-label="Close">
          <span aria-hidden="true">✕</span>
        </a>
      </header>
      {selectedError.value && <p class="notice notice-bad">{selectedError.value}</p>}
      {value === undefined && !selectedError.value && <Empty title="Looking…" />}
      {value === null && <Empty title="There is no such lock.">It may have been deleted, or it never was.</Empty>}
      {value && <Details seen={value.seen} full={value.full} />}
    </aside>
  );
}

function Details({ seen, full }: { seen: Seen; full: Lock }) {
  const [breaking, setBreaking] = useState<Lock | undefined>(undefined);
  const { lock } = seen;
  const state = seen.gone ? "gone" : stateOf(seen);
  const key = JSON.stringify([lock.key, lock.sortKey]);
  useEffect(() => setBreaking(undefined), [key]);
  return (
    <>
      <div class="status">
        <Chip state={state} />
        {state !== "gone" && <LeaseBar seen={seen} />}
      </div>
      <p class="explain">{explain(state, seen)}</p>
      <dl class="facts">
        <dt>{lock.state === "held" ? "Owner" : "Last owner"}</dt>
        <dd>
          <Text of={lock.ownerName} />
        </dd>
        <dt>Lease</dt>
        <dd>{duration(lock.leaseDurationMs)}</dd>
        <dt>Fencing token</dt>
        <dd class="mono">{lock.fencingToken ?? "none: another client wrote this row"}</dd>
        <dt>Version</dt>
        <dd class="mono" data-version>
          <Text of={lock.recordVersionNumber} />
        </dd>
      </dl>
      {lock.state === "held" && !seen.gone && (
        <button id="break" type="button" class="button button-danger" onClick={() => setBreaking(lock)}>
          Break…
        </button>
      )}
      {breaking && <BreakDialog shown={breaking} seen={seen} onShow={setBreaking} onClose={() => setBreaking(undefined)} />}
      <h3>Timeline, as this page saw it</h3>
      <Timeline events={seen.events} />
      <Payload lock={full} />
    </>
  );
}

function explain(state: string, seen: Seen): string {
  switch (state) {
    case "held":
      return seen.olderThanSeen
        ? "No change since this page first looked. The holder shows it is alive with its next heartbeat."
        : "The holder is alive, as far as this page saw.";
    case "stale":
      return "No heartbeat for longer than the lease. Whoever waits for this lock may take it over.";
    case "gone":
      return "The lock is no longer there. Below is the last that this page saw of it.";
    default:
      return "Nobody holds this lock.";
  }
}

const EVENTS: Record<Event["kind"], string> = {
  seen: "First look",
  acquired: "Acquired",
  renewed: "Renewed",
  reacquired: "Acquired again",
  "changed hands": "Changed hands",
  "taken over": "Taken over",
  released: "Released",
  gone: "Deleted",
};

function Timeline({ events }: { events: Event[] }) {
  const clock = (at: number) => new Date(performance.timeOrigin + at).toLocaleTimeString("en-GB");
  return (
    <ol class="timeline" tabIndex={0} aria-label="Timeline">
      {events.toReversed().map((event, index) => (
        <li key={`${events.length - index}`} class={`event event-${event.kind.replaceAll(" ", "-")}`}>
          <span class="event-name">
            {EVENTS[event.kind]}
            {event.count > 1 && <b> × {event.count}</b>}
          </span>
          <time>{clock(event.at)}</time>
          <span class="event-age">{age(Math.max(0, nowSeconds.value - event.at))} ago</span>
          <span class="event-detail">
            {event.kind !== "renewed" && (
              <>
                <Text of={event.ownerName} />
                {event.previousOwnerName !== undefined && (
                  <>
                    {" after "}
                    <Text of={event.previousOwnerName} />
                  </>
                )}
                {event.fencingToken !== undefined && event.kind !== "released" && event.kind !== "gone" && (
                  <span class="mono quiet"> {event.fencingToken}</span>
                )}
              </>
            )}
          </span>
        </li>
      ))}
    </ol>
  );
}

function Payload({ lock }: { lock: Lock }) {
  const attributes = Object.entries(lock.attributes ?? {});
  return (
    <>
      {lock.data != null && (
        <>
          <h3>Data</h3>
          <pre class="payload" tabIndex={0} aria-label="Data">
            <Text of={lock.data.slice(0, MAX_SHOWN)} keepLines />
            {lock.data.length > MAX_SHOWN && `\n… ${lock.data.length - MAX_SHOWN} more characters`}
          </pre>
        </>
      )}
      {lock.dataBase64 != null && (
        <>
          <h3>Data, in base64</h3>
          <pre class="payload" tabIndex={0} aria-label="Data">
            {lock.dataBase64.slice(0, MAX_SHOWN)}
          </pre>
        </>
      )}
      {attributes.length > 0 && (
        <>
          <h3>Attributes</h3>
          <dl class="facts">
            {attributes.map(([name, value]) => (
              <div key={name} class="fact">
                <dt class="mono">
                  <Text of={name} />
                </dt>
                <dd class="mono">
                  <Text of={typeof value === "string" ? value : JSON.stringify(value)} />
                </dd>
              </div>
            ))}
          </dl>
        </>
      )}
    </>
  );
}

type Outcome = { kind: "asking" } | { kind: "sending" } | { kind: "refused"; detail: string };

/** Breaks exactly the version that it shows. */
function BreakDialog(props: { shown: Lock; seen: Seen; onShow: (lock: Lock) => void; onClose: () => void }) {
  const { shown, seen, onShow, onClose } = props;
  const dialog = useRef<HTMLDialogElement>(null);
  const [outcome, setOutcome] = useState<Outcome>({ kind: "asking" });
  useEffect(() => dialog.current?.showModal(), []);
  const current = seen.lock;
  const changed = seen.gone || current.recordVersionNumber !== shown.recordVersionNumber;
  const alive = stateOf(seen) === "held";

  const breakIt = async () => {
    setOutcome({ kind: "sending" });
    const { key, sortKey, recordVersionNumber } = shown;
    try {
      await post("/v1/break", { key, recordVersionNumber, ...(sortKey == null ? {} : { sortKey }) });
      onClose();
    } catch (error) {
      setOutcome({ kind: "refused", detail: refusal(error) });
    }
    lookNow();
  };

  return (
    <dialog ref={dialog} class="dialog" aria-labelledby="break-title" onClose={onClose}>
      <h2 id="break-title">Break this lock?</h2>
      <dl class="facts">
        <dt>Key</dt>
        <dd class="mono">
          <Text of={shown.key} />
          {shown.sortKey != null && (
            <>
              {" / "}
              <Text of={shown.sortKey} />
            </>
          )}
        </dd>
        <dt>Owner</dt>
        <dd>
          <Text of={shown.ownerName} />
        </dd>
        <dt>Version</dt>
        <dd class="mono" id="break-version">
          {shown.recordVersionNumber}
        </dd>
      </dl>
      <p>
        Only this version is broken. The holder learns of it at its next heartbeat; until then it may go on working, and only the fencing
        token keeps its late writes out.
      </p>
      {alive && !changed && (
        <p class="notice notice-warn">
          Its holder may be alive: {seen.olderThanSeen ? "this page has watched it for only " : "its last sign of life was seen "}
          {age(now.value - seen.since)}
          {seen.olderThanSeen ? "" : " ago"}, and its lease is {duration(shown.leaseDurationMs)}.
        </p>
      )}
      <div role="status">
        {outcome.kind === "refused" && <p class="notice notice-bad">{outcome.detail}</p>}
        {changed && outcome.kind !== "refused" && (
          <p class="notice notice-warn">The lock has changed since: it has another version, or is gone. This version can no longer be broken.</p>
        )}
      </div>
      <div class="buttons">
        <button type="button" class="button" onClick={onClose}>
          Keep it
        </button>
        {changed && current.state === "held" && !seen.gone && (
          <button
            type="button"
            class="button"
            onClick={() => {
              setOutcome({ kind: "asking" });
              onShow(current);
            }}
          >
            Show its new version
          </button>
        )}
        <button
          id="break-confirm"
          type="button"
          class="button button-danger"
          disabled={outcome.kind === "sending"}
          onClick={() => void breakIt()}
        >
          Break this version
        </button>
      </div>
    </dialog>
  );
}

function refusal(error: unknown): string {
  if (!(error instanceof ApiError)) return String(error);
  if (error.problem?.type === "version-mismatch") {
    return "Refused: the lock has changed since you looked, so nothing was broken. Look at its new version first.";
  }
  if (error.status === 0) return `${error.message} The lock may or may not be broken; repeating does no harm.`;
  return error.status === 404 ? "There is no such lock any more." : `Refused: ${error.message}`;
}

/** Shortcut of the panel. */
export function pressBreak(): void {
  document.querySelector<HTMLButtonElement>("#break")?.click();
}

export function closePanel(): void {
  go("#/locks");
  document.querySelector<HTMLElement>("#locks")?.focus();
}
