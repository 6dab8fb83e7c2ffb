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

for (const { state, weights, loss } of JSON.parse(readFileSync(casesPath, "utf8"))) {
  const name = `${state.algorithm}, update ${state.update}`;
  assert.ok(rowOf(state.step, state.algorithm).formula, `${name} has no formula`);
  let total = 0;
  weights.forEach((expected, i) => {
    const found = terms(state, i);
    near(found.weight, expected, `${name}, token ${i}`);
    if (!found.out) total += found.loss * found.share;
    const written = lines(state, i);
    const last = written.at(-1)[1].split(" = ").at(-1).split(":")[0].replace("−", "-");
    if (!found.out) {
      const digits = Math.abs(expected) >= 9.95 ? 0.0501 : 0.000501;
      assert.ok(Math.abs(Number(last) - expected) <= digits, `${name}, token ${i}: writes ${last}`);
    }
    assert.ok(!written.flat().join(" ").match(/NaN|undefined|Infinity/), written.flat().join("\n"));
    checks += 3;
  });
  near(total, loss, `the loss of ${name}`);
}
console.log(`${checks} checks passed`);
