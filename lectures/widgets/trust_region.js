// Trust region: the true region, its ellipse and two steps, for one softmax with two free logits.
//
// Lecture 04, [TR-1] to [TR-5]. Three candidates earn 5, 4 and 3 points; token 2's logit is 0. The
// same numbers and sentence as trust_region.py.
// Leaves out: sampling, several states, and networks.

import { brief, fixed, line, picture, significant, svg, text, ticks, widget } from "./base.js";

const REWARDS = [5, 4, 3];
const DIRECTIONS = 12; // of the golden numbers
const POINTS = 144; // of a drawn outline
const REACHES = [0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128];
const CLOSE = 0.1;
const [BACKTRACKS, SHRINK] = [10, 0.8];

// --- the policy ------------------------------------------------------------------------------

const dot = (a, b) => a[0] * b[0] + a[1] * b[1];

function logSoftmax(z) {
  const top = Math.max(...z);
  const total = top + Math.log(z.reduce((sum, value) => sum + Math.exp(value - top), 0));
  return z.map((value) => value - total);
}

// Everything that does not depend on the radius: probabilities, J, gradient, Fisher matrix.
function policyOf({ logit_0: z0, logit_1: z1 }) {
  const logp = logSoftmax([z0, z1, 0]);
  const p = logp.map(Math.exp);
  const J = p.reduce((sum, value, v) => sum + value * REWARDS[v], 0);
  const g = [0, 1].map((v) => p[v] * p.reduce((s, value, w) => s + value * (REWARDS[v] - REWARDS[w]), 0));
  // p_v (1 − p_v) without cancellation
  const own = [p[0] * (p[1] + p[2]), p[1] * (p[0] + p[2])];
  const cross = -p[0] * p[1];
  const F = ([x, y]) => [own[0] * x + cross * y, cross * x + own[1] * y];
  const det = p[0] * p[1] * p[2]; // of the two-by-two matrix
  const solve = ([x, y]) => [(own[1] * x - cross * y) / det, (own[0] * y - cross * x) / det];
  // Wᵀ F W = 1: W turns a circle into an ellipse of equal model KL
  const a = Math.sqrt(own[0]);
  const b = cross / a;
  const c = Math.sqrt(det / own[0]);
  const W = ([x, y]) => [x / a - (b * y) / (a * c), y / c];
  const moved = (step) => logSoftmax([z0 + step[0], z1 + step[1], 0]);
  const kl = (step) => moved(step).reduce((sum, value, v) => sum + p[v] * (logp[v] - value), 0);
  const gain = (step) => {
    const q = moved(step).map(Math.exp);
    return q.reduce((sum, value, v) => sum + (value - p[v]) * REWARDS[v], 0);
  };
  const middle = (own[0] + own[1]) / 2;
  const large = middle + Math.hypot((own[0] - own[1]) / 2, cross);
  return { p, J, g, F, solve, W, kl, gain, curvature: [det / large, large] };
}

const circle = (count) =>
  Array.from({ length: count }, (_, i) => (2 * Math.PI * i) / count).map((a) => [Math.cos(a), Math.sin(a)]);

const times = (factor, [x, y]) => [factor * x, factor * y];

// t with KL(old ‖ new) = δ at t times this point of the ellipse.
function extent({ kl }, point, delta, halvings = 60) {
  let [low, high] = [0, 1];
  while (kl(times(high, point)) < delta) high *= 2;
  for (let i = 0; i < halvings; i += 1) {
    const middle = (low + high) / 2;
    if (kl(times(middle, point)) < delta) low = middle;
    else high = middle;
  }
  return (low + high) / 2;
}

function lineSearch({ kl, gain }, step, delta) {
  for (let tries = 0; tries <= BACKTRACKS; tries += 1) {
    const share = SHRINK ** tries;
    const shorter = times(share, step);
    if (kl(shorter) <= delta && gain(shorter) > 0) {
      return { share, kl: kl(shorter), gain: gain(shorter) };
    }
  }
  return { share: 0, kl: 0, gain: 0 };
}

const ellipse = (policy, delta, count) =>
  circle(count).map((point) => times(Math.sqrt(2 * delta), policy.W(point)));

export function numbers(state) {
  const { delta } = state;
  const policy = policyOf(state);
  const { p, J, g, F, solve, kl, gain, curvature } = policy;
  const stretch = (direction) =>
    times(Math.sqrt((2 * delta) / dot(direction, F(direction))), direction);
  const measured = (step) => ({ step, kl: kl(step), promised: dot(g, step), gain: gain(step) });
  const gradient = measured(stretch(g));
  const natural = measured(stretch(solve(g)));
  const largest = Math.max(...natural.step.map(Math.abs), Math.hypot(...gradient.step));
  return {
    p,
    value: J,
    curvature,
    gradient,
    natural,
    searched: lineSearch(policy, natural.step, delta),
    region: ellipse(policy, delta, DIRECTIONS).map((point) => extent(policy, point, delta)),
    reach: REACHES.find((r) => r >= 1.15 * largest) ?? REACHES.at(-1),
  };
}

// --- the sentence ----------------------------------------------------------------------------

const gained = (value) => (value < 0 ? "−" : "") + significant(Math.abs(value), 3);
const chance = (p) => (p >= 0.0005 ? fixed(p, 3) : significant(p, 2));

export function sentence(state) {
  const { delta } = state;
  const { p, natural, gradient, searched: taken } = numbers(state);
  const ratio = natural.kl / delta;
  const verdict =
    Math.abs(ratio - 1) < CLOSE
      ? `the model is good here${taken.share < 1 ? ", the step just too long" : ""}`
    : ratio > 1 ? `${significant(ratio, 2)} times what the model says`
    : `only ${significant(ratio, 2)} of what the model says`;
  const after =
    taken.share === 1 ? "A line search takes the whole of it."
    : taken.share === 0 ? "A line search finds no part of it acceptable: the policy stays."
    : `A line search takes ${fixed(taken.share, 2)} of it: ${significant(taken.kl, 3)} nats, `
      + `${gained(taken.gain)} points.`;
  return (
    `p = (${p.map(chance).join(", ")}), radius ${brief(delta)} nats. `
    + `The natural step really has ${significant(natural.kl, 3)} nats (${verdict}) and `
    + `gains ${gained(natural.gain)} points; the gradient step, as long in the model, `
    + `${significant(gradient.kl, 3)} nats and ${gained(gradient.gain)} points. ${after}`
  );
}

const note = () =>
  "Candidates 0, 1, 2 earn 5, 4 and 3 points; token 2's logit stays 0. Shaded: the KL is "
  + "really at most δ. Both steps are stretched to δ in the quadratic model. Line search: "
  + "the whole step, then 0.8, 0.64 … of it, until the KL is at most δ (0.8 is customary; "
  + "the δ of Schulman et al. 2015 is 0.01 per state).";

// --- the picture -----------------------------------------------------------------------------

const INK = { color: "var(--ink)", shape: "square" };
const BLUE = { color: "var(--series-1)", shape: "disc" };
const ORANGE = { color: "var(--series-2)", shape: "triangle" };
const LOOKS = { gradient: INK, natural: BLUE, searched: ORANGE };

function mark({ color, shape }, x, y, r = 5.5) {
  const look = { fill: color, stroke: "var(--paper)", "stroke-width": 1.2 };
  if (shape === "disc") return svg("circle", { cx: x, cy: y, r, ...look });
  if (shape === "square") {
    return svg("rect", { x: x - r, y: y - r, width: 2 * r, height: 2 * r, ...look });
  }
  const points = `${x},${y - 1.2 * r} ${x - 1.2 * r},${y + 0.9 * r} ${x + 1.2 * r},${y + 0.9 * r}`;
  return svg("polygon", { points, ...look });
}

const LEGEND = [
  ["the true KL is at most δ", (x, y) => svg("rect", {
    x, y: y - 5, width: 24, height: 10, fill: "var(--series-1)", "fill-opacity": 0.2,
    stroke: "var(--series-1)",
  })],
  ["its quadratic model", (x, y) => line(x, y, x + 24, y, {
    stroke: "var(--series-1)", "stroke-width": 1.8, "stroke-dasharray": "6 4",
  })],
  ["same length in parameters", (x, y) => line(x, y, x + 24, y, {
    stroke: "var(--ink)", "stroke-width": 1.8, "stroke-dasharray": "1.5 4",
  })],
];

// Entries side by side where there is room; returns the height used too.
function legend(left, right, top) {
  const parts = [];
  let [x, y] = [left, top];
  for (const [words, sample] of LEGEND) {
    const room = 48 + 6.9 * words.length;
    if (x > left && x + room > right + 14) [x, y] = [left, y + 19];
    parts.push(sample(x, y), text(x + 31, y + 4.5, words));
    x += room;
  }
  return { parts, bottom: y + 14 };
}

function plane(state, n, box) {
  const { left, top, width, height } = box;
  const unit = height / 2 / n.reach;
  const [cx, cy] = [left + width / 2, top + height / 2];
  const at = ([x, y]) => [cx + unit * x, cy - unit * y];
  const outline = (points) => points.map((point) => at(point).map((v) => v.toFixed(1)).join(",")).join(" ");
  const wide = width / 2 / unit;
  const policy = policyOf(state);
  const round = ellipse(policy, state.delta, POINTS);
  // far outside the frame nobody sees where it ends
  const far = 40 * n.reach;
  const near = (point) => times(Math.min(1, far / Math.hypot(...point)), point);
  const region = round.map((point) => times(extent(policy, point, state.delta, 24), point));
  const radius = unit * Math.hypot(...n.gradient.step);
  const clip = svg(
    "defs", {}, svg("clipPath", { id: "plane" }, svg("rect", { x: left, y: top, width, height })),
  );
  const thin = { fill: "none", "stroke-width": 1.8 };
  const inside = svg("g", { "clip-path": "url(#plane)" },
    svg("polygon", {
      points: outline(region.map(near)), fill: "var(--series-1)", "fill-opacity": 0.2,
      stroke: "var(--series-1)",
    }),
    svg("polygon", {
      points: outline(round.map(near)), stroke: "var(--series-1)", "stroke-dasharray": "6 4", ...thin,
    }),
    svg("circle", { cx, cy, r: radius, stroke: "var(--ink)", "stroke-dasharray": "1.5 4", ...thin }));
  const steps = ["gradient", "natural"].flatMap((name) => {
    const [x, y] = at(n[name].step);
    const halo = line(cx, cy, x, y, { stroke: "var(--paper)", "stroke-width": 5 });
    return [halo, line(cx, cy, x, y, { stroke: LOOKS[name].color, "stroke-width": 2.4 })];
  });
  // the larger square is seen under the disc where both steps agree
  const marks = ["gradient", "natural"].map((name, i) => mark(LOOKS[name], ...at(n[name].step), 6.5 - i));
  if (n.searched.share > 0 && n.searched.share < 1) {
    marks.push(mark(ORANGE, ...at(times(n.searched.share, n.natural.step))));
  }
  const bottom = top + height;
  const axes = [
    ...ticks(-wide, wide, width < 400 ? 4 : 9).flatMap(({ value, label }) => [
      line(cx + unit * value, top, cx + unit * value, bottom, { stroke: "var(--grid)" }),
      text(cx + unit * value, bottom + 18, label, { anchor: "middle" }),
    ]),
    ...ticks(-n.reach, n.reach, 5).flatMap(({ value, label }) => [
      line(left, cy - unit * value, left + width, cy - unit * value, { stroke: "var(--grid)" }),
      text(left - 7, cy - unit * value + 4.5, label, { anchor: "end" }),
    ]),
  ];
  const cross = { stroke: "var(--ink)", "stroke-width": 1.8 };
  return [
    clip,
    ...axes,
    inside,
    svg("rect", { x: left, y: top, width, height, fill: "none", stroke: "var(--line)" }),
    ...steps,
    line(cx - 6, cy, cx + 6, cy, cross),
    line(cx, cy - 6, cx, cy + 6, cross),
    ...marks,
    text(left + width / 2, bottom + 38, "change of logit 0 (nats)", { anchor: "middle" }),
    text(0, top - 11, "change of logit 1 (nats)"),
  ];
}

function rows(n) {
  const made = [["gradient", "gradient step"], ["natural", "natural step"]].map(([look, words]) => [
    look, words, [significant(n[look].kl, 3), gained(n[look].promised), gained(n[look].gain)],
  ]);
  const { share, kl, gain } = n.searched;
  const part = share === 1 ? "all" : fixed(share, 2);
  return [
    ...made,
    share === 0
      ? ["searched", "line search: none of it", ["0", "–", "0"]]
      : ["searched", `line search: ${part} of it`, [significant(kl, 3), "–", gained(gain)]],
  ];
}

function table(n, left, right, top) {
  const narrow = right - left < 480;
  const words = narrow ? ["true KL", "promised", "gain"] : ["true KL (nats)", "promised gain", "true gain"];
  const columns = narrow
    ? [right - 2 * 78, right - 78, right]
    : [left + 0.6 * (right - left), left + 0.8 * (right - left), right];
  const parts = words.map((label, i) => text(columns[i], top, label, { anchor: "end", fill: "var(--soft)" }));
  parts.push(line(left, top + 8, right, top + 8, { stroke: "var(--grid)" }));
  let y = top + 27;
  for (const [look, name, values] of rows(n)) {
    parts.push(mark(LOOKS[look], left + 7, y - 4.5), text(left + 20, y, name));
    if (narrow) y += 18; // the numbers get a line of their own
    values.forEach((value, i) => parts.push(text(columns[i], y, value, { anchor: "end" })));
    y += 23;
  }
  return { parts, bottom: y - 8 };
}

function about(state, n) {
  const place = ([x, y]) => `(${fixed(x, 2)}, ${fixed(y, 2)})`;
  const round = ellipse(policyOf(state), state.delta, 4).map(place);
  const [least, most] = [Math.min(...n.region), Math.max(...n.region)];
  return (
    "The plane of two logits. Around the policy: the region where the true KL is at most "
    + `${brief(state.delta)} nats; its model, an ellipse through ${round.join(", ")}; and a circle of radius `
    + `${fixed(Math.hypot(...n.gradient.step), 2)}, the gradient step's length. The true region reaches from `
    + `${fixed(least, 2)} to ${fixed(most, 2)} times as far as the ellipse. The gradient step goes to `
    + `${place(n.gradient.step)} and is promised ${gained(n.gradient.promised)} points, the natural step to `
    + `${place(n.natural.step)}, promised ${gained(n.natural.promised)}.`
  );
}

function draw(state, { width }) {
  const n = numbers(state);
  const [left, right] = [46, width - 10];
  const title = text(0, 13, width < 400 ? "Steps of δ nats" : "Steps of δ nats, in the plane of two logits", { bold: true });
  const names = legend(0, right, 32);
  const box = { left, top: names.bottom + 25, width: right - left, height: Math.min(right - left, 348) };
  const numbersBelow = table(n, 0, right, box.top + box.height + 70);
  return picture(
    width,
    numbersBelow.bottom + 8,
    about(state, n),
    title,
    ...names.parts,
    ...plane(state, n, box),
    ...numbersBelow.parts,
  );
}

export default widget({ title: "Trust region", draw, sentence, note });
