// GAE: what λ and γ do to the bias and the variance of the policy gradient, for two critics.
//
// Lecture 06, on the sorter of the prompt (1, 0, 2) with partial credit for the finished answer;
// the critic has a value for each of the 13 prefixes. Everything is a sum over 27 responses; the
// curves over λ are computed once per critic, so λ and N cost next to nothing.
// Leaves out: how a critic is trained, rewards before the last token, answers of other lengths.
import { fixed, line, picture, significant, spread, svg, text, ticks, widget } from "./base.js";
import { dot, enumerate, moments } from "./exact.js";
import { partialCredit, skilledTable } from "./sorter.js";

const LENGTH = 3;
const LAMBDAS = Array.from({ length: 101 }, (_, i) => i / 100);
const AHEAD = 40;
// One error per prefix, shortest first, in dictionary order; scaled to a root mean square of 1.
const PATTERN = [0.35, 0.82, 0.33, -1.3, 0.91, 0.45, -0.54, 0.58, 0.36, 0.29, 0.03, 0.55, -0.74];
const SIZE = Math.sqrt(dot(PATTERN, PATTERN) / PATTERN.length);

// --- mathematics ---------------------------------------------------------------------------

const stateOf = ([first, second], t) => [0, 1 + first, 4 + 3 * first + second][t];

function remember(make) {
  const made = new Map();
  return (...key) => {
    const name = key.join(" ");
    if (!made.has(name)) {
      if (made.size > 60) made.clear();
      made.set(name, make(...key));
    }
    return made.get(name);
  };
}

// All responses at one skill: rewards, the value E[R | prefix] of each prefix, and ∇J.
const sorter = remember((skill) => {
  const policy = enumerate({ table: skilledTable(skill), length: LENGTH });
  const rewards = policy.responses.map(({ tokens }) => partialCredit(tokens));
  const mass = PATTERN.map(() => 0);
  const total = PATTERN.map(() => 0);
  policy.responses.forEach(({ tokens, prob }, i) => {
    for (let t = 0; t < LENGTH; t += 1) {
      mass[stateOf(tokens, t)] += prob;
      total[stateOf(tokens, t)] += prob * rewards[i];
    }
  });
  const gradient = moments(policy, (_, i) => [rewards[i], rewards[i], rewards[i]]).mean;
  return { policy, rewards, values: total.map((x, s) => x / mass[s]), gradient };
});

// What a critic says of each prefix. "perfect" is the γ-discounted value.
function criticValues(toy, critic, error, gamma) {
  const length = (state) => (state === 0 ? 0 : state < 4 ? 1 : 2);
  return toy.values.map((value, state) => {
    const perfect = value * gamma ** (LENGTH - 1 - length(state));
    if (critic === "zero") return 0;
    if (critic === "offset") return perfect + error;
    return critic === "noise" ? perfect + (error * PATTERN[state]) / SIZE : perfect;
  });
}

// Squared bias |E g − ∇J|² and variance (trace) of one answer's g = Σ_t Â_t u_t, where
// Â_t = δ_t + γλ Â_(t+1), δ_t = γ V(next) − V(here), and R − V(here) on the last token.
function estimate(toy, values, gamma, lam) {
  const advantages = ({ tokens }, i) => {
    const list = [0, 0, 0];
    let carry = 0;
    for (let t = LENGTH - 1; t >= 0; t -= 1) {
      const gained = t === LENGTH - 1 ? toy.rewards[i] : gamma * values[stateOf(tokens, t + 1)];
      carry = gained - values[stateOf(tokens, t)] + gamma * lam * carry;
      list[t] = carry;
    }
    return list;
  };
  const { mean, trace } = moments(toy.policy, advantages);
  const gap = mean.map((x, i) => x - toy.gradient[i]);
  return { bias: dot(gap, gap), variance: trace };
}

const curves = remember((skill, critic, error, gamma) => {
  const toy = sorter(skill);
  const values = criticValues(toy, critic, error, gamma);
  return LAMBDAS.map((lam) => estimate(toy, values, gamma, lam));
});

export function numbers({ critic: chosen, error, lam, gamma, answers, skill }) {
  const toy = sorter(skill);
  const about = (critic) => {
    const values = criticValues(toy, critic, error, gamma);
    const { bias, variance } = estimate(toy, values, gamma, lam);
    const grid = curves(skill, critic, error, gamma);
    const totals = grid.map((at) => at.bias + at.variance / answers);
    const best = totals.indexOf(Math.min(...totals));
    const some = grid.filter((_, i) => i % 20 === 0);
    return {
      bias,
      variance,
      error: bias + variance / answers,
      best: LAMBDAS[best],
      best_error: totals[best],
      biases: some.map((at) => at.bias),
      variances: some.map((at) => at.variance),
    };
  };
  return {
    signal: dot(toy.gradient, toy.gradient),
    perfect: about("perfect"),
    other: about(chosen),
  };
}

function who({ critic, error }) {
  if (critic === "zero") return "Untrained critic, 0 at each prefix";
  if (error === 0) return "Critic without error";
  const how =
    critic === "offset" ? "the same at each prefix" : "root mean square over the 13 prefixes";
  return `Critic off by ${fixed(error, 2)} points (${how})`;
}

function reason({ critic, error, lam, gamma }, bias) {
  if (gamma < 1) {
    return (
      "γ below 1 biases the gradient even with a perfect critic, equally at every λ " +
      `(bias² ${significant(bias, 3)}).`
    );
  }
  if (lam === 1) return "At λ = γ = 1 the critic is a mere baseline: no bias, whatever it says.";
  if (critic !== "zero" && error === 0) {
    return "Without error there is no bias at any λ, and the smallest λ is the calmest.";
  }
  if (critic === "offset") {
    return (
      "An error that all values share moves every answer's advantages alike, because all answers " +
      "here have three tokens: no bias at any λ, only the variance changes. (Where a token may end " +
      "the answer, it biases that choice at λ < 1.)"
    );
  }
  return "Errors that differ from prefix to prefix do not cancel: bias at every λ below 1.";
}

export function sentence(state) {
  const { signal, perfect, other } = numbers(state);
  const n = fixed(state.answers, 0);
  return (
    `${who(state)}, λ = ${fixed(state.lam, 2)}, γ = ${fixed(state.gamma, 2)}: ` +
    `bias² ${significant(other.bias, 3)} + variance ${significant(other.variance, 3)} / ${n} = ` +
    `squared error ${significant(other.error, 3)}; not updating at all has squared error ` +
    `‖∇J‖² = ${significant(signal, 3)}. The best λ is ${fixed(other.best, 2)} ` +
    `(${significant(other.best_error, 3)}), with a perfect critic ${fixed(perfect.best, 2)} ` +
    `(${significant(perfect.best_error, 3)}). ` +
    moral({ signal, perfect, other }) +
    reason(state, perfect.bias)
  );
}

// Where no λ makes the update worth taking.
function moral({ signal, perfect, other }) {
  if (other.best_error < signal) return "";
  const whose = perfect.best_error < signal ? "" : "with either critic ";
  return `Even the best λ ${whose}has more squared error than not updating: average more answers. `;
}

const note = () =>
  "Sort (1, 0, 2), partial credit at the end; lecture 02's policy, a critic on all 13 prefixes. " +
  "Perfect: the γ-discounted value. One update averages N answers; its target is always ∇J (γ = 1). " +
  "GAE: Schulman et al. 2016, eq. 16; λ = 0.95: PPO (2017), table 3. " +
  "Units: points² per unit of logit².";

const off = ({ critic }) => (critic === "zero" ? ["error"] : []);

// --- drawing -------------------------------------------------------------------------------

const LEFT = 56;
const RIGHT_MARGIN = 14;
const GAP = 40;
const AHEAD_HEIGHT = 90;
const TOTAL = { color: "var(--ink)", wide: 5 }; // seen under a curve that lies on it
const BIAS = { color: "var(--series-2)", dash: "7 4" };
const VARIANCE = { color: "var(--series-1)", dash: "8 3 2 3" };
const SIGNAL = { color: "var(--soft)", dash: "1.6 4" };
const BEST = "var(--series-4)";

const stroke = ({ color, dash, wide = 2 }, width = wide) =>
  ({ stroke: color, "stroke-width": width, "stroke-dasharray": dash });

const frame = ({ left, right, top, bottom }) => {
  const box = { x: left, y: top, width: right - left, height: bottom - top };
  return svg("rect", { ...box, fill: "none", stroke: "var(--line)" });
};

const ring = (x, y) =>
  svg("circle", { cx: x, cy: y, r: 8, fill: "none", stroke: "var(--ink)", "stroke-width": 2 });

function pentagon(x, y) {
  const corner = (_, i) => {
    const angle = (2 * Math.PI * i) / 5 - Math.PI / 2;
    return `${(x + 7 * Math.cos(angle)).toFixed(1)},${(y + 7 * Math.sin(angle)).toFixed(1)}`;
  };
  const points = Array.from({ length: 5 }, corner).join(" ");
  return svg("polygon", { points, fill: BEST, stroke: "var(--paper)", "stroke-width": 1 });
}

// 10 to a whole power ≤ 3 as a tick label.
const decade = (power) => (power >= -2 ? String(10 ** power) : `10⁻${"⁰¹²³⁴⁵⁶⁷⁸⁹"[-power]}`);

function legend(oneLine) {
  const items = [
    [TOTAL, "squared error = bias² + variance / N", oneLine ? 286 : 0],
    [BIAS, "bias²", 84],
    [VARIANCE, "variance / N", oneLine ? 132 : 128],
    [SIGNAL, "‖∇J‖²", 0],
  ];
  let at = oneLine ? LEFT : 0;
  return items.flatMap(([look, words, room], i) => {
    const y = oneLine || i === 0 ? 14 : 34;
    const x = at;
    at += room;
    return [line(x, y - 4.5, x + 24, y - 4.5, stroke(look)), text(x + 29, y, words)];
  });
}

// One critic: the three curves over λ on a logarithmic axis, with the present and the best λ.
function criticPanel(place, { title, found, grid, answers, lam, signal, low, high, labels }) {
  const { left, right, top, bottom } = place;
  const x = (value) => left + (right - left) * value;
  const y = (value) => top + ((bottom - top) * (high - Math.log10(value))) / (high - low);
  const inside = (value) => value > 0 && y(value) <= bottom;
  const curve = (value, look) => {
    let path = "";
    let drawing = false; // where a curve leaves the panel or comes back, it ends at the bottom
    grid.forEach((found, i) => {
      const here = value(found);
      const at = x(LAMBDAS[i]).toFixed(1);
      if (inside(here)) {
        if (!drawing) path += i > 0 ? `M${x(LAMBDAS[i - 1]).toFixed(1)} ${bottom}L` : "M";
        else path += "L";
        path += `${at} ${y(here).toFixed(1)}`;
      } else if (drawing) path += `L${at} ${bottom}`;
      drawing = inside(here);
    });
    return svg("path", { d: path, fill: "none", ...stroke(look) });
  };
  const powers = Array.from({ length: high - low + 1 }, (_, i) => low + i);
  const step = powers.length > 5 ? 2 : 1;
  const biased = grid.some(({ bias }) => bias > 1e-12);
  const marks = [
    { at: lam, value: found.error, words: `λ = ${fixed(lam, 2)}`, color: "var(--ink)" },
    {
      at: found.best, value: found.best_error,
      words: `best λ = ${fixed(found.best, 2)}`, color: BEST,
    },
  ].sort((a, b) => a.at - b.at);
  const spots = spread(marks.map(({ at }) => x(at)), 92, left + 46, right - 46);
  return [
    text(left, top - 50, biased ? title : `${title}: no bias at any λ`, { bold: true }),
    ...powers.flatMap((power) => [
      line(left, y(10 ** power), right, y(10 ** power), { stroke: "var(--grid)" }),
      ...(labels && (high - power) % step === 0
        ? [text(left - 7, y(10 ** power) + 4.5, decade(power), { anchor: "end" })]
        : []),
    ]),
    frame(place),
    line(left, y(signal), right, y(signal), { ...stroke(SIGNAL, 1.6), "stroke-linecap": "round" }),
    curve(({ bias, variance }) => bias + variance / answers, TOTAL),
    curve(({ variance }) => variance / answers, VARIANCE),
    curve(({ bias }) => bias, BIAS),
    ...marks.flatMap(({ at, value, words, color }, i) => [
      line(spots[i], top - 8, x(at), top, { stroke: color, "stroke-width": 1.3 }),
      line(x(at), top, x(at), y(value), { stroke: color, "stroke-width": 1.3 }),
      text(spots[i], top - 27, words, { anchor: "middle", bold: true, "font-size": 12 }),
      text(spots[i], top - 12, significant(value, 3), { anchor: "middle", "font-size": 12 }),
    ]),
    pentagon(x(found.best), y(found.best_error)),
    ring(x(lam), y(found.error)),
    ...ticks(0, 1, 5).flatMap(({ value, label }) => [
      line(x(value), bottom, x(value), bottom + 5),
      text(x(value), bottom + 20, label, { anchor: "middle" }),
    ]),
    text((left + right) / 2, bottom + 37, "λ", { anchor: "middle" }),
  ];
}

// How much of the δ that lies k tokens ahead counts: (γλ)^k.
function aheadPanel(place, fade, roomy) {
  const { left, right, top, bottom } = place;
  const x = (k) => left + ((right - left) * (k + 0.75)) / (AHEAD + 1.5);
  const wide = (0.7 * (right - left)) / (AHEAD + 1.5);
  const after = Math.max(1, Math.ceil(Math.log(0.01) / Math.log(fade) - 1e-9));
  const far =
    fade === 1 ? "never fades"
    : fade === 0 ? "only the token’s own δ"
    : `at most 1 % after ${after} token${after === 1 ? "" : "s"}`;
  const bars = Array.from({ length: AHEAD + 1 }, (_, k) => {
    const tall = (bottom - top - 6) * fade ** k;
    const look =
      k < LENGTH
        ? { fill: "var(--positive)" }
        : { fill: "none", stroke: "var(--positive)", "stroke-width": 1.2 };
    return svg("rect", { x: x(k) - wide / 2, y: bottom - tall, width: wide, height: tall, ...look });
  });
  return [
    text(roomy ? left : 0, roomy ? top - 9 : top - 27, "A later token’s δ counts (γλ)ᵏ", {
      bold: true,
    }),
    text(roomy ? right : 0, top - 9, far, { anchor: roomy ? "end" : undefined }),
    text(left - 7, top + 11, "1", { anchor: "end" }),
    text(left - 7, bottom + 4.5, "0", { anchor: "end" }),
    ...bars,
    frame(place),
    ...[0, 10, 20, 30, 40].flatMap((k) => [
      line(x(k), bottom, x(k), bottom + 5),
      text(x(k), bottom + 20, k, { anchor: "middle" }),
    ]),
    text((left + right) / 2, bottom + 38, `k, how many tokens later${roomy ? " (filled: this toy’s three)" : ""}`, {
      anchor: "middle",
    }),
  ];
}

// The three curves of one critic in words: at five λ, where the parts cross, the lowest point.
export function told(name, grid, answers, { best, best_error }) {
  const parts = grid.map(({ bias, variance }) => [bias, variance / answers]);
  const points = [0, 25, 50, 75, 100].map((i) => {
    const [bias, noise] = parts[i];
    const words = [bias, noise, bias + noise].map((value) => significant(value, 3));
    return `λ = ${fixed(LAMBDAS[i], 2)}: ${words[0]} + ${words[1]} = ${words[2]}`;
  });
  const sign = ([bias, noise]) => bias > noise;
  const at = parts.findIndex((pair, i) => i > 0 && sign(pair) !== sign(parts[i - 1]));
  const cross =
    at > 0 ? `bias² and variance / N cross near λ = ${fixed(LAMBDAS[at], 2)}`
    : `${sign(parts[0]) ? "bias²" : "variance / N"} is the larger part at every λ`;
  return (
    `${name}, bias² + variance / N = squared error: ${points.join("; ")}; lowest ` +
    `${significant(best_error, 3)} at λ = ${fixed(best, 2)}; ${cross}.`
  );
}

function draw(state, { width }) {
  const { critic, error, lam, gamma, answers, skill } = state;
  const found = numbers(state);
  const grids = ["perfect", critic].map((name) => curves(skill, name, error, gamma));
  const totals = grids.flat().map(({ bias, variance }) => bias + variance / answers);
  const low = Math.floor(Math.log10(Math.min(Math.min(...totals) / 3, found.signal / 1.2)));
  const high = Math.ceil(Math.log10(Math.max(...totals, found.signal) * 1.05));
  const roomy = width >= 520;
  const [left, right] = [LEFT, width - RIGHT_MARGIN];
  const half = (right - left - GAP) / 2;
  const oneLine = width >= 640; // of the legend
  const top = oneLine ? 92 : 112;
  const tall = width >= 660 ? 290 : roomy ? 240 : 176;
  const places = roomy
    ? [{ left, right: left + half, top }, { left: right - half, right, top }]
    : [{ left, right, top }, { left, right, top: top + tall + 106 }];
  for (const place of places) place.bottom = place.top + tall;
  const names = { noise: "Noisy critic", offset: "Offset critic", zero: "Untrained critic" };
  const shared = { answers, lam, signal: found.signal, low, high };
  const aheadTop = places[1].bottom + (roomy ? 72 : 92);
  const ahead = { left, right, top: aheadTop, bottom: aheadTop + AHEAD_HEIGHT };
  const about =
    "Squared error of one update against λ, logarithmic, with its parts bias² and variance / N. " +
    `${told("Perfect critic", grids[0], answers, found.perfect)} ` +
    `${told(names[critic], grids[1], answers, found.other)} ` +
    `Not updating: ${significant(found.signal, 3)}. Below, how much the δ of a later token counts, ` +
    `(γλ)ᵏ: ${[0, 1, 2, 10, 40].map((k) => `${significant((gamma * lam) ** k, 3)} at k = ${k}`).join(", ")}.`;
  return picture(
    width,
    ahead.bottom + 46,
    about,
    ...legend(oneLine),
    ...criticPanel(places[0], {
      ...shared, title: "Perfect critic", found: found.perfect, grid: grids[0], labels: true,
    }),
    ...criticPanel(places[1], {
      ...shared, title: names[critic], found: found.other, grid: grids[1], labels: !roomy,
    }),
    ...places.slice(0, roomy ? 1 : 2).map(({ top: above }) =>
      text(0, 0, "squared error, its two parts", {
        anchor: "middle", "font-size": roomy ? 12 : 11,
        transform: `translate(11 ${above + tall / 2}) rotate(-90)`,
      }),
    ),
    ...aheadPanel(ahead, gamma * lam, roomy),
  );
}

export default widget({ title: "GAE: bias and variance", draw, sentence, note, off });
