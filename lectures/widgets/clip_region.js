// The clip region: which tokens of a batch still push the policy under PPO's clipped objective.
// Three panels share the axis of the ratio ρ: the objective, the gradient weight, the tokens.
// The same formulas as policy_gradients.surrogates.ppo_clip; both are tested on one set of numbers.
// Leaves out: dual clip, and surrogates of another shape than PPO's.

import { button, choice, fixed, html, mount, slider, spread, svg, ticks } from "./base.js";

const RATIO_MAX = 2; // right end of the ρ axis; tokens beyond it are drawn on the edge

// --- mathematics ---------------------------------------------------------------------------

// One token: J = min(ρA, clip(ρ, 1 − ε_low, 1 + ε_high)·A) and its weight ∂J/∂log π = ρA where
// the first term is chosen, else 0.
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
  const edge =
    advantage > 0
      ? `above ρ = ${fixed(1 + eps_high, 2)} a token with A > 0 gets no gradient`
      : `below ρ = ${fixed(1 - eps_low, 2)} a token with A < 0 gets no gradient`;
  const count = `${dead} of ${tokens.length} tokens (${fixed((100 * dead) / tokens.length, 1)} %)`;
  const parts = [
    `${label}: ${edge}.`,
    `In this batch the clip silences ${count} and keeps ${fixed(100 * kept, 0)} % of the unclipped gradient weight.`,
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
const ROWS_TOP = WEIGHT_TOP + PANEL + EDGE_LABELS + TITLE + 4;
const ROWS_BOTTOM = ROWS_TOP + 2 * ROW;
const HEIGHT = ROWS_BOTTOM + 42;

const DOTTED = { stroke: "var(--ink)", "stroke-width": 1.6, "stroke-dasharray": "1.6 4", "stroke-linecap": "round" };
const signColor = (sign) => (sign > 0 ? "var(--positive)" : "var(--negative)");
const triangle = (x, y, sign, r) =>
  `M${(x - r).toFixed(1)} ${(y + 0.8 * sign * r).toFixed(1)}h${2 * r}l${-r} ${-1.6 * sign * r}z`;

// "ε_low = 0.80" is drawn with "low" as a subscript.
function text(x, y, content, attributes = {}) {
  const parts = content.split(/_(\w+)/).map((part, i) => {
    if (i === 0) return part;
    return svg("tspan", i % 2 ? { dy: 3.5, "font-size": "0.78em" } : { dy: -3.5 }, part);
  });
  return svg("text", { x, y, fill: "var(--ink)", ...attributes }, ...parts);
}

// Text that stays readable on hatching and over points.
function haloed(x, y, content, attributes = {}) {
  const halo = { stroke: "var(--paper)", "stroke-width": 4, "paint-order": "stroke" };
  return text(x, y, content, { ...halo, "stroke-linejoin": "round", ...attributes });
}

function line(x1, y1, x2, y2, attributes = {}) {
  return svg("line", { x1, y1, x2, y2, stroke: "var(--line)", ...attributes });
}

const HATCH = () =>
  svg(
    "pattern",
    { id: "hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { width: 7, height: 7, fill: "var(--dead)" }),
    line(0, 0, 0, 7, { stroke: "var(--hatch)", "stroke-width": 1.6 }),
  );

function deadZone(x1, x2, top, height) {
  return svg("rect", { x: x1, y: top, width: Math.max(0, x2 - x1), height, fill: "url(#hatch)", class: "dead" });
}

// One of the two curve panels. `curve` and `plain` are lists of (ρ, y).
function panel({ top, x, width, advantage, edges, curve, plain }) {
  const sign = Math.sign(advantage);
  const high = axisTop(Math.abs(advantage));
  const pad = 0.08 * high;
  const [low, up] = sign > 0 ? [-pad, high + pad] : [-high - pad, pad];
  const y = (value) => top + (PANEL * (up - value)) / (up - low);
  const points = (list) => list.map(([r, v]) => `${x(r).toFixed(1)},${y(v).toFixed(1)}`).join(" ");
  const [from, to] = sign > 0 ? [x(edges.high), x(RATIO_MAX)] : [x(0), x(edges.low)];
  const group = svg("g", {}, deadZone(from, to, top, PANEL));
  for (const tick of ticks(Math.min(0, sign * high), Math.max(0, sign * high), 4)) {
    group.append(
      line(LEFT, y(tick.value), width - RIGHT, y(tick.value), {
        stroke: tick.value === 0 ? "var(--line)" : "var(--grid)",
      }),
      text(LEFT - 8, y(tick.value) + 4.5, tick.label, { "text-anchor": "end" }),
    );
  }
  group.append(
    svg("rect", { x: LEFT, y: top, width: width - RIGHT - LEFT, height: PANEL, fill: "none", stroke: "var(--line)" }),
    svg("polyline", { points: points(plain), fill: "none", ...DOTTED }),
    svg("polyline", { points: points(curve), fill: "none", stroke: signColor(sign), "stroke-width": 3, "stroke-linejoin": "round", class: "curve" }),
  );
  // The name of the dead zone: inside it if it fits, else beside it with an arrow.
  const fits = to - from > 92;
  const where = fits ? (from + to) / 2 : sign > 0 ? from - 8 : to + 8;
  const words = fits ? "no gradient" : sign > 0 ? "no gradient →" : "← no gradient";
  const anchor = fits ? "middle" : sign > 0 ? "end" : "start";
  const height = sign > 0 ? y(0.5 * advantage) : y(-0.88 * high);
  group.append(haloed(where, height + 4, words, { "text-anchor": anchor, "font-weight": 600 }));
  return group;
}

// One row of the token strip: its points, with room for three counts above them.
function tokenRow({ sign, top, x, width, edges, sideOf, tokens, shown }) {
  const [from, to] = sign > 0 ? [x(edges.high), x(RATIO_MAX)] : [x(0), x(edges.low)];
  const group = svg("g", {}, deadZone(from, to, top, ROW));
  group.append(
    svg("rect", { x: LEFT, y: top, width: width - RIGHT - LEFT, height: ROW, fill: "none", stroke: "var(--line)" }),
  );
  const live = [];
  const dead = [];
  const band = ROW - COUNTS - 12;
  tokens.forEach(([ratio, advantage], i) => {
    if (Math.sign(advantage) !== sign) return;
    const height = top + COUNTS + 6 + (band * ((i * 0.618034) % 1)); // spread, the same at each draw
    const list = isDead(sign, sideOf(ratio)) ? dead : live;
    list.push(triangle(x(Math.min(ratio, RATIO_MAX)), height, sign, 3.6));
  });
  group.append(
    svg("path", { d: live.join(""), fill: signColor(sign), "fill-opacity": 0.75 }),
    svg("path", { d: dead.join(""), fill: "var(--paper)", stroke: signColor(sign), "stroke-width": 1.2 }),
  );
  group.append(
    svg("path", { d: triangle(8, top + ROW / 2, sign, 5), fill: signColor(sign) }),
    text(LEFT - 8, top + ROW / 2 + 4.5, sign > 0 ? "A > 0" : "A < 0", {
      "text-anchor": "end",
      "font-weight": shown ? 700 : 400,
    }),
  );
  return group;
}

// The three counts of a row, each over its own region, apart from each other at any ε.
function rowCounts({ top, x, width, edges, counts }) {
  const bounds = [0, edges.low, edges.high, RATIO_MAX].map(x);
  const centres = [0, 1, 2].map((i) => (bounds[i] + bounds[i + 1]) / 2);
  const labels = ["below", "inside", "above"].map((where) => String(counts[where]));
  const gap = 12 + 8 * Math.max(...labels.map((label) => label.length));
  const group = svg("g");
  spread(centres, gap, LEFT + gap / 2, width - RIGHT - gap / 2).forEach((at, i) => {
    group.append(haloed(at, top + 14, labels[i], { "text-anchor": "middle", "font-weight": 600, class: "count" }));
  });
  return group;
}

function picture(state, width) {
  const { advantage, eps_low, eps_high, tokens } = state;
  const x = (ratio) => LEFT + ((width - RIGHT - LEFT) * ratio) / RATIO_MAX;
  const edges = { low: 1 - eps_low, high: 1 + eps_high };
  const bends = [0, edges.low, edges.high, RATIO_MAX];
  const at = (ratio) => ppoClip(ratio, advantage, eps_low, eps_high);
  const plain = [0, RATIO_MAX].map((ratio) => [ratio, ratio * advantage]);
  const jump = advantage > 0 ? edges.high : edges.low;
  const weight =
    advantage > 0
      ? [[0, 0], [jump, jump * advantage], [jump, 0], [RATIO_MAX, 0]]
      : [[0, 0], [jump, 0], [jump, jump * advantage], [RATIO_MAX, RATIO_MAX * advantage]];
  const counts = summary(tokens, eps_low, eps_high);
  const shared = { x, width, advantage, edges, plain };

  const root = svg("svg", {
    viewBox: `0 0 ${width} ${HEIGHT}`,
    height: HEIGHT,
    role: "img",
    "aria-label":
      "Objective, gradient weight and tokens of the batch against the ratio; the sentence below states the result.",
  });
  root.append(svg("defs", {}, HATCH()));
  root.append(
    panel({ ...shared, top: OBJECTIVE_TOP, curve: bends.map((r) => [r, at(r).objective]) }),
    panel({ ...shared, top: WEIGHT_TOP, curve: weight }),
  );
  if (width > 420) {
    root.append(
      line(width - RIGHT - 178, 10, width - RIGHT - 150, 10, { stroke: signColor(advantage), "stroke-width": 3 }),
      text(width - RIGHT - 143, 14, "clipped"),
      line(width - RIGHT - 80, 10, width - RIGHT - 52, 10, DOTTED),
      text(width - RIGHT, 14, "no clip", { "text-anchor": "end" }),
    );
  }
  const rows = [
    { sign: 1, top: ROWS_TOP, counts: counts.positive },
    { sign: -1, top: ROWS_TOP + ROW, counts: counts.negative },
  ];
  for (const row of rows) {
    const sideOf = (ratio) => side(ratio, eps_low, eps_high);
    root.append(tokenRow({ ...row, x, width, edges, tokens, sideOf, shown: row.sign === Math.sign(advantage) }));
  }
  root.append(line(x(1), OBJECTIVE_TOP, x(1), ROWS_BOTTOM, { "stroke-width": 1 }));
  for (const edge of [edges.low, edges.high]) {
    root.append(
      line(x(edge), OBJECTIVE_TOP, x(edge), ROWS_BOTTOM, { stroke: "var(--ink)", "stroke-width": 1.5, "stroke-dasharray": "6 4" }),
    );
  }
  rows.forEach((row) => root.append(rowCounts({ ...row, x, width, edges })));
  const titles = [
    [OBJECTIVE_TOP, "Objective J(ρ)"],
    [WEIGHT_TOP, "Gradient weight ∂J/∂log π"],
    [ROWS_TOP, `Tokens of the batch (${tokens.length})`],
  ];
  for (const [top, title] of titles) root.append(haloed(LEFT, top - 6, title, { "font-weight": 600 }));
  // Each label ends or begins at its own edge, so the two can never meet; at an extreme ε it
  // stops at the border of the panel.
  const roomy = width > 420;
  const labelWidth = roomy ? 108 : 34;
  const label = (name, value) => (roomy ? `${name} = ${fixed(value, 2)}` : fixed(value, 2));
  const labelY = WEIGHT_TOP + PANEL + 15;
  root.append(
    haloed(Math.max(x(edges.low) - 5, LEFT + labelWidth), labelY, label("1 − ε_low", edges.low), { "text-anchor": "end" }),
    haloed(Math.min(x(edges.high) + 5, width - RIGHT - labelWidth), labelY, label("1 + ε_high", edges.high)),
  );
  for (const tick of ticks(0, RATIO_MAX, 4)) {
    root.append(
      line(x(tick.value), ROWS_BOTTOM, x(tick.value), ROWS_BOTTOM + 5),
      text(x(tick.value), ROWS_BOTTOM + 19, tick.label, { "text-anchor": "middle" }),
    );
  }
  root.append(
    text((LEFT + width - RIGHT) / 2, ROWS_BOTTOM + 38, "token ratio ρ = π_new / π_old", { "text-anchor": "middle" }),
  );
  return root;
}

// --- the view ------------------------------------------------------------------------------

function mark(sign) {
  return svg("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, svg("path", { d: triangle(6, 6, sign, 5), fill: signColor(sign) }));
}

function build({ state, set }) {
  const preset = (key) => state().methods.find((row) => row.key === key);
  const defaults = (key) => ({ method: key, eps_low: preset(key).eps_low, eps_high: preset(key).eps_high });
  const method = choice({
    label: "Method",
    options: state().methods.map(({ key, label }) => ({ value: key, label })),
    onChoose: (key) => set(defaults(key)),
  });
  const sign = choice({
    label: "Advantage sign",
    options: [
      { value: 1, label: "A > 0", mark: mark(1) },
      { value: -1, label: "A < 0", mark: mark(-1) },
    ],
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
  const reset = button({ label: "Reset to the paper's values", onPress: () => set(defaults(state().method)) });
  const source = html("p", { class: "note" });
  const key = html("p", { class: "note" }, "Hollow marks on hatching: tokens without gradient. The numbers count the tokens of each region.");
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
