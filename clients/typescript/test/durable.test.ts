/** Locks in durable functions, in the test runner of their SDK, against a real service. */
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import type { DurableContext } from "@aws/durable-execution-sdk-js";
import type { LocalDurableTestRunner } from "@aws/durable-execution-sdk-js-testing";
import { DurableLock, lockStep, type LockStepOptions, type PutItem } from "../dist/durable.js";
import { eventually, FaultProxy, freshKey, guardOf, LocalService } from "./support.js";

const [major = 0] = process.versions.node.split(".").map(Number);
const skip = major >= 22 ? false : `the SDK of durable functions needs Node 22, and this is ${process.version}`;

type Work = (context: DurableContext) => Promise<unknown>;
type Row = Parameters<PutItem["putItem"]>[0]["Item"];

describe("locks in durable functions", { skip }, () => {
  let service: LocalService;
  let sdk: typeof import("@aws/durable-execution-sdk-js");
  let testing: typeof import("@aws/durable-execution-sdk-js-testing");
  before(async () => {
    [sdk, testing] = await Promise.all([
      import("@aws/durable-execution-sdk-js"),
      import("@aws/durable-execution-sdk-js-testing"),
    ]);
    service = await LocalService.start();
    await testing.LocalDurableTestRunner.setupTestEnvironment({ skipTime: false });
  });
  after(async () => {
    await testing.LocalDurableTestRunner.teardownTestEnvironment();
    await service[Symbol.asyncDispose]();
  });

  const stateOf = async (key: string): Promise<string | undefined> => (await service.client().get(key))?.state;
  const optionsOf = (more: Partial<LockStepOptions> = {}): LockStepOptions => ({
    client: service.client(),
    lease: "5m",
    ...more,
  });
  const runnerOf = (work: Work): LocalDurableTestRunner =>
    new testing.LocalDurableTestRunner({
      handlerFunction: sdk.withDurableExecution(async (_: unknown, context) => work(context)),
    });

  test("replay acquires nothing again", async () => {
    const key = freshKey();
    await using proxy = await FaultProxy.start(service.url);
    const client = service.client({ url: proxy.url });
    const seen: [number, string | undefined][] = [];
    const execution = await runnerOf(async (context) => {
      await using lock = await lockStep(context, key, optionsOf({ client }));
      // Before the sleep and after it: the function runs from its start again.
      seen.push([lock.fencingToken, await stateOf(key)]);
      await context.wait({ seconds: 1 });
      return lock.fencingToken;
    }).run();
    assert.equal(execution.getStatus(), "SUCCEEDED");
    assert.ok(seen.length >= 2);
    assert.deepEqual(new Set(seen.map(([token]) => token)).size, 1);
    assert.ok(seen.every(([, state]) => state === "held"));
    assert.equal(proxy.calls("acquire").length, 1);
    // A fresh sandbox has observed nothing.
    assert.equal(proxy.calls("acquire")[0]?.body["staleness"], "clock");
    assert.equal(proxy.calls("release").length, 1);
    assert.equal(await stateOf(key), "released");
  });

  test("function sleeps while another holds the lock", async () => {
    const key = freshKey();
    const other = guardOf(await service.client().acquire(key, { lease: "1s", heartbeatInterval: false }));
    let invocations = 0;
    const execution = await runnerOf(async (context) => {
      invocations += 1;
      await using lock = await lockStep(context, key, optionsOf());
      return lock.fencingToken;
    }).run();
    assert.equal(execution.getStatus(), "SUCCEEDED");
    assert.ok(invocations > 1, "it ended, and was invoked again");
    assert.ok(Number(execution.getResult()) > other.fencingToken);
    assert.equal(await stateOf(key), "released");
  });

  test("waker ends the sleep", async () => {
    const key = freshKey();
    const other = guardOf(await service.client().tryAcquire(key, { lease: "1h", heartbeatInterval: false }));
    const rows: Row[] = [];
    const dynamodb = {
      putItem: async ({ TableName, Item }: { TableName: string; Item: Row }) => {
        assert.equal(TableName, "waiters");
        rows.push(Item);
      },
    };
    let invocations = 0;
    const runner = runnerOf(async (context) => {
      invocations += 1;
      await using lock = await lockStep(
        context,
        key,
        optionsOf({ wait: "4m", waiters: { table: "waiters", dynamodb } }),
      );
      return lock.fencingToken;
    });
    const running = runner.run();
    const sleep = runner.getOperation(`lock ${key} sleep`);
    await sleep.waitForData(testing.WaitingOperationStatus.STARTED);
    await eventually(() => rows.length === 1, "a row for the waker");
    const [row] = rows;
    assert.deepEqual(row?.["lock"], { S: JSON.stringify([key]) });
    assert.deepEqual(row?.["token"], { S: sleep.getCallbackDetails()?.callbackId });
    assert.deepEqual(row?.["isCallback"], { BOOL: true });
    const kept = Number((row?.["expireAt"] as { N: string } | undefined)?.N) - Date.now() / 1000;
    assert.ok(kept > 3600 && kept <= 300 + 3600 + 1, `${kept}: the longest sleep, and an hour`);
    // A sleep that ends early counts for what it took: the wait of four minutes is not over.
    await sleep.sendCallbackSuccess("{}");
    const second = runner.getOperationByNameAndIndex(`lock ${key} sleep`, 1);
    await second.waitForData(testing.WaitingOperationStatus.STARTED);
    await eventually(() => rows.length === 2, "another row for the waker");
    await other.release();
    await second.sendCallbackSuccess("{}");
    const execution = await running;
    assert.equal(execution.getStatus(), "SUCCEEDED");
    assert.ok(invocations > 1, "it ended, and was invoked again");
    assert.equal(rows.length, 2);
    assert.ok(Number(execution.getResult()) > other.fencingToken);
    assert.equal(await stateOf(key), "released");
  });

  test("look without an answer is repeated under another lease id", async () => {
    const key = freshKey();
    await using proxy = await FaultProxy.start(service.url);
    let isOut = true;
    proxy.fault = ({ call }) => (isOut && call === "acquire" ? "lose request" : "pass");
    const running = runnerOf(async (context) => {
      await using lock = await lockStep(context, key, optionsOf({ client: service.client({ url: proxy.url }) }));
      return lock.fencingToken;
    }).run();
    await eventually(
      () => new Set(proxy.calls("acquire").map(({ body }) => body["leaseId"])).size > 1,
      "a second look",
    );
    isOut = false;
    assert.equal((await running).getStatus(), "SUCCEEDED");
    assert.equal(await stateOf(key), "released");
  });

  test("sleep that nobody ends is over with the lease", async () => {
    const key = freshKey();
    guardOf(await service.client().acquire(key, { lease: "1s", heartbeatInterval: false }));
    const dynamodb = { putItem: async () => undefined };
    const execution = await runnerOf(async (context) => {
      await using lock = await lockStep(context, key, optionsOf({ waiters: { table: "waiters", dynamodb } }));
      return lock.fencingToken;
    }).run();
    assert.equal(execution.getStatus(), "SUCCEEDED");
    assert.equal(await stateOf(key), "released");
  });

  for (const waiters of [undefined, { table: "waiters", dynamodb: { putItem: async () => undefined } }])
    test(`wait is bounded ${waiters ? "with" : "without"} a waker`, async () => {
      const key = freshKey();
      const other = guardOf(await service.client().acquire(key, { lease: "4s" }));
      const execution = await runnerOf(async (context) => {
        await lockStep(context, key, optionsOf({ wait: "3s", waiters }));
      }).run();
      assert.equal(execution.getStatus(), "FAILED");
      assert.match(execution.getError().errorMessage ?? "", /the wait is over/);
      await other.release();
    });

  test("failure of the work releases the lock", async () => {
    const key = freshKey();
    const execution = await runnerOf(async (context) => {
      await using lock = await lockStep(context, key, optionsOf());
      throw new Error(`the work failed under ${lock.key}`);
    }).run();
    assert.equal(execution.getStatus(), "FAILED");
    assert.equal(execution.getError().errorMessage, `the work failed under ${key}`);
    assert.equal(await stateOf(key), "released");
  });

  test("renewal is a step", async () => {
    const key = freshKey();
    const execution = await runnerOf(async (context) => {
      await using lock = await lockStep(context, key, optionsOf({ lease: "1m" }));
      assert.ok(lock instanceof DurableLock);
      await lock.renew("10m");
      return (await service.client().get(key))?.leaseDurationMs;
    }).run();
    assert.equal(execution.getResult(), 600_000);
    assert.equal(await stateOf(key), "released");
  });

  test("crash before the checkpoint leaves one holder", async () => {
    const key = freshKey();
    await using proxy = await FaultProxy.start(service.url);
    const client = service.client({ url: proxy.url });
    let crashed = false;
    const execution = await runnerOf(async (context) => {
      // The grant was written, and the process dies before the checkpoint: the look runs once more.
      const dying = new Proxy(context, {
        get: (target, name) => {
          const member: unknown = Reflect.get(target, name, target);
          if (name !== "waitForCondition") return typeof member === "function" ? member.bind(target) : member;
          return (operation: string, check: (state: object, of: object) => Promise<object>, config: object) => {
            const twice = async (state: object, of: object): Promise<object> => {
              if (!crashed) await check(state, of);
              crashed = true;
              return check(state, of);
            };
            return (member as (...given: unknown[]) => unknown).call(target, operation, twice, config);
          };
        },
      });
      await using lock = await lockStep(dying, key, optionsOf({ client }));
      return lock.fencingToken;
    }).run();
    assert.equal(execution.getStatus(), "SUCCEEDED");
    const leases = proxy.calls("acquire").map(({ body }) => (body as { leaseId?: string }).leaseId);
    assert.ok(leases.length >= 2);
    assert.equal(new Set(leases).size, 1, "the same lease id, which finds itself");
    assert.equal(await stateOf(key), "released");
  });
});
