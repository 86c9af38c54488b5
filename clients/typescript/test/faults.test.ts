/** Faults between a client and the real service. */
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, describe, test } from "node:test";
import { AwsClient } from "aws4fetch";
import {
  Client,
  CloseError,
  CorruptRecordError,
  type ErrorKind,
  ForbiddenError,
  type Holding,
  InvalidRequestError,
  LeaseholdError,
  LockLostError,
  ThrottledError,
  UnavailableError,
} from "../dist/index.js";
import {
  aborted,
  breakHeld,
  eventually,
  type Fault,
  FaultProxy,
  firstTimes,
  freshKey,
  guardOf,
  heldOf,
  LocalService,
  type SeenRequest,
  sleep,
} from "./support.js";

const service = await LocalService.start();
after(() => service[Symbol.asyncDispose]());

const isReleased = async (key: string): Promise<boolean> => (await service.client().get(key))?.state === "released";
const versionOf = async (key: string): Promise<string | undefined> =>
  (await service.client().get(key))?.recordVersionNumber;

/** A proxy, and a client behind it. */
async function throughProxy(
  options: Parameters<LocalService["client"]>[0] = {},
): Promise<{ proxy: FaultProxy; client: Client } & AsyncDisposable> {
  const proxy = await FaultProxy.start(service.url);
  const client = service.client({ url: proxy.url, ...options });
  return { proxy, client, [Symbol.asyncDispose]: () => proxy[Symbol.asyncDispose]() };
}

const unavailable: Fault = {
  status: 503,
  headers: { "content-type": "application/problem+json" },
  body: JSON.stringify({ type: "unavailable", status: 503, title: "t", detail: "d", retryable: true }),
};

describe("outages and lost answers", { concurrency: 6 }, () => {
  for (const fault of [
    "lose answer",
    "lose request",
    unavailable,
    { status: 502, body: "<html>Bad gateway</html>" },
    { status: 429, body: "slow down" },
  ] as Fault[]) {
    test(`acquire keeps its lease id when retried: ${JSON.stringify(fault)}`, async () => {
      await using parts = await throughProxy();
      const { proxy, client } = parts;
      proxy.fault = firstTimes(2, "acquire", fault);
      const key = freshKey();
      const guard = guardOf(await client.acquire(key, { wait: 60_000 }));
      assert.equal(guard.outcome, "created", "as the first request was answered");
      assert.equal(proxy.calls("acquire").length, 3);
      const bodies = new Set(proxy.calls("acquire").map(({ body }) => JSON.stringify(body)));
      // A gateway's 429 never reached the service: nothing is open, and each request is a new one.
      const isRefusedByGateway = typeof fault === "object" && "status" in fault && fault.status === 429;
      assert.equal(bodies.size, isRefusedByGateway ? 3 : 1, "byte for byte");
      assert.equal(proxy.calls("acquire")[0]?.body["sequence"], 1);
      await guard.release();
      assert.ok(await isReleased(key));
    });
  }

  test("grant counts from before the answered request was sent", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    proxy.fault = firstTimes(1, "acquire", { delayAnswer: 300 });
    const guard = guardOf(await client.tryAcquire(freshKey(), { lease: 20_000 }));
    assert.ok(guard.remaining() <= 19_700, `${guard.remaining()}`);
    await guard.release();
  });

  test("heartbeats and resumes count from before they were sent", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const key = freshKey();
    const guard = guardOf(await client.tryAcquire(key, { lease: 20_000, heartbeatInterval: false }));
    proxy.fault = ({ call }) => (call === "heartbeat" ? { delayAnswer: 300 } : "pass");
    await guard.renew();
    assert.ok(guard.remaining() <= 19_700, `${guard.remaining()}`);
    const resumed = await client.resume(guard.detach(), { heartbeatInterval: false });
    assert.ok(resumed.remaining() <= 19_700, `${resumed.remaining()}`);
    await resumed.release();
  });

  test("tryAcquire does not retry, and releases a possible grant", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    proxy.fault = firstTimes(1, "acquire", "lose answer");
    const key = freshKey();
    await assert.rejects(client.tryAcquire(key), UnavailableError);
    assert.equal(proxy.calls("acquire").length, 1);
    await eventually(() => isReleased(key), "released");
    await client.close();
  });

  test("refusal that is no outage is not tried again", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    proxy.fault = () => ({ status: 403, body: "{}" });
    await assert.rejects(client.acquire(freshKey()), ForbiddenError);
    await assert.rejects(client.get("a"), ForbiddenError);
    assert.equal(proxy.seen.length, 2, "nothing was granted, so nothing is released");
  });

  test("outage for all of the wait is unavailable, and not held", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    proxy.fault = ({ call }) => (call === "acquire" ? unavailable : "pass");
    await assert.rejects(client.acquire(freshKey(), { wait: 6000 }), UnavailableError);
    assert.ok(proxy.calls("acquire").length >= 2);
    await client.close();
  });

  test("slow answer is cut off at the end of the wait", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const key = freshKey();
    const holder = guardOf(await service.client().tryAcquire(key));
    let isSlow = false;
    proxy.fault = ({ call }) => (call === "acquire" && isSlow ? { delayRequest: 12_000 } : "pass");
    const start = performance.now();
    const waiting = client.acquire(key, { wait: 9000, lease: 20_000 });
    await eventually(() => proxy.calls("acquire").length > 2, "answers");
    // The end of the wait comes before the time-out of a request, which is 5 s.
    await sleep(5000 - (performance.now() - start));
    isSlow = true;
    const polls = proxy.calls("acquire").length;
    await eventually(() => proxy.calls("acquire").length > polls, "a poll without an answer");
    // The delayed request would be granted now.
    await holder.release();
    heldOf(await waiting);
    assert.ok(performance.now() - start < 12_000);
    await eventually(
      async () => (await service.client().get(key))?.ownerName === "test" && (await isReleased(key)),
      "released",
    );
    await client.close();
    assert.ok(await isReleased(key));
    // The first release found nothing: it may have overtaken the request, so it is repeated once.
    assert.ok(proxy.calls("release").length <= 2);
  });

  test("wait continues with a fresh lease id after a broken grant", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const key = freshKey();
    // The client gets no answer. The operator sees a holder that does not heartbeat, and breaks its lock.
    proxy.fault = async ({ call }) => {
      if (call === "acquire" && proxy.calls(call).length === 1) return { delayAnswer: 60_000 };
      if (call === "acquire" && proxy.calls(call).length === 2) await breakHeld(service.client(), key);
      return "pass";
    };
    const guard = guardOf(await client.acquire(key, { wait: 60_000, lease: 20_000 }));
    const leaseIds = proxy.calls("acquire").map(({ body }) => body["leaseId"]);
    assert.equal(leaseIds[0], leaseIds[1]);
    assert.notEqual(leaseIds[0], leaseIds.at(-1));
    assert.equal(new Set(leaseIds).size, 2);
    assert.equal(guard.outcome, "reacquired");
    await guard.release();
  });

  test("heartbeats outlive an outage shorter than the lease", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const guard = guardOf(await client.tryAcquire(freshKey(), { heartbeatInterval: 200 }));
    let down = true;
    proxy.fault = ({ call }) => (down && call === "heartbeat" ? "lose request" : "pass");
    await sleep(1500);
    assert.ok(guard.valid);
    down = false;
    const before = guard.recordVersionNumber;
    await eventually(() => guard.recordVersionNumber !== before, "renewed");
    assert.equal(guard.lost, undefined);
    assert.equal(guard.signal.aborted, false);
    await guard.release();
  });

  test("long Retry-After does not cost the lock", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const guard = guardOf(await client.acquire(freshKey(), { lease: 9000, heartbeatInterval: 100 }));
    proxy.fault = firstTimes(1, "heartbeat", { status: 429, headers: { "retry-after": "60" }, body: "" });
    const before = guard.recordVersionNumber;
    await eventually(() => guard.recordVersionNumber !== before, "renewed");
    assert.ok(guard.valid);
    await guard.release();
  });

  for (const fault of [
    "lose request",
    unavailable,
    { status: 403, body: "{}" },
    { status: 400, body: "{}" },
    { status: 200, body: "<html>" },
  ] as Fault[]) {
    test(`long outage expires the lease, and is no theft: ${JSON.stringify(fault)}`, async () => {
      await using parts = await throughProxy();
      const { proxy, client } = parts;
      const lease = 5000;
      const guard = guardOf(await client.acquire(freshKey(), { lease, heartbeatInterval: 200 }));
      proxy.fault = ({ call }) => (call === "heartbeat" ? fault : "pass");
      const start = performance.now();
      await aborted(guard.signal);
      assert.ok(guard.signal.reason instanceof LockLostError);
      assert.equal(guard.signal.reason.reason, "expired");
      assert.ok(guard.signal.reason.cause instanceof LeaseholdError, "with the cause");
      assert.ok(performance.now() - start >= lease / 3);
      assert.ok(proxy.calls("heartbeat").length >= 2, "tried again");
      assert.equal(proxy.calls("release").length, 0, "a lock that was lost is not released");
      const sent = proxy.calls("heartbeat").length;
      await sleep(300);
      assert.ok(proxy.calls("heartbeat").length <= sent + 1, "no heartbeats after the loss");
    });
  }

  test("heartbeat is too late when answered after the lease", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const guard = guardOf(await client.acquire(freshKey(), { lease: 5000, heartbeatInterval: false }));
    proxy.fault = ({ call }) => (call === "heartbeat" ? { delayAnswer: 700 } : "pass");
    await sleep(guard.remaining() - 300);
    await assert.rejects(guard.renew(), (error) => error instanceof LockLostError && error.reason === "expired");
    await sleep(700);
    assert.equal(guard.valid, false, "and stays lost");
    assert.equal(guard.remaining(), 0);
  });

  test("lost answers of heartbeats: renewed all the same", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const guard = guardOf(await client.tryAcquire(freshKey(), { lease: 20_000, heartbeatInterval: false }));
    proxy.fault = firstTimes(2, "heartbeat", "lose answer");
    await guard.renew({ data: "kept" });
    assert.equal(proxy.calls("heartbeat").length, 3);
    assert.ok(
      proxy.calls("heartbeat").every(({ body }) => body["leaseDurationMs"] === 20_000 && body["data"] === "kept"),
      "the lease is named",
    );
    await guard.release();
  });

  test("unanswered shorter lease caps the belief", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const guard = guardOf(await client.tryAcquire(freshKey(), { lease: 60_000, heartbeatInterval: false }));
    proxy.fault = firstTimes(1, "heartbeat", "lose answer");
    const controller = new AbortController();
    const shortened = assert.rejects(guard.renew({ lease: 8000, signal: controller.signal }), /enough/);
    await eventually(() => proxy.calls("heartbeat").length > 0, "sent");
    controller.abort(new Error("enough"));
    await shortened;
    assert.ok(guard.remaining() > 0 && guard.remaining() <= 8000, `${guard.remaining()}`);
    await guard.renew({ lease: 60_000 });
    assert.equal(guard.leaseDuration, 60_000);
    assert.ok(guard.remaining() > 8000, "no request with a lower number can be carried out any more");
    const sent = proxy.calls("heartbeat").map(({ body }) => [body["sequence"], body["leaseDurationMs"]]);
    assert.deepEqual(
      sent,
      [
        [2, 8000],
        [2, 8000],
        [3, 60_000],
      ],
      "the abandoned request is repeated first",
    );
    await guard.release();
  });

  test("heartbeat that arrives late changes nothing", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const key = freshKey();
    const guard = guardOf(await client.tryAcquire(key, { lease: 60_000, heartbeatInterval: false }));
    await guard.renew({ lease: 8000, data: "up to 17" });
    await guard.renew({ lease: 60_000, data: "up to 18" });
    const [late] = proxy.calls("heartbeat");
    const answer = await fetch(`${service.url}/v1/heartbeat`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(late?.body),
    });
    assert.equal(answer.status, 409);
    assert.equal(((await answer.json()) as { type: string }).type, "superseded");
    const lock = await client.get(key);
    assert.equal(lock?.text, "up to 18");
    assert.equal(lock.leaseDurationMs, 60_000);
    await guard.release();
  });

  test("superseded heartbeat is no loss, and the next one succeeds", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const key = freshKey();
    const guard = guardOf(await client.tryAcquire(key, { heartbeatInterval: false }));
    for (let renewals = 0; renewals < 3; renewals += 1) await service.client().heartbeat(key, guard.leaseId);
    await guard.renew();
    assert.ok(guard.valid);
    const numbers = proxy.calls("heartbeat").map(({ body }) => Number(body["sequence"]));
    assert.equal(numbers.length, 2, "one that is superseded, and one above it");
    assert.ok((numbers[1] ?? 0) > (numbers[0] ?? 0) + 1, numbers.join());
    await guard.release();
  });

  test("takeover whose answer was lost still tells the predecessor", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const key = freshKey();
    guardOf(await service.client({ ownerName: "dead" }).acquire(key, { lease: 3000, heartbeatInterval: false }));
    let lost = 0;
    proxy.fault = ({ body }) =>
      body["observedRecordVersionNumber"] !== undefined && ++lost === 1 ? "lose answer" : "pass";
    const guard = guardOf(await client.acquire(key, { lease: 8000, wait: 60_000 }));
    assert.equal(guard.outcome, "takenOver");
    assert.equal(guard.previousOwnerName, "dead");
    await guard.release();
  });

  test("answer with another token is a loss", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const guard = guardOf(await client.tryAcquire(freshKey(), { heartbeatInterval: false }));
    const body = JSON.stringify({
      recordVersionNumber: "v",
      leaseDurationMs: 20_000,
      fencingToken: guard.fencingToken + 1,
    });
    proxy.fault = firstTimes(1, "heartbeat", { status: 200, body });
    await assert.rejects(guard.renew(), (error) => error instanceof LockLostError && error.reason === "taken-over");
    assert.equal(guard.valid, false);
  });

  test("detach hands the number on, and resume goes on above it", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const key = freshKey();
    const guard = guardOf(await client.tryAcquire(key, { lease: 30_000 }));
    await guard.renew();
    const handover = guard.detach();
    assert.equal(guard.valid, false);
    assert.equal(guard.lost, undefined, "handing on is no loss");
    await guard.release();
    assert.equal(proxy.calls("release").length, 0);
    const resumed = await client.resume(handover);
    assert.equal(resumed.leaseDuration, 30_000, "the record's lease stays");
    assert.equal(resumed.fencingToken, guard.fencingToken);
    assert.deepEqual(
      proxy.calls("heartbeat").map(({ body }) => body["sequence"]),
      [2, 3],
    );
    assert.equal(await resumed.release(), "released");
  });

  test("client does not pause before a key that nobody wants", async () => {
    const key = freshKey();
    const client = service.client({ pollInterval: 3_600_000 });
    for (let cycle = 0; cycle < 6; cycle += 1) await guardOf(await client.acquire(key)).release();
  });

  test("waiter marks the lock of another client", async () => {
    const key = freshKey();
    const guard = guardOf(await service.client().tryAcquire(key));
    const leaving = new AbortController();
    const options = { wait: Infinity, signal: leaving.signal };
    const waiting = assert.rejects(service.client({ ownerName: "waiter" }).acquire(key, options), /left/);
    await eventually(async () => (await service.client().get(key))?.wantedBy === "waiter", "the mark");
    leaving.abort(new Error("left"));
    await waiting;
    await guard.renew();
    assert.equal(guard.wanted, true);
    await guard.release();
  });

  test("history tells who held a lock", async () => {
    await using keeper = await LocalService.start("--history", "1d");
    const [key, client] = [freshKey(), keeper.client()];
    await guardOf(await client.tryAcquire(key)).release();
    const held = guardOf(await client.tryAcquire(key));
    await client.breakLock(key, held.recordVersionNumber);
    await eventually(async () => (await client.history(key)).length === 4, "all events");
    const entries = await client.history(key);
    assert.deepEqual(
      entries.map(({ event }) => event),
      ["broken", "acquired", "released", "acquired"],
    );
    assert.equal(entries[0]?.fencingToken, held.fencingToken);
    assert.deepEqual(await client.history(key, { limit: 1 }), entries.slice(0, 1));
    assert.deepEqual(await client.history(key, { sinceMs: entries[3]?.atMs }), entries);
    await assert.rejects(service.client().history(key), { name: "LockNotFoundError" });
  });

  test("occurrence is set back by an operator", async () => {
    const key = freshKey();
    const client = service.client();
    const run = async (occurrence: string) => (await client.once(key, occurrence, () => undefined)).kind;
    assert.equal(await run("9999"), "ran");
    assert.equal(await run("2026-2"), "already-done");
    const seen = (await client.get(key))?.recordVersionNumber ?? "";
    const version = await client.setOccurrence(key, "2026-1", seen);
    assert.equal((await client.get(key))?.recordVersionNumber, version);
    assert.equal(await run("2026-2"), "ran");
    await assert.rejects(client.setOccurrence(key, "2026-1", seen), { name: "VersionMismatchError" });
  });

  test("client pauses one poll before a key that is wanted", async () => {
    const key = freshKey();
    const client = service.client({ pollInterval: 5000 });
    const guard = guardOf(await client.tryAcquire(key));
    const marked = await fetch(`${service.url}/v1/want`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ key, ownerName: "waiter" }),
    });
    assert.deepEqual(await marked.json(), { outcome: "marked" });
    assert.equal((await client.get(key))?.wantedBy, "waiter");
    assert.equal(guard.wanted, false);
    await guard.renew();
    assert.equal(guard.wanted, true);
    await guard.release();
    const start = performance.now();
    const again = guardOf(await client.acquire(key));
    assert.ok(performance.now() - start >= 4900);
    await again.release();
    const asked = performance.now();
    await guardOf(await client.tryAcquire(key)).release();
    assert.ok(performance.now() - asked < 4900, "tryAcquire does not pause");
  });

  test("chosen poll interval overrides Retry-After", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const key = freshKey();
    const holder = guardOf(await service.client().tryAcquire(key));
    const leaving = new AbortController();
    const refusal = await fetch(`${service.url}/v1/acquire`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ key, ownerName: "another", leaseId: randomUUID() }),
    });
    const body = await refusal.text();
    proxy.fault = () => ({ status: refusal.status, headers: { "retry-after": "60" }, body });
    const waiting = assert.rejects(client.acquire(key, { wait: Infinity, signal: leaving.signal }), /left/);
    await eventually(() => proxy.calls("acquire").length > 5, "six polls, within a minute");
    leaving.abort(new Error("left"));
    await waiting;
    await holder.release();
  });

  test("only the last look fails: held, by the look before it", async () => {
    await using parts = await throughProxy();
    const { proxy } = parts;
    const key = freshKey();
    const holder = guardOf(await service.client({ ownerName: "holder" }).tryAcquire(key));
    let polls = 0;
    proxy.fault = ({ call }) => (call === "acquire" && ++polls > 1 ? unavailable : "pass");
    const patient = service.client({ url: proxy.url, pollInterval: 60_000 });
    assert.equal(heldOf(await patient.acquire(key, { wait: 3000 })).lock.ownerName, "holder");
    assert.equal(polls, 2);
    await holder.release();
  });

  test("lost heartbeat with a shorter lease hastens the next ones", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const guard = guardOf(await client.tryAcquire(freshKey(), { lease: 60_000 }));
    proxy.fault = firstTimes(1, "heartbeat", "lose answer");
    const controller = new AbortController();
    const shortened = assert.rejects(guard.renew({ lease: 6000, signal: controller.signal }), /enough/);
    await eventually(() => proxy.calls("heartbeat").length > 0, "sent");
    controller.abort(new Error("enough"));
    await shortened;
    await sleep(6500);
    assert.ok(guard.valid, guard.lost);
    assert.ok(proxy.calls("heartbeat").length >= 3, "the abandoned one again, and one above it");
    await guard.release();
  });

  test("holdOnUnavailable holds through an outage until a refusal", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const key = freshKey();
    const guard = guardOf(await client.acquire(key, { lease: 3000, heartbeatInterval: 150, holdOnUnavailable: true }));
    let [down, lost] = [true, 0];
    proxy.fault = ({ call }) => {
      if (!down || call !== "heartbeat") return "pass";
      lost += 1;
      return "lose request";
    };
    await eventually(() => guard.remaining() === 0, "the end of the lease");
    assert.ok(guard.valid);
    down = false;
    await eventually(() => guard.remaining() > 0, "renewed");
    assert.ok(guard.valid);
    down = true;
    const before = lost;
    await eventually(() => lost > before, "no heartbeat is under way");
    await breakHeld(service.client(), key);
    const thief = guardOf(await service.client().tryAcquire(key));
    await sleep(300);
    assert.ok(guard.valid, "it cannot know");
    down = false;
    await aborted(guard.signal);
    assert.equal(guard.lost, "taken-over");
    await thief.release();
  });

  test("lost answers of a release: replayed", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const key = freshKey();
    const guard = guardOf(await client.tryAcquire(key));
    proxy.fault = firstTimes(2, "release", "lose answer");
    assert.equal(await guard.release(), "replayed");
    assert.equal(proxy.calls("release").length, 3);
    assert.ok(await isReleased(key));
  });

  test("heartbeats stop before the release is sent", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const guard = guardOf(await client.tryAcquire(freshKey(), { heartbeatInterval: 50 }));
    proxy.fault = ({ call }) => (call === "release" ? { delayRequest: 500 } : "pass");
    const releasing = guard.release();
    assert.equal(guard.valid, false);
    await eventually(() => proxy.calls("release").length > 0, "sent");
    const beats = proxy.calls("heartbeat").length;
    assert.equal(await releasing, "released");
    assert.equal(proxy.calls("heartbeat").length, beats);
  });

  test("release during a heartbeat is no loss", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const guard = guardOf(await client.acquire(freshKey(), { heartbeatInterval: 50 }));
    proxy.fault = ({ call }) => (call === "heartbeat" ? { delayAnswer: 60_000 } : "pass");
    const before = proxy.calls("heartbeat").length;
    await eventually(() => proxy.calls("heartbeat").length > before, "a heartbeat under way");
    assert.equal(await guard.release(), "released");
    assert.deepEqual([guard.lost, guard.signal.aborted], [undefined, false]);
  });

  test("release that failed may be tried again", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const key = freshKey();
    const guard = guardOf(await client.tryAcquire(key));
    proxy.fault = firstTimes(1, "release", { status: 403, body: "{}" });
    await assert.rejects(guard.release(), ForbiddenError);
    assert.equal(await guard.release(), "released");
  });

  test("release that is tried again leaves what the first left", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const key = freshKey();
    const guard = guardOf(await client.tryAcquire(key, { occurrence: "2026-11-28T09" }));
    proxy.fault = firstTimes(1, "release", { status: 403, body: "{}" });
    await assert.rejects(guard.release({ completed: "2026-11-28T09", data: "the result" }), ForbiddenError);
    assert.equal(await guard.release(), "released");
    const lock = await client.get(key);
    assert.deepEqual([lock?.lastOccurrence, new TextDecoder().decode(lock?.data)], ["2026-11-28T09", "the result"]);
  });

  test("completion after a plain release is a loss", async () => {
    await using parts = await throughProxy();
    const { client } = parts;
    const key = freshKey();
    const body = async (guard: Holding): Promise<string> => {
      await guard.release();
      return "done";
    };
    await assert.rejects(client.once(key, "2026-11-28T09", body), LockLostError);
    assert.equal((await client.get(key))?.lastOccurrence, undefined);
  });

  test("refused release is tried again without what was refused", async () => {
    await using parts = await throughProxy();
    const { client } = parts;
    const key = freshKey();
    const guard = guardOf(await client.tryAcquire(key));
    await assert.rejects(guard.release({ completed: "2026-11-28T09" }), InvalidRequestError);
    assert.equal(await guard.release(), "released");
  });

  test("failed release hides neither error nor result of the body", async () => {
    const failures: { error: unknown; guard: Holding }[] = [];
    await using parts = await throughProxy({ onReleaseError: (error, guard) => failures.push({ error, guard }) });
    const { proxy, client } = parts;
    proxy.fault = ({ call }) => (call === "release" ? { status: 403, body: "{}" } : "pass");
    const mine = new Error("mine");
    const body = (): Promise<never> => Promise.reject(mine);
    await assert.rejects(client.withLock(freshKey(), body), (error) => error === mine);
    assert.equal(await client.withLock(freshKey(), () => "done"), "done");
    const block = async (): Promise<never> => {
      await using guard = (await client.acquire(freshKey())).granted();
      assert.ok(guard.valid);
      throw mine;
    };
    await assert.rejects(block(), (error) => error === mine);
    assert.equal(failures.length, 3);
    assert.ok(failures.every(({ error, guard }) => error instanceof ForbiddenError && !guard.valid));
  });

  test("failed release is warned of with key and reason", async (t) => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const warn = t.mock.method(console, "warn", () => undefined);
    proxy.fault = ({ call }) => (call === "release" ? { status: 403, body: "{}" } : "pass");
    const key = freshKey();
    await client.withLock(key, () => undefined);
    const warnings = warn.mock.calls
      .map(({ arguments: [message] }) => String(message))
      .filter((message) => message.includes(key));
    assert.deepEqual(warnings, [`leasehold: the lock "${key}" could not be released: The answer is HTTP 403.`]);
  });

  test("close: one release that fails does not stop the others", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    const keys = [freshKey(), freshKey(), freshKey()];
    for (const key of keys) guardOf(await client.tryAcquire(key));
    proxy.fault = ({ call, body }) =>
      call === "release" && body["key"] === keys[1] ? { status: 403, body: "{}" } : "pass";
    await assert.rejects(
      client.close(),
      (error) => error instanceof CloseError && error.errors.length === 1 && error.errors[0] instanceof ForbiddenError,
    );
    assert.deepEqual(await Promise.all(keys.map(isReleased)), [true, false, true]);
  });

  for (const [when, fault, reached] of [
    ["before the request is carried out", { delayRequest: 3000 }, (proxy) => proxy.calls("acquire").length > 0],
    ["before the answer comes", { delayAnswer: 3000 }, async (_, key) => (await versionOf(key)) !== undefined],
    ["between tries, after lost answers", "lose answer", (proxy) => proxy.calls("acquire").length > 1],
  ] as [string, Fault, (proxy: FaultProxy, key: string) => boolean | Promise<boolean>][]) {
    test(`abort ${when} is heeded at once, and leaves no lock`, async () => {
      await using parts = await throughProxy();
      const { proxy, client } = parts;
      const key = freshKey();
      proxy.fault = ({ call }) => (call === "acquire" ? fault : "pass");
      const reason = new Error("enough");
      const controller = new AbortController();
      const rejected = assert.rejects(client.acquire(key, { signal: controller.signal }), (error) => error === reason);
      await eventually(() => reached(proxy, key), when);
      const start = performance.now();
      controller.abort(reason);
      await rejected;
      assert.ok(performance.now() - start < 2500, "and not with the answer");
      await client.close();
      await eventually(() => isReleased(key), "it was granted, and given back");
    });
  }
});

describe("what an answer means", { concurrency: 8 }, () => {
  const problem = (type: string, status: number, more: object = {}): Fault => ({
    status,
    headers: { "content-type": "application/problem+json" },
    body: JSON.stringify({ type, status, title: "title", detail: "detail", ...more }),
  });
  for (const [name, fault, kind] of [
    ["a corrupt record", problem("corrupt-record", 500), "corrupt-record"],
    ["a service that is set up wrong", problem("misconfigured", 500), "misconfigured"],
    ["throttled", problem("throttled", 429), "throttled"],
    ["forbidden", problem("forbidden", 403), "forbidden"],
    ["too large", problem("too-large", 413), "invalid-request"],
    ["a kind of a later version, refused", problem("brand-new", 422), "invalid-request"],
    ["a kind of a later version, failed", problem("brand-new", 500), "unavailable"],
    ["a held without its lock", problem("held", 423), "unavailable"],
    ["a gateway's 401", { status: 401, body: '{"message":"Unauthorized"}' }, "forbidden"],
    ["a gateway's 403", { status: 403, body: '{"message":"Forbidden"}' }, "forbidden"],
    ["a gateway's 404", { status: 404, body: '{"message":"Not Found"}' }, "invalid-request"],
    ["a gateway's 429", { status: 429, body: '{"message":"Too Many Requests"}' }, "throttled"],
    ["a gateway's 504", { status: 504, body: "<html>" }, "unavailable"],
    ["a request time-out", { status: 408, body: "" }, "unavailable"],
    ["a redirect", { status: 302, headers: { location: "http://127.0.0.1:1/" }, body: "" }, "invalid-request"],
    ["a page with status 200", { status: 200, body: "<html>" }, "unavailable"],
    ["another document with status 200", { status: 200, body: '{"hello":1}' }, "unavailable"],
    ["nothing with status 204", { status: 204, body: "" }, "unavailable"],
    ["a connection that ends", "lose request", "unavailable"],
  ] as [string, Fault, ErrorKind][]) {
    test(`${name} is ${kind}`, async () => {
      await using parts = await throughProxy();
      const { proxy, client } = parts;
      proxy.fault = ({ call }) => (call === "acquire" ? fault : "pass");
      await assert.rejects(
        client.tryAcquire(freshKey()),
        (error) => error instanceof LeaseholdError && error.kind === kind,
      );
      await client.close();
    });
  }

  test("Retry-After is heeded", async () => {
    await using parts = await throughProxy();
    const { proxy, client } = parts;
    proxy.fault = firstTimes(1, "lock", { status: 429, headers: { "retry-after": "1" }, body: "" });
    const start = performance.now();
    assert.equal(await client.get(freshKey()), undefined);
    assert.ok(performance.now() - start >= 999);
    assert.equal(proxy.seen.length, 2);
    proxy.fault = () => ({ status: 429, headers: { "retry-after": "60" }, body: "" });
    await assert.rejects(client.get("a"), (error) => error instanceof ThrottledError && error.retryAfter === 60_000);
    proxy.fault = () => ({
      status: 429,
      headers: { "retry-after": new Date(Date.now() + 60_000).toUTCString() },
      body: "",
    });
    await assert.rejects(
      client.tryAcquire("a"),
      (error) => error instanceof ThrottledError && error.retryAfter === 0,
      "a date is ignored",
    );
  });

  test("closed port is unavailable within the time of one try", async () => {
    const server = createServer().listen(0, "127.0.0.1");
    await new Promise((resolve) => server.once("listening", resolve));
    const { port } = server.address() as AddressInfo;
    await new Promise((resolve) => server.close(resolve));
    const client = new Client({ url: `http://127.0.0.1:${port}/` });
    await assert.rejects(
      client.tryAcquire("a"),
      (error) =>
        error instanceof UnavailableError &&
        error.message.includes("ECONNREFUSED") &&
        error.message.includes(`http://127.0.0.1:${port} `),
    );
  });

  test("fetch that ignores its signal is abandoned", async () => {
    const client = new Client({ url: service.url, fetch: () => new Promise(() => undefined), lease: 1000 });
    await assert.rejects(client.tryAcquire("a"), UnavailableError);
    const controller = new AbortController();
    const get = client.get("a", { signal: controller.signal });
    controller.abort(new Error("enough"));
    await assert.rejects(get, /enough/);
  });
});

test("foreign row is never free, and shown to an operator", async () => {
  await using own = await LocalService.start("--expose-dynamodb", "0");
  await own.child.line();
  const table = /http:\S+/.exec(await own.child.line())?.[0] ?? "";
  const put = await new AwsClient({
    accessKeyId: "any",
    secretAccessKey: "any",
    service: "dynamodb",
    region: "eu-central-1",
  }).fetch(table, {
    method: "POST",
    headers: { "content-type": "application/x-amz-json-1.0", "x-amz-target": "DynamoDB_20120810.PutItem" },
    body: JSON.stringify({
      TableName: "leasehold",
      Item: {
        key: { S: "odd" },
        ownerName: { S: "go" },
        recordVersionNumber: { S: "v" },
        leaseDuration: { S: "twenty" },
      },
    }),
  });
  assert.equal(put.status, 200, await put.text());
  const client = own.client();
  await assert.rejects(client.acquire("odd"), CorruptRecordError);
  await assert.rejects(client.get("odd"), CorruptRecordError);
  for await (const lock of client.list()) assert.fail(lock.key);
  const pages = [];
  for await (const page of client.pages()) pages.push(...page.unreadable);
  assert.equal(pages.length, 1);
  assert.equal(pages[0]?.key, "odd");
  assert.ok(pages[0].detail.length > 0);
});

describe("who asks", () => {
  test("bearer token, fixed or made anew for each request", async () => {
    await using parts = await throughProxy({ token: "fixed" });
    const { proxy, client } = parts;
    await client.get("a");
    let made = 0;
    await service.client({ url: proxy.url, token: () => Promise.resolve(`token ${++made}`) }).get("a");
    const rotating = service.client({ url: proxy.url, token: () => `token ${++made}` });
    await rotating.get("a");
    assert.deepEqual(
      proxy.seen.map(({ headers }) => headers.authorization),
      ["Bearer fixed", "Bearer token 1", "Bearer token 2"],
    );
  });

  test("token that no header can have is refused and never shown", async () => {
    for (const token of ["secret\n", "sec\rret", "sécret"]) {
      for (const given of [token, () => token]) {
        await assert.rejects(service.client({ token: given }).get("a"), (error: Error) => {
          assert.ok(error instanceof InvalidRequestError);
          return /not one line of printable ASCII/.test(error.message) && !error.message.includes("cret");
        });
      }
    }
  });

  test("token that cannot be had is an outage", async () => {
    const client = service.client({ token: () => Promise.reject(new Error("no network")) });
    await assert.rejects(
      client.tryAcquire(freshKey()),
      (error) => error instanceof UnavailableError && error.message.includes("no network"),
    );
  });

  test("requests signed by aws4fetch", async () => {
    await using proxy = await FaultProxy.start(service.url);
    const signed = (request: SeenRequest): boolean =>
      /^AWS4-HMAC-SHA256 Credential=AKID\/\d{8}\/eu-central-1\/execute-api\/aws4_request, SignedHeaders=.*host.*, Signature=[0-9a-f]{64}$/.test(
        request.headers.authorization ?? "",
      ) && request.headers["x-amz-security-token"] === "session";
    proxy.fault = (request) => (signed(request) ? "pass" : { status: 403, body: '{"message":"Forbidden"}' });
    const aws = new AwsClient({
      accessKeyId: "AKID",
      secretAccessKey: "secret",
      sessionToken: "session",
      service: "execute-api",
      region: "eu-central-1",
      retries: 0,
    });
    const client = service.client({ url: proxy.url, fetch: (url, init) => aws.fetch(url, init) });
    const key = freshKey();
    assert.equal(await client.withLock(key, (guard) => guard.outcome), "created");
    assert.equal((await client.get(key))?.state, "released");
    await assert.rejects(service.client({ url: proxy.url }).get(key), ForbiddenError);
  });
});
