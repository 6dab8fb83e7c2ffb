"""The widgets in a real browser: drawing and controls in a bare page, the rest in JupyterLab.

Needs chromium; its path may stand in CHROMIUM. Screenshots are kept in test-artifacts/.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from lectures.widgets import ClipRegion, base

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
ARTIFACTS = ROOT / "test-artifacts"
PATIENCE = 60_000  # milliseconds: a busy machine is slow, not broken


@pytest.fixture(scope="module")
def chromium(missing):
    path = (
        os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    )
    if path is None:
        missing("chromium", "apt install chromium, or put a browser's path into CHROMIUM")
    try:
        from playwright import sync_api
    except ImportError:
        missing("playwright", "pip install playwright")
    sync_api.expect.set_options(timeout=PATIENCE)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(chromium):
    """A page that fails its test on any error it reports."""
    page = chromium.new_page(viewport={"width": 1280, "height": 1000})
    page.set_default_timeout(PATIENCE)
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    yield page
    page.close()
    assert not errors


# --- a bare page: the module with a stand-in for the kernel --------------------------------------

HARNESS = """
async ([source, state]) => {
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const widget = (await import(url)).default;
  const listeners = {};
  const model = {
    saved: 0,
    get: (key) => state[key],
    set: (key, value) => { state[key] = value; },
    on: (name, listener) => { (listeners[name] ??= []).push(listener); },
    off: () => {},
    save_changes: () => { model.saved += 1; },
  };
  const place = document.body.appendChild(document.createElement("div"));
  widget.render({ model, el: place });
  window.model = model;
  window.change = (changes) => {
    for (const [key, value] of Object.entries(changes)) {
      state[key] = value;
      for (const listener of listeners[`change:${key}`] ?? []) listener();
    }
  };
}
"""

COLLISIONS = """
(states) => states.flatMap((state) => {
  window.change(state);
  const root = document.querySelector("body > div > div").shadowRoot;
  const frame = root.querySelector(".picture > svg").getBoundingClientRect();
  const boxes = [...root.querySelectorAll(".picture text")].map((node) => {
    const { left, right, top, bottom } = node.getBoundingClientRect();
    // The line box is taller than the letters in it.
    return { text: node.textContent, left, right, top: top + 3, bottom: bottom - 3 };
  });
  const found = boxes
    .filter((a) => a.left < frame.left - 1 || a.right > frame.right + 4)
    .map((a) => [JSON.stringify(state), a.text, "leaves the picture"]);
  boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => {
    const apart = a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
    if (!apart) found.push([JSON.stringify(state), a.text, b.text]);
  }));
  return found;
})
"""


DRAG = """
(input) => {
  for (let percent = 40; percent <= 60; percent += 1) {
    input.value = percent / 100;
    input.dispatchEvent(new Event("input"));
  }
}
"""


def open_bare(page) -> None:
    page.set_content("<body style='margin: 10px'></body>")
    page.evaluate(HARNESS, [base.module("clip_region"), ClipRegion(method="dapo").state])


@pytest.mark.parametrize("width", [980, 420, 320])
def test_no_two_labels_collide_at_any_epsilon(page, width):
    page.set_viewport_size({"width": width, "height": 1200})
    open_bare(page)
    epsilons = [0.01, 0.2, 0.5, 0.8, 0.99]
    states = [
        {"eps_low": low, "eps_high": high, "advantage": advantage}
        for low in epsilons
        for high in epsilons
        for advantage in (0.1, 0.3, 3.0, -0.1, -3.0)
    ]
    assert page.evaluate(COLLISIONS, states) == []


def test_every_control_has_a_name_a_value_and_a_visible_focus(page):
    open_bare(page)
    controls = page.locator("input, button, [tabindex]")
    assert controls.count() == 9
    for control in controls.all():
        assert control.get_attribute("data-lm-suppress-shortcuts") == "true"
    for name, value in {"|A| size": "1.0", "ε low": "0.20", "ε high": "0.28"}.items():
        slider = page.get_by_role("slider", name=name)
        assert slider.get_attribute("aria-valuetext") == value
    for group, radio in {"Method": "DAPO", "Advantage sign": "A > 0"}.items():
        chosen = page.get_by_role("group", name=group).get_by_role("radio", name=radio)
        assert chosen.is_checked()
    outline = (
        "() => { let at = document.activeElement; while (at.shadowRoot) "
        "at = at.shadowRoot.activeElement; return getComputedStyle(at).outlineStyle + at.type }"
    )
    stops = []
    for _ in range(6):
        page.keyboard.press("Tab")
        stops.append(page.evaluate(outline))
    kinds = ["radio", "radio", "range", "range", "range", "submit"]
    assert [stop.replace("submit", "button") for stop in stops] == [
        "solid" + kind.replace("submit", "button") for kind in kinds
    ]


def test_the_drawing_needs_no_kernel_and_python_hears_once(page):
    from playwright.sync_api import expect

    open_bare(page)
    slider = page.get_by_role("slider", name="ε high")
    slider.focus()
    for _ in range(12):
        page.keyboard.press("ArrowRight")
    expect(page.locator(".result")).to_contain_text("above ρ = 1.40")
    expect(page.locator(".widget")).not_to_have_attribute("data-unsent", "")
    assert page.evaluate("window.model.get('eps_high')") == 0.4
    before = page.evaluate("window.model.saved")
    slider.evaluate(DRAG)
    expect(page.locator(".result")).to_contain_text("above ρ = 1.60")
    expect(page.locator(".widget")).not_to_have_attribute("data-unsent", "")
    assert page.evaluate("window.model.get('eps_high')") == 0.6
    assert page.evaluate("window.model.saved") == before + 1
    page.get_by_role("button", name="Reset").press("Enter")
    expect(page.locator(".result")).to_contain_text("above ρ = 1.28")
    page.get_by_role("radio", name="PPO").check()
    expect(page.get_by_role("slider", name="ε high")).to_have_value("0.2")
    page.get_by_role("radio", name="A < 0").check()
    expect(page.locator(".result")).to_contain_text("PPO: below ρ = 0.80 a token with A < 0")
    page.evaluate("window.change({ tokens: [[1.5, 1], [0.5, -1], [1, 0]] })")
    expect(page.locator(".result")).to_contain_text("2 of 3 tokens (66.7 %) and keeps 0 %")


# --- JupyterLab ----------------------------------------------------------------------------------


@contextlib.contextmanager
def jupyterlab(home: Path, cells: list[nbformat.NotebookNode]):
    """Run JupyterLab over home/notebooks/widget.ipynb, with nothing of the user's own settings."""
    folder = home / "notebooks"
    folder.mkdir()
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=kernel)
    nbformat.write(notebook, folder / "widget.ipynb")
    settings = home / "config/lab/user-settings/@jupyterlab/apputils-extension"
    settings.mkdir(parents=True)
    quiet = {"fetchNews": "false", "checkForUpdates": False}
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(quiet))
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
    deadline = time.monotonic() + PATIENCE / 1000
    while time.monotonic() < deadline:
        if server.poll() is not None:
            pytest.fail(f"JupyterLab ended with {server.returncode}:\n{log.read_text()}")
        for path in runtime.glob("jpserver-*.json"):
            text = path.read_text()
            if text.endswith("}"):
                return json.loads(text)["url"]
        time.sleep(0.1)
    pytest.fail(f"JupyterLab did not come up:\n{log.read_text()}")


def open_and_run(page, address: str) -> None:
    page.goto(f"{address}lab/tree/widget.ipynb")
    session = "window.jupyterapp?.shell.currentWidget?.sessionContext?.session"
    page.wait_for_function(f"{session}?.kernel?.status === 'idle'")  # else it asks which kernel
    page.evaluate("void jupyterapp.commands.execute('notebook:run-all-cells')")


@pytest.fixture(scope="module")
def lab(tmp_path_factory, chromium):
    """The address of a JupyterLab with a notebook of three cells."""
    show = "from lectures.widgets import ClipRegion\nclip = ClipRegion(method='dapo')\nclip"
    read = "print(clip.method, clip.advantage, clip.eps_low, clip.eps_high)"
    cells = [
        nbformat.v4.new_markdown_cell("# Clip region", id="title"),
        nbformat.v4.new_code_cell(show, id="widget"),
        nbformat.v4.new_code_cell(read, id="read"),
    ]
    with jupyterlab(tmp_path_factory.mktemp("lab"), cells) as address:
        yield address


def test_sliders_in_jupyterlab_move_the_picture_and_the_kernel(lab, page):
    from playwright.sync_api import expect

    open_and_run(page, lab)
    cells = page.locator(".jp-NotebookPanel .jp-Cell")
    expect(cells).to_have_count(3)
    widget = page.locator(".widget")
    result = widget.locator(".result")
    expect(result).to_contain_text("DAPO: above ρ = 1.28")
    curve = widget.locator(".curve").first

    # by keyboard
    before = curve.get_attribute("points")
    high = widget.get_by_role("slider", name="ε high")
    high.focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    expect(result).to_contain_text("above ρ = 1.32")
    assert curve.get_attribute("points") != before
    for key in ("a", "b", "d", "d", "m", "x", "y", "Shift+m"):  # JupyterLab's keys for cells
        page.keyboard.press(key)
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("End")
    page.keyboard.press("PageDown")
    low = widget.get_by_role("slider", name="ε low")
    expect(low).not_to_have_value("0.2")
    radio = widget.get_by_role("radio", name="A < 0")
    radio.focus()
    page.keyboard.press("Space")
    expect(radio).to_be_checked()

    # by mouse
    box = low.bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.3, box["y"] + box["height"] / 2)
    chosen = float(low.input_value())
    assert 0.25 < chosen < 0.35
    expect(result).to_contain_text(f"DAPO: below ρ = {1 - chosen:.2f} a token with A < 0")

    # read back in the kernel
    wanted = f"dapo -1.0 {chosen} 0.32"
    expect(widget).not_to_have_attribute("data-unsent", "")
    reading = cells.nth(2)
    deadline = time.monotonic() + PATIENCE / 1000
    answer = ""
    while answer != wanted and time.monotonic() < deadline:
        answer = _run(page, reading)
    assert answer == wanted

    # nothing was inserted, deleted or changed by a key
    expect(cells).to_have_count(3)
    notebook = "jupyterapp.shell.currentWidget.content.model.sharedModel.toJSON().cells"
    kinds = page.evaluate(f"{notebook}.map(({{ cell_type, id }}) => [cell_type, id])")
    assert kinds == [["markdown", "title"], ["code", "widget"], ["code", "read"]]

    # the palette follows the page
    expect(widget).not_to_have_class("widget dark")
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / "clip_region_in_jupyterlab.png")
    page.evaluate(
        "jupyterapp.commands.execute('apputils:change-theme', { theme: 'JupyterLab Dark' })"
    )
    expect(widget).to_have_class("widget dark")
    expect(page.locator("#jupyterlab-splash")).to_have_count(0)
    page.screenshot(path=ARTIFACTS / "clip_region_in_jupyterlab_dark.png")


def _run(page, cell) -> str:
    """Run a cell with Ctrl+Enter, wait until it has run, and return what it printed."""
    from playwright.sync_api import expect

    prompt = cell.locator(".jp-InputPrompt").first
    expect(prompt).to_have_text(re.compile(r"^\[\d+\]:$"))  # not waiting or running already
    count = int(prompt.inner_text().strip("[]: "))
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    expect(prompt).to_have_text(f"[{count + 1}]:")
    return cell.locator(".jp-OutputArea-output").inner_text().strip()
