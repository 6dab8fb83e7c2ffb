"""How long after a key is pressed does the picture change on the screen?

    python -m benchmarks.widget_latency            # 3 runs of 50 moves for each, a few minutes

Opens JupyterLab in chromium with every widget of the course, which the browser draws, and with an
ipywidgets slider that has matplotlib draw the clip region's picture in the kernel. Each arrow key
waits for the picture of the last one. The time runs from the key event to the first frame after
the picture has changed. Of each one's runs the best is printed (by its 95th percentile): what else
the machine does can only add to a time. The numbers measured are in benchmarks/README.md.
Leaves out: moves faster than the picture follows, where the kernel falls further behind.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import nbformat

from lectures import widgets
from tests.lectures.widgets.test_in_jupyterlab import jupyterlab, open_notebook, run_all

WARM_UP = 3

KERNEL_DRAWN = """
import io
import ipywidgets
from IPython.display import Image
from matplotlib.figure import Figure
from lectures.widgets.still import Still
slow = ClipRegion()
def draw(eps_high):
    slow.eps_high = eps_high
    figure, png = Figure(dpi=100, layout="none"), io.BytesIO()
    height = slow.still_height
    still = Still(slow.state, slow.note, slow.off, slow.sentence, picture_height=height)
    still.draw(slow.draw_still, figure)
    figure.savefig(png, format="png")
    display(Image(png.getvalue()))
slider = ipywidgets.FloatSlider(0.2, min=0.01, max=0.99, step=0.01, description="slow")
picture = ipywidgets.interactive_output(draw, {"eps_high": slider})
ipywidgets.VBox([slider, picture])
"""

# `painted` resolves to the milliseconds from the next key event to the frame with a new picture.
WATCH = """
(place) => {
  window.painted = new Promise((resolve) => {
    let pressed = null;
    document.addEventListener("keydown", () => { pressed = performance.now(); },
      { capture: true, once: true });
    const byKernel = place.matches(".jp-OutputArea");
    const observer = new MutationObserver(async () => {
      const image = place.querySelector("img");
      if (byKernel && !image) return; // cleared, not yet drawn
      observer.disconnect();
      if (image) await image.decode();
      requestAnimationFrame(() => {
        const channel = new MessageChannel(); // its message comes after the frame is painted
        channel.port1.onmessage = () => resolve(performance.now() - pressed);
        channel.port2.postMessage(null);
      });
    });
    const all = { childList: true, subtree: true, attributes: true, characterData: true };
    observer.observe(place, all);
  });
}
"""


def measure(page, slider, place, moves: int) -> list[float]:
    """Milliseconds of each move; the slider goes back and forth between its ends."""
    slider.focus()
    times, key = [], "ArrowRight"
    for _ in range(moves + WARM_UP):
        at = slider.evaluate(
            "(s) => s.ariaValueNow === null ? (s.value - s.min) / (s.max - s.min)"
            " : (s.ariaValueNow - s.ariaValueMin) / (s.ariaValueMax - s.ariaValueMin)"
        )
        key = {0: "ArrowRight", 1: "ArrowLeft"}.get(at, key)
        place.evaluate(WATCH)
        page.keyboard.press(key)
        times.append(page.evaluate("window.painted"))
    return times[WARM_UP:]


def p95(times: list[float]) -> float:
    return statistics.quantiles(times, n=20)[-1]


def row(name: str, runs: list[list[float]]) -> str:
    best = min(runs, key=p95)
    return f"{name:<36} {statistics.median(best):8.1f} {p95(best):8.1f} {max(best):8.1f}"


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(prog="python -m benchmarks.widget_latency")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--moves", type=int, default=50)
    options = parser.parse_args()
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        sys.exit("this benchmark needs chromium; install it or put its path into CHROMIUM")
    names = widgets.__all__
    sources = [f"from lectures.widgets import {', '.join(names)}", *(f"{n}()" for n in names)]
    cells = [nbformat.v4.new_code_cell(source) for source in (*sources, KERNEL_DRAWN)]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=metadata)
    with (
        tempfile.TemporaryDirectory() as home,
        jupyterlab(Path(home), {"latency": notebook}) as address,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.set_default_timeout(120_000)
        open_notebook(page, address, "latency")
        run_all(page)
        page.locator(".widget-vbox .jp-OutputArea img").wait_for(state="attached")
        rows: dict[str, list[list[float]]] = {}
        for _ in range(options.runs):
            for i, name in enumerate(names):
                root = page.locator(".widget").nth(i)
                root.scroll_into_view_if_needed()
                slider = root.locator("input[type=range]:not(:disabled)").first
                times = measure(page, slider, root.locator(".picture"), options.moves)
                rows.setdefault(f"browser: {name}", []).append(times)
            handle = page.locator(".widget-vbox [role=slider]")
            handle.scroll_into_view_if_needed()
            times = measure(
                page, handle, page.locator(".widget-vbox .jp-OutputArea"), options.moves
            )
            rows.setdefault("kernel, matplotlib: ClipRegion", []).append(times)
        browser.close()
    load = os.getloadavg()[0]
    print(f"{options.moves} moves, best of {options.runs} runs, load {load:.1f}")
    print(f"{'milliseconds from key to picture':<36} {'median':>8} {'p95':>8} {'max':>8}")
    for name, runs in rows.items():
        print(row(name, runs))
    fast, slow = (
        statistics.median(min(rows[name], key=p95))
        for name in ("browser: ClipRegion", "kernel, matplotlib: ClipRegion")
    )
    print(f"ClipRegion, kernel / browser: {slow / fast:.0f} × (medians)")


if __name__ == "__main__":
    main()
