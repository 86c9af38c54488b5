/** Several endpoints of one service, of which some fail (C11 of docs/client.md). */
import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, describe, test } from "node:test";
import { Client, type ClientOptions, InvalidRequestError, UnavailableError } from "../dist/index.js";
import { eventually, type Fault, FaultProxy, freshKey, guardOf, LocalService, sleep } from "./support.js";

const service = await LocalService.start();
after(() => service[Symbol.asyncDispose]());

const HANGS: Fault = { delayRequest: 60_000 };

/** Two endpoints of the service, and a client of both. */
async function throughBoth(
  options: Partial<ClientOptions> = {},
): Promise<{ first: FaultProxy; second: FaultProxy; client: Client } & AsyncDisposable> {
  const first = await FaultProxy.start(service.url);
  const second = await FaultProxy.start(service.url);
  const client = service.client({ url: [first.url, new URL(second.url)], ...options });
  const dispose = async (): Promise<void> => {
    await first[Symbol.asyncDispose]();
    await second[Symbol.asyncDispose]();
  };
  return { first, second, client, [Symbol.asyncDispose]: dispose };
}

/** An address at which nobody listens. */
async function nowhere(): Promise<string> {
  const server = createServer().listen(0, "127.0.0.1");
  await eventually(() => server.listening, "listening");
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return `http://127.0.0.1:${port}`;
}

const callsOf = (proxy: FaultProxy): string[] => proxy.seen.map(({ call }) => call);
const bodiesOf = (proxy: FaultProxy, call: string): Record<string, unknown>[] =>
  proxy.calls(call).map(({ body }) => body);

async function messageOf(work: Promise<unknown>): Promise<string> {
  const error = await work.then(
    () => undefined,
    (reason: unknown) => reason,
  );
  assert.ok(error instanceof UnavailableError, String(error));
  return error.message;
}

describe("several endpoints", { concurrency: 6 }, () => {
  test("one request passes an endpoint that is dead", async () => {
    await using both = await throughBoth();
    const client = service.client({ url: `${await nowhere()}, ${both.second.url}` });
    const guard = guardOf(await client.tryAcquire(freshKey()));
    await guard.release();
    // A slow answer lets the client repeat a request.
    assert.deepEqual([...new Set(callsOf(both.second))], ["acquire", "release"]);
  });

  test("silent endpoint takes a part of the lease", async () => {
    await using both = await throughBoth({ lease: 20_000 });
    const { first, second, client } = both;
    const key = freshKey();
    const guard = guardOf(await client.acquire(key));
    first.fault = () => HANGS;
    await sleep(26_000);
    assert.ok(guard.valid);
    assert.deepEqual(bodiesOf(first, "heartbeat"), bodiesOf(second, "heartbeat").slice(0, 1));
    // The first one is well again: the endpoint that answered stays.
    first.fault = () => "pass";
    await guard.release();
    await guardOf(await client.acquire(key)).release();
    assert.deepEqual(callsOf(first), ["acquire", "heartbeat"]);
  });

  test("three silent endpoints leave time for the fourth", async () => {
    const proxies = await Promise.all([1, 2, 3, 4].map(() => FaultProxy.start(service.url)));
    const url = proxies.map((proxy) => proxy.url);
    const guard = guardOf(await service.client({ url, lease: 20_000 }).acquire(freshKey()));
    // On a busy machine the client may have passed some already: the one that granted is the first.
    const passed = proxies.filter(({ seen }) => seen.length > 0).length - 1;
    const [first, , , second] = [...proxies.slice(passed), ...proxies.slice(0, passed)];
    assert.ok(first && second);
    for (const proxy of proxies) if (proxy !== second) proxy.fault = () => HANGS;
    await sleep(26_000);
    assert.ok(guard.valid);
    assert.deepEqual(bodiesOf(first, "heartbeat")[0], bodiesOf(second, "heartbeat")[0]);
    await guard.release();
    for (const proxy of proxies) await proxy[Symbol.asyncDispose]();
  });

  test("acquire is repeated under its lease id and number", async () => {
    await using both = await throughBoth({ lease: 20_000 });
    const { first, second, client } = both;
    first.fault = () => HANGS;
    await guardOf(await client.acquire(freshKey())).release();
    const [silent, answered] = [bodiesOf(first, "acquire"), bodiesOf(second, "acquire")];
    assert.equal(silent.length, 1);
    assert.deepEqual(silent, answered);
    assert.equal(answered[0]?.["sequence"], 1);
    assert.ok(answered[0]["leaseId"]);
  });

  test("grant that nobody awaits is released elsewhere", async () => {
    await using both = await throughBoth({ lease: 20_000 });
    const { first, second, client } = both;
    first.fault = () => HANGS;
    const message = await messageOf(client.tryAcquire(freshKey()));
    assert.ok(message.includes(first.url), message);
    await eventually(() => second.calls("release").length > 0, "released");
    assert.equal(bodiesOf(second, "release")[0]?.["leaseId"], bodiesOf(first, "acquire")[0]?.["leaseId"]);
  });

  const own = (status: number, type: string): string => JSON.stringify({ type, status, title: "t", detail: "d" });
  const pause = { "retry-after": "1" };
  const answers: [string, Fault, boolean][] = [
    ["500", { status: 500, body: "no" }, true],
    ["502", { status: 502, body: "no" }, true],
    ["503", { status: 503, body: "no" }, true],
    ["504", { status: 504, body: "no" }, true],
    ["503 of a service without its table", { status: 503, headers: pause, body: own(503, "unavailable") }, true],
    ["503 that says when to return", { status: 503, headers: pause, body: "no" }, true],
    ["408 that says when to return", { status: 408, headers: pause, body: "no" }, true],
    ["408", { status: 408, body: "no" }, true],
    ["502 with a status", { status: 502, body: '{"status":502,"detail":"d"}' }, true],
    ["200 without JSON", { status: 200, body: "<html>no</html>" }, true],
    ["200 with a list", { status: 200, body: "[]" }, true],
    ["200 without a body", { status: 200, body: "" }, true],
    ["302", { status: 302, headers: { location: "/elsewhere" }, body: "" }, true],
    ["307 that says when to return", { status: 307, headers: { location: "/elsewhere", ...pause }, body: "" }, true],
    ["401", { status: 401, body: "no" }, false],
    ["413", { status: 413, body: "no" }, false],
    ["429 of a gateway that says when to return", { status: 429, headers: pause, body: "no" }, false],
    ["429 of the service", { status: 429, headers: pause, body: own(429, "throttled") }, false],
    ["429 of a gateway", { status: 429, body: "no" }, false],
    ["500 of the service", { status: 500, body: own(500, "misconfigured") }, false],
    ["403", { status: 403, body: "no" }, false],
    ["404", { status: 404, body: own(404, "not-found") }, false],
  ];
  for (const [name, fault, passes] of answers) {
    test(`${name} ${passes ? "is passed" : "is an answer"}`, async () => {
      await using both = await throughBoth();
      const { first, second, client } = both;
      first.fault = ({ call }) => (call === "acquire" ? fault : "pass");
      const key = freshKey();
      for (let request = 0; request < 2; request++) {
        const acquired = await client.tryAcquire(key).catch(() => undefined);
        if (acquired) await guardOf(acquired).release();
      }
      const asked = [first.calls("acquire").length, second.calls("acquire").length];
      assert.deepEqual(asked, passes ? [1, 1] : [2, 0]);
    });
  }

  for (const [name, fault] of answers.filter(([name]) => /^(200 w|302|307|408$|503 that)/.test(name))) {
    test(`acquire passes an endpoint that answers ${name}`, async () => {
      await using both = await throughBoth();
      const { first, second, client } = both;
      first.fault = () => fault;
      await guardOf(await client.acquire(freshKey())).release();
      assert.equal(first.calls("acquire").length, 1);
      assert.deepEqual(bodiesOf(first, "acquire"), bodiesOf(second, "acquire"));
    });
  }

  test("error names all endpoints that were tried", async () => {
    const dead = [await nowhere(), await nowhere()];
    const message = await messageOf(service.client({ url: dead }).tryAcquire(freshKey()));
    for (const url of dead) assert.ok(message.includes(url), message);
    await using both = await throughBoth();
    const { first, second, client } = both;
    first.fault = () => HANGS;
    second.fault = () => ({ status: 502, body: "no" });
    await messageOf(client.tryAcquire(freshKey()));
    const told = await messageOf(client.tryAcquire(freshKey()));
    assert.ok(told.includes(`${first.url} has not answered`) && told.includes(`${second.url} gives no answer`), told);
  });

  test("each url of a list is checked", () => {
    for (const url of ["https://a.example.com,nonsense", ",", [], ["https://a.example.com", "nonsense"]])
      assert.throws(() => new Client({ url }), InvalidRequestError, String(url));
    const tls = { ca: "-----BEGIN CERTIFICATE-----" };
    assert.throws(() => new Client({ url: "https://a.example.com,http://b.example.com", tls }), InvalidRequestError);
    new Client({ url: "https://a.example.com, https://b.example.com," });
  });

  test("locks outlive the kill of their service", async () => {
    await using store = await LocalService.start("--expose-dynamodb", "0");
    const endpoint = await exposedBy(store);
    await using first = await LocalService.onDynamoDb(endpoint);
    await using second = await LocalService.onDynamoDb(endpoint);
    const client = new Client({ url: [first.url, second.url], lease: 12_000 });
    const elsewhere = second.client();
    const key = freshKey();
    const guard = guardOf(await client.acquire(key));
    const permits = await client.semaphore(`${key}-permits`, 2).acquire();
    assert.ok(permits.kind === "granted");
    const holder = guardOf(await elsewhere.acquire(`${key}-other`));
    const waiting = client.acquire(`${key}-other`, { wait: 60_000 });
    await sleep(500);
    first.child.process.kill("SIGKILL");
    await sleep(16_000);
    assert.ok(guard.valid && permits.valid);
    assert.equal((await elsewhere.get(key))?.fencingToken, guard.fencingToken);
    await holder.release();
    guardOf(await waiting);
    await guard.release();
    await client.close();
    for (const name of [key, `${key}-other`]) assert.equal((await elsewhere.get(name))?.state, "released");
  });
});

/** The URL of the DynamoDB that a service exposes. */
async function exposedBy({ child }: LocalService): Promise<string> {
  for (;;) {
    const url = /dynamodb +(http:\S+)/.exec(await child.line())?.[1];
    if (url !== undefined) return url;
  }
}
