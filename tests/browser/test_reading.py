"""What somebody who reads a page sees: lines in full, where things are, and why others are not."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.browser.driver import Browser
from tests.browser.pages import chain, keep, needs_browser
from weft import nn
from weft.explorer.collect import of_program, records
from weft.explorer.page import page
from weft.ptir.ir import Program

pytestmark = needs_browser


def opened(browser: Browser, found: list[dict[str, Any]], folder: Path) -> None:
    path = folder / "page.html"
    path.write_text(page(found, "page"))
    browser.open(path)


def test_lines_of_kernels_are_shown_in_full(browser: Browser, tmp_path: Path) -> None:
    found = records([of_program("net", chain(3), run=False)])[0]
    (kernel,) = found[0]["kernels"]
    names = [
        "train_the_model.py:1207",
        "net.py:3",
        "a_file_with_a_name_too_long_for_any_list.py:17",
    ]
    found[0]["kernels"] = [
        {**kernel, "name": f"map{at}", "place": name, "layer": "blocks[0].attention.value"}
        for at, name in enumerate(names)
    ]
    opened(browser, found, tmp_path)
    shown = browser.texts(".kernel:not(.head) .place")
    assert shown[:2] == names[:2]
    assert shown[2].startswith("…")
    assert shown[2].endswith(".py:17")
    cells = "[...document.querySelectorAll('.kernel .place')]"
    assert browser.run(f"{cells}.every((e) => e.scrollWidth <= e.clientWidth)")


def test_the_source_opens_at_its_dearest_line(browser: Browser, tmp_path: Path) -> None:
    opened(browser, records([of_program("rows", rows(), run=False)])[0], tmp_path)
    browser.run("weft.show('code')")
    browser.settle()
    (heat,) = {text for text in browser.texts(".pane:first-child .heat") if text}
    assert heat == "100 %"


def test_text_is_selected_by_dragging(browser: Browser, tour: Path) -> None:
    browser.open(tour)
    browser.run("weft.show('code')")
    browser.settle()
    row = ".pane:nth-child(2) .row[data-at='{}'] code".format
    browser.drag(row(5), row(7) + " .t-ref")
    text = browser.run("String(getSelection())")
    assert text.count("=") >= 3
    assert "%4" in text
    assert not browser.run("weft.state.pinned")
    browser.run("getSelection().removeAllRanges()")


def test_code_that_is_not_there_is_explained(browser: Browser, tmp_path: Path) -> None:
    found = records([of_program("rows", rows(), run=False)])[0]
    kernel = found[0]["kernels"][0]
    at = len(found[0]["kernels"])
    values = found[0]["values"]
    values.append([999, "exp", "f32[4]", "", 0, "", []])
    found[0]["kernels"].append({**kernel, "name": "far", "routine": "k_0", "values": [999]})
    opened(browser, found, tmp_path)
    browser.run("weft.show('code')")
    browser.run(f"weft.select({{ kernels: [{at}] }}, {{ pin: true }})")
    browser.settle()
    notes = browser.texts(".pane-note")
    assert notes[0] == "no line of it is known"
    assert "--full" in notes[-1]
    browser.press("escape")
    browser.run("weft.select({ kernels: [0] }, { pin: true })")
    browser.settle()
    assert "--full" not in "".join(browser.texts(".pane-note"))


def test_memory_at_the_peak_is_in_the_users_words(browser: Browser, tmp_path: Path) -> None:
    def two(x: Any, w: Any) -> Any:
        return (x @ w) @ w

    program = weft.jit(two).program(weft.ones((64, 64)), weft.ones((64, 64)))
    opened(browser, records([of_program("two", program, run=False)])[0], tmp_path)
    browser.run("weft.show('memory')")
    browser.settle()
    (row, *_) = browser.texts(".memory-view .plan tr")
    assert "dot_general" in row
    assert "test_reading.py:" in row
    browser.click(".memory-view .plan .link")
    browser.settle()
    assert browser.run("weft.state.view") == "kernels"
    assert browser.texts(".card h2")[0].startswith("matmul")


def test_two_levels_are_compared_with_reasons(browser: Browser, tmp_path: Path) -> None:
    shown = [of_program("rows", rows(), level=level, run=False) for level in (0, 2)]
    opened(browser, records(shown)[0], tmp_path)
    browser.run("weft.show('compare')")
    browser.settle()
    heads = browser.texts(".pairs th")
    assert heads[0].endswith("-O0")
    assert heads[1].endswith("-O2")
    told = " ".join(browser.texts(".pairs .lone td:last-child"))
    assert "part of row" in told
    assert "instead of" in told
    browser.run("weft.show('kernels')")
    assert not browser.errors()


class Net(nn.Module):
    """Two blocks of a transformer, and a head."""

    def __init__(self) -> None:
        self.blocks = [nn.TransformerBlock(64, 4) for _ in range(2)]
        self.head = nn.Linear(64, 96)

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = weft.jit(lambda net, x: net(x)).program(Net(), weft.ones((8, 32, 64)))
    path = tmp_path_factory.mktemp("model") / "model.html"
    path.write_text(page(records([of_program("model", program, run=False)])[0], "model"))
    return path


def test_a_model_has_its_layers_and_its_memory(browser: Browser, model: Path) -> None:
    browser.open(model)
    browser.run("weft.show('graph')")
    rows = browser.run("weft.views.get('graph').count()")
    browser.settle()
    keep(browser, "graph")
    browser.run("[...document.querySelectorAll('.graph-view button')][0].click()")
    assert browser.run("weft.views.get('graph').count()") < rows
    browser.run("weft.show('memory')")
    browser.settle()
    words = " ".join(browser.texts(".memory-view .plan tr"))
    assert "blocks[0]" in words or "blocks[1]" in words
    keep(browser, "memory")
    assert not browser.errors()


def test_a_notebook_shows_the_page_inline(browser: Browser, tmp_path: Path) -> None:
    with weft.graph(backend="cpu"):
        head = weft.jit(lambda x, w: weft.functional.softmax((x @ w) * 0.125))
        head(weft.ones((64, 128)), weft.ones((128, 96)))
        inline = head.explore()._repr_html_()
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><html data-ready=0><body>{inline}</body></html>")
    browser.open(path)
    browser.enter_frame(0)
    try:
        for view in ("graph", "memory", "timeline", "compare", "kernels", "code"):
            browser.run(f"weft.show('{view}')")
            browser.settle()
        browser.click(".pane:first-child .row.linked code")
        browser.settle()
        assert "computed by" in browser.texts(".told")[0]
    finally:
        browser.leave_frame()
    assert not browser.errors()


def test_the_page_is_used_by_keyboard_alone(browser: Browser, tour: Path) -> None:
    """The dearest kernel, its machine code, another view, and back."""
    browser.open(tour)
    browser.press("1", "down")
    first = browser.texts(".card h2")[0]
    browser.press("down")
    assert browser.texts(".card h2")[0] != first
    browser.press("2", *["down"] * 8)
    browser.settle()
    assert "softmax" in browser.texts(".pane:first-child .row.lit code")[0]
    browser.press("enter")
    assert browser.texts(".pane:last-child .row.lit code")
    browser.press("escape", "3", "down", "enter")
    assert browser.run("weft.state.pinned && weft.state.kernels.size === 1")
    browser.press("5", "+", "right")
    browser.settle()
    assert browser.run("document.activeElement.className") == "timeline"
    browser.press("6")
    assert browser.run("document.activeElement.tagName") == "SELECT"
    browser.press("2")
    assert browser.run("weft.state.view") == "code"
    browser.press("6", "escape")
    assert browser.run("document.activeElement.tagName") == "BODY"
    browser.press("6", "/")
    assert browser.run("document.activeElement.type") == "search"
    browser.press("escape", "1")
    assert browser.run("weft.state.view") == "kernels"
    assert not browser.errors()


def test_a_semicolon_of_python_begins_no_remark(browser: Browser, tour: Path) -> None:
    browser.open(tour)
    browser.run("weft.show('code')")
    browser.run("weft.state.panes[0].lines.splice(0, 1, 'x = 1; y = 2  # both')")
    browser.run("weft.state.panes[0].draw()")
    assert browser.texts(".pane:first-child .row[data-at='0'] .t-com") == ["# both"]
    assert browser.texts(".pane:first-child .row[data-at='0'] .t-num") == ["1", "2"]


FORMULA = """import weft
import weft.functional as F


def loss(q, k, v):
    scores = q @ k.transpose(0, 1, 3, 2) * 0.25
    weights = F.softmax(scores, axis=-1)
    return weft.sum(weights @ v)


@weft.jit
def step(q, k, v):
    return weft.value_and_grad(loss)(q, k, v)
"""


def test_every_line_of_a_formula_leads_to_its_kernels(browser: Browser, tmp_path: Path) -> None:
    """Three lines became one attention; a line that became nothing says so."""
    script, out = tmp_path / "formula.py", tmp_path / "formula.html"
    script.write_text(FORMULA)
    found: dict[str, Any] = runpy.run_path(str(script))
    x = weft.ones((1, 2, 8, 16))
    shown = of_program("step", found["step"].program(x, x, x), run=False)
    out.write_text(page(records([shown])[0], "formula"))
    browser.open(out)
    browser.run("weft.show('code')")
    browser.settle()
    for line in (6, 7, 8):
        browser.click(f".pane:first-child .row[data-at='{line - 1}'] code")
        assert browser.run("weft.state.pinned && weft.state.kernels.size > 0")
        assert "line" not in browser.texts(".pane:first-child .pane-note")[0]
    browser.click(".pane:first-child .row[data-at='4'] code")
    told = browser.texts(".pane:first-child .pane-note")[0]
    assert told == "no instruction comes from line 5"
    browser.write("input[type=search]", "formula.py:7")
    browser.press("enter")
    assert browser.run("weft.state.pinned && weft.state.kernels.size > 0")
    assert not browser.errors()


# Far below, so that a page has to scroll to it.
def rows() -> Program:
    def normal(x: Any) -> Any:
        return weft.functional.softmax(weft.sum(weft.exp(x), axis=2))

    found: Program = weft.jit(normal).program(weft.ones((16, 32, 64)))
    return found
