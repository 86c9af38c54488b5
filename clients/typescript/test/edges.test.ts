/** The edges that users touch: waiting for oneself, leaving in an outage, forgotten guards, durations, decorators. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { after, describe, mock, test } from "node:test";
import { promisify } from "node:util";
import {
  Client,
  type Duration,
  ForbiddenError,
  Guard,
  InvalidRequestError,
  LeaseholdError,
  LockHeldError,
  LockLostError,
  type LogFields,
  type Logger,
  PermitGuard,
  UnavailableError,
  WouldDeadlockError,
} from "../dist/index.js";
import * as errors from "../dist/errors.js";
import { eventually, type Fault, FaultProxy, freshKey, guardOf, heldOf, LocalService, sleep } from "./support.js";

const service = await LocalService.start();
after(() => service[Symbol.asyncDispose]());

/** What the body says on the console, and what it returns. */
async function warned(body: () => Promise<void>): Promise<string[]> {
  const warn = mock.method(console, "warn", () => undefined);
  try {
    await body();
    return warn.mock.calls.map(({ arguments: [text] }) => String(text));
  } finally {
    warn.mock.restore();
  }
}

describe("waiting for oneself", () => {
  test("wait for the lock of the scope is refused at once", async () => {
    const key = freshKey();
    await using proxy = await FaultProxy.start(service.url);
    await using client = new Client({ url: proxy.url });
    await client.withLock(key, async (guard) => {
      const asked = proxy.seen.length;
      for (const wait of ["lease", Infinity, "60s"] as const) {
        await assert.rejects(client.acquire(key, { wait }), (error) => {
          assert.ok(error instanceof WouldDeadlockError && error instanceof LeaseholdError);
          assert.equal(error.retryable, false);
          assert.match(error.message, /reentrant: true/);
          return true;
        });
      }
      await assert.rejects(client.acquireAll([freshKey(), key]), WouldDeadlockError);
      await assert.rejects(Promise.all([client.withLock(key, () => 1)]), WouldDeadlockError, "started in the scope");
      assert.equal(proxy.seen.length, asked, "it sends nothing");
      heldOf(await client.tryAcquire(key));
      await guard.release();
      await client.withLock(key, () => undefined);
    });
  });

  test("reentrant scope uses the outer guard, and releases nothing", async () => {
    const key = freshKey();
    await using client = service.client();
    await client.withLock(key, async (outer) => {
      await client.withLock(
        key,
        (inner) => {
          assert.equal(inner, outer);
        },
        { reentrant: true },
      );
      assert.ok(outer.valid);
    });
    assert.equal((await client.get(key))?.state, "released");
    await client.withLock(key, (guard) => assert.ok(guard.valid), { reentrant: true });
  });

  test("other flows of the client wait as before", async () => {
    const key = freshKey();
    await using client = service.client();
    let most = 0;
    let now = 0;
    await Promise.all(
      Array.from({ length: 5 }, () =>
        client.withLock(
          key,
          async () => {
            most = Math.max(most, ++now);
            await sleep(5);
            now -= 1;
          },
          { wait: "60s" },
        ),
      ),
    );
    assert.equal(most, 1);
  });

  test("holder of all permits cannot wait for one", async () => {
    await using client = service.client();
    const semaphore = client.semaphore(freshKey(), 2);
    await semaphore.withPermits(
      async () => {
        await assert.rejects(semaphore.acquire(), WouldDeadlockError);
        assert.equal((await semaphore.tryAcquire()).kind, "held");
      },
      { permits: 2 },
    );
    await semaphore.withPermits(async () => {
      await semaphore.withPermits((guard) => assert.ok(guard instanceof PermitGuard));
    });
  });
});

describe("leaving in an outage", () => {
  for (const how of ["withLock", "await using", "close"] as const) {
    test(`${how} is bounded, and goes on in the background`, async () => {
      const key = freshKey();
      await using proxy = await FaultProxy.start(service.url);
      const client = new Client({ url: proxy.url, lease: "60s" });
      let begun = 0;
      let free = (): void => undefined;
      const hung = new Promise<Fault>((resolve) => {
        free = () => {
          resolve("lose request");
        };
      });
      const hang = (): void => {
        proxy.fault = ({ call }) => (call === "release" ? hung : "pass");
        begun = performance.now();
      };
      const said = await warned(async () => {
        if (how === "withLock") await client.withLock(key, hang);
        else {
          await using guard = guardOf(await client.acquire(key));
          hang();
          if (how === "close") await client.close();
          assert.ok(guard instanceof Guard);
        }
      });
      assert.ok(performance.now() - begun < 8000, "about two seconds, on a busy machine");
      assert.ok(said.some((text) => text.includes("in the background") && text.includes(key)));
      proxy.fault = () => "pass";
      free();
      await using looker = service.client();
      await eventually(async () => (await looker.get(key))?.state === "released", "it is released");
      await client.close();
    });
  }
});

describe("holding for too long, and forgetting", () => {
  test("maxHold ends the hold", async () => {
    const key = freshKey();
    await using client = service.client();
    const guard = guardOf(await client.acquire(key, { maxHold: "300ms" }));
    assert.ok(guard.remaining() <= 300);
    await eventually(() => guard.signal.aborted, "it is lost");
    assert.equal(guard.lost, "max-hold");
    assert.equal(guard.valid, false);
    assert.throws(() => {
      guard.ensureHeld();
    }, LockLostError);
    assert.equal((await client.get(key))?.state, "held", "its work may go on: the lease runs out");
    await assert.rejects(client.acquire(freshKey(), { maxHold: 0 }), { field: "maxHold" });
  });

  test("lock that the program forgot is released at its end", async () => {
    const key = freshKey();
    const program = `
      import { Client } from ${JSON.stringify(new URL("../dist/index.js", import.meta.url).href)};
      const guard = await new Client({ url: ${JSON.stringify(service.url)}, lease: "10m" }).acquire(${JSON.stringify(key)});
      console.log(guard.granted().valid);`;
    const node = promisify(execFile)(process.execPath, ["--input-type=module", "--eval", program]);
    const { stdout, stderr } = await node;
    assert.equal(stdout, "true\n");
    assert.match(stderr, /was never released/);
    await using client = service.client();
    assert.equal((await client.get(key))?.state, "released");
  });
});

describe("durations", () => {
  for (const lease of [30_000, "30s", "0.5m", "30000ms", "29s1000ms"] as Duration[]) {
    test(`${lease} is a lease`, async () => {
      await using client = new Client({ url: service.url, lease, pollInterval: "1s", waitMargin: "2s" });
      const guard = guardOf(await client.acquire(freshKey(), { wait: "1m", lockDelay: "1s", heartbeatInterval: "5s" }));
      assert.equal(client.lease, 30_000);
      assert.equal(guard.leaseDuration, 30_000);
      await guard.renew({ lease: "1m" });
      assert.equal(guard.leaseDuration, 60_000);
      await guard.release();
    });
  }

  for (const lease of ["20", "20 s", "-1s", "soon", "1m30", NaN, -1] as Duration[]) {
    test(`${lease} is none`, async () => {
      await using client = service.client();
      await assert.rejects(client.acquire(freshKey(), { lease }), { name: "InvalidRequestError", field: "lease" });
      await assert.rejects(client.acquire(freshKey(), { wait: lease }), { field: "wait" });
    });
  }
});

describe("errors", () => {
  test("each says whether to retry, and has its name", () => {
    const classes = Object.entries(errors).filter(([name]) => name.endsWith("Error") && name !== "LeaseholdError");
    const retryable = classes
      .filter(
        ([, made]) => (Object.create((made as { prototype: object }).prototype) as object) instanceof LeaseholdError,
      )
      .map(([name]) => name);
    assert.ok(retryable.length > 20);
    assert.equal(new UnavailableError("x").retryable, true);
    assert.equal(new InvalidRequestError("x").retryable, false);
    assert.equal(new WouldDeadlockError("x").name, "WouldDeadlockError");
  });

  test("request that is not JSON is the caller's mistake", async () => {
    await using client = service.client();
    const circle: Record<string, unknown> = {};
    circle["itself"] = { circle };
    for (const [value, refused] of [
      [1n, "it has the BigInt 1"],
      [Number.NaN, "it has the number NaN"],
      [[-Infinity], "it has the number -Infinity"],
      [[1, undefined], "it has undefined in a list"],
      [() => 1, "it has a function"],
      [new Map([["b", 1]]), "it has a Map"],
      [new Set([1]), "it has a Set"],
      [new Date(Number.NaN), "it has an invalid Date"],
      ["\ud800", "it has a text that is not Unicode"],
      [circle, "it contains itself"],
    ] as const) {
      await assert.rejects(client.acquire(freshKey(), { attributes: { a: value } }), {
        name: "InvalidRequestError",
        message: `The attributes is not JSON: ${refused}.`,
        field: "attributes",
      });
    }
    for (const data of [5, { a: 1 }, [1], null] as unknown as string[]) {
      await assert.rejects(client.acquire(freshKey(), { data }), {
        name: "InvalidRequestError",
        message: /^The data must be a string or a Uint8Array, not \w+\.$/,
        field: "data",
      });
    }
    const key = freshKey();
    const attributes = { at: new Date(0), absent: undefined, none: null, pair: "😀" };
    await guardOf(await client.acquire(key, { attributes })).release();
    assert.deepEqual((await client.get(key))?.attributes, {
      at: "1970-01-01T00:00:00.000Z",
      none: null,
      pair: "😀",
    });
    const wrong: [string, () => Promise<unknown>][] = [
      ["limit must be a whole number, 1 or more, not -1.", () => client.history(key, { limit: -1 })],
      ["limit must be a whole number, 1 or more, not NaN.", () => client.history(key, { limit: Number.NaN })],
      ["sinceMs must be a whole number, 0 or more, not 1.5.", () => client.history(key, { sinceMs: 1.5 })],
      ["pageSize must be a whole number, 1 to 1000, not 0.", () => client.pages({ pageSize: 0 }).next()],
      ["pageSize must be a whole number, 1 to 1000, not 1001.", () => client.pages({ pageSize: 1001 }).next()],
      ["key must be a string.", () => client.get(5 as unknown as string)],
      ["key must be a string, not the number 5.", () => client.tryAcquire(5 as unknown as string)],
      ["key is missing.", () => client.tryAcquire(undefined as unknown as string)],
      ["body must be a function.", () => client.withLock(key, undefined as unknown as () => void)],
      ["The keys must be a list.", () => client.acquireAll("ab" as unknown as string[])],
      [
        "The token must be a string, or a function that returns one.",
        () => new Client({ url: service.url, token: 5 as unknown as string }).get(key),
      ],
      [
        "The url must be a string or a URL, or a list of these.",
        async () => new Client({ url: 5 as unknown as string }),
      ],
    ];
    for (const [message, call] of wrong) await assert.rejects(call, { name: "InvalidRequestError", message });
    await using nobody = new Client({ url: service.url, token: "" });
    await assert.rejects(nobody.acquire(freshKey()), { name: "InvalidRequestError", field: "token" });
  });
});

describe("decorators", () => {
  test("locked runs a function, or a method, under the lock", async () => {
    const key = freshKey();
    await using client = service.client();
    const state = client.locked(key)(async (suffix: string) => `${(await client.get(key))?.state}${suffix}`);
    assert.equal(await state("!"), "held!");
    assert.equal((await client.get(key))?.state, "released");

    class Orders {
      readonly found: string[] = [];
      @client.locked((id: number) => `${key}-${id}`)
      async ship(id: number): Promise<number> {
        this.found.push(`${(await client.get(`${key}-${id}`))?.state}`);
        return id;
      }
    }
    const orders = new Orders();
    assert.equal(await orders.ship(7), 7);
    assert.deepEqual(orders.found, ["held"]);
  });

  test("onceEvery runs once in each period", async () => {
    const key = freshKey();
    let epoch = Date.UTC(2026, 10, 21, 2, 30);
    const runtime = { ...(await import("../dist/runtime.js")).systemRuntime, epoch: () => epoch };
    await using client = new Client({ url: service.url, runtime });
    let runs = 0;
    const job = client.onceEvery(key, "1h", { wait: "1m" })(() => `run ${++runs}`);
    assert.deepEqual(await job(), { kind: "ran", value: "run 1" });
    assert.equal((await job()).kind, "already-done");
    epoch += 3_600_000;
    assert.deepEqual(await job(), { kind: "ran", value: "run 2" });
    assert.equal((await client.get(key))?.lastOccurrence, "2026-11-21T03:00:00.000Z");
    epoch += 3_600_000;
    await client.withLock(key, async () => {
      await assert.rejects(job(), WouldDeadlockError);
    });
    assert.throws(() => client.onceEvery(key, 10), { field: "period" });
    assert.ok(LockHeldError);
  });
});

test("warnings go to the logger of the client, with members", async () => {
  const key = freshKey();
  await using proxy = await FaultProxy.start(service.url);
  const said: { message: string; fields: LogFields }[] = [];
  const logger: Logger = { warn: (message, fields) => void said.push({ message, fields }) };
  await using client = new Client({ url: proxy.url, logger });
  const silent = await warned(async () => {
    await client.withLock(key, () => {
      proxy.fault = ({ call }) => (call === "release" ? { status: 403, body: "{}" } : "pass");
    });
  });
  assert.deepEqual(silent, []);
  assert.equal(said.length, 1);
  assert.match(said[0]?.message ?? "", new RegExp(`^the lock "${key}" could not be released: `));
  assert.equal(said[0]?.fields.key, key);
  assert.ok(said[0]?.fields.error instanceof ForbiddenError);
});
