// Baseline and variance: what subtracting a number from the reward does to one answer's gradient.
//
// Lecture 02, [BL-3] to [BL-5] and [BL-13], on the sorter of the prompt (1, 0, 2) and on two arms.
// Everything is a sum over all responses. Each family is prepared once (its curves against the
// skill), so a move of a slider costs one enumeration of 27 responses.
// Leaves out: sampling, groups of answers, and baselines that differ from token to token.
import { fixed, line, picture, significant, spread, svg, text, ticks, widget } from "./base.js";
import { enumerate, norm, moments, squaredScore } from "./exact.js";
import { isRight, partialCredit, skilledTable } from "./sorter.js";

const MOST_SKILL = 6;
const SKILLS = Array.from({ length: 61 }, (_, i) => i / 10);

const FAMILIES = {
  binary: { name: "Right or wrong", reward: (tokens) => Number(isRight(tokens)) },
  graded: { name: "Partial credit", reward: partialCredit },
  arms: { name: "Two arms" },
};

// --- mathematics ---------------------------------------------------------------------------

// Every answer as { prob, reward, square, right }, square = ‖u‖², and the squared length of ∇J.
function answers(reward, skill) {
  if (reward === "arms") {
    const p = 1 / (1 + Math.exp(-skill)); // one logit: u is 1 − p for the right arm, −p for the other
    const list = [
      { prob: p, reward: 1, square: (1 - p) ** 2, right: true },
      { prob: 1 - p, reward: 0, square: p ** 2, right: false },
    ];
    return { list, signal: (p * (1 - p)) ** 2 };
  }
  const policy = enumerate({ table: skilledTable(skill), length: 3 });
  const points = policy.responses.map(({ tokens }) => FAMILIES[reward].reward(tokens));
  const list = policy.responses.map((response, i) => ({
    prob: response.prob,
    reward: points[i],
    square: squaredScore(policy, response),
    right: isRight(response.tokens),
  }));
  const gradient = moments(policy, (_, i) => [points[i], points[i], points[i]]).mean;
  return { list, signal: norm(gradient) ** 2 };
}

const sum = (list, value) => list.reduce((total, answer) => total + value(answer), 0);

// What the picture shows of one policy: V, b*, the variance with 0, V, b* or any b subtracted.
function analyse(reward, skill) {
  const { list, signal } = answers(reward, skill);
  const size = sum(list, ({ prob, square }) => prob * square); // E‖u‖²
  const mean = sum(list, ({ prob, reward: r }) => prob * r);
  const best = sum(list, ({ prob, reward: r, square }) => prob * square * r) / size;
  const variance = (b) =>
    sum(list, ({ prob, reward: r, square }) => prob * (r - b) ** 2 * square) - signal;
  return { list, size, mean, best, variance };
}

// The skill from which on V is worse than nothing, V ≥ 2b*: null where that never happens.
function crossing(reward) {
  const excess = (skill) => {
    const { mean, best } = analyse(reward, skill);
    return mean - 2 * best;
  };
  if (excess(MOST_SKILL) < 0) return null;
  let [low, high] = [0, MOST_SKILL];
  for (let i = 0; i < 50; i += 1) {
    const middle = (low + high) / 2;
    if (excess(middle) < 0) low = middle;
    else high = middle;
  }
  return high;
}

// The curves against the skill do not depend on the state, only on the family.
const prepared = {};
function family(reward) {
  prepared[reward] ??= (() => {
    const points = SKILLS.map((skill) => {
      const { list, mean, best, variance } = analyse(reward, skill);
      const pass_rate = sum(list, ({ prob, right }) => (right ? prob : 0));
      return { skill, pass_rate, variances: [0, mean, best].map(variance) };
    });
    const skill = crossing(reward);
    const pass_rate =
      skill === null
        ? null
        : sum(answers(reward, skill).list, ({ prob, right }) => (right ? prob : 0));
    return { points, crossing: { skill, pass_rate } };
  })();
  return prepared[reward];
}

export function numbers({ reward, skill, baseline }) {
  const { list, size, mean, best, variance } = analyse(reward, skill);
  const levels = [...new Set(list.map((answer) => answer.reward))].sort((a, b) => a - b);
  const share = (chosen, value) => sum(list.filter(chosen), value);
  const { points, crossing: flip } = family(reward);
  return {
    pass_rate: share(({ right }) => right, ({ prob }) => prob),
    mean,
    best,
    variance: {
      none: variance(0), mean: variance(mean), best: variance(best), own: variance(baseline),
    },
    score_square: size,
    levels: levels.map((level) => ({
      reward: level,
      answers: share(({ reward: r }) => r === level, ({ prob }) => prob),
      squares: share(({ reward: r }) => r === level, ({ prob, square }) => prob * square) / size,
    })),
    right_squares: share(({ right }) => right, ({ prob, square }) => prob * square) / size,
    crossing: flip,
    sweep: points.filter((_, i) => i % 10 === 0).map(({ variances }) => variances), // whole skills
  };
}

// A probability with two decimals, or as many as it takes not to be rounded to 0 or to 1.
function rate(value) {
  const rounded = (digits) => [0, 1].includes(Number(fixed(value, digits)));
  let digits = 2;
  while (digits < 8 && value > 1e-9 && value < 1 - 1e-9 && rounded(digits)) digits += 1;
  return fixed(value, digits);
}

export function sentence(state) {
  const found = numbers(state);
  const { pass_rate: p, mean, best, variance, right_squares: held } = found;
  const times = variance.mean > 1e-12 ? variance.none / variance.mean : Infinity;
  const verdict =
    times === Infinity ? "the mean removes all of it"
    : Math.abs(times - 1) < 0.005 ? "the mean is as good as nothing"
    : times > 1 ? `the mean is ${significant(times, 3)} times better than nothing`
    : `the mean is ${significant(1 / times, 3)} times worse than nothing`;
  const side =
    Math.abs(best - mean) < 0.005 ? "close to V" : best < mean ? "below V" : "above V";
  return (
    `${FAMILIES[state.reward].name}, pass rate ${rate(p)}: the variance is ` +
    `${significant(variance.none, 3)} without a baseline and ${significant(variance.mean, 3)} ` +
    `with the mean reward V = ${rate(mean)} subtracted; here ${verdict}. ` +
    `The best constant, b* = ${rate(best)}, gives ${significant(variance.best, 3)}; your ` +
    `b = ${fixed(state.baseline, 2)} gives ${significant(variance.own, 3)}. ` +
    `Right answers are ${fixed(100 * p, 1)} % of all answers and hold ${fixed(100 * held, 1)} % ` +
    `of the squared length of the score vectors${state.reward === "graded" ? ";" : ":"} b* lies ${side}.`
  );
}

const note = ({ reward }) =>
  (reward === "arms"
    ? "Two arms, one logit k: the right arm pays 1, the other 0; b* leaves no variance. "
    : "Sort (1, 0, 2): nine logits; the skill adds k nats to those of the right tokens. ") +
  "Variance: trace of the covariance of (R − b) u, where u = ∇ log π of the answer. " +
  "[BL-4]; Greensmith, Bartlett and Baxter 2004 study b* for policy gradients.";

const react = (key, { reward }) =>
  key === "reward" ? { baseline: reward === "graded" ? 4.5 : 0.3 } : {};

// --- drawing -------------------------------------------------------------------------------

const LEFT = 56;
const RIGHT_MARGIN = 14;
const CURVE = { top: 70, height: 160 };
const SHARES = { top: 286, height: 84 };
const SWEEP = { top: 470, height: 120 };
const HEIGHT = SWEEP.top + SWEEP.height + 44;
const RANGE = { binary: [-0.25, 1.25], arms: [-0.25, 1.25], graded: [-0.5, 6] };
const DECADES = { binary: [-6, 0], arms: [-8, 0], graded: [-3, 2] };
const NONE = { color: "var(--ink)", short: "none", long: "no baseline" };
const MEAN = { color: "var(--series-3)", dash: "8 3 2 3", sides: 4, short: "V", long: "mean V" };
const BEST = { color: "var(--series-4)", dash: "5 4", sides: 3, short: "b*", long: "best b*" };
const OWN = { color: "var(--ink)", ring: true, short: "yours" };
const LOOKS = [NONE, MEAN, BEST, OWN];

// A circle, a regular polygon or a ring, so that the baselines differ without colour.
function mark({ color, sides, ring }, x, y) {
  if (ring) {
    return svg("circle", { cx: x, cy: y, r: 9, fill: "none", stroke: color, "stroke-width": 2 });
  }
  const outline = { fill: color, stroke: "var(--paper)", "stroke-width": 1 };
  if (!sides) return svg("circle", { cx: x, cy: y, r: 5.5, ...outline });
  const corner = (_, i) => {
    const angle = (2 * Math.PI * i) / sides - Math.PI / 2;
    return `${(x + 7 * Math.cos(angle)).toFixed(1)},${(y + 7 * Math.sin(angle)).toFixed(1)}`;
  };
  return svg("polygon", { points: Array.from({ length: sides }, corner).join(" "), ...outline });
}

const frame = ({ left, right }, { top, height }) =>
  svg("rect", { x: left, y: top, width: right - left, height, fill: "none", stroke: "var(--line)" });

const stroke = ({ color, dash }, width = 1.3) =>
  ({ stroke: color, "stroke-width": width, "stroke-dasharray": dash });

// A panel's title and legend: side by side, or below each other where there is no room.
function heading({ left, roomy }, { top }, title, items) {
  const y = roomy ? top - 12 : top - 10;
  let at = roomy ? left + 214 : 0;
  return [
    text(roomy ? left : 0, roomy ? y : y - 19, title, { bold: true, halo: true }),
    ...items.flatMap(({ sample, words, room }) => {
      const x = at;
      at += room;
      return [...sample(x, y - 4.5), text(x + 30, y, words, { halo: true })];
    }),
  ];
}

// The smallest of 1, 1.5, 2, 3, … times a power of ten that leaves room above `value`.
function roundTop(value) {
  const power = 10 ** Math.floor(Math.log10(value * 1.1));
  return power * [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((factor) => factor * power >= value * 1.1);
}

// The parabola with its four marks; the labels stand above the panel, where they cannot meet.
function curvePanel(plot, found, baseline) {
  const { variance, score_square: size, mean, best } = found;
  const marks = [
    [0, variance.none], [mean, variance.mean], [best, variance.best], [baseline, variance.own],
  ];
  const { x, left, right, low, high, roomy } = plot;
  const top = roundTop(Math.max(...marks.map(([, value]) => value)));
  const y = (value) => CURVE.top + CURVE.height * (1 - value / top);
  const reach = Math.sqrt((top - variance.best) / size); // where the parabola leaves the panel
  const [from, to] = [Math.max(low, best - reach), Math.min(high, best + reach)];
  const points = Array.from({ length: 81 }, (_, i) => {
    const b = from + ((to - from) * i) / 80;
    return `${x(b).toFixed(1)},${y(variance.best + size * (b - best) ** 2).toFixed(1)}`;
  });
  const order = [0, 1, 2, 3].sort((i, j) => marks[i][0] - marks[j][0] || i - j);
  const [gap, edge] = roomy ? [100, 46] : [59, 24];
  const spots = spread(order.map((i) => x(marks[i][0])), gap, left + edge - 10, right - edge + 10);
  const titles = roomy
    ? [NONE.long, `V = ${rate(mean)}`, `b* = ${rate(best)}`, `your b = ${fixed(baseline, 2)}`]
    : LOOKS.map(({ short }) => short);
  return [
    text(roomy ? left : 0, 13, "Variance of one answer’s gradient", { bold: true }),
    ...ticks(0, top, 4).flatMap(({ value, label }) => [
      line(left, y(value), right, y(value), { stroke: "var(--grid)" }),
      text(left - 7, y(value) + 4.5, label, { anchor: "end" }),
    ]),
    frame(plot, CURVE),
    svg("polyline", { points: points.join(" "), fill: "none", ...stroke(NONE, 2) }),
    ...order.flatMap((i, place) => {
      const [b, value] = marks[i];
      const at = spots[place];
      return [
        line(at, CURVE.top - 14, x(b), CURVE.top, stroke({ color: LOOKS[i].color })),
        line(x(b), CURVE.top, x(b), y(value), stroke(LOOKS[i])),
        text(at, CURVE.top - 34, titles[i], { anchor: "middle", bold: true }),
        text(at, CURVE.top - 18, significant(value, roomy ? 3 : 2), {
          anchor: "middle", "font-size": roomy ? 13 : 12,
        }),
      ];
    }),
    ...marks.map(([b, value], i) => mark(LOOKS[i], x(b), y(value))),
  ];
}

// Two averages of the same rewards: the bars balance at V and at b*.
function sharesPanel(plot, found) {
  const { x, left, right, roomy, low, high } = plot;
  const bottom = SHARES.top + SHARES.height;
  const wide = Math.min(26, 0.42 * (x(1) - x(0)));
  const ink = ({ color }, hollow) =>
    ({ fill: hollow ? "var(--paper)" : color, stroke: color, "stroke-width": 2 });
  const bar = (at, share, look, hollow) => {
    const tall = share * (SHARES.height - 20);
    const percent =
      100 * share < 0.5 ? "<1"
      : 100 * share >= 99.5 && 100 * share < 100 - 1e-9 ? ">99"
      : fixed(100 * share, 0);
    const label = roomy ? `${percent} %` : percent.length > 2 ? "" : percent; // no room for three
    const box = { x: at - wide / 2 + 2, y: bottom - tall, width: wide - 4, height: tall };
    return [
      svg("rect", { ...box, ...ink(look, hollow) }),
      text(at, bottom - tall - 5, label, {
        anchor: "middle", halo: true, "font-size": roomy ? 12 : 11,
      }),
    ];
  };
  const swatch = (look, hollow) => (at, y) =>
    [svg("rect", { x: at + 12, y: y - 5, width: 11, height: 11, ...ink(look, hollow) })];
  const below = CURVE.top + CURVE.height; // the curve's panel; the words between stay free
  const follow = (look, b) => [
    line(x(b), below, x(b), below + 10, stroke(look)),
    line(x(b), SHARES.top, x(b), bottom, stroke(look)),
  ];
  return [
    ...follow(MEAN, found.mean),
    ...follow(BEST, found.best),
    ...heading(plot, SHARES, roomy ? "Two averages of the rewards" : "Two averages (shares in %)", [
      { sample: swatch(MEAN, false), words: roomy ? "by frequency: V" : "frequency: V", room: roomy ? 142 : 122 },
      { sample: swatch(BEST, true), words: roomy ? "by squared length ‖u‖²: b*" : "by ‖u‖²: b*", room: 0 },
    ]),
    frame(plot, SHARES),
    ...found.levels.flatMap(({ reward, answers: often, squares }) => [
      ...bar(x(reward) - wide * 0.6, often, MEAN, false),
      ...bar(x(reward) + wide * 0.6, squares, BEST, true),
    ]),
    mark(MEAN, x(found.mean), bottom),
    mark(BEST, x(found.best), bottom),
    ...ticks(low, high, roomy ? 8 : 4).flatMap(({ value, label }) => [
      line(x(value), bottom, x(value), bottom + 5),
      text(x(value), bottom + 21, label, { anchor: "middle" }),
    ]),
    text((left + right) / 2, bottom + 40, "baseline b, reward R (points)", { anchor: "middle" }),
  ];
}

// 10 to a whole power ≤ 2 as a tick label.
const decade = (power) => (power >= -2 ? String(10 ** power) : `10⁻${"⁰¹²³⁴⁵⁶⁷⁸⁹"[-power]}`);

// The three baselines against the skill, on a logarithmic axis, with the present skill marked.
function sweepPanel(plot, reward, skill, found) {
  const { left, right, roomy } = plot;
  const [least, most] = DECADES[reward];
  const bottom = SWEEP.top + SWEEP.height;
  const x = (k) => left + ((right - left) * k) / MOST_SKILL;
  const y = (value) => SWEEP.top + (SWEEP.height * (most - Math.log10(value))) / (most - least);
  const inside = (value) => value > 0 && y(value) <= bottom;
  const rows = family(reward).points;
  const curve = (i) => {
    const seen = rows.filter(({ variances }) => inside(variances[i]));
    const points = seen.map((row) => `${x(row.skill).toFixed(1)},${y(row.variances[i]).toFixed(1)}`);
    return svg("polyline", { points: points.join(" "), fill: "none", ...stroke(LOOKS[i], 2) });
  };
  const sample = (look) => (at, height) => [line(at, height, at + 24, height, stroke(look, 2))];
  const powers = Array.from({ length: most - least + 1 }, (_, i) => least + i);
  const { skill: flip, pass_rate: flipRate } = found.crossing;
  const verdict =
    flip === null ? "V beats no baseline at every skill"
    : roomy ? `beyond p = ${rate(flipRate)}, V is worse than no baseline`
    : `p > ${rate(flipRate)}: V is worse`;
  const start = (flip === null ? left : x(flip)) + 7; // of the verdict, which the skill's line spares
  const crossed = x(skill) > start - 4 && x(skill) < start + 4 + 6.6 * verdict.length;
  const now = [found.variance.none, found.variance.mean, found.variance.best];
  const long = roomy && reward !== "arms";
  const best = long ? BEST.long : BEST.short;
  return [
    ...heading(plot, SWEEP, "Variance against skill", [
      { sample: sample(NONE), words: long ? NONE.long : NONE.short, room: long ? 140 : 76 },
      { sample: sample(MEAN), words: roomy ? MEAN.long : MEAN.short, room: roomy ? 110 : 60 },
      { sample: sample(BEST), words: reward === "arms" ? `${best}: 0, off axis` : best, room: 0 },
    ]),
    ...powers.flatMap((power) => [
      line(left, y(10 ** power), right, y(10 ** power), { stroke: "var(--grid)" }),
      ...(most - least > 5 && power % 2 ? [] : [
        text(left - 7, y(10 ** power) + 4.5, decade(power), { anchor: "end" }),
      ]),
    ]),
    frame(plot, SWEEP),
    line(x(skill), SWEEP.top, x(skill), crossed ? bottom - 24 : bottom, {
      stroke: "var(--soft)", "stroke-width": 1.5,
    }),
    ...(flip === null ? [] : [
      line(x(flip), SWEEP.top, x(flip), bottom, { stroke: "var(--soft)", "stroke-dasharray": "2 3" }),
    ]),
    ...[0, 1, 2].map(curve),
    text(start, bottom - 8, verdict, { halo: true, "font-size": 12 }),
    ...now.flatMap((value, i) => (inside(value) ? [mark(LOOKS[i], x(skill), y(value))] : [])),
    text(left - 20, bottom + 20, "k =", { anchor: "end" }),
    text(left - 20, bottom + 38, "p =", { anchor: "end" }),
    ...rows.filter((_, i) => i % 10 === 0).flatMap(({ skill: k, pass_rate: p }) => [
      line(x(k), bottom, x(k), bottom + 5),
      text(x(k), bottom + 20, k, { anchor: "middle" }),
      text(Math.min(x(k), right - 6), bottom + 38, rate(p), {
        anchor: "middle", "font-size": roomy ? 13 : 11,
      }),
    ]),
  ];
}

// Every curve in numbers, for someone who cannot see it.
function about({ reward, baseline }, found, low, high) {
  const { variance: v, mean, best, score_square: size } = found;
  const number = (value) => significant(value, 3);
  const parabola = [0, 0.25, 0.5, 0.75, 1].map((part) => {
    const b = low + part * (high - low);
    return `${number(v.best + size * (b - best) ** 2)} at b = ${fixed(b, 2)}`;
  });
  const marks = [["0", v.none], [`V = ${rate(mean)}`, v.mean], [`your b = ${fixed(baseline, 2)}`, v.own]]
    .map(([name, value]) => `${number(value)} at ${name}`);
  const levels = found.levels.map(({ reward: level, answers: often, squares }) =>
    `reward ${fixed(level, 0)}: ${fixed(100 * often, 1)} % and ${fixed(100 * squares, 1)} %`);
  const { points, crossing: { skill: flip, pass_rate: flipRate } } = family(reward);
  const sweep = [0, 15, 30, 45, 60].map((i) => {
    const [none, V, b] = points[i].variances.map(number);
    return `skill ${fixed(points[i].skill, 1)}, pass rate ${rate(points[i].pass_rate)}: ${none}, ${V}, ${b}`;
  });
  return (
    `Top: the variance as a parabola in the baseline b, lowest at b* = ${rate(best)} with ` +
    `${number(v.best)}; ${parabola.join(", ")}. Marked: ${marks.join(", ")}. Middle: how often each ` +
    `reward occurs, and its share of the squared length of the score vectors: ` +
    `${levels.join("; ")}. Bottom: the variance with nothing, V and b* subtracted, against the skill: ${sweep.join("; ")}. ` +
    (flip === null
      ? "V is better than nothing at every skill."
      : `V and nothing cross at skill ${fixed(flip, 2)}, pass rate ${rate(flipRate)}.`)
  );
}

function draw(state, { width }) {
  const { reward, skill, baseline } = state;
  const found = numbers(state);
  const [left, right] = [LEFT, width - RIGHT_MARGIN];
  const low = Math.min(RANGE[reward][0], baseline - 0.25);
  const high = Math.max(RANGE[reward][1], baseline + 0.25);
  const x = (b) => left + ((right - left) * (b - low)) / (high - low);
  const plot = { x, left, right, low, high, roomy: width >= 640 };
  return picture(
    width,
    HEIGHT,
    about(state, found, low, high),
    ...curvePanel(plot, found, baseline),
    ...sharesPanel(plot, found),
    ...sweepPanel(plot, reward, skill, found),
  );
}

export default widget({ title: "Baseline and variance", draw, sentence, note, react });
