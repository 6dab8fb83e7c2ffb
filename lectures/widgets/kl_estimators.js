// KL estimators: what k1, k2 and k3 say about a policy, and where they push it.
// The Python class kl_estimators.py says what the numbers mean and computes the same ones.
import { fixed, line, picture, significant, spread, svg, text, ticks, widget } from "./base.js";
import { dot, enumerate, expectation, moments, norm } from "./exact.js";

const NAMES = ["k1", "k2", "k3"];
const ESTIMATORS = [
  (l) => l,
  (l) => 0.5 * l * l,
  (l) => Math.expm1(-l) + l,
];
const SLOPES = [() => 1, (l) => l, (l) => -Math.expm1(-l)]; // dk/dℓ
const SAME = 1e-9; // nats: a KL this small is mostly rounding
const ROUNDING = 1e-6; // relative to what is compared
const ACROSS = 0.05; // cosine below which a gradient points neither towards π_ref nor away from it

const PLACES = {
  loss_token: { words: "In the loss, per token", loss: true, perToken: true },
  loss_response: { words: "In the loss, for the whole response", loss: true },
  reward_token: { words: "In the reward, each token paid only its own k", perToken: true },
  reward_to_go: {
    words: "In the reward, each token paid its own and all later k", perToken: true, toGo: true,
  },
  reward_response: { words: "In the reward, for the whole response" },
};

// --- the numbers -----------------------------------------------------------------------------

function lengthOf(rows, vocab, tree) {
  if (!tree) return rows;
  let length = 0;
  for (let left = rows; left > 0; length += 1) left -= vocab ** length;
  return length;
}

export function numbers({ policy, distance, place, tables }) {
  const { reference, policy: toward } = tables[policy];
  const tree = policy === "tree";
  const length = lengthOf(reference.length, reference[0].length, tree);
  const table = reference.map((row, i) => row.map((x, v) => x + distance * (toward[i][v] - x)));
  const here = enumerate({ table, length, tree });
  const home = enumerate({ table: reference, length, tree });
  // ℓ of each token of each response, and of the whole response
  const tokens = here.responses.map(({ logp }, y) =>
    logp.map((x, t) => x - home.responses[y].logp[t]),
  );
  const wholes = tokens.map((l) => l.reduce((sum, x) => sum + x, 0));
  const gradient = (weight) => moments(here, weight).mean;
  const same = (weight) => ({ rows }, y) => rows.map(() => weight(wholes[y]));

  const kl = expectation(here, (_, y) => wholes[y]);
  const truth = gradient(same((l) => l));
  const forward = gradient(same((l) => -Math.exp(-l)));
  const slope = norm(truth);
  if (kl < SAME) {
    const zeros = [0, 0, 0];
    return {
      kl: 0, slope: 0, mean: zeros, spread: zeros, along: zeros, across: zeros, cosine: zeros,
      gap: zeros, gap_forward: zeros, axis: [-1, 1, 0.5],
    };
  }

  const { loss, perToken, toGo } = PLACES[place];
  const values = ESTIMATORS.map((k) => {
    const value = (_, y) => (perToken ? tokens[y].reduce((sum, l) => sum + k(l), 0) : k(wholes[y]));
    const mean = expectation(here, value);
    return { mean, spread: Math.sqrt(expectation(here, (r, y) => (value(r, y) - mean) ** 2)) };
  });
  const gradients = (loss ? SLOPES : ESTIMATORS).map((f) => {
    if (!perToken) return gradient(same(f));
    if (!toGo) return gradient((_, y) => tokens[y].map(f));
    return gradient((_, y) => {
      let later = 0;
      return tokens[y].map(f).reverse().map((k) => (later += k)).reverse();
    });
  });
  // ‖g − factor·other‖ in units of ‖∇KL‖; exactly 0 where only rounding is left
  const apart = (g, other, factor = 1) => {
    const distance = norm(g.map((x, i) => x - factor * other[i]));
    return distance > ROUNDING * norm(g) ? distance / slope : 0;
  };
  const along = gradients.map((g) => dot(g, truth) / slope ** 2);
  const across = gradients.map((g, i) => apart(g, truth, along[i]));
  const sizes = along.map((a, i) => Math.hypot(a, across[i]));
  const mean = values.map((v) => v.mean);
  const deviation = values.map((v) => v.spread);
  return {
    kl,
    slope,
    mean,
    spread: deviation,
    along,
    across,
    cosine: along.map((a, i) => (sizes[i] > ROUNDING ? a / sizes[i] : 0)),
    gap: gradients.map((g) => apart(g, truth)),
    gap_forward: gradients.map((g) => apart(g, forward)),
    axis: valueAxis(kl, mean, deviation),
  };
}

// Round, wide enough for k1, at most three times that for the others.
function valueAxis(kl, mean, deviation) {
  const scale = kl + deviation[0];
  const lows = mean.map((m, i) => m - deviation[i]);
  const low = Math.max(Math.min(0, ...lows), -1.5 * scale);
  const high = Math.min(Math.max(...mean.map((m, i) => m + deviation[i])), 3 * scale);
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  return [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step, step];
}

// What estimator i's expected gradient is.
function kind(n, i) {
  if (Math.hypot(n.along[i], n.across[i]) <= ROUNDING) return "zero";
  if (n.gap[i] === 0) return "exact";
  if (n.gap_forward[i] === 0) return "forward";
  if (Math.abs(n.cosine[i]) < ACROSS) return "across";
  return n.along[i] < 0 ? "away" : "biased";
}

// --- the sentence ----------------------------------------------------------------------------

const nats = (value) => significant(value, 3);
const share = (value) =>
  Math.abs(value) < 10 ? fixed(value, 3) : (value < 0 ? "−" : "") + nats(Math.abs(value));

function bias(factor) {
  if (factor >= 2) return `averages ${nats(factor)} times that`;
  const percent = 100 * Math.abs(factor - 1);
  const words = percent < 0.1 ? "less than 0.1" : fixed(percent, 1);
  return `averages ${words} % ${factor > 1 ? "more" : "less"}`;
}

function push(n, i) {
  const part = `projects to ${share(n.along[i])} × ∇KL (cosine ${fixed(n.cosine[i], 3)})`;
  switch (kind(n, i)) {
    case "zero": return "averages to no gradient";
    case "exact": return "gives exactly ∇KL";
    case "forward": return `gives ∇KL(π_ref‖π) instead, which ${part}`;
    case "across": return `stands almost at right angles to ∇KL: it ${part}`;
    case "away": return `raises the KL: it ${part}`;
    default: return part;
  }
}

export function sentence(state) {
  const n = numbers(state);
  if (n.slope === 0) {
    return "At this distance the policy is the reference: KL(π‖π_ref), every k and every "
      + "gradient are 0. Move the distance.";
  }
  const all = [0, 1, 2];
  const hits = (i) => Math.abs(n.mean[i] - n.kl) <= ROUNDING * n.kl;
  const named = (i) => `${NAMES[i]} (${i === 0 ? "spread " : ""}±${nats(n.spread[i])})`;
  const hit = all.filter(hits);
  const values = [
    `KL(π‖π_ref) is ${nats(n.kl)} nats: over responses ${hit.map(named).join(" and ")} `
      + `${hit.length > 1 ? "average" : "averages"} exactly that`,
    ...all.filter((i) => !hits(i)).map((i) => `${named(i)} ${bias(n.mean[i] / n.kl)}`),
  ];
  const pushes = all.map((i) => `${NAMES[i]} ${push(n, i)}`).join("; ");
  const right = all.filter((i) => kind(n, i) === "exact").map((i) => NAMES[i]);
  let verdict = "Here none of them gives the gradient of the KL.";
  if (right.length > 0) {
    const gives = right.length === 1 ? "gives" : "give";
    verdict = `Here ${right.join(" and ")} alone ${gives} the gradient of the KL.`;
  } else if (state.policy === "tree") {
    verdict = "Here none of them gives the gradient of the KL of whole responses: a token also "
      + "decides which prefixes come next, and no k of one token knows about them.";
  }
  return `${values.join(", ")}. ${PLACES[state.place].words}, ${pushes}. ${verdict}`;
}

const SAME_GRADIENT =
  "Independent tokens: in the loss, per token and sequence give the same gradient on "
  + "average: the other tokens' parts of the response's k average out. ";
const note = ({ policy, place }) =>
  (policy === "independent" && PLACES[place].loss ? SAME_GRADIENT : "")
  + "Per token: each token's k, summed; sequence: k of the response's ℓ. Distance: 0 is π_ref, 1 "
  + "the built-in policy, straight on in the logits. "
  + "Half disc: to the right along ∇KL; upwards the part at right angles to it, each k in a "
  + "direction of its own. Responses are sampled from π. k1 = ℓ, k2 = ½ℓ², "
  + "k3 = exp(−ℓ) − 1 + ℓ, ℓ = log π − log π_ref (Schulman 2020). GRPO: Shao et al. 2024, eq. 4. "
  + "PPO: Ouyang et al. 2022, eq. 2. The built-in tree was chosen because it shows the error "
  + "clearly.";

// --- the picture -----------------------------------------------------------------------------

const COLORS = ["var(--series-1)", "var(--series-2)", "var(--series-3)"];
const DASHES = ["2 4", null, "8 4"];
const REACH = 1.6; // the compass' rim, in units of ‖∇KL‖

// ● k1, ■ k2, ▲ k3
function mark(i, x, y, r = 5) {
  const look = { fill: COLORS[i], stroke: "var(--paper)", "stroke-width": 1.2 };
  if (i === 0) return svg("circle", { cx: x, cy: y, r, ...look });
  if (i === 1) return svg("rect", { x: x - r, y: y - r, width: 2 * r, height: 2 * r, ...look });
  const points = `${x},${y - 1.2 * r} ${x - 1.2 * r},${y + 0.9 * r} ${x + 1.2 * r},${y + 0.9 * r}`;
  return svg("polygon", { points, ...look });
}

// An arrow head at (x, y) that looks along (dx, dy), a unit vector.
function head(x, y, dx, dy, color, size = 7) {
  const point = (a, b) => `${x + a * dx - b * dy},${y + a * dy + b * dx}`;
  const points = [point(0, 0), point(-size, 0.6 * size), point(-size, -0.6 * size)].join(" ");
  return svg("polygon", { points, fill: color });
}

function valuePanel(n, width) {
  const [low, high, step] = n.axis;
  const left = 38;
  const numbersOf = (i) => `${nats(n.mean[i])} ± ${nats(n.spread[i])}`;
  const longest = Math.max(...NAMES.map((_, i) => numbersOf(i).length));
  const right = width - Math.max(118, 7.3 * longest + 12);
  const top = 46;
  const row = 27;
  const bottom = top + 3 * row;
  const x = (value) => left + ((right - left) * (value - low)) / (high - low);
  const parts = [text(0, 13, "Value of k over one response, nats", { bold: true })];
  const counts = [(high - low) / step, 4, 3, 2, 1];
  const fits = ([first, second]) =>
    !second || x(second.value) - x(first.value) > 8 * Math.max(first.label.length, 3) + 6;
  for (const { value, label } of counts.map((count) => ticks(low, high, count)).find(fits)) {
    parts.push(line(x(value), top, x(value), bottom, { stroke: "var(--grid)" }));
    parts.push(text(x(value), bottom + 17, label, { anchor: "middle" }));
  }
  parts.push(svg("rect", {
    x: left, y: top, width: right - left, height: 3 * row, fill: "none", stroke: "var(--line)",
  }));
  parts.push(line(x(n.kl), top - 4, x(n.kl), bottom, { stroke: "var(--ink)", "stroke-width": 1.5 }));
  const label = `KL ${nats(n.kl)}`;
  const half = 3.9 * label.length;
  const at = Math.min(right - half, Math.max(left + half, x(n.kl)));
  parts.push(text(at, top - 9, label, { bold: true, anchor: "middle" }));
  parts.push(text(width, top - 9, "mean ± deviation", { anchor: "end", fill: "var(--soft)" }));
  NAMES.forEach((name, i) => {
    const y = top + row * (i + 0.5);
    const [from, to] = [n.mean[i] - n.spread[i], n.mean[i] + n.spread[i]];
    const ends = [Math.max(low, from), Math.min(high, to)].map(x);
    const look = { stroke: COLORS[i], "stroke-width": 3 };
    parts.push(text(left - 10, y + 4.5, name, { anchor: "end" }));
    if (ends[0] < ends[1]) parts.push(line(ends[0], y, ends[1], y, look));
    if (from < low) parts.push(head(left + 1, y, -1, 0, COLORS[i], 10));
    else if (n.spread[i] > 0) parts.push(line(ends[0], y - 5, ends[0], y + 5, look));
    if (to > high) parts.push(head(right - 1, y, 1, 0, COLORS[i], 10));
    else if (n.spread[i] > 0) parts.push(line(ends[1], y - 5, ends[1], y + 5, look));
    if (n.mean[i] <= high) parts.push(mark(i, x(n.mean[i]), y));
    parts.push(text(width, y + 4.5, numbersOf(i), { anchor: "end" }));
  });
  return { parts, bottom: bottom + 24 };
}

// A half disc: along ∇KL to the right, whatever stands at right angles to it upwards.
function compass(n, middle, base, radius) {
  const unit = radius / REACH;
  const arc = (r) => `M ${middle - r} ${base} A ${r} ${r} 0 0 1 ${middle + r} ${base}`;
  const at = (angle, r) => [middle + r * Math.cos(angle), base - r * Math.sin(angle)];
  const parts = [
    svg("path", { d: `${arc(radius)} Z`, fill: "none", stroke: "var(--line)" }),
    svg("path", { d: arc(unit), fill: "none", stroke: "var(--line)", "stroke-dasharray": "3 3" }),
    line(middle, base, middle, base - radius, { stroke: "var(--grid)" }),
  ];
  for (const [r, words] of n.slope > 0 ? [[radius, String(REACH)], [unit, "1"]] : []) {
    parts.push(text(middle + 5, base - r + 15, words, {
      fill: "var(--soft)", "font-size": 11, halo: true,
    }));
  }
  for (const side of n.slope > 0 ? [-1, 1] : []) {
    const x = middle + side * unit;
    parts.push(line(x, base, x, base + 5));
    const label = side > 0 ? "∇KL" : "−∇KL";
    parts.push(text(x, base + 19, label, { anchor: "middle", bold: side > 0 }));
  }
  const half = Math.min(middle, Math.max(radius, 145));
  const soft = { fill: "var(--soft)" };
  parts.push(text(middle - half, base + 39, "← a step raises KL", soft));
  parts.push(text(middle + half, base + 39, "a step lowers KL →", { anchor: "end", ...soft }));
  if (n.slope > 0) {
    const thick = { stroke: "var(--ink)", "stroke-width": 6, opacity: 0.28 };
    parts.push(line(middle, base, middle + unit - 12, base, thick));
    parts.push(svg("g", { opacity: 0.45 }, head(middle + unit, base, 1, 0, "var(--ink)", 15)));
  }

  const kinds = NAMES.map((_, i) => (n.slope > 0 ? kind(n, i) : "zero"));
  const shown = [0, 1, 2].filter((i) => kinds[i] !== "zero");
  const angle = (i) => Math.atan2(n.across[i], n.along[i]);
  shown.sort((i, j) => angle(i) - angle(j) || i - j);
  const degree = Math.PI / 180;
  const labels = spread(shown.map(angle), 12 * degree, 7 * degree, 173 * degree);
  const marks = [];
  shown.forEach((i, place) => {
    const size = Math.hypot(n.along[i], n.across[i]);
    const clipped = size > REACH;
    const length = Math.min(size, REACH) * unit;
    const [dx, dy] = [Math.cos(angle(i)), -Math.sin(angle(i))];
    const [x, y] = at(angle(i), length);
    const look = { stroke: COLORS[i], "stroke-width": 2.5, "stroke-dasharray": DASHES[i] };
    parts.push(line(middle, base, x, y, look));
    const [lx, ly] = at(labels[place], radius + 6);
    const thin = { stroke: COLORS[i], "stroke-width": 1, "stroke-dasharray": "1 3" };
    parts.push(line(x, y, lx, ly, thin));
    if (clipped) {
      marks.push(head(x, y, dx, dy, COLORS[i], 10));
      marks.push(head(x - 9 * dx, y - 9 * dy, dx, dy, COLORS[i], 10));
    } else {
      marks.push(mark(i, x, y));
    }
    const [tx, ty] = at(labels[place], radius + 17);
    marks.push(text(tx, ty + 4.5, NAMES[i], { anchor: "middle", bold: true }));
  });
  const nothing = [0, 1, 2].filter((i) => kinds[i] === "zero");
  nothing.forEach((i) => marks.push(mark(i, middle, base)));
  if (nothing.length > 0) {
    const words = `${nothing.map((i) => NAMES[i]).join(" = ")} = 0`;
    marks.push(text(middle, base + 19, words, { anchor: "middle" }));
  }
  return [...parts, ...marks];
}

const WORDS = {
  zero: "nothing", exact: "exact", forward: "other KL", across: "sideways", away: "away",
  biased: "biased",
};

function gradientTable(n, left, top, width) {
  const columns = [left + 46, left + 0.52 * width, left + 0.72 * width, left + 0.76 * width];
  const soft = { anchor: "end", fill: "var(--soft)" };
  const parts = [
    text(columns[1], top, "along ∇KL", soft),
    text(columns[2], top, "cosine", soft),
    line(left, top + 9, left + width, top + 9, { stroke: "var(--grid)" }),
  ];
  NAMES.forEach((name, i) => {
    const y = top + 29 + 25 * i;
    const what = n.slope > 0 ? kind(n, i) : "zero";
    parts.push(line(left, y - 4.5, left + 36, y - 4.5, {
      stroke: COLORS[i], "stroke-width": 2.5, "stroke-dasharray": DASHES[i],
    }));
    parts.push(mark(i, left + 18, y - 4.5));
    parts.push(text(columns[0], y, name, { bold: true }));
    parts.push(text(columns[1], y, share(n.along[i]), { anchor: "end" }));
    const cosine = what === "zero" ? "–" : fixed(n.cosine[i], 3);
    parts.push(text(columns[2], y, cosine, { anchor: "end" }));
    parts.push(text(columns[3], y, WORDS[what]));
  });
  return parts;
}

function draw(state, { width }) {
  const n = numbers(state);
  const { parts, bottom } = valuePanel(n, width);
  const title = bottom + 26;
  const radius = Math.min(190, width / 2 - 32);
  const base = title + 32 + radius;
  parts.push(text(0, title, "Expected gradient of k, ‖∇KL‖ = 1", { bold: true }));
  parts.push(...compass(n, width / 2, base, radius));
  const wide = Math.min(width, 460);
  parts.push(...gradientTable(n, (width - wide) / 2, base + 70, wide));
  return picture(width, base + 160, about(n), ...parts);
}

function about(n) {
  const rows = NAMES.map((name, i) => {
    const value = `${name}: mean ${nats(n.mean[i])}, deviation ${nats(n.spread[i])}`;
    return `${value}; gradient ${share(n.along[i])} along ∇KL, ${share(n.across[i])} across`;
  });
  return "Above, the mean of each estimator with a bar of one standard deviation to each side, and "
    + `the true KL, ${nats(n.kl)} nats, as a line. Below, a half disc with ∇KL pointing right and `
    + `the expected gradients as arrows, in units of its length. ${rows.join(". ")}.`;
}

export default widget({ title: "KL estimators", draw, sentence, note });
