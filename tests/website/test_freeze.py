"""What the site changes in a notebook, and what it leaves alone."""

import json
import re

import nbformat
import pytest

from website import freeze

TAGS = {"PG-4": "lectures/01_policy_gradient.ipynb", "RC-1": "lectures/03_ratios.ipynb"}
KEY = "course"


def frozen_text(text: str, here: str = "lectures/03_ratios.ipynb") -> str:
    return freeze.markdown(text, here, TAGS, lambda target: target)


@pytest.mark.parametrize(
    "text",
    [
        "`[PG-4]` in code",
        "```python\nx = 1  # [PG-4] and $$a\\tag{X-1}$$\n```",
        "~~~\n[PG-4]\n~~~",
        "inside $x[PG-4]$ a formula",
        "# A heading with [PG-4]",
        "[PG-4](elsewhere.md)",
        "[XX-9] is no equation of the course",
        "a list: x[1], [12], [A-b]",
        "$$ f[PG-4] $$",
    ],
)
def test_text_that_only_looks_like_a_reference_stays(text):
    assert frozen_text(text) == text


def test_a_reference_becomes_a_link_to_the_equation():
    here, there = "#RC-1", "01_policy_gradient.html#PG-4"
    assert frozen_text("By [RC-1] and [PG-4].") == (
        f'By <a class="tag" href="{here}">[RC-1]</a> and <a class="tag" href="{there}">[PG-4]</a>.'
    )
    assert 'href="../lectures/03_ratios.html#RC-1"' in frozen_text(
        "[RC-1]", "llm_trainer/README.md"
    )


def test_a_tagged_equation_gets_a_place_that_links_can_reach():
    assert freeze.tags_of("$$x\\tag{RC-1}$$ `$$y\\tag{NO-1}$$` $$z$$") == ["RC-1"]
    assert 'id="RC-1"></div>\n\n$$x\\tag{RC-1}$$' in frozen_text("$$x\\tag{RC-1}$$")


def test_a_tagged_equation_with_line_breaks_brings_its_own_environment():
    text = frozen_text("$$\\begin{cases}a\\\\b\\end{cases}\\tag{RC-1}$$")
    assert "\\begin{equation*}\n\\begin{cases}a\\\\b\\end{cases}\\tag{RC-1}\n" in text
    assert "$$" not in text


def test_links_are_rewritten_outside_code_only():
    text = freeze.markdown("[a](b) `[a](b)`\n# [a](b)", "x.md", {}, str.upper)
    assert text == "[a](B) `[a](b)`\n# [a](b)"


# --- notebooks ------------------------------------------------------------------------------


def widget_output(state: dict) -> nbformat.NotebookNode:
    return nbformat.v4.new_output(
        "execute_result",
        {"image/png": "iVBO\nRw==", "text/plain": "Clip: six < seven"},
        metadata={
            "image/png": {"alt": 'six < "seven"', "width": 960},
            KEY: {"widget": "clip", "state": state},
        },
        execution_count=1,
    )


def frozen_cells(*cells: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    notebook = nbformat.v4.new_notebook(cells=list(cells))
    modules = {"clip": "export default 1; // </script><!--"}
    return freeze.notebook(notebook, str.upper, modules.__getitem__, KEY).cells


def scripts(page: str, pattern: str) -> list[object]:
    return [json.loads(text) for text in re.findall(f"<script[^>]*{pattern}>(.*?)</script>", page)]


def test_a_widget_becomes_a_picture_with_its_module_and_state():
    state = {"note": "</script><b>", "eps": 0.2}
    (cell,) = frozen_cells(nbformat.v4.new_code_cell("clip", outputs=[widget_output(state)]))
    ((kind, page),) = cell.outputs[0].data.items()
    assert kind == "text/html"
    assert scripts(page, 'data-widget-module="clip"') == ["export default 1; // </script><!--"]
    assert scripts(page, "class=state") == [state]
    assert 'src="data:image/png;base64,iVBORw=="' in page
    assert 'alt="six &lt; &quot;seven&quot;" width="960"' in page
    assert len(re.findall("</script>", page)) == 3


def test_a_page_brings_each_module_once_and_each_widget_has_its_own_place():
    outputs = [widget_output({"n": 1}), widget_output({"n": 2})]
    cells = frozen_cells(
        nbformat.v4.new_code_cell("two", id="two", outputs=outputs),
        nbformat.v4.new_code_cell("one", id="one", outputs=[widget_output({"n": 3})]),
    )
    page = "".join(output.data["text/html"] for cell in cells for output in cell.outputs)
    assert len(scripts(page, 'data-widget-module="clip"')) == 1
    assert scripts(page, "class=state") == [{"n": 1}, {"n": 2}, {"n": 3}]
    places = re.findall('class="live-widget" id="([^"]*)"', page)
    assert len(set(places)) == 3
    assert re.findall(r'getElementById\("([^"]*)"\)', page) == places


LISTENS = """export default { render({ model, el }) {
  const seen = [];
  const hear = () => seen.push(model.get("n"));
  model.on("change:n", hear); model.set("n", 2);
  model.off("change:n", hear); model.set("n", 3);
  model.save_changes(); el.textContent = `${seen} ${model.get("n")} ${model.get("text")}`;
} };"""
FAILS = """export default { render({ el }) {
  el.textContent = "half"; throw new Error("on purpose");
} };"""


@pytest.mark.browser
def test_a_living_widget_takes_the_place_of_its_picture(page):
    state = {"n": 1, "text": "</script>"}
    page.set_content(freeze.live_widget("here", "listens", state, "<img alt='still'>", LISTENS))
    page.get_by_text("2 3 </script>").wait_for()
    assert page.locator("img").count() == 0


@pytest.mark.browser
def test_a_widget_that_fails_leaves_its_picture_and_says_so_in_the_console(chromium):
    page = chromium.new_page()
    with page.expect_console_message(lambda message: "on purpose" in message.text):
        page.set_content(freeze.live_widget("here", "fails", {}, "<img alt='still'>", FAILS))
    assert page.get_by_alt_text("still").count() == 1
    assert "half" not in page.locator("body").inner_text()
    page.close()


def test_pictures_keep_their_words_and_texts_are_rewritten():
    picture = nbformat.v4.new_output(
        "display_data", {"image/png": "AA=="}, metadata={"image/png": {"alt": "a line", "width": 7}}
    )
    caption = nbformat.v4.new_output("display_data", {"text/markdown": "caption"})
    code = nbformat.v4.new_code_cell("draw", outputs=[picture, caption])
    text, drawn = frozen_cells(nbformat.v4.new_markdown_cell("words"), code)
    assert text.source == "WORDS"
    assert drawn.source == "draw"
    assert 'alt="a line" width="7"' in drawn.outputs[0].data["text/html"]
    assert drawn.outputs[1].data["text/markdown"] == "CAPTION"
    assert picture.data == {"image/png": "AA=="}  # the original is as it was


def test_a_folded_cell_stays_folded():
    folded = nbformat.v4.new_code_cell("a", metadata={"jupyter": {"source_hidden": True}})
    first, second = frozen_cells(folded, nbformat.v4.new_code_cell("b"))
    assert first.metadata["tags"] == ["hide-input"]
    assert "tags" not in second.metadata


def test_the_search_quotes_words_and_not_code_that_is_folded():
    page = (
        '<article><section id="s"><h1>Title</h1><script>x</script><p>One <b>two</b> \\(x\\)</p>'
        '<details class="hide above-input"><pre>code</pre></details></section></article>'
    )
    assert freeze.text_of(page) == '<div role="main"><section id="s"> One two x </section></div>'
