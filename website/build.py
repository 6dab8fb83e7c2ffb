"""Build the course as a static site that opens from disk, without a server or a network.

    make site                   (or, in the course's environment: python -m website.build)

Takes the committed notebooks as they are: nothing is executed. Jupyter Book lives in an environment
of its own, `.venv-site`, because its versions would quarrel with JupyterLab's. The site appears in
`build/site`, after everything has worked; until then the one before it stays. A second run finds
that nothing has changed and does nothing.
"""

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat

import bootstrap
from lectures.widgets.base import METADATA_KEY, module
from website import freeze

ROOT = bootstrap.ROOT
HERE = ROOT / "website"
VENV = ROOT / ".venv-site"
SITE = ROOT / "build/site"
WORK = ROOT / "build/site-sources"
BUILT_FROM = SITE / "built-from.txt"
JUPYTER_BOOK = "from jupyter_book.cli.main import main"
EXTRA = "beside-the-pages"  # what Jupyter Book does not read, and the site has all the same
REQUIREMENTS = "website/requirements.txt"

PARTS = {  # title → the numbers of its lectures
    "Part I: the estimator, on a toy": range(12),
    "Part II: real language models": range(12, 16),
    "Part III: neighbours": range(16, 21),
}
START = "lectures/README.md"  # its table says which lectures there are
BESIDE = {  # pages beside the lectures → their names in the navigation
    "lectures/notation.md": "Notation",
    "lectures/sources.md": "Sources",
    "lectures/reading.md": "Reading",
    "lectures/oral_exam.md": "Oral exam",
}
GALLERY = "lectures/widget_gallery.ipynb"
SHOWCASE = "lectures/03_ratios_and_clipping.ipynb"  # its widget is on the start page as well
ABOUT = {  # page → its name in the navigation
    "README.md": "About the project",
    "llm_trainer/README.md": "llm_trainer",
    "autograder/README.md": "autograder",
    "autograder/SEMESTER.md": "a semester",
    "lectures/reference_runs/README.md": "reference runs",
    "benchmarks/README.md": "benchmarks",
    "CONTRIBUTING.md": "Contributing",
    "CHANGELOG.md": "Changelog",
}
LIBRARIES = ("policy_gradients", "toy_models")  # no page of their own, so their source is shown
ROW = re.compile(r"^\| *\[?(\d\d) · ([^\]|]+?)(?:\]\([^)]*\))? *\|(.*)\| *$", re.MULTILINE)


def stop(sentence: str) -> None:
    sys.exit(f"site: {sentence}")


# --- what the site is made of ---------------------------------------------------------------


@functools.cache
def lectures() -> dict[int, str]:
    """Return number → path of the lectures that exist."""
    found = sorted(ROOT.glob("lectures/[0-9][0-9]_*.ipynb"))
    return {int(path.name[:2]): path.relative_to(ROOT).as_posix() for path in found}


@functools.cache
def announced() -> dict[int, tuple[str, list[str]]]:
    """Return number → (name, other columns) of the lectures in the start page's table.

    The columns are question, minutes, and what to read before.
    """
    rows = ROW.findall((ROOT / START).read_text("utf-8"))
    found = {int(n): (name, [text.strip() for text in rest.split("|")]) for n, name, rest in rows}
    for number, path in lectures().items():
        if number not in found or len(found[number][1]) != 3:
            stop(f"{path} exists, but the table in {START} lacks it")
    return found


@functools.cache
def notebooks() -> list[str]:
    """Return the paths of all notebooks of the site, in the order of the course."""
    gallery = [GALLERY] if (ROOT / GALLERY).exists() else []
    homework = sorted(
        path.relative_to(ROOT).as_posix() for path in ROOT.glob("homework/hw*/*.ipynb")
    )
    return [*lectures().values(), *gallery, *homework]


def inputs() -> list[Path]:
    """Return every file that the site depends on."""
    pages = [ROOT / name for name in (START, *BESIDE, *ABOUT, *notebooks())]
    own = [path for path in HERE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    libraries = [path for name in LIBRARIES for path in (ROOT / name).glob("*.py")]
    widgets = [*(ROOT / "lectures/widgets").glob("*.js"), ROOT / "lectures/widgets/base.py"]
    return sorted({*pages, *own, *libraries, *widgets, *(ROOT / "lectures/images").glob("*")})


def fingerprint() -> str:
    digest = hashlib.sha256()
    for path in inputs():
        digest.update(f"{path.relative_to(ROOT).as_posix()} ".encode() + path.read_bytes())
    return digest.hexdigest()


# --- sources for Jupyter Book ---------------------------------------------------------------


@functools.cache
def tags() -> dict[str, str]:
    """Return tag of an equation → path of the page that has it."""
    found: dict[str, str] = {}
    for path in lectures().values():
        for cell in read(path).cells:
            if cell.cell_type == "markdown":
                for tag in freeze.tags_of(cell.source):
                    found.setdefault(tag, path)
    return found


def read(path: str) -> nbformat.NotebookNode:
    return nbformat.read(ROOT / path, as_version=4)


def pages() -> set[str]:
    libraries = {f"{name}/README.md" for name in LIBRARIES}
    return {START, *BESIDE, *ABOUT, *notebooks(), *libraries}


def link(target: str, here: str) -> str:
    """Return what a link on the page at `here` becomes.

    A page's link stays, a folder's link goes to its page, and any other file comes along.
    """
    if re.match(r"[a-z]+:|#|/", target):
        return target
    name, _, anchor = target.partition("#")
    path = Path(os.path.relpath((ROOT / here).parent / name, ROOT))
    if (ROOT / path).is_dir():
        name, path = f"{name.rstrip('/')}/README.md", path / "README.md"
    if path.as_posix() not in pages():
        if ".." in path.parts or not (ROOT / path).exists():
            stop(f"{here} links to {target}, which is not a file of the course")
        copy(path.as_posix(), path.as_posix())
    return name + (f"#{anchor}" if anchor else "")


def copy(source: str | Path, target: str) -> None:
    (WORK / target).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / source, WORK / target)


def write(path: str, text: str) -> None:
    (WORK / path).parent.mkdir(parents=True, exist_ok=True)
    (WORK / path).write_text(text, "utf-8")


def rewrite(text: str, here: str) -> str:
    return freeze.markdown(text, here, tags(), lambda target: link(target, here))


def download(path: str) -> str:
    """Return the link that saves the notebook at `path` as it is in the repository.

    A browser does not save a file that lies beside a page on disk, it shows it. So the file comes
    along a second time, as a script that hands its text to course.js, which saves it.
    """
    name, text = Path(path).name, (ROOT / path).read_text("utf-8")
    copy(path, f"{EXTRA}/downloads/{path}")
    write(f"{EXTRA}/downloads/{path}.js", f"saveFile({json.dumps(name)}, {json.dumps(text)});\n")
    address = freeze.address(f"downloads/{path}", path)
    return (
        f'<p><a class="notebook-file" href="{address}" download>Download this notebook</a> '
        f"({name}, {len(text.encode()) / 1e3:.0f} kB)</p>"
    )


def frozen(path: str) -> nbformat.NotebookNode:
    return freeze.notebook(read(path), lambda text: rewrite(text, path), module, METADATA_KEY)


def write_notebook(path: str) -> None:
    page = frozen(path)
    title, _, rest = page.cells[0].source.partition("\n")
    page.cells[0].source = f"{title}\n\n{download(path)}\n\n{rest}"
    write(path, nbformat.writes(page))


def showcase() -> str:
    """Return the first widget of the lecture SHOWCASE as a block for a Markdown page."""
    outputs = [output for cell in frozen(SHOWCASE).cells for output in cell.get("outputs", [])]
    pages = [output.get("data", {}).get("text/html", "") for output in outputs]
    widget = next(page for page in pages if "live-widget" in page)
    return f"```{{raw}} html\n{widget}\n```"


def write_library(name: str) -> None:
    """Write the page of a package that has none: each module's source."""
    parts = [f"# {name}", "The source of the package, as the lectures use it."]
    for path in sorted((ROOT / name).glob("*.py")):
        if not path.name.startswith("_"):
            parts.append(f"## {path.name}\n\n```python\n{path.read_text('utf-8')}```")
    write(f"{name}/README.md", "\n\n".join(parts) + "\n")


def contents() -> dict:
    """Write the pages that are made here, and return the table of contents."""

    def entry(path: str, title: str) -> dict:
        return {"file": re.sub(r"\.(md|ipynb)$", "", path), "title": title}

    course = [entry(START, "Plan of the course"), *(entry(*item) for item in BESIDE.items())]
    if GALLERY in notebooks():
        course.append(entry(GALLERY, "Widget gallery"))
    parts = [("The course", course)]
    for title, numbers in PARTS.items():
        ready = [number for number in numbers if number in lectures()]
        entries = [entry(lectures()[n], f"{n:02d} · {announced()[n][0]}") for n in ready]
        parts.append((title, entries))
    homework = [path for path in notebooks() if path.startswith("homework/")]
    titles = [read(path).cells[0].source.split("\n")[0].lstrip("# ") for path in homework]
    parts.append(("Homework", [entry(*item) for item in zip(homework, titles, strict=True)]))
    for name in LIBRARIES:
        write_library(name)
    code = [entry(f"{name}/README.md", name) for name in LIBRARIES]
    parts.append(("Code and project", code + [entry(*item) for item in ABOUT.items()]))
    return {
        "format": "jb-book",
        "root": "index",
        "parts": [{"caption": caption, "chapters": chapters} for caption, chapters in parts],
    }


def write_sources() -> None:
    """Write everything that Jupyter Book reads into WORK."""
    shutil.rmtree(WORK, ignore_errors=True)
    for path in notebooks():
        write_notebook(path)
    for path in (START, *BESIDE, *ABOUT):
        text = (ROOT / path).read_text("utf-8")
        if path == "README.md":  # its own title is that of the whole site
            text = re.sub("^# .*", f"# {ABOUT[path]}", text)
        write(path, rewrite(text, path))
    start = (HERE / "index.md").read_text("utf-8")
    start = start.replace("<!-- lectures -->", cards()).replace("<!-- widget -->", showcase())
    write("index.md", start)
    write("_toc.yml", json.dumps(contents()))
    copy("website/config.yml", "_config.yml")
    shutil.copytree(HERE / "static", WORK / "_static")
    mathjax = next(VENV.glob("**/sphinx-mathjax-offline/static/mathjax/tex-svg.js"))
    copy(mathjax, f"{EXTRA}/_static/mathjax/tex-svg.js")


def make_search_quote(pages: Path) -> None:
    """Let the search quote the pages that it finds, although a page on disk may not fetch another.

    The texts of all pages become a script, and the search page asks that instead.
    """
    texts = {}
    for page in sorted(pages.rglob("*.html")):
        article = re.search(r"<article.*?</article>", page.read_text("utf-8"), re.DOTALL)
        if article:
            texts[page.relative_to(pages).as_posix()] = freeze.text_of(article[0])
    (pages / "_static/page-texts.js").write_text(
        f"const pageTexts = {json.dumps(texts, ensure_ascii=False)};\n"
        'window.fetch = async (page) => new Response(pageTexts[page.replace("./", "")] ?? "");\n',
        "utf-8",
    )
    search = pages / "search.html"
    script = '<script src="_static/page-texts.js"></script>\n  </head>'
    search.write_text(search.read_text("utf-8").replace("</head>", script, 1), "utf-8")


def cards() -> str:
    """Return a grid with one card per lecture that exists."""
    made = []
    for number, path in lectures().items():
        name, (question, minutes, _) = announced()[number]
        made.append(
            f":::{{grid-item-card}} {number:02d} · {name}\n:link: {path[: -len('.ipynb')]}\n"
            f":link-type: doc\n\n{question}\n\n*{minutes} minutes*\n:::"
        )
    return "::::{grid} 1 1 2 2\n:gutter: 3\n\n" + "\n".join(made) + "\n::::"


# --- building -------------------------------------------------------------------------------


def make_environment() -> None:
    pins = ["-r", ROOT / REQUIREMENTS]
    steps = [("installing Jupyter Book into .venv-site (about 300 MB)", pins)]
    bootstrap.install(VENV, (REQUIREMENTS, "bootstrap.py"), steps)


def main() -> None:
    wanted, began = fingerprint(), time.monotonic()
    start = SITE / "index.html"
    if start.exists() and BUILT_FROM.exists() and BUILT_FROM.read_text() == wanted:
        print(f"site: nothing has changed; open {start}")
        return
    make_environment()
    write_sources()
    book = [bootstrap.venv_python(VENV), "-c", f"{JUPYTER_BOOK}; main()", "build", WORK]
    print("site: Jupyter Book builds the pages ...", flush=True)
    built = subprocess.run(
        [*book, "-W", "--keep-going", "-q"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if built.returncode:
        log = WORK / "build.log"
        output = re.sub(r"\x1b\[[\d;]*m", "", built.stdout)  # without colours
        log.write_text(output, "utf-8")
        wrong = re.findall(r"^.*(?:WARNING|ERROR).*$", output, re.MULTILINE)
        first = wrong[0] if wrong else (output.splitlines() or ["no output"])[-1]
        stop(f"Jupyter Book failed: {first} (all of it is in {log})")
    pages = WORK / "_build/html"
    shutil.copytree(WORK / EXTRA, pages, dirs_exist_ok=True)
    for template in pages.glob("_static/*.html"):  # the theme's own, of no use in a site
        template.unlink()
    make_search_quote(pages)
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.move(pages, SITE)
    BUILT_FROM.write_text(wanted)
    size = sum(path.stat().st_size for path in SITE.rglob("*") if path.is_file()) / 1e6
    print(f"site: {time.monotonic() - began:.0f} s, {size:.0f} MB; open {start}")


if __name__ == "__main__":
    main()
