// The step inspector: every token of a training step, with what each algorithm does to it.
// Python (step_view.py) has computed every gradient weight with policy_gradients; this file draws
// them, and writes out a chosen token's loss with its own numbers. What the formula gives and what
// Python gave are tested to be the same for every token, row and update.
// Leaves out: rows with functions it does not know (a learner's own): their numbers come from
// Python alone.

import { fixed, html, signedColor, widget } from "./base.js";
import { cispo, gspo, ppoClip, reinforce, sapo, unclipped } from "./surrogates.js";

// --- mathematics ---------------------------------------------------------------------------

const SURROGATES = { reinforce, unclipped, ppo_clip: ppoClip, gspo, cispo, sapo };
const sum = (list) => list.reduce((total, x) => total + x, 0);

// d = log π_ref − log π; a KL's value and its derivative by log π.
const KL = {
  k1: (d) => ({ value: -d, slope: 1 }),
  k2: (d) => ({ value: 0.5 * d * d, slope: -d }),
  k3: (d) => ({ value: Math.expm1(d) - d, slope: -Math.expm1(d) }),
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

const advantageOf = (step, row, token) =>
  row.advantages[row.per_token ? token : responseAt(step, token)];

// While Python hands over another record, value by value, the old update or token may not exist.
const fitted = (state) => ({
  ...state,
  update: Math.min(state.update, state.step.logp.length),
  token: Math.min(state.token, state.step.texts.length - 1),
});

// Everything about one token in the present state; `weight` is the formula's, `given` Python's.
export function terms({ step, algorithm, update }, token) {
  const row = rowOf(step, algorithm);
  const logps = step.logp[update - 1];
  const response = responseAt(step, token);
  const [from, to] = step.responses[response].span;
  const group = Math.floor(response / step.group);
  const logp = logps[token];
  const old = step.old[token];
  const ratio = Math.exp(logp - old);
  const advantage = advantageOf(step, row, token);
  const given = row.weights[update - 1][token];
  const gate = row.gates[update - 1][token];
  const out = step.groups[group].discarded || row.dropped.includes(group);
  const found = { token, row, response, group, logp, old, ratio, advantage, given, gate, out, from, to };
  if (!row.formula || out) return { ...found, weight: out ? 0 : given };

  const logRatios = logps.slice(from, to).map((x, i) => x - step.old[from + i]);
  const meanLogRatio = sum(logRatios) / (to - from);
  const rho = row.surrogate === "gspo" ? Math.exp(meanLogRatio) : ratio;
  const at = (i) => {
    const own = { ratio: rho, advantage: advantageOf(step, row, i), logp };
    return SURROGATES[row.surrogate](own, row.knobs);
  };
  const { term, weight: own } = at(token);
  // a sequence's term stands on each of its tokens, and 1/|y| of each belongs to this one
  const slope = row.surrogate !== "gspo" ? own
    : sum(logps.slice(from, to).map((_, i) => at(from + i).weight)) / (to - from);
  const counts = { ...step.counts };
  for (const key of ["sequences", "tokens"]) counts[key] = Math.max(1, counts[key]);
  const share = SHARE[row.average](counts, to - from);
  const d = row.beta > 0 ? step.ref[token] - logp : 0;
  const kl = KL[row.estimator](d);
  const loss = -term + row.beta * kl.value;
  const weight = (slope - row.beta * kl.slope) * share * step.scale;
  return { ...found, rho, meanLogRatio, term, slope, share, d, kl, loss, weight };
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

const signed = (value, digits = 2) => {
  const text = fixed(value, Math.abs(value) >= 99.5 ? 0 : Math.abs(value) >= 9.95 ? 1 : digits);
  return Number(text.replace("−", "-")) > 0 ? `+${text}` : text;
};
const shownSign = (value) => Math.sign(Number(signed(value).replace("−", "-")));

// Tokens that the algorithm to compare with treats otherwise: another sign, or another clip state.
export function differences({ step, algorithm, compare, update }) {
  if (compare === "none") return [];
  const [one, other] = [algorithm, compare].map((key) => rowOf(step, key));
  const [a, b] = [one, other].map((row) => row.weights[update - 1]);
  const [g, h] = [one, other].map((row) => row.gates[update - 1]);
  return step.texts.flatMap((_, i) => (g[i] !== h[i] || shownSign(a[i]) !== shownSign(b[i]) ? [i] : []));
}

const edge = (value) => fixed(value, Math.abs(value - 1) < 0.01 ? 4 : 2);
const tokens = (n) => (n === 1 ? "1 token" : `${n} tokens`);

// What the clip did, in words.
function clipped({ step, update }, row) {
  const gates = row.gates[update - 1];
  const total = step.texts.length;
  const count = (letter) => gates.split(letter).length - 1;
  const [high, low, dual, bounded] = ["h", "l", "d", "b"].map(count);
  const { eps_low: below, eps_high: above } = row.knobs;
  if (row.surrogate === "reinforce") return "no ratio, so no clip";
  if (row.surrogate === "cispo") {
    return `the weight of ${bounded} of ${tokens(total)} is bounded at ${edge(1 + above)}, none is silenced`;
  }
  if (row.surrogate === "sapo") return "a soft gate: no token is silenced";
  const silent = high + low + dual;
  if (silent === 0) {
    const fresh = step.logp[update - 1].every((x, i) => Math.abs(x - step.old[i]) < 1e-4);
    return `${fresh ? "every ratio is 1, so " : ""}no token is clipped`;
  }
  const edges = above !== undefined && below !== undefined && row.formula;
  const parts = [
    [high, edges ? `above ${edge(1 + above)} with A > 0` : "with A > 0"],
    [low, edges ? `below ${edge(1 - below)} with A < 0` : "with A < 0"],
    [dual, "far above 1 with A < 0"],
  ].filter(([n]) => n > 0).map(([n, where]) => `${n} ${where}`);
  const got = row.beta > 0 ? "get only the KL's gradient" : "get no gradient";
  const ratio = row.surrogate === "gspo" ? "whole responses, by their own ratio: " : "";
  return `${silent} of ${tokens(total)} ${got} (${ratio}${parts.join(", ")})`;
}

// The result in words; the same text as StepInspector.sentence in Python.
export function sentence(given) {
  const state = fitted(given);
  const { step, algorithm, compare, update } = state;
  const row = rowOf(step, algorithm);
  const weights = row.weights[update - 1];
  const when = step.made > 0 ? `update ${update} of ${step.made}` : "no update was made";
  const first = `${row.label}, ${when}: ${clipped(state, row)}`;
  const still = step.texts.filter((_, i) => Math.abs(advantageOf(step, row, i)) < 1e-6).length;
  const idle = still > 0 ? `; ${still} have zero advantage` : "";
  const largest = weights.reduce((best, w, i) => (Math.abs(w) > Math.abs(weights[best]) ? i : best), 0);
  const response = responseAt(step, largest);
  const { label } = step.groups[Math.floor(response / step.group)];
  const where = `“${step.texts[largest]}” in “${label} → ${step.responses[response].answer}”`;
  const push = weights[largest] === 0 ? "nothing is pushed"
    : `the largest push is ${signed(weights[largest])} on ${where}`;
  const n = differences(state).length;
  const other = compare === "none" ? ""
    : ` ${rowOf(step, compare).label} treats ${tokens(n)} differently (sign or clip).`;
  return `${first}${idle}; ${push}.${other}`;
}

export function note({ step, algorithm }) {
  const row = rowOf(step, algorithm);
  const scale = step.scale.toLocaleString("en-US");
  return `${row.note} ${step.source}. Weight: −∂loss/∂log π × ${scale}; + raises the token's `
    .trimStart() + "probability. Hatched: clipped. Click a token, or use the arrow keys.";
}

// A number inside a formula: four significant digits, powers of ten where they are shorter.
function num(value) {
  if (value === 0) return "0";
  if (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5) {
    return String(Number(value.toPrecision(4))).replace("-", "−");
  }
  const [digits, power] = value.toExponential(3).split("e");
  return `${String(Number(digits)).replace("-", "−")} × 10^{${String(Number(power)).replace("-", "−")}}`;
}
const bound = (value) => String(Number(value.toFixed(6))).replace("-", "−"); // 1.0004, not 1
const inside = (value) => (value < 0 ? `(${num(value)})` : num(value));

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
    if (row.penalty === 0) return `r − V = ${num(r)} − ${inside(r - advantage)} = ${value}`;
    const { token, to } = found;
    const kl = sum(step.old.slice(token, to).map((old, t) => old - step.ref[token + t]));
    const worth = r - row.penalty * kl - advantage;
    return `r − β Σ k1 from here on − V = ${num(r)} − ${num(row.penalty)} × ${inside(kl)} − ${inside(worth)} = ${value}`;
  }
  if (step.groups[group].discarded) return "0: this group was replaced by dynamic sampling";
  const alike = scores.every((x) => x === scores[0]);
  const known = {
    group_standardized: () => (alike ? `every reward of the group is ${num(r)}: A = 0`
      : `(r − mean) / (std + 0.0001) = (${num(r)} − ${inside(mean)}) / (${num(std)} + 0.0001) = ${value}`),
    group_centered: () => `r − mean = ${num(r)} − ${inside(mean)} = ${value}`,
    leave_one_out: () => {
      const others = (sum(scores) - r) / (size - 1);
      return `r − mean of the others = ${num(r)} − ${inside(others)} = ${value}`;
    },
    batch_centered: () => `r − mean of the step = ${num(r)} − ${inside(r - advantage)} = ${value}`,
    maxrl: () => (mean === 0 ? "every reward of the group is 0: A = 0"
      : `(r − mean) / mean = (${num(r)} − ${inside(mean)}) / ${inside(mean)} = ${value}`),
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
  const list = [];
  if (row.scores) {
    const r = step.responses[found.response].reward;
    const kl = (r - row.scores[found.response]) / row.penalty;
    list.push(["Reward", `r − β Σ k1 = ${num(r)} − ${num(row.penalty)} × ${inside(kl)} = ${num(row.scores[found.response])}`]);
  }
  list.push(["Advantage A", advantageLine(state, found)]);
  const rho = `exp(${num(logp)} − ${inside(old)}) = ${num(ratio)}`;
  list.push(["Ratio ρ", `exp(${LOG_PI} − ${OLD}) = ${rho}`]);
  if (out) return [...list, ["Weight", "0: this group is not in the loss"]];
  if (!row.formula) return [...list, ["Weight", `${signed(given, 4)}, by policy_gradients (no formula here for ${row.label})`]];

  const { eps_low: eLow, eps_high: eHigh, dual_clip: c } = row.knobs;
  const size = to - from;
  const a = inside(A);
  const { term, slope } = found;
  const range = `${bound(1 - eLow)}, ${bound(1 + eHigh)}`;
  const clip = (x) => Math.min(Math.max(x, 1 - eLow), 1 + eHigh);
  const gated = (x, name) => {
    const plain = x * A;
    const bound = clip(x) * A;
    const dual = (lower, floor) => (c && A < 0 ? `max(${lower}, ${floor})` : lower);
    const formula = dual(`min(${name} A, clip(${name}, ${range}) A)`, `${num(c ?? 0)} A`);
    const own = dual(`min(${num(plain)}, ${num(bound)})`, num((c ?? 0) * A));
    list.push(["Objective", `${formula} = ${own} = ${num(term)}`]);
    const why = A === 0 ? "A is 0" : slope === 0 ? "the constant is chosen" : `${name} A is chosen`;
    list.push(["Its slope", `${why}: ∂/∂${LOG_PI} = ${slope === 0 ? "0" : `${name} A = ${num(slope)}`}`]);
  };
  ({
    reinforce: () => list.push(["Objective", `A ${LOG_PI} = ${a} × ${inside(logp)} = ${num(term)}`],
      ["Its slope", `∂/∂${LOG_PI} = A = ${num(slope)}`]),
    unclipped: () => list.push(["Objective", `ρ A = ${num(ratio)} × ${a} = ${num(term)}`],
      ["Its slope", `∂/∂${LOG_PI} = ρ A = ${num(slope)}`]),
    ppo_clip: () => gated(ratio, "ρ"),
    gspo: () => {
      list.push(["Sequence ratio s", `exp(mean of ${LOG_PI} − ${OLD} over ${size}) = exp(${num(found.meanLogRatio)}) = ${num(found.rho)}`]);
      gated(found.rho, "s");
    },
    cispo: () => list.push(["Objective", `[clip(ρ, ${range})] A ${LOG_PI} = ${num(clip(ratio))} × ${a} × ${inside(logp)} = ${num(term)}`],
      ["Its slope", `[ ] is a constant: ∂/∂${LOG_PI} = ${num(clip(ratio))} × ${a} = ${num(slope)}`]),
    sapo: () => {
      const tau = A > 0 ? row.knobs.tau_pos : row.knobs.tau_neg;
      const gate = 1 / (1 + Math.exp(-tau * (ratio - 1)));
      list.push(["Objective", `(4/τ) σ(τ(ρ − 1)) A = ${num(4 / tau)} × ${num(gate)} × ${a} = ${num(term)}`],
        ["Its slope", `4 σ (1 − σ) ρ A = 4 × ${num(gate)} × ${num(1 - gate)} × ${num(ratio)} × ${a} = ${num(slope)}`]);
    },
  })[row.surrogate]();
  const { kl } = found;
  if (row.beta > 0) {
    const d = num(found.d);
    const value = {
      k1: `−d = ${num(kl.value)}`, k2: `½ d^{2} = ${num(kl.value)}`, k3: `e^{d} − 1 − d = ${num(kl.value)}`,
    }[row.estimator];
    const slopes = { k1: "1", k2: "−d", k3: "1 − e^{d}" }[row.estimator];
    list.push([`KL (${row.estimator})`, `d = log π_{ref} − ${LOG_PI} = ${d}: ${value}, slope ${slopes} = ${num(kl.slope)}`]);
    list.push(["Token loss", `−objective + β KL = ${num(-term)} + ${num(row.beta)} × ${num(kl.value)} = ${num(found.loss)}`]);
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
  list.push(["In the step's loss", `${num(found.loss)} / ${share.includes("×") ? `(${share})` : share} = ${num(found.loss * found.share)} (${divisor})`]);
  const scale = step.scale.toLocaleString("en-US");
  const [words, own] = row.beta > 0
    ? ["(slope − β KL slope)", `(${num(slope)} − ${num(row.beta)} × ${inside(kl.slope)})`]
    : ["slope", num(slope)];
  const divided = share.includes("×") ? `(${share})` : share;
  list.push(["Weight", `${words} / ${divided} × ${scale} = ${own} / ${divided} × ${scale} = ${found.weight > 0 ? "+" : ""}${num(found.weight)}`]);
  return list;
}

// --- drawing -------------------------------------------------------------------------------

const LOOK = `
  .inspector { display: grid; gap: 10px; }
  .scroll {
    max-height: 436px; overflow-y: auto; border: 1px solid var(--line); border-radius: 5px;
    padding: 0 8px 8px; overscroll-behavior: contain;
  }
  .group { padding-top: 8px; }
  .head {
    padding: 5px 0 4px; display: flex; flex-wrap: wrap; gap: 2px 10px; align-items: baseline;
  }
  .head b { font-weight: 600; }
  .badge { color: var(--soft); font-size: 13px; }
  .response { display: flex; gap: 8px; align-items: stretch; padding: 2px 0; }
  .fact {
    flex: none; width: 62px; font-size: 12px; line-height: 1.35; color: var(--ink);
    font-variant-numeric: tabular-nums; align-self: center;
  }
  .fact span { color: var(--soft); display: block; }
  .cells { display: flex; flex-wrap: wrap; gap: 2px; min-width: 0; }
  .cell {
    display: grid; justify-items: center; align-content: center; gap: 0; min-width: 42px;
    padding: 1px 3px 2px; border: 1px solid var(--grid); border-radius: 3px; line-height: 1.3;
    font-size: 12px; color: var(--ink); background: var(--paper); cursor: pointer;
  }
  .cell:hover { border-color: var(--ink); }
  .cell .token { font-family: ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre; }
  .cell .token.long { font-size: 10.5px; line-height: 1.49; }
  .cell .number { font-variant-numeric: tabular-nums; }
  .cell.clip {
    background-image: repeating-linear-gradient(45deg, var(--hatch) 0 1.5px, transparent 1.5px 6px);
    background-color: var(--dead); border: 1px dashed var(--ink);
  }
  .cell.clip span { background: var(--dead); padding: 0 3px; color: var(--ink); }
  .cell.differs { box-shadow: inset 0 -3px 0 var(--ink); }
  .cell.chosen { outline: 2.5px solid var(--ink); outline-offset: 0; }
  .cell.chosen:focus-visible { outline: 3px solid var(--focus); outline-offset: 2px; }
  .cell.rest { background: none; color: var(--soft); border-color: transparent; cursor: default; }
  .cell.rest .number { visibility: hidden; }
  .gone { display: none; }
  .scale { display: flex; flex-wrap: wrap; gap: 4px 14px; font-size: 13px; align-items: center; }
  .ramp { display: inline-flex; border: 1px solid var(--line); border-radius: 3px; overflow: hidden; }
  .ramp span { padding: 0 7px; font-variant-numeric: tabular-nums; }
  .key { display: inline-flex; gap: 5px; align-items: center; }
  .key .cell { cursor: default; min-width: 22px; height: 14px; padding: 0; }
  .detail { border: 1px solid var(--line); border-radius: 5px; padding: 8px 12px 10px; }
  .detail h3 { margin: 0 0 5px; font-size: 14px; font-weight: 600; }
  .detail dl { margin: 0; display: grid; grid-template-columns: 122px minmax(0, 1fr); gap: 2px 10px; }
  .detail dt { color: var(--soft); }
  .detail dd { margin: 0; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
  .detail dd:last-of-type { font-weight: 600; }
  .detail sub, .detail sup { font-size: 0.78em; line-height: 0; }
  .empty { padding: 14px 4px 6px; margin: 0; }
  @container (max-width: 480px) {
    .detail dl { grid-template-columns: minmax(0, 1fr); gap: 0; }
    .detail dd { margin-bottom: 4px; }
    .fact { width: 50px; }
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
  ratio: ({ step, update }, row, i) => {
    const log = step.logp[update - 1][i] - step.old[i];
    return { text: fixed(Math.exp(log), 2), share: log / Math.log(1.5) };
  },
  advantage: (state, row, i) => {
    const value = row.advantages[row.per_token ? i : state.step.of[i]];
    return { text: signed(value), share: value / row.largestAdvantage };
  },
  probability: ({ step, update }, row, i) => {
    const value = Math.exp(step.logp[update - 1][i]);
    return { text: fixed(value, 2), share: value };
  },
};
const steps = (top) => [-1, -0.5, 0, 0.5, 1].map((share) => {
  const value = Number((share * top).toPrecision(3));
  return [share, `${value > 0 ? "+" : ""}${value}`.replace("-", "−")];
});
const RAMPS = {
  weight: ({ largest }) => steps(largest),
  ratio: () => [[-1, "0.67"], [-0.5, "0.82"], [0, "1"], [0.5, "1.22"], [1, "1.5"]],
  advantage: ({ largestAdvantage }) => steps(largestAdvantage),
  probability: () => [[0, "0"], [0.25, "0.25"], [0.5, "0.5"], [0.75, "0.75"], [1, "1"]],
};
const NAMES = { weight: "weight", ratio: "ratio ρ", advantage: "advantage A", probability: "probability π" };
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

// The chosen token is one that the filter shows, if it shows any.
export function react(key, given) {
  if (!["filter", "algorithm", "update"].includes(key)) return {};
  const state = fitted(given);
  const open = visible(state);
  return open[state.token] || !open.includes(true) ? {} : { token: open.indexOf(true) };
}
const NONE = {
  clipped: "No token is clipped at this update.", alike: "Every group of this step has contrast.",
  end: "No response has an end token.", all: "",
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

// One view of the widget: built once for its data, then only changed, so that the focus stays.
function build(data) {
  const step = prepared(data);
  const view = { data, step, now: null, set: null, visible: [], token: null };
  view.cells = step.texts.map((text, i) => {
    const token = html("span", { class: text.length > 4 ? "token long" : "token" }, text);
    const number = html("span", { class: "number" });
    const node = html("button", { type: "button", class: "cell", tabindex: -1, ...KEEP_OWN_KEYS }, token, number);
    node.addEventListener("click", () => view.choose(i));
    node.addEventListener("keydown", (event) => move(view, i, event));
    return { node, number, name: "" };
  });
  view.responses = step.responses.map(({ span, reward, answer }) => {
    const advantage = html("span", {});
    const fact = html("div", { class: "fact" }, `r = ${fixed(reward, 2)}`, advantage);
    const cells = html("div", { class: "cells" }, ...view.cells.slice(...span).map(({ node }) => node));
    const name = { role: "group", "aria-label": `response ${answer}, reward ${fixed(reward, 2)}` };
    return { node: html("div", { class: "response", ...name }, fact, cells), advantage };
  });
  view.groups = step.groups.map((group, i) => {
    const badge = html("span", { class: "badge" });
    const head = html("div", { class: "head" }, html("b", {}, group.prompt), badge);
    const members = view.responses.slice(i * step.group, (i + 1) * step.group);
    const name = { role: "group", "aria-label": `prompt ${group.label}` };
    return { badge, node: html("div", { class: "group", ...name }, head, ...members.map(({ node }) => node)) };
  });
  view.empty = html("p", { class: "empty gone" });
  view.scroll = html("div", { class: "scroll", role: "group", "aria-label": "Tokens of the step" },
    ...view.groups.map(({ node }) => node), view.empty);
  view.scale = html("div", { class: "scale" });
  view.detail = html("div", { class: "detail", role: "group", "aria-label": "The chosen token's loss" });
  view.node = html("div", { class: "inspector" }, html("style", {}, LOOK), view.scale, view.scroll, view.detail);
  view.choose = (i) => {
    if (!view.visible[i]) return;
    view.set({ token: i });
    view.cells[i].node.focus({ preventScroll: true });
  };
  return view;
}

// Scrolls the tokens, never the page, until the chosen one is in sight, with its whole group if
// that fits.
function bringIntoSight({ scroll, cells, groups, step, token }) {
  const group = groups[Math.floor(step.of[token] / step.group)].node;
  const [cell, around, box] = [cells[token].node, group, scroll].map((node) => node.getBoundingClientRect());
  if (cell.height === 0 || box.height === 0) return; // filtered out, or not yet in the page
  if (cell.top >= box.top && cell.bottom <= box.bottom) return;
  const whole = around.height < box.height - 8;
  if (whole && around.top >= box.top) scroll.scrollTop += around.bottom - box.bottom + 8;
  else scroll.scrollTop += (whole ? around.top : cell.top - 34) - box.top - 1;
}

// Left and right move over the tokens that the filter shows, up and down to the response before
// and after, Home and End to the response's ends.
function move(view, i, event) {
  const { step, visible: open } = view;
  const { of, responses } = step;
  const column = i - responses[of[i]].span[0];
  const along = (from, by) => {
    for (let at = from; at >= 0 && at < open.length; at += by) if (open[at]) return at;
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
  const [from, to] = responses[of[i]].span;
  const target = {
    ArrowRight: () => along(i + 1, 1), ArrowLeft: () => along(i - 1, -1),
    ArrowDown: () => across(1), ArrowUp: () => across(-1),
    Home: () => along(from, 1), End: () => along(to - 1, -1),
  }[event.key];
  if (!target || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  event.stopPropagation();
  view.choose(target());
}

const GATES = { h: "clipped", l: "clipped", d: "clipped", b: "weight bounded" };

function redraw(view, dark) {
  const { step } = view;
  const state = fitted({ ...view.now, step });
  const row = rowOf(step, state.algorithm);
  const gates = row.gates[state.update - 1];
  const differs = new Set(differences(state));
  const show = SHOWN[state.show];
  view.visible = visible(state);
  let reachable = state.token;
  if (!view.visible[reachable]) reachable = view.visible.indexOf(true);
  view.cells.forEach(({ node, number }, i) => {
    const shown = view.visible[i];
    const { text, share } = show(state, row, i);
    const cut = gates[i] !== ".";
    const { fill, ink } = signedColor(share, 1, dark);
    let look = "cell";
    if (!shown) look += " rest";
    else if (cut) look += " clip";
    if (shown && differs.has(i)) look += " differs";
    if (i === state.token) look += " chosen";
    if (node.className !== look) node.className = look;
    const paint = shown && !cut ? `background-color:${fill};color:${ink}` : "";
    if (node.getAttribute("style") !== paint) node.setAttribute("style", paint);
    if (number.textContent !== text) number.textContent = text;
    const index = i === reachable ? 0 : -1;
    if (node.tabIndex !== index) node.tabIndex = index;
    const said = [
      `token ${step.texts[i]}`, `${NAMES[state.show]} ${text}`, cut ? GATES[gates[i]] : "",
      differs.has(i) ? "differs" : "",
    ].filter(Boolean).join(", ");
    if (view.cells[i].name !== said) node.setAttribute("aria-label", (view.cells[i].name = said));
    const chosen = String(i === state.token);
    if (node.getAttribute("aria-pressed") !== chosen) node.setAttribute("aria-pressed", chosen);
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
  view.empty.textContent = NONE[state.filter];
  drawScale(view, state, row, dark);
  drawDetail(view, state);
  if (view.token !== state.token) {
    view.token = state.token;
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
  const silent = own.every((a) => Math.abs(a) < 1e-6);
  if (silent) return `no contrast: every advantage is 0${row.beta > 0 ? ", the KL is left" : ""}`;
  if (!step.groups[g].alike) return "";
  return "equal rewards, and yet advantages: they do not come from the rewards of this group alone";
}

function drawScale(view, state, row, dark) {
  const ramp = RAMPS[state.show](row).map(([share, words]) => {
    const { fill, ink } = signedColor(share, 1, dark);
    return html("span", { style: `background-color:${fill};color:${ink}` }, words);
  });
  const key = (look, words) => html("span", { class: "key" },
    html("span", { class: `cell ${look}`, "aria-hidden": "true" }), words);
  const clip = row.surrogate === "cispo" ? "bounded" : "clipped";
  view.scale.replaceChildren(
    html("span", { class: "key" }, NAMES[state.show], html("span", { class: "ramp" }, ...ramp)),
    key("clip", clip),
    ...(state.compare === "none" ? [] : [key("differs", `${rowOf(view.step, state.compare).label} differs`)]),
  );
}

function drawDetail(view, state) {
  const i = state.token;
  const response = view.step.of[i];
  const { span, answer } = view.step.responses[response];
  const group = view.step.groups[Math.floor(response / view.step.group)];
  const title = `“${view.step.texts[i]}”, token ${i - span[0] + 1} of ${span[1] - span[0]} in “${group.label} → ${answer}”`;
  const rows = lines(state, i).flatMap(([name, words]) => [
    html("dt", {}, ...formula(name)), html("dd", {}, ...formula(words)),
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

export default widget({ title: "Step inspector", draw, sentence, note, react });
