/** Transactions against the real service, over a user's own table. */
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, describe, test } from "node:test";
import {
  CapacityMeter,
  type Client,
  ConditionFailedError,
  deriveTransactionId,
  ExactNumber,
  InvalidRequestError,
  type Item,
  type Transaction,
  TransactionCommittedError,
  TransactionContendedError,
  TransactionNotFoundError,
  TransactionRolledBackError,
  UnavailableError,
} from "../dist/index.js";
import { eventually, type Fault, FaultProxy, firstTimes, LocalService, type SeenRequest, sleep } from "./support.js";

const TABLE = "accounts";
const service = await LocalService.start("--expose-dynamodb", "0", "--transaction-patience-ms", "2000");
after(() => service[Symbol.asyncDispose]());
await service.child.line();
const dynamodb = /http:\S+/.exec(await service.child.line())?.[0] ?? "";

/** Calls DynamoDB without the service. */
async function call(operation: string, body: object): Promise<{ Item?: Record<string, Record<string, string>> }> {
  const response = await fetch(dynamodb, {
    method: "POST",
    headers: {
      "content-type": "application/x-amz-json-1.0",
      "x-amz-target": `DynamoDB_20120810.${operation}`,
      "x-amz-date": "20260101T000000Z",
      // The engine wants the header, and does not check it.
      authorization:
        "AWS4-HMAC-SHA256 Credential=any/20260101/any/dynamodb/aws4_request, SignedHeaders=host, Signature=any",
    },
    body: JSON.stringify(body),
  });
  assert.equal(response.status, 200);
  return (await response.json()) as { Item?: Record<string, Record<string, string>> };
}

await call("CreateTable", {
  TableName: TABLE,
  BillingMode: "PAY_PER_REQUEST",
  AttributeDefinitions: [{ AttributeName: "id", AttributeType: "S" }],
  KeySchema: [{ AttributeName: "id", KeyType: "HASH" }],
});

/** A new account, whose id no other test has. */
async function open(balance: number): Promise<string> {
  const id = `account-${randomUUID()}`;
  await call("PutItem", { TableName: TABLE, Item: { id: { S: id }, balance: { N: String(balance) } } });
  return id;
}

async function raw(id: string): Promise<Record<string, Record<string, string>> | undefined> {
  return (await call("GetItem", { TableName: TABLE, Key: { id: { S: id } }, ConsistentRead: true })).Item;
}

/** Returns the balance of an account, and checks that no transaction left anything on it. */
async function balance(id: string): Promise<number> {
  let item: NonNullable<Awaited<ReturnType<typeof raw>>> = {};
  // A busy service frees the items behind its answer.
  await eventually(async () => {
    item = (await raw(id)) ?? {};
    return Object.keys(item).sort().join() === "balance,id";
  }, "free");
  return Number(item["balance"]?.["N"]);
}

async function add(tx: Transaction, id: string, amount: number): Promise<void> {
  await tx.update(TABLE, { id }, "ADD balance :amount", { ":amount": amount });
}

/** A body that moves money: it reads, writes what it read, and adds. */
const move =
  (from: string, to: string, amount: number) =>
  async (tx: Transaction): Promise<number> => {
    const account = (await tx.get(TABLE, { id: from })) as { balance: number };
    await add(tx, to, amount);
    await tx.put(TABLE, { id: from, balance: account.balance - amount });
    return account.balance - amount;
  };

/** A table of things by owner. */
async function indexed(client: Client): Promise<string> {
  const table = `indexed-${randomUUID()}`;
  await call("CreateTable", {
    TableName: table,
    BillingMode: "PAY_PER_REQUEST",
    AttributeDefinitions: ["id", "owner"].map((name) => ({ AttributeName: name, AttributeType: "S" })),
    KeySchema: [{ AttributeName: "id", KeyType: "HASH" }],
    GlobalSecondaryIndexes: [
      {
        IndexName: "by-owner",
        KeySchema: [{ AttributeName: "owner", KeyType: "HASH" }],
        Projection: { ProjectionType: "ALL" },
      },
    ],
  });
  for (const [id, owner] of [
    ["1", "Moe"],
    ["2", "Larry"],
    ["3", "Moe"],
  ])
    await client.transact([{ Put: { TableName: table, Item: { id, owner } } }]);
  return table;
}

async function throughProxy(): Promise<{ proxy: FaultProxy; client: Client } & AsyncDisposable> {
  const proxy = await FaultProxy.start(service.url);
  const client = service.client({ url: proxy.url });
  const dispose = async (): Promise<void> => {
    proxy.fault = () => "pass";
    await client.close();
    await proxy[Symbol.asyncDispose]();
  };
  return { proxy, client, [Symbol.asyncDispose]: dispose };
}

const problem = (type: string, status: number, more: object = {}): Fault => ({
  status,
  headers: { "content-type": "application/problem+json" },
  body: JSON.stringify({ type, status, title: "title", detail: "detail", ...more }),
});
const contended = problem("contended", 409, { publicId: "t" });
const rolledBack = problem("rolled-back", 409);
const callsOf = (proxy: FaultProxy): string[] => proxy.seen.map((request) => request.call.replace("transactions/", ""));

describe("body in a transaction", { concurrency: 4 }, () => {
  test("is committed, and seen by others then", async () => {
    const client = service.client();
    const [moe, larry] = [await open(100), await open(0)];
    let id = "";
    const left = await client.transaction(async (tx) => {
      id = tx.id;
      const left = await move(moe, larry, 30)(tx);
      assert.deepEqual(await client.readItem(TABLE, { id: larry }), { id: larry, balance: 0 });
      assert.deepEqual(await client.readItem(TABLE, { id: larry }, { isolation: "uncommitted" }), {
        id: larry,
        balance: 30,
      });
      return left;
    });
    assert.deepEqual([left, await balance(moe), await balance(larry)], [70, 70, 30]);
    const status = await client.transactionStatus(id);
    assert.deepEqual([status.state, status.reason], ["committed", undefined]);
    assert.deepEqual(new Set(status.requests.map(({ key }) => key["id"] as string)), new Set([moe, larry]));
    assert.ok(Math.abs(status.createdAtMs - Date.now()) < 60_000);
  });

  test("that throws is rolled back, and its error comes out as it is", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const [moe, larry] = [await open(100), await open(0)];
    const own = new Error("the body's own");
    const failing = client.transaction(async (tx) => {
      await add(tx, larry, 30);
      await tx.delete(TABLE, { id: moe });
      throw own;
    });
    await assert.rejects(failing, (error) => error === own);
    assert.deepEqual([await balance(moe), await balance(larry)], [100, 0]);
    const synchronous = client.transaction(() => {
      throw own;
    });
    await assert.rejects(synchronous, (error) => error === own);
    // A failed rollback hides nothing.
    proxy.fault = ({ call }) => (call.endsWith("rollback") ? { status: 403, body: "{}" } : "pass");
    await assert.rejects(
      client.transaction(async (tx) => {
        await add(tx, larry, 1);
        throw own;
      }),
      (error) => error === own,
    );
  });

  test("that was evicted is run again, from the start", async () => {
    const client = service.client();
    const moe = await open(100);
    const seen: number[] = [];
    await client.transaction(async (tx) => {
      seen.push(((await tx.get(TABLE, { id: moe })) as { balance: number }).balance);
      // The transaction is idle for too long, and another one spends the money.
      if (seen.length === 1) await client.transaction((other) => add(other, moe, -90));
      await add(tx, moe, -10);
    });
    assert.deepEqual(seen, [100, 10]);
    assert.equal(await balance(moe), 0);
  });

  for (const action of ["begin", "add", "commit"]) {
    for (const fault of [
      "lose answer",
      "lose request",
      { status: 503, body: "busy" },
      { status: 429, body: "slow down" },
    ] as Fault[]) {
      test(`runs once when ${action} fails: ${JSON.stringify(fault)}`, async () => {
        await using parts = await throughProxy();
        const { proxy, client } = parts;
        const [moe, larry] = [await open(100), await open(0)];
        proxy.fault = firstTimes(2, `transactions/${action}`, fault);
        let runs = 0;
        const left = await client.transaction((tx) => {
          runs += 1;
          return move(moe, larry, 30)(tx);
        });
        assert.deepEqual([left, runs, await balance(moe), await balance(larry)], [70, 1, 70, 30]);
        assert.equal(new Set(proxy.seen.map(({ body }) => body["transactionId"])).size, 1);
      });
    }
  }

  test("counts each of its equal adds", async () => {
    const moe = await open(0);
    await using through = await throughProxy();
    const { proxy, client } = through;
    let adds = 0;
    proxy.fault = ({ call }) => (call === "transactions/add" && ++adds % 2 === 1 ? "lose answer" : "pass");
    await client.transaction(async (tx) => {
      for (let number = 0; number < 3; number += 1) await add(tx, moe, 1);
    });
    assert.equal(await balance(moe), 3);
    assert.ok(adds > 3);
  });

  test("is not run again before it is certain that it was undone", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const [moe, larry] = [await open(100), await open(0)];
    let faults: Fault[] = ["lose answer", contended];
    proxy.fault = ({ call }) => (call.endsWith("commit") ? (faults.shift() ?? "pass") : "pass");
    assert.equal(await client.transaction(move(moe, larry, 30)), 70);
    assert.deepEqual(callsOf(proxy).slice(-3), ["commit", "commit", "rollback"]);
    faults = ["lose request", contended];
    assert.equal(await client.transaction(move(moe, larry, 30)), 40);
    assert.deepEqual([await balance(moe), await balance(larry)], [40, 60]);
  });

  // A part of a call that waited in vain may have been carried out.
  test("repeat by hand is the call that was contended", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const moe = await open(100);
    const faults: Fault[] = ["lose answer", contended];
    proxy.fault = ({ call }) => (call.endsWith("add") ? (faults.shift() ?? "pass") : "pass");
    await using tx = await client.beginTransaction();
    await assert.rejects(add(tx, moe, 1), TransactionContendedError);
    await add(tx, moe, 1);
    await tx.commit();
    assert.equal(await balance(moe), 101);
  });

  test("whose commit nobody answers is unknown, and can be looked up", { timeout: 300_000 }, async () => {
    for (const [fault, state, left] of [
      ["lose answer", "committed", 70],
      ["lose request", "rolled-back", 100],
    ] as [Fault, string, number][]) {
      await using parts = await throughProxy();
      const { proxy, client } = parts;
      const [moe, larry] = [await open(100), await open(0)];
      // The service asks for such a long pause that there is no time for a second repeat.
      let commits = 0;
      proxy.fault = ({ call }) => {
        if (!call.endsWith("commit")) return "pass";
        return ++commits === 1 ? fault : { status: 503, headers: { "retry-after": "60" }, body: "" };
      };
      const error: unknown = await client.transaction(move(moe, larry, 30)).catch((caught: unknown) => caught);
      assert.ok(error instanceof UnavailableError);
      const id = error.transactionId ?? "";
      await eventually(async () => (await client.transactionStatus(id)).finished, "decided");
      assert.equal((await client.transactionStatus(id)).state, state);
      assert.deepEqual([await balance(moe), await balance(larry)], [left, 100 - left]);
    }
  });

  test("is tried so often, and so long", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const moe = await open(100);
    proxy.fault = ({ call }) => (call.endsWith("add") ? contended : "pass");
    const failing = client.transaction((tx) => add(tx, moe, 1), { tries: 3 });
    await assert.rejects(failing, (error) => error instanceof TransactionContendedError && error.other === "t");
    assert.deepEqual(callsOf(proxy), [
      "begin",
      "add",
      "rollback",
      "begin",
      "add",
      "rollback",
      "begin",
      "add",
      "rollback",
    ]);
    await assert.rejects(
      client.transaction((tx) => add(tx, moe, 1), { tries: Infinity, deadline: 300 }),
      TransactionContendedError,
    );
    proxy.fault = ({ call }) => (call.endsWith("begin") ? rolledBack : "pass");
    await assert.rejects(
      client.transact([{ Put: { TableName: TABLE, Item: { id: moe } } }], { tries: 2 }),
      TransactionRolledBackError,
    );
    assert.equal(await balance(moe), 100);
  });

  test("that found another way after contention is committed", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const [moe, larry] = [await open(100), await open(0)];
    proxy.fault = ({ body }) => (JSON.stringify(body).includes(moe) ? contended : "pass");
    const body = (tx: Transaction): Promise<void> => add(tx, moe, 1).catch(() => add(tx, larry, 1));
    await client.transaction(body, { tries: 1 });
    assert.deepEqual([await balance(moe), await balance(larry)], [100, 1]);
    proxy.seen.length = 0;
    const failing = client.transaction(async (tx) => {
      await body(tx);
      throw new Error("the body's own");
    });
    await assert.rejects(failing, /the body's own/);
    assert.equal(
      callsOf(proxy).filter((call) => call === "begin").length,
      1,
      "what it throws then is not due to others",
    );
  });

  test("has to deal with a condition that fails itself", async () => {
    const client = service.client();
    const moe = await open(10);
    let runs = 0;
    const failing = client.transaction(async (tx) => {
      runs += 1;
      await tx.add([
        { Get: { TableName: TABLE, Key: { id: "nobody" } } },
        {
          Update: {
            TableName: TABLE,
            Key: { id: moe },
            UpdateExpression: "ADD balance :amount",
            ConditionExpression: "balance >= :needed",
            ExpressionAttributeValues: { ":amount": -30, ":needed": 30 },
            ReturnValuesOnConditionCheckFailure: "ALL_OLD",
          },
        },
      ]);
    });
    const error: unknown = await failing.catch((caught: unknown) => caught);
    assert.ok(error instanceof ConditionFailedError);
    assert.deepEqual([error.request, error.item, runs], [1, { id: moe, balance: 10 }, 1]);
    await assert.rejects(
      client.transaction((tx) => tx.check(TABLE, { id: moe }, "balance > :x", { values: { ":x": 10 } })),
      ConditionFailedError,
    );
    assert.equal(await balance(moe), 10);
  });

  test("defends its items while it thinks, if it is told to", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const moe = await open(100);
    const signs = (): number =>
      proxy.seen.filter(({ body }) => Array.isArray(body["requests"]) && body["requests"].length === 0).length;
    let runs = 0;
    let waited = 0;
    let other: Promise<void> | undefined;
    await client.transaction(
      async (tx) => {
        runs += 1;
        await add(tx, moe, 1);
        const start = performance.now();
        other = service
          .client()
          .transaction((tx) => add(tx, moe, 1))
          .then(() => {
            waited = performance.now() - start;
          });
        await sleep(4000);
      },
      { keepAlive: 50 },
    );
    await other;
    assert.ok(waited > 3500, "more than the patience with one that is silent");
    assert.deepEqual([runs, await balance(moe)], [1, 102]);
    const sent = signs();
    assert.ok(sent > 1, "it tells that it lives");
    await sleep(200);
    assert.equal(signs(), sent, "it is over");
  });

  test("is rolled back when it is ended early", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const moe = await open(100);
    for (const at of ["body", "begin", "add", "commit"]) {
      const controller = new AbortController();
      const enough = (): void => {
        controller.abort(new Error("enough"));
      };
      proxy.fault = ({ call }) => {
        if (!call.endsWith(at)) return "pass";
        enough();
        return { delayAnswer: 1000 };
      };
      const stuck = client.transaction(
        async (tx) => {
          await add(tx, moe, 1);
          if (at !== "body") return;
          enough();
          await new Promise(() => undefined);
        },
        { signal: controller.signal },
      );
      await assert.rejects(stuck, /enough/);
    }
    proxy.fault = () => "pass";
    // The end waits for the rollbacks.
    await client.close();
    // A commit that was faster than its rollback counts.
    assert.ok([100, 101].includes(await balance(moe)));
    await assert.rejects(
      client.transaction(() => undefined),
      { name: "ClosedError" },
    );
  });

  test("keeps the sum under contention and lost answers", { timeout: 300_000 }, async () => {
    await using parts = await throughProxy();
    const { proxy, client: unreliable } = parts;
    const accounts = [await open(100), await open(100), await open(100), await open(100)];
    let asked = 0;
    proxy.fault = (): Fault =>
      (["pass", "pass", "lose answer", "pass", "pass", "lose request", "pass", "pass"] as const)[asked++ % 8] ?? "pass";
    const loops = Array.from({ length: 8 }, async (_, number) => {
      const client = number < 3 ? unreliable : service.client();
      for (let turn = 0; turn < 5; turn += 1) {
        const [from = "", to = ""] = [accounts[(number + turn) % 4], accounts[(number * turn + 1) % 4]];
        if (from !== to) await client.transaction(move(from, to, 7), { tries: 100, deadline: 250_000 });
      }
    });
    await Promise.all(loops);
    const balances = await Promise.all(accounts.map(balance));
    assert.equal(
      balances.reduce((sum, each) => sum + each, 0),
      400,
    );
  });
});

describe("by hand", { concurrency: 4 }, () => {
  test("taken here, committed there", async () => {
    const [here, there] = [service.client(), service.client()];
    const moe = await open(100);
    let id: string;
    {
      await using tx = await here.beginTransaction();
      await add(tx, moe, -30);
      id = tx.detach();
    }
    const tx = there.resumeTransaction(id);
    assert.deepEqual(await tx.get(TABLE, { id: moe }), { id: moe, balance: 70 });
    await tx.commit();
    await tx.commit();
    assert.equal(await balance(moe), 70);
    await assert.rejects(
      tx.rollback(),
      (error) => error instanceof TransactionCommittedError && error.transactionId === id,
    );
    await assert.rejects(add(tx, moe, 1), TransactionCommittedError);
    await assert.rejects(here.transactionStatus(randomUUID()), TransactionNotFoundError);
    await assert.rejects(here.transactionStatus("no id"), InvalidRequestError);
  });

  test("open transaction is rolled back at the end of the block", async () => {
    const client = service.client();
    const moe = await open(100);
    {
      await using tx = await client.beginTransaction();
      await add(tx, moe, -30);
    }
    assert.equal(await balance(moe), 100);
    {
      await using tx = await client.beginTransaction();
      await add(tx, moe, -30);
      await tx.commit();
    }
    assert.equal(await balance(moe), 70);
  });

  // Two processes make the call. Where its first try was rolled back, both come to the same next one.
  for (const first of ["no", "a rolled-back", "an early-ended"] as const) {
    test(`business key acts once after ${first} first try`, async () => {
      const moe = await open(100);
      const id = await deriveTransactionId(randomUUID(), "order 4711");
      await using client = service.client();
      const update = {
        Update: {
          TableName: TABLE,
          Key: { id: moe },
          UpdateExpression: "ADD balance :one",
          ConditionExpression: "attribute_not_exists(closed)",
          ExpressionAttributeValues: { ":one": 1 },
        },
      };
      if (first === "a rolled-back") {
        await client.transact([{ Put: { TableName: TABLE, Item: { id: moe, balance: 100, closed: true } } }]);
        await assert.rejects(client.transact([update], { transactionId: id }), ConditionFailedError);
        await client.transact([{ Put: { TableName: TABLE, Item: { id: moe, balance: 100 } } }]);
      } else if (first === "an early-ended") {
        await assert.rejects(client.resumeTransaction(id).rollback(), TransactionNotFoundError);
      }
      for (let process = 0; process < 2; process++) {
        await using repeating = service.client();
        await repeating.transact([update], { transactionId: id });
      }
      assert.equal(await balance(moe), 101);
    });
  }

  test("derived id is that of the RFC", async () => {
    const dns = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
    assert.equal(await deriveTransactionId(dns, "www.example.com"), "5c146b14-3c52-8afd-938a-375d0df1fbf6");
    assert.equal(await deriveTransactionId(dns, "Bestellung 4711, ä"), "0b84e752-9b93-81ec-8b92-0440b68bc3c5");
    await assert.rejects(deriveTransactionId("orders", "1"), TypeError);
  });

  test("all in one call", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const [moe, larry] = [await open(100), await open(0)];
    const update = (id: string, amount: number, returnValues: "NONE" | "ALL_NEW" = "NONE") => ({
      Update: {
        TableName: TABLE,
        Key: { id },
        UpdateExpression: "ADD balance :amount",
        ExpressionAttributeValues: { ":amount": amount },
        ReturnValues: returnValues,
      },
    });
    proxy.fault = firstTimes(2, "transactions/begin", "lose answer");
    assert.deepEqual(await client.transact([update(moe, -30), update(larry, 30)]), [undefined, undefined]);
    assert.deepEqual(await client.transact([update(moe, -30, "ALL_NEW"), update(larry, 30, "ALL_NEW")]), [
      { id: moe, balance: 40 },
      { id: larry, balance: 60 },
    ]);
    proxy.fault = firstTimes(1, "transactions/begin", "lose answer");
    await assert.rejects(client.transact([update(moe, -30, "ALL_NEW")]), TransactionCommittedError);
    assert.equal(await balance(moe), 10, "it is done, and not done again");
    proxy.fault = firstTimes(1, "transactions/begin", rolledBack);
    await client.transact([update(moe, -30)]);
    assert.deepEqual([await balance(moe), await balance(larry)], [-20, 60]);
    const ids = proxy.seen.map(({ body }: SeenRequest) => body["transactionId"]);
    assert.equal(new Set(ids).size, 5, "one id for each transaction, and for its repeats");
  });

  for (const first of ["lose answer", "lose request"] as const) {
    test(`one call is repeated after a certain rollback: ${first}`, async () => {
      await using parts = await throughProxy();
      const { proxy, client } = parts;
      const moe = await open(100);
      const faults: Fault[] = [first, contended];
      proxy.fault = ({ call }) => (call.endsWith("begin") ? (faults.shift() ?? "pass") : "pass");
      const values = { ":x": 1 };
      const update = {
        TableName: TABLE,
        Key: { id: moe },
        UpdateExpression: "ADD balance :x",
        ExpressionAttributeValues: values,
      };
      assert.deepEqual(await client.transact([{ Update: update }]), [undefined]);
      assert.deepEqual(callsOf(proxy), ["begin", "begin", "begin"]);
      assert.equal(new Set(proxy.seen.map(({ body }) => body["transactionId"])).size, 1);
      assert.equal(await balance(moe), 101);
    });
  }

  test("query locks what it finds", async () => {
    const client = service.client();
    const table = await indexed(client);
    const id = await client.transaction(async (tx) => {
      const options = { indexName: "by-owner", names: { "#o": "owner" }, projection: "id", forward: false };
      const found = await tx.query(table, "#o = :o", { ":o": "Moe" }, options);
      assert.deepEqual(found, [{ id: "3" }, { id: "1" }]);
      assert.deepEqual(await tx.query(table, "id = :id", { ":id": "none" }), []);
      await tx.update(table, { id: "1" }, "SET seen = :n", { ":n": found.length });
      const again = await tx.query(table, "id = :id", { ":id": "1" });
      assert.deepEqual(again, [{ id: "1", owner: "Moe", seen: 2 }]);
      return tx.id;
    });
    const { requests } = await client.transactionStatus(id);
    assert.deepEqual(new Set(requests.map(({ key }) => key["id"])), new Set(["1", "3"]));
    const query = { Query: { TableName: table, KeyConditionExpression: "id = :id" } };
    await assert.rejects(client.transact([query]), InvalidRequestError);
  });

  test("items are listed by an index that projects all attributes", async () => {
    const client = service.client();
    const table = await indexed(client);
    const found: unknown[] = [];
    const options = {
      indexName: "by-owner",
      keyCondition: "#o = :o",
      names: { "#o": "owner" },
      values: { ":o": "Moe" },
    };
    for await (const item of client.listItems(table, options)) found.push(item["id"]);
    assert.deepEqual(found.sort(), ["1", "3"]);
    await assert.rejects(client.listItems(table, { ...options, indexName: "none" }).next(), InvalidRequestError);
  });

  test("readers choose what they see", async () => {
    const client = service.client();
    const [moe, fresh] = [await open(100), `account-${randomUUID()}`];
    await using tx = await client.beginTransaction();
    await add(tx, moe, -30);
    await add(tx, fresh, 1);
    const keys = [
      [TABLE, { id: fresh }],
      [TABLE, { id: moe }],
    ] as const;
    assert.deepEqual(await client.readItems(keys), [undefined, { id: moe, balance: 100 }]);
    assert.deepEqual(await client.readItems(keys, { isolation: "uncommitted" }), [
      { id: fresh, balance: 1 },
      { id: moe, balance: 70 },
    ]);
    const queried: Item[] = [];
    for await (const item of client.listItems(TABLE, { keyCondition: "id = :id", values: { ":id": moe } }))
      queried.push(item);
    assert.deepEqual(queried, [{ id: moe, balance: 100 }]);
    const scanned = new Map<unknown, Item>();
    for await (const item of client.listItems(TABLE, { pageSize: 2 })) scanned.set(item["id"], item);
    assert.deepEqual([scanned.get(moe)?.["balance"], scanned.has(fresh)], [100, false]);
  });
});

describe("values", () => {
  test("come back as they were stored", async () => {
    const client = service.client();
    const item = {
      id: `all-${randomUUID()}`,
      none: null,
      flag: true,
      text: "Müller 🔒",
      empty: "",
      number: -0.1,
      zero: 0,
      tiny: 1e-20,
      unsafe: 9007199254740993n,
      large: 10n ** 37n + 1n,
      exact: new ExactNumber("0.12345678901234567890123"),
      bytes: Uint8Array.of(0, 255),
      list: [1, "two", [null], { three: 3 }],
      map: { a: { b: new Uint8Array() } },
      texts: new Set(["a", "b"]),
      numbers: new Set([1, 2.5]),
    };
    await client.transaction((tx) => tx.put(TABLE, { ...item, left: undefined }));
    assert.deepEqual(await client.readItem(TABLE, { id: item.id }), item);
    // Items that were read can be written: nothing is lost on the way.
    await client.transaction(async (tx) => tx.put(TABLE, (await tx.get(TABLE, { id: item.id })) ?? {}));
    assert.deepEqual(await client.readItem(TABLE, { id: item.id }), item);
  });

  test("that cannot be stored are refused before anything is sent", async () => {
    const client = service.client();
    for (const value of [
      NaN,
      Infinity,
      new Date(),
      new Map(),
      Symbol("s"),
      () => 1,
      new Set(),
      new Set([1, "a"]),
      [undefined],
    ]) {
      await assert.rejects(
        client.transact([{ Put: { TableName: TABLE, Item: { id: "never", value } } }]),
        InvalidRequestError,
      );
    }
    await assert.rejects(
      client.transaction((tx) => tx.get(TABLE, [1])),
      InvalidRequestError,
    );
  });
});

test("meter adds up the capacity of all calls", async () => {
  const client = service.client();
  const written = (meter: CapacityMeter): number =>
    [...meter.consumed.values()].reduce((sum, { writeUnits }) => sum + writeUnits, 0);
  const id = await open(1);
  const oneCall = new CapacityMeter();
  const request = { TableName: TABLE, Key: { id }, UpdateExpression: "SET balance = balance" };
  await client.transact([{ Update: request }], { capacity: oneCall });
  assert.deepEqual(oneCall.consumed.get(TABLE), { readUnits: 0, writeUnits: 2 });
  // 2N+2 units for N items in one call, by docs/performance.md.
  assert.equal(written(oneCall), 4);

  const block = new CapacityMeter();
  await client.transaction((tx) => tx.update(TABLE, { id }, "ADD balance :one", { ":one": 1 }), { capacity: block });
  // 3N+7 units for N items in begin, add and commit. A busy service frees the item after its answer.
  assert.ok(written(block) > 6 && written(block) <= 10, String(written(block)));

  const byHand = new CapacityMeter();
  const opened = await client.beginTransaction();
  opened.capacity = byHand;
  assert.equal(written(byHand), 0);
  await opened.update(TABLE, { id }, "ADD balance :one", { ":one": 1 });
  const added = written(byHand);
  assert.ok(added > 0);
  await opened.rollback();
  assert.ok(written(byHand) > added);
});
