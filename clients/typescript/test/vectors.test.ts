/** The rules of docs/client.md, by the cases that the suites of all clients read. */
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { Client } from "../dist/client.js";
import {
  InvalidRequestError,
  isRetryable,
  isUnanswered,
  LeaseholdError,
  LockLostError,
  SupersededError,
  UnavailableError,
} from "../dist/errors.js";
import { checkGuardOptions } from "../dist/holding.js";
import { Numbers, numbered, recorded } from "../dist/numbers.js";
import { Observations } from "../dist/observations.js";
import * as pacing from "../dist/pacing.js";
import { plan } from "../dist/plan.js";
import { Service } from "../dist/service.js";
import { type Answer, parseDocument, type Transport } from "../dist/transport.js";
import { packageRoot } from "./support.js";
import { VirtualRuntime } from "./virtual.js";

/* biome-ignore-start lint/suspicious/noExplicitAny: the cases are JSON of many shapes */
interface Case {
  rule: string;
  call: string;
  name: string;
  given: any;
  steps: any[];
  expect: any;
}
/* biome-ignore-end lint/suspicious/noExplicitAny: the cases are JSON of many shapes */

const optional = <T>(value: T | null): T | undefined => value ?? undefined;

/** Compares numbers with a tolerance of one millisecond, as the vectors ask for. */
function assertTime(actual: number | null, expected: number | null, message: string): void {
  if (actual === null || expected === null) assert.equal(actual, expected, message);
  else assert.ok(Math.abs(actual - expected) <= 1, `${message}: ${actual} instead of ${expected}`);
}

/** A transport with prepared answers, which records its requests. */
class Script implements Transport {
  readonly bodies: string[] = [];
  readonly answers: (Answer | "unanswered" | (() => Answer))[] = [];

  exchange(_call: unknown, request: object): Promise<Answer> {
    this.bodies.push(JSON.stringify(request));
    const answer = this.answers.shift() ?? { status: 200, document: { outcome: "released" }, retryAfter: 0 };
    if (answer === "unanswered") return Promise.reject(new UnavailableError("no answer"));
    return Promise.resolve(typeof answer === "function" ? answer() : answer);
  }
}

const ok = (document: object): Answer => ({ status: 200, document, retryAfter: 0 });
const refused = (status: number, type: string, more: object = {}): Answer => ({
  status,
  document: { type, status, title: "t", detail: "d", ...more },
  retryAfter: 0,
});
const lock = { key: "Moe", state: "held", ownerName: "A", recordVersionNumber: "v", leaseDurationMs: 20_000 };
const grant = { recordVersionNumber: "v", leaseDurationMs: 20_000, fencingToken: 41, outcome: "created" };

const calls: Record<string, (it: Case) => Promise<void> | void> = {
  retryAfter: ({ given, expect, name }) => {
    assertTime(pacing.retryAfterMs(given.header), expect, name);
  },
  backoff: ({ given, expect, name }) => {
    assertTime(pacing.retryPause(given.failures, given.retryAfterMs, given.jitter), expect, name);
  },
  pollPause: ({ given, expect, name }) => {
    assertTime(pacing.pollPause(optional(given.chosenMs), given.retryAfterMs, given.jitter), expect, name);
  },
  returnPause: ({ given, expect, name }) => {
    const [releasedAgo, unwantedFor] = [optional(given.releasedAgoMs), optional(given.unwantedForMs)];
    assertTime(pacing.returnPause(releasedAgo, unwantedFor, optional(given.chosenMs), given.jitter), expect, name);
  },
  markPause: ({ given, expect, name }) => {
    assertTime(pacing.markPause(given.jitter), expect, name);
  },
  requestTimeout: ({ given, expect, name }) => {
    const shortest = given.operation === "wait" ? pacing.LAST_LOOK_MS : undefined;
    assertTime(pacing.requestTimeout(optional(given.leaseMs), optional(given.leftMs), shortest), expect, name);
  },
  endpointTimeout: ({ given, expect, name }) => {
    assertTime(pacing.endpointTimeout(given.timeoutMs, given.endpoints), expect, name);
  },
  heartbeatInterval: ({ given, expect, name }) => {
    const check = (): void => {
      checkGuardOptions({ heartbeatInterval: optional(given.chosenMs) }, given.leaseMs);
    };
    if (expect === "invalid") assert.throws(check, InvalidRequestError, name);
    else {
      check();
      assertTime(given.chosenMs ?? pacing.heartbeatInterval(given.leaseMs), expect, name);
    }
  },
  suspended: ({ given, expect, name }) => {
    assert.equal(pacing.wasSuspended(given.monotonicMs, given.wallMs), expect, name);
  },
  heartbeatPause: ({ given, expect, name }) => {
    assertTime(pacing.heartbeatPause(given.intervalMs, given.jitter), expect, name);
  },
  heartbeatRetryPause: ({ given, expect, name }) => {
    assertTime(pacing.heartbeatRetryPause(given.pauseMs, given.leftMs), expect, name);
  },
  wait: ({ given, expect, name }) => {
    const budget = new pacing.WaitBudget(given.wait === "forever" ? Infinity : given.wait, given.marginMs, 0);
    const ends = [budget.deadline];
    for (const [at, version, lease] of given.seen) {
      budget.found(version, lease, at);
      ends.push(budget.deadline);
    }
    assert.deepEqual(
      ends,
      (expect as (number | null)[]).map((end) => end ?? Infinity),
      name,
    );
  },
  observe: ({ steps, name }) => {
    const runtime = new VirtualRuntime();
    const observations = new Observations(runtime);
    for (const step of steps) {
      runtime.time = step.atMs;
      if (step.do === "seen") observations.found("Moe", undefined, step.version, step.leaseMs);
      else if (step.do === "forget") observations.forget("Moe", undefined);
      else assert.equal(observations.stale("Moe", undefined) ?? null, step.stale, `${name}, at ${String(step.atMs)}`);
    }
  },
  saved: ({ given, expect, name }) => {
    const runtime = new VirtualRuntime();
    const observations = new Observations(runtime);
    const firstSeenEpochMs = runtime.wall - (given.ageMs as number);
    observations.load(
      [{ key: "Moe", recordVersionNumber: "v1", leaseDurationMs: given.leaseMs, firstSeenEpochMs }],
      given.marginMs,
    );
    runtime.time += given.afterMs as number;
    assert.equal(observations.stale("Moe", undefined) === "v1", expect, name);
  },
  save: ({ given, expect, name }) => {
    const runtime = new VirtualRuntime();
    const observations = new Observations(runtime);
    runtime.wall = given.epochMs - (given.seenAgoMs as number);
    observations.found("Moe", undefined, "v1", 20_000);
    runtime.wall = given.epochMs;
    runtime.time += given.seenAgoMs as number;
    assert.equal(observations.save()[0]?.firstSeenEpochMs, expect, name);
  },
  problem: async ({ given, expect, name }) => {
    const text = typeof given.body === "string" ? given.body : JSON.stringify(given.body);
    const answer = {
      status: given.status,
      document: parseDocument(text),
      retryAfter: pacing.retryAfterMs(given.retryAfter),
    };
    const script = new Script();
    script.answers.push(answer);
    const request = { key: "Moe", leaseId: "l", sequence: 1, requestId: "r" } as Parameters<Service["ask"]>[1];
    const error: unknown = await new Service(script, new VirtualRuntime())
      .ask("heartbeat", request as never, { timeout: 1000 })
      .catch((thrown: unknown) => thrown);
    assert.ok(error instanceof LeaseholdError, name);
    const members = error as unknown as Record<string, unknown>;
    for (const [member, expected] of Object.entries(expect)) {
      if (member === "retryable")
        assert.equal(isRetryable(error) && !(error instanceof SupersededError), expected, `${name}: retryable`);
      else if (member === "unanswered") assert.equal(isUnanswered(error), expected, `${name}: unanswered`);
      else if (member === "retryAfterMs") assert.equal(members["retryAfter"], expected, name);
      else assert.equal(members[member], expected, `${name}: ${member}`);
    }
  },
  numbers: async ({ steps, name }) => {
    const runtime = new VirtualRuntime();
    const script = new Script();
    let numbers = new Numbers<object>();
    let before = "";
    let leaseId = 0;
    for (const step of steps) {
      if (step.do === "resume") numbers = new Numbers(step.given ?? undefined);
      if (step.newLeaseId === true) {
        leaseId += 1;
        numbers = new Numbers();
      }
      const request = numbered(numbers.next({ leaseId }, runtime.now(), () => runtime.uuid()));
      assert.equal(request.sequence, step.sends, name);
      assert.equal(JSON.stringify(request) === before, step.repeat, `${name}: byte for byte`);
      before = JSON.stringify(request);
      const answers: Record<string, Answer | "unanswered"> = {
        held: refused(423, "held", { lock }),
        lost: refused(409, "lost", { reason: "released" }),
        superseded: refused(409, "superseded", { sequence: step.sequence, fencingToken: 41 }),
        "gateway-throttled": { status: 429, document: { message: "Too Many Requests" }, retryAfter: 0 },
        unanswered: "unanswered",
      };
      script.answers.push(answers[step.answer] ?? ok(grant));
      const service = new Service(script, runtime);
      await recorded(numbers, () => service.ask("heartbeat", request as never, { timeout: 1000 })).catch(
        () => undefined,
      );
    }
  },
  renewal: async ({ given, expect, name }) => {
    const runtime = new VirtualRuntime();
    const transport = new Script();
    const client = new Client({ transport, runtime, ownerName: "vectors" });
    transport.answers.push(ok({ ...grant, fencingToken: given.grantedToken }));
    const guard = (await client.tryAcquire("Moe", { heartbeatInterval: false })).granted();
    const answer = { ...grant, fencingToken: given.fencingToken };
    transport.answers.push(
      given.answer === "renewed"
        ? ok(answer)
        : refused(409, "superseded", { sequence: 7, fencingToken: given.fencingToken }),
      ok({ ...grant, fencingToken: given.grantedToken }),
    );
    const renewed = guard.renew().then(
      () => "renewed",
      (error: unknown) => (error instanceof LockLostError && error.reason === "taken-over" ? "lost" : error),
    );
    await runtime.advance(100);
    const outcome = await renewed;
    const sequences = transport.bodies.map((body) => (JSON.parse(body) as { sequence?: number }).sequence);
    assert.equal(outcome === "renewed" && sequences.length === 3 ? "again" : outcome, expect, name);
    if (expect === "again") assert.deepEqual(sequences, [1, 2, 8], name);
    const [, ...heartbeats] = transport.bodies.map(
      (body) => (JSON.parse(body) as { fencingToken?: number }).fencingToken,
    );
    assert.deepEqual(
      heartbeats,
      heartbeats.map(() => Number(given.grantedToken)),
      `${name}: each heartbeat names the token of its grant`,
    );
    assert.equal(guard.lost, expect === "lost" ? "taken-over" : undefined, name);
  },
};

calls["plan"] = ({ given, expect, name }) => {
  const entries = given.holders as [string, string, number, number][];
  const tickets = given.queue as [string, string, number, number, number][];
  const seen = given.observations as [string, string, number][];
  const holders = entries.map(([holderId, version, leaseDurationMs, permits]) => ({
    holderId,
    version,
    leaseDurationMs,
    permits,
  }));
  const queue = tickets.map(([ticketId, version, leaseDurationMs, permits, number]) => ({
    ticketId,
    version,
    leaseDurationMs,
    permits,
    number,
  }));
  const ages = new Map(seen.map(([id, version, age]) => [id, { version, age }]));
  const ageOf = (id: string, version: string): number => {
    const known = ages.get(id);
    return known?.version === version ? known.age : 0;
  };
  const wanted = {
    permits: given.permits,
    ticketId: optional<string>(given.ticketId),
    refreshIn: given.refreshInMs ?? Infinity,
    left: given.leftMs,
    unchanged: given.unchangedMs ?? 0,
    watched: given.unchangedMs ?? 0,
  };
  const next = plan({ capacity: given.capacity, available: given.available, holders, queue }, wanted, ageOf);
  if ("waitMs" in next) assertTime(next.waitMs, expect.waitMs, name);
  else {
    const { turn, ...step } = { turn: undefined, ...next };
    assert.deepEqual({ ...step, ...(turn === "passing" && { passes: true }) }, expect, name);
  }
};

const folder = join(packageRoot, "..", "vectors");
const files = ["coordination.json", "observations.json", "problems.json", "sequence.json", "timing.json"];
for (const file of files) {
  const { cases } = JSON.parse(await readFile(join(folder, file), "utf8")) as { cases: Case[] };
  for (const it of cases) {
    test(`${it.rule} ${it.call}: ${it.name}`, async () => {
      const call = calls[it.call];
      assert.ok(call, `no test knows the call ${it.call}`);
      await call(it);
    });
  }
}
