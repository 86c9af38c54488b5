/** The recorded runs of the machines (clients/vectors/traces), replayed on this package's port. */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { type Action, Call, type Event, type Purpose, type Reply, type What } from "../dist/call.js";
import {
  type Action as HolderAction,
  type Event as HolderEvent,
  Holder,
  type Reply as HolderReply,
} from "../dist/holder.js";

/** The committed traces, and those of other seeds, which the recorder wrote. */
const FOLDERS = [new URL("../../vectors/traces/", import.meta.url).pathname, process.env["LEASEHOLD_TRACES"]];

// biome-ignore lint/suspicious/noExplicitAny: a line is whatever the recorder wrote
type Line = any;

function replyOf({ type, leaseMs, found, sequence, retryAfterMs, mayApply }: Line): Reply {
  if (type === "done") return { type, lease: leaseMs ?? undefined, found };
  if (type === "superseded") return { type, sequence };
  if (type === "retryable") return { type, retryAfter: retryAfterMs, mayApply };
  return { type };
}

function eventOf(given: Line): Event<string> {
  return given.type === "answer" ? { ...given, reply: replyOf(given.reply) } : given;
}

function shownWhat(what: What<string>): Line {
  if (what.type !== "numbered") return what;
  const { body: request, sequence, requestId, firstSent } = what.turn;
  return { type: "numbered", request, sequence, requestId, firstSent };
}

function shownAction(action: Action<string>): Line {
  if (action.type === "send") return { ...action, what: shownWhat(action.what) };
  if (action.type === "finish") return { type: "finish", outcome: { type: action.outcome, send: action.send } };
  return action;
}

function shownState(call: Call<string>): Line {
  const { state: name, mayHold, numbers } = call;
  return {
    name,
    mayHold,
    last: numbers.last,
    open: numbers.open?.sequence ?? null,
    ...(["asking", "leaving", "releasing"].includes(name) && { send: call.send }),
    ...(["paused", "release-paused", "doubting"].includes(name) && { until: call.until }),
  };
}

/** The draws of one line, each of which is made once, in order. */
function drawsOf(drawn: Line[]): { fraction(purpose: Purpose): number; id(purpose: Purpose): string } {
  const next = (purpose: Purpose): Line => {
    const draw = drawn.shift();
    assert.equal(draw?.purpose, purpose);
    return draw;
  };
  return { fraction: (purpose) => next(purpose).fraction, id: (purpose) => next(purpose).id };
}

function holderReplyOf({ type, leaseMs, token, wanted, reason, sequence, retryAfterMs, mayApply }: Line): HolderReply {
  if (type === "renewed") return { type, lease: leaseMs, token, wanted };
  if (type === "lost") return { type, reason };
  if (type === "superseded") return { type, sequence, token: token ?? undefined };
  if (type === "retryable") return { type, retryAfter: retryAfterMs, mayApply };
  return { type };
}

function holderEventOf(given: Line): HolderEvent<string> {
  if (given.type === "answer") return { ...given, reply: holderReplyOf(given.reply) };
  if (given.type === "renew") return { ...given, lease: given.leaseMs ?? undefined };
  if (given.type === "warn-at") return { type: given.type, left: given.leftMs ?? undefined };
  return given;
}

function shownHolderAction(action: HolderAction<string>): Line {
  if (action.type === "send") {
    const { body, sequence, requestId, firstSent } = action.turn;
    const beat = { leaseMs: body.lease, change: body.change ?? null, sequence, requestId, firstSent };
    return { type: "send", send: action.send, beat, timeout: action.timeout };
  }
  if (action.type === "at-risk") return { type: action.type, risk: action.risk, leftMs: action.left };
  if (action.type === "give-back") return { type: action.type, leaseMs: action.lease, patienceMs: action.patience };
  return action;
}

function shownHolderState(holder: Holder<string>): Line {
  const { state: name, until, lease, numbers, underWay, isWanted, trouble } = holder;
  return {
    name,
    until,
    leaseMs: lease,
    last: numbers.last,
    open: numbers.open?.sequence ?? null,
    underWay: underWay ?? null,
    wanted: isWanted,
    trouble: trouble ?? null,
  };
}

function shownBelief(holder: Holder<string>, now: number): Line {
  const { isInDoubt: inDoubt } = holder;
  return { valid: holder.valid(now), remainingMs: holder.remaining(now), loss: holder.loss(now) ?? null, inDoubt };
}

function replayCall(call: Call<string>, line: Line): Line {
  const step = call.step({ answered: line.answered }, eventOf(line.event), line.at, drawsOf(line.draws));
  return { branch: step.branch, actions: step.actions.map(shownAction), state: shownState(call) };
}

function replayHolder(holder: Holder<string>, line: Line): Line {
  if (line.event === undefined) return { belief: shownBelief(holder, line.at) };
  const step = holder.step(holderEventOf(line.event), line.at, drawsOf(line.draws));
  return {
    branch: step.branch,
    actions: step.actions.map(shownHolderAction),
    state: shownHolderState(holder),
    belief: shownBelief(holder, line.at),
  };
}

for (const folder of FOLDERS.filter((each) => each !== undefined)) {
  for (const file of readdirSync(folder)) {
    test(`port takes the steps of ${file}`, () => {
      let call: Call<string> | undefined;
      let holder: Holder<string> | undefined;
      const lines = readFileSync(`${folder}/${file}`, "utf8").trimEnd().split("\n");
      for (const [index, text] of lines.entries()) {
        const line: Line = JSON.parse(text);
        const name = `${file}, line ${index + 1}: ${line.call ?? line.holder} at ${line.at}`;
        if (line.grant) {
          const { beats, delayMs: delay, holdsOn, maxHoldMs } = line.terms;
          const { sent, leaseMs: lease, token, sequence } = line.grant;
          holder = new Holder(
            { beats, delay, holdsOn, maxHold: maxHoldMs ?? undefined },
            { sent, lease, token, sequence },
          );
          continue;
        }
        if (line.terms) {
          const { leaseMs, delayMs, longestMs, boundMs } = line.terms;
          call = new Call(
            { lease: leaseMs ?? undefined, delay: delayMs, longest: longestMs, bound: boundMs },
            line.keys,
          );
          continue;
        }
        const machine = line.holder === undefined ? call : holder;
        assert.ok(machine);
        const step = machine instanceof Call ? replayCall(machine, line) : replayHolder(machine, line);
        const expected = Object.fromEntries(Object.keys(step).map((member) => [member, line[member]]));
        assert.deepEqual(step, expected, name);
        assert.deepEqual(line.draws ?? [], [], `${name}: a draw too few`);
      }
    });
  }
}
