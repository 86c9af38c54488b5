/** The transport that invokes functions, with the real functions in a Lambda environment on loopback. */
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { LambdaClient } from "@aws-sdk/client-lambda";
import {
  Client,
  ExceedsCapacityError,
  ForbiddenError,
  InvalidRequestError,
  LockLostError,
  LockNotFoundError,
  ThrottledError,
  UnavailableError,
  WrongKindError,
} from "../dist/index.js";
import { lambda } from "../dist/lambda.js";
import { LambdaEnvironment } from "./functions.js";
import { eventually, freshKey, guardOf, heldOf, LocalService } from "./support.js";

const service = await LocalService.start("--expose-dynamodb", "0");
await service.child.line();
const dynamodb = /http:\S+/.exec(await service.child.line())?.[0] ?? "";
const environment = await LambdaEnvironment.start(dynamodb, ["leasehold-invoke", "leasehold-transact"]);
after(async () => {
  await environment[Symbol.asyncDispose]();
  await service[Symbol.asyncDispose]();
});

const sdk = new LambdaClient({
  endpoint: environment.url,
  region: "eu-central-1",
  maxAttempts: 1,
  credentials: { accessKeyId: "any", secretAccessKey: "any" },
});
const functions = { transactFunction: "leasehold-transact", client: sdk };
const client = (): Client =>
  new Client({ transport: lambda("leasehold-invoke", functions), ownerName: "direct", pollInterval: 50 });

test("locks are acquired, kept and released by direct invocation", async () => {
  const key = freshKey();
  const guard = guardOf(await client().acquire(key, { data: "by invocation" }));
  await guard.renew();
  const seen = await service.client().get(key);
  assert.equal(seen?.ownerName, "direct");
  assert.equal(seen.text, "by invocation");
  assert.equal(seen.recordVersionNumber, guard.recordVersionNumber);
  assert.equal(heldOf(await client().tryAcquire(key)).lock.ownerName, "direct");
  assert.equal(await guard.release(), "released");
  assert.equal((await client().get(key))?.state, "released");
  assert.equal(await client().get(freshKey()), undefined);
});

test("direct invocation has the same errors as the HTTP API", async () => {
  const key = freshKey();
  const guard = guardOf(await client().tryAcquire(key));
  await client().breakLock(key, guard.recordVersionNumber);
  await assert.rejects(
    guard.renew(),
    (error) => error instanceof LockLostError && error.reason === "released" && error.key === key,
  );
  await assert.rejects(client().tryAcquire(freshKey(), { onlyIfExists: true }), LockNotFoundError);
  await assert.rejects(
    client().tryAcquire(""),
    (error) => error instanceof InvalidRequestError && error.field === "key",
  );
  await assert.rejects(
    client().list().next(),
    (error) => error instanceof InvalidRequestError && error.message.includes("url"),
  );
});

test("dead holder is taken over by direct invocation", async () => {
  const key = freshKey();
  guardOf(await client().acquire(key, { lease: 3000, heartbeatInterval: false }));
  const guard = guardOf(await client().acquire(key, { lease: 5000, wait: 30_000 }));
  assert.equal(guard.outcome, "takenOver");
  await guard.release();
});

test("lost answer of an invocation is found by the repeat", async () => {
  const key = freshKey();
  environment.fault = (call) => {
    environment.fault = () => "pass";
    return call === "acquire" ? "lose answer" : "pass";
  };
  const guard = guardOf(await client().acquire(key, { wait: 8000 }));
  assert.equal(guard.outcome, "created");
  assert.equal(
    new Set(environment.payloads.filter((payload) => payload.includes(key) && payload.includes('"acquire"'))).size,
    1,
    "byte for byte",
  );
  await guard.release();
});

test("failures of Lambda itself are told apart", async () => {
  for (const [status, type, kind] of [
    [429, "TooManyRequestsException", ThrottledError],
    [403, "AccessDeniedException", ForbiddenError],
    [404, "ResourceNotFoundException", InvalidRequestError],
    [500, "ServiceException", UnavailableError],
  ] as const) {
    environment.fault = () => ({ status, type });
    await assert.rejects(
      client().tryAcquire(freshKey()),
      (error) => error instanceof kind && error.message.includes("told by the test"),
      type,
    );
  }
  environment.fault = () => "crash";
  await assert.rejects(
    client().tryAcquire(freshKey()),
    (error) => error instanceof UnavailableError && error.message.includes("Task timed out"),
  );
  environment.fault = () => "pass";
  const nobody = new LambdaClient({
    endpoint: "http://127.0.0.1:1",
    region: "eu-central-1",
    maxAttempts: 1,
    credentials: { accessKeyId: "a", secretAccessKey: "b" },
  });
  const unreachable = new Client({ transport: lambda("leasehold-invoke", { client: nobody }) });
  await assert.rejects(
    unreachable.tryAcquire("a"),
    (error) => error instanceof UnavailableError && error.message.includes("leasehold-invoke"),
  );
});

test("permits are waited for by direct invocation", async () => {
  const key = freshKey();
  // Without a poll interval: there is no direct invocation of a watch, and the client polls.
  const semaphore = new Client({ transport: lambda("leasehold-invoke", functions), ownerName: "direct" }).semaphore(
    key,
    2,
  );
  const guard = (await semaphore.acquire({ permits: 2 })).granted();
  const waiting = client().semaphore(key, 2).acquire({ wait: Infinity });
  const alsoWaiting = semaphore.acquire({ wait: Infinity });
  await eventually(async () => (await client().getSemaphore(key))?.queue.length === 2, "two in the queue");
  await guard.keep(1);
  await guard.release();
  for (const waiter of [waiting, alsoWaiting]) await (await waiter).granted().release();
  await assert.rejects(client().semaphore(key, 2).tryAcquire({ permits: 3 }), ExceedsCapacityError);
  await assert.rejects(client().tryAcquire(key), WrongKindError);
});

test("several locks are acquired by one direct invocation", async () => {
  const keys = [freshKey(), freshKey()];
  const fencingToken = await client().withAll(keys, async (both) => {
    assert.equal(heldOf(await client().tryAcquire(keys[1] ?? "")).lock.fencingToken, both.fencingToken);
    return both.fencingToken;
  });
  assert.equal((await client().get(keys[0] ?? ""))?.fencingToken, fencingToken);
});

test("transactions need the name of their function", async () => {
  const status = client().transactionStatus("no-such-transaction");
  await assert.rejects(
    status,
    (error: { kind?: string }) => error.kind === "transaction-not-found" || error.kind === "invalid-request",
  );
  const without = new Client({ transport: lambda("leasehold-invoke", { client: sdk }) });
  await assert.rejects(
    without.transactionStatus("a"),
    (error) => error instanceof InvalidRequestError && error.field === "transactFunction",
  );
});

test("trace context travels in the client context", async () => {
  const telemetry = {
    trace: <T>(_operation: string, _key: string | undefined, work: (headers: Record<string, string>) => Promise<T>) =>
      work({ traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", baggage: "x".repeat(4000) }),
    record: () => undefined,
  };
  const traced = new Client({ transport: lambda("leasehold-invoke", { client: sdk }), telemetry });
  const key = freshKey();
  await (await traced.tryAcquire(key)).granted().release();
  await eventually(() => environment.contexts.length > 0, "a client context");
  assert.deepEqual(environment.contexts[0], {
    custom: { traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" },
  });
});

test("transport excludes url, token and fetch", () => {
  const transport = lambda("leasehold-invoke", { client: sdk });
  assert.throws(
    () => new Client({ transport, url: service.url }),
    (error) => error instanceof InvalidRequestError && error.field === "url",
  );
  assert.throws(
    () => new Client({}),
    (error) => error instanceof InvalidRequestError && error.field === "url",
  );
});
