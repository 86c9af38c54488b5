// Writes src/wire.ts: the schemas of docs/openapi.json that this client and the console name, and those that these refer to.
// With --check, fails when the file is not what the document gives.
import { readdir, readFile, writeFile } from "node:fs/promises";
import openapiTS, { astToString } from "openapi-typescript";

const here = new URL("../", import.meta.url);
const output = new URL("src/wire.ts", here);
const document = JSON.parse(await readFile(new URL("../../docs/openapi.json", here), "utf8"));
const { schemas } = document.components;

const used = new Set();
const use = (name) => {
  if (used.has(name) || !(name in schemas)) return;
  used.add(name);
  for (const [, other] of JSON.stringify(schemas[name]).matchAll(/"#\/components\/schemas\/(\w+)"/g)) use(other);
};

const sources = (await readdir(new URL("src/", here))).filter((name) => name.endsWith(".ts") && name !== "wire.ts");
for (const source of [...sources.map((name) => `src/${name}`), "../../console/src/wire.ts"]) {
  const text = await readFile(new URL(source, here), "utf8");
  if (!/from ".*\bwire\.js"/.test(text)) continue;
  for (const [, name] of text.matchAll(/"(\w+)"/g)) use(name);
}

document.paths = {};
document.components = { schemas: Object.fromEntries(Object.entries(schemas).filter(([name]) => used.has(name))) };
const nodes = await openapiTS(document, { defaultNonNullable: false, emptyObjectsUnknown: true });
const components = nodes.filter((node) => node.name?.text === "components");
const text = `// Made by \`npm run wire\` from docs/openapi.json.\n\n${astToString(components)}`;

if (!process.argv.includes("--check")) {
  await writeFile(output, text);
} else if (text !== (await readFile(output, "utf8"))) {
  console.error("src/wire.ts is stale: run npm run wire");
  process.exit(1);
}
