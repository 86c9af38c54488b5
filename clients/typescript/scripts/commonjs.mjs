// Completes the CommonJS half of the build: marks it as such, and takes the types of the wire from the other half. They are half of
// all types, and have no code.
import { writeFileSync } from "node:fs";

const folder = new URL("../dist/cjs/", import.meta.url);
writeFileSync(new URL("package.json", folder), '{"type":"commonjs"}\n');
writeFileSync(new URL("wire.d.ts", folder), 'export type * from "../wire.js" with { "resolution-mode": "import" };\n');
