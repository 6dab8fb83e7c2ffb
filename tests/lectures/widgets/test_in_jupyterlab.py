"""The widgets where a learner meets them: JupyterLab, a kernel, the gallery and lecture 03.

Every control is moved by keyboard and by mouse; picture, sentence and the kernel's value must
follow. Screenshots are kept in test-artifacts/. `jupyterlab`, `open_notebook` and `run_all` serve
the benchmark as well.
"""

import contextlib
import copy
import json
import os
import platform
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from lectures import widgets as course_widgets
from lectures.widgets.still import shown

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
ARTIFACTS = ROOT / "test-artifacts"
PATIENCE = 60  # seconds: a busy machine is slow, not broken
WIDGETS = {name: getattr(course_widgets, name) for name in course_widgets.__all__}
SETTINGS = runpy.run_path(str(ROOT / "bootstrap.py"))["SERVER_SETTINGS"]
NOTEBOOKS = ("widget_gallery", "03_ratios_and_clipping")

# JupyterLab's keys for a selected cell: insert, cut, copy, paste, delete, change, merge, undo,
# interrupt and restart, run, move.
COMMAND_KEYS = (
    *"abccvxzyrm1sl",
    *("d", "d", "i", "i", "0", "0", "Shift+M", "Shift+L", "Shift+Enter", "Control+Enter"),
    *("Alt+Enter", "Shift+ArrowDown", "Control+Shift+ArrowDown", "Escape"),
)


# --- JupyterLab ---------------------------------------------------------------------------------


@contextlib.contextmanager
def jupyterlab(home: Path, notebooks: dict[str, nbformat.NotebookNode]):
    """Run JupyterLab over `notebooks` (by name) with the course's settings, without a user's."""
    folder = home / "notebooks"
    folder.mkdir()
    for name, notebook in notebooks.items():
        nbformat.write(notebook, folder / f"{name}.ipynb")
    settings = home / "config/lab/user-settings/@jupyterlab/apputils-extension"
    settings.mkdir(parents=True)
    quiet = {"fetchNews": "false", "checkForUpdates": False}
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(quiet))
    (home / "config/jupyter_server_config.json").write_text(json.dumps(SETTINGS))
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "IPYTHONDIR": str(home / "ipython"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += ["--ServerApp.ip=127.0.0.1", "--ServerApp.port=0", "--IdentityProvider.token="]
    command += [f"--ServerApp.root_dir={folder}", "--LabApp.expose_app_in_browser=True"]
    with (home / "log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            yield _address(server, home / "runtime", home / "log")
        finally:
            server.terminate()
            try:
                server.wait(timeout=30)
            except subprocess.TimeoutExpired:
                server.kill()


def _address(server: subprocess.Popen, runtime: Path, log: Path) -> str:
    """Wait until JupyterLab has written down where it listens."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"JupyterLab ended with {server.returncode}:\n{log.read_text()}")
        for path in runtime.glob("jpserver-*.json"):
            text = path.read_text()
            if text.endswith("}"):
                return json.loads(text)["url"]
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not come up:\n{log.read_text()}")


def open_notebook(page, address: str, name: str) -> None:
    page.goto(f"{address}lab/tree/{name}.ipynb?reset")  # no other notebook beside it
    session = "window.jupyterapp?.shell.currentWidget?.sessionContext?.session"
    page.wait_for_function(f"{session}?.kernel?.status === 'idle'")  # else it asks which kernel


def run_all(page) -> None:
    page.evaluate("() => jupyterapp.commands.execute('notebook:run-all-cells')")


NOTEBOOK = "jupyterapp.shell.currentWidget.content"
CELLS = f"() => {NOTEBOOK}.model.sharedModel.toJSON().cells"

# What no key may change: the kernel, the cells, and which of them have been run.
IDENTITY = f"""
() => [jupyterapp.shell.currentWidget.sessionContext.session.kernel.id,
  ...{NOTEBOOK}.model.sharedModel.toJSON().cells
    .map((cell) => [cell.cell_type, cell.id, cell.source, cell.execution_count])]
"""

# All that a widget shows: the value of each control, what is said of it, picture and sentence.
SEEN = """
(root) => {
  const controls = [...root.querySelectorAll(".controls :is(input, select, button)")];
  return {
    values: controls.map((n) => (/radio|checkbox/.test(n.type) ? n.checked : n.value)),
    kinds: controls.map((n) => n.type),
    off: controls.map((n) => n.disabled),
    spoken: controls.map((n) => n.ariaValueText),
    picture: root.querySelector(".picture").innerHTML,
    words: root.querySelector(".result").textContent.replaceAll("\u00a0", " "),
  };
}
"""

# Runs code in the notebook's kernel without a cell; returns what it printed.
ASK = """
async (code) => {
  const { kernel } = jupyterapp.shell.currentWidget.sessionContext.session;
  const future = kernel.requestExecute({ code, store_history: false });
  let printed = "";
  future.onIOPub = ({ content }) => { printed += content.text ?? ""; };
  const { content } = await future.done;
  if (content.status !== "ok") throw new Error(`${content.ename}: ${content.evalue}`);
  return printed;
}
"""

DEEP_FOCUS = """
(control) => {
  let at = document.activeElement;
  while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement;
  return at === control;
}
"""


class Shown:
    """One widget on the page of a notebook, and the variable that holds it in the kernel."""

    def __init__(self, page, cell: int, variable: str):
        self.page, self.variable = page, variable
        self.cell = page.locator(".jp-Notebook .jp-Cell").nth(cell)
        self.root = self.cell.locator(".widget")
        self.controls = self.root.locator(".controls :is(input, select, button)")

    def ask(self, expression: str):
        code = f"import json; print(json.dumps({expression.replace('VAR', self.variable)}))"
        return json.loads(self.page.evaluate(ASK, code))

    def tell(self, code: str) -> None:
        self.page.evaluate(ASK, code.replace("VAR", self.variable))

    def keys(self) -> list[tuple[dict, int, int]]:
        """For each element in `controls`: what Python declared, which part of it, of how many."""
        parts = {"slider": lambda c: 1, "sliders": lambda c: len(c["names"])}
        parts |= {
            "toggle": lambda c: 1,
            "presets": lambda c: len(c["options"]),
            "data": lambda c: 0,
        }
        parts["choice"] = lambda c: 1 if c["menu"] else len(c["options"])
        sized = [(c, parts[c["kind"]](c)) for c in self.ask("VAR.controls")]
        return [(c, part, size) for c, size in sized for part in range(size)]

    def until(self, expression: str, holds) -> None:
        """Ask until the kernel's answer is right: what a learner moved takes a moment to arrive."""
        from playwright.sync_api import expect

        expect(self.root).not_to_have_attribute("data-unsent", "")
        deadline = time.monotonic() + PATIENCE
        while not holds(answer := self.ask(expression)):
            if time.monotonic() > deadline:
                pytest.fail(f"{expression} is {answer!r}; the page says {self.seen()['words']!r}")

    def agrees(self, **values) -> None:
        """The kernel has heard these values, and says in words what the page says."""
        heard = ", ".join(f"{key!r}: VAR.{key}" for key in values)
        self.until(
            f"[{{{heard}}}, VAR.sentence]", lambda answer: answer == [values, self.seen()["words"]]
        )

    def seen(self) -> dict:
        return self.root.evaluate(SEEN)

    def use(self, changes: dict) -> None:
        """Set the widget from Python to an example's state; the picture must follow."""
        made = f"type(VAR)(**json.loads({json.dumps(changes)!r}))"
        self.tell(f"import json\nwanted = {made}.state\ndel wanted['controls']")
        for _ in range(2):  # setting one may set others
            self.tell("for key, value in wanted.items():\n    setattr(VAR, key, value)")
        self.agrees()


def value_shown(control: dict, seen: dict, first: int):
    """The value of a control as the page shows it; its elements begin with number `first`."""
    if control["kind"] == "toggle" or control.get("menu"):
        return seen["values"][first]
    if control["kind"] == "choice":
        chosen = seen["values"][first : first + len(control["options"])].index(True)
        return control["options"][chosen]["value"]
    row = slice(first, first + len(control.get("names", [""])))
    numbers = [float(value) for value in seen["values"][row]]
    if control["stops"]:
        numbers = [control["stops"][round(number)] for number in numbers]
    assert seen["spoken"][row] == [shown(control, number) for number in numbers]
    return numbers[0] if control["kind"] == "slider" else numbers


def by_keyboard(page, element, kind: str) -> None:
    element.focus()
    if kind == "range":
        at_end = float(element.input_value()) >= float(element.get_attribute("max"))
        page.keyboard.press("ArrowLeft" if at_end else "ArrowRight")
    elif kind == "select-one":
        last = element.evaluate("(menu) => menu.selectedIndex === menu.options.length - 1")
        page.keyboard.press("ArrowUp" if last else "ArrowDown")
    else:
        page.keyboard.press("Enter" if kind == "button" else "Space")


def by_mouse(page, element, kind: str) -> None:
    if kind == "range":
        low, high = (float(element.get_attribute(name)) for name in ("min", "max"))
        now = float(element.input_value())
        share = 0.7 if now < (low + high) / 2 else 0.3
        element.scroll_into_view_if_needed()
        box = element.bounding_box()
        page.mouse.click(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
    elif kind == "select-one":  # its list is drawn by the system and cannot be clicked from here
        chosen = element.input_value()
        values = element.locator("option").evaluate_all("(all) => all.map((o) => o.value)")
        element.select_option(next(value for value in values if value != chosen))
    else:
        element.click()


def move_every_control(page, widget: Shown, cls) -> None:
    """By keyboard and by mouse, each in the first example in which it does something."""
    waiting = dict(enumerate(widget.keys()))
    for changes in cls.examples:
        if any(isinstance(value, Path) for value in changes.values()):
            continue  # a widget over another record, not a state of this one
        off = cls(**changes).off
        now = [i for i, (control, *_) in waiting.items() if control["key"] not in off]
        if now:
            widget.use(changes)
        for i in now:
            if widget.seen()["off"][i]:  # switched off by one moved before
                widget.use(changes)
            control, part, parts = waiting[i]
            moves = (by_keyboard, by_mouse)  # of several options or sliders, in turns
            for move in moves if parts == 1 else [moves[part % 2]]:
                move_one(page, widget, i, control, part, move)
            del waiting[i]
    assert waiting == {}


def move_one(page, widget: Shown, i: int, control: dict, part: int, move) -> None:
    element, before = widget.controls.nth(i), widget.seen()
    kind = before["kinds"][i]
    if control["kind"] == "presets":
        move(page, element, kind)
        widget.agrees(**(control["options"][part]["changes"] or {}))
        return
    if kind == "radio" and before["values"][i]:  # first choose another one
        if len(control["options"]) == 1:
            return
        widget.controls.nth(i + 1 if part == 0 else i - part).check()
        before = widget.seen()
    move(page, element, kind)
    after = widget.seen()
    old, new = (value_shown(control, seen, i - part) for seen in (before, after))
    assert old != new, control["key"]
    assert [before[what] for what in ("picture", "words")] != [
        after[what] for what in ("picture", "words")
    ], control["key"]
    widget.agrees(**{control["key"]: new})


def walk_in_the_picture(widget: Shown) -> None:
    """Where a picture has cells to choose from: by arrow key, then by mouse."""
    cells = widget.root.locator(".picture [tabindex]")
    if cells.count() == 0:
        return
    widget.use({})
    here = widget.root.locator(".picture [tabindex='0']")
    for move in (lambda: here.press("ArrowRight"), cells.first.click):
        start, seen = widget.ask("VAR.token"), widget.seen()
        move()
        assert widget.seen()["picture"] != seen["picture"]
        widget.until("VAR.token", lambda token, start=start: token != start)


def press_the_command_keys(page, widget: Shown, tried: set[str]) -> None:
    """On one control of every kind not yet tried. No cell may change; the focus stays."""
    before, seen = page.evaluate(IDENTITY), widget.seen()
    places = [
        (kind, widget.controls.nth(i))
        for i, (kind, off) in enumerate(zip(seen["kinds"], seen["off"], strict=True))
        if not off
    ]
    here = widget.root.locator(".picture [tabindex='0']")
    if here.count():
        places.append(("picture", here.first))
    for kind, element in places:
        if kind in tried:
            continue
        tried.add(kind)
        for key in (*COMMAND_KEYS, "ArrowDown", "ArrowUp", "Home", "End", "PageDown", "Enter"):
            element.focus()
            page.keyboard.press(key)
        page.keyboard.press("Escape")
        moves_on = ("radio", "picture")  # there, arrows take the focus along
        assert kind in moves_on or element.evaluate(DEEP_FOCUS)
        assert page.locator(".jp-Dialog").count() == 0
        assert page.evaluate(IDENTITY) == before, kind


# --- the tests -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lab(tmp_path_factory, chromium):
    """The address of a JupyterLab with copies of the gallery and lecture 03."""
    notebooks = {
        name: nbformat.read(ROOT / "lectures" / f"{name}.ipynb", as_version=4) for name in NOTEBOOKS
    }
    show = nbformat.v4.new_code_cell("from lectures.widgets import ClipRegion\nClipRegion()")
    as_committed = copy.deepcopy(notebooks["widget_gallery"].metadata)
    as_committed.language_info.version = platform.python_version()
    notebooks["one_widget"] = nbformat.v4.new_notebook(cells=[show], metadata=as_committed)
    with jupyterlab(tmp_path_factory.mktemp("lab"), notebooks) as address:
        yield address


def widget_cells(page) -> dict[str, tuple[int, str]]:
    """Cell id → (index, variable) of the cells whose last line shows a widget of the course."""
    found = {}
    for i, cell in enumerate(page.evaluate(CELLS)):
        outputs = cell.get("outputs", [])
        if any("policy_gradients_course" in o.get("metadata", {}) for o in outputs):
            found[cell["id"]] = (i, "".join(cell["source"]).strip().splitlines()[-1])
    return found


@pytest.mark.parametrize("name", NOTEBOOKS)
@pytest.mark.timeout(600)
def test_every_control_moves_picture_sentence_and_kernel(name, lab, page):
    """One long way through a notebook, because opening and running it takes most of the time."""
    open_notebook(page, lab, name)
    stills_before_anything_is_run(page)
    run_all(page)
    outputs = [o for cell in page.evaluate(CELLS) for o in cell.get("outputs", [])]
    assert [f"{o['ename']}: {o['evalue']}" for o in outputs if o["output_type"] == "error"] == []
    widgets = {}
    for i, variable in widget_cells(page).values():
        widget = Shown(page, i, variable)
        cls = WIDGETS[widget.ask("type(VAR).__name__")]
        widget.root.scroll_into_view_if_needed()
        widget.agrees()
        widgets[cls] = widget
    if name == "widget_gallery":
        assert set(widgets) == set(WIDGETS.values())
        pictures(page, widgets, "")

    before, tried = page.evaluate(IDENTITY), set()
    for cls, widget in widgets.items():
        widget.root.scroll_into_view_if_needed()
        move_every_control(page, widget, cls)
        walk_in_the_picture(widget)
        press_the_command_keys(page, widget, tried)
    assert page.evaluate(IDENTITY) == before

    if name == "widget_gallery":
        for cls, widget in widgets.items():
            read_in_a_cell(page, widget, cls.name.replace("_", "-") + "-read")
        pictures_in_the_dark(page, widgets)

    for _ in range(2):  # the second time it must not ask whose version is right
        page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
    assert page.locator(".jp-Dialog").count() == 0
    page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    open_notebook(page, lab, name)  # the next day
    stills_before_anything_is_run(page)


def stills_before_anything_is_run(page) -> None:
    from playwright.sync_api import expect

    cells = widget_cells(page)
    assert cells
    for i, _ in cells.values():
        cell = page.locator(".jp-Notebook .jp-Cell").nth(i)
        cell.scroll_into_view_if_needed()
        expect(cell.locator(".jp-OutputArea img")).to_be_visible()
    said = " ".join(page.locator(".jp-Notebook .jp-OutputArea").all_inner_texts())
    assert not re.search("not found|Loading widget|Error displaying", said)
    assert page.locator(".widget").count() == 0


def pictures(page, widgets: dict, ending: str) -> None:
    ARTIFACTS.mkdir(exist_ok=True)
    for cls, widget in widgets.items():
        widget.root.scroll_into_view_if_needed()
        widget.root.screenshot(path=ARTIFACTS / f"{cls.name}{ending}.png")
    page.screenshot(path=ARTIFACTS / f"jupyterlab{ending}.png")


def pictures_in_the_dark(page, widgets: dict) -> None:
    from playwright.sync_api import expect

    theme = "'apputils:change-theme', { theme: 'JupyterLab Dark' }"
    page.evaluate(f"() => jupyterapp.commands.execute({theme})")
    for widget in widgets.values():
        expect(widget.root).to_have_class("widget dark")
    expect(page.locator("#jupyterlab-splash")).to_have_count(0)
    pictures(page, widgets, "_dark")


def read_in_a_cell(page, widget: Shown, cell_id: str) -> None:
    """Run the gallery's cell that reads a widget's values, with a learner's keys."""
    from playwright.sync_api import expect

    cells = page.evaluate(CELLS)
    (i,) = [i for i, cell in enumerate(cells) if cell["id"] == cell_id]
    cell = page.locator(".jp-Notebook .jp-Cell").nth(i)
    prompt = cell.locator(".jp-InputPrompt").first
    before = f"[{cells[i]['execution_count']}]:"
    expect(prompt).to_have_text(before)  # not waiting or running already
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    expect(prompt).not_to_have_text(before)
    expect(prompt).to_have_text(re.compile(r"^\[\d+\]:$"))
    (output,) = page.evaluate(CELLS)[i]["outputs"]
    read = widget.ask(f"repr(({''.join(cells[i]['source'])}))")
    assert "".join("".join(output["data"]["text/plain"]).split()) == "".join(read.split())


def test_keys_that_are_not_a_cells_reach_jupyterlab_from_a_control(lab, page):
    """Save, find, the sidebar and the commands; run and the rest stay with the control."""
    open_notebook(page, lab, "one_widget")
    dirty = "jupyterapp.shell.currentWidget.context.model.dirty"
    assert not page.evaluate(f"() => {dirty}")  # opening has changed nothing
    run_all(page)
    slider = page.locator(".widget input[type=range]").first
    slider.wait_for()
    assert page.locator(".widget").evaluate("(root) => getComputedStyle(root).fontSize") == "14px"
    before = page.evaluate(IDENTITY)
    slider.focus()
    page.keyboard.press("Control+Enter")
    page.wait_for_function(f"() => {dirty}")
    page.keyboard.press("Control+s")
    page.wait_for_function(f"() => !{dirty}")
    assert slider.evaluate(DEEP_FOCUS)
    shown = "jupyterapp.shell.leftCollapsed"
    collapsed = page.evaluate(f"() => {shown}")
    page.keyboard.press("Control+b")
    page.wait_for_function(f"(before) => {shown} !== before", arg=collapsed)
    slider.focus()
    page.keyboard.press("Control+Shift+C")
    page.locator("#modal-command-palette").wait_for()
    page.keyboard.press("Escape")
    slider.focus()
    page.keyboard.press("Control+f")
    page.locator(".jp-DocumentSearch-overlay").wait_for()
    assert page.evaluate(IDENTITY) == before
