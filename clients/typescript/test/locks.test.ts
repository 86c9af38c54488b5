/** The life of a lock, against the real service. */
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, describe, test } from "node:test";
import { inspect } from "node:util";
import {
  Guard,
  Held,
  InvalidRequestError,
  LockHeldError,
  LockLostError,
  LockNotFoundError,
  VersionMismatchError,
} from "../dist/index.js";
import { aborted, answered, breakHeld, eventually, freshKey, guardOf, heldOf, LocalService, sleep } from "./support.js";

const service = await LocalService.start();
after(() => service[Symbol.asyncDispose]());

/** Takes the lock over from a living holder, as a client that observed nothing would. */
async function steal(key: string): Promise<Guard> {
  const thief = service.client({ ownerName: "thief" });
  // A heartbeat may come between a look and the takeover, though not each time.
  for (let looks = 0; looks < 20; looks++) {
    const lock = await thief.get(key);
    const leaseId = randomUUID();
    const request = {
      key,
      ownerName: "thief",
      leaseId,
      sequence: 1,
      observedRecordVersionNumber: lock?.recordVersionNumber,
    };
    const headers = { "content-type": "application/json" };
    const { status } = await fetch(`${service.url}/v1/acquire`, {
      method: "POST",
      headers,
      body: JSON.stringify(request),
    });
    if (status === 200) return thief.resume({ key, leaseId, sequence: 1 });
  }
  return assert.fail("the lock changed under every look");
}

describe("locks", { concurrency: 6 }, () => {
  test("lock is granted again with a higher token after a release", async () => {
    const key = freshKey();
    const one = service.client({ ownerName: "one" });
    const two = service.client({ ownerName: "two" });
    const guard = await one.tryAcquire(key);
    assert.ok(guard instanceof Guard);
    assert.equal(guard.granted(), guard);
    assert.equal(guard.outcome, "created");
    assert.equal(guard.key, key);
    assert.ok(guard.valid);
    assert.equal(guard.lost, undefined);
    assert.ok(guard.remaining() > 15_000 && guard.remaining() <= 20_000);
    assert.ok(Number.isSafeInteger(guard.fencingToken));

    const held = await two.tryAcquire(key);
    assert.ok(held instanceof Held);
    assert.equal(held.lock.ownerName, "one");
    assert.equal(held.lock.recordVersionNumber, guard.recordVersionNumber);
    assert.equal(held.lock.fencingToken, guard.fencingToken);
    assert.throws(
      () => held.granted(),
      (error) => error instanceof LockHeldError && error.lock.ownerName === "one",
    );

    assert.equal(await guard.release(), "released");
    assert.equal(guard.valid, false);
    assert.equal(guard.remaining(), 0);
    assert.equal(guard.lost, undefined);
    assert.equal(guard.signal.aborted, false, "a release is no loss");
    assert.equal(await guard.release(), "released", "may be repeated");
    await assert.rejects(guard.renew(), LockLostError);

    const next = guardOf(await two.tryAcquire(key));
    assert.equal(next.outcome, "reacquired");
    assert.equal(next.previousOwnerName, "one");
    assert.ok(next.fencingToken > guard.fencingToken);
    await next.release({ delete: true });
    assert.equal(await two.get(key), undefined);
  });

  test("waiter gets the lock when it is released", async () => {
    const key = freshKey();
    const first = guardOf(await service.client().tryAcquire(key));
    const waiting = service.client().acquire(key, { wait: 60_000 });
    await sleep(300);
    await first.release();
    const second = guardOf(await waiting);
    assert.equal(second.outcome, "reacquired");
    await second.release();
  });

  test("giving up is a value, after the wait and not before", async () => {
    const key = freshKey();
    const guard = guardOf(await service.client({ ownerName: "one" }).tryAcquire(key));
    const start = performance.now();
    const held = heldOf(await service.client().acquire(key, { wait: 3000 }));
    assert.ok(performance.now() - start >= 2999);
    assert.equal(held.lock.ownerName, "one");
    assert.equal(heldOf(await answered(() => service.client().acquire(key, { wait: 0 }))).lock.ownerName, "one");
    await guard.release();
  });

  test("default wait takes over after one lease, and not before", async () => {
    const key = freshKey();
    const lease = 3000;
    const dead = guardOf(await service.client({ ownerName: "dead" }).acquire(key, { lease, heartbeatInterval: false }));
    const start = performance.now();
    const guard = guardOf(await service.client({ waitMargin: 20_000 }).acquire(key));
    const elapsed = performance.now() - start;
    assert.ok(elapsed >= lease, `${elapsed}`);
    assert.equal(guard.outcome, "takenOver");
    assert.equal(guard.previousOwnerName, "dead");
    assert.ok(guard.fencingToken > dead.fencingToken);
    assert.equal(dead.valid, false);
    assert.equal(dead.lost, "expired");
    await guard.release();
  });

  test("stale lock is requested at once, not one poll later", async () => {
    const key = freshKey();
    guardOf(await service.client().acquire(key, { lease: 3000, heartbeatInterval: false }));
    const start = performance.now();
    const guard = guardOf(await service.client({ pollInterval: 30_000 }).acquire(key, { wait: 60_000 }));
    assert.ok(performance.now() - start < 25_000);
    assert.equal(guard.outcome, "takenOver");
    await guard.release();
  });

  test("heartbeats keep a lock for longer than its lease", async () => {
    const key = freshKey();
    const lease = 5000;
    const guard = guardOf(await service.client().acquire(key, { lease, heartbeatInterval: 300 }));
    const versions = new Set([guard.recordVersionNumber]);
    const waiting = service.client().acquire(key, { wait: 1.5 * lease });
    const end = performance.now() + 1.5 * lease;
    while (performance.now() < end) {
      assert.ok(guard.valid);
      versions.add(guard.recordVersionNumber);
      await sleep(50);
    }
    assert.ok(versions.size >= 5, `${versions.size} versions`);
    heldOf(await waiting);
    await guard.release();
  });

  test("theft is known at the next heartbeat, with its reason", async () => {
    const key = freshKey();
    const guard = guardOf(await service.client().tryAcquire(key, { lease: 30_000, heartbeatInterval: 500 }));
    const thief = await steal(key);
    await aborted(guard.signal);
    assert.ok(guard.signal.reason instanceof LockLostError);
    assert.equal(guard.signal.reason.reason, "taken-over");
    assert.equal(guard.signal.reason.lock?.ownerName, "thief");
    assert.equal(guard.signal.reason.key, key);
    assert.ok(guard.signal.reason.message.includes(`"${key}"`), guard.signal.reason.message);
    assert.equal(guard.lost, "taken-over");
    assert.equal(guard.valid, false);
    assert.throws(() => {
      guard.ensureHeld();
    }, LockLostError);
    await assert.rejects(guard.release(), LockLostError);
    assert.ok(thief.valid);
    await thief.renew();
    await thief.release();
  });

  test("broken lock is lost as released, deleted one as absent", async () => {
    const key = freshKey();
    const client = service.client();
    const broken = guardOf(await client.tryAcquire(key, { lease: 30_000, heartbeatInterval: 500 }));
    await assert.rejects(client.breakLock(key, "another version"), VersionMismatchError);
    await breakHeld(client, key);
    await aborted(broken.signal);
    assert.equal(broken.lost, "released");
    const deleted = guardOf(await client.tryAcquire(key, { lease: 30_000, heartbeatInterval: 500 }));
    await client.release(key, deleted.leaseId, { delete: true });
    await aborted(deleted.signal);
    assert.equal(deleted.lost, "absent");
  });

  test("heartbeats by hand: a new lease, new data, data removed", async () => {
    const key = freshKey();
    const client = service.client();
    const guard = guardOf(await client.tryAcquire(key, { lease: 20_000, heartbeatInterval: false, data: "one" }));
    const version = guard.recordVersionNumber;
    await sleep(500);
    const end = (): number => performance.now() + guard.remaining();
    const before = end();
    await guard.renew();
    assert.ok(end() > before);
    assert.notEqual(guard.recordVersionNumber, version);
    assert.equal((await client.get(key))?.text, "one");
    await guard.renew({ lease: 60_000, data: "two" });
    assert.equal(guard.leaseDuration, 60_000);
    assert.ok(guard.remaining() > 50_000);
    const lock = await client.get(key);
    assert.equal(lock?.text, "two");
    assert.equal(lock.leaseDurationMs, 60_000);
    await guard.renew({ data: null, lease: 10_000 });
    assert.ok(guard.remaining() <= 10_000);
    assert.equal((await client.get(key))?.data, undefined);
    await Promise.all([guard.renew(), guard.renew(), guard.renew()]);
    await guard.release();
  });

  test("no heartbeats by hand: it expires by the clock", async () => {
    const guard = guardOf(await service.client().acquire(freshKey(), { lease: 700, heartbeatInterval: false }));
    await aborted(guard.signal);
    assert.equal(guard.lost, "expired");
    assert.equal(guard.remaining(), 0);
    await assert.rejects(guard.release(), (error) => error instanceof LockLostError && error.reason === "expired");
  });

  test("onAtRisk is called once for each lease at risk", async () => {
    const told: number[] = [];
    const guard = guardOf(
      await service.client().acquire(freshKey(), {
        lease: 4000,
        heartbeatInterval: false,
        atRiskBelow: 3600,
        onAtRisk: (which) => told.push(which.remaining()),
      }),
    );
    await eventually(() => told.length === 1, "told");
    await sleep(100);
    assert.equal(told.length, 1);
    await guard.renew();
    await eventually(() => told.length === 2, "told again");
    assert.ok(told.every((remaining) => remaining <= 3600));
    await guard.release();
    await sleep(600);
    assert.equal(told.length, 2);
  });

  test("lock that is renewed in time is never at risk", async () => {
    const guard = guardOf(
      await service.client().tryAcquire(freshKey(), {
        lease: 20_000,
        heartbeatInterval: 300,
        atRiskBelow: 500,
        onAtRisk: () => assert.fail(),
      }),
    );
    await sleep(1000);
    await guard.release();
  });

  test("contending clients hold one at a time, with rising tokens", async () => {
    const key = freshKey();
    let inside = 0;
    const tokens: number[] = [];
    const clients = Array.from({ length: 5 }, (_, index) =>
      service.client({ ownerName: `client ${index}`, lease: 20_000 }),
    );
    await Promise.all(
      clients.map(async (client) => {
        for (let turn = 0; turn < 4; ) {
          // Single requests are sent: a waiter would heed the service's Retry-After of a second.
          const result = await client.tryAcquire(key);
          if (result.kind === "held") {
            await sleep(5 + Math.random() * 20);
            continue;
          }
          turn += 1;
          inside += 1;
          assert.equal(inside, 1);
          tokens.push(result.fencingToken);
          await sleep(5);
          assert.equal(inside, 1);
          inside -= 1;
          await result.release();
        }
      }),
    );
    assert.equal(tokens.length, 20);
    assert.deepEqual(
      tokens,
      [...new Set(tokens)].sort((one, other) => one - other),
    );
  });

  test("await using releases at the end of the block", async () => {
    const key = freshKey();
    const client = service.client();
    {
      await using guard = (await client.acquire(key)).granted();
      assert.ok(guard.valid);
    }
    assert.equal((await client.get(key))?.state, "released");
  });

  test("withLock: the result, the release, the error, the loss", async () => {
    const key = freshKey();
    const client = service.client({ lease: 30_000 });
    assert.equal(await client.withLock(key, (guard) => (guard.valid ? "done" : "not held")), "done");
    assert.equal((await client.get(key))?.state, "released");
    const mine = new Error("mine");
    await assert.rejects(
      client.withLock(key, () => Promise.reject(mine)),
      (error) => error === mine,
    );
    assert.equal((await client.get(key))?.state, "released");
    await assert.rejects(
      client.withLock(
        key,
        async (guard) => {
          await steal(key);
          await aborted(guard.signal);
        },
        { heartbeatInterval: 500 },
      ),
      (error) => error instanceof LockLostError && error.reason === "taken-over",
    );
    await assert.rejects(
      answered(() => client.withLock(key, () => assert.fail("not granted"), { wait: 0 })),
      LockHeldError,
    );
  });

  test("withLock: a theft that only the release finds out is thrown", async () => {
    const key = freshKey();
    await assert.rejects(
      service.client().withLock(key, async () => {
        await steal(key);
        return "done";
      }),
      (error) => error instanceof LockLostError && error.reason === "taken-over",
    );
  });

  test("withLock: stolen from a body that fails: its error comes out", async () => {
    const key = freshKey();
    const mine = new Error("mine");
    const reported: unknown[] = [];
    const client = service.client({ onReleaseError: (error) => reported.push(error) });
    await assert.rejects(
      client.withLock(key, async () => {
        await steal(key);
        throw mine;
      }),
      (error) => error === mine,
    );
    assert.equal(reported.length, 1);
    assert.ok(reported[0] instanceof LockLostError);
  });

  test("with nothing but the lease id: heartbeat, resume, release", async () => {
    const key = freshKey();
    const here = service.client({ lease: 20_000 });
    const there = service.client();
    const guard = guardOf(await here.tryAcquire(key, { heartbeatInterval: false }));
    const renewal = await there.heartbeat(key, guard.leaseId, { lease: 30_000, data: "there" });
    assert.equal(renewal.leaseDurationMs, 30_000);
    assert.equal(renewal.fencingToken, guard.fencingToken);
    assert.notEqual(renewal.recordVersionNumber, guard.recordVersionNumber);
    assert.equal((await there.heartbeat(key, guard.leaseId)).leaseDurationMs, 30_000, "the record's lease stays");
    const resumed = await there.resume({ key, leaseId: guard.leaseId }, { lease: 6000, heartbeatInterval: 300 });
    assert.equal(resumed.outcome, "resumed");
    assert.equal(resumed.fencingToken, guard.fencingToken);
    await sleep(6200);
    assert.ok(resumed.valid, "it is renewed");
    assert.equal((await here.get(key))?.text, "there");
    assert.equal(await there.release(key, guard.leaseId), "released");
    assert.equal(await there.release(key, guard.leaseId), "replayed");
    await assert.rejects(there.heartbeat(key, guard.leaseId), LockLostError);
    await assert.rejects(
      there.resume({ key, leaseId: guard.leaseId }),
      (error) => error instanceof LockLostError && error.reason === "released",
    );
  });

  test("lease id is shown by no printing", async () => {
    const guard = guardOf(await service.client().tryAcquire(freshKey()));
    assert.ok(guard.leaseId.length >= 32);
    for (const shown of [
      inspect(guard),
      inspect(guard, { showHidden: true, depth: 9 }),
      inspect({ nested: guard }, { depth: 9 }),
      JSON.stringify(guard),
      inspect(Object.entries(guard)),
    ]) {
      assert.ok(!shown.includes(guard.leaseId), shown);
    }
    assert.match(inspect(guard), /fencingToken/);
    await guard.release();
  });

  test("abort sends nothing before, and ends a wait at once", async () => {
    const key = freshKey();
    const client = service.client({ pollInterval: 20_000 });
    const reason = new Error("enough");
    await assert.rejects(client.acquire(key, { signal: AbortSignal.abort(reason) }), (error) => error === reason);
    assert.equal(await client.get(key), undefined);
    const guard = guardOf(await client.tryAcquire(key));
    const controller = new AbortController();
    const waiting = client.acquire(key, { signal: controller.signal, wait: Infinity });
    await sleep(100);
    const start = performance.now();
    controller.abort(reason);
    await assert.rejects(waiting, (error) => error === reason);
    assert.ok(performance.now() - start < 10_000, "and not at the next poll");
    assert.ok(guard.valid);
    await guard.release();
  });

  test("many waiters in one client bring no warning of a leak", async () => {
    const key = freshKey();
    const client = service.client();
    const guard = guardOf(await client.tryAcquire(key));
    const warnings: Error[] = [];
    const onWarning = (warning: Error): void => void warnings.push(warning);
    process.on("warning", onWarning);
    const { signal } = new AbortController();
    const waits = Array.from({ length: 15 }, () =>
      assert.rejects(client.acquire(key, { wait: Infinity, signal }), { name: "ClosedError" }),
    );
    await sleep(200);
    await client.close();
    await Promise.all(waits);
    process.off("warning", onWarning);
    assert.deepEqual(warnings, []);
    assert.equal(guard.valid, false);
  });

  test("close releases all, ends waits, and is final", async () => {
    const [one, two] = [freshKey(), freshKey()];
    const client = service.client();
    const other = service.client();
    const guards = [guardOf(await client.tryAcquire(one)), guardOf(await client.tryAcquire(two))];
    const waiting = assert.rejects(client.acquire(one, { wait: Infinity }), { name: "ClosedError" });
    await client.close();
    await waiting;
    for (const guard of guards) {
      assert.equal(guard.valid, false);
      assert.equal((await other.get(guard.key))?.state, "released");
    }
    await assert.rejects(client.tryAcquire(one), { name: "ClosedError" });
    await client.close();
    {
      await using disposed = service.client();
      guardOf(await disposed.tryAcquire(one));
    }
    assert.equal((await other.get(one))?.state, "released");
  });

  test("observations outlast a call", async () => {
    const key = freshKey();
    guardOf(await service.client().acquire(key, { lease: 3000, heartbeatInterval: false }));
    const client = service.client();
    heldOf(await client.tryAcquire(key));
    await sleep(3050);
    assert.equal(guardOf(await client.tryAcquire(key)).outcome, "takenOver");
    await client.close();
  });

  test("observations outlast a process", async () => {
    const key = freshKey();
    const lease = 4000;
    guardOf(await service.client({ ownerName: "dead" }).acquire(key, { lease, heartbeatInterval: false }));
    // These jobs send one request and end.
    const first = service.client();
    heldOf(await first.tryAcquire(key));
    const saved = JSON.stringify(first.saveObservations());
    await sleep(300);
    const second = service.client();
    second.loadObservations(JSON.parse(saved) as ReturnType<typeof first.saveObservations>, { margin: 100 });
    heldOf(await second.tryAcquire(key));
    assert.equal(JSON.stringify(second.saveObservations()), saved, "first seen by the first");
    await sleep(lease);
    const third = service.client();
    heldOf(await third.tryAcquire(key));
    third.loadObservations(JSON.parse(saved) as ReturnType<typeof first.saveObservations>, { margin: 100 });
    const guard = guardOf(await third.tryAcquire(key));
    assert.equal(guard.outcome, "takenOver");
    assert.deepEqual(third.saveObservations(), []);
    await guard.release();
  });

  test("staleness by the servers' clocks needs no observation", async () => {
    const key = freshKey();
    guardOf(await service.client().acquire(key, { lease: 4000, heartbeatInterval: false }));
    heldOf(await service.client().tryAcquire(key, { staleness: "clock" }));
    const guard = guardOf(await service.client().acquire(key, { staleness: "clock", wait: 60_000 }));
    assert.equal(guard.outcome, "takenOver");
    await guard.release();
  });

  test("keys of all kinds", async () => {
    const client = service.client();
    for (const odd of ["ключ/鍵 🔑?a=b&c#d%20+", "line\nbreak", '"quoted"\\', " ", "\u0000"]) {
      const key = freshKey() + odd;
      const guard = guardOf(await client.tryAcquire(key, { data: odd }));
      const lock = await client.get(key);
      assert.equal(lock?.key, key);
      assert.equal(lock.text, odd);
      await guard.release({ delete: true });
      assert.equal(await client.get(key), undefined);
    }
    await assert.rejects(
      client.get("\ud83d"),
      (error) => error instanceof InvalidRequestError && error.field === "key",
    );
    await assert.rejects(client.tryAcquire("\ud83d"), InvalidRequestError);
  });

  test("data goes from holder to holder, as bytes and as text", async () => {
    const key = freshKey();
    const client = service.client();
    const bytes = Uint8Array.of(0, 255, 128, 10);
    const first = guardOf(await client.tryAcquire(key, { data: bytes }));
    assert.deepEqual(first.data, bytes);
    assert.equal(first.text, undefined);
    await first.release();
    const second = guardOf(await client.tryAcquire(key));
    assert.deepEqual(second.data, bytes, "what the predecessor left");
    await second.release({ data: "für den Nächsten" });
    const third = guardOf(await client.tryAcquire(key, { data: "unused", replaceData: false }));
    assert.equal(third.text, "für den Nächsten");
    assert.deepEqual(third.data, new TextEncoder().encode("für den Nächsten"));
    await third.renew({ data: Uint8Array.of(200) });
    assert.deepEqual((await client.get(key))?.data, Uint8Array.of(200));
    await third.release();
  });

  test("attributes, onlyIfExists, a payload that is too large", async () => {
    const key = freshKey();
    const client = service.client();
    await assert.rejects(client.tryAcquire(key, { onlyIfExists: true }), LockNotFoundError);
    await assert.rejects(client.acquire(key, { onlyIfExists: true }), LockNotFoundError);
    const guard = guardOf(await client.tryAcquire(key, { attributes: { team: "blue", size: 3 }, ownerName: "me" }));
    const lock = await client.get(key);
    assert.deepEqual(lock?.attributes, { team: "blue", size: 3 });
    assert.equal(lock.ownerName, "me");
    await assert.rejects(guard.renew({ data: new Uint8Array(300 * 1024) }), InvalidRequestError);
    assert.ok(guard.valid);
    await guard.renew({ data: new Uint8Array(256 * 1024) });
    await guard.release();
  });

  test("invalid options are refused with their names", async () => {
    const client = service.client();
    const wrong = (field: string) => (error: unknown) => error instanceof InvalidRequestError && error.field === field;
    await assert.rejects(client.tryAcquire(""), wrong("key"));
    await assert.rejects(client.tryAcquire("a", { lease: 99 }), wrong("lease"));
    await assert.rejects(client.tryAcquire("a", { lease: 1000.5 }), wrong("lease"));
    await assert.rejects(client.tryAcquire("a", { lease: 1000, heartbeatInterval: 501 }), wrong("heartbeatInterval"));
    await assert.rejects(client.tryAcquire("a", { heartbeatInterval: Number.NaN }), wrong("heartbeatInterval"));
    await assert.rejects(client.tryAcquire("a", { atRiskBelow: 0 }), wrong("atRiskBelow"));
    await assert.rejects(client.tryAcquire("a", { sortKey: "b" }), wrong("sortKey"));
    await assert.rejects(client.acquire("a", { wait: -1 }), wrong("wait"));
    await assert.rejects(client.acquire("a", { wait: Number.NaN }), wrong("wait"));
    assert.throws(() => service.client({ lease: 0 }), wrong("lease"));
    assert.throws(() => service.client({ pollInterval: -1 }), wrong("pollInterval"));
    for (const url of ["", "nowhere", "ftp://a", "http://user:password@a", "http://a?b=c"]) {
      assert.throws(() => service.client({ url }), wrong("url"));
    }
    assert.throws(() => service.client({ url: "nowhere" }), /The url must be absolute, such as https:/);
  });
});

describe("listing", () => {
  test("goes over all pages, and heeds its filters", async () => {
    await using own = await LocalService.start();
    const client = own.client({ ownerName: "lister" });
    const keys = Array.from({ length: 7 }, (_, index) => `key-${index}`);
    const guards = await Promise.all(keys.map(async (key) => guardOf(await client.tryAcquire(key))));
    await guards[0]?.release();
    const seen: string[] = [];
    for await (const lock of client.list({ pageSize: 2 })) seen.push(lock.key);
    assert.deepEqual(seen.sort(), keys);
    let pages = 0;
    for await (const page of client.pages({ pageSize: 2 })) {
      pages += 1;
      assert.ok(page.locks.length <= 2);
      assert.deepEqual(page.unreadable, []);
    }
    assert.ok(pages >= 4, `${pages}`);
    const released = [];
    for await (const lock of client.list({ state: "released", ownerName: "lister" })) released.push(lock);
    assert.deepEqual(
      released.map(({ key }) => key),
      ["key-0"],
    );
    for await (const lock of client.list({ ownerName: "nobody" })) assert.fail(lock.key);
    await assert.rejects(client.list({ pageSize: 0 }).next(), InvalidRequestError);
    await assert.rejects(client.list({ signal: AbortSignal.abort(new Error("enough")) }).next(), /enough/);
    await client.close();
  });

  test("table with a sort key", async () => {
    await using own = await LocalService.start("--sort-key", "part");
    const client = own.client();
    const one = guardOf(await client.tryAcquire("Moe", { sortKey: "1" }));
    const two = guardOf(await client.tryAcquire("Moe", { sortKey: "2" }));
    heldOf(await client.tryAcquire("Moe", { sortKey: "1" }));
    assert.equal(client.saveObservations()[0]?.sortKey, "1");
    assert.equal((await client.get("Moe", { sortKey: "2" }))?.fencingToken, two.fencingToken);
    const seen = [];
    for await (const lock of client.list({ key: "Moe" })) seen.push(lock.sortKey);
    assert.deepEqual(seen, ["1", "2"]);
    await one.renew();
    await client.heartbeat("Moe", two.leaseId, { sortKey: "2" });
    await client.breakLock("Moe", one.recordVersionNumber, { sortKey: "1" });
    assert.equal(await client.release("Moe", two.leaseId, { sortKey: "2" }), "released");
    await client.close();
  });
});

// The test runs alone: it stops everything in this process.
test("valid is right before any timer fires", async () => {
  const guard = guardOf(await service.client().acquire(freshKey(), { lease: 400 }));
  const end = performance.now() + 500;
  while (performance.now() < end);
  assert.equal(guard.valid, false);
  assert.equal(guard.remaining(), 0);
  assert.equal(guard.lost, "expired");
  assert.throws(() => {
    guard.ensureHeld();
  }, LockLostError);
  await assert.rejects(guard.renew(), (error) => error instanceof LockLostError && error.reason === "expired");
  assert.ok(guard.signal.aborted);
  assert.ok(
    (guard.signal.reason as LockLostError).message.includes(JSON.stringify(guard.key)),
    "the expired lock is named",
  );
});
