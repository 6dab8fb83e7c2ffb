// What every widget of the course shares: look, keyboard, state, live text.
//
// A widget is one class in Python and one module like clip_region.js, which calls
//   mount({ model, el, title, keys, build })
// and gets a shadow root (the page's own CSS cannot leak in), a local copy of the state that is
// drawn at once and sent to Python a moment later, a light and a dark palette that follow the
// page, and a sentence that screen readers announce.
// `model` needs get, set, on, off and save_changes only, so a page without a kernel can pass a
// plain object.
// Leaves out: any mathematics, and anything that only one widget draws.

const SYNC_DELAY_MS = 150;
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

// --- numbers -------------------------------------------------------------------------------

// Rounds halves up, as `fixed` in base.py does, so that both languages print the same sentence.
export function fixed(value, digits) {
  const scale = 10 ** digits;
  return (Math.floor(value * scale + 0.5) / scale).toFixed(digits).replace("-", "−");
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

// --- controls ------------------------------------------------------------------------------

let controlCount = 0;

// A labelled native slider. `show` turns its value into the text beside the label.
export function slider({ label, min, max, step, show, onInput }) {
  const id = `control-${(controlCount += 1)}`;
  const input = html("input", { type: "range", id, min, max, step, ...KEEP_KEYS });
  const shown = html("span", { class: "value", "aria-hidden": "true" }); // the slider says it
  input.addEventListener("input", () => onInput(Number(input.value)));
  return {
    node: html("div", { class: "slider" }, html("label", { for: id }, label), shown, input),
    set(value) {
      input.value = value;
      input.setAttribute("aria-valuetext", show(value));
      shown.textContent = show(value);
    },
  };
}

// A named group of native radio buttons; `options` are { value, label, mark? }.
export function choice({ label, options, onChoose }) {
  const name = `control-${(controlCount += 1)}`;
  const inputs = options.map(({ value }) => {
    const input = html("input", { type: "radio", name, value, ...KEEP_KEYS });
    input.addEventListener("change", () => onChoose(value));
    return input;
  });
  const labels = options.map(({ label, mark }, i) =>
    html("label", {}, inputs[i], ...(mark ? [mark] : []), html("span", {}, label)),
  );
  const row = html("div", { class: "options" }, ...labels);
  return {
    node: html("fieldset", {}, html("legend", {}, label), row),
    set(chosen) {
      options.forEach(({ value }, i) => {
        inputs[i].checked = value === chosen;
      });
    },
  };
}

export function button({ label, onPress }) {
  const node = html("button", { type: "button", ...KEEP_KEYS }, label);
  node.addEventListener("click", onPress);
  return { node };
}

// --- light and dark ------------------------------------------------------------------------

function luminance(color) {
  const [r, g, b, alpha] = (color.match(/[\d.]+/g) || []).map(Number);
  return alpha === 0 || b === undefined ? null : (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
}

// JupyterLab and documentation sites say which theme they use; elsewhere light text means dark.
function isDark(host) {
  const lab = document.body.getAttribute("data-jp-theme-light");
  if (lab !== null) return lab === "false";
  const site = document.documentElement.dataset.theme;
  if (site === "dark" || site === "light") return site === "dark";
  return (luminance(getComputedStyle(host).color) ?? 0) > 0.5;
}

function followTheme(host, root) {
  const apply = () => root.classList.toggle("dark", isDark(host));
  const observer = new MutationObserver(apply);
  for (const node of [document.documentElement, document.body]) {
    observer.observe(node, { attributes: true });
  }
  apply();
  return () => observer.disconnect();
}

// --- the frame -----------------------------------------------------------------------------

const CSS = `
  :host { display: block; }
  .widget {
    --paper: #ffffff; --ink: #1a1a1a; --soft: #595959; --line: #8a8a8a; --grid: #dedede;
    --hatch: #a6a6a6; --dead: #f1f1f1; --positive: #0072b2; --negative: #d55e00; --focus: #1a1a1a;
    container-type: inline-size; box-sizing: border-box; max-width: 980px;
    color: var(--ink); background: var(--paper); border: 1px solid var(--line); border-radius: 6px;
    font: 14px/1.4 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif;
    color-scheme: light;
  }
  .widget.dark {
    --paper: #1b1d20; --ink: #f0f0f0; --soft: #b8b8b8; --line: #8c8c8c; --grid: #3c4045;
    --hatch: #70757c; --dead: #26292d; --positive: #56b4e9; --negative: #e69f00; --focus: #ffffff;
    color-scheme: dark;
  }
  .body {
    display: grid; grid-template-columns: 216px minmax(0, 1fr); gap: 20px; padding: 14px 16px;
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
  .options label {
    display: inline-flex; align-items: center; gap: 5px; cursor: pointer; white-space: nowrap;
  }
  .options svg { width: 11px; height: 11px; }
  input { accent-color: var(--positive); margin: 0; }
  .slider { display: grid; grid-template-columns: 1fr auto; gap: 4px 8px; align-items: baseline; }
  .slider label { font-weight: 600; }
  .slider .value { font-variant-numeric: tabular-nums; }
  .slider input { grid-column: 1 / -1; width: 100%; height: 20px; cursor: pointer; }
  button {
    font: inherit; color: inherit; background: var(--dead); border: 1px solid var(--line);
    border-radius: 5px; padding: 6px 10px; cursor: pointer;
  }
  button:hover { border-color: var(--ink); }
  .note { margin: 0; color: var(--soft); font-size: 13px; }
  :focus { outline: none; }
  :focus-visible { outline: 3px solid var(--focus); outline-offset: 2px; border-radius: 3px; }
  @container (max-width: 680px) {
    .body { grid-template-columns: minmax(0, 1fr); }
    .controls {
      display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); align-items: start;
    }
  }
`;

// Builds one view of a widget.
//   keys   names of the synchronised values that the drawing needs
//   build  ({ state, set }) -> { controls: [nodes], draw(state, width) -> { picture, sentence } }
//          where state() is the present state and set({ key: value }) changes it
// Returns the function that takes the view down again.
export function mount({ model, el, title, keys, build }) {
  const result = html("p", { class: "result", "aria-live": "polite", "aria-atomic": "true" });
  const picture = html("div", { class: "picture" });
  const controls = html("div", { class: "controls" });
  const root = html(
    "section",
    { class: "widget", role: "group", "aria-label": title },
    html("div", { class: "body" }, controls, picture),
    result,
  );
  const host = html("div", KEEP_KEYS);
  host.attachShadow({ mode: "open" }).append(html("style", {}, CSS), root);
  el.append(host);

  const state = Object.fromEntries(keys.map((key) => [key, model.get(key)]));
  let unsent = {};
  let timer = null;

  const send = () => {
    timer = null;
    const changes = unsent;
    unsent = {};
    for (const [key, value] of Object.entries(changes)) model.set(key, value);
    model.save_changes();
    root.removeAttribute("data-unsent");
  };
  const redraw = () => {
    const drawn = view.draw(state, picture.clientWidth || 680);
    picture.replaceChildren(drawn.picture);
    const words = drawn.sentence.replaceAll(" %", "\u00a0%"); // no line may begin with "%"
    if (result.textContent !== words) result.textContent = words;
  };
  const set = (changes) => {
    Object.assign(state, changes);
    Object.assign(unsent, changes);
    redraw();
    root.setAttribute("data-unsent", ""); // moved, not yet sent to Python
    clearTimeout(timer);
    timer = setTimeout(send, SYNC_DELAY_MS);
  };
  const view = build({ state: () => state, set });
  controls.append(...view.controls);

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
  const stopTheme = followTheme(el, root);
  let drawnWidth = picture.clientWidth;
  const observer = new ResizeObserver(() => {
    if (picture.clientWidth === drawnWidth) return;
    drawnWidth = picture.clientWidth;
    redraw();
  });
  observer.observe(picture);
  redraw();

  return () => {
    if (timer !== null) {
      clearTimeout(timer);
      send();
    }
    observer.disconnect();
    stopTheme();
    listeners.forEach((stop) => stop());
  };
}
