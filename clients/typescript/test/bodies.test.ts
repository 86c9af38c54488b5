/** Functions whose work would be done after the lock, the occurrence, the lead or the transaction. */
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { Client, Election, InvalidRequestError } from "../dist/index.js";
import { idempotent, type LambdaContext, withLock } from "../dist/handlers.js";
import { FaultProxy, freshKey, LocalService } from "./support.js";

const service = await LocalService.start();
after(() => service[Symbol.asyncDispose]());
const context: LambdaContext = { getRemainingTimeInMillis: () => 30_000 };

function* generator(): Generator<number> {
  yield 1;
}
async function* asyncGenerator(): AsyncGenerator<number> {
  yield 1;
}

/** Calls each method that takes a function with this one. */
function calls(client: Client, key: string, work: () => unknown): (() => Promise<unknown>)[] {
  return [
    async () => client.locked(key)(work)(),
    async () => client.onceEvery(key, "1h", { wait: "1m" })(work)(),
    async () => client.withLock(key, work),
    async () => client.withAll([key, `${key}-2`], work),
    async () => client.once(key, "1", work),
    async () => client.semaphore(`${key}-3`, 2).withPermits(work),
    async () => new Election(client, key, "here").lead(work),
    async () => client.transaction(work),
    async () => withLock(work, { key, client })({}, context),
    async () => idempotent(work, { key, client })({}, context),
  ];
}

test("generator functions are refused before anything is sent", async () => {
  await using proxy = await FaultProxy.start(service.url);
  await using client = new Client({ url: proxy.url });
  const late: (() => unknown)[] = [
    generator,
    asyncGenerator,
    generator.bind(undefined),
    asyncGenerator.bind(undefined),
  ];
  for (const work of late) {
    for (const call of calls(client, freshKey(), work))
      await assert.rejects(call, (error: InvalidRequestError) => {
        assert.ok(error instanceof InvalidRequestError);
        assert.equal(
          error.message,
          `${work.name} is a generator function, whose work begins after it has returned: let it do all its work before it returns.`,
        );
        assert.match(error.field ?? "", /^(work|body|handler)$/);
        return true;
      });
    assert.throws(() => client.locked("key")(work), { name: "InvalidRequestError", field: "work" });
    assert.throws(() => client.onceEvery("key", "1h")(work), { name: "InvalidRequestError", field: "work" });
    assert.equal(proxy.seen.length, 0);
  }
});

test("lazy results complete no occurrence and commit nothing", async () => {
  await using proxy = await FaultProxy.start(service.url);
  await using client = new Client({ url: proxy.url });
  const helper = (): unknown =>
    ([1].values() as unknown as { map(of: (it: number) => number): unknown }).map((it) => it);
  const helpers = "map" in [1].values() ? [helper] : []; // since Node.js 22
  for (const work of [() => generator(), async () => generator(), () => asyncGenerator(), ...helpers]) {
    const key = freshKey();
    const nested = () => client.withLock(key, () => client.withLock<unknown>(key, work, { reentrant: true }));
    for (const call of [...calls(client, key, work), nested])
      await assert.rejects(call, (error) => {
        assert.ok(error instanceof InvalidRequestError);
        assert.match(error.message, /returned a lazy .*, whose work is still to be done: let it do all its work/);
        return true;
      });
    const lock = await client.get(key);
    assert.deepEqual([lock?.state, lock?.lastOccurrence], ["released", undefined]);
    assert.equal((await client.once(key, "1", () => [1])).kind, "ran", "an array has no work left");
    const values = [1].values();
    assert.equal(await client.withLock(key, () => values), values, "nor has its iterator");
  }
  const sent = new Set(proxy.seen.map(({ call }) => call));
  assert.deepEqual(
    [sent.has("transactions/begin"), sent.has("transactions/rollback"), sent.has("transactions/commit")],
    [true, true, false],
  );
});
