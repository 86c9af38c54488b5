/** Idempotency: repeated events, failed and dead attempts, other payloads, and Powertools on top. */
import assert from "node:assert/strict";
import { after, test } from "node:test";
import {
  IdempotencyAlreadyInProgressError,
  IdempotencyConfig,
  IdempotencyValidationError,
  makeIdempotent,
} from "@aws-lambda-powertools/idempotency";
import { type Client, InvalidRequestError, LockHeldError, LockLostError, PayloadMismatchError } from "../dist/index.js";
import { idempotent, type LambdaContext } from "../dist/handlers.js";
import { LeaseholdPersistenceLayer } from "../dist/powertools.js";
import { breakHeld, FaultProxy, freshKey, guardOf, LocalService, sleep } from "./support.js";

process.env["AWS_LAMBDA_FUNCTION_NAME"] = "payments";
const service = await LocalService.start();
after(() => service[Symbol.asyncDispose]());
const client = service.client();

function contextOf(milliseconds = 30_000): LambdaContext {
  const ends = performance.now() + milliseconds;
  return { getRemainingTimeInMillis: () => Math.max(0, Math.round(ends - performance.now())) };
}

interface Payment {
  id: string;
  amount: number;
}

test("repeated event is answered with the result", async () => {
  let runs = 0;
  const work = async ({ amount }: Payment) => {
    runs += 1;
    return { charged: amount, text: "ä" };
  };
  const first = idempotent(work, { key: "{id}", client });
  const second = idempotent(work, { key: "{id}", client: service.client() });
  const event = { id: freshKey(), amount: 7 };
  for (const handler of [first, second, first])
    assert.deepEqual(await handler(event, contextOf()), { charged: 7, text: "ä" });
  assert.equal(runs, 1);
});

test("other payload under the key is refused", async () => {
  const id = freshKey();
  const handler = idempotent(
    async ({ amount }: Payment): Promise<void> => {
      assert.equal(amount, 7);
      await assert.rejects(handler({ id, amount: 8 }, contextOf()), PayloadMismatchError);
      await assert.rejects(handler({ id, amount: 7 }, contextOf()), LockHeldError);
    },
    { key: "{id}", client },
  );
  await handler({ id, amount: 7 }, contextOf());
  await assert.rejects(handler({ id, amount: 8 }, contextOf()), PayloadMismatchError);
  const part = idempotent(async ({ amount }: Payment) => amount, { key: "{id}-part", client, payload: ({ id }) => id });
  assert.equal(await part({ id, amount: 1 }, contextOf()), 1);
  assert.equal(await part({ id, amount: 2 }, contextOf()), 1);
});

test("failed attempt runs again", async () => {
  let runs = 0;
  const handler = idempotent(
    async () => {
      runs += 1;
      if (runs === 1) throw new RangeError("as it was told");
      return "done";
    },
    { key: freshKey(), client },
  );
  await assert.rejects(handler({}, contextOf()), RangeError);
  assert.equal(await handler({}, contextOf()), "done");
  assert.equal(await handler({}, contextOf()), "done");
  assert.equal(runs, 2);
});

const pending = '{"payload":"","until":0,"result":null}';

test("dead attempt frees itself for a fresh sandbox", async () => {
  const key = freshKey();
  const options = { occurrence: "0000000001", lease: 500, heartbeatInterval: false as const, data: pending };
  const dead = guardOf(await service.client().acquire(key, options));
  const handler = idempotent(async (_: object, { leasehold }) => leasehold.fencingToken, {
    key,
    client,
    onContention: "wait",
  });
  assert.ok((await handler({}, contextOf())) > dead.fencingToken);
});

test("second event waits for the result", async () => {
  const key = freshKey();
  let runs = 0;
  const work = async () => {
    runs += 1;
    await sleep(300);
    return "once";
  };
  const options = { key, onContention: "wait" as const };
  const handlers = [client, service.client()].map((one) => idempotent(work, { ...options, client: one }));
  assert.deepEqual(await Promise.all(handlers.map((handler) => handler({}, contextOf()))), ["once", "once"]);
  assert.equal(runs, 1);
});

test("result counts for its time", async (t) => {
  t.mock.timers.enable({ apis: ["Date"], now: Date.now() });
  let runs = 0;
  const handler = idempotent(async () => ++runs, { key: freshKey(), client, completedTtl: "24h" });
  let at = 0;
  for (const [hours, expected] of [
    [0, 1],
    [23, 1],
    [25, 2],
    [48, 2],
    [50, 3],
  ] as const) {
    t.mock.timers.tick((hours - at) * 3_600_000);
    at = hours;
    assert.equal(await handler({}, contextOf()), expected);
  }
});

test("result that JSON would change is an error", async () => {
  const key = freshKey();
  for (const result of [Number.NaN, new Map()]) {
    const handler = idempotent(async () => result, { key, client });
    await assert.rejects(handler({}, contextOf()), { name: "InvalidRequestError", field: "result" });
    await assert.rejects(handler(result as object, contextOf()), { name: "InvalidRequestError", field: "payload" });
  }
  assert.equal((await client.get(key))?.state, "released");
});

test("result that is too large is an error", async () => {
  const key = freshKey();
  const handler = idempotent(async ({ size }: { size: number }) => "x".repeat(size), { key, client, payload: () => 1 });
  await assert.rejects(handler({ size: 256 * 1024 }, contextOf()), InvalidRequestError);
  assert.equal((await client.get(key))?.state, "released");
  assert.equal((await handler({ size: 250 * 1024 }, contextOf())).length, 250 * 1024);
  assert.equal((await handler({ size: 1 }, contextOf())).length, 250 * 1024);
});

test("lost attempt is no success", async () => {
  const key = freshKey();
  const handler = idempotent(async () => breakHeld(client, key), { key, client });
  await assert.rejects(handler({}, contextOf()), LockLostError);
  assert.equal((await client.get(key))?.lastOccurrence, undefined);
});

/** A handler under Powertools, as another sandbox would have it. */
function wrapped<Result>(
  work: (event: Payment) => Promise<Result>,
  by: Client | LeaseholdPersistenceLayer,
  options = {},
) {
  const config = new IdempotencyConfig({ eventKeyJmesPath: "id", ...options });
  const persistenceStore = by instanceof LeaseholdPersistenceLayer ? by : new LeaseholdPersistenceLayer(by);
  const handler = makeIdempotent(work as never, { persistenceStore, config });
  return handler as unknown as (event: Payment, context: LambdaContext) => Promise<Result>;
}

test("powertools answers a repeated event", async () => {
  let runs = 0;
  const work = async ({ amount }: Payment) => {
    runs += 1;
    return { amount };
  };
  const event = { id: freshKey(), amount: 7 };
  const [first, second] = [wrapped(work, client), wrapped(work, service.client())];
  assert.deepEqual(await first(event, contextOf()), { amount: 7 });
  assert.deepEqual(await second(event, contextOf()), { amount: 7 });
  assert.equal(runs, 1);
});

test("powertools sees attempts in progress and failed ones", async () => {
  const event = { id: freshKey(), amount: 7 };
  let runs = 0;
  const other = wrapped(async () => "never", service.client());
  const handler = wrapped(async () => {
    runs += 1;
    await assert.rejects(other(event, contextOf()), IdempotencyAlreadyInProgressError);
    if (runs === 1) throw new RangeError("as it was told");
    return "done";
  }, client);
  await assert.rejects(handler(event, contextOf()), RangeError);
  assert.equal(await handler(event, contextOf()), "done");
  assert.equal(runs, 2);
});

test("powertools validates the payload and expires a result", async (t) => {
  const id = freshKey();
  let runs = 0;
  const options = { payloadValidationJmesPath: "amount", expiresAfterSeconds: 60 };
  const handler = wrapped(async () => ++runs, client, options);
  assert.equal(await handler({ id, amount: 7 }, contextOf()), 1);
  await assert.rejects(handler({ id, amount: 8 }, contextOf()), IdempotencyValidationError);
  t.mock.timers.enable({ apis: ["Date"], now: Date.now() });
  t.mock.timers.tick(61_000);
  assert.equal(await handler({ id, amount: 8 }, contextOf()), 2);
});

test("record may leave the table when it counts no more", async () => {
  await using proxy = await FaultProxy.start(service.url);
  await using observed = service.client({ url: proxy.url });
  for (const completedTtl of ["24h", 0, "5000d"])
    await idempotent(async () => "done", { key: freshKey(), client: observed, completedTtl })({}, contextOf());
  const [day, none, forever] = proxy.calls("release").map(({ body }) => body["completedTtlMs"] as number | undefined);
  assert.ok(day !== undefined && day > 86_000_000 && day <= 86_400_000, `${day}`);
  assert.equal(none, 1);
  assert.equal(forever, undefined);
});

test("completed record that is deleted runs again", async () => {
  const event = { id: freshKey(), amount: 7 };
  let runs = 0;
  const layer = new LeaseholdPersistenceLayer(client);
  const handler = wrapped(async () => ++runs, layer);
  for (const run of [1, 1]) assert.equal(await handler(event, contextOf()), run);
  await layer.deleteRecord(event);
  for (const run of [2, 2]) assert.equal(await handler(event, contextOf()), run);
});

test("attempt elsewhere ends by itself alone", async () => {
  const event = { id: freshKey(), amount: 7 };
  const layer = new LeaseholdPersistenceLayer(service.client());
  const second = wrapped(async () => "second", layer);
  const first = wrapped(async () => {
    for (let time = 0; time < 2; time++) {
      await assert.rejects(second(event, contextOf()), IdempotencyAlreadyInProgressError);
      await layer.deleteRecord(event);
    }
    await assert.rejects(layer.saveSuccess(event, "not its own"), /Another attempt/);
    return "first";
  }, client);
  assert.equal(await first(event, contextOf()), "first");
  await assert.rejects(layer.saveSuccess(event, "too late"), /Another attempt/);
  assert.equal(await second(event, contextOf()), "first");
});

test("result of an attempt begun elsewhere is stored", async () => {
  const event = { id: freshKey(), amount: 7 };
  const layer = new LeaseholdPersistenceLayer(client);
  const handler = wrapped(async () => "run", layer);
  await handler({ ...event, id: freshKey() }, contextOf());
  await layer.saveSuccess(event, "from a replay");
  assert.equal(await handler(event, contextOf()), "from a replay");
});
