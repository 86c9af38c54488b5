/** Mistakes in the set-up: each ends soon, and its text says what is wrong and what to do. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { LambdaClient } from "@aws-sdk/client-lambda";
import {
  Client,
  type ClientOptions,
  ForbiddenError,
  InvalidRequestError,
  MisconfiguredError,
  UnavailableError,
} from "../dist/index.js";
import type { Fetch } from "../dist/http.js";
import { lambda } from "../dist/lambda.js";
import { FaultProxy, freshKey, LocalService } from "./support.js";
import { VirtualRuntime } from "./virtual.js";

/** A failure of `fetch` with this code. */
function failing(code: string): Fetch {
  return () =>
    Promise.reject(new TypeError("fetch failed", { cause: Object.assign(new Error(`connect ${code}`), { code }) }));
}

/** The error of an operation, and the virtual time that it took. */
async function failure(
  fetch: Fetch,
  operation: (client: Client) => Promise<unknown>,
): Promise<{ error: unknown; took: number }> {
  const runtime = new VirtualRuntime();
  runtime.chance = 0.9;
  const begunAt = runtime.time;
  let ended: { error: unknown; took: number } | undefined;
  const client = new Client({ url: "http://127.0.0.1:9", fetch, runtime });
  operation(client).then(
    () => assert.fail("it succeeded"),
    (error: unknown) => (ended = { error, took: runtime.time - begunAt }),
  );
  while (ended === undefined) await runtime.advance(50);
  return ended;
}

describe("service that cannot be connected to", () => {
  for (const code of [
    "ECONNREFUSED",
    "ENOTFOUND",
    "ERR_SSL_WRONG_VERSION_NUMBER",
    "DEPTH_ZERO_SELF_SIGNED_CERT",
    "ERR_TLS_CERT_ALTNAME_INVALID",
  ]) {
    test(`is given up soon, if it never answered: ${code}`, async () => {
      for (const operation of [(client: Client) => client.acquire("Moe"), (client: Client) => client.get("Moe")]) {
        const { error, took } = await failure(failing(code), operation);
        assert.ok(error instanceof UnavailableError);
        assert.equal(error.name, "UnavailableError");
        assert.match(
          error.message,
          new RegExp(
            `^http://127.0.0.1:9 cannot be reached: .*${code}.*[;:] check the address, and that the service runs\\.$`,
          ),
        );
        assert.ok(took <= 2000, `${took} ms`);
      }
    });
  }

  test("is asked again for the wait that the caller chose", async () => {
    const { took } = await failure(failing("ECONNREFUSED"), (client) => client.acquire("Moe", { wait: 60_000 }));
    assert.ok(took > 50_000, `${took} ms`);
  });

  test("is asked again if it has answered before, or may have", async () => {
    let asked = 0;
    const answer = {
      status: 404,
      headers: { get: () => null },
      text: () => Promise.resolve('{"type":"not-found","status":404}'),
    };
    const refuse = failing("ECONNREFUSED");
    const answering: Fetch = (url, init) => (asked++ === 0 ? Promise.resolve(answer) : refuse(url, init));
    const later = await failure(answering, async (client) => {
      assert.equal(await client.get("Moe"), undefined);
      await client.acquire("Moe");
    });
    assert.ok(later.took > 7000, `${later.took} ms`);
    const cut = await failure(failing("ECONNRESET"), (client) => client.acquire("Moe"));
    assert.ok(cut.took > 7000, `${cut.took} ms`);
  });
});

test("advice on the address ends with the first answer", async () => {
  const answer = { status: 404, headers: { get: () => null }, text: () => Promise.resolve("no") };
  for (const [code, advice] of [
    ["ECONNREFUSED", /check the address/],
    ["ECONNRESET", /needs https/],
  ] as const) {
    let asked = 0;
    const refuse = failing(code);
    const client = new Client({
      url: "http://127.0.0.1:9",
      fetch: (url, init) => (asked++ === 1 ? Promise.resolve(answer) : refuse(url, init)),
    });
    const texts = [];
    for (let request = 0; request < 3; request++) texts.push(String(await client.tryAcquire("Moe").catch(String)));
    assert.match(texts[0] ?? "", advice);
    assert.match(texts[2] ?? "", new RegExp(code));
    assert.doesNotMatch(texts[2] ?? "", /https|address/);
  }
});

test("wrong address says what to do", async () => {
  await using service = await LocalService.start();
  const rejected = async (options: ClientOptions): Promise<Error> => {
    const error: unknown = await new Client(options).tryAcquire(freshKey()).catch((thrown: unknown) => thrown);
    assert.ok(error instanceof Error);
    return error;
  };
  assert.match((await rejected({ url: `${service.url}/prod` })).message, /check the path of the url/);
  assert.match((await rejected({ url: service.url.replace("http:", "https:") })).message, /check the address/);
  assert.match((await rejected({ url: "http://127.0.0.1:1" })).message, /check the address/);
  assert.throws(() => new Client(), /Either url or transport is needed/);
  assert.throws(() => new Client({ url: undefined }), /Either url or transport is needed/);
  assert.throws(() => new Client({ url: "locks.example.com" }), /must be absolute, such as https:/);
  await using proxy = await FaultProxy.start(service.url);
  proxy.fault = () => ({ status: 404, body: '{"message":"Not Found"}' });
  assert.equal((await rejected({ url: proxy.url })).message, "The answer is HTTP 404 (Not Found). Check the url.");
  proxy.fault = () => ({ status: 500, body: '{"type":"misconfigured","status":500,"detail":"No table."}' });
  await assert.rejects(new Client({ url: proxy.url }).acquire(freshKey(), { wait: Infinity }), MisconfiguredError);
  assert.equal(proxy.seen.length, 2, "it is certain, and not tried again");
});

test("direct invocation without a region or credentials says so", async () => {
  const endpoint = "http://127.0.0.1:1";
  const nothing = { endpoint, maxAttempts: 1 };
  const regionless = new LambdaClient({
    ...nothing,
    region: () => Promise.reject<string>(new Error("Region is missing")),
    credentials: { accessKeyId: "a", secretAccessKey: "b" },
  });
  const error = Object.assign(new Error("Could not load credentials from any providers"), {
    name: "CredentialsProviderError",
  });
  const nobody = new LambdaClient({ ...nothing, region: "eu-central-1", credentials: () => Promise.reject(error) });
  await assert.rejects(
    new Client({ transport: lambda("f", { client: regionless }) }).acquire("Moe"),
    (thrown) => thrown instanceof InvalidRequestError && thrown.message.includes("no region"),
  );
  await assert.rejects(
    new Client({ transport: lambda("f", { client: nobody }) }).acquire("Moe"),
    (thrown) => thrown instanceof ForbiddenError && thrown.message.includes("credentials"),
  );
});

describe("many requests at once", () => {
  const missing = {
    status: 404,
    headers: { get: () => null },
    text: () => Promise.resolve('{"type":"not-found","status":404}'),
  };

  test("share few connections, first come, first served", async () => {
    const order: string[] = [];
    let [underWay, most] = [0, 0];
    const fetch: Fetch = async (url) => {
      order.push(url);
      underWay += 1;
      most = Math.max(most, underWay);
      await sleep(5);
      underWay -= 1;
      return missing;
    };
    const client = new Client({ url: "http://127.0.0.1:9", fetch });
    const asked = Array.from({ length: 150 }, (_, number) => client.get(`key-${number}`));
    for (const each of asked) assert.equal(await each, undefined);
    assert.equal(most, 64);
    assert.deepEqual(
      order,
      Array.from({ length: 150 }, (_, number) => `http://127.0.0.1:9/v1/lock?key=key-${number}`),
    );
  });

  test("leave the places of those that were given up", async () => {
    let asked = 0;
    const fetch: Fetch = (_, { signal }) => {
      asked += 1;
      if (asked > 64) return Promise.resolve(missing);
      return new Promise((_, reject) => {
        signal.addEventListener("abort", () => {
          reject(signal.reason as Error);
        });
      });
    };
    const client = new Client({ url: "http://127.0.0.1:9", fetch });
    const stop = new AbortController();
    const hanging = Array.from({ length: 70 }, (_, number) =>
      client.tryAcquire(`key-${number}`, { signal: stop.signal }),
    );
    await sleep(10);
    assert.equal(asked, 64);
    stop.abort();
    await Promise.allSettled(hanging);
    assert.equal(await client.get("Moe"), undefined);
  });

  test("are not kept waiting by long ones", async () => {
    let watches = 0;
    const view = { key: "Moe", state: "held", ownerName: "o", recordVersionNumber: "v", leaseDurationMs: 60_000 };
    const fetch: Fetch = (url, { signal }) => {
      if (!url.includes("/v1/watch"))
        return Promise.resolve({ ...missing, status: 200, text: () => Promise.resolve(JSON.stringify(view)) });
      watches += 1;
      return new Promise((_, reject) => {
        signal.addEventListener("abort", () => {
          reject(signal.reason as Error);
        });
      });
    };
    const client = new Client({ url: "http://127.0.0.1:9", fetch });
    const stop = new AbortController();
    const observers = Array.from({ length: 70 }, async (_, number) => {
      for await (const _view of client.observe(`key-${number}`, { signal: stop.signal }));
    });
    while (watches < 70) await sleep(5);
    assert.equal((await client.get("Moe"))?.state, "held");
    stop.abort();
    await Promise.allSettled(observers);
  });
});

test("https before a port that speaks no TLS is told in one line", async () => {
  await using service = await LocalService.start();
  const client = new Client({ url: service.url.replace("http:", "https:") });
  await assert.rejects(client.tryAcquire("Moe"), (error) => {
    assert.ok(error instanceof UnavailableError);
    assert.match(error.message, /^https:.*the port seems to speak no TLS, which needs http:\/\/ in the url.*\.$/);
    return true;
  });
});
