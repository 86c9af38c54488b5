/** The service in memory for users' own tests. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, MisconfiguredError, UnavailableError } from "../dist/index.js";
import { serve } from "../dist/testing.js";
import { serviceBinary } from "./support.js";

process.env["LEASEHOLD_BIN"] = serviceBinary();

test("service starts and stops by one call", async () => {
  const service = await serve();
  await using client = new Client({ url: service.url });
  assert.equal(await client.withLock("job", ({ valid }) => valid), true);
  await service.stop();
  await service.stop();
  await assert.rejects(client.tryAcquire("job"), UnavailableError);
});

test("program that is missing, or does not start, is told", async () => {
  await assert.rejects(serve("--no-such-option"), (error) => {
    assert.ok(error instanceof MisconfiguredError);
    assert.match(error.message, /did not start: .*--no-such-option/s);
    return true;
  });
  process.env["LEASEHOLD_BIN"] = "/no/such/program";
  await assert.rejects(serve(), /cannot be run .*set LEASEHOLD_BIN/);
});
