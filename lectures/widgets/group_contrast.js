// Group contrast: how much a prompt weighs when its answers judge each other. Rewards are 1 or 0, so
// a group is known by how many of its G answers are right, and every number is a binomial sum.
import { fixed, hatching, line, picture, significant, svg, text, ticks, widget } from "./base.js";

const NAMES = {
  grpo_0: "GRPO (ddof 0)", grpo_1: "GRPO (ddof 1)", dr_grpo: "Dr. GRPO", rloo: "RLOO",
};
const SHOWN = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99]; // of the curve, in `numbers`
const RATES = Array.from({ length: 99 }, (_, i) => (i + 1) / 100);

// What the deviation from the group's mean is multiplied by, with k of G answers right.
function scale(estimator, k, group) {
  const spread = Math.sqrt(k * (group - k)) / group; // ddof 0
  if (estimator === "grpo_0") return 1 / spread;
  if (estimator === "grpo_1") return Math.sqrt((group - 1) / group) / spread;
  return estimator === "rloo" ? group / (group - 1) : 1;
}

// Weights of a right and of a wrong answer for k = 1 … G − 1.
function answers({ estimator, group }) {
  const inside = Array.from({ length: group - 1 }, (_, i) => i + 1);
  return {
    right: inside.map((k) => (1 - k / group) * scale(estimator, k, group)),
    wrong: inside.map((k) => (-k / group) * scale(estimator, k, group)),
  };
}

const ways = (group) => {
  const list = [1];
  for (let k = 1; k <= group; k += 1) list.push((list[k - 1] * (group - k + 1)) / k);
  return list;
};
const chances = (p, group) => ways(group).map((n, k) => n * p ** k * (1 - p) ** (group - k));
const silence = (p, group) => p ** group + (1 - p) ** group;

// The factor on ∇p: the mean of A·r over the group, divided by p (1 − p), because Σ A = 0.
function weigh(state) {
  const { group } = state;
  const { right } = answers(state);
  const pairs = ways(group);
  return (p) => {
    let sum = 0;
    right.forEach((weight, i) => {
      const k = i + 1;
      sum += pairs[k] * p ** k * (1 - p) ** (group - k) * ((weight * k) / group);
    });
    return sum / (p * (1 - p));
  };
}

export function numbers(state) {
  const { p, group } = state;
  const weight = weigh(state);
  const zero = silence(p, group);
  const same = state.silent === "same";
  const shown = (rate) => weight(rate) / (same ? 1 - silence(rate, group) : 1);
  const { right, wrong } = answers(state);
  return {
    zero,
    tries: 1 / (1 - zero),
    weight: weight(p),
    if_mixed: weight(p) / (1 - zero),
    relative: shown(p) / shown(0.5),
    bound: Math.max(...right, ...wrong.map((x) => -x)),
    chances: chances(p, group),
    right,
    wrong,
    curve: SHOWN.map(shown),
  };
}

// --- words -----------------------------------------------------------------------------------

// Three digits, deaf to the last bits: 0.9999999999999999 is 1.00 in both languages.
const number = (value) => significant(value * (1 + 1e-12), 3);

// One decimal, or as many as it takes not to print a share as 0 or as 100 %.
function percent(share) {
  const rounded = (digits) => [0, 100].includes(Number(fixed(100 * share, digits)));
  let digits = 1;
  while (digits < 6 && share > 1e-9 && share < 1 - 1e-9 && rounded(digits)) digits += 1;
  return `${fixed(100 * share * (1 + 1e-12), digits)} %`;
}

const againstEven = (p, relative) => {
  if (fixed(p, 2) === "0.50") return "";
  return Math.abs(relative - 1) < 0.005
    ? "; as much as a prompt with p = 0.50"
    : `; ${number(relative)} times as much as a prompt with p = 0.50`;
};

export function sentence(state) {
  const { zero, tries, weight, if_mixed: mixed, relative, bound } = numbers(state);
  const silent =
    zero < 5e-4
      ? "practically every group has contrast"
      : `${percent(zero)} of the groups have no contrast and teach nothing`;
  const middle =
    state.silent === "kept" || zero < 5e-4
      ? `Averaged over all groups this prompt weighs ${number(weight)} × ∇p`
      : state.silent === "new"
        ? `A mixed group weighs ${number(mixed)} × ∇p, but ${percent(1 - zero)} are mixed, and the ` +
          `product is ${number(weight)} as before: new prompts in place of the others change no ` +
          "prompt's share"
        : `Sampled until its group is mixed, ${number(tries)} groups on average, it weighs ` +
          `${number(mixed)} × ∇p instead of ${number(weight)}`;
  return (
    `${NAMES[state.estimator]}, ${state.group} answers, pass rate ${fixed(state.p, 2)}: ` +
    `${silent}. ${middle}${againstEven(state.p, relative)}. ` +
    `No answer's weight can exceed ${number(bound)}.`
  );
}

const note = () =>
  "0/1 rewards, eps = 0. The expected update is the weight × ∇p [GR-3]; the dotted line is 1, as J " +
  "itself weighs. Silent, hatched: no contrast [GR-4]. GRPO: Shao et al. 2024, section 4.1, which " +
  "does not say the ddof. Dr. GRPO: Liu et al. 2025. RLOO: Ahmadian et al. 2024. New prompts: " +
  "DAPO, Yu et al. 2025, eq. 11.";

// --- the picture -----------------------------------------------------------------------------

const [LOWEST, HIGHEST] = [0.4, 60];
const LABELS = [0.5, 1, 2, 5, 10, 20, 50];
const SOFT = { fill: "var(--soft)" };

function layout(width) {
  if (width >= 560) {
    const middle = Math.round(width * 0.45);
    const right = { left: middle + 80, right: width - 10 };
    return {
      weight: { left: 42, right: middle, top: 52, height: 440 },
      counts: { ...right, top: 52, height: 180 },
      answers: { ...right, top: 310, height: 182 },
      height: 538,
    };
  }
  const both = { left: 46, right: width - 8 };
  return {
    weight: { ...both, top: 52, height: 190 },
    counts: { ...both, top: 346, height: 110 },
    answers: { ...both, top: 522, height: 120 },
    height: 688,
  };
}

const bottomOf = ({ top, height }) => top + height;
const border = ({ left, right, top, height }) =>
  svg("rect", { x: left, y: top, width: right - left, height, fill: "none", stroke: "var(--line)" });

// A title and, below it, what stands there.
const heading = ({ left, top }, title, words) => [
  text(left - 42, top - 33, title, { bold: true }),
  text(left - 42, top - 13, words, SOFT),
];

function weightPanel(state, panel, found) {
  const { left, right, top, height } = panel;
  const bottom = bottomOf(panel);
  const same = state.silent === "same";
  const weight = weigh(state);
  const x = (p) => left + (right - left) * p;
  const y = (w) => bottom - (height * Math.log(w / LOWEST)) / Math.log(HIGHEST / LOWEST);
  const path = (value, look) => {
    const points = RATES.map((p) => `${x(p).toFixed(1)},${y(value(p)).toFixed(1)}`).join(" ");
    return svg("polyline", { points, fill: "none", stroke: "var(--series-1)", ...look });
  };
  const here = same ? found.if_mixed : found.weight;
  const labels = [[0, "0"], [0.25, "0.25"], [0.5, "0.5"], [0.75, "0.75"], [1, "1"]];
  return [
    ...heading(panel, "Weight of the prompt", `p = ${fixed(state.p, 2)}: ${number(here)} × ∇p`),
    ...LABELS.flatMap((w) => [
      line(left, y(w), right, y(w), { stroke: "var(--grid)" }),
      text(left - 7, y(w) + 4.5, w, { anchor: "end" }),
    ]),
    border(panel),
    line(left, y(1), right, y(1), {
      stroke: "var(--ink)", "stroke-width": 1.6, "stroke-dasharray": "2 4",
    }),
    ...(same ? [path(weight, { "stroke-width": 1.6, "stroke-dasharray": "6 4" })] : []),
    path((p) => weight(p) / (same ? 1 - silence(p, state.group) : 1), { "stroke-width": 2.6 }),
    line(x(state.p), top, x(state.p), bottom, { stroke: "var(--soft)", "stroke-width": 1.5 }),
    svg("circle", {
      cx: x(state.p), cy: y(here), r: 6.5, fill: "var(--series-1)", stroke: "var(--paper)",
      "stroke-width": 1.5,
    }),
    ...labels.flatMap(([p, label]) => [
      line(x(p), bottom, x(p), bottom + 5),
      text(x(p), bottom + 20, label, { anchor: p === 1 ? "end" : "middle" }),
    ]),
    text((left + right) / 2, bottom + 40, "pass rate p", { anchor: "middle" }),
  ];
}

// The columns of 0 … G right answers; those without contrast are hatched.
function columns(panel, group) {
  const { left, right, top, height } = panel;
  const step = (right - left) / (group + 1);
  const x = (k) => left + step * (k + 0.5);
  const hatch = (k) =>
    svg("rect", { x: left + step * k, y: top, width: step, height, fill: "url(#hatch)" });
  return { x, step, silent: [hatch(0), hatch(group)] };
}

function countsPanel(state, panel, found) {
  const { left, right, height } = panel;
  const { group, silent } = state;
  const bottom = bottomOf(panel);
  const { x, step, silent: hatches } = columns(panel, group);
  const kept = silent === "kept";
  const shares = found.chances.map((chance, k) =>
    kept ? chance : k === 0 || k === group ? 0 : chance / (1 - found.zero));
  const most = 1.08 * Math.max(...shares);
  const y = (share) => bottom - (height * share) / most;
  const wide = Math.max(2, 0.72 * step);
  const bar = (share, k) =>
    `M${(x(k) - wide / 2).toFixed(1)} ${bottom}V${y(share).toFixed(1)}h${wide.toFixed(1)}V${bottom}z`;
  const words = kept
    ? `no contrast: ${percent(found.zero)}`
    : `the mixed ones, ${percent(1 - found.zero)} of all`;
  return [
    ...heading(panel, `Right answers among ${group} (in %)`, words),
    ...ticks(0, 100 * most, 3).flatMap(({ value, label }) => [
      line(left, y(value / 100), right, y(value / 100), { stroke: "var(--grid)" }),
      text(left - 7, y(value / 100) + 4.5, label, { anchor: "end" }),
    ]),
    ...hatches,
    border(panel),
    svg("path", { d: shares.map(bar).join(""), fill: "var(--soft)" }),
  ];
}

// ▲ or ▼, centred: part of a path.
function triangle(x, y, size, up) {
  const side = up ? size : -size;
  return `M${x.toFixed(1)} ${(y - side).toFixed(1)}l${size} ${1.8 * side}h${-2 * size}z`;
}
const triangles = (d, up) => svg("path", { d, fill: `var(--${up ? "positive" : "negative"})` });

function answersPanel(state, panel, found) {
  const { left, right, top, height } = panel;
  const { group } = state;
  const bottom = bottomOf(panel);
  const { x, silent } = columns(panel, group);
  const most = 1.12 * found.bound;
  const y = (weight) => top + (height * (most - weight)) / (2 * most);
  const size = group <= 24 ? 4.5 : 2.6;
  const series = (values, up) => [
    svg("polyline", {
      points: values.map((value, i) => `${x(i + 1).toFixed(1)},${y(value).toFixed(1)}`).join(" "),
      fill: "none",
      stroke: `var(--${up ? "positive" : "negative"})`,
    }),
    triangles(values.map((value, i) => triangle(x(i + 1), y(value), size, up)).join(""), up),
  ];
  const step = [1, 2, 4, 8].find((every) => group / every <= 8);
  const axis = Array.from({ length: Math.floor(group / step) + 1 }, (_, i) => i * step);
  return [
    text(left - 42, top - 33, "Weight of one answer", { bold: true }),
    triangles(triangle(left - 35, top - 17, 4.5, true), true),
    text(left - 24, top - 13, "right", SOFT),
    triangles(triangle(left + 23, top - 17, 4.5, false), false),
    text(left + 34, top - 13, `wrong; largest ${number(found.bound)}`, SOFT),
    ...ticks(-most, most, 4).flatMap(({ value, label }) => [
      line(left, y(value), right, y(value), { stroke: "var(--grid)" }),
      text(left - 7, y(value) + 4.5, label, { anchor: "end" }),
    ]),
    ...silent,
    border(panel),
    line(left, y(0), right, y(0), { stroke: "var(--soft)" }),
    ...series(found.right, true),
    ...series(found.wrong, false),
    ...axis.flatMap((k) => [
      line(x(k), bottom, x(k), bottom + 5),
      text(x(k), bottom + 20, k, { anchor: "middle" }),
    ]),
    text((left + right) / 2, bottom + 40, "right answers in the group", { anchor: "middle" }),
  ];
}

// Every curve in numbers, for someone who cannot see it.
function about(state, found) {
  const { group } = state;
  const curve = SHOWN.map((p, i) => `${number(found.curve[i])} at p = ${fixed(p, 2)}`);
  const every = Math.max(1, Math.ceil(group / 8));
  const counts = found.chances
    .map((chance, k) => [k, chance])
    .filter(([k]) => k % every === 0 || k === group)
    .map(([k, chance]) => `${k} right: ${percent(chance)}`);
  const rows = found.right
    .map((weight, i) => [i + 1, weight, found.wrong[i]])
    .filter(([k]) => k === 1 || k === group - 1 || k % every === 0)
    .map(([k, right, wrong]) => `${k} right: ${fixed(right, 2)} and ${fixed(wrong, 2)}`);
  return (
    `Weight of the prompt on a logarithmic scale against the pass rate: ${curve.join(", ")}. ` +
    `Chance of each number of right answers: ${counts.join(", ")}. Weight of a right and of a ` +
    `wrong answer: ${rows.join(", ")}; no weight where none or all are right.`
  );
}

function draw(state, { width }) {
  const found = numbers(state);
  const place = layout(width);
  return picture(
    width,
    place.height,
    about(state, found),
    hatching(),
    ...weightPanel(state, place.weight, found),
    ...countsPanel(state, place.counts, found),
    ...answersPanel(state, place.answers, found),
  );
}

export default widget({ title: "Group contrast", draw, sentence, note });
