// Prints the figures of docs/performance.md on the console: npm --prefix console run measure [-- LOCKS].
// $LEASEHOLD_BINARY names the binary: a release build says more than target/debug/leasehold.
import { measure, serveMany } from "./test/browser/many.mjs";
import { browser as launch } from "./test/browser/support.mjs";

const count = Number(process.argv[2] ?? 10_000);
const [browser, service] = await Promise.all([launch(), serveMany(count)]);
const figures = await measure(browser, service, count);
await browser.close();
await service.end();

const ms = (value) => `${Math.round(value)} ms`;
const rows = [
  ["first contentful paint", ms(figures.firstPaint)],
  ["first rows", ms(figures.firstRows)],
  [`all ${count.toLocaleString("en")} rows`, ms(figures.allRows)],
  ["a filter, from the key press to the next frame, longest of six", ms(figures.filter)],
  ["a frame of a fast scroll, 95th percentile", ms(figures.frame)],
  ["memory of the page (JavaScript heap)", `${(figures.memory / 1e6).toFixed(1)} MB`],
  ["a heartbeat, from its answer to its sight, median of five", ms(figures.heartbeat.median)],
  ["the same, longest of five", ms(figures.heartbeat.longest)],
];
console.log("| figure | measured |\n|---|---|");
for (const [what, measured] of rows) console.log(`| ${what} | ${measured} |`);
