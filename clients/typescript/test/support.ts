/** The real service, a proxy that injects faults in front of it, and the common parts of most tests. */
import { type ChildProcess, spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { createServer, type IncomingHttpHeaders, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { createInterface } from "node:readline";
import { setTimeout } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { Client, type ClientOptions, type Guard, type Held, UnavailableError } from "../dist/index.js";

export const packageRoot = fileURLToPath(new URL("..", import.meta.url));

/** A child process that ends with the test, whatever the result. */
export class Child implements AsyncDisposable {
  readonly #lines: AsyncIterator<string>;
  readonly #exit: Promise<number | null>;

  constructor(readonly process: ChildProcess) {
    if (!process.stdout) throw new Error("no stdout");
    this.#lines = createInterface(process.stdout)[Symbol.asyncIterator]();
    this.#exit = once(process, "exit").then((args) => args[0] as number | null);
  }

  async line(): Promise<string> {
    const next = await this.#lines.next();
    if (next.done === true) throw new Error("the process has ended");
    return next.value;
  }

  /** Returns the exit code; null after a signal. Throws if the process does not end within `milliseconds`. */
  async exit(milliseconds = 60_000): Promise<number | null> {
    const late = new AbortController();
    const bound = setTimeout(milliseconds, undefined, { signal: late.signal }).then(() => {
      throw new Error(`the process is still there after ${milliseconds} ms`);
    });
    try {
      return await Promise.race([this.#exit, bound]);
    } finally {
      bound.catch(() => undefined);
      late.abort();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.process.exitCode === null && this.process.signalCode === null) this.process.kill("SIGKILL");
    await this.#exit;
  }
}

/** Asks until there is an answer: a wait that is over at once leaves a second for it. */
export async function answered<T>(ask: () => Promise<T>): Promise<T> {
  const deadline = performance.now() + 60_000;
  for (;;) {
    try {
      return await ask();
    } catch (error) {
      if (!(error instanceof UnavailableError) || performance.now() > deadline) throw error;
    }
  }
}

/** Returns the `leasehold` to test against. The functions are beside it. */
export function serviceBinary(): string {
  return process.env["LEASEHOLD_BIN"] ?? fileURLToPath(new URL("../../../target/debug/leasehold", import.meta.url));
}

/** A `leasehold serve` of its own, in memory unless a test says otherwise. */
export class LocalService implements AsyncDisposable {
  private constructor(
    readonly child: Child,
    readonly url: string,
  ) {}

  static async start(...flags: string[]): Promise<LocalService> {
    return LocalService.startOn(["--memory"], flags);
  }

  /** Starts on a DynamoDB, such as one that another service exposes. */
  static async onDynamoDb(endpoint: string): Promise<LocalService> {
    const credentials = { AWS_ACCESS_KEY_ID: "any", AWS_SECRET_ACCESS_KEY: "any", AWS_REGION: "eu-central-1" };
    return LocalService.startOn(["--dynamodb-endpoint", endpoint], [], credentials);
  }

  private static async startOn(
    store: string[],
    flags: string[],
    environment: Record<string, string> = {},
  ): Promise<LocalService> {
    const binary = serviceBinary();
    const child = new Child(
      spawn(binary, ["serve", ...store, "--listen", "127.0.0.1:0", ...flags], {
        stdio: ["ignore", "pipe", "ignore"],
        env: { ...process.env, ...environment },
      }),
    );
    const url = /http:\S+/.exec(await child.line())?.[0];
    if (url === undefined) throw new Error(`${binary} did not say where it listens`);
    return new LocalService(child, url);
  }

  client(options: Partial<ClientOptions> = {}): Client {
    return new Client({ url: this.url, ownerName: "test", pollInterval: 50, ...options });
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.child[Symbol.asyncDispose]();
  }
}

/** Runs build/holder.js, see there. */
export function startHolder(mode: string, url: string, key: string, lease: number): Child {
  const program = fileURLToPath(new URL("holder.js", import.meta.url));
  return new Child(
    spawn(process.execPath, [program, mode, url, key, String(lease)], { stdio: ["ignore", "pipe", "inherit"] }),
  );
}

export interface SeenRequest {
  /** The last part of the path: acquire, heartbeat, … */
  call: string;
  headers: IncomingHttpHeaders;
  body: Record<string, unknown>;
  query: URLSearchParams;
}

/**
 * The fate of a request: it passes; it is carried out and its answer lost; it is not carried out; it is
 * carried out after a while, even without a waiter; its answer comes after a while; it gets this answer
 * instead.
 */
export type Fault =
  | "pass"
  | "lose answer"
  | "lose request"
  | { delayRequest: number }
  | { delayAnswer: number }
  | { status: number; headers?: Record<string, string>; body: string };

/** A proxy between a client and the service. */
export class FaultProxy implements AsyncDisposable {
  readonly seen: SeenRequest[] = [];
  /** Decides on each request. */
  fault: (request: SeenRequest) => Fault | Promise<Fault> = () => "pass";
  readonly #server: Server;
  readonly #underWay = new Set<Promise<void>>();
  readonly #ended = new AbortController();
  url = "";

  private constructor(target: string) {
    this.#server = createServer((request, response) => {
      const answer = async (): Promise<void> => {
        const chunks: Buffer[] = [];
        for await (const chunk of request) chunks.push(chunk as Buffer);
        const text = Buffer.concat(chunks).toString();
        const path = request.url ?? "";
        const seen: SeenRequest = {
          call: path.replace(/^\/v1\//, "").replace(/\?.*/, ""),
          headers: request.headers,
          body: (text === "" ? {} : JSON.parse(text)) as Record<string, unknown>,
          query: new URLSearchParams(path.replace(/^[^?]*/, "")),
        };
        this.seen.push(seen);
        const fault = await this.fault(seen);
        if (fault === "lose request") {
          response.destroy();
          return;
        }
        if (typeof fault === "object" && "status" in fault) {
          response.writeHead(fault.status, fault.headers).end(fault.body);
          return;
        }
        if (typeof fault === "object" && "delayRequest" in fault) await this.#delay(fault.delayRequest);
        const method = request.method ?? "GET";
        // A watch ends when its caller hangs up. What was asked for by a POST is carried out.
        const hungUp = new AbortController();
        response.once("close", () => {
          hungUp.abort();
        });
        const forwarded = await fetch(target + path, {
          method,
          ...(method === "GET" && { signal: hungUp.signal }),
          ...(text !== "" && { body: text, headers: { "content-type": request.headers["content-type"] ?? "" } }),
        });
        const body = await forwarded.text();
        if (fault === "lose answer") {
          response.destroy();
          return;
        }
        if (typeof fault === "object" && "delayAnswer" in fault) await this.#delay(fault.delayAnswer);
        response.writeHead(forwarded.status, Object.fromEntries(forwarded.headers)).end(body);
      };
      const underWay = answer().catch(() => {
        response.destroy();
      });
      this.#underWay.add(underWay);
      void underWay.then(() => this.#underWay.delete(underWay));
    });
  }

  static async start(target: string): Promise<FaultProxy> {
    const proxy = new FaultProxy(target);
    proxy.#server.listen(0, "127.0.0.1");
    await once(proxy.#server, "listening");
    proxy.url = `http://127.0.0.1:${(proxy.#server.address() as AddressInfo).port}`;
    return proxy;
  }

  calls(call: string): SeenRequest[] {
    return this.seen.filter((request) => request.call === call);
  }

  /** Waits. Ends early with the proxy. */
  async #delay(milliseconds: number): Promise<void> {
    await setTimeout(milliseconds, undefined, { signal: this.#ended.signal });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#ended.abort();
    this.#server.closeAllConnections();
    await Promise.all(this.#underWay);
    this.#server.close();
  }
}

/** Returns a fault that occurs `count` times for this call, and then no more. */
export function firstTimes(count: number, call: string, fault: Fault): (request: SeenRequest) => Fault {
  let left = count;
  return (request) => (request.call === call && left-- > 0 ? fault : "pass");
}

export const sleep = (milliseconds: number): Promise<void> => setTimeout(milliseconds);

/** Waits until `condition` is true. Throws after a minute. */
export async function eventually(condition: () => boolean | Promise<boolean>, what: string): Promise<void> {
  const deadline = performance.now() + 60_000;
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`not within a minute: ${what}`);
    await sleep(10);
  }
}

/** Breaks the lock, which its holder renews meanwhile. */
export async function breakHeld(client: Client, key: string): Promise<void> {
  await eventually(async () => {
    const lock = await client.get(key);
    if (lock?.state !== "held") return true;
    return client.breakLock(key, lock.recordVersionNumber).then(
      () => true,
      () => false,
    );
  }, "broken");
}

/** Resolves once the signal is aborted. */
export async function aborted(signal: AbortSignal): Promise<void> {
  if (!signal.aborted) await once(signal, "abort");
}

/** A key that no other test uses. */
export const freshKey = (): string => `test-${randomUUID()}`;

/** Returns the result, which must be a guard. */
export function guardOf(result: Guard | Held): Guard {
  if (result.kind !== "granted") throw new Error(`held by ${result.lock.ownerName}`);
  return result;
}

/** Returns the result, which must be a refusal. */
export function heldOf(result: Guard | Held): Held {
  if (result.kind !== "held") throw new Error("granted");
  return result;
}
