/** Runs the suite's sources, and the layer that Leasehold's client has for them. */
import path from "node:path";
import { defineConfig } from "vitest/config";

const here = import.meta.dirname;
const client = process.env["LEASEHOLD_CLIENT"] ?? "";
const source = path.join(here, "packages/idempotency/src");

export default defineConfig({
  resolve: {
    alias: [
      { find: /^leasehold$/, replacement: path.join(client, "dist/index.js") },
      { find: /^leasehold\/powertools$/, replacement: path.join(client, "dist/powertools.js") },
      { find: /^@aws-lambda-powertools\/idempotency$/, replacement: path.join(source, "index.ts") },
      { find: /^@aws-lambda-powertools\/idempotency\/persistence$/, replacement: path.join(source, "persistence/index.ts") },
      { find: /^@aws-lambda-powertools\/testing-utils\/context$/, replacement: path.join(here, "packages/testing/src/context.ts") },
    ],
  },
  test: {
    environment: "node",
    setupFiles: [path.join(here, "packages/testing/src/setupEnv.ts")],
    include: ["makeIdempotent", "idempotencyDecorator", "IdempotencyHandler", "persistence/BasePersistenceLayer"].map(
      (name) => `packages/idempotency/tests/unit/${name}.test.ts`,
    ),
    testTimeout: 60_000,
    // These give the base class a layer whose records are nothing: that of a stub.
    testNamePattern: new RegExp(
      `^(?!.*(${[
        "calls the _getRecord method with the correct arguments",
        "logs a warning when the idempotency key cannot be found",
        "calls the _updateRecord method with the correct arguments",
        "already a completed record in the cache",
      ].join("|")}))`,
    ),
    // The layer is compiled JavaScript, and must be given the suite's classes.
    server: { deps: { inline: [/leasehold/, /clients\/typescript/] } },
  },
});
