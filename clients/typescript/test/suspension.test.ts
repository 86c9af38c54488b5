/** A process that was suspended with its machine, so that its monotonic clock stood still. */
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { Client, UnavailableError } from "../dist/index.js";
import { systemRuntime } from "../dist/runtime.js";
import { eventually, freshKey, guardOf, LocalService } from "./support.js";

const service = await LocalService.start();
after(() => service[Symbol.asyncDispose]());

/** A machine whose lid is closed for a while. */
class Laptop {
  slept = 0;
  readonly runtime = { ...systemRuntime, epoch: () => systemRuntime.epoch() + this.slept };
}

test("guard believes in nothing between suspension and heartbeat", async () => {
  const laptop = new Laptop();
  await using client = new Client({ url: service.url, runtime: laptop.runtime, lease: "1m" });
  const guard = guardOf(await client.acquire(freshKey(), { heartbeatInterval: false }));
  laptop.slept += 50;
  assert.ok(guard.valid, "clocks of a machine that runs differ by less");
  laptop.slept += 3000;
  assert.deepEqual([guard.valid, guard.remaining(), guard.lost], [false, 0, undefined]);
  assert.throws(() => {
    guard.ensureHeld();
  }, UnavailableError);
  await guard.renew();
  assert.ok(guard.valid);
  guard.ensureHeld();
  await guard.release();
});

test("heartbeat follows a suspension at once", async () => {
  const laptop = new Laptop();
  await using client = new Client({ url: service.url, runtime: laptop.runtime, lease: "10m" });
  const guard = guardOf(await client.acquire(freshKey()));
  const version = guard.recordVersionNumber;
  laptop.slept += 3000;
  assert.ok(!guard.valid);
  await eventually(() => guard.valid, "a heartbeat was answered");
  assert.notEqual(guard.recordVersionNumber, version);
});

test("lock that went during a suspension is lost at the first look", async () => {
  const laptop = new Laptop();
  const key = freshKey();
  await using client = new Client({ url: service.url, runtime: laptop.runtime, lease: "10m" });
  await using operator = new Client({ url: service.url });
  const guard = guardOf(await client.acquire(key));
  await operator.breakLock(key, guard.recordVersionNumber);
  laptop.slept += 3_600_000;
  assert.ok(!guard.valid);
  await eventually(() => guard.lost !== undefined, "the loss was told");
  assert.equal(guard.lost, "released");
});
