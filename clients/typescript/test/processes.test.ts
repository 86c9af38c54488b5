/** Behaviour that only shows with processes that live and die. */
import assert from "node:assert/strict";
import { after, describe, test } from "node:test";
import { breakHeld, freshKey, guardOf, LocalService, sleep, startHolder } from "./support.js";

const service = await LocalService.start();
after(() => service[Symbol.asyncDispose]());

describe("processes", { concurrency: true }, () => {
  test("killed holder is followed after one lease, and not before", async () => {
    const key = freshKey();
    const lease = 3000;
    await using holder = startHolder("hold", service.url, key, lease);
    const token = Number(await holder.line());
    await sleep(1500);
    assert.equal((await service.client().get(key))?.ownerName, "holder", "it heartbeats");
    holder.process.kill("SIGKILL");
    await holder.exit();
    const start = performance.now();
    const guard = guardOf(await service.client({ pollInterval: 30_000 }).acquire(key, { wait: 60_000 }));
    const elapsed = performance.now() - start;
    assert.ok(elapsed >= lease, `${elapsed}`);
    assert.ok(elapsed < lease + 20_000, `${elapsed}: at the end of the lease, and not a poll later`);
    assert.equal(guard.outcome, "takenOver");
    assert.equal(guard.previousOwnerName, "holder");
    assert.ok(guard.fencingToken > token);
    await guard.release();
  });

  test("process that forgot its lock releases it at its end", async () => {
    const key = freshKey();
    await using holder = startHolder("forget", service.url, key, 60_000);
    await holder.line();
    assert.equal(await holder.exit(), 0);
    assert.equal((await service.client().get(key))?.state, "released");
  });

  test("withLock keeps the process alive while it waits for a loss", async () => {
    const key = freshKey();
    await using holder = startHolder("lead", service.url, key, 5000);
    await holder.line();
    await sleep(5500);
    await breakHeld(service.client(), key);
    assert.equal(await holder.line(), "released");
    assert.equal(await holder.exit(), 0);
  });

  test("process ends when it has released", async () => {
    const key = freshKey();
    await using holder = startHolder("release", service.url, key, 60_000);
    await holder.line();
    assert.equal(await holder.exit(), 0);
    assert.equal((await service.client().get(key))?.state, "released");
  });
});
