/** Waiting by watching, against the real service (rule K1). */
import assert from "node:assert/strict";
import { after, describe, test } from "node:test";
import { Client } from "../dist/index.js";
import {
  eventually,
  type Fault,
  FaultProxy,
  firstTimes,
  freshKey,
  guardOf,
  heldOf,
  LocalService,
  sleep,
} from "./support.js";

const service = await LocalService.start();
after(() => service[Symbol.asyncDispose]());

/** A proxy, and a client behind it without a poll interval. */
async function watcher(): Promise<{ proxy: FaultProxy; client: Client } & AsyncDisposable> {
  const proxy = await FaultProxy.start(service.url);
  const client = new Client({ url: proxy.url, ownerName: "watcher" });
  return { proxy, client, [Symbol.asyncDispose]: () => proxy[Symbol.asyncDispose]() };
}

const versionOf = async (key: string): Promise<string | undefined> =>
  (await service.client().get(key))?.recordVersionNumber;

describe("K1: waiting by watching", { concurrency: 4 }, () => {
  test("waiter asks twice when a long-held lock is released", async () => {
    await using parts = await watcher();
    const { proxy, client } = parts;
    const key = freshKey();
    const holder = guardOf(await service.client().tryAcquire(key, { heartbeatInterval: false }));
    const waiting = client.acquire(key, { wait: 60_000 });
    await eventually(() => proxy.calls("watch").length > 0, "a watch");
    // The pause is longer than two polls.
    await sleep(2600);
    await holder.release();
    const guard = guardOf(await waiting);
    assert.equal(guard.outcome, "reacquired");
    assert.equal(proxy.calls("acquire").length, 2);
    assert.ok(proxy.calls("watch").length <= 2, "the first watch ends with the mark");
    assert.equal(proxy.calls("watch")[0]?.query.get("version"), holder.recordVersionNumber);
    await guard.release();
  });

  test("waiter asks again when the lock is deleted", async () => {
    await using parts = await watcher();
    const { proxy, client } = parts;
    const key = freshKey();
    const holder = guardOf(await service.client().tryAcquire(key));
    const waiting = client.acquire(key, { wait: Infinity });
    await eventually(() => proxy.calls("watch").length > 0, "a watch");
    await holder.release({ delete: true });
    const guard = guardOf(await waiting);
    assert.equal(guard.outcome, "created");
    await guard.release();
  });

  test("each new version starts the observation again", async () => {
    await using parts = await watcher();
    const { proxy, client } = parts;
    const key = freshKey();
    const lease = 12_000;
    const holder = guardOf(await service.client().tryAcquire(key, { lease, heartbeatInterval: false }));
    const waiting = client.acquire(key, { wait: 40_000 });
    await eventually(() => proxy.calls("watch").length > 0, "a watch");
    await sleep(lease / 12);
    const beatAt = performance.now();
    await holder.renew();
    const last = holder.recordVersionNumber;
    const guard = guardOf(await waiting);
    assert.ok(performance.now() - beatAt >= lease, "not by what was seen before the heartbeat");
    assert.equal(guard.outcome, "takenOver");
    for (const { query } of proxy.calls("watch"))
      assert.ok(Number(query.get("waitMs")) <= lease + lease / 1000, "until it is stale");
    assert.deepEqual(
      proxy.calls("acquire").map(({ body }) => body["observedRecordVersionNumber"]),
      [undefined, last],
    );
    await guard.release();
  });

  test("waiter gives up by one last look when its time is over", async () => {
    await using parts = await watcher();
    const { proxy, client } = parts;
    const key = freshKey();
    const holder = guardOf(await service.client({ ownerName: "one" }).tryAcquire(key));
    const start = performance.now();
    const held = heldOf(await client.acquire(key, { wait: 3000 }));
    assert.ok(performance.now() - start >= 2999);
    assert.equal(held.lock.ownerName, "one");
    const calls = proxy.seen.map(({ call }) => call).filter((call) => call !== "want");
    const watches = calls.slice(1, -1);
    assert.deepEqual([calls[0], calls.at(-1)], ["acquire", "acquire"]);
    assert.ok(watches.length <= 2 && watches.every((call) => call === "watch"), "the first watch ends with the mark");
    assert.ok(Number(proxy.calls("watch")[0]?.query.get("waitMs")) <= 3000);
    await holder.release();
  });

  test("waiter that leaves abandons its watch", async () => {
    await using parts = await watcher();
    const { proxy, client } = parts;
    const key = freshKey();
    const holder = guardOf(await service.client().tryAcquire(key));
    const leaving = new AbortController();
    const waiting = client.acquire(key, { wait: Infinity, signal: leaving.signal });
    const closing = client.acquire(key, { wait: Infinity });
    await eventually(() => proxy.calls("watch").length === 2, "two watches");
    leaving.abort(new Error("left"));
    await assert.rejects(waiting, /left/);
    const closed = assert.rejects(closing, { name: "ClosedError" });
    await client.close();
    await closed;
    assert.equal(proxy.calls("release").length, 0, "nothing was granted");
    await holder.release();
  });

  const noRoute: Fault[] = [
    { status: 404, body: '{"message":"Not Found"}' },
    { status: 404, body: JSON.stringify({ type: "unknown-route", status: 404, title: "t", detail: "d" }) },
    { status: 403, body: "{}" },
  ];
  for (const fault of noRoute) {
    test(`client polls when the watch is refused: ${JSON.stringify(fault)}`, async () => {
      await using parts = await watcher();
      const { proxy, client } = parts;
      proxy.fault = ({ call }) => (call === "watch" ? fault : "pass");
      const key = freshKey();
      const holder = guardOf(await service.client().tryAcquire(key));
      const waiting = client.acquire(key, { wait: 60_000 });
      await eventually(() => proxy.calls("acquire").length >= 3, "polls");
      await holder.release();
      await guardOf(await waiting).release();
      assert.equal(proxy.calls("watch").length, 1);
      const second = guardOf(await service.client().tryAcquire(key));
      heldOf(await client.acquire(key, { wait: 3000 }));
      assert.equal(proxy.calls("watch").length, 1, "not in the next wait either");
      await second.release();
    });
  }

  const passing: Fault[] = [
    { status: 429, body: "{}" },
    { status: 429, body: JSON.stringify({ type: "throttled", status: 429, title: "t", detail: "d" }) },
    { status: 503, body: "{}" },
    "lose answer",
  ];
  for (const fault of passing) {
    test(`failed watch is retried after a pause: ${JSON.stringify(fault)}`, async () => {
      await using parts = await watcher();
      const { proxy, client } = parts;
      proxy.fault = firstTimes(1, "watch", fault);
      const key = freshKey();
      const holder = guardOf(await service.client().tryAcquire(key, { heartbeatInterval: false }));
      const waiting = client.acquire(key, { wait: 60_000 });
      await eventually(() => proxy.calls("watch").length > 0, "a watch");
      if (fault === "lose answer") await holder.renew();
      await eventually(() => proxy.calls("watch").length >= 2, "a second watch");
      assert.deepEqual([proxy.calls("acquire").length, proxy.calls("lock").length], [1, 1], "a read in its place");
      await holder.release();
      await guardOf(await waiting).release();
      assert.ok(proxy.calls("watch").length <= 3, "a watch ends with the mark");
    });
  }

  test("watch that answers at once with no news is paced", async () => {
    await using parts = await watcher();
    const { proxy, client } = parts;
    const key = freshKey();
    const holder = guardOf(await service.client().tryAcquire(key, { heartbeatInterval: false }));
    const lock = await service.client().get(key);
    proxy.fault = ({ call }) => (call === "watch" ? { status: 200, body: JSON.stringify(lock) } : "pass");
    heldOf(await client.acquire(key, { wait: 2500 }));
    assert.ok(proxy.calls("watch").length <= 4, `${proxy.calls("watch").length} watches in 2.5 s`);
    await holder.release();
  });

  test("service that judges by the clock is asked after a poll pause", async () => {
    await using parts = await watcher();
    const { proxy, client } = parts;
    const key = freshKey();
    guardOf(await service.client().acquire(key, { lease: 2000, heartbeatInterval: false }));
    const guard = guardOf(await client.acquire(key, { wait: 60_000, staleness: "clock" }));
    assert.equal(guard.outcome, "takenOver");
    for (const { query } of proxy.calls("watch")) assert.ok(Number(query.get("waitMs")) <= 1250);
    assert.notEqual(await versionOf(key), undefined);
    await guard.release();
  });

  test("client with a poll interval polls", async () => {
    await using proxy = await FaultProxy.start(service.url);
    const client = new Client({ url: proxy.url, pollInterval: 50 });
    const key = freshKey();
    const holder = guardOf(await service.client().tryAcquire(key));
    const waiting = client.acquire(key, { wait: Infinity });
    await eventually(() => proxy.calls("acquire").length > 2, "polls");
    await holder.release();
    await guardOf(await waiting).release();
    assert.equal(proxy.calls("watch").length, 0);
  });
});
