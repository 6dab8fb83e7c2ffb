"""Every widget in a real browser, in a bare page with a stand-in for the kernel.

Each state in a widget's `examples` is drawn at several widths, light and dark.
"""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from lectures import widgets as course_widgets
from lectures.widgets import base
from lectures.widgets.still import shown

pytestmark = [pytest.mark.browser, pytest.mark.slow]

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
WIDGETS = [getattr(course_widgets, name) for name in course_widgets.__all__]
NOTEBOOKS = sorted((ROOT / "lectures").glob("*.ipynb"))
WIDTHS = (980, 848, 740, 700, 420, 320)  # 848: beside an open sidebar of JupyterLab
every_widget = pytest.mark.parametrize("widget", WIDGETS, ids=lambda w: w.name)

AUDIT = (HERE / "audit.js").read_text("utf-8")
STAGE = (HERE / "stage.js").read_text("utf-8")

READ = """
([states, colors]) => {
  const where = {};
  for (const theme of ["light", "dark"]) {
    states.forEach((state, i) => {
      show(state, theme);
      const complaints = audit.collisions(root);
      if (colors) complaints.push(...audit.contrast(root));
      if (root.classList.contains("dark") !== (theme === "dark")) complaints.push("wrong theme");
      for (const words of complaints) (where[words] ??= []).push(`${theme} ${i}`);
    });
  }
  return Object.entries(where).map(([words, places]) => `${words} in ${places.join(", ")}`);
}
"""

SAYS = """
(state) => {
  show(state);
  const off = [...root.querySelectorAll(".controls > .off")];
  const name = (node) => (node.querySelector("legend, label") ?? node).textContent;
  return [...seen().slice(1), off.map(name)];
}
"""

# The focused control, its name (or its group's) and what shows that it has the focus.
FOCUS = """
() => {
  const at = focused();
  if (!at || at === document.body) return null;
  const { outlineStyle, outlineWidth, outlineColor } = getComputedStyle(at);
  const ground = audit.color(getComputedStyle(root).backgroundColor);
  return {
    index: [...root.querySelectorAll("input, select, button, [tabindex]")].indexOf(at),
    visible: outlineStyle === "solid" && parseFloat(outlineWidth) >= 2,
    contrast: audit.ratio(audit.color(outlineColor), ground),
  };
}
"""

REACHABLE = """
() => {
  const all = [...root.querySelectorAll("input, select, button, [tabindex], a[href]")];
  const wanted = all.map((node, index) => ({ node, index })).filter(({ node }) =>
    node.tabIndex >= 0 && !node.disabled && (node.type !== "radio" || node.checked));
  return {
    wanted: wanted.map(({ index }) => index),
    unprotected: all.filter(({ dataset }) => dataset.lmSuppressShortcuts !== "true")
      .map(({ outerHTML }) => outerHTML),
  };
}
"""

VALUE_TEXTS = """
() => [...root.querySelectorAll(".controls input[type=range]")]
  .map((input) => input.getAttribute("aria-valuetext"))
"""

# Everything drawn while the system chooses the colours, on a page of either theme.
FORCED = """
(states) => states.flatMap((state) => ["light", "dark"].flatMap((theme) => {
  show(state, theme);
  const ground = audit.color(getComputedStyle(root).backgroundColor);
  const dark = audit.ratio(ground, [0, 0, 0]) < 4;
  const wrong = root.classList.contains("dark") === dark ? [] : ["wrong palette"];
  audit.markScrolling(root);
  return [...wrong, ...audit.contrast(root)];
}))
"""

# Counts what a screen reader is told.
LISTEN = """
() => {
  const status = root.querySelector("[role=status]");
  window.told = [];
  new MutationObserver(() => { if (status.textContent) told.push(status.textContent); })
    .observe(status, { childList: true, characterData: true, subtree: true });
}
"""

# Moves the first slider at once to one place after another, as a mouse does.
MOVES = """
(count) => {
  const input = root.querySelector(".controls input[type=range]:not(:disabled)");
  for (let i = 0; i < count; i += 1) {
    input.value = Number(input.min) + (input.max - input.min) * (0.2 + 0.6 * i / count);
    input.dispatchEvent(new Event("input"));
  }
}
"""

DRAG = """
(input) => {
  for (const share of [0.2, 0.3, 0.4, 0.5, 0.6, 0.7]) {
    input.value = Number(input.min) + share * (input.max - input.min);
    input.dispatchEvent(new Event("input"));
  }
}
"""


@pytest.fixture
def stage(page):
    """A function that puts a widget's module into the page."""

    def put(widget, width: int = 980) -> None:
        page.set_viewport_size({"width": width, "height": 3000})
        page.set_content("<body style='margin: 0'></body>")
        page.evaluate(f"() => {{ window.audit = {AUDIT.strip()}; }}")
        page.evaluate(STAGE, base.module(widget.name))

    return put


def states(widget) -> list[dict]:
    return [widget(**changes).state for changes in widget.examples]


def called(control: dict) -> str:
    """What a screen reader hears instead of the label; a subscript has no underscore there."""
    return control.get("spoken") or spoken(control["label"])


def spoken(words: str) -> str:
    return re.sub(r"(?<!\w)([α-ωL])_(θ|\w+)", r"\1 \2", words)


def value_texts(state) -> list[str]:
    """What the sliders say of themselves, in their order: the number as it is shown beside them."""
    texts = []
    for control in state["controls"]:
        value = state.get(control["key"])
        if control["kind"] in ("slider", "sliders"):
            texts += [shown(control, v) for v in (value if isinstance(value, list) else [value])]
    return texts


def plain(words: str) -> str:
    return words.replace("\u00a0", " ")


@pytest.mark.parametrize("width", WIDTHS)
@every_widget
def test_every_state_can_be_read_at_every_width_light_and_dark(widget, width, stage, page):
    stage(widget, width)
    colors = width in (WIDTHS[0], WIDTHS[-1])  # they do not depend on the width
    complaints = page.evaluate(READ, [states(widget), colors])
    assert not complaints, "\n".join(complaints)


@every_widget
def test_the_page_says_what_python_says(widget, stage, page):
    stage(widget)
    for changes in widget.examples:
        made = widget(**changes)
        sentence, note, off = page.evaluate(SAYS, made.state)
        assert plain(sentence) == made.sentence
        assert plain(note) == made.note
        assert off == [c["label"] for c in made.state["controls"] if c["key"] in made.off]


@every_widget
def test_every_control_has_a_name_and_a_value_for_a_screen_reader(widget, stage, page):
    stage(widget)
    for changes in (widget.examples[0], widget.examples[-1]):
        state = widget(**changes).state
        page.evaluate("(state) => show(state)", state)
        nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
        nodes = [node for node in nodes if not node["ignored"]]

        def of(role, nodes=nodes):
            return [node for node in nodes if node.get("role", {}).get("value") == role]

        def properties(node):
            return {p["name"]: p["value"].get("value") for p in node.get("properties", [])}

        def names(role):
            return [node["name"]["value"] for node in of(role)]

        expected = {role: [] for role in ("slider", "radio", "checkbox", "combobox", "button")}
        chosen = []
        for control in state["controls"]:
            kind, label, value = control["kind"], called(control), state.get(control["key"])
            if kind == "slider":
                expected["slider"].append(label)
            elif kind == "sliders":
                expected["slider"] += [f"{label} {name}" for name in control["names"]]
            elif kind == "toggle":
                expected["checkbox"].append(label)
            elif kind == "presets":
                expected["button"] += [option["label"] for option in control["options"]]
            elif kind == "choice" and control["menu"]:
                expected["combobox"].append(label)
            elif kind == "choice":
                options = {o["value"]: o["label"].lstrip("▲▼ ") for o in control["options"]}
                expected["radio"] += options.values()
                chosen.append(options[value])
                assert label in names("group")
        assert all(names("group"))
        for role, wanted in expected.items():
            heard = names(role)
            assert all(heard)
            assert not Counter(wanted) - Counter(heard)  # a picture may have further ones
        checked = [n["name"]["value"] for n in of("radio") if properties(n)["checked"] == "true"]
        assert checked == chosen
        assert page.evaluate(VALUE_TEXTS) == value_texts(state)
        for menu in of("combobox"):
            assert menu["value"]["value"]
        regions = [n for n in nodes if properties(n).get("live") == "polite"]
        assert [n["role"]["value"] for n in regions] == ["status"]
        assert plain(page.locator(".result").inner_text()) == widget(**changes).sentence
        (frame,) = page.locator(".widget").all()
        assert frame.get_attribute("role") == "group"
        assert frame.get_attribute("aria-label")
        for drawn in page.locator(".picture > svg").all():
            assert drawn.get_attribute("role")
            assert drawn.get_attribute("aria-label")


@every_widget
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_tab_reaches_every_control_and_one_sees_where_one_is(widget, theme, stage, page):
    stage(widget)
    page.evaluate("([state, theme]) => show(state, theme)", [widget().state, theme])
    reachable = page.evaluate(REACHABLE)
    assert reachable["unprotected"] == []  # JupyterLab would take their keys
    stops = []
    for _ in range(len(reachable["wanted"]) + 1):
        page.keyboard.press("Tab")
        stop = page.evaluate(FOCUS)
        if stop is None or stop["index"] in stops:
            break
        assert stop["visible"], stop
        assert stop["contrast"] >= 3, stop
        stops.append(stop["index"])
    assert stops == reachable["wanted"]


@every_widget
def test_a_key_on_every_control_changes_what_is_seen(widget, stage, page):
    """Each control is tried in the first example in which it is not off."""
    stage(widget)
    silent = None
    for state in states(widget):
        page.evaluate("(state) => show(state)", state)
        kinds = page.evaluate("() => controls().map((n) => n.type)")
        silent = set(range(len(kinds))) if silent is None else silent
        enabled = page.evaluate("() => controls().map((n) => !n.disabled)")
        for i in sorted(silent):
            if not enabled[i]:
                continue
            page.evaluate("(state) => show(state)", state)
            if seen_after(page, i, kinds[i]):
                silent.discard(i)
    assert [
        page.evaluate("(i) => controls()[i].outerHTML + controls()[i].ariaLabel", i) for i in silent
    ] == []


def seen_after(page, i: int, kind: str) -> bool:
    """Whether a key on control i changes the picture (any of what is seen for a button)."""
    focus = "(i) => controls()[i].focus()"
    if kind == "range":
        pictures = []
        for key in ("Home", "End"):
            page.evaluate(focus, i)
            page.keyboard.press(key)
            pictures.append(page.evaluate("() => seen()"))
        low, high = pictures
        return low[0] != high[0]
    before = page.evaluate("() => seen()")
    page.evaluate(focus, i)
    if kind == "radio":  # arrows move the choice: away from the next one, or to this one
        chosen = page.evaluate("(i) => controls()[i].checked", i)
        page.keyboard.press("ArrowRight" if chosen else "Space")
        return before != page.evaluate("() => seen()")
    if kind == "select-one":
        page.keyboard.press("End")
        last = page.evaluate("() => seen()")
        page.keyboard.press("Home")
        return last != page.evaluate("() => seen()")
    if kind == "checkbox":
        page.keyboard.press("Space")
        return before != page.evaluate("() => seen()")
    # A preset brings back a state from wherever the sliders were.
    changed = False
    for key in ("Home", "End"):
        sliders = page.evaluate(
            "() => controls().flatMap((n, i) => n.type === 'range' && !n.disabled ? [i] : [])"
        )
        for slider in sliders:
            page.evaluate(focus, slider)
            page.keyboard.press(key)
        moved = page.evaluate("() => seen()")
        page.evaluate(focus, i)
        page.keyboard.press("Enter")
        changed |= moved != page.evaluate("() => seen()")
    return changed


@every_widget
def test_python_hears_once_after_a_drag_and_the_last_word_on_closing(widget, stage, page):
    from playwright.sync_api import expect

    stage(widget)
    page.evaluate("(state) => show(state)", widget().state)
    slider = page.locator(".controls input[type=range]:not(:disabled)").first
    slider.evaluate(DRAG)
    dragged = page.evaluate("() => seen()")
    expect(page.locator(".widget")).not_to_have_attribute("data-unsent", "")
    assert page.evaluate("() => model.saved") == 1
    # the sentence is announced, once the move is over
    sentence = plain(page.locator(".result").text_content())
    expect(page.get_by_role("status")).to_have_text(spoken(sentence))
    # what Python heard is what is seen
    page.evaluate("() => show(model.state)")
    assert page.evaluate("() => seen()") == dragged
    # a widget that is closed at once still sends its last move
    page.locator(".controls input[type=range]:not(:disabled)").first.evaluate(DRAG)
    assert (
        page.evaluate(
            "(state) => { const last = model; show(state); return last.saved }", widget().state
        )
        == 1
    )


@every_widget
def test_what_python_sets_is_drawn_at_once(widget, stage, page):
    stage(widget)
    for changes in widget.examples[1:3]:
        made = widget(**changes)
        page.evaluate("(state) => show(state)", made.state)
        wanted = page.evaluate("() => seen()")
        page.evaluate("(state) => show(state)", {**widget().state, "controls": made.controls})
        page.evaluate(
            "([changes]) => change(changes)",
            [{key: value for key, value in made.state.items() if key != "controls"}],
        )
        assert page.evaluate("() => seen()") == wanted


@every_widget
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_forced_colours_can_be_read(widget, scheme, stage, page):
    """The system's ground decides, whatever the page's theme; a change is followed at once."""
    stage(widget, 700)
    page.emulate_media(forced_colors="active", color_scheme=scheme)
    assert page.evaluate(FORCED, states(widget)) == []
    page.emulate_media(forced_colors="none", color_scheme=scheme)
    page.evaluate("(state) => show(state, 'light')", widget().state)
    page.emulate_media(forced_colors="active", color_scheme=scheme)
    expected = "widget dark" if scheme == "dark" else "widget"
    page.wait_for_function("(name) => root.className === name", arg=expected)


@every_widget
def test_a_drag_is_announced_once_and_what_python_sets_never(widget, stage, page):
    stage(widget)
    page.evaluate("(state) => show(state)", widget().state)
    page.evaluate(LISTEN)
    page.evaluate(
        "([changes]) => change(changes)",
        [{k: v for k, v in widget(**widget.examples[1]).state.items() if k != "controls"}],
    )
    page.wait_for_timeout(900)
    assert page.evaluate("() => told") == []
    page.evaluate("(state) => show(state)", widget().state)
    page.evaluate(LISTEN)
    page.evaluate(MOVES, 60)
    assert page.evaluate("() => told") == []
    page.wait_for_function("() => told.length")
    page.wait_for_timeout(300)
    (told,) = page.evaluate("() => told")
    assert told == spoken(page.evaluate("() => seen()[1]"))


def test_an_underscore_is_a_subscript_and_heard_in_words(stage, page):
    stage(course_widgets.KLEstimators)
    page.evaluate("(state) => show(state)", course_widgets.KLEstimators().state)
    label = page.locator("label", has_text="Distance from π")
    assert label.locator("sub").inner_text().lstrip("_") == "ref"
    assert label.text_content() == "Distance from π_ref"  # what is copied
    assert label.locator(".underscore").evaluate("(n) => n.getBoundingClientRect().width") == 0
    assert page.get_by_role("slider", name="distance from pi ref", exact=True).count() == 1
    assert page.locator(".result sub").count() > 0
    code = page.evaluate("() => root.querySelector('.note').textContent")
    assert "_" not in code.replace("π_ref", "")


def test_code_in_a_sentence_keeps_its_underscores(stage, page):
    stage(course_widgets.LengthBias)
    page.evaluate("(state) => show(state)", course_widgets.LengthBias(split=True).state)
    note = page.locator(".note")
    assert "mean_per_token" in note.text_content()
    assert note.locator("sub").count() == 0


def test_a_control_that_is_switched_off_hands_its_focus_on(stage, page):
    stage(course_widgets.LengthBias)
    made = course_widgets.LengthBias(split=True)
    page.evaluate("(state) => show(state)", made.state)
    divide = page.locator(".controls input[type=radio]:checked")
    divide.focus()
    page.evaluate("() => change({ split: false })")
    assert divide.is_disabled()
    assert page.evaluate("() => controls().includes(focused()) && !focused().disabled")


@every_widget
def test_the_browsers_font_size_acts_and_nothing_is_cut(widget, stage, page):
    stage(widget)
    page.evaluate("() => { document.documentElement.style.fontSize = '24px'; }")
    page.evaluate("(state) => show(state)", widget().state)
    assert page.evaluate("() => getComputedStyle(root).fontSize") == "21px"
    controls = page.evaluate("() => audit.collisions(root)")
    assert not [words for words in controls if "cut" in words or "wider" in words]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_notebook_has_saved_comes_alive_again(path, committed, stage, page):
    """As on the site: today's module, the state in the saved output, the sentence saved with it."""
    committed(path)
    cells = json.loads(path.read_text("utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    for output in outputs:
        if saved := output.get("metadata", {}).get(base.METADATA_KEY):
            (widget,) = [widget for widget in WIDGETS if widget.name == saved["widget"]]
            stage(widget)
            sentence, *_ = page.evaluate(SAYS, saved["state"])
            assert "".join(output["data"]["text/plain"]) == f"{widget.__name__}: {plain(sentence)}"
