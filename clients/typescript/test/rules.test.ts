/** The pure rules: no service, no real clock. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { InvalidRequestError, UnavailableError } from "../dist/errors.js";
import { Observations } from "../dist/observations.js";
import { heartbeatRetryPause } from "../dist/pacing.js";
import { toWire } from "../dist/data.js";
import { fromWire } from "../dist/payload.js";
import { defaultOwnerName } from "../dist/runtime.js";
import { retrying } from "../dist/service.js";
import { retryingTurns } from "../dist/turns.js";
import { abortable, at, LinkedController, sleepUntil } from "../dist/timers.js";
import { VirtualRuntime } from "./virtual.js";

describe("C3: observations", () => {
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

  test("earlier sight of a version counts, and later versions", () => {
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

  test("malformed observation is refused with its whole list", () => {
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

describe("C5: retries", () => {
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

  test("retry waits for Retry-After within the bound", async () => {
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

  test("heartbeat is retried within a third of the rest", async () => {
    const runtime = new VirtualRuntime();
    const end = runtime.time + 9000;
    const tries: number[] = [];
    const refuse = (): Promise<never> => {
      tries.push(end - runtime.time);
      return Promise.reject(new UnavailableError("no", 60_000));
    };
    const result = assert.rejects(
      retryingTurns(runtime, refuse, { until: end, pace: (pause) => heartbeatRetryPause(pause, end - runtime.time) }),
      UnavailableError,
    );
    await runtime.advance(10_000);
    await result;
    assert.deepEqual(tries.slice(0, 3), [9000, 6000, 4000]);
    assert.ok(tries.every((left) => left > 0));
    assert.ok(tries.length < 40, `${tries.length}`);
  });

  test("pause ends with the signal, and leaves no timer", async () => {
    const runtime = new VirtualRuntime();
    const controller = new AbortController();
    const result = retrying(runtime, () => Promise.reject(new UnavailableError("no", 5000)), {
      signal: controller.signal,
    });
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

  test("many waits for one signal are one listener", async () => {
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

  test("linked controller takes over the reason of its signal", () => {
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

  test("owner's name has the process id", () => {
    assert.match(defaultOwnerName(), new RegExp(`^.+:${process.pid}$`));
  });
});
