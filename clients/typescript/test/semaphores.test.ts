/** Semaphores, read/write locks and fair locks, against the real service (rules K2 to K5, K7 and K8). */
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, describe, test } from "node:test";
import { inspect } from "node:util";
import {
  Client,
  type ClientOptions,
  ExceedsCapacityError,
  type Held,
  InvalidRequestError,
  isSemaphore,
  LockHeldError,
  LockLostError,
  LockNotFoundError,
  PermitGuard,
  type Semaphore,
  type SemaphoreView,
  VersionMismatchError,
  WrongKindError,
} from "../dist/index.js";
import {
  aborted,
  answered,
  eventually,
  type Fault,
  FaultProxy,
  firstTimes,
  freshKey,
  LocalService,
  sleep,
} from "./support.js";

const service = await LocalService.start();
after(() => service[Symbol.asyncDispose]());

const newClient = (options: Partial<ClientOptions> = {}): Client =>
  new Client({ url: service.url, ownerName: "test", ...options });
const client = newClient();

function guardOf<Guard extends PermitGuard>(result: Guard | Held<SemaphoreView>): Guard {
  if (result.kind !== "granted") throw new Error(`held: ${JSON.stringify(result.lock)}`);
  return result;
}

function heldOf(result: PermitGuard | Held<SemaphoreView>): Held<SemaphoreView> {
  if (result.kind !== "held") throw new Error("granted");
  return result;
}

async function viewOf(key: string): Promise<SemaphoreView> {
  const view = await client.getSemaphore(key);
  assert.ok(view);
  return view;
}

const waiters = async (key: string, count: number): Promise<void> => {
  await eventually(async () => (await client.getSemaphore(key))?.queue.length === count, `${count} in the queue`);
};

/** Checks that nobody holds a permit or waits, and that the count is right. */
async function isEmpty(key: string): Promise<void> {
  await eventually(async () => {
    const view = await viewOf(key);
    return view.holders.length === 0 && view.queue.length === 0 && view.available === view.capacity;
  }, "empty");
}

/** Makes a ticket of a waiter that is dead from the start. */
async function deadTicket(key: string, capacity: number, leaseDurationMs: number, permits = 1): Promise<void> {
  const body = JSON.stringify({ key, ownerName: "dead", leaseId: randomUUID(), capacity, permits, leaseDurationMs });
  const { status } = await fetch(`${service.url}/v1/semaphore/enqueue`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body,
  });
  assert.equal(status, 200);
}

/** A proxy, and a semaphore behind it. */
async function throughProxy(
  capacity: number,
  options: Partial<ClientOptions> = {},
): Promise<{ key: string; proxy: FaultProxy; semaphore: Semaphore } & AsyncDisposable> {
  const proxy = await FaultProxy.start(service.url);
  const key = freshKey();
  const semaphore = newClient({ url: proxy.url, ...options }).semaphore(key, capacity);
  return { key, proxy, semaphore, [Symbol.asyncDispose]: () => proxy[Symbol.asyncDispose]() };
}

describe("semaphores", { concurrency: 4 }, () => {
  test("dead permit is taken by the servers' clock", async () => {
    const key = freshKey();
    guardOf(await newClient().semaphore(key, 1).acquire({ lease: 4000, heartbeatInterval: false }));
    await sleep(5200); // the lease, a quarter of which each request has, and the bound of the skew of a second
    heldOf(await newClient().semaphore(key, 1).tryAcquire());
    const guard = guardOf(await newClient().semaphore(key, 1).tryAcquire({ staleness: "clock" }));
    await guard.release();
  });

  test("permits are granted up to the capacity", async () => {
    const key = freshKey();
    const semaphore = client.semaphore(key, 3);
    const one = guardOf(await semaphore.tryAcquire({ data: "here" }));
    const two = guardOf(await semaphore.tryAcquire({ permits: 2, ownerName: "two" }));
    assert.ok(one instanceof PermitGuard);
    assert.deepEqual([one.outcome, one.permits, one.capacity, two.permits], ["created", 1, 3, 2]);
    assert.ok(two.fencingToken > one.fencingToken);
    assert.ok(one.valid && one.remaining() > 50_000 && one.leaseDuration === 60_000);
    const held = heldOf(await semaphore.tryAcquire());
    assert.deepEqual(
      held.lock.holders.map(({ holderId, ownerName, permits, text }) => [holderId, ownerName, permits, text]),
      [
        [one.holderId, "test", 1, "here"],
        [two.holderId, "two", 2, undefined],
      ],
    );
    assert.throws(() => held.granted(), LockHeldError);
    assert.equal(held.lock.queue.length, 0, "a try takes no place in the queue");
    assert.equal(await two.release(), "released");
    assert.equal(await two.release(), "released", "may be repeated");
    assert.equal(two.valid, false);
    await assert.rejects(semaphore.tryAcquire({ permits: 4 }), ExceedsCapacityError);
    assert.ok(!inspect(one).includes(one.leaseId) && !JSON.stringify(one).includes(one.leaseId));
    await one.release();
    await isEmpty(key);
  });

  test("scope gives back whatever becomes of its body", async () => {
    const key = freshKey();
    const semaphore = client.semaphore(key, 2);
    assert.equal(await semaphore.withPermits((guard) => guard.permits, { permits: 2 }), 2);
    await assert.rejects(
      semaphore.withPermits(() => Promise.reject(new Error("body"))),
      /body/,
    );
    {
      await using guard = guardOf(await semaphore.acquire());
      assert.equal((await viewOf(key)).holders[0]?.holderId, guard.holderId);
    }
    await isEmpty(key);
  });

  test("heartbeats keep the permits", async () => {
    const key = freshKey();
    const guard = guardOf(await client.semaphore(key, 1).acquire({ lease: 20_000, heartbeatInterval: 100 }));
    const before = guard.version;
    await eventually(() => guard.version !== before, "a heartbeat");
    await guard.renew({ data: "new", lease: 30_000 });
    const view = await viewOf(key);
    assert.deepEqual([view.holders[0]?.text, view.holders[0]?.leaseDurationMs], ["new", 30_000]);
    await guard.release();
  });

  test("waiter is woken by a release, and asks once more", async () => {
    await using parts = await throughProxy(1);
    const { key, proxy, semaphore } = parts;
    const holder = guardOf(await client.semaphore(key, 1).tryAcquire());
    const waiting = semaphore.acquire();
    await waiters(key, 1);
    await eventually(() => proxy.calls("watch").length > 0, "a watch");
    await holder.release();
    const guard = guardOf(await waiting);
    // A slow answer lets the client repeat a request, under its number.
    const numbers = (call: string): unknown[] => [...new Set(proxy.calls(call).map(({ body }) => body["sequence"]))];
    assert.deepEqual([numbers("semaphore/acquire"), numbers("semaphore/enqueue")], [[1, 3], [2]]);
    await guard.release();
    await isEmpty(key);
  });

  for (const [name, fault] of [
    ["a chosen interval", undefined],
    ["no route for watches", { status: 404, body: "{}" }],
  ] as [string, Fault | undefined][]) {
    test(`waiter polls by reads: ${name}`, async () => {
      await using parts = await throughProxy(1, fault === undefined ? { pollInterval: 50 } : {});
      const { key, proxy, semaphore } = parts;
      proxy.fault = ({ call }) => (call === "watch" && fault !== undefined ? fault : "pass");
      const holder = guardOf(await client.semaphore(key, 1).tryAcquire());
      const waiting = semaphore.acquire();
      await eventually(() => proxy.calls("semaphore").length > 1, "reads");
      await holder.release();
      await guardOf(await waiting).release();
      assert.equal(proxy.calls("semaphore/acquire").length, 2);
      assert.equal(proxy.calls("watch").length, fault === undefined ? 0 : 1);
    });
  }

  test("dead holder is taken over, and a living one is not", async () => {
    const key = freshKey();
    const semaphore = client.semaphore(key, 3);
    const dead = guardOf(await semaphore.acquire({ permits: 2, lease: 3000, heartbeatInterval: false }));
    const alive = guardOf(await semaphore.acquire({ lease: 12_000, heartbeatInterval: 200 }));
    const guard = guardOf(await newClient().semaphore(key, 3).acquire({ permits: 2 }));
    assert.equal(guard.outcome, "takenOver");
    assert.ok(guard.fencingToken > alive.fencingToken);
    assert.ok(alive.valid);
    assert.equal(dead.valid, false);
    await guard.release();
    await alive.release();
    await isEmpty(key);
  });

  test("tries take over what they saw dead", async () => {
    const key = freshKey();
    const semaphore = newClient().semaphore(key, 1);
    guardOf(await client.semaphore(key, 1).acquire({ lease: 2000, heartbeatInterval: false }));
    heldOf(await semaphore.tryAcquire());
    heldOf(await newClient().semaphore(key, 1).tryAcquire());
    await sleep(2100);
    heldOf(await newClient().semaphore(key, 1).tryAcquire());
    const guard = guardOf(await semaphore.tryAcquire());
    assert.equal(guard.outcome, "takenOver");
    await guard.release();
  });

  test("holder that was taken for dead is told of its loss", async () => {
    const key = freshKey();
    const semaphore = client.semaphore(key, 1);
    const guard = guardOf(await semaphore.acquire({ lease: 20_000, heartbeatInterval: 300 }));
    // A heartbeat may come between the look and the break, though not each time.
    await eventually(async () => {
      const seen = (await viewOf(key)).holders[0];
      if (seen) await client.breakEntry(key, seen.holderId, seen.version).catch(() => undefined);
      return guard.lost !== undefined;
    }, "the loss");
    await aborted(guard.signal);
    assert.equal(guard.lost, "released");
    await assert.rejects(guard.release(), LockLostError);
    await isEmpty(key);
  });

  test("queue is served in its order", async () => {
    const key = freshKey();
    const lock = client.fairLock(key);
    const holder = guardOf(await lock.tryAcquire());
    const served: number[] = [];
    const all: Promise<void>[] = [];
    for (const place of [1, 2, 3]) {
      const waiting = newClient()
        .fairLock(key)
        .withPermits(async () => {
          served.push(place);
          await sleep(20);
        });
      all.push(waiting);
      await waiters(key, place);
    }
    heldOf(await lock.tryAcquire());
    await holder.release();
    await Promise.all(all);
    assert.deepEqual(served, [1, 2, 3]);
    await isEmpty(key);
  });

  test("dead waiters are passed after one lease of theirs", async () => {
    const key = freshKey();
    const semaphore = client.semaphore(key, 1);
    const holder = guardOf(await semaphore.tryAcquire());
    await deadTicket(key, 1, 1500);
    await deadTicket(key, 1, 1500);
    const waiting = semaphore.acquire();
    await waiters(key, 3);
    await holder.release();
    const guard = guardOf(await waiting);
    assert.equal((await viewOf(key)).queue.length, 0, "the grant removes them");
    // Without a ticket the dead must be named, too, as the refusal shows them.
    await deadTicket(key, 1, 1000);
    await guard.release();
    heldOf(await semaphore.tryAcquire());
    await sleep(1100);
    const next = guardOf(await semaphore.tryAcquire());
    assert.equal((await viewOf(key)).queue.length, 0);
    await next.release();
  });

  test("late copies make no ghosts", async () => {
    const key = freshKey();
    await using proxy = await FaultProxy.start(service.url);
    const semaphore = newClient({ url: proxy.url }).semaphore(key, 1);
    // A client that knows no epoch yet names none.
    const first = guardOf(await semaphore.tryAcquire());
    await first.release();
    const holder = guardOf(await client.semaphore(key, 1).tryAcquire());
    const waiting = semaphore.acquire();
    await waiters(key, 1);
    await holder.release();
    await guardOf(await waiting).release();
    for (let turn = 0; turn < 20; turn += 1) await guardOf(await client.semaphore(key, 1).tryAcquire()).release();
    const isCopy = ({ call, body }: (typeof proxy.seen)[number]): boolean =>
      /acquire|enqueue/.test(call) && body["leaseId"] !== first.leaseId;
    const copies = proxy.seen.filter(isCopy);
    assert.ok(copies.length >= 2);
    for (const { call, body } of copies) {
      const headers = { "content-type": "application/json" };
      const late = await fetch(`${service.url}/v1/${call}`, { method: "POST", headers, body: JSON.stringify(body) });
      assert.notEqual(late.status, 200, `${call} ${JSON.stringify(body)}`);
    }
    await isEmpty(key);
    // The client's own epoch is as old as the copies': its one request is repeated.
    await guardOf(await semaphore.tryAcquire()).release();
  });

  test("waiter that is cancelled leaves no ticket", async () => {
    const key = freshKey();
    const holder = guardOf(await client.semaphore(key, 1).tryAcquire());
    const leaving = new AbortController();
    const waiting = client.semaphore(key, 1).acquire({ signal: leaving.signal, wait: Infinity });
    const other = newClient();
    const closing = assert.rejects(other.semaphore(key, 1).acquire({ wait: Infinity }), { name: "ClosedError" });
    await waiters(key, 2);
    leaving.abort(new Error("left"));
    await assert.rejects(waiting, /left/);
    await other.close();
    await closing;
    await waiters(key, 0);
    await holder.release();
    await isEmpty(key);
  });

  test("end of the wait is a value, and withdraws the ticket", async () => {
    const key = freshKey();
    const holder = guardOf(await client.semaphore(key, 1).tryAcquire({ ownerName: "one" }));
    const waiting = newClient().semaphore(key, 1).acquire({ wait: 6000 });
    await waiters(key, 1);
    const held = heldOf(await waiting);
    assert.equal(held.lock.holders[0]?.ownerName, "one");
    await waiters(key, 0);
    assert.equal(heldOf(await answered(() => client.semaphore(key, 1).acquire({ wait: 0 }))).lock.queue.length, 0);
    await holder.release();
    await isEmpty(key);
  });

  test("ticket is refreshed while its waiter lives", async () => {
    const key = freshKey();
    const holder = guardOf(await client.semaphore(key, 1).tryAcquire());
    const waiting = newClient().semaphore(key, 1).acquire({ ticketLease: 6000, wait: Infinity });
    await waiters(key, 1);
    const first = (await viewOf(key)).queue[0];
    assert.ok(first);
    assert.equal(first.leaseDurationMs, 6000);
    await eventually(async () => (await viewOf(key)).queue[0]?.version !== first.version, "a refresh");
    assert.equal((await viewOf(key)).queue[0]?.number, first.number);
    await holder.release();
    await guardOf(await waiting).release();
    await isEmpty(key);
  });

  test("waiter whose ticket was broken begins anew", async () => {
    await using parts = await throughProxy(1);
    const { key, proxy, semaphore } = parts;
    const holder = guardOf(await client.semaphore(key, 1).tryAcquire());
    const waiting = semaphore.acquire({ wait: Infinity });
    await waiters(key, 1);
    const ticket = (await viewOf(key)).queue[0];
    assert.ok(ticket);
    assert.equal(await client.breakEntry(key, ticket.ticketId, ticket.version), "released");
    await eventually(
      async () => (await viewOf(key)).queue.some(({ ticketId }) => ticketId !== ticket.ticketId),
      "another ticket",
    );
    await holder.release();
    await guardOf(await waiting).release();
    assert.equal(new Set(proxy.calls("semaphore/enqueue").map(({ body }) => body["leaseId"])).size, 2);
    await isEmpty(key);
  });

  test("waiter that was cut off goes to the end of the queue", async () => {
    await using parts = await throughProxy(2);
    const { key, proxy, semaphore } = parts;
    const holder = guardOf(await client.semaphore(key, 2).tryAcquire());
    await deadTicket(key, 2, 5000, 2);
    const cutOff = semaphore.acquire({ ticketLease: 4500, wait: Infinity });
    await eventually(() => proxy.calls("watch").length > 0, "a wait");
    proxy.fault = () => "lose request";
    const passing = newClient().semaphore(key, 2);
    heldOf(await passing.tryAcquire());
    await sleep(5200);
    const other = guardOf(await passing.tryAcquire());
    const large = newClient().semaphore(key, 2).acquire({ permits: 2, wait: Infinity });
    await waiters(key, 1);
    await holder.release();
    proxy.fault = () => "pass";
    await waiters(key, 2);
    const watches = proxy.calls("watch").length;
    await eventually(() => proxy.calls("watch").length > watches, "another wait");
    assert.deepEqual(
      (await viewOf(key)).queue.map(({ permits }) => permits),
      [2, 1],
      "its old view does not count",
    );
    await other.release();
    await guardOf(await large).release();
    await guardOf(await cutOff).release();
    await isEmpty(key);
  });

  test("full queue is entered past its dead", async () => {
    const key = freshKey();
    const holder = guardOf(await client.semaphore(key, 1).tryAcquire());
    for (let count = 0; count < 100; count += 1) await deadTicket(key, 1, 1000);
    const waiting = newClient().semaphore(key, 1).acquire({ wait: 30_000 });
    await eventually(async () => (await viewOf(key)).queue.some(({ ownerName }) => ownerName === "test"), "a ticket");
    await holder.release();
    await guardOf(await waiting).release();
  });

  test("permits are given back one by one, and not taken again", async () => {
    const key = freshKey();
    const guard = guardOf(await client.semaphore(key, 5).tryAcquire({ permits: 5 }));
    await guard.keep(3);
    assert.equal(guard.permits, 3);
    assert.equal((await viewOf(key)).available, 2);
    await assert.rejects(guard.keep(4), InvalidRequestError);
    assert.equal(guard.permits, 3);
    assert.ok(guard.valid);
    await guard.release();
    await isEmpty(key);
  });

  test("readers share, and a writer excludes and is not starved", async () => {
    const key = freshKey();
    const lock = client.readWriteLock(key);
    const readers = [guardOf(await lock.read().tryAcquire()), guardOf(await lock.read().tryAcquire())];
    const writing = newClient().readWriteLock(key).write().acquire();
    await waiters(key, 1);
    heldOf(await lock.read().tryAcquire());
    const late = newClient().readWriteLock(key).read().acquire();
    await waiters(key, 2);
    for (const reader of readers) await reader.release();
    const writer = guardOf(await writing);
    assert.equal(writer.permits, 100);
    assert.equal((await viewOf(key)).queue.length, 1);
    await writer.downgrade();
    assert.equal(writer.permits, 1);
    const reader = guardOf(await late);
    assert.ok(writer.valid && reader.valid);
    await Promise.all([writer.release(), reader.release()]);
    await isEmpty(key);
  });

  test("writer passes 25 dead readers", async () => {
    await using proxy = await FaultProxy.start(service.url);
    const key = freshKey();
    for (let count = 0; count < 25; count += 1) {
      const body = JSON.stringify({
        key,
        ownerName: "dead",
        leaseId: randomUUID(),
        capacity: 100,
        leaseDurationMs: 1500,
      });
      await fetch(`${service.url}/v1/semaphore/acquire`, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body,
      });
    }
    const writer = guardOf(await newClient({ url: proxy.url }).readWriteLock(key).write().acquire({ wait: 30_000 }));
    assert.deepEqual(
      (await viewOf(key)).holders.map(({ holderId }) => holderId),
      [writer.holderId],
    );
    // Ten dead readers with the ticket, ten more, and the last five with the request that is granted.
    const named = proxy.seen.map(({ call, body }) => [call, (body["observed"] as unknown[] | undefined)?.length]);
    const requests = named.filter(([call, count]) => call !== "watch" && count !== undefined && count !== 0);
    assert.deepEqual(requests, [
      ["semaphore/enqueue", 10],
      ["semaphore/enqueue", 10],
      ["semaphore/acquire", 5],
    ]);
    await writer.release();
    await isEmpty(key);
  });

  test("writer refuses a lock with more permits than it takes", async () => {
    const key = freshKey();
    await client
      .readWriteLock(key, { capacity: 10 })
      .read()
      .withPermits(() => undefined);
    await assert.rejects(
      client.readWriteLock(key, { capacity: 5 }).write().acquire(),
      (error) => error instanceof InvalidRequestError && error.field === "capacity",
    );
    await assert.rejects(client.readWriteLock(key, { capacity: 20 }).write().acquire(), ExceedsCapacityError);
    await client
      .readWriteLock(key, { capacity: 10 })
      .write()
      .withPermits(() => undefined);
    await isEmpty(key);
  });

  test("permits go from one process to another", async () => {
    const key = freshKey();
    const here = guardOf(await client.semaphore(key, 3).tryAcquire({ permits: 2 }));
    const handover = here.detach();
    assert.equal(here.valid, false);
    const there = await newClient().semaphore(key, 3).resume(handover);
    assert.deepEqual([there.permits, there.fencingToken, there.outcome], [2, here.fencingToken, "resumed"]);
    await there.keep(1);
    assert.equal(await there.release(), "released");
    await isEmpty(key);
  });

  test("capacity is an operator's, and each kind has its own key", async () => {
    const key = freshKey();
    await assert.rejects(client.setCapacity(key, 5, 3), LockNotFoundError);
    assert.equal(await client.getSemaphore(key), undefined);
    const guard = guardOf(await client.semaphore(key, 3).tryAcquire({ permits: 3 }));
    assert.deepEqual(await client.setCapacity(key, 5, 3), { capacity: 5, available: 2 });
    await assert.rejects(client.setCapacity(key, 7, 3), VersionMismatchError);
    await assert.rejects(client.breakEntry(key, guard.holderId, "another"), VersionMismatchError);
    await assert.rejects(client.tryAcquire(key), WrongKindError);
    await assert.rejects(client.get(key), WrongKindError);
    const plain = freshKey();
    const lock = (await client.tryAcquire(plain)).granted();
    await assert.rejects(client.semaphore(plain, 1).tryAcquire(), WrongKindError);
    const listed = new Map<string, boolean>();
    for await (const row of client.list()) listed.set(row.key, isSemaphore(row));
    assert.deepEqual([listed.get(key), listed.get(plain)], [true, false]);
    await lock.release();
    await guard.release();
  });

  test("waiter is told when the capacity is cut below its wish", async () => {
    const key = freshKey();
    const holder = guardOf(await client.semaphore(key, 3).tryAcquire());
    const waiting = assert.rejects(newClient().semaphore(key, 3).acquire({ permits: 3 }), ExceedsCapacityError);
    await waiters(key, 1);
    await client.setCapacity(key, 2, 3);
    await waiting;
    await holder.release();
    await waiters(key, 0);
  });

  test("holder believes in its lease less the delay", async () => {
    const guard = guardOf(await client.semaphore(freshKey(), 1).tryAcquire({ lease: 60_000, lockDelay: 50_000 }));
    assert.ok(guard.remaining() <= 10_000 && guard.remaining() > 0);
    await guard.release();
    await assert.rejects(
      client.semaphore(freshKey(), 1).tryAcquire({ lockDelay: 60_000 }),
      (error) => error instanceof InvalidRequestError && error.field === "lockDelay",
    );
  });
});

describe("faults of semaphores", { concurrency: 4 }, () => {
  const faults: Fault[] = ["lose answer", "lose request", { status: 503, body: "{}" }];
  for (const call of ["semaphore/acquire", "semaphore/enqueue", "semaphore/release", "semaphore"]) {
    for (const fault of faults) {
      test(`permits are exact: ${call}, ${JSON.stringify(fault)}`, async () => {
        await using parts = await throughProxy(2, { pollInterval: 50 });
        const { key, proxy, semaphore } = parts;
        proxy.fault = firstTimes(2, call, fault);
        const first = guardOf(await semaphore.acquire({ permits: 2 }));
        assert.equal((await viewOf(key)).available, 0);
        const waiting = newClient({ url: proxy.url, pollInterval: 50 }).semaphore(key, 2).acquire();
        await waiters(key, 1);
        await first.release();
        const second = guardOf(await waiting);
        assert.equal((await viewOf(key)).available, 1);
        await second.release();
        await isEmpty(key);
      });
    }
  }

  test("answers to a waiter that is granted are lost", async () => {
    await using parts = await throughProxy(1);
    const { key, proxy, semaphore } = parts;
    const holder = guardOf(await client.semaphore(key, 1).tryAcquire());
    const waiting = semaphore.acquire();
    await waiters(key, 1);
    proxy.fault = firstTimes(2, "semaphore/acquire", "lose answer");
    await holder.release();
    const guard = guardOf(await waiting);
    const view = await viewOf(key);
    assert.deepEqual([view.holders.map(({ holderId }) => holderId), view.queue.length], [[guard.holderId], 0]);
    await guard.release();
    await isEmpty(key);
  });

  test("waiter that leaves during a lost enqueue leaves no ticket", async () => {
    await using parts = await throughProxy(1);
    const { key, proxy, semaphore } = parts;
    const holder = guardOf(await client.semaphore(key, 1).tryAcquire());
    proxy.fault = ({ call }) => (call === "semaphore/enqueue" ? "lose answer" : "pass");
    const leaving = new AbortController();
    const waiting = semaphore.acquire({ signal: leaving.signal, wait: Infinity });
    await waiters(key, 1);
    leaving.abort(new Error("left"));
    await assert.rejects(waiting, /left/);
    await waiters(key, 0);
    await holder.release();
    await isEmpty(key);
  });

  test("try whose answer is lost gives back what it was granted", async () => {
    await using parts = await throughProxy(1);
    const { key, proxy, semaphore } = parts;
    proxy.fault = firstTimes(1, "semaphore/acquire", "lose answer");
    await assert.rejects(semaphore.tryAcquire());
    await isEmpty(key);
  });

  test("permits are given back once when the answer is lost", async () => {
    await using parts = await throughProxy(5);
    const { key, proxy, semaphore } = parts;
    const guard = guardOf(await semaphore.tryAcquire({ permits: 5, heartbeatInterval: false }));
    proxy.fault = firstTimes(1, "semaphore/heartbeat", "lose answer");
    await guard.keep(2);
    assert.equal(guard.permits, 2);
    assert.equal((await viewOf(key)).available, 3);
    const bodies = proxy.calls("semaphore/heartbeat").map(({ body }) => JSON.stringify(body));
    assert.equal(new Set(bodies).size, 1, "byte for byte");
    await guard.release();
    await isEmpty(key);
  });
});
