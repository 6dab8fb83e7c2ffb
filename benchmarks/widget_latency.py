"""How long after a key is pressed does the picture change on the screen?

    python -m benchmarks.widget_latency            # 50 moves each, about a minute

Opens JupyterLab in chromium with two sliders for the same picture: the course's clip-region
widget, which the browser draws, and an ipywidgets slider whose picture matplotlib draws in the
kernel. Each arrow key waits for the picture of the last one. The time runs from the key event to
the first frame after the picture has changed.

Measured on two cores that other work kept busy (load 6), milliseconds over 50 moves:

    who draws      median     p95     max
    the browser         9      32      39
    the kernel        709    1621    1650

Leaves out: moves faster than the picture follows, where the kernel falls further behind.
"""

import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import nbformat

from tests.lectures.test_widget_in_browser import jupyterlab, open_and_run

MOVES = 50

BROWSER_DRAWN = "from lectures.widgets import ClipRegion\nClipRegion()"
KERNEL_DRAWN = """
import io
import ipywidgets
from IPython.display import Image
from matplotlib.figure import Figure
slow = ClipRegion()
def draw(eps_high):
    slow.eps_high = eps_high
    figure, png = Figure(dpi=100), io.BytesIO()
    slow.draw_still(figure)
    figure.savefig(png, format="png")
    display(Image(png.getvalue()))
slider = ipywidgets.FloatSlider(0.2, min=0.01, max=0.99, step=0.01, description="slow")
picture = ipywidgets.interactive_output(draw, {"eps_high": slider})
ipywidgets.VBox([slider, picture])
"""

# Resolves to the milliseconds from the next key event to the frame that shows a new picture.
WATCH = """
(browserDrawn) => {
  window.painted = new Promise((resolve) => {
    let pressed = null;
    document.addEventListener("keydown", () => { pressed = performance.now(); },
      { capture: true, once: true });
    const place = browserDrawn
      ? [...document.querySelectorAll("*")].find((n) => n.shadowRoot?.querySelector(".widget"))
          .shadowRoot.querySelector(".picture")
      : document.querySelector(".widget-vbox .jp-OutputArea");
    const observer = new MutationObserver(async () => {
      const image = place.querySelector("img");
      if (!browserDrawn && !image) return; // cleared, not yet drawn
      observer.disconnect();
      if (image) await image.decode();
      requestAnimationFrame(() => {
        const channel = new MessageChannel(); // its message comes after the frame is painted
        channel.port1.onmessage = () => resolve(performance.now() - pressed);
        channel.port2.postMessage(null);
      });
    });
    observer.observe(place, { childList: true, subtree: true });
  });
}
"""


def measure(page, slider, *, browser_drawn: bool) -> list[float]:
    times = []
    for move in range(MOVES + 3):
        page.evaluate(WATCH, browser_drawn)
        slider.focus()
        page.keyboard.press("ArrowRight" if move % 20 < 10 else "ArrowLeft")
        times.append(page.evaluate("window.painted"))
    return times[3:]  # the first ones warm up


def row(name: str, times: list[float]) -> str:
    p95 = statistics.quantiles(times, n=20)[-1]
    return f"{name:<28} {statistics.median(times):8.1f} {p95:8.1f} {max(times):8.1f}"


def main() -> None:
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        sys.exit("this benchmark needs chromium; install it or put its path into CHROMIUM")
    cells = [nbformat.v4.new_code_cell(source) for source in (BROWSER_DRAWN, KERNEL_DRAWN)]
    with (
        tempfile.TemporaryDirectory() as home,
        jupyterlab(Path(home), cells) as address,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 1600})
        page.set_default_timeout(120_000)
        open_and_run(page, address)
        page.locator(".widget-vbox .jp-OutputArea img").wait_for()
        fast = measure(page, page.get_by_role("slider", name="ε high"), browser_drawn=True)
        handle = page.locator(".widget-vbox [role=slider]")
        slow = measure(page, handle, browser_drawn=False)
        browser.close()
    print(f"{MOVES} moves, milliseconds{'median':>15} {'p95':>8} {'max':>8}")
    print(row("drawn in the browser", fast))
    print(row("drawn in the kernel", slow))
    print(f"ratio of the medians: {statistics.median(slow) / statistics.median(fast):.0f} ×")


if __name__ == "__main__":
    main()
