/** The rules that are pure: no service, no real clock. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { InvalidRequestError, UnavailableError } from "../dist/errors.js";
import { Lease } from "../dist/lease.js";
import { Observations } from "../dist/observations.js";
import { heartbeatPatience, heartbeatPause, pollPause, requestTimeout, retryPause, WaitBudget } from "../dist/pacing.js";
import { fromWire, toWire } from "../dist/payload.js";
import { defaultOwnerName, type Runtime } from "../dist/runtime.js";
import { retrying } from "../dist/service.js";
import { abortable, at, LinkedController, sleepUntil } from "../dist/timers.js";

/** A clock that stands still until it is told to go on. */
class VirtualRuntime implements Runtime {
  time = 1000;
  wall = 1_000_000;
  chance = 0;
  /** What was asked of `after`. */
  delays: number[] = [];
  #timers: { time: number; callback: () => void }[] = [];

  now = (): number => this.time;
  epoch = (): number => this.wall;
  random = (): number => this.chance;
  uuid = (): string => "uuid";
  after = (delay: number, callback: () => void): (() => void) => {
    this.delays.push(delay);
    const timer = { time: this.time + delay, callback };
    this.#timers.push(timer);
    return () => {
      this.#timers = this.#timers.filter((other) => other !== timer);
    };
  };

  get pending(): number {
    return this.#timers.length;
  }

  /** Lets `duration` pass, with all that is due in it. */
  async advance(duration: number): Promise<void> {
    const end = this.time + duration;
    for (;;) {
      await new Promise(setImmediate);
      const next = this.#timers.sort((one, other) => one.time - other.time)[0];
      if (!next || next.time > end) break;
      this.#timers.shift();
      this.wall += next.time - this.time;
      this.time = next.time;
      next.callback();
    }
    this.wall += end - this.time;
    this.time = end;
  }
}

describe("C2: a holder counts from before it sent", () => {
  test("the lease that the answer names, from the sending", () => {
    const lease = new Lease();
    assert.equal(lease.validUntil, -Infinity);
    lease.begin(20_000, 100);
    lease.renewed(10_000);
    assert.equal(lease.validUntil, 10_100);
    lease.begin(20_000, 5000);
    assert.equal(lease.validUntil, 10_100, "a request under way extends nothing");
    lease.renewed(20_000);
    assert.equal(lease.validUntil, 25_000);
  });

  test("a renewal with a shorter lease that may have been carried out counts from its own sending", () => {
    const lease = new Lease();
    lease.begin(20_000, 0);
    lease.renewed(20_000);
    lease.begin(1000, 5000);
    assert.equal(lease.validUntil, 6000);
    lease.refused();
    assert.equal(lease.validUntil, 20_000, "it was not carried out");
    lease.begin(1000, 5000);
    lease.gaveUp();
    assert.equal(lease.validUntil, 6000);
  });

  test("a request that was given up may be carried out late: its shorter lease counts for good", () => {
    const lease = new Lease();
    lease.begin(1000, 0);
    lease.gaveUp();
    assert.equal(lease.unanswered, true);
    lease.begin(1000, 100);
    lease.renewed(1000);
    lease.begin(20_000, 200);
    lease.renewed(20_000);
    assert.equal(lease.validUntil, 1200);
    assert.equal(lease.counted, 1000);
    lease.begin(20_000, 900);
    lease.renewed(20_000);
    assert.equal(lease.validUntil, 1900);
  });

  test("a longer lease that may have been carried out counts for nothing", () => {
    const lease = new Lease();
    lease.begin(1000, 0);
    lease.renewed(1000);
    lease.begin(20_000, 500);
    lease.gaveUp();
    assert.equal(lease.validUntil, 1000);
  });
});

describe("C3: an observer counts from after the answer", () => {
  test("stale after the record's lease, and not before; a new version starts again", () => {
    const runtime = new VirtualRuntime();
    const observations = new Observations(runtime);
    assert.equal(observations.found("Moe", undefined, "v1", 500), 1500);
    runtime.time = 1499;
    assert.equal(observations.found("Moe", undefined, "v1", 500), 1500);
    assert.equal(observations.stale("Moe", undefined), undefined);
    runtime.time = 1500;
    assert.equal(observations.stale("Moe", undefined), "v1");
    assert.equal(observations.stale("Moe", "sort"), undefined, "another lock");
    observations.found("Moe", undefined, "v2", 500);
    assert.equal(observations.stale("Moe", undefined), undefined);
    runtime.time = 2000;
    assert.equal(observations.stale("Moe", undefined), "v2");
    observations.forget("Moe", undefined);
    assert.equal(observations.stale("Moe", undefined), undefined);
  });

  test("no more than ten thousand are kept", () => {
    const observations = new Observations(new VirtualRuntime());
    for (let index = 0; index <= 10_000; index += 1) observations.found(`key-${index}`, undefined, "v", 500);
    const kept = observations.save();
    assert.equal(kept.length, 10_000);
    assert.equal(kept[0]?.key, "key-1");
  });
});

describe("C9: observations that outlive a process", () => {
  const saved = { key: "Moe", recordVersionNumber: "v1", leaseDurationMs: 20_000, firstSeenEpochMs: 900_000 };

  test("they are saved as they were first seen", () => {
    const runtime = new VirtualRuntime();
    const observations = new Observations(runtime);
    observations.found("Moe", undefined, "v1", 20_000);
    observations.found("Curly", "s", "w1", 5000);
    runtime.wall += 7000;
    observations.found("Moe", undefined, "v1", 20_000);
    assert.deepEqual(JSON.parse(JSON.stringify(observations.save())), [
      { key: "Moe", recordVersionNumber: "v1", leaseDurationMs: 20_000, firstSeenEpochMs: 1_000_000 },
      { key: "Curly", sortKey: "s", recordVersionNumber: "w1", leaseDurationMs: 5000, firstSeenEpochMs: 1_000_000 },
    ]);
  });

  for (const [age, stale] of [
    [20_999, false],
    [21_000, true],
  ] as const) {
    test(`measured by the wall clock, with the margin: ${age} ms`, () => {
      const runtime = new VirtualRuntime();
      runtime.wall = saved.firstSeenEpochMs + age;
      const observations = new Observations(runtime);
      observations.load([saved], 1000);
      assert.equal(observations.stale("Moe", undefined), stale ? "v1" : undefined);
      assert.deepEqual(observations.save(), [saved], "loading and saving changes nothing");
    });
  }

  test("one from the future starts again", () => {
    const runtime = new VirtualRuntime();
    const observations = new Observations(runtime);
    observations.load([{ ...saved, firstSeenEpochMs: runtime.wall + 60_000 }], 1000);
    assert.equal(observations.save()[0]?.firstSeenEpochMs, runtime.wall);
    runtime.time += 20_999;
    assert.equal(observations.stale("Moe", undefined), undefined);
    runtime.time += 1;
    assert.equal(observations.stale("Moe", undefined), "v1");
  });

  test("the same version, known and loaded: the earlier sight counts; another version: the later one", () => {
    const runtime = new VirtualRuntime();
    const observations = new Observations(runtime);
    observations.found("Moe", undefined, "v1", 20_000);
    observations.load([saved], 1000);
    assert.equal(observations.stale("Moe", undefined), "v1");
    observations.found("Moe", undefined, "v2", 20_000);
    observations.load([saved], 1000);
    assert.equal(observations.stale("Moe", undefined), undefined);
    assert.equal(observations.save()[0]?.recordVersionNumber, "v2");
  });

  test("what is no observation is refused, and nothing of its list is loaded", () => {
    const observations = new Observations(new VirtualRuntime());
    for (const [field, value] of [
      ["key", 1],
      ["sortKey", 1],
      ["recordVersionNumber", undefined],
      ["leaseDurationMs", "20000"],
      ["leaseDurationMs", Number.NaN],
      ["leaseDurationMs", 0],
      ["firstSeenEpochMs", null],
    ] as const) {
      const wrong = { ...saved, [field]: value };
      assert.throws(
        () => {
          observations.load([saved, wrong], 1000);
        },
        (error) => error instanceof InvalidRequestError && error.field === field,
      );
    }
    assert.deepEqual(observations.save(), []);
  });
});

describe("C4, C5, C7: pauses and bounds", () => {
  test("request time-outs", () => {
    assert.equal(requestTimeout(), 5000);
    assert.equal(requestTimeout(60_000), 5000);
    assert.equal(requestTimeout(8000), 2000);
    assert.equal(requestTimeout(100), 200);
  });

  test("pauses between polls, heartbeats and tries", () => {
    assert.equal(pollPause(1000, 0, 0), 1000);
    assert.equal(pollPause(1000, 3000, 0), 3000);
    assert.equal(pollPause(1000, 0, 1), 1250);
    assert.equal(heartbeatPause(5000, 0), 5000);
    assert.equal(heartbeatPause(5000, 1), 4500);
    assert.deepEqual(
      [1, 2, 3, 4, 5, 6, 50].map((failures) => retryPause(failures, 0, 1)),
      [100, 200, 400, 800, 1600, 2000, 2000],
    );
    assert.equal(retryPause(1, 0, 0), 0);
    assert.equal(retryPause(1, 7000, 0.5), 7000);
  });

  test("wait: a lease and a margin, once", () => {
    const budget = new WaitBudget("lease", 2000, 30_000, 0);
    assert.equal(budget.deadline, 32_000, "one's own lease, until the holder's is known");
    budget.found("v1", 10_000, 1000);
    assert.equal(budget.deadline, 13_000);
    budget.found("v2", 10_000, 5000);
    assert.equal(budget.deadline, 13_000);
  });

  test("wait: extended by every sign of life", () => {
    const budget = new WaitBudget("extend", 2000, 30_000, 0);
    budget.found("v1", 10_000, 1000);
    budget.found("v1", 10_000, 2000);
    assert.equal(budget.deadline, 13_000);
    budget.found("v2", 10_000, 5000);
    assert.equal(budget.deadline, 17_000);
  });

  test("wait: a fixed time, or without end", () => {
    const budget = new WaitBudget(500, 2000, 30_000, 100);
    budget.found("v1", 10_000, 200);
    assert.equal(budget.deadline, 600);
    assert.equal(new WaitBudget(Infinity, 2000, 30_000, 100).deadline, Infinity);
  });

  test("tried again within ten seconds, each try within its time-out", async () => {
    const runtime = new VirtualRuntime();
    runtime.chance = 0.999;
    const sent: { time: number; timeout: number }[] = [];
    const result = retrying(runtime, ({ timeout }) => {
      sent.push({ time: runtime.time - 1000, timeout });
      return Promise.reject(new UnavailableError("no"));
    });
    const rejected = assert.rejects(result, UnavailableError);
    await runtime.advance(20_000);
    await rejected;
    assert.ok(sent.length > 5, "it was tried again");
    for (const { time, timeout } of sent) {
      assert.ok(time < 10_000, `${time}`);
      assert.ok(timeout <= Math.max(10_000 - time, 200), `${timeout} at ${time}`);
    }
  });

  test("not before Retry-After, and not at all where that is beyond the bound", async () => {
    const runtime = new VirtualRuntime();
    let tries = 0;
    const refuse = (retryAfter: number) => () => {
      tries += 1;
      return tries === 1 ? Promise.reject(new UnavailableError("no", retryAfter)) : Promise.resolve(runtime.time);
    };
    const result = retrying(runtime, refuse(3000));
    await runtime.advance(5000);
    assert.equal(await result, 4000);
    tries = 0;
    await assert.rejects(retrying(runtime, refuse(11_000)), UnavailableError);
    assert.equal(tries, 1);
  });

  test("a heartbeat is tried again before a third of the rest has passed, whatever Retry-After says", async () => {
    assert.equal(heartbeatPatience(9000), 3000);
    assert.equal(heartbeatPatience(0), Infinity);
    const runtime = new VirtualRuntime();
    const end = runtime.time + 9000;
    const tries: number[] = [];
    const refuse = (): Promise<never> => {
      tries.push(end - runtime.time);
      return Promise.reject(new UnavailableError("no", 60_000));
    };
    const result = assert.rejects(retrying(runtime, refuse, { until: end, patience: () => heartbeatPatience(end - runtime.time) }), UnavailableError);
    await runtime.advance(10_000);
    await result;
    assert.deepEqual(tries.slice(0, 3), [9000, 6000, 4000]);
    assert.ok(tries.every((left) => left > 0));
    assert.ok(tries.length < 40, `${tries.length}`);
  });

  test("a pause ends with the signal, and leaves no timer", async () => {
    const runtime = new VirtualRuntime();
    const controller = new AbortController();
    const result = retrying(runtime, () => Promise.reject(new UnavailableError("no", 5000)), { signal: controller.signal });
    const rejected = assert.rejects(result, /enough/);
    await runtime.advance(100);
    assert.equal(runtime.pending, 1);
    controller.abort(new Error("enough"));
    await rejected;
    assert.equal(runtime.pending, 0);
  });
});

describe("timers", () => {
  test("never early, and longer than setTimeout can count", async () => {
    const runtime = new VirtualRuntime();
    const month = 30 * 86_400_000;
    let fired = 0;
    at(runtime, runtime.time + month, () => (fired = runtime.time));
    assert.ok(month > 2 ** 31 - 1);
    await runtime.advance(month - 1);
    assert.equal(fired, 0);
    await runtime.advance(1);
    assert.equal(fired, 1000 + month);
    assert.ok(runtime.delays.every((delay) => delay <= 2 ** 31 - 1));
  });

  test("one that the runtime fires early is set again", async () => {
    const runtime = new VirtualRuntime();
    const { after } = runtime;
    runtime.after = (delay, callback) => after(delay > 1 ? delay - 1 : delay, callback);
    let fired = 0;
    at(runtime, runtime.time + 10, () => (fired = runtime.time));
    await runtime.advance(20);
    assert.equal(fired, 1010);
  });

  test("never, and cancelled", async () => {
    const runtime = new VirtualRuntime();
    at(runtime, Infinity, () => assert.fail("never"));
    at(runtime, runtime.time + 10, () => assert.fail("cancelled"))();
    assert.equal(runtime.pending, 0);
    await runtime.advance(100);
  });

  test("many waits for one signal are one listener, and all end with it", async () => {
    const runtime = new VirtualRuntime();
    const controller = new AbortController();
    const { signal } = controller;
    let listeners = 0;
    const add = signal.addEventListener.bind(signal);
    signal.addEventListener = (...args: Parameters<typeof add>) => {
      listeners += 1;
      add(...args);
    };
    const over = sleepUntil(runtime, runtime.time + 5, signal);
    await runtime.advance(10);
    await over;
    assert.equal(await abortable(Promise.resolve(1), signal), 1);
    const unlinked = new LinkedController(signal);
    unlinked.unlink();
    const linked = new LinkedController(signal);
    const sleeps = Array.from({ length: 20 }, () => assert.rejects(sleepUntil(runtime, Infinity, signal), /enough/));
    controller.abort(new Error("enough"));
    await Promise.all(sleeps);
    assert.equal(listeners, 1);
    assert.ok(linked.signal.aborted);
    assert.equal(unlinked.signal.aborted, false);
  });

  test("linked controllers take over the reason, also of a signal that was aborted before", () => {
    const controller = new AbortController();
    const before = new LinkedController(undefined, controller.signal);
    controller.abort("reason");
    assert.equal(before.signal.reason, "reason");
    assert.equal(new LinkedController(controller.signal).signal.reason, "reason");
  });
});

describe("small things", () => {
  test("payloads: bytes, text, nothing", () => {
    const bytes = Uint8Array.from({ length: 256 }, (_, index) => index);
    assert.deepEqual(fromWire(toWire(bytes)), { data: bytes });
    assert.deepEqual(fromWire(toWire("ä")), { data: Uint8Array.of(0xc3, 0xa4), text: "ä" });
    assert.deepEqual(toWire(undefined), {});
    assert.deepEqual(fromWire({}), {});
    assert.equal(toWire(new Uint8Array(0)).dataBase64, "");
    assert.deepEqual(fromWire({ dataBase64: "" }), { data: new Uint8Array(0) });
  });

  test("the owner's name has the process id", () => {
    assert.match(defaultOwnerName(), new RegExp(`^.+:${process.pid}$`));
  });
});
