"""Turn the committed notebooks and pages into sources for Jupyter Book.

The repository's own links, tags and widgets mean something in JupyterLab and in a code host; this
module says the same for a page without a kernel:
- an output that carries a widget's name and state becomes that widget, alive, over its picture;
- `[PG-4]` becomes a link to the equation with \\tag{PG-4};
- a link to a folder becomes a link to the page that describes it;
- cells that JupyterLab folds are folded here too, and pictures keep their width and their words.

Functions are pure: text or notebook in, text or notebook out. Leaves out: running anything.
"""

import copy
import html
import json
import posixpath
import re
from collections.abc import Callable

import nbformat

# Matched first, so that what looks like a tag or a formula inside code is left alone.
CODE = r"^(?P<fence>`{3,}|~{3,}).*?^(?P=fence)[ \t]*$|(?P<tick>`+)(?!`).+?(?<!`)(?P=tick)(?!`)"
DISPLAY = r"\$\$(?P<display>.+?)\$\$"
INLINE = r"(?<![\\$])\$(?!\$)[^$\n]+\$"
HEADING = r"^#{1,6} [^\n]*$"
LINK = r"(?P<before>\]\()(?P<target>[^)\s]+)(?P<after>\))"
TAG = r"\[(?P<tag>[A-Z]{2,5}-\d+)\](?![(\[])"
FLAGS = re.MULTILINE | re.DOTALL
TAGGED = re.compile(r"\\tag\{([A-Z]{2,5}-\d+)\}")
PROTECTED = re.compile("|".join((CODE, DISPLAY, INLINE, HEADING, LINK, TAG)), FLAGS)
FOLDED = "hide-input"


# --- text -----------------------------------------------------------------------------------


def tags_of(text: str) -> list[str]:
    """Return the tags of the equations in a Markdown text, in order."""
    found = (match["display"] for match in PROTECTED.finditer(text) if match["display"])
    return [tag for formula in found for tag in TAGGED.findall(formula)]


def equation(formula: str) -> str:
    """Return a display formula, with a place to link to in front if it has a tag.

    Sphinx wraps line breaks in an environment that allows no tag, so those bring their own.
    """
    tags = TAGGED.findall(formula)
    if not tags:
        return f"$${formula}$$"
    places = "".join(f'<div class="equation-place" id="{tag}"></div>' for tag in tags)
    body = f"$${formula}$$"
    if r"\\" in formula:
        body = f"\\begin{{equation*}}\n{formula.strip()}\n\\end{{equation*}}"
    return f"\n\n{places}\n\n{body}\n"


def markdown(text: str, here: str, tags: dict[str, str], link: Callable[[str], str]) -> str:
    """Rewrite one Markdown text of the page at `here` (a path in the repository).

    tags : tag of an equation → path of the page that has it
    link : what a relative link's target becomes
    """

    def rewrite(match: re.Match) -> str:
        if match["display"]:
            return equation(match["display"])
        if match["target"]:
            return match["before"] + link(match["target"]) + match["after"]
        if match["tag"] in tags:
            page = tags[match["tag"]]
            page = "" if page == here else address(page.replace(".ipynb", ".html"), here)
            return f'<a class="tag" href="{page}#{match["tag"]}">[{match["tag"]}]</a>'
        return match[0]

    return PROTECTED.sub(rewrite, text)


def address(path: str, here: str) -> str:
    """Return the address of `path` (a path in the repository), seen from the page at `here`."""
    page = re.sub(r"\.md$", ".html", path)
    return posixpath.relpath(page, posixpath.dirname(here) or ".")


UNQUOTED = re.compile(
    r"<(script|style|noscript|h1)\b.*?</\1>|<details class=\"hide.*?</details>"
    r"|<p><a class=\"notebook-file.*?</p>|<a class=\"headerlink.*?</a>|\\[()\[\]]",
    re.DOTALL,
)


def text_of(page: str) -> str:
    """Return the words of a page in its sections, for the search to quote."""
    words = re.sub(r"<(?!/?section\b)[^<>]*>", " ", UNQUOTED.sub("", page))
    return f'<div role="main">{" ".join(words.split())}</div>'


# --- widgets --------------------------------------------------------------------------------

# Imports the module from a Blob, because a page opened from disk may import no file; the model is
# a plain object, because there is no kernel.
RUN = """
const place = document.getElementById("PLACE");
const text = (selector, from) => from.querySelector(selector).textContent;
const source = JSON.parse(text('[data-widget-module="NAME"]', document));
const state = JSON.parse(text(".state", place));
const listeners = {};
const model = {
  get: (key) => state[key],
  set(key, value) {
    state[key] = value;
    for (const listener of listeners[`change:${key}`] ?? []) listener();
  },
  on: (event, listener) => { (listeners[event] ??= []).push(listener); },
  off(event, listener) {
    listeners[event] = (listeners[event] ?? []).filter((other) => other !== listener);
  },
  save_changes() {},
};
const el = document.createElement("div");
const picture = place.querySelector("img");
try {
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const widget = (await import(url)).default;
  place.prepend(el);
  widget.render({ model, el });
  picture.remove();
} catch (error) {
  el.remove();
  console.error(error);
}
"""


def live_widget(place: str, widget: str, state: dict, picture: str, source: str | None) -> str:
    """Return HTML that shows a widget's picture and then puts the living widget in its place.

    place   : an id that is unique on the page
    picture : an <img> element, which stays where scripts are off or something fails
    source  : the widget's ES module as text; None if an earlier widget of the page brought it
    """
    module = "" if source is None else _script(source, f'data-widget-module="{widget}"')
    run = RUN.replace("PLACE", place).replace("NAME", widget)
    return (
        f'{module}<div class="live-widget" id="{place}">\n{picture}\n'
        f"{_script(state, 'class=state')}<noscript>The controls need JavaScript.</noscript></div>\n"
        f'<script type="module">{run}</script>'
    )


def _script(value: object, attributes: str) -> str:
    """Return a script element that holds JSON and cannot be ended by what it holds."""
    data = json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json" {attributes}>{data}</script>\n'


# --- notebooks ------------------------------------------------------------------------------


def notebook(
    source: nbformat.NotebookNode,
    rewrite: Callable[[str], str],
    module: Callable[[str], str],
    key: str,
) -> nbformat.NotebookNode:
    """Return a copy of a notebook for the site.

    rewrite : what becomes of a Markdown text, in a cell or in an output
    module  : name of a widget → its ES module as text
    key     : where an output's metadata names its widget and state
    """
    frozen = copy.deepcopy(source)
    frozen.metadata.pop("widgets", None)
    brought: set[str] = set()
    for cell in frozen.cells:
        if cell.cell_type == "markdown":
            cell.source = rewrite(cell.source)
        if cell.cell_type != "code":
            continue
        if cell.metadata.get("jupyter", {}).get("source_hidden"):
            cell.metadata.setdefault("tags", []).append(FOLDED)
        for number, output in enumerate(cell.outputs):
            data, about = output.get("data", {}), output.get("metadata", {})
            if "text/markdown" in data:
                data["text/markdown"] = rewrite(data["text/markdown"])
            if key in about:
                name, state = about[key]["widget"], about[key]["state"]
                text = None if name in brought else module(name)
                brought.add(name)
                place = f"widget-{cell.id}-{number}"
                output.data = {"text/html": live_widget(place, name, state, picture(output), text)}
            elif "image/png" in data:
                output.data = {"text/html": picture(output)}
    return frozen


def picture(output: nbformat.NotebookNode) -> str:
    """Return an output's PNG as an element with the width and the words of its metadata."""
    about = output.get("metadata", {}).get("image/png", {})
    data = "".join(output.data["image/png"].split())
    alt = html.escape(about.get("alt") or output.data.get("text/plain", ""))
    width = f' width="{about["width"]}"' if "width" in about else ""
    return f'<img class="figure" src="data:image/png;base64,{data}" alt="{alt}"{width}>'
