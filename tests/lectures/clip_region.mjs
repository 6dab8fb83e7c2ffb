// Checks clip_region.js against the numbers that policy_gradients computed.
//   node clip_region.mjs MODULE GOLDEN
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [modulePath, goldenPath] = process.argv.slice(2);
const widget = await import(pathToFileURL(modulePath));
const golden = JSON.parse(readFileSync(goldenPath, "utf8"));
let checks = 0;

function close(actual, expected, what) {
  const near = Math.abs(actual - expected) <= 1e-12 * Math.max(1, Math.abs(expected));
  assert.ok(near, `${what}: ${actual} instead of ${expected}`);
  checks += 1;
}

function equal(actual, expected, what) {
  assert.deepEqual(actual, expected, what);
  checks += 1;
}

for (const [ratio, advantage, low, high, objective, weight] of golden.grid) {
  const what = `ρ=${ratio} A=${advantage} ε=(${low}, ${high})`;
  const actual = widget.ppoClip(ratio, advantage, low, high);
  close(actual.objective, objective, `objective at ${what}`);
  close(actual.gradient, weight, `gradient weight at ${what}`);
  if (advantage === 0) continue;
  const dead = widget.isDead(Math.sign(advantage), widget.side(ratio, low, high));
  equal(dead, weight === 0, `dead or alive at ${what}`);
}

for (const { state, counts, kept, sentence } of golden.states) {
  const actual = widget.summary(state.tokens, state.eps_low, state.eps_high);
  equal(actual.positive, counts.positive, "counts for A > 0");
  equal(actual.negative, counts.negative, "counts for A < 0");
  close(actual.kept, kept, "share of the gradient weight that is kept");
  equal(widget.sentence(state), sentence, "sentence");
}

assert.equal(typeof widget.default.render, "function");
console.log(`${checks} checks passed`);
