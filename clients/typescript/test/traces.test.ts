/** The recorded runs of the machines (clients/vectors/traces), replayed on this package's port. */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { type Action, Call, type Event, type Purpose, type Reply, type What } from "../dist/call.js";

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

for (const folder of FOLDERS.filter((each) => each !== undefined)) {
  for (const file of readdirSync(folder)) {
    test(`port takes the steps of ${file}`, () => {
      let call: Call<string> | undefined;
      const lines = readFileSync(`${folder}/${file}`, "utf8").trimEnd().split("\n");
      for (const [index, text] of lines.entries()) {
        const line: Line = JSON.parse(text);
        if (line.terms) {
          const { leaseMs, delayMs, longestMs, boundMs } = line.terms;
          call = new Call(
            { lease: leaseMs ?? undefined, delay: delayMs, longest: longestMs, bound: boundMs },
            line.keys,
          );
          continue;
        }
        assert.ok(call);
        const { branch, actions, state } = line;
        const step = call.step({ answered: line.answered }, eventOf(line.event), line.at, drawsOf(line.draws));
        assert.deepEqual(
          { branch: step.branch, actions: step.actions.map(shownAction), state: shownState(call) },
          { branch, actions, state },
          `${file}, line ${index + 1}: ${line.call} at ${line.at}`,
        );
        assert.deepEqual(line.draws, [], `${file}, line ${index + 1}: a draw too few`);
      }
    });
  }
}
