// Checks surrogates.js against terms and weights that Python computed.
//   node surrogates.mjs MODULE ROWS
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [modulePath, rowsPath] = process.argv.slice(2);
const surrogates = await import(pathToFileURL(modulePath));
const rows = JSON.parse(readFileSync(rowsPath, "utf8"));
for (const { name, token, knobs, term, weight } of rows) {
  const actual = surrogates[name](token, knobs);
  const where = `${name} ${JSON.stringify(token)} ${JSON.stringify(knobs)}`;
  for (const [key, wanted] of Object.entries({ term, weight })) {
    const near = Math.abs(actual[key] - wanted) < 1e-9;
    assert.ok(near, `${key} of ${where}: ${actual[key]} instead of ${wanted}`);
  }
}
console.log(`${rows.length} tokens agree`);
