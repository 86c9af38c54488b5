// Web pages of other origins against a service on this machine.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { browser as launch, foreignSite, serve } from "./support.mjs";

let browser;
let service;
let site;
before(async () => {
  [browser, service, site] = await Promise.all([
    launch(),
    serve("--expose-dynamodb", "0"),
    foreignSite("<!doctype html><title>foreign</title>"),
  ]);
});
after(async () => {
  await browser?.close();
  await site?.end();
  await service?.end();
});

/** Tries every request that a page can send without a library. Runs in the page. */
async function attack({ url, dynamodb }) {
  const acquire = (name) => JSON.stringify({ key: `attack-${name}`, ownerName: "evil", leaseDurationMs: 86_400_000 });
  const target = `${url}/v1/acquire`;
  const read = [];
  const attempt = async (name, work) => {
    try {
      const answer = await work();
      if (answer?.type === "basic" || answer?.type === "cors")
        read.push(`${name}: ${answer.status} ${await answer.text()}`);
    } catch {
      // The browser or the service refused it.
    }
  };
  await attempt("text", () => fetch(target, { method: "POST", mode: "no-cors", body: acquire("text") }));
  await attempt("untyped", () =>
    fetch(target, { method: "POST", mode: "no-cors", body: new Blob([acquire("untyped")]) }),
  );
  await attempt("json", () =>
    fetch(target, { method: "POST", headers: { "content-type": "application/json" }, body: acquire("json") }),
  );
  await attempt("beacon", () => {
    navigator.sendBeacon(target, acquire("beacon"));
    navigator.sendBeacon(target, new Blob([acquire("beacon-blob")]));
  });
  await attempt("read", () => fetch(`${url}/v1/locks`));
  await attempt("frame", async () => {
    const form = document.createElement("form");
    Object.assign(form, { method: "POST", action: target, enctype: "text/plain", target: "sink" });
    const field = document.createElement("input");
    Object.assign(field, { name: '{"key":"attack-form","ownerName":"', value: 'evil"}' });
    const frame = document.createElement("iframe");
    frame.name = "sink";
    form.append(field);
    document.body.append(frame, form);
    form.submit();
    await new Promise((resolve) => setTimeout(resolve, 500));
  });
  if (dynamodb) {
    const headers = { "content-type": "application/x-amz-json-1.0", "x-amz-target": "DynamoDB_20120810.DeleteTable" };
    const body = JSON.stringify({ TableName: "leasehold" });
    await attempt("dynamodb", () => fetch(`${dynamodb}/`, { method: "POST", headers, body }));
  }
  await new Promise((resolve) => setTimeout(resolve, 500));
  return read;
}

const attacked = async () => {
  const { locks } = await (await fetch(`${service.url}/v1/locks`)).json();
  return locks.map(({ key }) => key).filter((key) => key.startsWith("attack"));
};

for (const [name, host] of [
  ["a local origin", "localhost"],
  ["the same address and another port", "127.0.0.1"],
  ["a name that resolves to this machine", "evil.test"],
]) {
  test(`page of ${name} changes and reads nothing`, async () => {
    const page = await browser.newPage();
    await page.goto(`http://${host}:${site.port}/`);
    const read = await page.evaluate(attack, { url: service.url, dynamodb: service.dynamodb });
    assert.deepEqual(read, []);
    assert.deepEqual(await attacked(), []);
    await page.close();
  });
}

test("rebound host name is refused", async () => {
  const page = await browser.newPage();
  const { port } = new URL(service.url);
  for (const path of ["/v1/locks", "/console", "/metrics", "/"]) {
    const answer = await page.goto(`http://evil.test:${port}${path}`);
    assert.equal(answer.status(), 403, path);
  }
  await page.close();
  // The refusals have a type that a browser saves and does not show.
  const request = await browser.newContext();
  const dynamodb = new URL(service.dynamodb);
  const headers = { host: `evil.test:${dynamodb.port}` };
  const answer = await request.request.get(service.dynamodb, { headers });
  assert.equal(answer.status(), 403);
  await request.close();
});

test("preflight is never granted", async () => {
  for (const url of [`${service.url}/v1/acquire`, service.dynamodb]) {
    const headers = { origin: "http://evil.test", "access-control-request-method": "POST" };
    const answer = await fetch(url, { method: "OPTIONS", headers });
    assert.ok(answer.status >= 400, `${url} ${answer.status}`);
    assert.equal(answer.headers.get("access-control-allow-origin"), null);
  }
});

test("service still serves its own page and plain clients", async () => {
  assert.equal((await service.post("/v1/acquire", { key: "own", ownerName: "me" })).outcome, "created");
  const page = await browser.newPage();
  await page.goto(service.console);
  await page.locator(".row", { hasText: "own" }).waitFor();
  // A link from elsewhere may open the console, but no frame may show it.
  await page.goto(`http://localhost:${site.port}/`);
  await page.evaluate((url) => location.assign(url), service.console);
  await page.locator(".row", { hasText: "own" }).waitFor();
  await page.close();
});
