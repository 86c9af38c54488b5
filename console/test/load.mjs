// Loads a module of the console from its TypeScript source.
import { build } from "esbuild";

export async function load(name) {
  const { outputFiles } = await build({
    entryPoints: [new URL(`../src/${name}`, import.meta.url).pathname],
    bundle: true,
    write: false,
    format: "esm",
    jsx: "automatic",
    jsxImportSource: "preact",
  });
  return import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].contents).toString("base64")}`);
}
