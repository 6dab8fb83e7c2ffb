"""The built site: complete, self-contained, and alive in a browser without a network.

The site under test is the one that `make site` has built from the present files.
"""

import filecmp
import re
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest

from website import build

LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


@pytest.fixture(scope="module")
def site(missing):
    """The folder of the site."""
    built = build.BUILT_FROM.read_text() if build.BUILT_FROM.exists() else None
    if built != build.fingerprint():
        missing("a site built from the present files", "run `make site`")
    return build.SITE


class Page(HTMLParser):
    """What a page links to and loads, and the places in it."""

    def __init__(self, text: str):
        super().__init__()
        self.links, self.loads, self.places = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.places |= {attributes.get("id"), attributes.get("name")}
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        if attributes.get(LOADS.get(tag)):
            self.loads.append(attributes[LOADS[tag]])


@pytest.fixture(scope="module")
def pages(site):
    """Path → what is in it, for every page of the site."""
    return {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}


def test_every_notebook_has_a_page_and_comes_along_unchanged(site):
    assert len(build.notebooks()) >= 5
    for path in build.notebooks():
        page = (site / path).with_suffix(".html").read_text("utf-8")
        assert 'class="notebook-file"' in page
        assert filecmp.cmp(build.ROOT / path, site / "downloads" / path, shallow=False)


def test_every_link_leads_somewhere(site, pages):
    lost = []
    for path, page in pages.items():
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            places = pages[target].places if target in pages else {parts.fragment}
            if not target.exists() or (parts.fragment and unquote(parts.fragment) not in places):
                lost.append((path.relative_to(site).as_posix(), link))
    assert lost == []


def test_no_page_or_style_loads_from_elsewhere(site, pages):
    loads = {load for page in pages.values() for load in page.loads}
    assert [load for load in loads if re.match(r"(https?:)?//", load)] == []
    styles = [path.read_text("utf-8") for path in site.rglob("*.css")]
    assert len(styles) > 5
    assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)]*", "".join(styles)) == []


def test_every_widget_is_in_its_page_and_none_says_that_its_model_is_not_found(site):
    places = 0
    for path in build.notebooks():
        outputs = [o for cell in build.read(path).cells for o in cell.get("outputs", [])]
        wanted = sum(build.METADATA_KEY in output.get("metadata", {}) for output in outputs)
        page = (site / path).with_suffix(".html").read_text("utf-8")
        assert len(re.findall('class="live-widget"', page)) == wanted
        assert "model not found" not in page.lower()
        assert "application/vnd.jupyter.widget" not in page
        places += wanted
    assert places > 0


def test_the_front_page_lists_every_lecture(site):
    start = (site / "index.html").read_text("utf-8")
    assert build.announced().keys() == build.lectures().keys()
    for number, (name, _) in build.announced().items():
        assert f"{number:02d} · {name}" in start


# --- in the browser -------------------------------------------------------------------------

browser = pytest.mark.browser
ARTIFACTS = build.ROOT / "test-artifacts"


@pytest.fixture
def visit(page, site):
    """A function that opens a page of the site from disk, with the network blocked."""
    asked = []
    page.context.route(re.compile("^https?:"), lambda route: route.abort())
    page.on("request", lambda request: asked.append(request.url))

    def open_page(path: str) -> None:
        page.goto((site / path).as_uri())

    yield open_page
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def keep(page, name: str) -> None:
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / f"site_{name}.png")


CUT_OFF = """
() => [...document.querySelectorAll("div.math > mjx-container")].filter(
  (formula) => formula.getBoundingClientRect().left
    < formula.parentElement.getBoundingClientRect().left - 1,
).length
"""
LIVE = "lectures/03_ratios_and_clipping.html"


@browser
def test_every_page_opens_without_an_error_and_its_mathematics_is_typeset(page, visit, pages, site):
    for path in pages:
        visit(path.relative_to(site).as_posix())
        page.evaluate("() => window.MathJax?.startup?.promise")
        untypeset = page.locator(".math:not(:has(mjx-container))")
        assert (path.name, untypeset.count()) == (path.name, 0)
        assert page.locator("mjx-merror, [data-mjx-error]").count() == 0
        for width in (1280, 400):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0
            assert page.evaluate(CUT_OFF) == 0  # what is too wide can be scrolled to its beginning
        if path.name == "01_policy_gradient.html":
            assert page.locator("mjx-container").count() > 100


@browser
def test_no_formula_is_cut_off_on_a_laptop(page, visit):
    page.set_viewport_size({"width": 1280, "height": 800})
    wide = "nodes => nodes.filter((n) => n.scrollWidth > n.clientWidth + 1).map((n) => n.id)"
    for path in build.lectures().values():
        visit(path.replace(".ipynb", ".html"))
        page.wait_for_function("MathJax.startup.promise.then(() => true)")
        assert page.locator(".bd-article div.math").evaluate_all(wide) == [], path


WHICH_OF_ITS_GROUP = """(radio) => {
    const group = radio.getRootNode().querySelectorAll(`input[name="${radio.name}"]`);
    return [...group].indexOf(radio);
}"""


@browser
def test_every_widget_is_alive_and_answers_the_keyboard(page, visit, site):
    from playwright.sync_api import expect

    for path in build.notebooks():
        outputs = [o for cell in build.read(path).cells for o in cell.get("outputs", [])]
        if not any(build.METADATA_KEY in output.get("metadata", {}) for output in outputs):
            continue
        visit(path.replace(".ipynb", ".html"))
        for widget in page.locator(".live-widget").all():
            expect(widget.locator("input:enabled").first).to_be_visible()
            expect(widget.locator("xpath=./img")).to_have_count(0)
            if widget.locator("input[type=range]:enabled").count() == 0:  # choices only
                chosen = widget.locator("input[type=radio]:checked").first
                name = chosen.get_attribute("name")
                number = chosen.evaluate(WHICH_OF_ITS_GROUP)
                chosen.focus()
                page.keyboard.press("ArrowRight")
                now = widget.locator(f"input[name='{name}']:checked")
                assert now.evaluate(WHICH_OF_ITS_GROUP) != number
                continue
            slider = widget.locator("input[type=range]:enabled").first
            value, words = slider.get_attribute("aria-valuetext"), widget.locator(".result")
            sentence = words.inner_text()
            slider.focus()
            for _ in range(3):
                page.keyboard.press("ArrowRight" if slider_can_grow(slider) else "ArrowLeft")
            expect(slider).not_to_have_attribute("aria-valuetext", value)
            if path.startswith(LIVE[:-5]):
                slider = widget.get_by_role("slider", name="epsilon high")
                slider.focus()
                page.keyboard.press("ArrowRight")
                expect(words).not_to_have_text(sentence)
                keep(page, "widget")


def slider_can_grow(slider) -> bool:
    return slider.evaluate("(input) => Number(input.value) < Number(input.max)")


@browser
def test_a_notebook_is_saved_byte_for_byte(page, visit):
    visit(LIVE)
    with page.expect_download() as saving:
        page.locator("a.notebook-file").click()
    assert saving.value.suggested_filename == "03_ratios_and_clipping.ipynb"
    original = build.ROOT / "lectures/03_ratios_and_clipping.ipynb"
    assert filecmp.cmp(saving.value.path(), original, shallow=False)


@browser
def test_the_search_finds_and_quotes(page, visit):
    from playwright.sync_api import expect

    visit("index.html")
    page.keyboard.press("Control+k")
    page.keyboard.type("dual clip")
    page.keyboard.press("Enter")
    results = page.locator("#search-results li")
    found = results.filter(has_text="How far may one batch of samples be used?").first
    expect(found.locator(".context")).to_contain_text("clip")
    keep(page, "search")
    found.get_by_role("link").first.click()
    expect(page).to_have_url(re.compile(re.escape(LIVE)))


@browser
def test_a_reference_leads_to_its_equation(page, visit):
    from playwright.sync_api import expect

    visit(LIVE)
    page.locator("a.tag", has_text="[PG-10]").first.click()
    expect(page).to_have_url(re.compile(r"01_policy_gradient\.html#PG-10$"))
    equation = page.locator("#PG-10 + .math")
    expect(equation.locator("mjx-container")).to_be_in_viewport()


@browser
def test_the_theme_switch_darkens_page_and_widget(page, visit):
    from playwright.sync_api import expect

    visit(LIVE)
    widget = page.locator(".live-widget section").first
    html = page.locator("html")
    for theme, dark in {"dark": True, "light": False}.items():
        for _ in range(3):  # the button goes round light, dark and the system's choice
            if html.get_attribute("data-mode") == theme:
                break
            page.locator(".theme-switch-button").first.click()
        expect(html).to_have_attribute("data-theme", theme)
        expect(widget).to_have_class(
            re.compile(r"^widget.*\bdark" if dark else r"^widget(?!.*dark)")
        )
        widget.scroll_into_view_if_needed()
        keep(page, theme)


@browser
def test_folded_answers_and_folded_code_open(page, visit):
    from playwright.sync_api import expect

    visit(LIVE)
    answer = page.locator("details:not(.hide)", has_text="Question").first
    expect(answer.locator("p").first).to_be_hidden()
    answer.locator("summary").click()
    expect(answer.locator("p").first).to_be_visible()
    code = page.locator("details.hide").first
    expect(code.locator("pre").first).to_be_hidden()
    code.locator("summary").click()
    expect(code.locator("pre").first).to_be_visible()
