// Real services and a real browser, which the tests start and end.
import { spawn } from "node:child_process";
import { mkdtemp } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const BINARY = process.env.LEASEHOLD_BINARY ?? new URL("../../../target/debug/leasehold", import.meta.url).pathname;
const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";

/** Starts a command and reads what it prints until the line that names its end. */
async function start(args) {
  const folder = await mkdtemp(join(tmpdir(), "leasehold-console-"));
  const env = { PATH: process.env.PATH };
  const child = spawn(BINARY, args, { cwd: folder, env, stdio: ["ignore", "pipe", "inherit"] });
  // A failed test ends no service. The process of the tests ends it when nothing else is left to do.
  child.unref();
  process.once("exit", () => child.kill("SIGKILL"));
  const banner = [];
  for await (const line of createInterface({ input: child.stdout })) {
    banner.push(line);
    if (line.startsWith("  stop ")) break;
  }
  child.stdout.unref();
  const end = () =>
    new Promise((resolve) => {
      child.ref();
      child.once("exit", resolve);
      child.kill("SIGKILL");
    });
  return { child, banner, end };
}

const found = (banner, label) => banner.find((line) => line.startsWith(`  ${label} `))?.split(/\s+/)[2];

/** `leasehold serve` on a free port. */
export async function serve(...args) {
  const service = await start(["serve", "--memory", "--listen", "127.0.0.1:0", ...args]);
  const url = service.banner[0].replace("Leasehold listens on ", "");
  const post = async (path, body) => {
    const headers = { "content-type": "application/json" };
    const send = () => fetch(url + path, { method: "POST", headers, body: JSON.stringify(body) });
    // A busy machine may let a kept connection end under a request. Every request can be repeated.
    const answer = await send().catch(send);
    return answer.json();
  };
  const lock = async (key) => (await fetch(`${url}/v1/lock?${new URLSearchParams({ key })}`)).json();
  const dynamodb = found(service.banner, "dynamodb");
  /** Makes a table of items, where the service was started with `--expose-dynamodb`. */
  const createTable = async (name) => {
    const headers = {
      "content-type": "application/x-amz-json-1.0",
      "x-amz-target": "DynamoDB_20120810.CreateTable",
      "x-amz-date": "20260101T000000Z",
      authorization: "AWS4-HMAC-SHA256 Credential=any, SignedHeaders=host, Signature=0",
    };
    const body = JSON.stringify({
      TableName: name,
      BillingMode: "PAY_PER_REQUEST",
      AttributeDefinitions: [{ AttributeName: "id", AttributeType: "S" }],
      KeySchema: [{ AttributeName: "id", KeyType: "HASH" }],
    });
    const answer = await fetch(dynamodb, { method: "POST", headers, body });
    if (!answer.ok) throw new Error(await answer.text());
  };
  return { ...service, url, console: found(service.banner, "console"), dynamodb, post, lock, createTable };
}

/** `leasehold console` for a service. */
export async function consoleOf(url, ...args) {
  const page = await start(["console", "--url", url, ...args]);
  return { ...page, url: found(page.banner, "open") };
}

export function browser() {
  const quiet = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"];
  const args = ["--no-sandbox", ...quiet, "--disable-component-update", "--disable-sync"];
  return chromium.launch({
    executablePath: CHROMIUM,
    args: [...args, "--host-resolver-rules=MAP evil.test 127.0.0.1"],
  });
}

/** A web page of another origin on this machine. */
export async function foreignSite(html) {
  const server = createServer((_request, response) => {
    response.setHeader("content-type", "text/html");
    response.end(html);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { port: server.address().port, end: () => new Promise((resolve) => server.close(resolve)) };
}

/** Opens a page, and fails the test on any error or warning of the page. */
export async function open(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 760 }, ...options });
  const page = await context.newPage();
  page.faults = [];
  page.on("pageerror", (error) => page.faults.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => {
    page.faults.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("console", (message) => {
    if (/Content Security Policy|TrustedScript|TrustedHTML/.test(message.text())) page.faults.push(message.text());
  });
  await page.goto(url);
  return page;
}

/** Calls `work` with each of many inputs, some at a time. */
export async function each(inputs, work, atATime = 32) {
  const queue = [...inputs];
  const worker = async () => {
    for (let input = queue.pop(); input !== undefined; input = queue.pop()) await work(input);
  };
  await Promise.all(Array.from({ length: atATime }, worker));
}
