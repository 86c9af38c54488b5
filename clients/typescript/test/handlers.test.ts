/** A lock around a handler: keys, contention, the deadline, and every way out. */
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { InvalidRequestError, LockHeldError, LockLostError, UnavailableError } from "../dist/index.js";
import { idempotent, type LambdaContext, type SqsRecord, withLock } from "../dist/handlers.js";
import { aborted, breakHeld, eventually, FaultProxy, freshKey, guardOf, LocalService, sleep } from "./support.js";

const service = await LocalService.start();
after(() => service[Symbol.asyncDispose]());
const client = service.client();

/** The context of an invocation that ends after so many milliseconds. */
function contextOf(milliseconds = 30_000): LambdaContext {
  const ends = performance.now() + milliseconds;
  return { getRemainingTimeInMillis: () => Math.max(0, Math.round(ends - performance.now())) };
}

const isFree = async (key: string): Promise<boolean> => (await client.get(key))?.state === "released";
const reasonOf = (reason: string) => (error: unknown) => error instanceof LockLostError && error.reason === reason;

test("key is read from the event", async () => {
  const event = { detail: { id: 7 }, "detail-type": "paid", Records: [{ body: "a" }, { body: "b" }] };
  const prefix = freshKey();
  for (const [key, expected] of [
    ["orders/{detail.id}", "orders/7"],
    ["{Records[1].body}-{detail-type}", "b-paid"],
    ["fixed", "fixed"],
  ] as const) {
    const handler = withLock(async (_: typeof event, context) => context.leasehold.key, { key: prefix + key, client });
    assert.equal(await handler(event, contextOf()), prefix + expected);
  }
  const byFunction = withLock(async (_: typeof event, context) => context.leasehold.key, {
    key: ({ detail }) => `${prefix}${detail.id}`,
    client,
  });
  assert.equal(await byFunction(event, contextOf()), `${prefix}7`);
});

test("missing path is named before anything is asked", async () => {
  await using proxy = await FaultProxy.start(service.url);
  await using other = service.client({ url: proxy.url });
  for (const path of ["detail.id", "Records[3].body", "a.b", "flag", "a", "toString"]) {
    const handler = withLock(async () => assert.fail("it ran"), { key: `{${path}}`, client: other });
    await assert.rejects(
      handler({ Records: [], a: [], flag: true }, contextOf()),
      (error) => error instanceof InvalidRequestError && error.message.includes(path),
    );
  }
  assert.equal(proxy.seen.length, 0);
  for (const key of ["{}", "a{b", "a}b", "{a..b}", "{a[x]}", "{[0]}", ""])
    assert.throws(() => withLock(async () => 1, { key, client }), InvalidRequestError);
  for (const lease of ["x", "5", "-1s", -1, NaN])
    assert.throws(() => withLock(async () => 1, { key: "k", client, lease }), InvalidRequestError);
});

test("error of the handler releases", async () => {
  const key = freshKey();
  const failure = new Error("as it was told");
  const handler = withLock(
    async () => {
      throw failure;
    },
    { key, client },
  );
  await assert.rejects(handler({}, contextOf()), (error) => error === failure);
  assert.ok(await isFree(key));
});

test("heartbeats never outlast the margin", async () => {
  const key = freshKey();
  const leases = new Map<string, number>();
  const handler = withLock(
    async (_: object, context) => {
      let before = context.getRemainingTimeInMillis();
      while (context.leasehold.lost === undefined) {
        const seen = await client.get(key);
        assert.ok(seen);
        if (!leases.has(seen.recordVersionNumber)) {
          // It was carried out after the look before, so less than `before` was left. It may have waited on its way.
          leases.set(seen.recordVersionNumber, seen.leaseDurationMs);
          assert.ok(seen.leaseDurationMs <= Math.min(6000, before + 1500) + 1250);
        }
        before = context.getRemainingTimeInMillis();
        await sleep(20);
      }
    },
    { key, client, lease: "6s", margin: 1500, onContention: "wait" },
  );
  await handler({}, contextOf(12_000));
  assert.equal(Math.max(...leases.values()), 6000);
  assert.ok(Math.min(...leases.values()) < 6000);
});

test("work that goes on is told and the lock released", async () => {
  const key = freshKey();
  const handler = withLock(
    async (_: object, context) => {
      await aborted(context.leasehold.signal);
      assert.equal(context.leasehold.lost, "deadline");
      assert.equal(context.leasehold.remaining(), 0);
      await assert.rejects(context.leasehold.ensureHeld(), reasonOf("deadline"));
      return new Promise(() => undefined);
    },
    { key, client, margin: "8s" },
  );
  const context = contextOf(9000);
  await assert.rejects(handler({}, context), reasonOf("deadline"));
  assert.ok(await isFree(key));
  assert.ok(context.getRemainingTimeInMillis() > 0, "half a margin is left for the release");
});

test("handler ends after the release that the deadline began", async () => {
  const key = freshKey();
  await using proxy = await FaultProxy.start(service.url);
  await using other = service.client({ url: proxy.url });
  const handler = withLock(
    async () => {
      while (proxy.calls("release").length === 0) await sleep(5);
      throw new Error("as it was told");
    },
    { key, client: other, margin: "8s" },
  );
  proxy.fault = ({ call }) => (call === "release" ? { delayRequest: 500 } : "pass");
  await assert.rejects(handler({}, contextOf(9000)), /as it was told/);
  assert.ok(await isFree(key));
});

test("result that comes during the release of the deadline is late", async () => {
  const key = freshKey();
  await using proxy = await FaultProxy.start(service.url);
  await using other = service.client({ url: proxy.url });
  const handler = withLock(
    async () => {
      while (proxy.calls("release").length === 0) await sleep(5);
      return "late";
    },
    { key, client: other, margin: "8s" },
  );
  proxy.fault = ({ call }) => (call === "release" ? { delayRequest: 500 } : "pass");
  await assert.rejects(handler({}, contextOf(9000)), reasonOf("deadline"));
  assert.ok(await isFree(key));
});

test("heartbeats end when the work is told to stop", async () => {
  await using proxy = await FaultProxy.start(service.url);
  await using other = service.client({ url: proxy.url });
  let after = 0;
  const handler = withLock(
    async (_: object, { leasehold }) => {
      await aborted(leasehold.signal);
      after = proxy.calls("heartbeat").length;
      // Three heartbeats would be due.
      await sleep(7000);
    },
    { key: freshKey(), client: other, lease: "10s", margin: "20s" },
  );
  await handler({}, contextOf(21_000));
  // A machine that stands still has one sent afterwards.
  assert.ok(proxy.calls("heartbeat").length - after <= 2, `${proxy.calls("heartbeat").length} after ${after}`);
});

test("release that nobody answers does not outlast the invocation", async () => {
  await using proxy = await FaultProxy.start(service.url);
  await using other = service.client({ url: proxy.url });
  proxy.fault = ({ call }) => (call === "release" ? { delayRequest: 60_000 } : "pass");
  const options = { key: freshKey(), client: other, margin: "6s" };
  const plain = contextOf(7000);
  assert.equal(await withLock(async () => "done", options)({}, plain), "done");
  assert.ok(plain.getRemainingTimeInMillis() > 0);
  const once = contextOf(7000);
  const handler = idempotent(async () => "done", { ...options, key: freshKey() });
  await assert.rejects(handler({}, once), (error: Error) => !(error instanceof InvalidRequestError));
  assert.ok(once.getRemainingTimeInMillis() > 0);
});

test("release is sent even in the last moment", async (t) => {
  const key = freshKey();
  const warn = t.mock.method(console, "warn");
  const handler = withLock(
    async (_: object, context) => {
      // No timer fires, as in a sandbox that is paused.
      const pause = context.getRemainingTimeInMillis() - 400;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, pause);
      throw new Error("as it was told");
    },
    { key, client, margin: "6s" },
  );
  await assert.rejects(handler({}, contextOf(6500)), /as it was told/);
  assert.ok(await isFree(key));
  assert.equal(warn.mock.callCount(), 0, "its answer was waited for");
});

test("work that stops when told returns its result", async () => {
  const key = freshKey();
  const handler = withLock(
    async (_: object, { leasehold }) => {
      await aborted(leasehold.signal);
      return "checkpoint";
    },
    { key, client, margin: "10s" },
  );
  assert.equal(await handler({}, contextOf(11_000)), "checkpoint");
  assert.ok(await isFree(key));
});

test("nothing is asked without time for work", async () => {
  const handler = withLock(async () => assert.fail("it ran"), { key: freshKey(), client });
  await assert.rejects(handler({}, contextOf(900)), InvalidRequestError);
});

test("contention is answered as chosen", async () => {
  const key = freshKey();
  const holder = guardOf(await service.client().tryAcquire(key));
  for (const onContention of ["raise", "skip", "wait"] as const) {
    const options = { key, client, onContention, skipped: "busy", workNeeds: "25s" };
    const handler = withLock(async () => "ran", options);
    const context = contextOf();
    if (onContention === "skip") assert.equal(await handler({}, context), "busy");
    else await assert.rejects(handler({}, context), LockHeldError);
    // A wait takes its time, and leaves what the work needs.
    assert.equal(context.getRemainingTimeInMillis() <= 26_100, onContention === "wait");
    assert.ok(context.getRemainingTimeInMillis() > 10_000);
  }
  setTimeout(() => void holder.release(), 300);
  assert.equal(await withLock(async () => "ran", { key, client, onContention: "wait" })({}, contextOf()), "ran");
});

// The lease was asked for before the wait, when more of the invocation remained.
test("lease is cut after a long wait", async () => {
  const key = freshKey();
  const holder = guardOf(await service.client().tryAcquire(key));
  setTimeout(() => void holder.release(), 4000);
  const handler = withLock(
    async () => {
      // The lease of the wait's beginning, of 20.5 s, would be renewed after 5 s.
      const until = performance.now() + 3000;
      while (((await client.get(key))?.leaseDurationMs ?? 0) >= 17_000) {
        assert.ok(performance.now() < until, "not cut in time");
        await sleep(20);
      }
    },
    { key, client, onContention: "wait", lease: "1h", margin: 500 },
  );
  await handler({}, contextOf(20_000));
});

test("loss aborts the signal", async () => {
  const key = freshKey();
  const handler = withLock(
    async (_: object, { leasehold }) => {
      await breakHeld(client, key);
      await aborted(leasehold.signal);
      assert.equal(leasehold.valid, false);
      assert.notEqual((leasehold.signal.reason as LockLostError).reason, "deadline");
      await assert.rejects(leasehold.ensureHeld(), LockLostError);
    },
    { key, client, lease: 3000, onContention: "wait" },
  );
  await assert.rejects(handler({}, contextOf()), LockLostError);
});

test("nothing is believed after a freeze until a heartbeat", async () => {
  const key = freshKey();
  await using proxy = await FaultProxy.start(service.url);
  await using other = service.client({ url: proxy.url });
  const handler = withLock(
    async (_: object, { leasehold }) => {
      // No timer fires, as in a frozen sandbox.
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1200);
      assert.equal(leasehold.valid, false);
      assert.equal(leasehold.remaining(), 0);
      assert.equal(proxy.calls("heartbeat").length, 0);
      await leasehold.ensureHeld();
      assert.ok(proxy.calls("heartbeat").length > 0);
      assert.ok(leasehold.valid);
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1200);
      assert.equal(leasehold.valid, false);
      await eventually(() => leasehold.valid, "a heartbeat after a thaw, though nobody asks");
    },
    { key, client: other, lease: "1h" },
  );
  await handler({}, contextOf(900_000));
});

test("heartbeat from before a freeze proves nothing", async () => {
  const key = freshKey();
  await using proxy = await FaultProxy.start(service.url);
  await using other = service.client({ url: proxy.url });
  const handler = withLock(
    async (_: object, { leasehold }) => {
      proxy.fault = () => ({ delayAnswer: 300 });
      const beat = leasehold.renew();
      while (proxy.calls("heartbeat").length === 0) await sleep(5);
      // The process is frozen between the request and its answer.
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1200);
      // No timer fires before the answer is read.
      proxy.fault = () => ({ delayAnswer: 300 });
      await beat;
      assert.equal(leasehold.valid, false);
      proxy.fault = () => "pass";
      await leasehold.ensureHeld();
      assert.ok(proxy.calls("heartbeat").length > 1);
      assert.ok(leasehold.valid);
    },
    { key, client: other },
  );
  await handler({}, contextOf());
});

test("request without an answer leaves nothing behind", async () => {
  await using proxy = await FaultProxy.start(service.url);
  await using other = service.client({ url: proxy.url });
  proxy.fault = ({ call }) => {
    if (call === "release") return { delayRequest: 500 };
    return call === "acquire" ? "lose answer" : "pass";
  };
  for (const onContention of ["raise", "wait"] as const) {
    const key = freshKey();
    const options = { key, client: other, onContention, workNeeds: "26s" };
    const handler = withLock(async () => assert.fail("it ran"), options);
    await assert.rejects(handler({}, contextOf()), UnavailableError);
    // The sandbox is frozen behind the error.
    assert.ok(await isFree(key));
  }
});

test("unknown contention mode is refused", () => {
  const options = { key: "a", client, onContention: "never" as "skip" };
  assert.throws(() => withLock(async () => assert.fail("it ran"), options), InvalidRequestError);
});

test("lock is asked for as the options say", async () => {
  await using proxy = await FaultProxy.start(service.url);
  await using other = service.client({ url: proxy.url, lease: "7s" });
  const asked = async (options: object, milliseconds = 30_000) => {
    const handler = withLock(async () => undefined, { key: freshKey(), client: other, ...options });
    await handler({}, { getRemainingTimeInMillis: () => milliseconds }).catch(() => undefined);
    return proxy.calls("acquire").at(-1)?.body ?? {};
  };
  assert.equal((await asked({}))["leaseDurationMs"], 7000);
  const { ownerName, staleness } = await asked({ ownerName: "job", staleness: "clock" });
  assert.deepEqual([ownerName, staleness], ["job", "clock"]);
  await eventually(async () => (await asked({ margin: 20 }, 60))["leaseDurationMs"] === 100, "the shortest lease");
});

test("release without an answer does not outlast the invocation", async () => {
  await using proxy = await FaultProxy.start(service.url);
  await using other = service.client({ url: proxy.url });
  proxy.fault = ({ call }) => (call === "release" ? { delayRequest: 60_000 } : "lose answer");
  const options = { key: freshKey(), client: other, onContention: "wait", workNeeds: "1s", margin: "6s" } as const;
  const handler = withLock(async () => assert.fail("it ran"), options);
  const context = contextOf(8000);
  await assert.rejects(handler({}, context));
  assert.ok(context.getRemainingTimeInMillis() > 0);
});

function recordOf(number: number, body: string, MessageGroupId?: string): SqsRecord {
  return {
    messageId: `m${number}`,
    receiptHandle: `r${number}`,
    body,
    attributes: { MessageGroupId },
    eventSourceARN: "arn:aws:sqs:eu-central-1:123456789012:orders",
  };
}

test("held record comes again and others go on", async () => {
  const key = freshKey();
  const ran: string[] = [];
  const hidden: { QueueUrl: string; VisibilityTimeout: number }[] = [];
  const sqs = {
    changeMessageVisibility: (input: { QueueUrl: string; VisibilityTimeout: number }) =>
      Promise.resolve(void hidden.push(input)),
  };
  const handler = withLock(
    (record: SqsRecord) => {
      ran.push(record.messageId);
      if (record.messageId === "m3") throw new Error("this one fails");
    },
    { key: "{body}", client, onContention: "sqs-retry", sqs },
  );
  const holder = guardOf(await service.client().tryAcquire(key, { lease: 9_500 }));
  const failures = (...messages: string[]) => ({
    batchItemFailures: messages.map((itemIdentifier) => ({ itemIdentifier })),
  });
  const mixed = [recordOf(1, `${key}-a`), recordOf(2, key), recordOf(3, `${key}-c`), recordOf(4, `${key}-d`)];
  assert.deepEqual(await handler({ Records: mixed }, contextOf()), failures("m2", "m3"));
  assert.deepEqual(ran, ["m1", "m3", "m4"]);
  assert.deepEqual(hidden, [
    {
      QueueUrl: "https://sqs.eu-central-1.amazonaws.com/123456789012/orders",
      ReceiptHandle: "r2",
      VisibilityTimeout: 10,
    },
  ]);
  const long = freshKey();
  guardOf(await service.client().tryAcquire(long, { lease: "24h", heartbeatInterval: false }));
  assert.deepEqual(await handler({ Records: [recordOf(9, long)] }, contextOf()), failures("m9"));
  assert.equal(hidden.at(-1)?.VisibilityTimeout, 12 * 3600);
  const fifo = [recordOf(5, key, "g"), recordOf(6, `${key}-b`, "g"), recordOf(7, `${key}-c`, "h")];
  assert.deepEqual(await handler({ Records: fifo }, contextOf()), failures("m5", "m6"));
  assert.equal(ran.at(-1), "m7");
  assert.deepEqual(await handler({ Records: [recordOf(8, `${key}-e`)] }, contextOf(900)), failures("m8"));
  const cut = contextOf(15_000);
  const options = { key: "{body}", client, onContention: "sqs-retry", sqs, workNeeds: "20s" } as const;
  const needy = withLock(() => assert.fail("there is no time for it"), options);
  assert.deepEqual(await needy({ Records: [recordOf(10, `${key}-f`)] }, cut), failures("m10"));
  assert.equal(await client.get(`${key}-f`), undefined, "nothing was asked for");
  const chinese = { ...recordOf(11, key), eventSourceARN: "arn:aws-cn:sqs:cn-north-1:123456789012:orders" };
  assert.deepEqual(await handler({ Records: [chinese] }, contextOf()), failures("m11"));
  assert.equal(hidden.at(-1)?.QueueUrl, "https://sqs.cn-north-1.amazonaws.com.cn/123456789012/orders");
  await holder.release();
});
