// The clip region: which tokens of a batch still push the policy under PPO's clipped objective.
// Three panels share the axis of the ratio ρ: the objective, the gradient weight, the tokens.
// The same formulas as policy_gradients.surrogates.ppo_clip; both are tested on one set of numbers.
// Leaves out: dual clip, and surrogates of another shape than PPO's.

import { button, choice, fixed, html, mount, slider, spread, svg, ticks } from "./base.js";

const RATIO_MAX = 2; // right end of the ρ axis; tokens beyond it are drawn on the edge
const SIGN_NAME = { 1: "A > 0", "-1": "A < 0" };
const KEY =
  "Hollow marks on hatching: tokens without gradient. The numbers count the tokens of each region.";

// --- mathematics ---------------------------------------------------------------------------

// One token: the objective min(ρA, clip(ρ, 1 − ε_low, 1 + ε_high)·A) and its derivative by log π,
// the gradient weight: ρA where the first term is chosen, else 0.
export function ppoClip(ratio, advantage, epsLow, epsHigh) {
  const clipped = Math.min(Math.max(ratio, 1 - epsLow), 1 + epsHigh) * advantage;
  const plain = ratio * advantage;
  return { objective: Math.min(plain, clipped), gradient: plain <= clipped ? plain : 0 };
}

// "below", "inside" or "above" the interval [1 − ε_low, 1 + ε_high].
export function side(ratio, epsLow, epsHigh) {
  if (ratio < 1 - epsLow) return "below";
  return ratio > 1 + epsHigh ? "above" : "inside";
}

export const isDead = (sign, where) => where === (sign > 0 ? "above" : "below");

// Tokens counted by the sign of A and the side of the clip, and what the clip leaves of the
// batch's gradient weight: Σ|weight| over Σ|ρA|.
export function summary(tokens, epsLow, epsHigh) {
  const empty = () => ({ below: 0, inside: 0, above: 0 });
  const result = { positive: empty(), negative: empty(), zero: 0, beyond: 0 };
  let kept = 0;
  let all = 0;
  for (const [ratio, advantage] of tokens) {
    if (ratio > RATIO_MAX) result.beyond += 1;
    if (advantage === 0) result.zero += 1;
    else result[advantage > 0 ? "positive" : "negative"][side(ratio, epsLow, epsHigh)] += 1;
    kept += Math.abs(ppoClip(ratio, advantage, epsLow, epsHigh).gradient);
    all += Math.abs(ratio * advantage);
  }
  result.dead = result.positive.above + result.negative.below;
  result.kept = all > 0 ? kept / all : 0;
  return result;
}

// The result in words; the same text as ClipRegion.sentence in Python.
export function sentence({ methods, method, advantage, eps_low, eps_high, tokens }) {
  const { label } = methods.find(({ key }) => key === method);
  const { dead, kept, zero, beyond } = summary(tokens, eps_low, eps_high);
  const above = `above ρ = ${fixed(1 + eps_high, 2)}`;
  const edge = advantage > 0 ? above : `below ρ = ${fixed(1 - eps_low, 2)}`;
  const share = `${fixed((100 * dead) / tokens.length, 1)} %`;
  const parts = [
    `${label}: ${edge} a token with ${SIGN_NAME[Math.sign(advantage)]} gets no gradient.`,
    `In this batch the clip silences ${dead} of ${tokens.length} tokens (${share})`,
    `and keeps ${fixed(100 * kept, 0)} % of the unclipped gradient weight.`,
  ];
  if (zero > 0) parts.push(`Tokens with A = 0, which never push: ${zero}.`);
  if (beyond > 0) parts.push(`Tokens beyond ρ = ${RATIO_MAX}, drawn on the right edge: ${beyond}.`);
  return parts.join(" ");
}

// Top of the vertical axis: round, and steady while |A| moves a little.
export function axisTop(size) {
  return [0.2, 0.5, 1, 2, 4].find((top) => top >= 2 * size - 1e-9) ?? 6;
}

// --- drawing -------------------------------------------------------------------------------

const LEFT = 64;
const RIGHT = 14;
const TITLE = 20;
const PANEL = 138;
const EDGE_LABELS = 20;
const ROW = 50;
const COUNTS = 17; // the part of a row that holds its three counts
const OBJECTIVE_TOP = TITLE;
const WEIGHT_TOP = OBJECTIVE_TOP + PANEL + TITLE + 6;
const WEIGHT_BOTTOM = WEIGHT_TOP + PANEL;
const ROWS_TOP = WEIGHT_BOTTOM + EDGE_LABELS + TITLE + 4;
const ROWS_BOTTOM = ROWS_TOP + 2 * ROW;
const HEIGHT = ROWS_BOTTOM + 42;

const BOLD = { "font-weight": 600 };
const CENTRED = { "text-anchor": "middle" };
const TO_THE_LEFT = { "text-anchor": "end" };
const DOTTED = {
  stroke: "var(--ink)", "stroke-width": 1.6, "stroke-dasharray": "1.6 4", "stroke-linecap": "round",
};
const DASHED = { stroke: "var(--ink)", "stroke-width": 1.5, "stroke-dasharray": "6 4" };
const HALO = {
  stroke: "var(--paper)", "stroke-width": 4, "stroke-linejoin": "round", "paint-order": "stroke",
};

const signColor = (sign) => (sign > 0 ? "var(--positive)" : "var(--negative)");
const triangle = (x, y, sign, r) =>
  `M${(x - r).toFixed(1)} ${(y + 0.8 * sign * r).toFixed(1)}h${2 * r}l${-r} ${-1.6 * sign * r}z`;

// "ε_low = 0.80" is drawn with "low" as a subscript.
function text(x, y, content, attributes = {}) {
  const parts = content.split(/_(θ|\w+)/).map((part, i) => {
    if (i === 0) return part;
    return svg("tspan", i % 2 ? { dy: 3.5, "font-size": "0.78em" } : { dy: -3.5 }, part);
  });
  return svg("text", { x, y, fill: "var(--ink)", ...attributes }, ...parts);
}

// Text that stays readable on hatching and over points.
const haloed = (x, y, content, attributes = {}) => text(x, y, content, { ...HALO, ...attributes });

function line(x1, y1, x2, y2, attributes = {}) {
  return svg("line", { x1, y1, x2, y2, stroke: "var(--line)", ...attributes });
}

function border({ left, right }, top, height) {
  const box = { x: left, y: top, width: right - left, height };
  return svg("rect", { ...box, fill: "none", stroke: "var(--line)" });
}

// The ends of the dead zone, where a token with this sign of A gets no gradient.
const deadEnds = ({ x, low, high }, sign) => (sign > 0 ? [x(high), x(RATIO_MAX)] : [x(0), x(low)]);

function deadZone(plot, sign, top, height) {
  const [from, to] = deadEnds(plot, sign);
  return svg("rect", { x: from, y: top, width: to - from, height, fill: "url(#hatch)" });
}

function hatching() {
  const tile = { width: 7, height: 7 };
  return svg(
    "pattern",
    { id: "hatch", ...tile, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { ...tile, fill: "var(--dead)" }),
    line(0, 0, 0, 7, { stroke: "var(--hatch)", "stroke-width": 1.6 }),
  );
}

// One of the two curve panels; `curve` is a list of (ρ, y).
function panel(plot, top, advantage, curve) {
  const sign = Math.sign(advantage);
  const high = axisTop(Math.abs(advantage));
  const [from, to] = sign > 0 ? [-0.08 * high, 1.08 * high] : [-1.08 * high, 0.08 * high];
  const y = (value) => top + (PANEL * (to - value)) / (to - from);
  const point = ([r, v]) => `${plot.x(r).toFixed(1)},${y(v).toFixed(1)}`;
  const points = (list) => list.map(point).join(" ");
  const group = svg("g", {}, deadZone(plot, sign, top, PANEL));
  for (const { value, label } of ticks(Math.min(0, sign * high), Math.max(0, sign * high))) {
    const stroke = value === 0 ? "var(--line)" : "var(--grid)";
    group.append(
      line(plot.left, y(value), plot.right, y(value), { stroke }),
      text(plot.left - 8, y(value) + 4.5, label, TO_THE_LEFT),
    );
  }
  const plain = points([[0, 0], [RATIO_MAX, RATIO_MAX * advantage]]);
  const bold = { stroke: signColor(sign), "stroke-width": 3, "stroke-linejoin": "round" };
  group.append(
    border(plot, top, PANEL),
    svg("polyline", { points: plain, fill: "none", ...DOTTED }),
    svg("polyline", { points: points(curve), fill: "none", ...bold, class: "curve" }),
    deadName(plot, sign, (sign > 0 ? y(0.5 * advantage) : y(-0.88 * high)) + 4),
  );
  return group;
}

// The name of the dead zone: inside it if it fits, else beside it with an arrow.
function deadName(plot, sign, y) {
  const [from, to] = deadEnds(plot, sign);
  if (to - from > 92) return haloed((from + to) / 2, y, "no gradient", { ...CENTRED, ...BOLD });
  if (sign > 0) return haloed(from - 8, y, "no gradient →", { ...TO_THE_LEFT, ...BOLD });
  return haloed(to + 8, y, "← no gradient", BOLD);
}

// One row of the token strip: its points, with room for three counts above them.
function tokenRow(plot, { sign, top }, { tokens, eps_low, eps_high, advantage }) {
  const live = [];
  const dead = [];
  tokens.forEach(([ratio, ownAdvantage], i) => {
    if (Math.sign(ownAdvantage) !== sign) return;
    const spot = (i * 0.618034) % 1; // spreads the points over the height, the same at each draw
    const y = top + COUNTS + 6 + (ROW - COUNTS - 12) * spot;
    const list = isDead(sign, side(ratio, eps_low, eps_high)) ? dead : live;
    list.push(triangle(plot.x(Math.min(ratio, RATIO_MAX)), y, sign, 3.6));
  });
  const color = signColor(sign);
  const weight = { "font-weight": Math.sign(advantage) === sign ? 700 : 400 };
  return svg(
    "g",
    {},
    deadZone(plot, sign, top, ROW),
    border(plot, top, ROW),
    svg("path", { d: live.join(""), fill: color, "fill-opacity": 0.75 }),
    svg("path", { d: dead.join(""), fill: "var(--paper)", stroke: color, "stroke-width": 1.2 }),
    svg("path", { d: triangle(8, top + ROW / 2, sign, 5), fill: color }),
    text(plot.left - 8, top + ROW / 2 + 4.5, SIGN_NAME[sign], { ...TO_THE_LEFT, ...weight }),
  );
}

// The three counts of a row, each over its own region, apart from each other at any ε.
function rowCounts({ x, left, right, low, high }, { top, counts }) {
  const bounds = [0, low, high, RATIO_MAX].map(x);
  const centres = [0, 1, 2].map((i) => (bounds[i] + bounds[i + 1]) / 2);
  const labels = [counts.below, counts.inside, counts.above].map(String);
  const gap = 12 + 8 * Math.max(...labels.map((label) => label.length));
  return spread(centres, gap, left + gap / 2, right - gap / 2).map((at, i) =>
    haloed(at, top + 14, labels[i], { ...CENTRED, ...BOLD, class: "count" }),
  );
}

// Each label ends or begins at its own edge, so the two can never meet; at an extreme ε it stops
// at the border of the panel.
function edgeLabels({ x, left, right, low, high, roomy }) {
  const width = roomy ? 108 : 34;
  const words = (name, value) => (roomy ? `${name} = ${fixed(value, 2)}` : fixed(value, 2));
  const y = WEIGHT_BOTTOM + 15;
  return [
    haloed(Math.max(x(low) - 5, left + width), y, words("1 − ε_low", low), TO_THE_LEFT),
    haloed(Math.min(x(high) + 5, right - width), y, words("1 + ε_high", high)),
  ];
}

function legend({ right }, advantage) {
  return [
    line(right - 178, 10, right - 150, 10, { stroke: signColor(advantage), "stroke-width": 3 }),
    text(right - 143, 14, "clipped"),
    line(right - 80, 10, right - 52, 10, DOTTED),
    text(right, 14, "no clip", TO_THE_LEFT),
  ];
}

function ratioAxis({ x, left, right }) {
  const name = "token ratio ρ = π_θ / π_old";
  return ticks(0, RATIO_MAX)
    .flatMap(({ value, label }) => [
      line(x(value), ROWS_BOTTOM, x(value), ROWS_BOTTOM + 5),
      text(x(value), ROWS_BOTTOM + 19, label, CENTRED),
    ])
    .concat(text((left + right) / 2, ROWS_BOTTOM + 38, name, CENTRED));
}

// The corners of the two curves. The weight jumps at the edge of the dead zone.
function curves({ low, high }, { advantage, eps_low, eps_high }) {
  const at = (ratio) => [ratio, ppoClip(ratio, advantage, eps_low, eps_high).objective];
  const end = [RATIO_MAX, RATIO_MAX * advantage];
  return {
    objective: [0, low, high, RATIO_MAX].map(at),
    weight:
      advantage > 0
        ? [[0, 0], [high, high * advantage], [high, 0], [RATIO_MAX, 0]]
        : [[0, 0], [low, 0], [low, low * advantage], end],
  };
}

function picture(state, width) {
  const { advantage, eps_low, eps_high, tokens } = state;
  const [left, right] = [LEFT, width - RIGHT];
  const x = (ratio) => left + ((right - left) * ratio) / RATIO_MAX;
  const plot = { x, left, right, low: 1 - eps_low, high: 1 + eps_high, roomy: width > 420 };
  const { objective, weight } = curves(plot, state);
  const { positive, negative } = summary(tokens, eps_low, eps_high);
  const rows = [
    { sign: 1, top: ROWS_TOP, counts: positive },
    { sign: -1, top: ROWS_TOP + ROW, counts: negative },
  ];
  const verticals = [[x(1), {}], [x(plot.low), DASHED], [x(plot.high), DASHED]];
  const titles = [
    [OBJECTIVE_TOP, "Objective of one token"],
    [WEIGHT_TOP, "Gradient weight (push)"],
    [ROWS_TOP, `Tokens of the batch (${tokens.length})`],
  ];
  const about =
    "Objective, gradient weight and tokens of the batch against the ratio; " +
    "the sentence below the picture states the result.";
  return svg(
    "svg",
    { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img", "aria-label": about },
    svg("defs", {}, hatching()),
    panel(plot, OBJECTIVE_TOP, advantage, objective),
    panel(plot, WEIGHT_TOP, advantage, weight),
    ...rows.map((row) => tokenRow(plot, row, state)),
    ...verticals.map(([at, look]) => line(at, OBJECTIVE_TOP, at, ROWS_BOTTOM, look)),
    ...(plot.roomy ? legend(plot, advantage) : []),
    ...rows.flatMap((row) => rowCounts(plot, row)),
    ...titles.map(([top, title]) => haloed(left, top - 6, title, BOLD)),
    ...edgeLabels(plot),
    ...ratioAxis(plot),
  );
}

// --- the view ------------------------------------------------------------------------------

function signOption(sign) {
  const path = svg("path", { d: triangle(6, 6, sign, 5), fill: signColor(sign) });
  const mark = svg("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, path);
  return { value: sign, label: SIGN_NAME[sign], mark };
}

function build({ state, set }) {
  const preset = (key) => state().methods.find((row) => row.key === key);
  const choose = (key) => {
    const { eps_low, eps_high } = preset(key);
    set({ method: key, eps_low, eps_high });
  };
  const method = choice({
    label: "Method",
    options: state().methods.map(({ key, label }) => ({ value: key, label })),
    onChoose: choose,
  });
  const sign = choice({
    label: "Advantage sign",
    options: [signOption(1), signOption(-1)],
    onChoose: (value) => set({ advantage: value * Math.abs(state().advantage) }),
  });
  const size = slider({
    label: "|A| size", min: 0.1, max: 3, step: 0.1,
    show: (value) => fixed(value, 1),
    onInput: (value) => set({ advantage: Math.sign(state().advantage) * value }),
  });
  const epsilon = (label, key) =>
    slider({
      label, min: 0.01, max: 0.99, step: 0.01,
      show: (value) => fixed(value, 2),
      onInput: (value) => set({ [key]: value }),
    });
  const low = epsilon("ε low", "eps_low");
  const high = epsilon("ε high", "eps_high");
  const reset = button({
    label: "Reset to the paper's ε",
    onPress: () => choose(state().method),
  });
  const source = html("p", { class: "note" });
  const key = html("p", { class: "note" }, KEY);
  return {
    controls: [method, sign, size, low, high, reset].map(({ node }) => node).concat(source, key),
    draw(now, width) {
      method.set(now.method);
      sign.set(Math.sign(now.advantage));
      size.set(Math.abs(now.advantage));
      low.set(now.eps_low);
      high.set(now.eps_high);
      source.textContent = preset(now.method).source;
      return { picture: picture(now, width), sentence: sentence(now) };
    },
  };
}

export default {
  render({ model, el }) {
    const keys = ["methods", "method", "advantage", "eps_low", "eps_high", "tokens"];
    return mount({ model, el, title: "Clip region", keys, build });
  },
};
