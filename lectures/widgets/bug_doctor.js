// The bug doctor: seven blinded runs, probes that cost points, a diagnosis from the catalogue.
// Python has trained the runs and carries what every probe saw in the state (`record`); this file
// keeps the account and draws what was paid for.
// Leaves out: the training; titles and prices, which come with the record.

import { fixed, hatching, line, picture, signedColor, svg, text, ticks, widget } from "./base.js";

const PATIENTS = "ABCDEFG";
const POINTS = 10;
const WRONG = 4;
const CURVES = { reward: "Reward", loss: "Loss", gradient: "Gradient length" };
const LINES = { lengths: ["Length", "cut"], surprise: ["Entropy", "surprise"] };

// --- the rules -----------------------------------------------------------------------------------

const sum = (list) => list.reduce((total, x) => total + x, 0);
const points = (count) => (count === 1 ? "1 point" : `${count} points`);
const reading = (curve, value) => fixed(value, curve === "gradient" ? 4 : 2);
// The record is one JSON text, read once.
const read = new Map();
function chart({ record }) {
  if (!read.has(record)) read.set(record, JSON.parse(record));
  return read.get(record);
}
const label = (state, diagnosis) => chart(state).titles[diagnosis];
const titleOf = (state, probe) => chart(state).probes[probe][0];
const priceOf = (state, probe) => chart(state).probes[probe][1];

const at = ({ patient }) => PATIENTS.indexOf(patient);
const truth = (state, i) => Object.keys(chart(state).titles)[chart(state).patients[i].truth];
const done = (state, i) => state.tried[i].at(-1) === truth(state, i);
const wrongs = (state, i) => state.tried[i].length - (done(state, i) ? 1 : 0);
const spent = (state, i) =>
  sum(state.ordered[i].map((probe) => priceOf(state, probe))) + WRONG * wrongs(state, i);
const left = (state, i) => Math.max(0, POINTS - spent(state, i));
const everyone = [...PATIENTS].map((_, i) => i);
const total = (state) => sum(everyone.map((i) => (done(state, i) ? left(state, i) : 0)));

export function numbers(state) {
  const { curves } = chart(state).patients[at(state)];
  const found = Object.keys(CURVES).map((name) => [name, curves[name][state.batch - 1]]);
  return {
    spent: everyone.map((i) => spent(state, i)),
    left: everyone.map((i) => left(state, i)),
    diagnosed: everyone.filter((i) => done(state, i)).length,
    total: total(state),
    read: Object.fromEntries(found),
  };
}

function verdict(state, i) {
  const { ordered, tried, probe, diagnosis } = state;
  if (done(state, i)) {
    const title = label(state, truth(state, i));
    return `${title}, ${left(state, i)} of ${POINTS} points. ${chart(state).patients[i].words}`;
  }
  const paid = ordered[i].map((name) => titleOf(state, name).toLowerCase()).join(", ");
  let words = `${points(spent(state, i))} spent${paid && ` (${paid})`}`;
  words += `, a right diagnosis brings ${left(state, i)}.`;
  if (tried[i].length > 0) {
    words += ` It is not: ${tried[i].map((name) => label(state, name)).join("; ")}.`;
  }
  if (!ordered[i].includes(probe)) {
    words += ` To be ordered: ${titleOf(state, probe).toLowerCase()}.`;
  }
  if (diagnosis !== "none") words += ` To be decided: ${label(state, diagnosis)}.`;
  return words;
}

export function sentence(state) {
  const { read: now, diagnosed } = numbers(state);
  const curves = Object.entries(now).map(([k, x]) => `${CURVES[k].toLowerCase()} ${reading(k, x)}`);
  const sofar = `${diagnosed} of ${PATIENTS.length} diagnosed, ${points(total(state))}.`;
  return (
    `Patient ${state.patient}: ${verdict(state, at(state))} ` +
    `At batch ${state.batch}: ${curves.join(", ")}. ${sofar}`
  );
}

const note = () =>
  `A patient is worth ${POINTS} points; a probe takes its price, a wrong diagnosis ${WRONG}. ` +
  "Six of the seven have a bug, no two the same; nobody has bf16, which no probe shows here. Loss " +
  "and gradient: a batch's last update. Map: push ÷ right push at the seventh batch's last update; " +
  "1 is right, 0 silent, − a turned sign, + pushed padding, · rightly nothing; large where the " +
  "right push is almost 0. Mask: filled tokens count. Dashed curves: the second number (cut: share " +
  "of all answers, drawn five times as high).";

const added = (rows, i, name) => rows.map((row, j) => (j === i ? [...row, name] : [...row]));

function react(key, state) {
  const { ordered, tried, probe, diagnosis } = state;
  const i = at(state);
  if (key === "patient") return { diagnosis: "none" };
  if (key === "again") {
    const empty = () => everyone.map(() => []);
    return { ordered: empty(), tried: empty(), diagnosis: "none", patient: "A" };
  }
  if (done(state, i)) return {};
  if (key === "order" && !ordered[i].includes(probe)) return { ordered: added(ordered, i, probe) };
  const open = diagnosis !== "none" && !tried[i].includes(diagnosis);
  if (key === "diagnose" && open) return { tried: added(tried, i, diagnosis), diagnosis: "none" };
  return {};
}

// --- the picture -----------------------------------------------------------------------------------

const ROW = 196;
const HEIGHT = 126;
const SMALL = { "font-size": 11, fill: "var(--soft)" };
const MONO = "ui-monospace, 'DejaVu Sans Mono', monospace";

// What is shown, in order: three curves, the probes that were paid, the next one.
function panels(state) {
  const i = at(state);
  const shown = done(state, i) ? Object.keys(chart(state).probes) : state.ordered[i];
  return [...Object.keys(CURVES), ...shown, ...(shown.includes(state.probe) ? [] : ["next"])];
}

function draw(state, { width, dark }) {
  const columns = Math.max(1, Math.floor((width + 18) / 230)); // a map needs 212
  const gap = 18;
  const wide = (width - gap * (columns - 1)) / columns;
  const seen = chart(state).patients[at(state)];
  const names = panels(state);
  const nodes = names.map((name, place) => {
    const x = (wide + gap) * (place % columns);
    const y = ROW * Math.floor(place / columns);
    return svg("g", { transform: `translate(${x.toFixed(1)} ${y})` }, ...panel(name, { state, seen, wide, dark }));
  });
  const height = ROW * Math.ceil(names.length / columns) - 8;
  return picture(width, height, about(state, names, seen), hatching(), ...nodes);
}

function panel(name, view) {
  if (name in CURVES || name in LINES) return curvePanel(name, view);
  if (name === "next") return ghost(view);
  const { state, seen, wide, dark } = view;
  const title = text(0, 13, titleOf(state, name), { bold: true });
  const rows = seen[name].rows;
  if (name === "samples") return [title, ...rows.map(sample)];
  if (name === "mask") return [title, ...rows.flatMap((row, r) => maskRow(row, r, wide))];
  if (name === "map") return [title, ...rows.flatMap((row, r) => mapRow(row, r, wide, dark))];
  return [title, ...histogram(seen[name], wide)];
}

const axisLeft = 40;
const top = 22;

function frame(wide) {
  const box = { x: axisLeft, y: top, width: wide - axisLeft - 2, height: HEIGHT };
  return svg("rect", { ...box, fill: "none", stroke: "var(--line)" });
}

function curvePanel(name, { state, seen, wide }) {
  const plain = name in CURVES;
  const all = plain ? { [name]: seen.curves[name] } : seen[name];
  const keys = Object.keys(all);
  const now = keys.map((key) => reading(key, all[key][state.batch - 1]));
  const title = plain ? `${CURVES[name]} ${now[0]}` : LINES[name].map((w, k) => `${w} ${now[k]}`).join(", ");
  const lists = keys.map((key) => all[key].map((x) => (key === "at_limit" ? 5 * x : x)));
  const [least, most] = [Math.min(0, ...lists.flat()), Math.max(...lists.flat())];
  const high = least + (most - least || 1) * 1.06; // a dead gradient is 0 throughout
  const x = (i) => axisLeft + ((wide - axisLeft - 2) * (i + 0.5)) / 40;
  const y = (value) => top + HEIGHT - (HEIGHT * (value - least)) / (high - least);
  const tiny = (value) => (value ? value.toExponential(0).replace("-", "−") : "0");
  const marks = ticks(least, high, 4).flatMap(({ value, label: words }) => [
    line(axisLeft, y(value), wide - 2, y(value), { stroke: "var(--grid)" }),
    text(axisLeft - 6, y(value) + 4, high < 1e-3 ? tiny(value) : words, { ...SMALL, anchor: "end" }),
  ]);
  const curves = lists.map((list, k) => svg("polyline", {
    points: list.map((value, i) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`).join(" "),
    fill: "none", stroke: `var(--series-${k + 1})`, "stroke-width": 1.8, "stroke-dasharray": k ? "5 3" : null,
  }));
  const cursor = line(x(state.batch - 1), top, x(state.batch - 1), top + HEIGHT, {
    stroke: "var(--ink)", "stroke-dasharray": "2 3",
  });
  const batches = [[1, "start"], [20, "middle"], [40, "end"]].map(([b, anchor]) =>
    text(x(b - 1), top + HEIGHT + 15, b, { ...SMALL, anchor }));
  return [text(0, 13, title, { bold: true }), ...marks, frame(wide), ...curves, cursor, ...batches];
}

function histogram({ counts, exactly_one: ones, ends }, wide) {
  const most = Math.max(...counts) * 1.06;
  const inner = wide - axisLeft - 2;
  const bars = counts.map((count, k) => svg("rect", {
    x: axisLeft + (inner * k) / 20 + 0.5, width: inner / 20 - 1, height: (HEIGHT * count) / most,
    y: top + HEIGHT * (1 - count / most), fill: "var(--series-1)",
  }));
  const marks = ticks(0, most, 3).map(({ value, label: words }) =>
    text(axisLeft - 6, top + HEIGHT * (1 - value / most) + 4, words, { ...SMALL, anchor: "end" }));
  const places = [[0, "0.5", "start"], [0.5, "1", "middle"], [1, "1.5", "end"]].map(([share, words, anchor]) =>
    text(axisLeft + inner * share, top + HEIGHT + 15, words, { ...SMALL, anchor }));
  const [low, high] = ends.map((x) => fixed(x, 2));
  const words = `${fixed(100 * ones, 0)} % exactly 1, ${low} to ${high}`;
  return [...marks, ...bars, frame(wide), ...places, text(0, top + HEIGHT + 31, words, SMALL)];
}

function sample({ prompt, response, reward }, r) {
  const words = `${prompt} → ${response.padEnd(5, "\u00a0")} ${fixed(reward, 0)} of 4`;
  return text(0, 36 + 17 * r, words, { "font-family": MONO, "font-size": 12 });
}

const CELL = 31;

function cell(r, c, words, fill, ink, wide) {
  const from = Math.min(50, wide - 5 * (CELL + 1));
  const box = { x: from + (CELL + 1) * c, y: 24 + 18 * r, width: CELL, height: 17 };
  return svg("g", { style: "forced-color-adjust: none" },
    svg("rect", { ...box, fill, stroke: "var(--grid)" }),
    text(box.x + CELL / 2, box.y + 13, words, { anchor: "middle", fill: ink, "font-size": 11 }));
}

const maskRow = ({ tokens, mask }, r, wide) => [...tokens].map((token, c) =>
  mask[c] ? cell(r, c, token, "var(--ink)", "var(--paper)", wide) : cell(r, c, token, "var(--dead)", "var(--soft)", wide));

function mapRow({ tokens, factors }, r, wide, dark) {
  const name = text(0, 37 + 18 * r, tokens, { "font-family": MONO, "font-size": 11.5 });
  return [name, ...factors.map((factor, c) => cell(r, c, ...shade(factor, dark), wide))];
}

// A factor in a cell's width; a small one keeps its digits, so that 0 is really 0.
function short(factor) {
  const size = Math.abs(factor);
  if (size > 0 && size < 0.095) return fixed(factor, 2).replace("0.", ".");
  return fixed(factor, size >= 9.95 ? 0 : 1);
}

// Words, fill and ink of one cell of the map.
function shade(factor, dark) {
  if (factor === null) return ["·", "var(--paper)", "var(--soft)"];
  if (factor === "+") return ["+", "var(--ink)", "var(--paper)"];
  const words = short(factor);
  const signed = factor < 0 ? [-1, 1] : [Math.min(1, 0.2 + 0.2 * factor), 1.6];
  const { fill, ink } = signedColor(...signed, dark);
  if (factor < 0 || factor > 1.05) return [words, fill, ink];
  return [words, factor < 0.95 ? "var(--dead)" : "var(--paper)", "var(--ink)"];
}

function ghost({ state, wide }) {
  const title = titleOf(state, state.probe);
  const half = Math.min(wide / 2 - 2, 4.2 * title.length + 10);
  const middle = { anchor: "middle" };
  return [
    svg("rect", { x: 0, y: top, width: wide - 2, height: HEIGHT, fill: "url(#hatch)", stroke: "var(--line)" }),
    svg("rect", { x: wide / 2 - half, y: top + 38, width: 2 * half, height: 50, fill: "var(--paper)", stroke: "var(--line)" }),
    text(wide / 2, top + 59, title, { ...middle, bold: true }),
    text(wide / 2, top + 78, points(priceOf(state, state.probe)), middle),
  ];
}

// The picture for someone who cannot see it: everything that was paid for, in numbers.
function about(state, names, seen) {
  const few = (list, name) => [0, 9, 19, 29, 39].map((i) => reading(name, list[i])).join(", ");
  const told = names.map((name) => {
    if (name in CURVES) return `${CURVES[name]} at batches 1, 10, 20, 30, 40: ${few(seen.curves[name], name)}`;
    if (name in LINES) {
      return Object.values(seen[name]).map((list, k) => `${LINES[name][k]}: ${few(list)}`).join("; ");
    }
    if (name === "next") return `not ordered: ${titleOf(state, state.probe)}`;
    const title = titleOf(state, name);
    if (name === "samples") {
      return `${title}: ${seen[name].rows.map((r) => `${r.prompt} to ${r.response}, ${r.reward}`).join("; ")}`;
    }
    if (name === "mask") {
      return `${title}: ${seen[name].rows.map((r) => `${r.tokens} ${r.mask.join("")}`).join("; ")}`;
    }
    if (name === "map") {
      const factors = (row) => row.factors.map((f) => (f === null ? "nothing" : f === "+" ? "pushed padding" : short(f))).join(" ");
      return `${title}: ${seen[name].rows.map((r) => `${r.tokens}: ${factors(r)}`).join("; ")}`;
    }
    const { exactly_one: ones, ends } = seen[name];
    return `${title}: ${fixed(100 * ones, 0)} % exactly 1, from ${fixed(ends[0], 2)} to ${fixed(ends[1], 2)}`;
  });
  return `Patient ${state.patient}. ${told.join(". ")}.`;
}

export default widget({ title: "Bug doctor", draw, sentence, note, react });
