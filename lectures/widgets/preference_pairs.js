// Preference pairs: what gradient steps on comparisons do to the answers themselves.
// The logits of four answers are features · θ, so a pair's push is its loss's slope times the
// difference of two rows.
import { brief, fixed, line, picture, significant, svg, text, ticks, widget } from "./base.js";

const MOST = 400; // steps of every run
const SHOWN = [0, 10, 50, 100, 200, 400]; // steps, in `numbers`
const RATES = { dpo: 1, ipo: 0.02 };
const START = 0.25;
const DEAF = 1 + 1e-12; // to the last bits, where a number lies on the edge of rounding

const FREE = {
  answers: ["a", "b", "c", "d"],
  features: [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]],
};
const SHARED = {
  answers: ["aa", "ab", "ba", "bb"],
  features: [[2, 0], [1, 1], [1, 1], [0, 2]], // how often a and b stand in the answer
};
const CASES = {
  one: { ...FREE, pairs: [[0, 1]] },
  overlap: { ...FREE, pairs: [[0, 1], [2, 0]] },
  shared: { ...SHARED, pairs: [[1, 0]] },
  split: { ...FREE, pairs: [[0, 1], [0, 1], [1, 0]] },
  cycle: { ...FREE, pairs: [[0, 1], [1, 2], [2, 0]] },
};

const mean = (values) => values.reduce((sum, x) => sum + x, 0) / values.length;
const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

// log(1 + eˣ), finite far out
const softplus = (x) => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));

// A pair's loss at the gap g of the log-ratios, and its slope there.
const LOSSES = {
  dpo: (g, beta) => [softplus(-beta * g), -beta / (1 + Math.exp(beta * g))],
  ipo: (g, tau) => [(g - 1 / (2 * tau)) ** 2, 2 * (g - 1 / (2 * tau))],
};

// The start and every step of the run: { probs, chosen, rejected, gap, loss }.
function descent({ pairs: name, loss, strength }) {
  const { pairs, features } = CASES[name];
  const apart = pairs.map(([w, l]) => features[w].map((x, k) => x - features[l][k]));
  let theta = features[0].map(() => 0);
  const stands = [];
  for (let step = 0; step <= MOST; step += 1) {
    const logits = features.map((row) => dot(row, theta));
    const top = Math.max(...logits);
    const total = top + Math.log(logits.reduce((sum, x) => sum + Math.exp(x - top), 0));
    const logp = logits.map((x) => x - total);
    const gaps = apart.map((row) => dot(row, theta)); // the reference is uniform
    const found = gaps.map((gap) => LOSSES[loss](gap, strength));
    stands.push({
      probs: logp.map(Math.exp),
      chosen: mean(pairs.map(([w]) => logp[w])),
      rejected: mean(pairs.map(([, l]) => logp[l])),
      gap: gaps[0],
      loss: mean(found.map(([value]) => value)),
    });
    theta = theta.map((x, k) => x - RATES[loss] * mean(found.map(([, slope], i) => slope * apart[i][k])));
  }
  return stands;
}

// Where the first pair's gap ends, nats; null: it grows without end.
function limit({ pairs, loss, strength }) {
  if (pairs === "cycle") return 0;
  if (loss === "ipo") return 1 / (2 * strength) / (pairs === "split" ? 3 : 1);
  return pairs === "split" ? Math.log(2) / strength : null;
}

function numbersOf(state, stands) {
  const now = stands[state.steps];
  const [first] = stands;
  return {
    probs: now.probs,
    chosen: [first.chosen, now.chosen],
    rejected: [first.rejected, now.rejected],
    gap: now.gap,
    end: limit(state),
    loss: [first.loss, now.loss],
    curves: Object.fromEntries(
      ["chosen", "rejected", "loss"].map((key) => [key, SHOWN.map((step) => stands[step][key])]),
    ),
  };
}

export const numbers = (state) => numbersOf(state, descent(state));

// --- words -------------------------------------------------------------------------------------

const NAMES = { dpo: "DPO, β", ipo: "IPO, τ" };
const chance = (p) => (p >= 0.01 ? fixed(p, 3) : significant(p, 2));
const stepsInWords = (steps) => (steps === 1 ? "1 step" : `${steps} steps`);

// How often this answer was chosen and rejected.
function role({ pairs }, answer) {
  const told = ["chosen", "rejected"].flatMap((verb, side) => {
    const count = pairs.filter((pair) => pair[side] === answer).length;
    return count ? [`${verb} ${count === 1 ? "once" : "twice"}`] : [];
  });
  return told.join(", ") || "in no pair";
}

function verdict(state, found) {
  const { answers, pairs } = CASES[state.pairs];
  if (state.steps === 0) return "Nothing has been learned yet.";
  if (state.pairs === "cycle") return "Nothing moves: the pushes of the three pairs cancel.";
  const [old, chosen] = found.chosen;
  const rejected = found.rejected[1];
  const top = found.probs.indexOf(Math.max(...found.probs));
  const what =
    chosen < old
      ? `Both fell: chosen answers from ${fixed(old, 2)} to ${fixed(chosen, 2)} nats on ` +
        `average, rejected ones to ${fixed(rejected, 2)}. The probability went to ` +
        `${answers[top]} (${role(CASES[state.pairs], top)}).`
      : `Chosen answers rose from ${fixed(old, 2)} to ${fixed(chosen, 2)} nats on average, ` +
        `rejected ones fell to ${fixed(rejected, 2)}.`;
  const [first, second] = pairs[0].map((i) => answers[i]);
  const where = found.end === null ? "it has no end" : `it ends at ${fixed(found.end * DEAF, 2)}`;
  return `${what} Gap of ${first} over ${second}: ${fixed(found.gap * DEAF, 2)} nats; ${where}.`;
}

export function sentence(state) {
  const found = numbers(state);
  const { answers } = CASES[state.pairs];
  const shown = answers.map((name, i) => `${name} ${chance(found.probs[i])}`).join(", ");
  return (
    `${NAMES[state.loss]} = ${brief(state.strength)}, ${stepsInWords(state.steps)}: ${shown} ` +
    `(0.250 each at the start). ${verdict(state, found)} Loss ${significant(found.loss[0], 3)} → ` +
    `${significant(found.loss[1], 3)}.`
  );
}

function note({ pairs }) {
  const how =
    pairs === "shared"
      ? "One logit for a and one for b, at both places: π(ab) = π(a) π(b)."
      : "One free logit per answer.";
  return (
    `${how} The start is also the reference. Gradient steps on the pairs' mean loss, ` +
    "learning rate 1 (DPO) or 0.02 (IPO). The gap is that of the log-ratios. DPO: Rafailov " +
    "et al. 2023, eq. 7; IPO: Azar et al. 2023, eq. 17."
  );
}

// --- the picture -------------------------------------------------------------------------------

const BLUE = { stroke: "var(--positive)", "stroke-width": 2.2, fill: "none" };
const ORANGE = {
  stroke: "var(--negative)", "stroke-width": 2.2, "stroke-dasharray": "7 4", fill: "none",
};
const BLACK = { stroke: "var(--ink)", "stroke-width": 2, fill: "none" };
const DOTTED = { stroke: "var(--ink)", "stroke-width": 1.6, "stroke-dasharray": "1.6 3.4" };

function layout(width) {
  if (width >= 560) {
    const middle = Math.round(width * 0.46);
    const second = { left: middle + 74, right: width - 14 };
    return {
      bars: { left: 36, right: middle, top: 52, height: 440 },
      lines: { ...second, top: 52, height: 260 },
      loss: { ...second, top: 378, height: 114 },
      height: 538,
    };
  }
  const both = { left: 44, right: width - 14 };
  return {
    bars: { ...both, left: 36, top: 52, height: 200 },
    lines: { ...both, top: 360, height: 190 },
    loss: { ...both, top: 592, height: 90 },
    height: 730,
  };
}

const bottomOf = ({ top, height }) => top + height;
const border = ({ left, right, top, height }) =>
  svg("rect", { x: left, y: top, width: right - left, height, fill: "none", stroke: "var(--line)" });
const curve = (values, x, y, look) =>
  svg("polyline", {
    points: values.map((value, step) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" "),
    ...look,
  });

// ▲ or ▼ around a point
function triangle(x, y, up, size = 5) {
  const tall = up ? size : -size;
  return svg("path", {
    d: `M${x.toFixed(1)} ${(y - tall).toFixed(1)}l${size} ${1.8 * tall}h${-2 * size}z`,
    fill: `var(--${up ? "positive" : "negative"})`, stroke: "var(--paper)", "stroke-width": 0.8,
  });
}

const levels = (marks, place, y) =>
  marks.flatMap(({ value, label }) => [
    line(place.left, y(value), place.right, y(value), { stroke: "var(--grid)" }),
    text(place.left - 7, y(value) + 4.5, label, { anchor: "end" }),
  ]);

function barsPanel(state, place, found) {
  const { left, right, top, height } = place;
  const { answers, pairs } = CASES[state.pairs];
  const bottom = bottomOf(place);
  const y = (p) => bottom - (height * p) / 1.1;
  const column = (right - left) / 4;
  const x = (i) => left + column * (i + 0.5);
  const bars = found.probs.map((p, i) =>
    svg("rect", {
      x: x(i) - 0.3 * column, y: y(p), width: 0.6 * column, height: bottom - y(p),
      fill: `var(--${Math.abs(p - START) < 1e-9 ? "soft" : p > START ? "positive" : "negative"})`,
    }));
  const labels = found.probs.map((p, i) => {
    const beside = y(p) > y(START) && y(p) < y(START) + 24; // of the start's line: above it
    return text(x(i), (beside ? y(START) : y(p)) - 6, chance(p), { anchor: "middle" });
  });
  const marks = answers.flatMap((_, i) => {
    const sides = [0, 1].flatMap((side) => pairs.filter((pair) => pair[side] === i).map(() => side));
    return sides.map((side, k) => triangle(x(i) + 13 * (k - (sides.length - 1) / 2), bottom + 34, side === 0));
  });
  return [
    text(0, top - 33, `Probability after ${stepsInWords(state.steps)}`, { bold: true }),
    triangle(6, top - 17, true),
    text(16, top - 13, "chosen"),
    triangle(76, top - 17, false),
    text(86, top - 13, "rejected (per pair)"),
    line(212, top - 17, 236, top - 17, DOTTED),
    text(241, top - 13, "start"),
    ...levels([0, 0.25, 0.5, 0.75, 1].map((value) => ({ value, label: String(value) })), place, y),
    ...bars,
    border(place),
    line(left, y(START), right, y(START), DOTTED),
    ...labels,
    ...answers.map((name, i) => text(x(i), bottom + 19, name, { anchor: "middle", bold: true })),
    ...marks,
  ];
}

const stepX = ({ left, right }) => (step) => left + ((right - left) * step) / MOST;
const present = (state, place) => {
  const x = stepX(place)(state.steps);
  return line(x, place.top, x, bottomOf(place), { stroke: "var(--soft)", "stroke-width": 1.3 });
};

function linesPanel(state, place, found, stands) {
  const { left, top, height } = place;
  const x = stepX(place);
  const lowest = 1.06 * Math.min(-2, ...stands.map(({ rejected }) => rejected));
  const y = (value) => top + (height * value) / lowest;
  const head = left - 44;
  return [
    text(head, top - 33, "Mean log-probability (nats)", { bold: true }),
    line(head, top - 17, head + 22, top - 17, BLUE),
    text(head + 28, top - 13, `chosen: ${fixed(found.chosen[1], 2)}`),
    line(head + 140, top - 17, head + 162, top - 17, ORANGE),
    text(head + 168, top - 13, `rejected: ${fixed(found.rejected[1], 2)}`),
    ...levels(ticks(lowest, 0, 5), place, y),
    border(place),
    line(left, y(Math.log(START)), place.right, y(Math.log(START)), DOTTED),
    present(state, place),
    curve(stands.map(({ chosen }) => chosen), x, y, BLUE),
    curve(stands.map(({ rejected }) => rejected), x, y, ORANGE),
    triangle(x(state.steps), y(found.chosen[1]), true, 6.5),
    triangle(x(state.steps), y(found.rejected[1]), false, 6.5),
  ];
}

function lossPanel(state, place, found, stands) {
  const { left, right, top, height } = place;
  const bottom = bottomOf(place);
  const x = stepX(place);
  const losses = stands.map(({ loss }) => loss);
  const most = 1.08 * Math.max(...losses);
  const y = (value) => bottom - (height * value) / most;
  const unit = state.loss === "dpo" ? "nats" : "nats²";
  return [
    text(left - 44, top - 13, `Loss (${unit}): ${significant(found.loss[1], 3)}`, { bold: true }),
    ...levels(ticks(0, most, 3), place, y),
    border(place),
    present(state, place),
    curve(losses, x, y, BLACK),
    svg("circle", {
      cx: x(state.steps), cy: y(found.loss[1]), r: 5.5, fill: "var(--ink)", stroke: "var(--paper)",
    }),
    ...[0, 100, 200, 300, 400].flatMap((step) => [
      line(x(step), bottom, x(step), bottom + 5),
      text(x(step), bottom + 20, step, { anchor: "middle" }),
    ]),
    text((left + right) / 2, bottom + 40, "gradient steps", { anchor: "middle" }),
  ];
}

// Every bar and curve in numbers, for someone who cannot see them.
function about(state, found) {
  const kase = CASES[state.pairs];
  const bars = kase.answers.map((name, i) => `${name} (${role(kase, i)}): ${chance(found.probs[i])}`);
  const { chosen, rejected, loss } = found.curves;
  const rows = SHOWN.map((step, i) =>
    `${step}: ${fixed(chosen[i], 2)}, ${fixed(rejected[i], 2)}, ${significant(loss[i], 3)}`);
  return (
    `Probabilities after ${stepsInWords(state.steps)}, as bars around a line at 0.25. ` +
    `${bars.join(", ")}. Curves over gradient steps, mean log-probability of chosen and of rejected ` +
    `answers, and loss: ${rows.join("; ")}.`
  );
}

function draw(state, { width }) {
  const stands = descent(state);
  const found = numbersOf(state, stands);
  const place = layout(width);
  return picture(
    width,
    place.height,
    about(state, found),
    ...barsPanel(state, place.bars, found),
    ...linesPanel(state, place.lines, found, stands),
    ...lossPanel(state, place.loss, found, stands),
  );
}

export default widget({ title: "Preference pairs", draw, sentence, note });
