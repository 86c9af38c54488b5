// One lock: its view, the events that this page saw, and the way to break the lock.
import { useEffect, useRef, useState } from "preact/hooks";
import { post } from "./api.js";
import { BreakDialog } from "./break.js";
import { duration } from "./format.js";
import { LockHistory } from "./history.js";
import { type Seen, isSemaphore, stateOf } from "./observations.js";
import { Chip, Empty, LeaseBar } from "./parts.js";
import { SemaphoreDetails } from "./semaphore.js";
import { go, route, selected, selectedError } from "./store.js";
import { Text } from "./text.js";
import { Timeline } from "./timeline.js";
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
      {value && isSemaphore(value.seen.lock) && <SemaphoreDetails opened={value} />}
      {value && !isSemaphore(value.seen.lock) && <Details seen={value.seen} full={value.full} />}
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
      {breaking && (
        <BreakDialog
          of="lock"
          shown={breaking}
          seen={seen}
          send={breakLock}
          onShow={setBreaking}
          onClose={() => setBreaking(undefined)}
        />
      )}
      <h3>Timeline, as this page saw it</h3>
      <Timeline events={seen.events} />
      <LockHistory lock={lock} />
      <Payload lock={full} />
    </>
  );
}

function breakLock({ key, sortKey, recordVersionNumber }: Lock): Promise<unknown> {
  return post("/v1/break", { key, recordVersionNumber, ...(sortKey == null ? {} : { sortKey }) });
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

/** Shortcut of the panel. */
export function pressBreak(): void {
  document.querySelector<HTMLButtonElement>("#break")?.click();
}

export function closePanel(): void {
  go("#/locks");
  document.querySelector<HTMLElement>("#locks")?.focus();
}
