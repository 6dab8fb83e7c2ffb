// Compares the step inspector's formulas with what policy_gradients computed.
//   node terms.mjs MODULE CASES     CASES: [{ state, weights, loss }]
// weights: per token, unrounded; loss: the row's loss on the groups shown, KL included.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [modulePath, casesPath] = process.argv.slice(2);
const { terms, lines, rowOf } = await import(pathToFileURL(modulePath));
let checks = 0;

const near = (one, other, where) =>
  assert.ok(Math.abs(one - other) <= 1e-9 * Math.max(1, Math.abs(other)), `${where}: ${one}, ${other}`);

// Whoever recomputes what a line writes out in numbers, from the printed digits alone, gets the
// number that it writes behind them, to three digits.
function arithmetic(words, where, d) {
  if (words.includes(", slope ")) {
    const [value, slope] = words.split(", slope ");
    arithmetic(value, where, dOf(words));
    arithmetic(slope, where, dOf(words));
    return;
  }
  const parts = plain(words).split(/ = |: /);
  parts.slice(1).forEach((result, i) => {
    let given = parts[i];
    if (!/^[-+\d.*e ]+$/.test(result)) return;
    const known = { "½ d^{2}": "d * d / 2", "e^{d} - 1 - d": "exp(d) - 1 - d", "1 - e^{d}": "1 - exp(d)", "-d": "-d" };
    if (known[given]) given = known[given].replaceAll("d", `(${d})`);
    const numbersOnly = /^[-\d.()+*/ ,e]*$/.test(given.replaceAll(/(exp|min|max)\(/g, "("));
    const computes = /[-+*/(]/.test(given.trim().slice(1));
    if (!numbersOnly || !computes) return;
    const value = Function("exp", "min", "max", `return ${given}`)(Math.exp, Math.min, Math.max);
    const expected = number(result);
    const slack = 1e-3 * Math.abs(expected) + 1e-14;
    assert.ok(Math.abs(value - expected) <= slack, `${where}: “${words}” gives ${value}`);
    written += 1;
  });
}
// The printed d of a line about the KL.
const dOf = (words) => plain(words).match(/ = (-?[\d.]+(?:e-?\d+| \* 1e-?\d+)?): /)[1];
let written = 0;

// As JavaScript: a true minus, powers of ten, thousands, and without the remark at the end.
const plain = (words) => words.replaceAll("−", "-").replaceAll("×", "*")
  .replaceAll(/10\^\{(-?\d+)\}/g, "1e$1").replaceAll(/(\d),(\d{3})/g, "$1$2")
  .replaceAll(/ \([a-z][^)]*\)$/g, "");
const number = (words) => Function(`return ${plain(words)}`)();

for (const { state, weights, loss } of JSON.parse(readFileSync(casesPath, "utf8"))) {
  const name = `${state.algorithm}, update ${state.update}`;
  assert.ok(rowOf(state.step, state.algorithm).formula, `${name} has no formula`);
  let total = 0;
  weights.forEach((expected, i) => {
    const found = terms(state, i);
    near(found.weight, expected, `${name}, token ${i}`);
    if (!found.out) total += found.loss * found.share;
    const all = lines(state, i);
    for (const [name_, words] of all) arithmetic(words, `${name}, token ${i}, ${name_}`);
    if (!found.out) {
      const last = number(all.at(-1)[1].split(" = ").at(-1));
      const near = Math.abs(last - expected) <= 1e-3 * Math.abs(expected);
      assert.ok(near, `${name}, token ${i}: writes ${last} for ${expected}`);
    }
    assert.ok(!all.flat().join(" ").match(/NaN|undefined|Infinity/), all.flat().join("\n"));
    checks += 3;
  });
  near(total, loss, `the loss of ${name}`);
}
assert.ok(written > 4 * checks / 3, `only ${written} lines of arithmetic`);
console.log(`${checks} checks passed`);
