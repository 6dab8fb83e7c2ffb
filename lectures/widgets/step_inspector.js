// The step inspector: every token of a training step, with what each algorithm does to it.
// Python (step_view.py) has computed every gradient weight with policy_gradients; this file draws
// them, and writes out a chosen token's loss with its own numbers. What the formula gives and what
// Python gave are tested to be the same for every token, row and update.
// Leaves out: rows with functions it does not know (a learner's own): their numbers come from
// Python alone.

import { fixed, html, signedColor, widget } from "./base.js";
import { cispo, clamp, gspo, ppoClip, reinforce, sapo, unclipped } from "./surrogates.js";

// --- mathematics ---------------------------------------------------------------------------

const SURROGATES = { reinforce, unclipped, ppo_clip: ppoClip, gspo, cispo, sapo };
// Where policy_gradients cuts log-ratios; the gradient is 0 beyond.
const LIMIT = 0.9 * Math.log(Number.MAX_VALUE);
const bounded = (log) => clamp(log, -LIMIT, LIMIT);
const sum = (list) => list.reduce((total, x) => total + x, 0);

// d = log π_ref − log π; a KL's value and its derivative by log π.
const KL = {
  k1: (d) => ({ value: -d, slope: 1 }),
  k2: (d) => ({ value: 0.5 * d * d, slope: -d }),
  k3: (d) => {
    const cut = Math.min(d, LIMIT);
    return { value: Math.expm1(cut) - cut, slope: d > LIMIT ? 0 : -Math.expm1(d) };
  },
};

// What one token of a response of `size` tokens counts in the average.
const SHARE = {
  mean_per_sequence: ({ sequences }, size) => 1 / (sequences * size),
  mean_per_token: ({ tokens }) => 1 / tokens,
  mean_fixed_length: ({ sequences, length }) => 1 / (sequences * length),
  sum_per_sequence: ({ sequences }) => 1 / sequences,
};

export const rowOf = ({ rows }, key) => rows.find((row) => row.key === key) ?? rows[0];

// Which response a token belongs to; found once for each record.
const places = new WeakMap();
function responseAt({ responses }, token) {
  if (!places.has(responses)) {
    places.set(responses, responses.flatMap(({ span: [from, to] }, i) => Array(to - from).fill(i)));
  }
  return places.get(responses)[token];
}

const groupOf = (step, token) => Math.floor(responseAt(step, token) / step.group);
const leftOut = ({ groups }, row, group) => groups[group].discarded || row.dropped.includes(group);
const advantageOf = (step, row, token) =>
  row.advantages[row.per_token ? token : responseAt(step, token)];

// While Python hands over another record, value by value, the old update or token may not exist.
const fitted = (state) => ({
  ...state,
  update: Math.min(state.update, state.step.logp.length),
  token: Math.min(state.token, state.step.texts.length - 1),
});

const logRatio = ({ step, update }, i) => step.logp[update - 1][i] - step.old[i];
const ratioOf = (state, i) => Math.exp(bounded(logRatio(state, i)));

// Everything about one token in the present state; `weight` is the formula's, `given` Python's.
export function terms(state, token) {
  const { step, algorithm, update } = state;
  const row = rowOf(step, algorithm);
  const logps = step.logp[update - 1];
  const response = responseAt(step, token);
  const [from, to] = step.responses[response].span;
  const group = groupOf(step, token);
  const logp = logps[token];
  const old = step.old[token];
  const ratio = ratioOf(state, token);
  const advantage = advantageOf(step, row, token);
  const given = row.weights[update - 1][token];
  const gate = row.gates[update - 1][token];
  const out = leftOut(step, row, group);
  const found = { token, row, response, group, logp, old, ratio, advantage, given, gate, out, from, to };
  if (!row.formula || out) return { ...found, weight: out ? 0 : given };

  const logRatios = logps.slice(from, to).map((x, i) => x - step.old[from + i]);
  const meanLogRatio = sum(logRatios) / (to - from);
  const log = row.surrogate === "gspo" ? meanLogRatio : logp - old;
  const rho = Math.exp(bounded(log));
  const at = (i) => {
    const own = { ratio: rho, advantage: advantageOf(step, row, i), logp };
    const { term, weight } = SURROGATES[row.surrogate](own, row.knobs);
    const constant = log !== bounded(log) && !/reinforce|cispo/.test(row.surrogate);
    return { term, weight: constant ? 0 : weight };
  };
  const { term, weight: own } = at(token);
  // a sequence's term stands on each of its tokens; by this token's log π each has 1/|y| of it
  const slope = row.surrogate !== "gspo" ? own
    : sum(logps.slice(from, to).map((_, i) => at(from + i).weight)) / (to - from);
  const counts = { ...step.counts };
  for (const key of ["sequences", "tokens"]) counts[key] = Math.max(1, counts[key]);
  const share = SHARE[row.average](counts, to - from);
  const d = row.beta > 0 ? step.ref[token] - logp : 0;
  const kl = KL[row.estimator](d);
  const loss = -term + row.beta * kl.value;
  const weight = (slope - row.beta * kl.slope) * share * step.scale;
  return { ...found, rho, meanLogRatio, term, own, slope, share, d, kl, loss, weight };
}

// The present picture's numbers, the same as StepInspector.numbers in Python.
export function numbers(given) {
  const state = fitted(given);
  const all = state.step.texts.map((_, i) => terms(state, i));
  return {
    weight: all.map(({ weight }) => weight),
    ratio: all.map(({ ratio }) => ratio),
    differs: differences(state),
  };
}

// --- words ---------------------------------------------------------------------------------

// Without its sign, in few characters: 1.24, 12.3, 123, 0.004, 2·10⁵, 2·10⁻⁷.
function sizeOf(value, digits = 2) {
  const size = Math.abs(value);
  if (size >= 99999.5 || (size > 0 && size < 1e-4)) {
    const [mantissa, power] = size.toExponential(size < 1 ? 0 : 1).split("e");
    const raised = power.replace("+", "").replace("-", "⁻").replace(/\d/g, (d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d]);
    return `${mantissa.replace(".0", "")}·10${raised}`;
  }
  if (size > 0 && size < 0.5 * 10 ** -digits) return String(Number(size.toPrecision(1)));
  return fixed(size, size >= 99.5 ? 0 : size >= 9.95 ? 1 : digits);
}

// With its sign; "0" is exactly 0.
const signed = (value, digits) =>
  value === 0 ? "0" : `${value > 0 ? "+" : "−"}${sizeOf(value, digits)}`;
const rewardText = (value) => `${value < 0 ? "−" : ""}${sizeOf(value)}`;

// A long text's beginning.
function cut(words, most = 24) {
  const letters = words.length > most ? [...words] : [];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : words;
}

const FACTOR = 1.1; // a weight has changed if it is more than this many times larger or smaller
const changed = (a, b) => (a === 0 || b === 0 ? a !== b : b / a < 1 / FACTOR || b / a > FACTOR);
const bareOf = (row, update) => (row.bare ?? row.weights)[update - 1];

// Tokens that the algorithm to compare with treats otherwise, each in one of three lists.
// turned: another sign, without the KL, or another clip state; factor: without the KL another
// size; kl: neither, and yet the weights differ as much.
export function differences({ step, algorithm, compare, update }) {
  const lists = { turned: [], factor: [], kl: [] };
  if (compare === "none") return lists;
  const [one, two] = [algorithm, compare].map((key) => rowOf(step, key));
  const [[a, g, whole], [b, h, other]] = [one, two].map((row) =>
    [bareOf(row, update), row.gates[update - 1], row.weights[update - 1]]);
  a.forEach((_, i) => {
    if (g[i] !== h[i] || Math.sign(a[i]) !== Math.sign(b[i])) lists.turned.push(i);
    else if (changed(a[i], b[i])) lists.factor.push(i);
    else if (changed(whole[i], other[i])) lists.kl.push(i);
  });
  return lists;
}

// What the compared algorithm changes, in words.
function compared(state) {
  const { step, algorithm, compare, update } = state;
  if (compare === "none") return "";
  const [one, two] = [algorithm, compare].map((key) => rowOf(step, key));
  const { turned, factor, kl } = differences(state);
  const say = ({ length: n }, verb, rest) => (n > 0 ? [`${tokens(n)} ${verb}${n > 1 ? "" : "s"} ${rest}`] : []);
  const factors = factor.map((i) => bareOf(two, update)[i] / bareOf(one, update)[i]);
  const [least, most] = [Math.min, Math.max].map((end) => sizeOf(factors.reduce((x, y) => end(x, y), factors[0] ?? 1)));
  const range = least === most ? `× ${least}` : `× ${least} to × ${most}`;
  const parts = [
    ...say(turned, "get", "another sign or clip"),
    ...say(kl, "differ", "only by the KL"),
    ...say(factor, "change", `weight by more than a factor of ${FACTOR} (${range})`),
  ];
  const nothing = `no token changes sign or clip, and no weight by more than a factor of ${FACTOR}`;
  return ` Under ${two.label} ${parts.join(", ") || nothing}.`;
}

// At most six decimals, no more than needed: 1.2, 1.0125, 1.0004.
const edge = (value) => String(Number(value.toFixed(6))).replace("-", "−");
const tokens = (n) => (n === 1 ? "1 token" : `${n} tokens`);
// What the hatching of a surrogate says; a surrogate without a clip has no hatching.
const HATCHED = { cispo: "bounded", reinforce: "", unclipped: "", sapo: "" };
const hatched = ({ surrogate, beta }) =>
  HATCHED[surrogate] ?? (beta > 0 ? "clipped, only the KL pushes" : "clipped");

// What the clip did, in words.
function clipped({ step, update }, row) {
  const gates = row.gates[update - 1];
  const every = tokens(step.texts.length);
  const count = (letter) => gates.split(letter).length - 1;
  const [high, low, dual, cut, raised] = ["h", "l", "d", "b", "f"].map(count);
  const { eps_low: below, eps_high: above, dual_clip: c } = row.knobs;
  const fresh = step.logp[update - 1].every((x, i) => Math.abs(x - step.old[i]) < 1e-4);
  const ones = fresh ? "every ratio is 1, so " : "";
  if (row.surrogate === "reinforce") {
    const stale = "; the samples are the old policy's, and nothing corrects for it";
    return `no ratio, so no clip${fresh ? "" : stale}`;
  }
  if (row.surrogate === "unclipped") return "there is no clip, no token is silenced by it";
  if (row.surrogate === "sapo") return "the gate is soft, no token is silenced by it";
  if (row.surrogate === "cispo") {
    if (cut + raised === 0) return `${ones}no ratio is bounded`;
    const words = [`cut to ${edge(1 + above)}`, `raised to ${edge(1 - below)}`];
    const rest = raised > 0 ? ` and that of ${raised} ${words[1]}` : "";
    const what = cut === 0 ? `${raised} of ${every} is ${words[1]}` : `${cut} of ${every} is ${words[0]}${rest}`;
    return `the ratio of ${what}, none is silenced by it`;
  }
  const silent = high + low + dual;
  if (silent === 0) return `${ones}no token is clipped`;
  const places = row.formula
    ? [`above ${edge(1 + above)} with A > 0`, `below ${edge(1 - below)} with A < 0`, `above c = ${edge(c || 1)} with A < 0`]
    : ["with A > 0", "with A < 0", "with A < 0 and ρ above 1"];
  const where = [high, low, dual].map((n, i) => n > 0 && `${n} ${places[i]}`).filter(Boolean).join(", ");
  if (!row.formula) return `${silent} of ${every} ${silent === 1 ? "gets" : "get"} no gradient (${where})`;
  const ratio = row.surrogate === "gspo" ? "whole responses, by their ρ(y): " : "";
  return row.beta > 0
    ? `the clip leaves ${silent} of ${every} only the KL's gradient (${ratio}${where})`
    : `the clip silences ${silent} of ${every} (${ratio}${where})`;
}

// How many tokens have no gradient for another reason than the clip, in words.
function without({ step, update }, row) {
  const idle = [];
  let outside = 0;
  step.texts.forEach((_, i) => {
    if (leftOut(step, row, groupOf(step, i))) outside += 1;
    else if (advantageOf(step, row, i) === 0) idle.push(i);
  });
  let words = "";
  if (idle.length > 0) {
    const more = /[hld]/.test(row.gates[update - 1]);
    const count = more ? `${idle.length} more` : tokens(idle.length);
    const [has, gets] = idle.length === 1 ? ["has", "gets"] : ["have", "get"];
    words = `; ${count} ${has} advantage 0`;
    if (row.formula && row.beta > 0) words += ` and ${gets} only the KL's ${more ? "anyway" : "gradient"}`;
    else if (idle.every((i) => row.weights[update - 1][i] === 0)) {
      words += ` and ${gets} ${more ? "none anyway" : "no gradient"}`;
    }
  }
  if (outside > 0) {
    words += `; ${tokens(outside)} ${outside === 1 ? "belongs to a group" : "belong to groups"} left out of the loss`;
  }
  return words;
}

// The result in words; the same text as StepInspector.sentence in Python.
export function sentence(given) {
  const state = fitted(given);
  const { step, algorithm, update } = state;
  const row = rowOf(step, algorithm);
  const weights = row.weights[update - 1];
  const when = step.made > 0 ? `update ${update} of ${step.made}` : "no update was made";
  const first = `${row.label}, ${when}: ${clipped(state, row)}${without(state, row)}`;
  const largest = weights.reduce((best, w, i) => (Math.abs(w) > Math.abs(weights[best]) ? i : best), 0);
  const response = responseAt(step, largest);
  const { label } = step.groups[groupOf(step, largest)];
  const where = `“${cut(step.texts[largest])}” in “${label} → ${step.responses[response].answer}”`;
  const push = weights[largest] === 0 ? "nothing is pushed"
    : `the largest push is ${signed(weights[largest])} on ${where}`;
  return `${first}; ${push}.${compared(state)}`;
}

export function note({ step, algorithm }) {
  const row = rowOf(step, algorithm);
  const scale = step.scale.toLocaleString("en-US");
  const words = hatched(row);
  return `${row.note} ${step.source}. Weight: −∂loss/∂log π × ${scale}; + pushes up the token's `
    .trimStart() + `probability. ${words && `Hatched: ${words}. `}Click a token, or use the arrow keys: `
    + "its loss is written out below the tokens.";
}

// A number inside a formula: significant digits, powers of ten where they are shorter.
function num(value, digits = 4) {
  if (value === 0) return "0";
  if (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5) {
    return String(Number(value.toPrecision(digits))).replace("-", "−");
  }
  const [mantissa, power] = value.toExponential(digits - 1).split("e");
  return `${String(Number(mantissa)).replace("-", "−")} × 10^{${String(Number(power)).replace("-", "−")}}`;
}
const inside = (words) => (words.startsWith("−") ? `(${words})` : words);
const plus = (value) => `${value > 0 ? "+" : ""}${num(value)}`;

// The operands of a formula f with so many digits, four at least, that who computes f from what is
// printed gets its value to three digits.
function enough(values, f) {
  const exact = [f(...values)].flat();
  const agrees = (digits) => [f(...values.map((x) => Number(x.toPrecision(digits))))].flat()
    .every((x, i) => Math.abs(x - exact[i]) <= 2e-4 * Math.abs(exact[i]) + 1e-15);
  let digits = 4;
  while (digits < 16 && !agrees(digits)) digits += 1;
  return values.map((x) => num(x, digits));
}
const minus = (...values) => {
  const [first, ...rest] = enough(values, (a, ...more) => a - sum(more));
  return [first, ...rest.map(inside)].join(" − ");
};
const times = (...values) =>
  enough(values, (...all) => all.reduce((a, b) => a * b)).map(inside).join(" × ");

// log π_old − log π_ref of a token and of those after it, which a critic's row has in its rewards.
const penalties = (step, { token, to }) =>
  step.old.slice(token, to).map((old, t) => old - step.ref[token + t]);

// What the record says a reward is made of.
function rewardLines({ reward, parts = {} }) {
  const { correctness, format } = parts;
  if (Math.abs(reward - correctness - 0.1 * format) < 2e-6) {
    const [a, b] = enough([correctness, format], (x, y) => x + 0.1 * y);
    return [["Reward r", `correctness + 0.1 × format = ${a} + 0.1 × ${b} = ${num(reward)}`]];
  }
  const words = Object.entries(parts).map(([name, value]) => `${name} ${num(value)}`).join(", ");
  return words ? [["Reward r", `${num(reward)} (${words})`]] : [];
}

// The advantage in its own numbers, where the browser knows the formula.
function advantageLine(state, found) {
  const { step } = state;
  const { row, response, group, advantage } = found;
  const size = step.group;
  const start = group * size;
  const scores = step.responses.slice(start, start + size)
    .map(({ reward }, i) => row.scores?.[start + i] ?? reward);
  const r = row.scores?.[response] ?? step.responses[response].reward;
  const mean = sum(scores) / size;
  const std = Math.sqrt(sum(scores.map((x) => (x - mean) ** 2)) / (size - 1));
  const value = num(advantage);
  if (row.advantage === "critic") {
    if (row.penalty === 0) return `r − V = ${minus(r, r - advantage)} = ${value}`;
    const kl = sum(penalties(step, found));
    const worth = r - row.penalty * kl - advantage;
    const [a, b, c, d] = enough([r, row.penalty, kl, worth], (w, x, y, z) => w - x * y - z);
    return `r − β Σ k1 − V = ${a} − ${b} × ${inside(c)} − ${inside(d)} = ${value} (the row's β)`;
  }
  if (step.groups[group].discarded) return "0: this group was replaced by dynamic sampling";
  const alike = scores.every((x) => x === scores[0]);
  const known = {
    group_standardized: () => {
      if (alike) return `every reward of the group is ${num(r)}: A = 0`;
      const [a, b, c] = enough([r, mean, std], (x, y, z) => (x - y) / (z + 0.0001));
      const words = `(${a} − ${inside(b)}) / (${c} + 0.0001) = ${value}`;
      return `(r − mean) / (std + 0.0001) = ${words} (std of the sample, over n − 1 = ${size - 1})`;
    },
    group_centered: () => `r − mean = ${minus(r, mean)} = ${value}`,
    leave_one_out: () => `r − mean of the others = ${minus(r, (sum(scores) - r) / (size - 1))} = ${value}`,
    batch_centered: () => `r − mean of the step = ${minus(r, r - advantage)} = ${value}`,
    maxrl: () => {
      if (mean === 0) return "every reward of the group is 0: A = 0";
      const [a, b] = enough([r, mean], (x, y) => (x - y) / y);
      return `(r − mean) / mean = (${a} − ${inside(b)}) / ${inside(b)} = ${value}`;
    },
    max_only: () => `r if it is the group's largest, else 0 = ${value}`,
  }[row.advantage];
  return known ? known() : `${value} (from ${row.advantage})`;
}

const LOG_PI = "log π";
const OLD = "log π_{old}";

// The chosen token's loss, term by term: [name, formula] with _{…} and ^{…} for sub- and superscript.
export function lines(state, token) {
  const found = terms(state, token);
  const { step } = state;
  const { row, logp, old, ratio, advantage: A, from, to, given, out } = found;
  const list = rewardLines(step.responses[found.response]);
  if (row.scores) {
    const r = step.responses[found.response].reward;
    const score = row.scores[found.response];
    const [a, b, c] = enough([r, row.penalty, (r - score) / row.penalty], (x, y, z) => x - y * z);
    list.push(["With its KL", `r − β Σ k1 = ${a} − ${b} × ${inside(c)} = ${num(score)} (the row's β)`]);
  }
  if (row.advantage === "critic" && row.penalty > 0) {
    const all = penalties(step, found);
    const terms = all.length > 12 || all.length === 1 ? "" : `${enough(all, (...x) => sum(x)).map(inside).join(" + ")} = `;
    list.push(["Σ k1", `log π_{old} − log π_{ref} as sampled, from here to the end, ${tokens(all.length)}: ${terms}${num(sum(all))}`]);
  }
  list.push(["Advantage A", advantageLine(state, found)]);
  const far = Math.abs(logp - old) > LIMIT ? ` (the difference is cut at ±${num(LIMIT)})` : "";
  const [x, y] = enough([logp, old], (one, other) => Math.exp(bounded(one - other)));
  list.push(["Ratio ρ", `exp(${LOG_PI} − ${OLD}) = exp(${x} − ${inside(y)}) = ${num(ratio)}${far}`]);
  const ends = besides(state, token);
  if (out) return [...list, ["Weight", "0: this group is not in the loss"], ...ends];
  if (!row.formula) {
    return [...list, ["Weight", `${signed(given, 4)}, by policy_gradients (no formula here for ${row.label})`], ...ends];
  }

  const { eps_low: eLow, eps_high: eHigh, dual_clip: c } = row.knobs;
  const size = to - from;
  const { term, own, slope } = found;
  let slopeName = "slope";
  const range = `${edge(1 - eLow)}, ${edge(1 + eHigh)}`;
  const clip = (x) => clamp(x, 1 - eLow, 1 + eHigh);
  const gated = (x, name) => {
    const plain = x * A;
    const bound = clip(x) * A;
    const show = (value) => num(value, row.surrogate === "gspo" ? 6 : 4); // its edges lie close to 1
    const dual = (lower, floor) => (c && A < 0 ? `max(${lower}, ${floor})` : lower);
    const formula = dual(`min(${name} A, clip(${name}, ${range}) A)`, `${num(c ?? 0)} A`);
    const inNumbers = dual(`min(${show(plain)}, ${show(bound)})`, show((c ?? 0) * A));
    list.push(["Objective", `${formula} = ${inNumbers} = ${show(term)}`]);
    const why = A === 0 ? "A is 0" : own === 0 ? "the constant is chosen" : `${name} A is chosen`;
    return `${why}: ∂/∂${LOG_PI}${own === 0 ? " = 0" : ""}`;
  };
  ({
    reinforce: () => list.push(["Objective", `A ${LOG_PI} = ${times(A, logp)} = ${num(term)}`],
      ["Its slope", `∂/∂${LOG_PI} = A = ${num(slope)}`]),
    unclipped: () => list.push(["Objective", `ρ A = ${times(ratio, A)} = ${num(term)}`],
      ["Its slope", `∂/∂${LOG_PI} = ρ A = ${num(slope)}`]),
    ppo_clip: () => list.push(["Its slope", gated(ratio, "ρ") + (own === 0 ? "" : ` = ρ A = ${times(ratio, A)} = ${num(own)}`)]),
    gspo: () => {
      const mean = enough([found.meanLogRatio], (log) => Math.exp(bounded(log)));
      list.push(["Sequence ρ(y)", `exp(mean of ${LOG_PI} − ${OLD} over ${size}) = exp(${mean}) = ${num(found.rho, 6)}`]);
      const one = gated(found.rho, "ρ(y)");
      const [p, q] = enough([found.rho, A], (u, v) => (u * v) / size);
      list.push(["Its slope", one + (own === 0 ? "" : ` = ρ(y) A / |y| = ${p} × ${inside(q)} / ${size} = ${num(own / size)}`)]);
      if (own === 0 && !row.per_token) return;
      slopeName = "summed slope";
      list.push(["Summed slope", row.per_token
        ? `ρ(y) A_{t} / |y| over all tokens t of the response whose ρ(y) A_{t} is chosen: ${num(slope)}`
        : `the term stands on each of the ${tokens(size)}: ${times(size, own / size)} = ${num(slope)}`]);
    },
    cispo: () => list.push(["Objective", `[clip(ρ, ${range})] A ${LOG_PI} = ${times(clip(ratio), A, logp)} = ${num(term)}`],
      ["Its slope", `[ ] is a constant: ∂/∂${LOG_PI} = ${times(clip(ratio), A)} = ${num(slope)}`]),
    sapo: () => {
      const tau = A > 0 ? row.knobs.tau_pos : row.knobs.tau_neg;
      const gate = 1 / (1 + Math.exp(-tau * (ratio - 1)));
      list.push(["Objective", `(4/τ) σ(τ(ρ − 1)) A = ${times(4 / tau, gate, A)} = ${num(term)}`],
        ["Its slope", `4 σ (1 − σ) ρ A = ${times(4, gate, 1 - gate, ratio, A)} = ${num(slope)}`]);
    },
  })[row.surrogate]();
  const { kl } = found;
  if (row.beta > 0) {
    const both = (x) => Object.values(KL[row.estimator](x));
    const [d] = enough([found.d], both);
    const value = {
      k1: `−d = ${num(kl.value)}`, k2: `½ d^{2} = ${num(kl.value)}`, k3: `e^{d} − 1 − d = ${num(kl.value)}`,
    }[row.estimator];
    const slopes = { k1: "1", k2: "−d", k3: "1 − e^{d}" }[row.estimator];
    list.push([`KL (${row.estimator})`, `d = log π_{ref} − ${LOG_PI} = ${minus(step.ref[token], logp)} = ${d}: ${value}, slope ${slopes} = ${num(kl.slope)}`]);
    const [one, two, three] = enough([-term, row.beta, kl.value], (u, v, w) => u + v * w);
    list.push(["Token loss", `−objective + β KL = ${one} + ${two} × ${inside(three)} = ${num(found.loss)} (the row's β)`]);
  } else {
    list.push(["Token loss", `−objective = ${num(-term)}`]);
  }
  const { sequences, tokens: all, length } = step.counts;
  const share = {
    mean_per_sequence: `${sequences} × ${size}`, mean_per_token: `${all}`,
    mean_fixed_length: `${sequences} × ${length}`, sum_per_sequence: `${sequences}`,
  }[row.average];
  const divisor = {
    mean_per_sequence: "responses × own length", mean_per_token: "tokens of the step",
    mean_fixed_length: "responses × L", sum_per_sequence: "responses",
  }[row.average];
  const divided = share.includes("×") ? `(${share})` : share;
  const [whole, here, what] = row.average === "mean_per_token" ? [all, step.texts.length, "tokens"]
    : [sequences, step.responses.length, "responses"];
  const part = here < whole ? `; ${here} of the step's ${whole} ${what} are shown` : "";
  const [loss] = enough([found.loss], (x) => x * found.share);
  list.push(["In the step's loss", `${loss} / ${divided} = ${num(found.loss * found.share)} (${divisor}${part})`]);
  const scale = step.scale.toLocaleString("en-US");
  const push = (x, beta, z) => (x - beta * z) * found.share * step.scale;
  const [s, beta, z] = enough([slope, row.beta, row.beta > 0 ? kl.slope : 0], push);
  const [words, numbers] = row.beta > 0 ? [`(${slopeName} − β KL slope)`, `(${s} − ${beta} × ${inside(z)})`]
    : [slopeName, s];
  list.push(["Weight", `${words} / ${divided} × ${scale} = ${numbers} / ${divided} × ${scale} = ${plus(found.weight)}`]);
  return [...list, ...ends];
}

// The compared algorithm's weight of the token.
function besides(state, token) {
  const { step, algorithm, compare, update } = state;
  if (compare === "none") return [];
  const [one, two] = [algorithm, compare].map((key) => rowOf(step, key));
  const [a, b] = [one, two].map((row) => row.weights[update - 1][token]);
  const gate = two.gates[update - 1][token];
  const lists = differences(state);
  const why = Object.entries({
    turned: "another sign or clip", kl: "only the KL differs",
  }).find(([kind]) => lists[kind].includes(token));
  const times = a !== 0 && b / a > 0 ? `, × ${num(b / a)} of ${one.label}'s` : "";
  return [[`${two.label}'s weight`, `${plus(b)}${times}${gate === "." ? "" : `, ${GATES[gate]}`}${why ? ` (${why[1]})` : ""}`]];
}

// --- drawing -------------------------------------------------------------------------------

const LOOK = `
  .inspector { display: grid; grid-template-columns: minmax(0, 1fr); gap: 10px; }
  .scroll {
    max-height: min(436px, 80vh); overflow-y: auto; border: 1px solid var(--line); border-radius: 5px;
    padding: 0 8px 8px; overscroll-behavior: contain;
  }
  .group { padding-top: 8px; }
  .head {
    position: sticky; top: 0; z-index: 1; margin: 0 -8px; padding: 5px 8px 4px;
    background: var(--paper); display: flex; flex-wrap: wrap; gap: 2px 10px; align-items: baseline;
  }
  .head b { font-weight: 600; overflow-wrap: anywhere; }
  .badge { color: var(--soft); font-size: 13px; }
  .response { display: flex; gap: 8px; align-items: stretch; padding: 2px 0; }
  .fact {
    flex: none; min-width: 62px; font-size: 12px; line-height: 1.35; color: var(--ink);
    font-variant-numeric: tabular-nums; align-self: center;
  }
  .fact span { color: var(--soft); display: block; }
  .cells { display: flex; flex-wrap: wrap; gap: 2px; min-width: 0; }
  .cell {
    display: grid; justify-items: center; align-content: center; gap: 0; min-width: 42px;
    padding: 1px 3px 2px; border: 1px solid var(--grid); border-radius: 3px; line-height: 1.3;
    font-size: 12px; color: var(--ink); background: var(--paper); cursor: pointer;
    scroll-margin: 40px 4px 6px;
  }
  .cell, .ramp { forced-color-adjust: none; } /* the colours are the numbers */
  .cell:hover { border-color: var(--ink); }
  .cell .token { font-family: ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre; }
  .cell .token.long { font-size: 10.5px; line-height: 1.49; }
  .cell .number { font-variant-numeric: tabular-nums; }
  .cell.clip {
    background-image: repeating-linear-gradient(45deg, var(--hatch) 0 1.5px, transparent 1.5px 6px);
    background-color: var(--dead); border: 1px dashed var(--ink);
  }
  .cell.clip span { background-color: inherit; padding: 0 3px; }
  .cell.differs { box-shadow: inset 0 -3px 0 var(--ink); } /* a border would move every neighbour */
  .cell.chosen { outline: 2.5px solid var(--ink); outline-offset: 0; }
  .cell.chosen:focus-visible { outline: 3px solid var(--focus); outline-offset: 2px; }
  .cell.rest { background: none; color: var(--soft); border-color: transparent; cursor: default; }
  .cell.rest .number { visibility: hidden; }
  .gone { display: none; }
  .scale { display: flex; flex-wrap: wrap; gap: 4px 14px; font-size: 13px; align-items: center; }
  .ramp { display: inline-flex; flex-wrap: wrap; border: 1px solid var(--line); border-radius: 3px; overflow: hidden; }
  .ramp span { padding: 0 7px; font-variant-numeric: tabular-nums; }
  .key { display: inline-flex; flex-wrap: wrap; gap: 2px 5px; align-items: center; }
  .key .cell { cursor: default; min-width: 22px; height: 14px; padding: 0; }
  .detail { border: 1px solid var(--line); border-radius: 5px; padding: 8px 12px 10px; }
  .detail h3 { margin: 0 0 5px; font-size: 14px; font-weight: 600; }
  .detail dl { margin: 0; display: grid; grid-template-columns: 122px minmax(0, 1fr); gap: 2px 10px; }
  .detail dt { color: var(--soft); }
  .detail dd { margin: 0; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
  .detail .weight { font-weight: 600; }
  .detail sub, .detail sup { font-size: 0.78em; line-height: 0; }
  .empty { padding: 14px 4px 6px; margin: 0; }
  @container (max-width: 480px) {
    .detail dl { grid-template-columns: minmax(0, 1fr); gap: 0; }
    .detail dd { margin-bottom: 4px; }
    .fact { min-width: 50px; }
  }
`;

const KEEP_OWN_KEYS = { "data-lm-suppress-shortcuts": "true" };
const rounded = (x) => {
  if (!(x > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(x));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= x * 0.999);
};

// Full colour from here on: a round number that nine in ten pushes stay below. One scale for all
// updates of an algorithm, so that the slider shows what changes.
function largestOf(row) {
  const sizes = row.weights.flat().map(Math.abs).filter((x) => x > 0.005).sort((x, y) => x - y);
  return rounded(sizes[Math.floor(0.9 * (sizes.length - 1))]);
}

// What a cell shows: number as text and as a signed share of full colour.
const SHOWN = {
  weight: (state, row, i) => {
    const value = row.weights[state.update - 1][i];
    return { text: signed(value), share: value / row.largest };
  },
  ratio: (state, row, i) => {
    const log = bounded(logRatio(state, i));
    return { text: sizeOf(Math.exp(log)), share: log / Math.log(1.5) };
  },
  advantage: (state, row, i) => {
    const value = row.advantages[row.per_token ? i : state.step.of[i]];
    return { text: signed(value), share: value / row.largestAdvantage };
  },
  probability: ({ step, update }, row, i) => {
    const value = Math.exp(step.logp[update - 1][i]);
    return { text: sizeOf(value), share: value };
  },
  factor: (state, row, i, middle) => {
    if (state.compare === "none") return { text: "–", share: 0 };
    const [a, b] = weightsOf(state).map((weights) => weights[i]);
    if (a === 0) return b === 0 ? { text: "0", share: 0 } : { text: "from 0", share: 1 };
    const factor = b / a;
    const text = factor === 0 ? "×0" : `×${factor < 0 ? "−" : ""}${sizeOf(factor)}`;
    return { text, share: factor > 0 ? Math.log(factor / middle) / Math.log(4) : -1 };
  },
};
const weightsOf = ({ step, algorithm, compare, update }) =>
  [algorithm, compare].map((key) => rowOf(step, key).weights[update - 1]);

// The median factor from the chosen algorithm's weights to the compared one's: where the colours of
// the factors begin.
function middleOf(state) {
  if (state.show !== "factor" || state.compare === "none") return 1;
  const [one, two] = weightsOf(state);
  const factors = one.map((a, i) => two[i] / a).filter((x) => x > 0 && x < Infinity).sort((x, y) => x - y);
  return factors[Math.floor(factors.length / 2)] ?? 1;
}
const steps = (top) => [-1, -0.5, 0, 0.5, 1].map((share) => {
  const value = Number((share * top).toPrecision(3));
  return [share, `${value > 0 ? "+" : ""}${value}`.replace("-", "−")];
});
const RAMPS = {
  weight: ({ largest }) => steps(largest),
  ratio: () => [[-1, "0.67"], [-0.5, "0.82"], [0, "1"], [0.5, "1.22"], [1, "1.5"]],
  advantage: ({ largestAdvantage }) => steps(largestAdvantage),
  probability: () => [[0, "0"], [0.25, "0.25"], [0.5, "0.5"], [0.75, "0.75"], [1, "1"]],
  factor: (row, middle) =>
    [-1, -0.5, 0, 0.5, 1].map((share) => [share, `×${sizeOf(middle * 4 ** share)}`]),
};
const NAMES = {
  weight: "weight", ratio: "ratio ρ", advantage: "advantage A", probability: "probability π",
  factor: "compared weight",
};
// The same with its unit, for the legend.
function legendOf({ step, algorithm, compare, show }) {
  if (show === "weight") return `weight × ${step.scale.toLocaleString("en-US")}`;
  if (show !== "factor") return NAMES[show];
  const [one, two] = [algorithm, compare].map((key) => rowOf(step, key).label);
  return compare === "none" ? "choose an algorithm to compare with" : `${two}'s weight ÷ ${one}'s`;
}
// Whether the filter keeps a token of this response.
const FILTERS = {
  all: () => true,
  clipped: ({ update }, row, i) => row.gates[update - 1][i] !== ".",
  alike: ({ step }, row, i, response) => step.groups[Math.floor(response / step.group)].alike,
  end: ({ step }, row, i, response) => {
    const { span, ended } = step.responses[response];
    return ended && i === span[1] - 1;
  },
};

// For each token whether the filter shows it.
function visible(state) {
  const row = rowOf(state.step, state.algorithm);
  return state.step.responses.flatMap(({ span: [from, to] }, response) =>
    Array.from({ length: to - from }, (_, t) => FILTERS[state.filter](state, row, from + t, response)));
}

// The chosen token, or while the filter hides it the first one that is shown.
const seenOf = ({ token }, open) =>
  (open[token] || !open.includes(true) ? token : open.indexOf(true));

const NONE = {
  clipped: (row) => ({
    bounded: "No ratio is bounded at this update.", "": "This algorithm has no clip.",
  }[hatched(row)] ?? "No token is clipped at this update."),
  alike: () => "The shown groups have contrast.",
  end: () => "No shown response has an end token.",
  all: () => "",
};

// "π_{old}" with a subscript, "10^{−4}" with a superscript.
function formula(words) {
  return words.split(/([_^]\{[^}]*\})/).filter(Boolean).map((part) => {
    const found = part.match(/^([_^])\{(.*)\}$/);
    return found ? html(found[1] === "_" ? "sub" : "sup", {}, found[2]) : part;
  });
}

// Numbers that depend on the data alone are found once, not at every move.
function prepared(data) {
  const of = data.texts.map((_, i) => responseAt(data, i));
  const rows = data.rows.map((row) => ({
    ...row,
    largest: largestOf(row),
    largestAdvantage: rounded(Math.max(...row.advantages.map(Math.abs))),
  }));
  return { ...data, of, rows };
}

// What a cut text's tip says.
const whole = (words, most) => (cut(words, most) === words ? null : words);

// One view of the widget: built once for its data, then only changed, so that the focus stays.
function build(data) {
  const step = prepared(data);
  const view = { data, step, now: null, set: null, visible: [], seen: null };
  view.cells = step.texts.map((text, i) => {
    const token = html("span", { class: text.length > 4 ? "token long" : "token" }, cut(text));
    const number = html("span", { class: "number" });
    const look = { type: "button", class: "cell", role: "gridcell", tabindex: -1, title: whole(text) };
    const node = html("button", { ...look, ...KEEP_OWN_KEYS }, token, number);
    node.addEventListener("click", () => view.choose(i));
    node.addEventListener("keydown", (event) => move(view, i, event));
    return { node, number, name: "" };
  });
  view.responses = step.responses.map(({ span, reward, answer }, i) => {
    const advantage = html("span", {});
    const name = `response ${(i % step.group) + 1} of ${step.group}: ${answer}, reward ${rewardText(reward)}`;
    const named = { role: "rowheader", "aria-label": name };
    const fact = html("div", { class: "fact", ...named }, `r = ${rewardText(reward)}`, advantage);
    const cells = html("div", { class: "cells", role: "none" }, ...view.cells.slice(...span).map(({ node }) => node));
    return { node: html("div", { class: "response", role: "row", "aria-label": name }, fact, cells), advantage };
  });
  view.groups = step.groups.map((group, i) => {
    const badge = html("span", { class: "badge", role: "gridcell" });
    const prompt = html("b", { role: "rowheader", title: whole(group.prompt, 120) }, cut(group.prompt, 120));
    const head = html("div", { class: "head", role: "row" }, prompt, badge);
    const members = view.responses.slice(i * step.group, (i + 1) * step.group);
    const name = { role: "rowgroup", "aria-label": `prompt ${group.label}` };
    return { badge, head, node: html("div", { class: "group", ...name }, head, ...members.map(({ node }) => node)) };
  });
  view.empty = html("p", { class: "empty gone" });
  view.scroll = html("div", { class: "scroll", role: "grid", "aria-label": "Tokens of the step" },
    ...view.groups.map(({ node }) => node));
  view.scale = html("div", { class: "scale" });
  view.detail = html("div", { class: "detail", role: "group", "aria-label": "The chosen token's loss" });
  view.node = html("div", { class: "inspector" }, html("style", {}, LOOK), view.scale, view.scroll, view.empty, view.detail);
  view.choose = (i) => {
    if (!view.visible[i]) return;
    view.set({ token: i });
    const { node } = view.cells[i];
    node.focus({ preventScroll: true });
    node.scrollIntoView({ block: "nearest", inline: "nearest" }); // the page too, if it is small
  };
  return view;
}

// Scrolls the tokens, never the page, until the chosen one is in sight below its prompt, with its
// whole group if that fits.
function bringIntoSight({ scroll, cells, groups, step, seen: token }) {
  const { node, head } = groups[Math.floor(step.of[token] / step.group)];
  const boxes = [cells[token].node, node, head, scroll].map((part) => part.getBoundingClientRect());
  const [cell, around, prompt, box] = boxes;
  if (cell.height === 0 || box.height === 0) return; // filtered out, or not yet in the page
  const covered = prompt.height + 3;
  if (cell.top >= box.top + covered && cell.bottom <= box.bottom) return;
  const whole = around.height < box.height - 8;
  scroll.scrollTop += (whole ? around.top : cell.top - covered) - box.top - 1;
}

// Left and right move over the tokens that the filter shows, up and down to the response before
// and after, Page Up and Page Down to the prompt before and after, Home and End to the response's
// ends, with Ctrl to the first and last token.
function move(view, i, event) {
  const { step, visible: open } = view;
  const { of, responses } = step;
  const column = i - responses[of[i]].span[0];
  const along = (from, by, fits = () => true) => {
    for (let at = from; at >= 0 && at < open.length; at += by) if (open[at] && fits(at)) return at;
    return i;
  };
  const across = (by) => {
    for (let r = of[i] + by; r >= 0 && r < responses.length; r += by) {
      const [from, to] = responses[r].span;
      const distance = (at) => Math.abs(at - from - column);
      const able = Array.from({ length: to - from }, (_, t) => from + t).filter((at) => open[at]);
      if (able.length) return able.reduce((best, at) => (distance(at) < distance(best) ? at : best));
    }
    return i;
  };
  const beyond = (by) => {
    const group = (at) => Math.floor(of[at] / step.group);
    const next = along(by > 0 ? i + 1 : i - 1, by, (at) => group(at) !== group(i));
    return open.findIndex((on, at) => on && group(at) === group(next));
  };
  const [from, to] = responses[of[i]].span;
  const jump = event.ctrlKey || event.metaKey;
  const target = jump ? {
    Home: () => along(0, 1), End: () => along(open.length - 1, -1),
  }[event.key] : {
    ArrowRight: () => along(i + 1, 1), ArrowLeft: () => along(i - 1, -1),
    ArrowDown: () => across(1), ArrowUp: () => across(-1),
    PageDown: () => beyond(1), PageUp: () => beyond(-1),
    Home: () => along(from, 1), End: () => along(to - 1, -1),
  }[event.key];
  if (!target || event.altKey) return;
  event.preventDefault();
  event.stopPropagation();
  view.choose(target());
}

const GATES = { h: "clipped", l: "clipped", d: "clipped", b: "ratio cut", f: "ratio raised" };

function redraw(view, dark) {
  const { step } = view;
  const state = fitted({ ...view.now, step });
  const row = rowOf(step, state.algorithm);
  const gates = row.gates[state.update - 1];
  const differs = new Set(differences(state).turned);
  const show = SHOWN[state.show];
  view.visible = visible(state);
  const seen = seenOf(state, view.visible);
  const middle = middleOf(state);
  view.cells.forEach(({ node, number }, i) => {
    const shown = view.visible[i];
    const { text, share } = show(state, row, i, middle);
    const gated = gates[i] !== ".";
    const { fill, ink } = signedColor(share, 1, dark);
    let look = "cell";
    if (!shown) look += " rest";
    else if (gated) look += " clip";
    if (shown && differs.has(i)) look += " differs";
    if (i === seen) look += " chosen";
    if (node.className !== look) node.className = look;
    const paint = shown && (!gated || share !== 0) ? `background-color:${fill};color:${ink}` : "";
    if (node.getAttribute("style") !== paint) node.setAttribute("style", paint);
    if (number.textContent !== text) number.textContent = text;
    const index = i === seen && shown ? 0 : -1;
    if (node.tabIndex !== index) node.tabIndex = index;
    const [from, to] = step.responses[step.of[i]].span;
    const said = [
      `${cut(step.texts[i])}, token ${i - from + 1} of ${to - from}`, `${NAMES[state.show]} ${text}`,
      gated ? GATES[gates[i]] : "", differs.has(i) ? "differs" : "",
    ].filter(Boolean).join(", ");
    if (view.cells[i].name !== said) node.setAttribute("aria-label", (view.cells[i].name = said));
    const chosen = String(i === seen);
    if (node.getAttribute("aria-selected") !== chosen) {
      node.setAttribute("aria-selected", chosen);
      node.toggleAttribute("aria-describedby", i === seen);
      if (i === seen) node.setAttribute("aria-describedby", "inspector-slope inspector-weight");
    }
  });
  view.responses.forEach(({ node, advantage }, r) => {
    const [from, to] = step.responses[r].span;
    node.classList.toggle("gone", !view.visible.slice(from, to).includes(true));
    advantage.textContent = row.per_token ? "" : `A ${signed(row.advantages[r])}`;
  });
  view.groups.forEach(({ node, badge }, g) => {
    const [from, to] = [g * step.group, (g + 1) * step.group];
    const open = view.responses.slice(from, to).some((r) => !r.node.classList.contains("gone"));
    node.classList.toggle("gone", !open);
    badge.textContent = remark(state, row, g);
  });
  const nothing = !view.visible.includes(true);
  view.empty.classList.toggle("gone", !nothing);
  view.scroll.classList.toggle("gone", nothing);
  view.empty.textContent = NONE[state.filter](row);
  drawScale(view, state, row, dark);
  drawDetail(view, { ...state, token: seen });
  if (view.seen !== seen) {
    view.seen = seen;
    if (view.node.isConnected) bringIntoSight(view);
    else requestAnimationFrame(() => bringIntoSight(view));
  }
}

// What stands beside a group's prompt.
function remark({ step }, row, g) {
  const [from, to] = [g * step.group, (g + 1) * step.group];
  if (step.groups[g].discarded) return "discarded: dynamic sampling replaced this group";
  if (row.dropped.includes(g)) return "dropped: all right or all wrong";
  const own = row.per_token
    ? row.advantages.slice(step.responses[from].span[0], step.responses[to - 1].span[1])
    : row.advantages.slice(from, to);
  if (own.every((a) => a === 0)) return `no contrast: every advantage is 0${row.beta > 0 ? ", the KL is left" : ""}`;
  if (!step.groups[g].alike) return "";
  return "equal rewards, and yet advantages: they do not come from the rewards of this group alone";
}

function drawScale(view, state, row, dark) {
  const ramp = RAMPS[state.show](row, middleOf(state)).map(([share, words]) => {
    const { fill, ink } = signedColor(share, 1, dark);
    return html("span", { style: `background-color:${fill};color:${ink}` }, words);
  });
  const key = (look, words) => html("span", { class: "key" },
    html("span", { class: `cell ${look}`, "aria-hidden": "true" }), words);
  const clip = hatched(row);
  view.scale.replaceChildren(
    html("span", { class: "key" }, legendOf(state), html("span", { class: "ramp" }, ...ramp)),
    ...(clip ? [key("clip", clip)] : []),
    ...(state.compare === "none" ? [] : [key("differs", `other sign or clip under ${rowOf(view.step, state.compare).label}`)]),
  );
}

function drawDetail(view, state) {
  const i = state.token;
  const response = view.step.of[i];
  const { span, answer } = view.step.responses[response];
  const group = view.step.groups[Math.floor(response / view.step.group)];
  const size = view.step.group;
  const place = `token ${i - span[0] + 1} of ${span[1] - span[0]} in response ${(response % size) + 1} of ${size}`;
  const title = `“${cut(view.step.texts[i])}”, ${place}, “${group.label} → ${answer}”`
    + (view.visible[i] ? "" : ", outside the filter");
  const marks = { "Its slope": { id: "inspector-slope" }, Weight: { id: "inspector-weight", class: "weight" } };
  const rows = lines(state, i).flatMap(([name, words]) => [
    html("dt", {}, ...formula(name)), html("dd", marks[name], ...formula(words)),
  ]);
  view.detail.replaceChildren(html("h3", {}, title), html("dl", {}, ...rows));
}

const views = new WeakMap(); // one per mounted widget: `set` is its own

function draw(state, { dark, set }) {
  let view = views.get(set);
  if (!view || view.data !== state.step) {
    view = build(state.step);
    views.set(set, view);
  }
  view.now = state;
  view.set = set;
  redraw(view, dark);
  return view.node;
}

export default widget({ title: "Step inspector", draw, sentence, note });
