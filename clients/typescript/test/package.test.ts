/** The published package: the files, the types, and every example of the README, after an installation. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, describe, test } from "node:test";
import { promisify } from "node:util";
import ts from "typescript";
import { LocalService, packageRoot } from "./support.js";

const run = promisify(execFile);
const folder = await mkdtemp(join(tmpdir(), "leasehold-package-"));
after(() => rm(folder, { recursive: true }));

const readme = await readFile(join(packageRoot, "README.md"), "utf8");
const examples = [...readme.matchAll(/^```ts\n(.*?)^```$/gms)].map(([, code]) => code ?? "");

/** Examples with an optional peer. */
const PEERS = /leasehold\/(lambda|opentelemetry|powertools)/;

/** Returns the errors of a strict compiler. */
function problemsOf(files: string[], options: { skipLibCheck: boolean }): string[] {
  const program = ts.createProgram(files, {
    ...options,
    strict: true,
    exactOptionalPropertyTypes: true,
    noUncheckedIndexedAccess: true,
    noEmit: true,
    target: ts.ScriptTarget.ES2022,
    lib: ["lib.es2022.d.ts", "lib.dom.d.ts"],
    module: ts.ModuleKind.NodeNext,
    types: [],
  });
  return ts.getPreEmitDiagnostics(program).map((problem) => {
    const line = problem.file?.getLineAndCharacterOfPosition(problem.start ?? 0).line ?? 0;
    return `${problem.file?.fileName ?? ""}:${line + 1}: ${ts.flattenDiagnosticMessageText(problem.messageText, "\n")}`;
  });
}

async function npm(...args: string[]): Promise<string> {
  return (await run("npm", args, { cwd: folder, timeout: 300_000 })).stdout;
}

describe("package", () => {
  test("has what it needs, and nothing else", async () => {
    const [packed] = JSON.parse(await npm("pack", packageRoot, "--json", "--ignore-scripts")) as [
      { filename: string; size: number; files: { path: string; size: number }[] },
    ];
    assert.ok(packed.size < 200_000, `${packed.size} bytes`);
    const wires = packed.files.filter(({ path, size }) => path.endsWith("wire.d.ts") && size > 1000);
    assert.deepEqual(
      wires.map(({ path }) => path),
      ["dist/wire.d.ts"],
      "the types of the wire are there once",
    );
    const paths = packed.files.map(({ path }) => path);
    for (const path of [
      "package.json",
      "README.md",
      "LICENSE-APACHE",
      "LICENSE-MIT",
      "dist/index.js",
      "dist/index.d.ts",
    ]) {
      assert.ok(paths.includes(path), path);
    }
    for (const path of paths)
      assert.match(
        path,
        /^(package\.json|README\.md|LICENSE-(APACHE|MIT)|dist\/cjs\/package\.json|dist\/(cjs\/)?[a-z]+(\.js|\.d\.ts))$/,
      );

    await writeFile(join(folder, "package.json"), JSON.stringify({ name: "user", private: true, type: "module" }));
    await npm("install", "--offline", "--no-audit", "--no-fund", "--no-package-lock", `./${packed.filename}`);
    const installed = await readdir(join(folder, "node_modules"));
    assert.deepEqual(
      installed.filter((name) => !name.startsWith(".")),
      ["leasehold"],
      "no dependencies at run time",
    );
  });

  test("names its source, and runs nothing when installed", async () => {
    const manifest = JSON.parse(await readFile(join(packageRoot, "package.json"), "utf8")) as {
      repository: { url: string; directory: string };
      publishConfig: object;
      scripts: Record<string, string>;
    };
    assert.match(manifest.repository.url, /^git\+https:\/\/github\.com\/.*\.git$/);
    assert.equal(manifest.repository.directory, "clients/typescript");
    assert.deepEqual(manifest.publishConfig, { access: "public", provenance: true });
    for (const script of ["preinstall", "install", "postinstall", "prepare"])
      assert.equal(manifest.scripts[script], undefined, script);
  });

  test("has the types of the wire for CommonJS too", async () => {
    const file = join(folder, "common.cts");
    await writeFile(
      file,
      `import leasehold = require("leasehold");
const state = async (client: leasehold.Client): Promise<"held" | "released" | undefined> => (await client.get("a"))?.state;
// @ts-expect-error -- it would be no error, if the type were any
const wrong = async (client: leasehold.Client): Promise<7 | undefined> => (await client.get("a"))?.state;
export = [state, wrong];`,
    );
    assert.deepEqual(problemsOf([file], { skipLibCheck: false }), []);
  });

  test("is imported by ESM and required by CommonJS", async () => {
    const program =
      'import { Client, Guard } from "leasehold"; console.log(typeof Client, typeof Guard, typeof Symbol.asyncDispose);';
    const { stdout } = await run(process.execPath, ["--input-type=module", "--eval", program], { cwd: folder });
    assert.equal(stdout.trim(), "function function symbol");
    const common =
      'const { Client } = require("leasehold"); console.log(require.resolve("leasehold"), new Client({ url: "http://127.0.0.1:1" }) instanceof Client);';
    const required = await run(process.execPath, ["--input-type=commonjs", "--eval", common], { cwd: folder });
    assert.match(required.stdout.trim(), /dist\/cjs\/index\.js true$/);
  });

  test("has types that hold, and so have the examples of the README", async () => {
    assert.ok(examples.length >= 5, "there are examples");
    for (const peer of ["aws4fetch", "@aws-sdk", "@opentelemetry"]) {
      await symlink(join(packageRoot, "node_modules", peer), join(folder, "node_modules", peer));
    }
    // Each example is a module of its own, so that it must contain all that it needs.
    await Promise.all(
      examples.map((code, index) => writeFile(join(folder, `example-${index}.ts`), `${code}\nexport {};\n`)),
    );
    const files = examples.map((_, index) => join(folder, `example-${index}.ts`));
    const usesPeer = (_: string, index: number): boolean => PEERS.test(examples[index] ?? "");
    // The package's own declarations are checked, too, and need no more than these. Those of the peers are not this
    // package's.
    const problems = [
      ...problemsOf(
        files.filter((file, index) => !usesPeer(file, index)),
        { skipLibCheck: false },
      ),
      ...problemsOf(files.filter(usesPeer), { skipLibCheck: true }),
    ];
    assert.deepEqual(problems, []);
  });

  test("does what the examples of the README say", async () => {
    await using service = await LocalService.start();
    let output = "";
    // These examples need nothing but the service.
    for (const [index, example] of examples.entries()) {
      if (/declare const|aws4fetch|leasehold\/testing/.test(example) || PEERS.test(example)) continue;
      assert.ok(example.includes("http://127.0.0.1:8080"));
      const code = example.replace("http://127.0.0.1:8080", service.url);
      const { outputText } = ts.transpileModule(code, {
        compilerOptions: { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext },
      });
      const file = join(folder, `example-${index}.js`);
      await writeFile(file, outputText);
      output += (await run(process.execPath, [file], { cwd: folder, timeout: 30_000 })).stdout;
    }
    const client = service.client();
    const [first, second] = [await client.get("nightly-export"), await client.get("Moe")];
    assert.equal(first?.state, "released");
    assert.equal(second?.state, "released");
    assert.equal(second.text, "done");
    assert.match(output, new RegExp(`exporting rows under token \\d+\nexporting under token ${first.fencingToken}\n`));
    assert.match(output, /created/);
  });
});
