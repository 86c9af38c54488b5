/** TLS with an authority of one's own, and certificates of clients. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { request } from "node:http";
import { createServer } from "node:https";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { promisify } from "node:util";
import { Client, type ClientOptions, InvalidRequestError, type Tls, UnavailableError } from "../dist/index.js";
import { freshKey, LocalService } from "./support.js";

const folder = await mkdtemp(join(tmpdir(), "leasehold-tls-"));
const openssl = (...args: string[]) => promisify(execFile)("openssl", args, { cwd: folder });
const read = (name: string) => readFile(join(folder, name), "utf8");

/** Makes a key and a certificate. */
async function certify(name: string, ...by: string[]): Promise<void> {
  const names = ["-subj", `/CN=${name}`, "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"];
  const key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", `${name}.key`];
  await openssl("req", "-x509", ...key, "-days", "2", "-out", `${name}.pem`, ...names, ...by);
}

describe("service behind mutual TLS", () => {
  let service: LocalService;
  let url: string;
  let tls: Tls;
  const server = createServer({ requestCert: true, rejectUnauthorized: true });
  const connections: number[] = [];

  before(async () => {
    service = await LocalService.start();
    await certify("ca");
    for (const name of ["server", "client"]) await certify(name, "-CA", "ca.pem", "-CAkey", "ca.key");
    const target = new URL(service.url);
    server.setSecureContext({
      ca: await read("ca.pem"),
      cert: await read("server.pem"),
      key: await read("server.key"),
    });
    server.on("secureConnection", () => connections.push(1));
    server.on("request", (asked, answer) => {
      const { method, url: path, headers } = asked;
      const passed = request({ port: target.port, host: target.hostname, method, path, headers }, (got) => {
        answer.writeHead(got.statusCode ?? 0, got.headers);
        got.pipe(answer);
      });
      asked.pipe(passed);
    });
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    url = `https://127.0.0.1:${(server.address() as AddressInfo).port}`;
    tls = { ca: await read("ca.pem"), cert: await read("client.pem"), key: await read("client.key") };
  });
  after(async () => {
    server.close();
    server.closeAllConnections();
    await service[Symbol.asyncDispose]();
    await rm(folder, { recursive: true });
  });

  test("locks are granted, on a connection that is kept", async () => {
    await using client = new Client({ url, tls });
    const began = connections.length;
    for (let turn = 0; turn < 3; turn += 1) await client.withLock(freshKey(), (guard) => assert.ok(guard.valid));
    assert.ok(connections.length - began <= 2, `${connections.length - began} connections`);
  });

  test("authority as bytes is one too", async () => {
    await using client = new Client({ url, tls: { ...tls, ca: new TextEncoder().encode(String(tls.ca)) } });
    await client.withLock(freshKey(), () => undefined);
  });

  test("unknown authority is told, with what to do", async () => {
    await using client = new Client({ url });
    await assert.rejects(client.tryAcquire(freshKey()), (error) => {
      assert.ok(error instanceof UnavailableError);
      assert.match(error.message, /tls: \{ ca \}/);
      return true;
    });
  });

  const mistakes: [string, () => ClientOptions][] = [
    ["certificate without its key", () => ({ url, tls: { cert: tls.cert } })],
    ["url without TLS", () => ({ url: service.url, tls })],
    ["fetch beside it", () => ({ url, tls, fetch: globalThis.fetch })],
    ["authority that is none", () => ({ url, tls: { ca: "not PEM" } })],
    ["key that is none", () => ({ url, tls: { ...tls, key: "not PEM" } })],
  ];
  for (const [name, options] of mistakes) {
    test(`${name} is refused`, async () => {
      const attempt = async (): Promise<unknown> => new Client(options()).tryAcquire(freshKey());
      await assert.rejects(attempt, (error) => error instanceof InvalidRequestError && error.field === "tls");
    });
  }
});
