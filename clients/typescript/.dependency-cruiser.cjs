/** The import rule of the sources: no cycles, not even of types. */
module.exports = {
  forbidden: [{ name: "no-cycles", severity: "error", from: {}, to: { circular: true } }],
  options: { tsPreCompilationDeps: true, tsConfig: { fileName: "src/tsconfig.json" } },
};
