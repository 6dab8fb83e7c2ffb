"""Run the lectures and the widget gallery from fresh kernels and print a table of seconds.

    python -m lectures.execute                   # run all, keep nothing
    python -m lectures.execute 01 03 --out DIR   # run two, write the executed copies to DIR
    python -m lectures.execute 01 --write        # run one and commit its outputs in place
    python -m lectures.execute widget            # the gallery

A saved notebook holds no widget view (a code host would show an error there): each widget's
output keeps its still picture, and its module name and state in the output's own metadata.
Leaves out: retries and parallel runs; two cores are best used by one kernel at a time.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

LECTURES = Path(__file__).parent
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def lecture_paths(names: list[str]) -> list[Path]:
    """Return the notebooks whose file name starts with one of `names` (all without names)."""
    paths = [*sorted(LECTURES.glob("[0-9][0-9]_*.ipynb")), LECTURES / "widget_gallery.ipynb"]
    unknown = [name for name in names if not any(p.name.startswith(name) for p in paths)]
    if unknown:
        known = ", ".join(p.stem for p in paths)
        raise SystemExit(f"no notebook starts with {', '.join(unknown)}; there are: {known}")
    return [p for p in paths if not names or any(p.name.startswith(name) for name in names)]


def drop_widget_views(notebook: dict) -> None:
    """Where a widget's output has a still picture, leave that alone in the file; in place.

    A view can be shown only while its kernel lives; without it Jupyter says "model not found".
    """
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output["data"].pop(WIDGET_VIEW, None)


def save_stills(model: dict, **where: Any) -> None:
    """For ContentsManager.pre_save_hook, where bootstrap.py has put it into .venv's settings: the
    page keeps its widgets, the file not."""
    if model["type"] == "notebook":
        drop_widget_views(model["content"])


def freeze_outputs(notebook: nbformat.NotebookNode) -> None:
    """Drop widget views, widget state and timestamps, name the kernel as JupyterLab does (else
    opening the notebook changes it), in place."""
    drop_widget_views(notebook)
    notebook.metadata.pop("widgets", None)
    notebook.metadata.kernelspec = dict(KERNEL)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)


def run(path: Path) -> tuple[nbformat.NotebookNode, float, str | None]:
    """Execute one notebook; return it, the wall seconds, and the first error or None."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(LECTURES)}},
        extra_arguments=["--IPKernelApp.log_level=40"],  # errors only: no note on local ports
    )
    start, error = time.perf_counter(), None
    try:
        client.execute()
    except CellExecutionError as failure:
        error = str(failure)
    freeze_outputs(notebook)
    return notebook, time.perf_counter() - start, error


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lectures.execute", description=__doc__)
    parser.add_argument("names", nargs="*", help="starts of file names, such as 01; all if empty")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--out", type=Path, help="folder for the executed copies")
    where.add_argument("--write", action="store_true", help="overwrite the committed notebooks")
    options = parser.parse_args(arguments)

    failures = 0
    print(f"{'notebook':<40} {'seconds':>8}", flush=True)
    for path in lecture_paths(options.names):
        notebook, seconds, error = run(path)
        print(f"{path.stem:<40} {seconds:8.1f}{'' if error is None else '  FAILED'}", flush=True)
        if error is not None:
            failures += 1
            print(error, file=sys.stderr)
            continue
        if options.write:
            nbformat.write(notebook, path)
        elif options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            nbformat.write(notebook, options.out / path.name)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
