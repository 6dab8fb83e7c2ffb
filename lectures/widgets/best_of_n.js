// Best of N: what choosing among N answers yields, how far it goes, and what a flawed judge does.
// The sampler of toy_models.planning.sorting_tree, its 121 answers listed.
import { brief, fixed, line, picture, significant, svg, text, ticks, widget } from "./base.js";

const PROMPT = [1, 0, 2];
const SORTED = [0, 1, 2];
const END = 3; // the token that ends an answer
const MOST = 64; // the largest N
const NS = [1, 2, 4, 8, 16, 32, 64]; // marked in the picture, and in `numbers`
const WIDE = 1e3; // β of the curve's first point: practically home
const TOLD = [0.1, 0.5, 1, 3]; // of the curve, in `numbers`
const SAME = 1e-9; // nats or points: rounding
const EVERY = Array.from({ length: MOST }, (_, i) => i + 1);

const sum = (values) => values.reduce((total, x) => total + x, 0);
const dot = (a, b) => sum(a.map((x, i) => x * b[i]));

// --- the sampler and its judge -----------------------------------------------------------------

// Every answer's numbers with its probability: at step t the right token is e^skill times as likely
// as each of the other three.
function answersOf(skill) {
  const right = [...SORTED, END];
  const found = [];
  const extend = (written, prob) => {
    const t = written.length;
    for (let token = 0; token <= END; token += 1) {
      const p = (prob * (token === right[t] ? Math.exp(skill) : 1)) / (Math.exp(skill) + 3);
      if (token === END) found.push({ written, prob: p });
      else if (t === END) found.push({ written: [...written, token], prob: p });
      else extend([...written, token], p);
    }
  };
  extend([], 1);
  return found;
}

const inPlace = (written) => SORTED.filter((number, t) => written[t] === number).length;
const inTime = (written) => written.length === SORTED.length;
const points = (written) => inPlace(written) + (inTime(written) ? 1 : 0);
const isRight = (written) => (points(written) === 4 ? 1 : 0);
const partial = (written) =>
  PROMPT.filter((number) => written.includes(number)).length
  + written.filter((number, t) => t > 0 && number >= written[t - 1]).length;

// probs, paid (the true reward) and score (the judge's mean) of each answer.
function samplerOf({ skill, reward, judge }) {
  const answers = answersOf(skill);
  const paid = answers.map(({ written }) => (reward === "points" ? points : isRight)(written));
  return {
    probs: answers.map(({ prob }) => prob),
    paid,
    score: judge === "partial" ? answers.map(({ written }) => partial(written)) : paid,
  };
}

const errorOf = ({ judge, error }) => (judge === "coin" ? error : 0);

// n → { law, says }: each answer is listed twice, once above and once below its mean score.
function keeper({ probs, score }, error) {
  const mass = new Map();
  score.forEach((s, i) => {
    for (const seen of [s + error, s - error]) mass.set(seen, (mass.get(seen) ?? 0) + probs[i] / 2);
  });
  let upTo = 0;
  const levels = [...mass.keys()].sort((a, b) => a - b).map((seen) => {
    upTo += mass.get(seen);
    return { seen, upTo, level: mass.get(seen) };
  });
  return (n) => {
    // F^n − F₋^n over the level's mass, without cancellation
    const factor = new Map(levels.map(({ seen, upTo: F, level }) => {
      const miss = Math.log1p(-Math.min(1, level / F));
      return [seen, (F ** n * -Math.expm1(n * miss)) / level];
    }));
    const law = score.map((s, i) => (probs[i] / 2) * (factor.get(s + error) + factor.get(s - error)));
    return { law, says: sum(levels.map(({ seen, level }) => seen * level * factor.get(seen))) };
  };
}

const distance = (law, probs) => sum(law.map((q, i) => (q > 0 ? q * Math.log(q / probs[i]) : 0)));

function gibbs({ probs, score }, beta) {
  const best = Math.max(...score);
  const weights = probs.map((p, i) => p * Math.exp((score[i] - best) / beta));
  const total = sum(weights);
  return weights.map((w) => w / total);
}

function tilted(home, beta) {
  const law = gibbs(home, beta);
  return [distance(law, home.probs), dot(law, home.paid)];
}

// The true reward of the Gibbs distribution at this KL.
function rewardAt(home, kl, top) {
  if (kl < SAME) return dot(home.probs, home.paid);
  if (kl > top - SAME) return tilted(home, 1e-3)[1];
  let [low, high] = [-50, 50];
  let found = [];
  for (let i = 0; i < 100; i += 1) {
    const middle = (low + high) / 2;
    found = tilted(home, Math.exp(middle));
    if (found[0] > kl) low = middle;
    else high = middle;
  }
  return found[1];
}

const bound = (n) => Math.log(n) - (n - 1) / n;

// [KL, true reward] for N = 1 … MOST
function overN(state) {
  const home = samplerOf(state);
  const keep = keeper(home, errorOf(state));
  return EVERY.map((n) => {
    const { law } = keep(n);
    return [distance(law, home.probs), dot(law, home.paid)];
  });
}

export function numbers(state) {
  const { n, beta } = state;
  const home = samplerOf(state);
  const { probs, paid, score } = home;
  const { law, says } = keeper(home, errorOf(state))(n);
  const bent = gibbs(home, beta);
  const levels = [...new Set(paid)].sort((a, b) => a - b);
  const byLevel = (weights) => levels.map((v) => sum(weights.filter((_, i) => paid[i] === v)));
  const best = Math.max(...score);
  const top = -Math.log(sum(probs.filter((_, i) => score[i] === best)));
  const kl = distance(law, probs);
  const rows = overN(state);
  const most = Math.max(...rows.map(([, J]) => J));
  return {
    levels,
    home: byLevel(probs),
    chosen: byLevel(law),
    gibbs: byLevel(bent),
    J: {
      home: dot(probs, paid),
      chosen: dot(law, paid),
      gibbs: dot(bent, paid),
      same: rewardAt(home, kl, top),
      rule: overN({ ...state, judge: "rule" })[n - 1][1],
    },
    kl: { chosen: kl, gibbs: distance(bent, probs), bound: bound(n), top },
    says,
    peak: rows.findIndex(([, J]) => J > most - 1e-6) + 1,
    over_n: NS.map((m) => rows[m - 1]),
    frontier: TOLD.map((b) => tilted(home, b)),
  };
}

// --- words -------------------------------------------------------------------------------------

const deaf = (value) => value * (1 + 1e-12); // to the last bits
const worth = (value, { reward }) =>
  reward === "points" ? `${fixed(deaf(value), 2)} points` : `${fixed(100 * deaf(value), 1)} % right`;

const verdicts = {
  rule(state, { J }) {
    const share = (J.chosen - J.home) / (J.same - J.home);
    return (
      `Gibbs at the same distance: ${worth(J.same, state)}, so best of N has ` +
      `${fixed(100 * deaf(share), 1)} % of its gain.`
    );
  },
  coin(state, { J, says }) {
    const unit = state.reward === "points" ? "points" : "where right is worth 1";
    return (
      `The judge, off by ${fixed(state.error, 1)} up or down, promises ` +
      `${fixed(says, 2)} ${unit}; kept by the reward itself: ` +
      `${worth(J.rule, state)}. Gibbs at the same distance: ${worth(J.same, state)}.`
    );
  },
  partial(state, { J, says, peak }) {
    const turn = peak < state.n ? ` Best was N = ${peak}.` : "";
    return (
      `The judge gives ${fixed(says, 2)} of its 6 points; kept by the reward ` +
      `itself: ${worth(J.rule, state)}.${turn} Gibbs by the same judge at the same ` +
      `distance: ${worth(J.same, state)}.`
    );
  },
};

export function sentence(state) {
  const found = numbers(state);
  const { J, kl } = found;
  const bent =
    `Gibbs at β = ${brief(state.beta)}: ${worth(J.gibbs, state)}, ${significant(kl.gibbs, 3)} nats.`;
  if (state.n === 1) return `One draw: ${worth(J.home, state)}. Nothing is chosen: KL 0. ${bent}`;
  const largest =
    kl.bound > kl.top
      ? `, more than there can be: −log P(best score) = ${significant(kl.top, 3)}`
      : "";
  return (
    `Best of ${state.n}: ${worth(J.chosen, state)} (one draw: ${worth(J.home, state)}), ` +
    `${significant(kl.chosen, 3)} nats from one draw; the formula log N − (N − 1)/N ` +
    `says ${significant(kl.bound, 3)}${largest}. ${verdicts[state.judge](state, found)} ${bent}`
  );
}

function note({ reward, judge }) {
  const rule =
    reward === "points"
      ? "The reward: a point per number in its place, one for holding exactly three."
      : "The reward: 1 for exactly (0, 1, 2), else 0.";
  const flawed =
    judge === "partial"
      ? " Partial credit: a point per number that occurs, one per neighbour in order; nothing for ending."
      : "";
  return (
    `Sort (1, 0, 2): 121 answers. ${rule}${flawed} Gibbs: one draw × exp(score / β), the best for ` +
    "its KL by the judge's mean score [KL-7]. Formula: [CAI-11], Beirami et al. 2024."
  );
}

const off = ({ judge }) => (judge === "coin" ? [] : ["error"]);

// --- the picture -------------------------------------------------------------------------------

const HOME = { fill: "var(--grid)", stroke: "var(--line)" };
const KEPT = "var(--series-1)";
const GIBBS = "var(--series-2)";
const FORMULA = { stroke: "var(--soft)", "stroke-width": 1.8, "stroke-dasharray": "1.6 3.4" };
const CURVE = { fill: "none", stroke: GIBBS, "stroke-width": 2, "stroke-dasharray": "7 4" };
const RULE = {
  fill: "none", stroke: "var(--series-3)", "stroke-width": 2.4, "stroke-dasharray": "2 4",
};

function layout(width) {
  if (width >= 560) {
    const middle = Math.round((width - 10) / 2);
    return {
      bars: { left: 116, right: width - 78, top: 28, height: 164 },
      overN: { left: 40, right: middle - 14, top: 362, height: 290 },
      overKl: { left: middle + 46, right: width - 10, top: 362, height: 290 },
      height: 700,
    };
  }
  const both = { left: 38, right: width - 8, height: 170 };
  return {
    bars: { left: 84, right: width - 48, top: 28, height: 110 },
    overN: { ...both, top: 302 },
    overKl: { ...both, top: 590 },
    height: 808,
  };
}

const bottomOf = ({ top, height }) => top + height;
const border = ({ left, right, top, height }) =>
  svg("rect", { x: left, y: top, width: right - left, height, fill: "none", stroke: "var(--line)" });
const path = (points, look) =>
  svg("polyline", { points: points.map((at) => at.map((v) => v.toFixed(1)).join(",")).join(" "), ...look });
const square = (x, y, r, look = { fill: KEPT, stroke: "var(--paper)" }) =>
  svg("rect", { x: x - r, y: y - r, width: 2 * r, height: 2 * r, ...look });
const diamond = (x, y, r = 6) =>
  svg("polygon", {
    points: `${x},${y - r} ${x + r},${y} ${x},${y + r} ${x - r},${y}`,
    fill: GIBBS, stroke: "var(--paper)", "stroke-width": 1.2,
  });
const ring = (x, y, r = 8.5) =>
  svg("circle", { cx: x, cy: y, r, fill: "none", stroke: "var(--ink)", "stroke-width": 1.6 });

const namesOf = ({ n, beta }, roomy) =>
  roomy
    ? ["one draw", `best of ${n}`, `Gibbs, β = ${brief(beta)}`]
    : ["one draw", `best of ${n}`, "Gibbs"];

// The three laws: bars, and below them the same numbers as a table.
function barsPanel(state, place, found, width) {
  const { left, right, height } = place;
  const bottom = bottomOf(place);
  const roomy = width >= 560;
  const { levels } = found;
  const laws = [found.home, found.chosen, found.gibbs];
  const column = (right - left) / levels.length;
  const x = (k) => left + column * (k + 0.5);
  const most = 1.1 * Math.max(...laws.flat());
  const y = (share) => bottom - (height * share) / most;
  const bar = (share, k, wide, look) =>
    svg("rect", {
      x: x(k) - (wide * column) / 2, y: y(share), width: wide * column, height: bottom - y(share), ...look,
    });
  const called = levels.map((level, k) =>
    state.reward === "binary" ? ["wrong", "right"][k]
    : roomy && k === levels.length - 1 ? `${level} points`
    : level);
  const samples = [(sx, sy) => square(sx, sy, 5, HOME), (sx, sy) => square(sx, sy, 5), diamond];
  const rows = namesOf(state, roomy).flatMap((name, i) => {
    const at = bottom + 42 + 21 * i;
    const mean = deaf([found.J.home, found.J.chosen, found.J.gibbs][i]);
    return [
      samples[i](7, at - 4.5),
      text(18, at, name),
      ...laws[i].map((share, k) =>
        text(x(k), at, fixed(100 * share, roomy ? 1 : 0), { anchor: "middle" })),
      text(width - 8, at, state.reward === "points" ? fixed(mean, 2) : fixed(100 * mean, 1), {
        anchor: "end", bold: true,
      }),
    ];
  });
  return [
    text(0, 14, "How often each reward comes (%)", { bold: true }),
    ...ticks(0, 100 * most, 4).flatMap(({ value, label }) => [
      line(left, y(value / 100), right, y(value / 100), { stroke: "var(--grid)" }),
      text(left - 7, y(value / 100) + 4.5, label, { anchor: "end" }),
    ]),
    ...found.home.map((share, k) => bar(share, k, 0.8, HOME)),
    ...found.chosen.map((share, k) => bar(share, k, 0.4, { fill: KEPT })),
    border(place),
    ...found.gibbs.map((share, k) => diamond(x(k), y(share))),
    ...called.map((name, k) => text(x(k), bottom + 19, name, { anchor: "middle" })),
    text(width - 8, bottom + 19, "mean", { anchor: "end", fill: "var(--soft)" }),
    ...rows,
  ];
}

// The axis that both lower panels share: the mean true reward.
function rewardAxis({ reward }, place) {
  const { left, right, height } = place;
  const bottom = bottomOf(place);
  const most = reward === "points" ? 4 : 1;
  const y = (value) => bottom - (height * value) / (1.05 * most);
  const labels = [0, 1, 2, 3, 4].map((k) => [(most * k) / 4, reward === "points" ? k : 25 * k]);
  const lines = labels.flatMap(([value, label]) => [
    line(left, y(value), right, y(value), { stroke: "var(--grid)" }),
    text(left - 7, y(value) + 4.5, label, { anchor: "end" }),
  ]);
  return { y, lines };
}

const unitOf = ({ reward }) => (reward === "points" ? "Mean reward (points)" : "Right answers (%)");

function overNPanel(state, place, found) {
  const { left, right, top } = place;
  const bottom = bottomOf(place);
  const { y, lines } = rewardAxis(state, place);
  const x = (n) => left + 10 + ((right - left - 20) * Math.log2(n)) / 6;
  const curve = (rows, look) => path(rows.map(([, J], i) => [x(i + 1), y(J)]), look);
  const judged = state.judge !== "rule";
  return [
    text(left - 32, top - 31, `${unitOf(state)} over N`, { bold: true }),
    ...(judged
      ? [
        line(left - 32, top - 16, left - 8, top - 16, RULE),
        text(left - 2, top - 11.5, "kept by the reward itself"),
      ]
      : []),
    ...lines,
    border(place),
    ...(judged ? [curve(overN({ ...state, judge: "rule" }), RULE)] : []),
    curve(overN(state), { fill: "none", stroke: KEPT, "stroke-width": 2 }),
    ...found.over_n.map(([, J], i) => square(x(NS[i]), y(J), 3, { fill: KEPT })),
    line(x(state.n), top, x(state.n), bottom, { stroke: "var(--soft)", "stroke-width": 1.2 }),
    square(x(state.n), y(found.J.chosen), 6),
    ...NS.flatMap((n) => [
      line(x(n), bottom, x(n), bottom + 5),
      text(x(n), bottom + 20, n, { anchor: "middle" }),
    ]),
    text((left + right) / 2, bottom + 39, "N", { anchor: "middle" }),
  ];
}

function overKlPanel(state, place, found) {
  const { left, right, top } = place;
  const bottom = bottomOf(place);
  const { kl, J } = found;
  const { y, lines } = rewardAxis(state, place);
  const furthest = 1.06 * Math.max(bound(MOST), kl.gibbs, Math.ceil(kl.chosen));
  const x = (value) => left + 8 + ((right - left - 8) * value) / furthest;
  const at = ([nats, reward]) => [x(nats), y(reward)];
  const home = samplerOf(state);
  const curve = Array.from({ length: 101 }, (_, i) => tilted(home, WIDE * 10 ** (-i / 20)))
    .filter(([nats]) => nats <= furthest);
  return [
    text(left - 32, top - 31, `${unitOf(state)} over KL (nats)`, { bold: true }),
    line(left - 32, top - 16, left - 8, top - 16, CURVE),
    text(left - 2, top - 11.5, "Gibbs, any β"),
    ring(left + 98, top - 16, 6),
    text(left + 109, top - 11.5, "same KL"),
    line(left + 180, top - 24, left + 180, top - 8, FORMULA),
    text(left + 186, top - 11.5, "formula"),
    ...lines,
    ...ticks(0, furthest, 6).flatMap(({ value, label }) => [
      line(x(value), bottom, x(value), bottom + 5),
      text(x(value), bottom + 20, label, { anchor: "middle" }),
    ]),
    border(place),
    line(x(kl.bound), top, x(kl.bound), bottom, FORMULA),
    path(curve.map(at), CURVE),
    path(overN(state).map(at), { fill: "none", stroke: KEPT, "stroke-width": 1.3 }),
    ...found.over_n.map((row) => square(...at(row), 3, { fill: KEPT })),
    diamond(x(kl.gibbs), y(J.gibbs), 7),
    square(x(kl.chosen), y(J.chosen), 6),
    ring(x(kl.chosen), y(J.same)),
    text((left + right) / 2, bottom + 39, "KL from one draw (nats)", { anchor: "middle" }),
  ];
}

// Every bar and curve in numbers, for someone who cannot see them.
function about(state, found) {
  const names = namesOf(state, true);
  const laws = ["home", "chosen", "gibbs"].map((key, i) => {
    const shares = found[key].map((share, k) => {
      const name = state.reward === "binary" ? ["wrong", "right"][k] : found.levels[k];
      return `${name}: ${fixed(100 * share, 1)}`;
    });
    return `${names[i]}: ${shares.join(", ")}`;
  });
  const rows = found.over_n.map(([kl, J], i) =>
    `N = ${NS[i]}: ${worth(J, state)} at ${significant(kl, 3)} nats`);
  const curve = found.frontier.map(([kl, J], i) =>
    `β = ${brief(TOLD[i])}: ${worth(J, state)} at ${significant(kl, 3)} nats`);
  const judged = state.judge === "rule" ? "" :
    ` Kept by the reward itself, best of ${state.n} has ${worth(found.J.rule, state)}.`;
  return (
    `How often each reward comes, in percent, as bars. ${laws.join("; ")}. Mean reward over N and ` +
    `over KL: ${rows.join(", ")}.${judged} A curve of Gibbs distributions: ${curve.join(", ")}; at ` +
    `the KL of best of ${state.n} it has ${worth(found.J.same, state)}. A line at the formula: ` +
    `${significant(found.kl.bound, 3)} nats.`
  );
}

function draw(state, { width }) {
  const found = numbers(state);
  const place = layout(width);
  return picture(
    width,
    place.height,
    about(state, found),
    ...barsPanel(state, place.bars, found, width),
    ...overNPanel(state, place.overN, found),
    ...overKlPanel(state, place.overKl, found),
  );
}

export default widget({ title: "Best of N", draw, sentence, note, off });
