// The way to break a lock, or a holder or a ticket of a semaphore.
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "./api.js";
import { age, duration } from "./format.js";
import { type Seen, stateOf } from "./observations.js";
import { lookNow, now } from "./store.js";
import { Text } from "./text.js";
import type { Lock } from "./wire.js";

type Outcome = { kind: "asking" } | { kind: "sending" } | { kind: "refused"; detail: string };

interface Props {
  of: "lock" | "holder" | "ticket";
  /** The view with the version to break. */
  shown: Lock;
  /** The present view. */
  seen: Seen;
  send: (shown: Lock) => Promise<unknown>;
  onShow: (lock: Lock) => void;
  onClose: () => void;
}

const CONSEQUENCES: Record<Props["of"], string> = {
  lock: "The holder learns of it at its next heartbeat; until then it may go on working, and only the fencing token keeps its late writes out.",
  holder:
    "It learns of it at its next heartbeat; until then it may go on working, and only its fencing token keeps its late writes out.",
  ticket: "Whoever waits with it loses its place in the queue.",
};

/** Breaks exactly the version that the dialog shows. */
export function BreakDialog({ of, shown, seen, send, onShow, onClose }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [outcome, setOutcome] = useState<Outcome>({ kind: "asking" });
  useEffect(() => dialog.current?.showModal(), []);
  const current = seen.lock;
  const changed = seen.gone || current.recordVersionNumber !== shown.recordVersionNumber;
  const alive = stateOf(seen) === "held";

  const breakIt = async () => {
    setOutcome({ kind: "sending" });
    try {
      await send(shown);
      onClose();
    } catch (error) {
      setOutcome({ kind: "refused", detail: refusal(of, error) });
    }
    lookNow();
  };

  return (
    <dialog ref={dialog} class="dialog" aria-labelledby="break-title" onClose={onClose}>
      <h2 id="break-title">Break this {of}?</h2>
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
      <p>Only this version is broken. {CONSEQUENCES[of]}</p>
      {alive && !changed && (
        <p class="notice notice-warn">
          {of === "lock" ? "Its holder" : "It"} may be alive:{" "}
          {seen.olderThanSeen ? "this page has watched it for only " : "its last sign of life was seen "}
          {age(now.value - seen.since)}
          {seen.olderThanSeen ? "" : " ago"}, and its lease is {duration(shown.leaseDurationMs)}.
        </p>
      )}
      <div role="status">
        {outcome.kind === "refused" && <p class="notice notice-bad">{outcome.detail}</p>}
        {changed && outcome.kind !== "refused" && (
          <p class="notice notice-warn">
            The {of} has changed since: it has another version, or is gone. This version can no longer be broken.
          </p>
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

function refusal(of: Props["of"], error: unknown): string {
  if (!(error instanceof ApiError)) return String(error);
  if (error.problem?.type === "version-mismatch") {
    return `Refused: the ${of} has changed since you looked, so nothing was broken. Look at its new version first.`;
  }
  if (error.status === 0) return `${error.message} The ${of} may or may not be broken; repeating does no harm.`;
  return error.status === 404 ? `There is no such ${of} any more.` : `Refused: ${error.message}`;
}
