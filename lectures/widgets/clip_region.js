// The clip region: which tokens of a batch still push the policy, under six ways to bound a ratio.
// Three panels share the axis of the ratio: the objective, the gradient weight, the tokens.
// The same numbers as clip_region.py, which has them from policy_gradients.
// Leaves out: averaging over tokens, and KL terms.

import {
  fixed, hatching, line, picture, spread, svg, text, ticks, widget,
} from "./base.js";
import { cispo, clamp, gspo, ppoClip, sapo } from "./surrogates.js";

const METHODS = {
  ppo: ["PPO", { eps_low: 0.2, eps_high: 0.2 }, "ε = 0.2: Schulman et al. 2017, section 6.1."],
  grpo: ["GRPO", { eps_low: 0.2, eps_high: 0.2 }, "Shao et al. 2024 print no ε; 0.2 is PPO's."],
  dapo: [
    "DAPO", { eps_low: 0.2, eps_high: 0.28 }, "ε = 0.2 and 0.28: Yu et al. 2025, section 4.1.",
  ],
  dual_clip: [
    "Dual clip",
    { eps_low: 0.2, eps_high: 0.2, dual_clip: 3 },
    "ε = 0.2 and c = 3: Ye et al. 2020, with eq. 5.",
  ],
  gspo: [
    "GSPO",
    { eps_low: 3e-4, eps_high: 4e-4 },
    "ε = 0.0003 and 0.0004: Zheng et al. 2025, section 5.1.",
  ],
  cispo: [
    "CISPO",
    { eps_low: 1, eps_high: 0.28 },
    "ε low = 1: no lower bound, as in MiniMax 2025, who do not print ε high; 0.28 is DAPO's.",
  ],
  sapo: ["SAPO", { tau_pos: 1, tau_neg: 1.05 }, "τ = 1 and 1.05: Gao et al. 2025."],
};
const SURROGATES = { gspo, cispo, sapo }; // the others are ppoClip with other knobs
const KNOBS = ["eps_low", "eps_high", "tau_pos", "tau_neg", "dual_clip"];
const KEY =
  "Hollow marks on hatching: tokens without gradient. Dotted: the same without any bound. " +
  "The numbers count the tokens of each region.";
const CURVE_POINTS = 20; // of the curves in `numbers`
const HALF = Math.log(3 + Math.sqrt(8)); // 4σ(x)(1 − σ(x)) is ½ at x = ±HALF
const SIGNS = { positive: 1, negative: -1 };
const SIGN_NAME = { 1: "A > 0", "-1": "A < 0" };

const label = ({ method }) => METHODS[method][0];
const knobs = (state) =>
  Object.fromEntries(Object.keys(METHODS[state.method][1]).map((key) => [key, state[key]]));
const note = ({ method }) => `${METHODS[method][2]} ${KEY}`;
const off = ({ method }) => KNOBS.filter((key) => !(key in METHODS[method][1]));
const react = (key, { method }) =>
  key === "method" || key === "reset" ? METHODS[method][1] : {};

// --- mathematics ---------------------------------------------------------------------------

const signOf = ({ sign }) => SIGNS[sign];
const advantageOf = (state) => signOf(state) * state.size;

// Where the middle region ends on both sides: the clip, or half the weight under SAPO.
function edges(state, sign) {
  if (state.method !== "sapo") return [1 - state.eps_low, 1 + state.eps_high];
  const tau = sign > 0 ? state.tau_pos : state.tau_neg;
  return [Math.max(0, 1 - HALF / tau), 1 + HALF / tau];
}

const three = (low, high, below, above) => [
  { name: "below", low: 0, high: low, kind: below },
  { name: "inside", low, high, kind: "live" },
  { name: "above", low: high, high: Infinity, kind: above },
];

// The regions of the axis for tokens of one sign of A, from left to right. `kind` is "live",
// "dead" (no gradient), "held" (the weight stays at the bound times A) or "damped" (less than
// half of the unbounded weight).
export function regions(state, sign) {
  const [low, high] = edges(state, sign);
  if (state.method === "sapo") return three(low, high, "damped", "damped");
  if (state.method === "cispo") return three(low, high, "held", "held");
  if (sign > 0) return three(low, high, "live", "dead");
  if (state.method !== "dual_clip") return three(low, high, "dead", "live");
  const c = state.dual_clip;
  const [below, inside] = three(low, Math.min(high, c), "dead", "live");
  const above = { name: "above", low: inside.high, high: c, kind: "live" };
  return [below, inside, above, { name: "floored", low: c, high: Infinity, kind: "dead" }];
}

// An edge belongs to the middle region.
function contains({ name, low, high }, ratio) {
  if (name === "below") return ratio < high;
  return (name === "inside" ? ratio >= low : ratio > low) && ratio <= high;
}

// The next number of the form 1, 2 or 5 times a power of ten.
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= value * 0.999);
}

// Both ends of the ratio's axis.
function span({ method, eps_low, eps_high }) {
  if (method === "gspo") {
    const half = Math.min(1, Math.max(1e-3, roundUp(3 * Math.max(eps_low, eps_high))));
    return [1 - half, 1 + half];
  }
  return [0, method === "sapo" || method === "dual_clip" ? 4 : 2];
}

function surrogate(state) {
  const rule = SURROGATES[state.method] ?? ppoClip;
  const values = knobs(state);
  return (ratio, advantage) => rule({ ratio, advantage, logp: 0 }, values);
}

// Objective and gradient weight of one token. A constant does not matter to an objective: SAPO's
// is shifted to be A at ρ = 1, as the others are. CISPO has none in ρ, because its weight is a
// constant; drawn is the function whose derivative by log π is that weight, A·b(1 + log(ρ/b))
// with b the bounded ratio.
function curve(state) {
  const advantage = advantageOf(state);
  const rule = surrogate(state);
  const shift = state.method === "sapo" ? advantage - rule(1, advantage).term : 0;
  return (ratio) => {
    const { term, weight } = rule(ratio, advantage);
    if (state.method !== "cispo") return { objective: term + shift, weight };
    return { objective: weight * (1 + Math.log((ratio * advantage) / weight)), weight };
  };
}

// Where each token stands: its ratio, or under GSPO that of its sequence, the geometric mean.
function ratiosOf({ method, tokens }) {
  if (method !== "gspo" || tokens[0].length < 3) return tokens.map(([ratio]) => ratio);
  const sums = new Map();
  for (const [ratio, , number] of tokens) {
    const [sum, count] = sums.get(number) ?? [0, 0];
    sums.set(number, [sum + Math.log(ratio), count + 1]);
  }
  const ratios = new Map([...sums].map(([number, [sum, count]]) => [number, Math.exp(sum / count)]));
  return tokens.map(([, , number]) => ratios.get(number));
}

// What the whole batch says: where its tokens stand, and how many lie in each region.
function summary(state) {
  const ratios = ratiosOf(state);
  const rule = surrogate(state);
  const [left, right] = span(state);
  const rows = Object.entries(SIGNS).map(([name, sign]) => {
    const list = regions(state, sign).map((region) => ({ ...region, tokens: [] }));
    return { name, sign, regions: list };
  });
  const result = { rows, dead: 0, held: 0, damped: 0, live: 0, zero: 0, beyond: 0 };
  let kept = 0;
  let all = 0;
  state.tokens.forEach(([, advantage], i) => {
    const ratio = ratios[i];
    if (ratio < left || ratio > right) result.beyond += 1;
    kept += Math.abs(rule(ratio, advantage).weight);
    all += Math.abs(ratio * advantage);
    if (advantage === 0) {
      result.zero += 1;
      return;
    }
    const region = rows[advantage > 0 ? 0 : 1].regions.find((r) => contains(r, ratio));
    region.tokens.push({ i, ratio });
    result[region.kind] += 1;
  });
  return { ...result, kept: all > 0 ? kept / all : 0 };
}

// The picture and the sentence ask for the same summary.
let known = [];
function summaryOf(state) {
  const parts = [state.tokens, state.method, ...KNOBS.map((key) => state[key])];
  if (!known.parts || parts.some((part, i) => part !== known.parts[i])) {
    known = { parts, summary: summary(state) };
  }
  return known.summary;
}

const countsOf = ({ regions: list }) =>
  Object.fromEntries(list.map(({ name, tokens }) => [name, tokens.length]));

export function numbers(state) {
  const [left, right] = span(state);
  const at = (_, i) => left + ((right - left) * (i + 0.37)) / CURVE_POINTS;
  const ratios = Array.from({ length: CURVE_POINTS }, at);
  const curves = ratios.map(curve(state));
  const { rows, dead, kept } = summaryOf(state);
  return {
    ratios,
    objective: curves.map(({ objective }) => objective),
    weight: curves.map(({ weight }) => weight),
    dead_zones: regions(state, signOf(state))
      .filter(({ kind }) => kind === "dead")
      .map(({ low, high }) => [Math.max(low, left), Math.min(high, right)]),
    counts: Object.fromEntries(rows.map((row) => [row.name, countsOf(row)])),
    dead,
    kept,
  };
}

// --- words ---------------------------------------------------------------------------------

// An edge of the clip, with as many decimals as ε has, at least two and at most five.
function edge(value, epsilon) {
  const whole = (digits) => {
    const scaled = epsilon * 10 ** digits;
    return Math.abs(scaled - Math.floor(scaled + 0.5)) < 1e-6;
  };
  return fixed(value, [2, 3, 4].find(whole) ?? 5);
}

const short = (value) => String(Number(value.toPrecision(6)));

function oneToken(state) {
  const sign = signOf(state);
  const [low, high] = edges(state, sign);
  const who = `a token with ${SIGN_NAME[sign]}`;
  if (state.method === "sapo") {
    const weight = fixed(surrogate(state)(high, advantageOf(state)).weight, 2);
    return (
      `at ρ = ${fixed(high, 2)} ${who} still pushes with ${weight}, half of what it would push ` +
      "without the gate; none is silenced."
    );
  }
  const [lowText, highText] = [edge(low, state.eps_low), edge(high, state.eps_high)];
  if (state.method === "cispo") {
    const below = state.eps_low < 1 ? `, below ρ = ${lowText} at ${lowText}·A` : "";
    return (
      `above ρ = ${highText} the weight of ${who} is held at ${highText}·A = ` +
      `${fixed(high * advantageOf(state), 2)}${below}; none is silenced.`
    );
  }
  const symbol = state.method === "gspo" ? "s" : "ρ";
  const where = sign > 0 ? `above ${symbol} = ${highText}` : `below ${symbol} = ${lowText}`;
  if (state.method === "gspo") {
    return `${where} every token of a sequence with ${SIGN_NAME[sign]} gets no gradient.`;
  }
  const floor =
    state.method === "dual_clip" && sign < 0
      ? ` and above ρ = c = ${fixed(state.dual_clip, 2)}`
      : "";
  return `${where}${floor} ${who} gets no gradient.`;
}

function batch(state) {
  const { dead, held, damped, kept } = summaryOf(state);
  const total = state.tokens.length;
  const rest = `keeps ${fixed(100 * kept, 0)} % of the unclipped gradient weight.`;
  const share = (count) => `${count} of ${total} tokens (${fixed((100 * count) / total, 1)} %)`;
  if (state.method === "sapo") {
    return `In this batch the gate more than halves ${damped} of ${total} tokens and ${rest}`;
  }
  if (state.method === "cispo") {
    return `In this batch the bound holds the weight of ${share(held)} and ${rest}`;
  }
  return `In this batch the clip silences ${share(dead)} and ${rest}`;
}

export function sentence(state) {
  const { zero, beyond } = summaryOf(state);
  const parts = [`${label(state)}: ${oneToken(state)}`, batch(state)];
  if (zero > 0) parts.push(`Tokens with A = 0, which never push: ${zero}.`);
  if (beyond > 0) {
    const [left, right] = span(state);
    const where =
      state.method === "gspo"
        ? `s = ${short(left)} and ${short(right)}, drawn on the edges`
        : `ρ = ${fixed(right, 0)}, drawn on the right edge`;
    parts.push(`Tokens beyond ${where}: ${beyond}.`);
  }
  return parts.join(" ");
}

// --- drawing -------------------------------------------------------------------------------

const LEFT = 64;
const RIGHT = 14;
const TITLE = 20;
const PANEL = 138;
const EDGE_LABELS = 20;
const ROW = 50;
const COUNTS = 17; // the part of a row that holds its counts
const OBJECTIVE_TOP = TITLE;
const WEIGHT_TOP = OBJECTIVE_TOP + PANEL + TITLE + 6;
const WEIGHT_BOTTOM = WEIGHT_TOP + PANEL;
const ROWS_TOP = WEIGHT_BOTTOM + EDGE_LABELS + TITLE + 4;
const ROWS_BOTTOM = ROWS_TOP + 2 * ROW;
const HEIGHT = ROWS_BOTTOM + 42;

const DOTTED = {
  stroke: "var(--ink)", "stroke-width": 1.6, "stroke-dasharray": "1.6 4", "stroke-linecap": "round",
};
const DASHED = { stroke: "var(--ink)", "stroke-width": 1.5, "stroke-dasharray": "6 4" };

const signColor = (sign) => (sign > 0 ? "var(--positive)" : "var(--negative)");
const triangle = (x, y, sign, r) =>
  `M${(x - r).toFixed(1)} ${(y + 0.8 * sign * r).toFixed(1)}h${2 * r}l${-r} ${-1.6 * sign * r}z`;

function draw(state, { width }) {
  return picture(width, HEIGHT, label(state), hatching());
}

export default widget({ title: "Clip region", draw, sentence, note, off, react });
