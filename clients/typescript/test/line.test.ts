/** The waiters of one client for one lock: one asks, and the others stand in line. */
import assert from "node:assert/strict";
import { after, describe, test } from "node:test";
import { Client, ClosedError, LockLostError, UnavailableError } from "../dist/index.js";
import { breakHeld, eventually, FaultProxy, freshKey, guardOf, heldOf, LocalService, sleep } from "./support.js";

const service = await LocalService.start();
after(() => service[Symbol.asyncDispose]());

const counted = (proxy: FaultProxy): Record<string, number> => {
  const counts: Record<string, number> = {};
  for (const { call } of proxy.seen) counts[call] = (counts[call] ?? 0) + 1;
  return counts;
};

describe("line of a client", { concurrency: 4 }, () => {
  test("turn of a herd costs an acquire and a release", async () => {
    const key = freshKey();
    await using proxy = await FaultProxy.start(service.url);
    await using client = new Client({ url: proxy.url });
    let inside = 0;
    let most = 0;
    const work = async (): Promise<void> => {
      most = Math.max(most, ++inside);
      await sleep(10);
      inside -= 1;
    };
    await Promise.all(Array.from({ length: 50 }, () => client.withLock(key, work, { wait: "2m" })));
    assert.equal(most, 1);
    assert.deepEqual(counted(proxy), { acquire: 50, release: 50 }, "and less than 6 a turn");
  });

  test("another client gets its turn before a herd is done", async () => {
    const key = freshKey();
    await using herd = service.client();
    await using other = service.client();
    const order: string[] = [];
    const work = (client: Client, name: string): Promise<void> =>
      client.withLock(
        key,
        async () => {
          order.push(name);
          await sleep(300);
        },
        { wait: "2m" },
      );
    const all = Array.from({ length: 12 }, () => work(herd, "herd"));
    await sleep(100);
    await Promise.all([...all, work(other, "other")]);
    assert.ok(order.indexOf("other") < 12, "a herd does not starve the others");
  });

  test("waiter in line is told who holds the lock, and sends nothing", async () => {
    const key = freshKey();
    await using proxy = await FaultProxy.start(service.url);
    await using client = new Client({ url: proxy.url, ownerName: "the herd" });
    const guard = guardOf(await client.acquire(key));
    const { lock } = heldOf(await client.acquire(key, { wait: 300 }));
    assert.equal(lock.ownerName, "the herd");
    assert.equal(lock.fencingToken, guard.fencingToken);
    assert.equal(lock.recordVersionNumber, guard.recordVersionNumber);
    assert.deepEqual(counted(proxy), { acquire: 1 });
    // Such a request has little time for its answer.
    const asks = (): Promise<boolean> =>
      client.acquire(key, { wait: 0 }).then(
        (asked) => asked.kind === "held",
        () => false,
      );
    await eventually(asks, "an answer");
    assert.ok((counted(proxy)["acquire"] ?? 0) > 1, "no wait, no line");
  });

  for (const end of ["release", "loss", "detach"] as const) {
    test(`turn passes on with a ${end}`, async () => {
      const key = freshKey();
      await using client = service.client();
      const guard = guardOf(await client.acquire(key));
      const next = client.acquire(key, { wait: "2m" });
      const last = client.acquire(key, { wait: "2m" });
      await sleep(50);
      if (end === "release") await guard.release();
      if (end === "loss") {
        await breakHeld(client, key);
        await assert.rejects(guard.renew(), LockLostError);
      }
      if (end === "detach") await client.release(key, guard.detach().leaseId);
      const second = guardOf(await next);
      await second.release();
      await guardOf(await last).release();
    });
  }

  test("waiter that leaves gives its place up, and close ends all", async () => {
    const key = freshKey();
    const client = service.client();
    const guard = guardOf(await client.acquire(key));
    const controller = new AbortController();
    const leaving = assert.rejects(client.acquire(key, { wait: Infinity, signal: controller.signal }), /enough/);
    const staying = client.acquire(key, { wait: Infinity });
    controller.abort(new Error("enough"));
    await leaving;
    await guard.release();
    guardOf(await staying);
    const last = assert.rejects(client.acquire(key, { wait: Infinity }), ClosedError);
    await client.close();
    await last;
  });

  test("those in line outlive the failure of their head", async () => {
    const key = freshKey();
    await using proxy = await FaultProxy.start(service.url);
    await using client = new Client({ url: proxy.url });
    proxy.fault = () => ({ status: 503, body: "" });
    const head = assert.rejects(client.acquire(key, { wait: 500 }), UnavailableError);
    const next = client.acquire(key, { wait: "60s" });
    await head;
    proxy.fault = () => "pass";
    await guardOf(await next).release();
  });
});
