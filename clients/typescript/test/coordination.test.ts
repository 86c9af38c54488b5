/** Several locks at once, occurrences, observers and elections, against the real service (rule K6). */
import assert from "node:assert/strict";
import { after, describe, test } from "node:test";
import {
  AlreadyDoneError,
  Client,
  type ClientOptions,
  Election,
  type Guard,
  type Held,
  InvalidRequestError,
  isSemaphore,
  AllGuard,
  LockHeldError,
  LockLostError,
  type SemaphoreView,
  WrongKindError,
} from "../dist/index.js";
import {
  aborted,
  answered,
  breakHeld,
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

const newClient = (options: Partial<ClientOptions> = {}): Client =>
  new Client({ url: service.url, ownerName: "test", ...options });
const client = newClient();

const viewOf = async (key: string): Promise<SemaphoreView> => {
  const view = await client.getSemaphore(key);
  assert.ok(view);
  return view;
};
const stateOf = async (key: string): Promise<string | undefined> => (await client.get(key))?.state;
const areReleased = async (keys: readonly string[]): Promise<void> => {
  await eventually(async () => (await Promise.all(keys.map(stateOf))).every((state) => state !== "held"), "released");
};

function jointOf(result: AllGuard | Held): AllGuard {
  if (result.kind !== "granted") throw new Error(`held: ${JSON.stringify(result.locks)}`);
  return result;
}

/** The next value of a stream. */
async function next<T>(stream: AsyncGenerator<T, void, undefined>): Promise<T> {
  const { done, value } = await stream.next();
  if (done === true) throw new Error("the stream has ended");
  return value;
}

describe("several locks at once", { concurrency: 4 }, () => {
  test("all locks are granted under one token, or none", async () => {
    const [a, b, c] = [freshKey(), freshKey(), freshKey()];
    const guard = jointOf(await client.tryAcquireAll([a, b]));
    assert.ok(guard instanceof AllGuard);
    assert.deepEqual(guard.keys, [a, b]);
    assert.ok(guard.valid && guard.remaining() > 0 && guard.lost === undefined);
    assert.deepEqual(new Set(guard.guards.map(({ fencingToken }) => fencingToken)), new Set([guard.fencingToken]));
    const held = await newClient().tryAcquireAll([c, b, a]);
    assert.equal(held.kind, "held");
    assert.deepEqual(new Set(held.locks.map(({ key }) => key)), new Set([a, b]));
    assert.throws(
      () => held.granted(),
      (error) => error instanceof LockHeldError && error.locks.length === 2,
    );
    assert.equal(await client.get(c), undefined);
    await guard.release();
    await guard.release();
    assert.equal(guard.valid, false);
    assert.equal(guard.signal.aborted, false);
    assert.deepEqual(await Promise.all([a, b].map(stateOf)), ["released", "released"]);
  });

  test("waiter asks again when no named lock is held", async () => {
    await using proxy = await FaultProxy.start(service.url);
    const [a, b] = [freshKey(), freshKey()];
    const silent = { lease: 60_000, heartbeatInterval: false } as const;
    const holders = [
      guardOf(await service.client().tryAcquire(a, silent)),
      guardOf(await service.client().tryAcquire(b, silent)),
    ];
    const waiting = newClient({ url: proxy.url }).acquireAll([a, b], { wait: Infinity });
    await eventually(() => proxy.calls("watch").length === 1, "a watch");
    await holders[0]?.release();
    await eventually(() => proxy.calls("watch").length === 2, "a watch of the other");
    assert.equal(proxy.calls("acquire-all").length, 1);
    await holders[1]?.release();
    const guard = jointOf(await waiting);
    assert.equal(proxy.calls("acquire-all").length, 2);
    await guard.release();
  });

  test("client with a poll interval reads, and does not ask", async () => {
    await using proxy = await FaultProxy.start(service.url);
    const [a, b] = [freshKey(), freshKey()];
    const holder = guardOf(await service.client().tryAcquire(b));
    const waiting = newClient({ url: proxy.url, pollInterval: 50 }).acquireAll([a, b], { wait: Infinity });
    await eventually(() => proxy.calls("lock").length > 2, "reads");
    assert.equal(proxy.calls("acquire-all").length, 1);
    await holder.release();
    await jointOf(await waiting).release();
  });

  test("dead holders of several locks are taken over", async () => {
    const [a, b] = [freshKey(), freshKey()];
    for (const key of [a, b]) guardOf(await service.client().acquire(key, { lease: 3000, heartbeatInterval: false }));
    const guard = jointOf(await newClient().acquireAll([a, b], { wait: 30_000 }));
    assert.ok(guard.valid);
    await guard.release();
  });

  test("two callers in opposite orders both come through", async () => {
    const [a, b] = [freshKey(), freshKey()];
    const turns = [
      [a, b],
      [b, a],
      [a, b],
      [b, a],
    ].map((keys) => newClient().withAll(keys, (guard) => guard.fencingToken, { wait: Infinity }));
    const tokens = await Promise.all(turns);
    assert.equal(new Set(tokens).size, 4);
    await areReleased([a, b]);
  });

  test("loss of one lock is the loss of all, and the rest is free", async () => {
    const keys = [freshKey(), freshKey(), freshKey()];
    const guard = jointOf(await newClient().acquireAll(keys, { lease: 20_000, heartbeatInterval: 300 }));
    await breakHeld(client, keys[1] ?? "");
    await aborted(guard.signal);
    assert.equal(guard.lost, "released");
    assert.ok(guard.signal.reason instanceof LockLostError && guard.signal.reason.key === keys[1]);
    assert.equal(guard.valid, false);
    assert.throws(() => {
      guard.ensureHeld();
    }, LockLostError);
    await areReleased(keys);
    await assert.rejects(guard.release(), LockLostError);
  });

  test("heartbeat renews the lease of each lock", async () => {
    const keys = [freshKey(), freshKey()];
    const guard = jointOf(await newClient().acquireAll(keys, { lease: 20_000, heartbeatInterval: false }));
    await guard.renew({ lease: 40_000 });
    assert.ok(guard.remaining() > 20_000);
    assert.deepEqual(
      await Promise.all(keys.map(async (key) => (await client.get(key))?.leaseDurationMs)),
      [40_000, 40_000],
    );
    await breakHeld(client, keys[1] ?? "");
    await assert.rejects(guard.renew(), (error) => error instanceof LockLostError && error.key === keys[1]);
    await aborted(guard.signal);
    await areReleased(keys);
  });

  test("waiter that leaves holds none of the locks", async () => {
    const [a, b] = [freshKey(), freshKey()];
    const holder = guardOf(await service.client().tryAcquire(a));
    const leaving = new AbortController();
    const waiting = newClient().acquireAll([a, b], { wait: Infinity, signal: leaving.signal });
    leaving.abort(new Error("left"));
    await assert.rejects(waiting, /left/);
    await holder.release();
    await areReleased([a, b]);
    await jointOf(await newClient().tryAcquireAll([a, b])).release();
  });

  test("lock and permits are granted, kept and released together", async () => {
    const [key, pool] = [freshKey(), freshKey()];
    const wanted = [key, { key: pool, permits: 2, capacity: 3 }];
    const guard = jointOf(await newClient().acquireAll(wanted));
    const view = await viewOf(pool);
    assert.deepEqual([view.available, view.holders.map(({ fencingToken }) => fencingToken)], [1, [guard.fencingToken]]);
    await guard.renew({ lease: 40_000 });
    assert.equal((await viewOf(pool)).holders[0]?.leaseDurationMs, 40_000);
    const refused = await newClient().tryAcquireAll([freshKey(), { key: pool, permits: 2, capacity: 3 }]);
    assert.ok(refused.kind === "held" && isSemaphore(refused.lock) && refused.lock.available === 1);
    const waiting = newClient().acquireAll([freshKey(), { key: pool, permits: 3, capacity: 3 }], { wait: Infinity });
    await guard.release();
    await jointOf(await waiting).release();
    await areReleased([key]);
    assert.equal((await viewOf(pool)).available, 3);
  });

  test("dead holder of permits makes way for several", async () => {
    const pool = freshKey();
    await newClient().semaphore(pool, 3).acquire({ permits: 3, lease: 3000, heartbeatInterval: false });
    const guard = jointOf(
      await newClient().acquireAll([freshKey(), { key: pool, permits: 2, capacity: 3 }], { wait: 30_000 }),
    );
    assert.equal((await viewOf(pool)).available, 1);
    await guard.release();
  });

  test("late copy of a refused request is found by its caller", async () => {
    await using proxy = await FaultProxy.start(service.url);
    const [lock, pool] = [freshKey(), freshKey()];
    const holder = (await newClient().semaphore(pool, 1).acquire()).granted();
    const wanted = [lock, { key: pool, permits: 1, capacity: 1 }];
    const waiting = newClient({ url: proxy.url, pollInterval: 50 }).acquireAll(wanted, { lease: 3000, wait: 60_000 });
    await eventually(() => proxy.calls("semaphore").length > 1, "it waits");
    const [refused] = proxy.calls("acquire-all");
    const request = {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(refused?.body),
    };
    // The client looks again once the copy is granted, and never between.
    let looks = 0;
    const copying = eventually(() => looks > 0, "it looks")
      .then(() => holder.release())
      .then(() => fetch(`${service.url}/v1/acquire-all`, request));
    proxy.fault = async (): Promise<Fault> => {
      looks += 1;
      await copying;
      return "pass";
    };
    const copy = await copying;
    assert.equal(copy.status, 200);
    const guard = jointOf(await waiting);
    assert.ok(guard.fencingToken > ((await copy.json()) as { fencingToken: number }).fencingToken);
    const asked = JSON.stringify(proxy.calls("acquire-all").at(-1)?.body);
    assert.match(asked, /"observed":\[\{"holderId":"h-/, "it named itself");
    await guard.release();
    assert.equal((await viewOf(pool)).available, 1);
  });

  test("loss of permits is the loss of the lock beside them", async () => {
    const [key, pool] = [freshKey(), freshKey()];
    const wanted = [key, { key: pool, permits: 2, capacity: 3 }];
    const guard = jointOf(await newClient().acquireAll(wanted, { lease: 20_000, heartbeatInterval: 300 }));
    // A heartbeat may change the version between the look and the break.
    await eventually(async () => {
      const [holder] = (await viewOf(pool)).holders;
      return client.breakEntry(pool, holder?.holderId ?? "", holder?.version ?? "").then(
        () => true,
        () => false,
      );
    }, "it is broken");
    await aborted(guard.signal);
    assert.ok(guard.signal.reason instanceof LockLostError && guard.signal.reason.key === pool);
    await areReleased([key]);
    const again = jointOf(await newClient().acquireAll(wanted, { lease: 20_000, heartbeatInterval: 300 }));
    await breakHeld(client, key);
    await aborted(again.signal);
    await eventually(async () => (await viewOf(pool)).available === 3, "the permits are back");
  });

  test("requests for all locks are checked", async () => {
    await assert.rejects(client.tryAcquireAll([]), InvalidRequestError);
    const key = freshKey();
    await assert.rejects(newClient().tryAcquireAll([key, key]), InvalidRequestError);
    await newClient()
      .semaphore(key, 1)
      .withPermits(() => undefined);
    await assert.rejects(newClient().tryAcquireAll([key, freshKey()]), WrongKindError);
  });

  for (const fault of ["lose answer", "lose request", { status: 503, body: "{}" }] as Fault[]) {
    test(`acquire-all is repeated: ${JSON.stringify(fault)}`, async () => {
      await using proxy = await FaultProxy.start(service.url);
      proxy.fault = firstTimes(1, "acquire-all", fault);
      const keys = [freshKey(), freshKey()];
      const guard = jointOf(await newClient({ url: proxy.url }).acquireAll(keys, { wait: 20_000 }));
      assert.equal(new Set(proxy.calls("acquire-all").map(({ body }) => JSON.stringify(body))).size, 1);
      proxy.fault = firstTimes(1, "release", fault);
      await guard.release();
      await areReleased(keys);
    });
  }

  test("try whose answer is lost gives all locks back", async () => {
    await using proxy = await FaultProxy.start(service.url);
    proxy.fault = firstTimes(1, "acquire-all", "lose answer");
    const keys = [freshKey(), freshKey()];
    await assert.rejects(newClient({ url: proxy.url }).tryAcquireAll(keys));
    await eventually(
      async () => (await Promise.all(keys.map(stateOf))).every((state) => state === "released"),
      "given back",
    );
  });
});

describe("once an occurrence", { concurrency: 4 }, () => {
  test("occurrence that is done is not run again", async () => {
    const key = freshKey();
    assert.deepEqual(await newClient().once(key, "2026-11-21T02", () => "41 rows"), {
      kind: "ran",
      value: "41 rows",
    });
    for (const occurrence of ["2026-11-21T02", "2026-11-21T01"]) {
      const again = await newClient().once(key, occurrence, () => assert.fail("run again"));
      assert.equal(again.kind, "already-done");
      assert.deepEqual([again.lock.text, again.lock.lastOccurrence], ["41 rows", "2026-11-21T02"]);
    }
    assert.equal((await newClient().once(key, "2026-11-21T03", () => ({ not: "kept" }))).kind, "ran");
    await assert.rejects(client.tryAcquire(key, { occurrence: "2026-11-21T03" }), AlreadyDoneError);
  });

  test("run that fails is tried again, but for at most once", async () => {
    const fail = (): never => {
      throw new Error("body");
    };
    const key = freshKey();
    await assert.rejects(newClient().once(key, "1", fail), /body/);
    assert.equal((await newClient().once(key, "1", () => undefined)).kind, "ran");
    const strict = freshKey();
    await assert.rejects(newClient().once(strict, "1", fail, { atMostOnce: true }), /body/);
    assert.equal((await newClient().once(strict, "1", fail)).kind, "already-done");
  });

  test("second caller waits for the first, and finds its result", async () => {
    const key = freshKey();
    let finish: (() => void) | undefined;
    const running = newClient().once(
      key,
      "1",
      () =>
        new Promise<string>(
          (resolve) =>
            (finish = () => {
              resolve("by the first");
            }),
        ),
    );
    await eventually(() => finish !== undefined, "running");
    const other = newClient();
    const asked = await answered(() => other.once(key, "1", () => assert.fail("run twice"), { wait: 0 }));
    assert.equal(asked.kind, "held");
    const second = newClient().once(key, "1", () => assert.fail("run twice"), { wait: Infinity });
    finish?.();
    assert.equal((await running).kind, "ran");
    const result = await second;
    assert.equal(result.kind === "already-done" && result.lock.text, "by the first");
  });

  test("run that lost its lock is not completed", async () => {
    const key = freshKey();
    const late = newClient().once(
      key,
      "1",
      async (guard) => {
        await breakHeld(client, key);
        await aborted(guard.signal);
      },
      { heartbeatInterval: 200 },
    );
    await assert.rejects(late, LockLostError);
    assert.equal((await newClient().once(key, "1", () => undefined)).kind, "ran");
  });

  test("completion whose answer is lost is repeated", async () => {
    await using proxy = await FaultProxy.start(service.url);
    proxy.fault = firstTimes(1, "release", "lose answer");
    const key = freshKey();
    assert.equal((await newClient({ url: proxy.url }).once(key, "1", () => "r")).kind, "ran");
    assert.equal((await client.get(key))?.lastOccurrence, "1");
  });
});

describe("observers and elections", { concurrency: 4 }, () => {
  for (const pollInterval of [undefined, 50]) {
    test(`observer sees each state, ${pollInterval === undefined ? "by watching" : "by polls"}`, async () => {
      const key = freshKey();
      const leaving = new AbortController();
      const views = newClient({ pollInterval }).observe(key, { signal: leaving.signal });
      assert.equal(await next(views), undefined);
      const guard = guardOf(await service.client().tryAcquire(key, { heartbeatInterval: false }));
      assert.equal((await next(views))?.recordVersionNumber, guard.recordVersionNumber);
      await guard.renew();
      assert.equal((await next(views))?.recordVersionNumber, guard.recordVersionNumber);
      await guard.release();
      assert.equal((await next(views))?.state, "released");
      const change = next(views);
      // The row is read several times, and does not change.
      await sleep(1500);
      const second = guardOf(await service.client().tryAcquire(key, { heartbeatInterval: false }));
      assert.equal((await change)?.recordVersionNumber, second.recordVersionNumber);
      await second.release({ delete: true });
      assert.equal(await next(views), undefined);
      leaving.abort(new Error("left"));
      await assert.rejects(next(views), /left/);
    });
  }

  test("observer of a semaphore sees its permits", async () => {
    const key = freshKey();
    const semaphore = newClient().semaphore(key, 2);
    const guard = (await semaphore.tryAcquire()).granted();
    const views = newClient().observe(key);
    const first = await next(views);
    assert.ok(first && "holders" in first && first.holders.length === 1);
    await guard.release();
    const second = await next(views);
    assert.ok(second && "holders" in second && second.holders.length === 0);
    await views.return();
  });

  test("observer of a semaphore sees a grant", async () => {
    const key = freshKey();
    const semaphore = newClient().semaphore(key, 2);
    const options = { heartbeatInterval: false } as const;
    const one = (await semaphore.tryAcquire(options)).granted();
    const views = newClient({ pollInterval: 50 }).observe(key);
    const first = await next(views);
    assert.ok(first && "holders" in first && first.holders.length === 1);
    const two = (await semaphore.tryAcquire(options)).granted();
    const second = await next(views);
    assert.ok(second && "holders" in second && second.holders.length === 2);
    await views.return();
    await one.release();
    await two.release();
  });

  test("observer waits out a failure", async () => {
    await using proxy = await FaultProxy.start(service.url);
    proxy.fault = firstTimes(2, "lock", { status: 503, body: "{}" });
    const key = freshKey();
    const views = newClient({ url: proxy.url }).observe(key);
    assert.equal(await next(views), undefined);
    await views.return();
  });

  test("leadership is handed over when the leader resigns", async () => {
    const key = freshKey();
    const one = new Election(newClient({ ownerName: "one" }), key, "10.0.0.1");
    const two = new Election(newClient({ ownerName: "two" }), key, "10.0.0.2");
    const leaders = one.observe();
    assert.equal(await next(leaders), undefined);
    const first = guardOf(await one.campaign());
    assert.deepEqual(await next(leaders), {
      ownerName: "one",
      fencingToken: first.fencingToken,
      data: first.data,
      text: "10.0.0.1",
    });
    const campaign = two.campaign();
    assert.equal(heldOf(await answered(() => two.campaign({ wait: 0 }))).lock.ownerName, "one");
    await first.release();
    const second = guardOf(await campaign);
    for (let leader = await next(leaders); leader?.text !== "10.0.0.2"; leader = await next(leaders))
      assert.equal(leader, undefined);
    await second.release();
    await leaders.return();
  });

  test("leader that lost its lock campaigns again", async () => {
    const key = freshKey();
    const election = new Election(newClient(), key, "here");
    const terms: Guard[] = [];
    const led = election.lead(
      async (guard, signal) => {
        terms.push(guard);
        if (terms.length > 1) return "second term";
        await aborted(signal);
        throw new Error("cancelled");
      },
      { heartbeatInterval: 200 },
    );
    await eventually(() => terms.length === 1, "leading");
    await breakHeld(client, key);
    assert.equal(await led, "second term");
    assert.equal(terms[0]?.lost, "released");
    assert.ok(
      terms
        .map(({ fencingToken }) => fencingToken)
        .every((token, term, all) => term === 0 || token > (all[term - 1] ?? 0)),
    );
    await areReleased([key]);
  });

  test("leader that is told to stop ends its work, and resigns", async () => {
    const key = freshKey();
    const stopping = new AbortController();
    let [leading, ended] = [false, false];
    const led = new Election(newClient(), key, "here").lead(
      async (_guard, signal) => {
        leading = true;
        await aborted(signal);
        ended = true;
        throw new Error("cancelled");
      },
      { signal: stopping.signal },
    );
    await eventually(() => leading, "leading");
    assert.equal(await stateOf(key), "held");
    stopping.abort(new Error("stop"));
    await assert.rejects(led, /stop/);
    assert.ok(ended);
    assert.equal(await stateOf(key), "released");
    await assert.rejects(
      new Election(newClient(), key, "here").lead(() => {
        throw new Error("body");
      }),
      /body/,
    );
    assert.equal(await stateOf(key), "released");
  });
});
