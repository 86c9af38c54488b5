// Builds dist/ from src/. With --check, fails when dist/ is not what src/ gives.
import { build } from "esbuild";
import { mkdir, readFile, writeFile } from "node:fs/promises";

const check = process.argv.includes("--check");
const dist = new URL("dist/", import.meta.url);

const { outputFiles } = await build({
  absWorkingDir: import.meta.dirname,
  entryPoints: { console: "src/main.tsx", style: "src/style.css" },
  outdir: "dist",
  bundle: true,
  minify: true,
  write: false,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
});
const files = new Map(outputFiles.map((file) => [file.path.split("/").at(-1), file.contents]));
for (const name of ["index.html", "icon.svg"]) {
  files.set(name, await readFile(new URL(`src/${name}`, import.meta.url)));
}

await mkdir(dist, { recursive: true });
const differing = [];
for (const [name, contents] of files) {
  const path = new URL(name, dist);
  if (!check) {
    await writeFile(path, contents);
    continue;
  }
  const committed = await readFile(path).catch(() => undefined);
  if (committed === undefined || Buffer.compare(committed, Buffer.from(contents)) !== 0) differing.push(name);
}
if (differing.length > 0) {
  console.error(`console/dist differs from its sources: ${differing.join(", ")}. Run: npm --prefix console run build`);
  process.exit(1);
}
