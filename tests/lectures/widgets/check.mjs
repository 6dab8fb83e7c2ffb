// Checks a widget's module against the numbers and sentences that Python computed.
//   node check.mjs MODULE GOLDEN
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [modulePath, goldenPath] = process.argv.slice(2);
const widget = await import(pathToFileURL(modulePath));
const golden = JSON.parse(readFileSync(goldenPath, "utf8"));
let checks = 0;

function close(actual, expected, where) {
  if (Array.isArray(expected) || (typeof expected === "object" && expected !== null)) {
    assert.deepEqual(Object.keys(actual), Object.keys(expected), `keys of ${where}`);
    for (const key of Object.keys(expected)) close(actual[key], expected[key], `${where}.${key}`);
    return;
  }
  const near =
    typeof expected === "number"
      ? Math.abs(actual - expected) <= 1e-9 * Math.max(1, Math.abs(expected))
      : actual === expected;
  assert.ok(near, `${where}: ${actual} instead of ${expected}`);
  checks += 1;
}

const { note = () => "", off = () => [], react = () => ({}) } = widget.default;
golden.forEach(({ state, numbers, sentence, ...rest }, i) => {
  close(widget.numbers(state), numbers, `numbers of state ${i}`);
  assert.equal(widget.sentence(state), sentence, `sentence of state ${i}`);
  assert.equal(note(state), rest.note, `note of state ${i}`);
  assert.deepEqual([...off(state)].sort(), rest.off, `controls without effect in state ${i}`);
  for (const [key, changes] of Object.entries(rest.react)) {
    close(react(key, state), changes, `reaction to ${key} in state ${i}`);
  }
  checks += 3;
});
assert.equal(typeof widget.default.render, "function");
console.log(`${checks} checks passed`);
