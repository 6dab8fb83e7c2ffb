// Length bias: how much one token of a short and of a long answer weighs under three averages.
// The numbers are those of policy_gradients.aggregation through autograd, as a few divisions.
import { fixed, line, picture, signedColor, svg, text, ticks, widget } from "./base.js";

const NAMES = ["A", "B", "C", "D"];
const AVERAGES = ["mean_per_sequence", "mean_per_token", "mean_fixed_length"];

const sum = (list) => list.reduce((total, x) => total + x, 0);
const byAverage = (value) => Object.fromEntries(AVERAGES.map((name) => [name, value(name)]));
const halves = ({ lengths }) => [sum(lengths.slice(0, 2)), sum(lengths.slice(2))];
const trapped = (state) =>
  state.split && state.divide === "own" && halves(state)[0] !== halves(state)[1];

// What the advantage of answer i is divided by, to give the weight of one of its tokens. Averaging
// the means of two micro-batches divides by 2 × the micro-batch's own count.
function divisor(name, { lengths, l_max, split, divide }, i) {
  if (name === "mean_per_sequence") return 4 * lengths[i];
  if (name === "mean_fixed_length") return 4 * l_max;
  return split && divide === "own" ? 2 * halves({ lengths })[i < 2 ? 0 : 1] : sum(lengths);
}

// The first of the shortest answers and the last of the longest.
function ends({ lengths }) {
  const [fewest, most] = [Math.min(...lengths), Math.max(...lengths)];
  return [lengths.indexOf(fewest), lengths.lastIndexOf(most)];
}

export function numbers(state) {
  const { lengths, advantages } = state;
  const [short, long] = ends(state);
  const weights = byAverage((name) => advantages.map((a, i) => a / divisor(name, state, i)));
  return {
    weights,
    sums: byAverage((name) => weights[name].map((weight, i) => weight * lengths[i])),
    whole_step: advantages.map((a, i) => (a * lengths[i]) / sum(lengths)),
    ratios: byAverage((name) => divisor(name, state, long) / divisor(name, state, short)),
  };
}

// --- words -----------------------------------------------------------------------------------

const times = (ratio) => fixed(ratio, ratio < 1.95 ? 2 : 1);
const tokens = (count) => (count === 1 ? "1 token" : `${count} tokens`);
const signed = (value, digits = 1) => {
  const size = fixed(Math.abs(value), digits);
  return Number(size) === 0 ? size : (value > 0 ? "+" : "−") + size;
};

export function sentence(state) {
  const { lengths, advantages, split, divide } = state;
  if (advantages.every((a) => a === 0)) {
    return (
      "All advantages are 0, so every weight is 0: " +
      "whatever the average, these four answers teach nothing."
    );
  }
  if (!split) return comparison(state) + law(state);
  if (trapped(state)) return trap(...halves(state));
  const why =
    divide === "own"
      ? `Both micro-batches hold ${halves(state)[0]} tokens, so their own counts do no harm here. `
      : "The split changes nothing: both micro-batches divide by the counts of the whole step, " +
        `${sum(lengths)} tokens and 4 answers. `;
  return why + comparison(state);
}

function comparison(state) {
  const { lengths, l_max } = state;
  const [short, long] = ends(state);
  if (lengths[short] === lengths[long]) {
    const scale = l_max / lengths[long];
    const constant =
      scale === 1
        ? "all three averages agree"
        : `fixed length is ${times(scale)} × smaller throughout, only a constant`;
    return (
      `All four answers have ${tokens(lengths[long])}, so within each average every token ` +
      `weighs the same at equal advantage and no length is favoured; ${constant}.`
    );
  }
  const { mean_per_sequence, mean_per_token } = numbers(state).ratios;
  return (
    `At equal advantage one token of ${NAMES[short]} (${tokens(lengths[short])}) weighs ` +
    `${times(mean_per_sequence)} × one token of ${NAMES[long]} (${tokens(lengths[long])}) per ` +
    `sequence, but ${times(mean_per_token)} × per token and at fixed length.`
  );
}

// The sign law, on the longest answer that has an advantage at all.
function law(state) {
  const { lengths, advantages } = state;
  const [short] = ends({ lengths });
  const most = Math.max(...lengths.filter((_, i) => advantages[i] !== 0));
  if (most === lengths[short]) return "";
  const i = lengths.findLastIndex((n, j) => n === most && advantages[j] !== 0);
  const tail = against(state, short, i);
  const longer = ` ${NAMES[i]} is longer than ${NAMES[short]} and`;
  return advantages[i] > 0
    ? `${longer} right: per-sequence averaging spreads its credit thin, so among right answers ` +
        `it favours short ones.${tail}`
    : `${longer} wrong: per-sequence averaging spreads its penalty thin, so among wrong answers ` +
        `it favours long ones.${tail}`;
}

// How hard a token of the shortest answer is pushed beside one of answer i.
function against(state, short, i) {
  const weights = numbers(state).weights.mean_per_sequence;
  if (weights[short] === 0) return "";
  const also = weights[short] * weights[i] > 0 ? " too" : "";
  const [words, way] = weights[short] > 0 ? ["right", "up"] : ["wrong", "down"];
  const other = also ? "" : ` ${way === "down" ? "up" : "down"}`;
  return (
    ` ${NAMES[short]} is ${words}${also}: each of its tokens is pushed ${way} ` +
    `${times(Math.abs(weights[short] / weights[i]))} × as hard as one of ${NAMES[i]}${other}.`
  );
}

function trap(first, second) {
  const whole = first + second;
  const [heavy, light] = first < second ? ["A or B", "C or D"] : ["C or D", "A or B"];
  const ratio = Math.max(first, second) / Math.min(first, second);
  return (
    `Each micro-batch divides by its own tokens, ${first} and ${second}: per token, A and B ` +
    `weigh ${fixed(whole / (2 * first), 2)} × and C and D ${fixed(whole / (2 * second), 2)} × ` +
    `what they should, so at equal advantage one token of ${heavy} weighs ${times(ratio)} × one ` +
    `of ${light}. Dividing by the ${whole} tokens of the whole step repairs it; the other two ` +
    "averages do not change, because both micro-batches hold two answers."
  );
}

// --- the picture -----------------------------------------------------------------------------

const TOP = 24;
const TITLE = 25;
const GAP = 16;
const SOFT = { fill: "var(--soft)" };

function layout(width) {
  const roomy = width > 520;
  const half = roomy ? 72 : 49; // of the width of the sums
  const left = roomy ? 84 : 74;
  const zero = width - half - (roomy ? 6 : 2);
  const [row, bar] = roomy ? [33, 24] : [25, 19];
  const group = TITLE + 4 * row + GAP;
  const right = zero - half - (roomy ? 22 : 8);
  return { roomy, half, left, zero, right, row, bar, group, bottom: TOP + 3 * group - GAP };
}

const titles = (state) => {
  const [first, second] = halves(state);
  return [
    ["per sequence (GRPO)", "÷ (4 × own length)"],
    [
      "per token (DAPO)",
      trapped(state) ? `÷ (2 × ${first}) or (2 × ${second})` : `÷ ${first + second} tokens`,
    ],
    ["fixed length (Dr. GRPO)", `÷ (4 × ${state.l_max})`],
  ];
};

function draw(state, { width, dark }) {
  const place = layout(width);
  const { left, right, zero, roomy, bottom } = place;
  const values = numbers(state);
  const peak = (lists) => Math.max(...lists.flat().map(Math.abs));
  const scale = {
    x: (count) => left + ((right - left) * count) / state.l_max,
    largest: peak(Object.values(values.weights)),
    longest: peak([...Object.values(values.sums), values.whole_step]) || 1,
    dark,
  };
  const children = [
    text(left - 10, 13, "one token", { ...SOFT, anchor: "end" }),
    text(left, 13, roomy ? "the answer's tokens" : "its tokens", SOFT),
    text(zero, 13, "their sum", { ...SOFT, anchor: "middle" }),
  ];
  AVERAGES.forEach((name, g) => {
    const top = TOP + g * place.group;
    const [bold, rest] = titles(state)[g];
    const short = rest.replace("own ", "").replaceAll(" × ", "·").replace(/[()]/g, "");
    const title = text(0, top + 14, bold, { bold: true });
    title.append(svg("tspan", { dx: 7, "font-weight": 400 }, roomy ? rest : short));
    children.push(title, group(state, place, scale, values, name, top + TITLE));
  });
  for (const { value, label } of ticks(0, state.l_max)) {
    children.push(text(scale.x(value), bottom + 16, label, { ...SOFT, anchor: "middle" }));
  }
  children.push(
    text((left + right) / 2, bottom + 34, "tokens", { ...SOFT, anchor: "middle" }),
    text(left - 10, bottom + 16, "× 1000", { ...SOFT, anchor: "end" }),
    text(zero, bottom + 16, "× 1000", { ...SOFT, anchor: "middle" }),
  );
  if (trapped(state)) {
    const mark = zero - (roomy ? 44 : 40);
    children.push(
      line(mark, bottom + 22, mark, bottom + 38, { stroke: "var(--ink)", "stroke-width": 2.5 }),
      text(mark + 8, bottom + 34, "whole step", SOFT),
    );
  }
  return picture(width, bottom + 42, about(state, values), ...children);
}

// Four answers under one average: weight of a token, the tokens, the sum.
function group(state, place, scale, values, name, top) {
  const { lengths, l_max, split } = state;
  const { left, right, zero, half, roomy, row, bar } = place;
  const { x, largest, longest, dark } = scale;
  const end = top + 3 * row + bar;
  const base = (bar + 9) / 2; // of the text, below the top of its bar
  const print = (value) => signed(value, roomy || Math.abs(value) < 99.95 ? 1 : 0);
  const node = svg("g", {});
  for (const { value } of ticks(0, l_max)) {
    node.append(line(x(value), top - 3, x(value), end + 3, { stroke: "var(--grid)" }));
  }
  lengths.forEach((length, i) => {
    const y = top + i * row;
    const weight = values.weights[name][i];
    const total = values.sums[name][i];
    const edge = weight > 0 ? "positive" : weight < 0 ? "negative" : "line";
    const stroke = `var(--${edge})`;
    const { fill, ink } = signedColor(weight, largest, dark);
    const wide = (half * Math.abs(total)) / longest;
    const box = { y, height: bar };
    node.append(
      text(9, y + base, NAMES[i], { bold: true }),
      text(left - 10, y + base, print(1000 * weight), { anchor: "end", class: "weight" }),
      svg("rect", { ...box, x: left, width: x(length) - left, fill, stroke, class: "bar" }),
      svg("rect", { ...box, x: total < 0 ? zero - wide : zero, width: wide, fill: stroke }),
      total < 0
        ? text(zero + 6, y + base, print(1000 * total))
        : text(zero - 6, y + base, print(1000 * total), { anchor: "end" }),
    );
    if (x(1) - left >= 4) {
      let d = "";
      for (let t = 1; t < length; t += 1) d += `M${x(t).toFixed(1)} ${y}v${bar}`;
      node.append(svg("path", { d, stroke: ink, "stroke-opacity": 0.28 }));
    }
  });
  node.append(line(zero, top - 3, zero, end + 3));
  if (name === "mean_per_token" && trapped(state)) {
    values.whole_step.forEach((total, i) => {
      const at = zero + (half * total) / longest;
      const y = top + i * row;
      node.append(
        line(at, y - 2.5, at, y + bar + 2.5, { stroke: "var(--ink)", "stroke-width": 2.5 }),
      );
    });
  }
  if (name === "mean_fixed_length") {
    const dashed = { stroke: "var(--ink)", "stroke-width": 1.5, "stroke-dasharray": "6 4" };
    node.append(line(right, top - 5, right, end + 5, dashed));
    if (roomy) node.append(text(right, top - 10, `L_max = ${l_max}`, { anchor: "end" }));
  }
  if (split) {
    const look = { fill: "none", stroke: "var(--soft)", "stroke-width": 1.3 };
    for (const first of [0, 2]) {
      const d = `M5 ${top + first * row - 1}h-4v${row + bar + 2}h4`;
      node.append(svg("path", { d, ...look }));
    }
  }
  return node;
}

// Every number of the picture, for someone who cannot see it.
function about(state, values) {
  const rows = AVERAGES.map((name, g) => {
    const cells = state.lengths.map((length, i) => {
      const [weight, total] = [values.weights[name][i], values.sums[name][i]];
      return `${NAMES[i]} ${length} × ${signed(1000 * weight)} = ${signed(1000 * total)}`;
    });
    return `${titles(state)[g].join(" ")}: ${cells.join(", ")}.`;
  });
  return `Tokens × 1000 times the weight of one token = the whole answer. ${rows.join(" ")}`;
}

// --- the widget ------------------------------------------------------------------------------

const note = ({ lengths, split }) =>
  (split ? `Whole step: tokens=${sum(lengths)} in mean_per_token. ` : "") +
  "Numbers: 1000 × the weight of a token, the factor on its ∇log π. One colour scale for all. " +
  "“Right” means an advantage above 0. The four answers are one prompt's group; the papers " +
  "define their averages over such a group. GRPO: Shao et al. 2024, eq. 3. DAPO: Yu et al. 2025, " +
  "eq. 12. Dr. GRPO: Liu et al. 2025, section 3.2.";
const off = ({ split }) => (split ? [] : ["divide"]);

export default widget({ title: "Length bias", draw, sentence, note, off });
