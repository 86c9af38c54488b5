/**
 * The real service in memory, for the tests of programs that use it:
 *
 *     await using service = await serve();
 *     const client = new Client({ url: service.url });
 *
 * The program `leasehold` is found by `LEASEHOLD_BIN`, or in the `PATH`.
 */
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { MisconfiguredError } from "./errors.js";

/** A service of one test run. Its locks are gone when it stops. */
export interface TestService extends AsyncDisposable {
  readonly url: string;
  /** Stops the service. May be repeated. */
  stop(): Promise<void>;
}

/**
 * Starts the service in memory, on a free port of this machine. `options` are further ones of `leasehold serve`. The
 * service does not keep the process alive, and ends with it.
 *
 * @throws {MisconfiguredError} there is no such program, or it does not start.
 */
export async function serve(...options: string[]): Promise<TestService> {
  const program = process.env["LEASEHOLD_BIN"] ?? "leasehold";
  const child = spawn(program, ["serve", "--memory", "--listen", "127.0.0.1:0", ...options], {
    stdio: ["ignore", "pipe", "pipe"],
  });
  let said = "";
  child.stderr.on("data", (chunk: Buffer) => (said += chunk.toString()));
  const ended = new Promise<void>((resolve) => child.once("close", () => resolve()));
  const url = await new Promise<string>((resolve, reject) => {
    child.once("error", (error) => {
      reject(new MisconfiguredError(`${program} cannot be run (${error.message}): install it, or set LEASEHOLD_BIN.`));
    });
    createInterface(child.stdout).once("line", (line) => {
      const [, place] = /listens on (\S+)/.exec(line) ?? [];
      if (place !== undefined) resolve(place);
    });
    void ended.then(() => {
      reject(new MisconfiguredError(`${program} serve did not start: ${said.trim()}`));
    });
  });
  const kill = (): void => void child.kill();
  process.once("exit", kill);
  child.unref();
  for (const stream of [child.stdout, child.stderr]) (stream as { unref?: () => void }).unref?.();
  const stop = async (): Promise<void> => {
    process.off("exit", kill);
    child.ref();
    kill();
    await ended;
  };
  return { url, stop, [Symbol.asyncDispose]: stop };
}
