/**
 * A Lambda environment on loopback: the Invoke API in front, the Runtime API behind, and the real binaries of the
 * functions.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { dirname, join } from "node:path";
import { serviceBinary } from "./support.js";

/** The fault of one invocation: none; its answer is lost; the function crashes; the Lambda API refuses. */
type InvocationFault = "pass" | "lose answer" | "crash" | { status: number; type: string };

interface Invocation {
  readonly id: string;
  readonly payload: string;
  readonly clientContext: string | undefined;
  readonly answer: (body: string, failed: boolean) => void;
}

/** The binary of each function, and its handler. */
const CODE: Record<string, [binary: string, handler: string]> = {
  "leasehold-invoke": ["leasehold-locks", "invoke"],
  "leasehold-transact": ["leasehold-transactions", "transact"],
};

/** One function: its process, its Runtime API, and the invocations that wait. */
class RunningFunction {
  readonly #server: Server;
  readonly #waiting: Invocation[] = [];
  readonly #underWay = new Map<string, Invocation>();
  #idle: ServerResponse | undefined;
  #process: ChildProcess | undefined;

  constructor(private readonly name: string) {
    this.#server = createServer((request, response) => void this.#runtimeApi(request, response));
  }

  async start(dynamodb: string): Promise<void> {
    this.#server.listen(0, "127.0.0.1");
    await once(this.#server, "listening");
    const api = `127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
    const [binary, handler] = CODE[this.name] ?? [this.name, "bootstrap"];
    this.#process = spawn(join(dirname(serviceBinary()), binary), {
      stdio: ["ignore", "ignore", "inherit"],
      env: {
        AWS_LAMBDA_RUNTIME_API: api,
        AWS_LAMBDA_FUNCTION_NAME: this.name,
        _HANDLER: handler,
        AWS_LAMBDA_FUNCTION_VERSION: "1",
        AWS_LAMBDA_FUNCTION_MEMORY_SIZE: "128",
        AWS_REGION: "eu-central-1",
        AWS_ACCESS_KEY_ID: "any",
        AWS_SECRET_ACCESS_KEY: "any",
        AWS_ENDPOINT_URL_DYNAMODB: dynamodb,
        LEASEHOLD_TABLE_NAME: "leasehold",
        LEASEHOLD_TRANSACTION_TABLE_NAME: "leasehold-transactions",
        RUST_LOG: "error",
      },
    });
  }

  invoke(payload: string, clientContext: string | undefined): Promise<{ body: string; failed: boolean }> {
    return new Promise((resolve) => {
      const answer = (body: string, failed: boolean): void => {
        resolve({ body, failed });
      };
      this.#waiting.push({ id: randomUUID(), payload, clientContext, answer });
      this.#handOver();
    });
  }

  async stop(): Promise<void> {
    if (this.#process?.exitCode === null && this.#process.signalCode === null) {
      this.#process.kill("SIGKILL");
      await once(this.#process, "exit");
    }
    this.#server.closeAllConnections();
    this.#server.close();
  }

  async #runtimeApi(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const body = await textOf(request);
    const path = request.url ?? "";
    if (path.endsWith("/invocation/next")) {
      this.#idle = response;
      this.#handOver();
      return;
    }
    const [, id = "", ending] = /\/invocation\/([^/]+)\/(response|error)$/.exec(path) ?? [];
    this.#underWay.get(id)?.answer(body, ending === "error");
    this.#underWay.delete(id);
    response.writeHead(202).end();
  }

  #handOver(): void {
    if (this.#idle === undefined) return;
    const next = this.#waiting.shift();
    if (next === undefined) return;
    this.#underWay.set(next.id, next);
    this.#idle
      .writeHead(200, {
        "content-type": "application/json",
        "lambda-runtime-aws-request-id": next.id,
        "lambda-runtime-deadline-ms": String(Date.now() + 10_000),
        "lambda-runtime-invoked-function-arn": `arn:aws:lambda:eu-central-1:123456789012:function:${this.name}`,
        ...(next.clientContext !== undefined && {
          "lambda-runtime-client-context": Buffer.from(next.clientContext, "base64").toString(),
        }),
      })
      .end(next.payload);
    this.#idle = undefined;
  }
}

/** The Invoke API of Lambda, with one process for each function. */
export class LambdaEnvironment implements AsyncDisposable {
  fault: (call: string) => InvocationFault = () => "pass";
  readonly payloads: string[] = [];
  readonly contexts: unknown[] = [];
  url = "";
  readonly #functions = new Map<string, RunningFunction>();
  readonly #server = createServer((request, response) => void this.#invokeApi(request, response));

  static async start(dynamodb: string, names: readonly string[]): Promise<LambdaEnvironment> {
    const environment = new LambdaEnvironment();
    for (const name of names) {
      const running = new RunningFunction(name);
      await running.start(dynamodb);
      environment.#functions.set(name, running);
    }
    environment.#server.listen(0, "127.0.0.1");
    await once(environment.#server, "listening");
    environment.url = `http://127.0.0.1:${(environment.#server.address() as AddressInfo).port}`;
    return environment;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([...this.#functions.values()].map((running) => running.stop()));
    this.#server.closeAllConnections();
    this.#server.close();
  }

  async #invokeApi(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const payload = await textOf(request);
    this.payloads.push(payload);
    const name = /\/functions\/([^/]+)\/invocations/.exec(request.url ?? "")?.[1] ?? "";
    const context = request.headers["x-amz-client-context"] as string | undefined;
    if (context !== undefined) this.contexts.push(JSON.parse(Buffer.from(context, "base64").toString()));
    const fault = this.fault((JSON.parse(payload) as { action: string }).action);
    if (typeof fault === "object") {
      const headers = { "content-type": "application/json", "x-amzn-errortype": fault.type };
      response.writeHead(fault.status, headers).end(JSON.stringify({ message: "told by the test" }));
      return;
    }
    if (fault === "crash") {
      const failure = { errorType: "Sandbox.Timedout", errorMessage: "Task timed out after 10.00 seconds" };
      response.writeHead(200, { "x-amz-function-error": "Unhandled" }).end(JSON.stringify(failure));
      return;
    }
    const { body, failed } = (await this.#functions.get(name)?.invoke(payload, context)) ?? { body: "", failed: true };
    if (fault === "lose answer") response.destroy();
    else response.writeHead(200, failed ? { "x-amz-function-error": "Unhandled" } : {}).end(body);
  }
}

async function textOf(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString();
}
