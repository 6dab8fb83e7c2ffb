// The clip region: which tokens of a batch still push the policy, under seven methods.
// Three panels share the axis of the ratio: the objective, the gradient weight, the tokens.
// The same numbers as clip_region.py, which has them from policy_gradients.
// Leaves out: averaging over tokens, and KL terms.

import {
  fixed, hatching, line, picture, spread, svg, text, ticks, widget,
} from "./base.js";
import { cispo, clamp, gspo, ppoClip, sapo } from "./surrogates.js";

const METHODS = {
  ppo: [
    "PPO",
    { eps_low: 0.2, eps_high: 0.2 },
    "Paper's values: ε = 0.2 (Schulman et al. 2017, section 6.1).",
  ],
  grpo: [
    "GRPO",
    { eps_low: 0.2, eps_high: 0.2 },
    "PPO's clip; the advantage, the average and the KL differ. Paper's values: no ε printed " +
      "(Shao et al. 2024); 0.2 is PPO's.",
  ],
  dapo: [
    "DAPO",
    { eps_low: 0.2, eps_high: 0.28 },
    "Paper's values: ε = 0.2 and 0.28 (Yu et al. 2025, section 4.1).",
  ],
  dual_clip: [
    "Dual clip",
    { eps_low: 0.2, eps_high: 0.2, dual_clip: 3 },
    "Ye et al. 2020, eq. 5. Usual values: ε = 0.2, as PPO; c = 3, the default of verl.",
  ],
  gspo: [
    "GSPO",
    { eps_low: 3e-4, eps_high: 4e-4 },
    "Paper's values: ε = 0.0003 and 0.0004 (Zheng et al. 2025, version 2, section 5.1).",
  ],
  cispo: [
    "CISPO",
    { eps_low: 1, eps_high: 0.28 },
    "Paper's values: ε low = 1, no lower bound (MiniMax 2025); ε high not printed, 0.28 is DAPO's.",
  ],
  sapo: [
    "SAPO", { tau_pos: 1, tau_neg: 1.05 }, "Paper's values: τ = 1 and 1.05 (Gao et al. 2025).",
  ],
};
const SURROGATES = { gspo, cispo, sapo }; // the others are ppoClip with other knobs
const KNOBS = ["eps_low", "eps_high", "tau_pos", "tau_neg", "dual_clip"];
const SHADES = {
  cispo: "Grey: the weight is held at the bound.",
  sapo: "Grey: the gate leaves less than half of the weight.",
};
const KEY =
  "Dotted: the same without any bound. The numbers count the tokens of each region. Weight kept: " +
  "Σ|weight| ÷ Σ|ρA|.";
const ALONE = "These tokens have no sequence numbers: each is a sequence of its own.";
const HATCHED = "Hollow marks on hatching: tokens without gradient.";
const CURVE_POINTS = 20; // of the curves in `numbers`
const SAME = 1e-12; // a ratio this close to an edge, relative to it, lies on it
const HALF = Math.log(3 + Math.sqrt(8)); // 4σ(x)(1 − σ(x)) is ½ at x = ±HALF
const SIGNS = { positive: 1, negative: -1 };
const SIGN_NAME = { 1: "A > 0", "-1": "A < 0" };

const label = ({ method }) => METHODS[method][0];
const knobs = (state) =>
  Object.fromEntries(Object.keys(METHODS[state.method][1]).map((key) => [key, state[key]]));
const note = ({ method, tokens }) =>
  `${METHODS[method][2]} ${SHADES[method] ?? HATCHED} ${KEY}` +
  (method === "gspo" && tokens[0].length < 3 ? ` ${ALONE}` : "");
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
function span(state) {
  const { method, eps_low, eps_high } = state;
  if (method === "gspo") {
    const half = Math.min(2, Math.max(1e-3, roundUp(3 * Math.max(eps_low, eps_high))));
    return [Math.max(0, 1 - half), 1 + half];
  }
  const last = Math.max(edges(state, 1)[1], edges(state, -1)[1]); // the axis shows what follows
  const far = method === "sapo" || method === "dual_clip" || state.sign === "negative";
  const usual = far ? 4 : 2; // for A < 0 nothing else bounds the ratio from above
  return [0, [usual, 3, 4, 6, 10].find((end) => end > last)];
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
    const bounded = weight / advantage;
    return { objective: weight * (1 + Math.log(ratio / bounded)), weight };
  };
}

// Where each token stands: its ratio, or under GSPO that of its sequence; one that differs from an
// edge of the clip by rounding only is put onto it.
function ratiosOf(state) {
  const ratios = plainRatios(state);
  if (state.method === "sapo") return ratios;
  const bends = [...edges(state, 1), ...(state.method === "dual_clip" ? [state.dual_clip] : [])];
  return ratios.map(
    (ratio) => bends.find((bend) => Math.abs(ratio - bend) <= SAME * bend) ?? ratio,
  );
}

// GSPO's is the geometric mean.
function plainRatios({ method, tokens }) {
  if (method !== "gspo" || tokens[0].length < 3) return tokens.map(([ratio]) => ratio);
  const sums = new Map();
  for (const [ratio, , number] of tokens) {
    const [sum, count] = sums.get(number) ?? [0, 0];
    sums.set(number, [sum + Math.log(ratio), count + 1]);
  }
  return tokens.map(([, , number]) => {
    const [sum, count] = sums.get(number);
    return Math.exp(sum / count);
  });
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
  const parts = [state.tokens, state.method, state.sign, ...KNOBS.map((key) => state[key])];
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

// How many decimals ε has, at least two and at most five.
function decimals(epsilon) {
  const whole = (digits) => {
    const scaled = epsilon * 10 ** digits;
    return Math.abs(scaled - Math.floor(scaled + 0.5)) < 1e-6;
  };
  return [2, 3, 4].find(whole) ?? 5;
}

// An edge of the clip, with as many decimals as ε has.
const edge = (value, epsilon) => fixed(value, decimals(epsilon));

// A share in per cent; 0 and 100 are printed only where nothing or all of it is meant.
function percent(share, digits) {
  const least = 10 ** -digits;
  if (share > 1e-9 && share < least / 200) return `under ${fixed(least, digits)}`;
  if (share >= 1 - least / 200 && share < 1 - 1e-9) return `over ${fixed(100 - least, digits)}`;
  return fixed(100 * share, digits);
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
      `${fixed(high * advantageOf(state), decimals(state.eps_high))}${below}; none is silenced.`
    );
  }
  const gspo = state.method === "gspo";
  const floor =
    state.method === "dual_clip" && sign < 0 ? `above ρ = c = ${fixed(state.dual_clip, 2)}` : "";
  if (sign < 0 && low === 0) { // no ratio lies below
    return floor
      ? `with ε low = 1 ${who} gets no gradient only ${floor}.`
      : `with ε low = 1 the clip silences no ${gspo ? "sequence" : "token"} with A < 0.`;
  }
  const symbol = gspo ? "ρ(y)" : "ρ";
  const where = sign > 0 ? `above ${symbol} = ${highText}` : `below ${symbol} = ${lowText}`;
  if (gspo) return `${where} every token of a sequence with ${SIGN_NAME[sign]} gets no gradient.`;
  return `${where}${floor && ` and ${floor}`} ${who} gets no gradient.`;
}

function batch(state) {
  const { rows, dead, held, damped, zero, kept } = summaryOf(state);
  const total = state.tokens.length;
  if (zero === total) return "In this batch every A is 0, so there is no gradient weight to keep.";
  const among = `${total} token${total === 1 ? "" : "s"}`;
  const rest = `keeps ${percent(kept, 0)} % of the`;
  const share = (count) => `${count} of ${among} (${percent(count / total, 1)} %)`;
  if (state.method === "sapo") {
    return (
      `In this batch the gate more than halves the weight of ${damped} of ${among} and ` +
      `${rest} gradient weight that it would have without the gate.`
    );
  }
  if (state.method === "cispo") {
    const bound = `In this batch the bound holds the weight of ${share(held)}`;
    const raised = rows.some(({ regions: [below] }) => below.tokens.length > 0); // to the bound
    return raised
      ? `${bound}; the summed |weight| is ${fixed(100 * kept, 0)} % of the unbounded one.`
      : `${bound} and ${rest} unbounded gradient weight.`;
  }
  const last = rows[1].regions.at(-1);
  const byFloor = last.name === "floored" ? `, ${last.tokens.length || "none"} of them by c,` : "";
  return (
    `In this batch the clip silences ${share(dead)}${byFloor} and ${rest} unclipped gradient ` +
    "weight."
  );
}

export function sentence(state) {
  const { zero, beyond } = summaryOf(state);
  const parts = [`${label(state)}: ${oneToken(state)}`, batch(state)];
  if (zero > 0 && zero < state.tokens.length) parts.push(`Tokens with A = 0, which never push: ${zero}.`);
  if (beyond > 0) {
    const [left, right] = span(state);
    const symbol = state.method === "gspo" ? "ρ(y)" : "ρ";
    const where =
      left > 0
        ? `whose ρ(y) is not between ${short(left)} and ${short(right)}, drawn on the edges`
        : `beyond ${symbol} = ${fixed(right, 0)}, drawn on the right edge`;
    parts.push(`Tokens ${where}: ${beyond}.`);
  }
  return parts.join(" ");
}

// --- drawing -------------------------------------------------------------------------------

const LEFT = 64;
const RIGHT = 24;
const TITLE = 20;
const PANEL = 168;
const EDGE_LABELS = 20;
const ROW = 56;
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

// What a region is called: on one line, shorter, on two lines.
const NAMES = {
  dead: () => [["no gradient"], ["no", "gradient"]],
  held: (bound) =>
    [[`weight held at ${bound}·A`], [`held at ${bound}·A`], ["held at", `${bound}·A`]],
  damped: () => [["less than half"], ["less than", "half"]],
};
const FATES = {
  live: "",
  dead: " without gradient",
  held: " with the weight held",
  damped: " under half the weight",
};
const CURVE_NAMES = { sapo: ["gated", "no gate"], cispo: ["bounded", "no bound"] };

// What all parts of the picture need: the axis, the two signs, what fits.
function plotOf(state, width) {
  const [from, to] = span(state);
  const [left, right] = [LEFT, width - RIGHT];
  const x = (ratio) => left + ((right - left) * (clamp(ratio, from, to) - from)) / (to - from);
  const sign = signOf(state);
  const { rows } = summaryOf(state);
  const chosen = rows.find((row) => row.sign === sign).regions;
  const visible = (list) =>
    list.map((region) => ({ ...region, left: x(region.low), right: x(region.high) }))
      .filter((region) => region.right > region.left);
  return {
    state, x, from, to, left, right, sign, rows, visible,
    zones: visible(chosen), roomy: width >= 560, curve: curve(state),
  };
}

const border = ({ left, right }, top, height) =>
  svg("rect", {
    x: left, y: top, width: right - left, height, fill: "none", stroke: "var(--line)",
  });

function shade(zones, top, height) {
  const fill = (kind) => (kind === "dead" ? "url(#hatch)" : "var(--dead)");
  return zones
    .filter(({ kind }) => kind !== "live")
    .map(({ left, right, kind }) =>
      svg("rect", { x: left, y: top, width: right - left, height, fill: fill(kind) }),
    );
}

// The inner borders of the regions.
const bordersOf = ({ left, right }, zones) =>
  zones.slice(1).map((zone) => zone.left).filter((at) => at > left && at < right);

// Where the curves are evaluated: evenly, and on both sides of each border, where they bend.
function samples({ from, to, zones }) {
  const tiny = (to - from) * 1e-6;
  const even = Array.from({ length: 81 }, (_, i) => from + ((to - from) * i) / 80);
  const bends = zones.slice(1).flatMap(({ low }) => [low - tiny, low + tiny]);
  const all = [...even, ...bends].map((ratio) => clamp(ratio, Math.max(from, tiny), to));
  return all.sort((a, b) => a - b);
}

// Top of a vertical axis for values up to `largest`: a whole number of the steps of `ticks`.
function axisTop(largest) {
  const step = roundUp(largest / 4);
  return Math.ceil(largest / step - 1e-9) * step;
}

// One of the two curve panels: `value` takes a ratio, `ends` are those of the axis, regions of the
// kinds in `named` get their names.
function panel(plot, { top, value, ends: [low, high], ticksWanted, named }) {
  const { state, left, right, sign, zones } = plot;
  const margin = 0.08 * (high - low);
  const [bottom, ceiling] = [low - margin, high + margin];
  const y = (v) => top + (PANEL * (ceiling - v)) / (ceiling - bottom);
  const point = ([ratio, v]) => `${plot.x(ratio).toFixed(1)},${y(v).toFixed(1)}`;
  const points = (list) => list.map(point).join(" ");
  const grid = ticks(low, high, ticksWanted).flatMap(({ value: v, label: words }) => [
    line(left, y(v), right, y(v), { stroke: v === 0 ? "var(--line)" : "var(--grid)" }),
    text(left - 8, y(v) + 4.5, words, { anchor: "end" }),
  ]);
  const advantage = advantageOf(state);
  const straight = points([[plot.from, plot.from * advantage], [plot.to, plot.to * advantage]]);
  const bold = { stroke: signColor(sign), "stroke-width": 3, "stroke-linejoin": "round" };
  const heights = (at) => {
    const ratio = plot.from + ((plot.to - plot.from) * (at - left)) / (right - left);
    return [y(value(Math.max(1e-6, ratio))), y(ratio * advantage)];
  };
  const taken = [];
  const clip = `inside-${top}`;
  const inside = { x: left, y: top, width: right - left, height: PANEL };
  const curves = svg(
    "g",
    { "clip-path": `url(#${clip})` },
    svg("polyline", { points: straight, fill: "none", ...DOTTED }),
    svg("polyline", {
      points: points(samples(plot).map((ratio) => [ratio, value(ratio)])),
      fill: "none", ...bold, class: "curve",
    }),
  );
  return svg(
    "g",
    {},
    svg("clipPath", { id: clip }, svg("rect", inside)),
    ...shade(zones, top, PANEL),
    ...grid,
    border(plot, top, PANEL),
    curves,
    ...zones
      .filter(({ kind }) => named.includes(kind))
      .flatMap((zone) => zoneName(plot, zone, top, heights, taken)),
  );
}

const NAME_LINE = 16; // pixels from line to line

// The name of a region: inside it on one line or on two, else beside it with an arrow; at that
// height where it is farthest from both curves and from the names in `taken`, to which it is added.
// `heights` takes an x and returns those of the curves.
function zoneName({ state, left, right }, zone, top, heights, taken) {
  const onLeft = zone.name === "below";
  const bound = onLeft
    ? edge(1 - state.eps_low, state.eps_low)
    : edge(1 + state.eps_high, state.eps_high);
  const ways = NAMES[zone.kind](bound);
  const widthOf = (lines) => 7.6 * Math.max(...lines.map((words) => words.length)) + 8;
  let lines = ways.find((way) => zone.right - zone.left > widthOf(way));
  let middle = (zone.left + zone.right) / 2;
  if (!lines) {
    const words = ways.at(-1).join(" ");
    lines = [onLeft ? `← ${words}` : `${words} →`];
    const half = widthOf(lines) / 2;
    middle = onLeft ? Math.max(left, zone.right) + half : Math.min(right, zone.left) - half;
  }
  const width = widthOf(lines);
  const nearby = [-0.5, -0.25, 0, 0.25, 0.5].flatMap((share) => heights(middle + share * width));
  for (const other of taken) {
    if (Math.abs(other.middle - middle) < (other.width + width) / 2) nearby.push(other.y);
  }
  const room = (y) => Math.min(...nearby.map((at) => Math.abs(at - y)));
  const places = [0.5, 0.26, 0.74, 0.13, 0.87].map((share) => top + PANEL * share);
  const y = places.reduce((best, place) => (room(place) > room(best) + 4 ? place : best));
  taken.push({ middle, width, y });
  return lines.map((words, i) =>
    text(middle, y + 4 + NAME_LINE * (i - (lines.length - 1) / 2), words, {
      bold: true, halo: true, anchor: "middle",
    }),
  );
}

// One row of the token strip: its points, with room for the counts above them.
function tokenRow(plot, { sign, regions: list }, top) {
  const marks = { live: [], dead: [] };
  for (const { kind, tokens } of list) {
    for (const { i, ratio } of tokens) {
      const spot = (i * 0.618034) % 1; // spreads the points over the height, the same at each draw
      const y = top + COUNTS + 6 + (ROW - COUNTS - 12) * spot;
      marks[kind === "dead" ? "dead" : "live"].push(triangle(plot.x(ratio), y, sign, 3.6));
    }
  }
  const color = signColor(sign);
  const zones = plot.visible(list);
  return svg(
    "g",
    {},
    ...shade(zones, top, ROW),
    border(plot, top, ROW),
    svg("path", { d: marks.live.join(""), fill: color, "fill-opacity": 0.75 }),
    svg("path", {
      d: marks.dead.join(""), fill: "var(--paper)", stroke: color, "stroke-width": 1.2,
    }),
    svg("path", { d: triangle(8, top + ROW / 2, sign, 5), fill: color }),
    text(plot.left - 8, top + ROW / 2 + 4.5, SIGN_NAME[sign], {
      anchor: "end", bold: plot.sign === sign,
    }),
    ...bordersOf(plot, zones).map((at) => line(at, top, at, top + ROW, DASHED)),
    ...counts(plot, zones, top),
  );
}

// The counts of a row, each over its own region, apart from each other at any ε.
function counts({ left, right }, zones, top) {
  const labels = zones.map(({ tokens }) => String(tokens.length));
  const gap = 12 + 8 * Math.max(...labels.map((words) => words.length));
  const centres = zones.map((zone) => (zone.left + zone.right) / 2);
  return spread(centres, gap, left + gap / 2, right - gap / 2).map((at, i) =>
    text(at, top + 14, labels[i], { anchor: "middle", bold: true, halo: true, class: "count" }),
  );
}

// What stands at the borders of the chosen sign's regions, under the panels.
function edgeLabels(plot) {
  const { state, left, right, zones, sign } = plot;
  const [low, high] = edges(state, sign);
  const values = {
    inside: ["1 − ε_low = ", () => edge(low, state.eps_low)],
    above: ["1 + ε_high = ", () => edge(high, state.eps_high)],
    floored: ["c = ", () => fixed(state.dual_clip, 2)],
  };
  if (state.method === "sapo") {
    values.inside = ["half at ρ = ", () => fixed(low, 2)];
    values.above = ["half at ρ = ", () => fixed(high, 2)];
  }
  const shown = zones.slice(1).map((zone) => ({ at: zone.left, label: values[zone.name] }));
  if (shown.length === 0) return [];
  const long = shown.map(({ label: [name, value] }) => name + value());
  const gapOf = (labels) => 7 * Math.max(...labels.map((words) => words.length)) + 6;
  const fits = shown.length * gapOf(long) <= right - left;
  const labels = fits ? long : shown.map(({ label: [, value] }) => value());
  const gap = gapOf(labels);
  const centres = shown.map(({ at }) => at);
  return spread(centres, gap, left + gap / 2, right - gap / 2).map((at, i) =>
    text(at, WEIGHT_BOTTOM + 15, labels[i], { anchor: "middle", halo: true }),
  );
}

function legend({ right, state, sign }) {
  const [drawn, dotted] = CURVE_NAMES[state.method] ?? ["clipped", "no clip"];
  const middle = right - 7.6 * dotted.length - 36; // where the dotted sample begins
  const start = middle - 7.6 * drawn.length - 50;
  return [
    line(start, 10, start + 28, 10, { stroke: signColor(sign), "stroke-width": 3 }),
    text(start + 35, 14, drawn),
    line(middle, 10, middle + 28, 10, DOTTED),
    text(right, 14, dotted, { anchor: "end" }),
  ];
}

function titles({ state, roomy }) {
  const objective = {
    gspo: ["Objective of one sequence", "Objective of one sequence"],
    cispo: ["∫ weight d log ρ (no objective in ρ)", "Weight integrated over log ρ"],
    sapo: ["Objective of one token (shifted to A at ρ = 1)", "Objective, A at ρ = 1"],
  }[state.method] ?? ["Objective of one token", "Objective of one token"];
  const weight = {
    gspo: ["Gradient weight of each token (before its 1/|y|)", "Push, before its 1/|y|"],
  }[state.method] ?? ["Gradient weight (push)", "Gradient weight (push)"];
  const bySequence = state.method === "gspo" && roomy;
  const strip = bySequence ? "Tokens at their sequence's ratio" : "Tokens of the batch";
  return [
    [OBJECTIVE_TOP, objective[roomy ? 0 : 1]],
    [WEIGHT_TOP, weight[roomy ? 0 : 1]],
    [ROWS_TOP, `${strip} (${state.tokens.length})`],
  ];
}

function ratioAxis({ state, x, from, to, left, right, roomy }) {
  const sequence = `sequence ratio ρ(y)${roomy ? ", the geometric mean of its token ratios" : ""}`;
  const marks = ticks(from, to).flatMap(({ value, label: words }) => [
    line(x(value), ROWS_BOTTOM, x(value), ROWS_BOTTOM + 5),
    text(x(value), ROWS_BOTTOM + 19, words, { anchor: "middle" }),
  ]);
  const name = state.method === "gspo" ? sequence : "token ratio ρ = π_θ / π_old";
  return [...marks, text((left + right) / 2, ROWS_BOTTOM + 38, name, { anchor: "middle" })];
}

// What is drawn, for someone who cannot see it.
function about({ state, from, to, rows }) {
  const lists = rows.map(({ sign, regions: list }) => {
    const parts = list.map(({ name, kind, tokens }) => {
      const where = name === "floored" ? "beyond c" : name;
      return `${tokens.length} ${where}${FATES[kind]}`;
    });
    return `${SIGN_NAME[sign]}: ${parts.join(", ")}.`;
  });
  return (
    `${label(state)}, ${SIGN_NAME[signOf(state)]}, |A| = ${fixed(state.size, 1)}, against the ` +
    `ratio from ${short(from)} to ${short(to)}: the objective, the gradient weight, both beside ` +
    `the unbounded line, and the tokens of the batch. ${lists.join(" ")}`
  );
}

function draw(state, { width }) {
  const plot = plotOf(state, width);
  const { x, sign, zones, roomy, from, to } = plot;
  const advantage = advantageOf(state);
  const whole = [0, sign * axisTop(state.size * to)].sort((a, b) => a - b);
  const zoomed = [from * advantage, to * advantage].sort((a, b) => a - b); // ε would not be seen
  const value = (key) => (ratio) => plot.curve(ratio)[key];
  const objective = { top: OBJECTIVE_TOP, value: value("objective"), named: ["dead"] };
  const weight = { top: WEIGHT_TOP, value: value("weight"), named: ["dead", "held", "damped"] };
  const isZoomed = state.method === "gspo";
  return picture(
    width,
    HEIGHT,
    about(plot),
    hatching(),
    panel(plot, { ...objective, ends: isZoomed ? zoomed : whole, ticksWanted: isZoomed ? 3 : 4 }),
    panel(plot, { ...weight, ends: whole, ticksWanted: 4 }),
    line(x(1), OBJECTIVE_TOP, x(1), ROWS_BOTTOM),
    ...bordersOf(plot, zones).map((at) => line(at, OBJECTIVE_TOP, at, ROWS_TOP, DASHED)),
    ...plot.rows.map((row, i) => tokenRow(plot, row, ROWS_TOP + i * ROW)),
    ...(roomy ? legend(plot) : []),
    ...titles(plot).map(([top, title]) => text(LEFT, top - 6, title, { bold: true, halo: true })),
    ...edgeLabels(plot),
    ...ratioAxis(plot),
  );
}

export default widget({ title: "Clip region", draw, sentence, note, off, react });
