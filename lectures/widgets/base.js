// What every widget of the course shares: look, controls, keyboard, state, live text.
//
// A widget is one class in Python and one module (README.md in this folder shows a whole one):
//   export function numbers(state) { … }   what the picture shows, tested against Python
//   export function sentence(state) { … }  the result in words, the same text as in Python
//   export default widget({ title, draw, sentence, note, off, react });
// `widget` builds the controls that the Python class declared, in a shadow root (the page's own
// CSS cannot leak in), keeps a local copy of the state that is drawn at once and sent to Python a
// moment later, a light and a dark palette that follow the page, and a sentence that screen
// readers announce once the learner has stopped moving.
// `model` needs get, set, on, off and save_changes only, so a page without a kernel can pass a
// plain object.
// Leaves out: any mathematics, and anything that only one widget draws.

const SYNC_DELAY_MS = 150;
const SPEAK_DELAY_MS = 600; // after the last move, so that a drag is announced once
const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

// JupyterLab stops looking for shortcuts at the first element that carries this attribute, but
// it starts at the focused control, so every control carries it itself. Without it the arrow
// keys select cells and letters insert or delete them.
const KEEP_KEYS = { "data-lm-suppress-shortcuts": "true" };

// --- elements ------------------------------------------------------------------------------

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

export function html(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG_NAMESPACE, tag), attributes, children);
}

// Words for HTML: "π_ref" and "L_max" get a subscript, code such as mean_per_token stays as it is.
// The underscore is kept, too small to be seen, so that copied text holds it.
export function subscripted(content) {
  return String(content).split(/(?<!\w)([α-ωL])_(θ|\w+)/).map((part, i) => {
    if (i % 3 < 2) return part;
    const hidden = html("span", { class: "underscore", "aria-hidden": "true" }, "_");
    return html("sub", {}, hidden, part);
  });
}

// The same for a screen reader: "π ref".
const spoken = (content) => content.replace(/(?<!\w)([α-ωL])_(θ|\w+)/g, "$1 $2");

// --- numbers -------------------------------------------------------------------------------

// Rounds halves up, as `fixed` in base.py does, so that both languages print the same sentence.
export function fixed(value, digits) {
  const scale = 10 ** digits;
  const text = (Math.floor(value * scale + 0.5) / scale).toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
}

// At most four significant digits, no more than needed: 0.2, 0.0003, 1.05.
export const brief = (value) => String(Number(value.toPrecision(4))).replace("-", "−");

// `digits` significant digits: 23.2, 0.00120, 157; below 0.0001 as 4.01·10⁻⁶.
export function significant(value, digits) {
  if (Math.abs(value) < 1e-12) return "0";
  const power = Math.floor(Math.log10(Math.abs(value)));
  if (power < -4) {
    const exponent = String(-power).replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);
    return `${fixed(value * 10 ** -power, digits - 1)}·10⁻${exponent}`;
  }
  if (power < digits) return fixed(value, digits - 1 - power);
  const unit = 10 ** (power - digits + 1);
  return fixed(unit * Math.floor(value / unit + 0.5), 0);
}

// Round tick values: multiples of 1, 2 or 5 times a power of ten, about `count` of them.
export function ticks(low, high, count = 4) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const values = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9; i += 1) {
    values.push({ value: i * step, label: fixed(i * step, digits) });
  }
  return values;
}

// Moves label centres apart until neighbours are `gap` apart and all lie in [low, high].
// `wanted` must be sorted. If there is no room for all of them, they are spaced evenly.
export function spread(wanted, gap, low, high) {
  const count = wanted.length;
  if ((count - 1) * gap > high - low) {
    return wanted.map((_, i) => low + ((high - low) * (i + 0.5)) / count);
  }
  const placed = wanted.map((x) => Math.min(high, Math.max(low, x)));
  for (let i = 1; i < count; i += 1) placed[i] = Math.max(placed[i], placed[i - 1] + gap);
  let limit = high;
  for (let i = count - 1; i >= 0; i -= 1) {
    placed[i] = Math.min(placed[i], limit);
    limit = placed[i] - gap;
  }
  return placed;
}

// --- drawing -------------------------------------------------------------------------------

const BOLD = { "font-weight": 600 };
const HALO = {
  stroke: "var(--paper)", "stroke-width": 4, "stroke-linejoin": "round", "paint-order": "stroke",
};

// SVG text in ink; `bold`, `halo` (readable on hatching and over points) and `anchor` ("middle",
// "end") are short for what nearly every label needs. "ε_low" is drawn with "low" as a subscript.
export function text(x, y, content, { bold, halo, anchor, ...attributes } = {}) {
  const parts = String(content).split(/_(θ|\w+)/).map((part, i) => {
    if (i === 0) return part;
    return svg("tspan", i % 2 ? { dy: 3.5, "font-size": "0.78em" } : { dy: -3.5 }, part);
  });
  const look = { ...(bold && BOLD), ...(halo && HALO), "text-anchor": anchor };
  return svg("text", { x, y, fill: "var(--ink)", ...look, ...attributes }, ...parts);
}

export function line(x1, y1, x2, y2, attributes = {}) {
  return svg("line", { x1, y1, x2, y2, stroke: "var(--line)", ...attributes });
}

// A pattern for `fill: "url(#hatch)"`: nothing happens here. Once per picture.
export function hatching() {
  const tile = { width: 7, height: 7 };
  const stroke = { stroke: "var(--hatch)", "stroke-width": 1.6 };
  return svg(
    "defs",
    {},
    svg(
      "pattern",
      { id: "hatch", ...tile, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      svg("rect", { ...tile, fill: "var(--dead)" }),
      line(0, 0, 0, 7, stroke),
    ),
  );
}

// The whole picture: `about` says to someone who cannot see it what is drawn.
export function picture(width, height, about, ...children) {
  const size = { viewBox: `0 0 ${width} ${height}`, height };
  return svg("svg", { ...size, role: "img", "aria-label": spoken(about) }, ...children);
}

// { fill, ink } for a signed number on a diverging scale: paper at 0, full colour at ±largest.
// The ink is black or white, whichever has more contrast (at least 4.5 : 1).
export function signedColor(value, largest, dark) {
  const strength = largest > 0 ? Math.min(1, Math.abs(value) / largest) : 0;
  const [paper, positive, negative] = dark
    ? [[27, 29, 32], [86, 180, 233], [230, 159, 0]]
    : [[255, 255, 255], [0, 114, 178], [213, 94, 0]];
  const full = value > 0 ? positive : negative;
  const mixed = paper.map((channel, i) => Math.round(channel + (full[i] - channel) * strength));
  const [r, g, b] = mixed.map((c) => (c <= 10 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  const bright = 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179;
  return { fill: `rgb(${mixed.join(", ")})`, ink: bright ? "#000000" : "#ffffff" };
}

// --- controls ------------------------------------------------------------------------------
//
// Each builder takes what the Python class declared (base.py, `Control.describe`) and a function
// that tells what the learner has chosen; it returns { node, set(value), disable(off) }.

let controlCount = 0;
const freshId = () => `control-${(controlCount += 1)}`;

// Text beside a slider: `digits` decimals, or up to four significant ones.
const shown = ({ digits }, value) => (digits === null ? brief(value) : fixed(value, digits));

// A native range input for a number; `name` is what names it. With `stops` it moves over their
// indices.
function range(control, name, onInput) {
  const { low, high, step, stops } = control;
  const limits = stops ? { min: 0, max: stops.length - 1, step: 1 } : { min: low, max: high, step };
  const input = html("input", { type: "range", ...name, ...limits, ...KEEP_KEYS });
  const distance = (i, value) => Math.abs(stops[i] - value);
  const nearest = (value) =>
    stops.reduce((best, _, i) => (distance(i, value) < distance(best, value) ? i : best), 0);
  input.addEventListener("input", () => {
    const at = Number(input.value);
    onInput(stops ? stops[at] : at);
  });
  const value = html("span", { class: "value", "aria-hidden": "true" }); // the slider says it
  return {
    input,
    value,
    set(number) {
      input.value = stops ? nearest(number) : number;
      input.setAttribute("aria-valuetext", shown(control, number));
      value.textContent = shown(control, number);
    },
  };
}

const builders = {
  slider(control, choose) {
    const id = freshId();
    const { input, value, set } = range(control, { id, "aria-label": nameOf(control) }, choose);
    const label = html("label", { for: id }, ...subscripted(control.label));
    const node = html("div", { class: "slider" }, label, value, input);
    return { node, set, disable: (off) => disable(node, [input], off) };
  },

  sliders(control, choose, current) {
    const rows = control.names.map((name, i) =>
      range(control, { "aria-label": `${nameOf(control)} ${name}` }, (number) =>
        choose(current().map((old, j) => (i === j ? number : old))),
      ),
    );
    const lines = rows.flatMap(({ input, value }, i) => [
      html("span", { "aria-hidden": "true" }, control.names[i]),
      value,
      input,
    ]);
    const grid = html("div", { class: "sliders" }, ...lines);
    const node = fieldset(control, grid);
    return {
      node,
      set: (numbers) => rows.forEach(({ set }, i) => set(numbers[i])),
      disable: (off) => disable(node, rows.map(({ input }) => input), off),
    };
  },

  // Native radio buttons, or a native menu where there are many options.
  choice(control, choose) {
    return control.menu ? menu(control, choose) : radios(control, choose);
  },

  toggle(control, choose) {
    const name = { "aria-label": nameOf(control) };
    const input = html("input", { type: "checkbox", ...name, ...KEEP_KEYS });
    input.addEventListener("change", () => choose(input.checked));
    const label = html("span", {}, ...subscripted(control.label));
    const node = html("label", { class: "toggle" }, input, label);
    return {
      node,
      set: (on) => { input.checked = on; },
      disable: (off) => disable(node, [input], off),
    };
  },

  presets(control, choose) {
    const buttons = control.options.map((option) => {
      const node = html("button", { type: "button", ...KEEP_KEYS }, ...subscripted(option.label));
      node.addEventListener("click", () => choose(option));
      return node;
    });
    const row = html("div", { class: "options" }, ...buttons);
    const node = control.label ? fieldset(control, row) : html("div", {}, row);
    node.classList.add("presets");
    return { node, set() {}, disable() {} };
  },
};

// What a screen reader calls a control, where that differs from its label.
const nameOf = ({ label, spoken: name = null }) => name ?? spoken(label);

function fieldset(control, ...children) {
  const legend = html("legend", {}, ...subscripted(control.label));
  return html("fieldset", { "aria-label": nameOf(control) }, legend, ...children);
}

function disable(node, inputs, off) {
  node.classList.toggle("off", off);
  for (const input of inputs) input.disabled = off;
}

function radios(control, choose) {
  const { options } = control;
  const name = freshId();
  const inputs = options.map(({ value }) => {
    const input = html("input", { type: "radio", name, value, ...KEEP_KEYS });
    input.addEventListener("change", () => choose(value));
    return input;
  });
  const labels = options.map(({ value, label }, i) => {
    if (value !== "positive" && value !== "negative") {
      return html("label", {}, inputs[i], html("span", {}, ...subscripted(label)));
    }
    const mark = html("span", { class: value, "aria-hidden": "true" }, label[0]); // ▲ or ▼
    return html("label", {}, inputs[i], mark, html("span", {}, ...subscripted(label.slice(1).trim())));
  });
  const row = html("div", { class: "options" }, ...labels);
  const node = fieldset(control, row);
  return {
    node,
    set: (chosen) => options.forEach(({ value }, i) => { inputs[i].checked = value === chosen; }),
    disable: (off) => disable(node, inputs, off),
  };
}

function menu(control, choose) {
  const items = control.options.map(({ value, label }) => html("option", { value }, label));
  const id = freshId();
  const input = html("select", { id, "aria-label": nameOf(control), ...KEEP_KEYS }, ...items);
  input.addEventListener("change", () => choose(input.value));
  const label = html("label", { for: id }, ...subscripted(control.label));
  const node = html("div", { class: "menu" }, label, input);
  return {
    node,
    set: (chosen) => { input.value = chosen; },
    disable: (off) => disable(node, [input], off),
  };
}

// --- light and dark ------------------------------------------------------------------------

function luminance(color) {
  const [r, g, b, alpha] = (color.match(/[\d.]+/g) || []).map(Number);
  return alpha === 0 || b === undefined ? null : (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
}

const media = (query) => window.matchMedia(query);
const FORCED = "(forced-colors: active)";
const PREFERS_DARK = "(prefers-color-scheme: dark)";

// With forced colours the system has chosen the ground. JupyterLab and documentation sites say
// which theme they use; elsewhere light text means dark.
function isDark(host) {
  if (media(FORCED).matches) return media(PREFERS_DARK).matches;
  const lab = document.body.getAttribute("data-jp-theme-light");
  if (lab !== null) return lab === "false";
  const site = document.documentElement.dataset.theme;
  if (site === "dark" || site === "light") return site === "dark";
  return (luminance(getComputedStyle(host).color) ?? 0) > 0.5;
}

function followTheme(host, root, changed) {
  const apply = () => {
    const dark = isDark(host);
    if (dark === root.classList.contains("dark")) return;
    root.classList.toggle("dark", dark);
    changed();
  };
  const observer = new MutationObserver(apply);
  for (const node of [document.documentElement, document.body]) {
    observer.observe(node, { attributes: true });
  }
  const queries = [media(FORCED), media(PREFERS_DARK)];
  queries.forEach((query) => query.addEventListener("change", apply));
  apply();
  return () => {
    observer.disconnect();
    queries.forEach((query) => query.removeEventListener("change", apply));
  };
}

// --- keys ----------------------------------------------------------------------------------

// JupyterLab's keys that have nothing to do with cells: save, find, sidebar, commands. It gets
// them although a control has the focus, else the browser would save the page as a file.
const HANDED_ON = ["s", "p", "f", "b", "shift c"];

function watchKeys(root, outside) {
  root.addEventListener("keydown", (event) => {
    const { key, ctrlKey, metaKey, shiftKey, altKey } = event;
    const lab = document.body.hasAttribute("data-jp-theme-light");
    const pressed = `${shiftKey ? "shift " : ""}${key.toLowerCase()}`;
    const handOn = lab && (ctrlKey || metaKey) && !altKey && HANDED_ON.includes(pressed);
    if (!handOn) return;
    const { code, keyCode } = event;
    const same = { key, code, keyCode, ctrlKey, metaKey, shiftKey };
    const copy = new KeyboardEvent("keydown", { ...same, bubbles: true, cancelable: true });
    if (!outside.dispatchEvent(copy)) event.preventDefault();
    event.stopPropagation();
  });
}

// --- the frame -----------------------------------------------------------------------------

const CSS = `
  :host { display: block; }
  .widget {
    --paper: #ffffff; --ink: #1a1a1a; --soft: #595959; --line: #8a8a8a; --grid: #dedede;
    --hatch: #a6a6a6; --dead: #f1f1f1; --positive: #0072b2; --negative: #d55e00; --focus: #1a1a1a;
    --series-1: #0072b2; --series-2: #d55e00; --series-3: #009e73; --series-4: #cc79a7;
    container-type: inline-size; position: relative; box-sizing: border-box; max-width: 980px;
    color: var(--ink); background: var(--paper); border: 1px solid var(--line); border-radius: 6px;
    font: 0.875rem/1.4 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif;
    color-scheme: light;
  }
  .widget.dark {
    --paper: #1b1d20; --ink: #f0f0f0; --soft: #b8b8b8; --line: #8c8c8c; --grid: #3c4045;
    --hatch: #70757c; --dead: #26292d; --positive: #56b4e9; --negative: #e69f00; --focus: #ffffff;
    --series-1: #56b4e9; --series-2: #e69f00; --series-3: #009e73; --series-4: #cc79a7;
    color-scheme: dark;
  }
  .body {
    display: grid; grid-template-columns: 15.43em minmax(0, 1fr); gap: 20px; padding: 14px 16px;
  }
  .controls { display: flex; flex-direction: column; gap: 12px; }
  .picture { min-width: 0; }
  .picture > svg { display: block; width: 100%; font: inherit; font-size: 13px; }
  .result {
    margin: 0; padding: 10px 16px; min-height: 2.8em; border-top: 1px solid var(--grid);
  }
  fieldset {
    margin: 0; padding: 4px 10px 8px; min-width: 0; border: 1px solid var(--line); border-radius: 5px;
  }
  legend { padding: 0 4px; font-weight: 600; }
  .options { display: flex; flex-wrap: wrap; gap: 4px 14px; }
  .options label { display: inline-flex; align-items: center; gap: 5px; cursor: pointer; }
  .positive { color: var(--positive); }
  .negative { color: var(--negative); }
  input { accent-color: var(--positive); margin: 0; }
  .slider { display: grid; grid-template-columns: 1fr auto; gap: 4px 8px; align-items: baseline; }
  .slider label { font-weight: 600; }
  .slider .value { font-variant-numeric: tabular-nums; }
  .slider input { grid-column: 1 / -1; }
  input[type="range"] { width: 100%; height: 20px; cursor: pointer; }
  .sliders { display: grid; grid-template-columns: auto auto 1fr; gap: 4px 10px; align-items: center; }
  .sliders .value { text-align: right; font-variant-numeric: tabular-nums; }
  .toggle { display: flex; align-items: baseline; gap: 7px; cursor: pointer; }
  .menu { display: grid; gap: 4px; }
  .menu label { font-weight: 600; }
  select {
    font: inherit; color: inherit; background: var(--dead); border: 1px solid var(--line);
    border-radius: 5px; padding: 5px 6px; max-width: 100%;
  }
  .off { color: var(--soft); }
  .off input { cursor: default; }
  .presets { border: none; padding: 0; }
  .presets legend { padding: 0 0 4px; }
  .presets .options { gap: 6px; }
  button {
    font: inherit; color: inherit; background: var(--dead); border: 1px solid var(--line);
    border-radius: 5px; padding: 6px 10px; cursor: pointer;
  }
  button:hover { border-color: var(--ink); }
  .note { margin: 0; color: var(--soft); font-size: 0.93em; }
  sub { font-size: 0.78em; line-height: 0; }
  .underscore { font-size: 0; }
  .spoken {
    position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%);
    white-space: nowrap;
  }
  :focus { outline: none; }
  :focus-visible { outline: 3px solid var(--focus); outline-offset: 2px; border-radius: 3px; }
  @container (max-width: 48.57em) {
    .body { grid-template-columns: minmax(0, 1fr); }
    .controls {
      display: grid; grid-template-columns: repeat(auto-fit, minmax(min(12.85em, 100%), 1fr)); align-items: start;
    }
    .controls > .presets, .controls > .note { grid-column: 1 / -1; }
  }
`;

// A widget's default export.
//   title     what a screen reader calls it
//   draw      (state, { width, dark, set }) → the picture, an element. set({ key: value }) changes
//             the state. A picture that keeps its element (and the focus in it) returns the same one.
//   sentence  (state) → the result in words
//   note      (state) → a remark below the controls                                    (optional)
//   off       (state) → keys of controls that change nothing in the present state     (optional)
//   react     (key, state) → further changes after the learner has moved a control, or pressed
//             the preset `key`, which has none of its own                             (optional)
export function widget(parts) {
  return { ...parts, render: ({ model, el }) => mount({ model, el, ...parts }) };
}

function mount({ model, el, title, draw, sentence, note, off = () => [], react = () => ({}) }) {
  const result = html("p", { class: "result" });
  const status = html("div", { class: "spoken", role: "status" });
  const place = html("div", { class: "picture" });
  const panel = html("div", { class: "controls" });
  const root = html(
    "section",
    { class: "widget", role: "group", "aria-label": title },
    html("div", { class: "body" }, panel, place),
    result,
    status,
  );
  const host = html("div", KEEP_KEYS);
  const shadow = host.attachShadow({ mode: "open" });
  shadow.append(html("style", {}, CSS), root);
  el.append(host);
  watchKeys(root, el);

  const described = model.get("controls");
  const keys = described.map(({ key }) => key).filter((key) => key !== "");
  const state = Object.fromEntries(keys.map((key) => [key, model.get(key)]));
  let unsent = {};
  let timer = null;
  let speaking = null;

  // What the learner's own moves led to is announced; what Python sets is not.
  const speak = () => {
    const heard = spoken(result.textContent);
    if (status.textContent !== heard) status.textContent = heard;
  };
  const send = () => {
    timer = null;
    const changes = unsent;
    unsent = {};
    for (const [key, value] of Object.entries(changes)) model.set(key, value);
    model.save_changes();
    root.removeAttribute("data-unsent");
  };
  const set = (changes) => {
    Object.assign(state, changes);
    Object.assign(unsent, changes);
    redraw();
    root.setAttribute("data-unsent", ""); // moved, not yet sent to Python
    clearTimeout(timer);
    timer = setTimeout(send, SYNC_DELAY_MS);
    clearTimeout(speaking);
    speaking = setTimeout(speak, SPEAK_DELAY_MS);
  };
  const choose = (key, value) => {
    const changes = { [key]: value };
    set({ ...changes, ...react(key, { ...state, ...changes }) });
  };
  const controls = described
    .filter(({ kind }) => kind !== "data")
    .map((control) => {
      const { key, kind } = control;
      const press = (option) => set(option.changes ?? react(option.key, state));
      const act = kind === "presets" ? press : (value) => choose(key, value);
      return { key, ...builders[kind](control, act, () => state[key]) };
    });
  const remark = html("p", { class: "note" });
  panel.append(...controls.map(({ node }) => node), ...(note ? [remark] : []));

  const redraw = () => {
    const still = off(state);
    const focused = shadow.activeElement;
    for (const control of controls) {
      control.set(state[control.key]);
      control.disable(still.includes(control.key));
    }
    if (focused?.disabled) nextOf(focused, panel)?.focus();
    write(remark, note ? note(state) : "");
    const view = { width: place.clientWidth || 680, dark: root.classList.contains("dark"), set };
    const drawn = draw(state, view);
    if (drawn !== place.firstChild) place.replaceChildren(drawn);
    if (write(result, sentence(state))) status.textContent = "";
  };

  // Values that Python or another view of the same widget has changed. What the learner has
  // just moved, and what is not yet sent, wins.
  const listeners = keys.map((key) => {
    const listener = () => {
      if (key in unsent || state[key] === model.get(key)) return;
      state[key] = model.get(key);
      redraw();
    };
    model.on(`change:${key}`, listener);
    return () => model.off(`change:${key}`, listener);
  });
  const stopTheme = followTheme(el, root, () => redraw());
  let drawnWidth = place.clientWidth;
  const observer = new ResizeObserver(() => {
    if (place.clientWidth === drawnWidth) return;
    drawnWidth = place.clientWidth;
    redraw();
  });
  observer.observe(place);
  redraw();

  return () => {
    if (timer !== null) {
      clearTimeout(timer);
      send();
    }
    clearTimeout(speaking);
    observer.disconnect();
    stopTheme();
    listeners.forEach((stop) => stop());
  };
}

// No line may begin with "%" or "×".
const unbroken = (content) => content.replace(/ (?=[%×])/g, "\u00a0");

// Whether this changed what is written there.
function write(node, content) {
  const wanted = unbroken(content);
  if (node.textContent === wanted) return false;
  node.replaceChildren(...subscripted(wanted));
  return true;
}

// The control after one that was switched off, or the last before it.
function nextOf(control, panel) {
  const all = [...panel.querySelectorAll("input, select, button")];
  const on = (node) => !node.disabled && (node.type !== "radio" || node.checked);
  const at = all.indexOf(control);
  return all.slice(at).find(on) ?? all.slice(0, at).reverse().find(on);
}
