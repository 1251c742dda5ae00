"""One softmax, seen from every stage: the pictures of docs/explorer.md."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import weft
from tests.browser.driver import Browser
from tests.browser.pages import TOUR, keep, needs_browser
from weft.codegen.gpu import sass
from weft.explorer.collect import of_program, records
from weft.explorer.page import page

pytestmark = needs_browser


def show_stages(browser: Browser, path: Path, stages: tuple[str, ...]) -> None:
    """Put stages side by side."""
    browser.open(path)
    browser.run("weft.show('code')")
    count = browser.run("weft.state.panes.length")
    button = f".code .bar button[title='One pane {'more' if count < len(stages) else 'less'}']"
    for _ in range(abs(count - len(stages))):
        browser.click(button)
    for at, stage in enumerate(stages):
        browser.run(f"weft.state.panes[{at}].show('{stage}')")


def lit(browser: Browser, pane: int) -> list[str]:
    row = f".pane:nth-child({pane + 1}) .row"
    return browser.texts(f"{row}.lit code") or browser.texts(f"{row}.near code")


@pytest.mark.parametrize(
    ("name", "stages", "words"),
    [
        ("graphs", ("frontend", "tiny", "indexbook"), ("exp(", '"exp"', '"iter"')),
        ("fused", ("poly_view", "region", "memory"), ("exp", '"exp"', "")),
        ("code-stages", ("plan", "cpu", "llvm", "asm"), ("row", "exp", "float", "")),
    ],
    ids=["graphs", "kernels", "code"],
)
def test_one_exponential_in_every_stage(
    name: str, stages: tuple[str, ...], words: tuple[str, ...], browser: Browser, tour: Path
) -> None:
    browser.resize(1600, 560)
    show_stages(browser, tour, stages)
    exp = browser.run("weft.state.data.programs[0].values.find((v) => v[1] === 'exp')[0]")
    browser.run(f"weft.select({{ values: [{exp}] }}, {{ pin: true }})")
    browser.settle()
    for at, (stage, word) in enumerate(zip(stages, words, strict=True)):
        found = lit(browser, at)
        if stage == "memory":  # It never leaves the registers.
            assert not found
            assert "none about it" in browser.texts(".pane-note")[at]
        else:
            assert any(word in line for line in found), (stage, found[:5])
    keep(browser, name)


@pytest.mark.skipif(not sass.available(), reason="nvdisasm is not installed")
def test_one_exponential_on_a_gpu(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "softmax.py").write_text(TOUR.replace("head(weft", "head.program(weft"))
    head = runpy.run_path(str(tmp_path / "softmax.py"))["head"]
    made = head.program(weft.ones((64, 128)), weft.ones((128, 96)))
    told, _ = records([of_program("head", made, "sm90")])
    (tmp_path / "gpu.html").write_text(page(told, "gpu"))
    browser.resize(1600, 560)
    show_stages(browser, tmp_path / "gpu.html", ("gpu", "cu", "ptx", "sass"))
    lines = browser.run("weft.state.panes[0].lines")
    at = next(n for n, line in enumerate(lines) if " = exp(" in line)
    browser.run(f"weft.state.panes[0].into({at})")
    browser.settle()
    browser.run(f"document.querySelector(\".pane .row[data-at='{at}'] code\").click()")
    browser.settle()
    for pane, word in enumerate((" = exp(", "expf(", "fma", "")):
        assert any(word in line for line in browser.texts(f".pane:nth-child({pane + 1}) .lit code"))
    assert len(browser.texts(".pane:nth-child(2) .lit code")) == 1
    keep(browser, "gpu")
    # From the instruction, all the variables that it is: one for each element of a thread.
    exp = browser.run("weft.state.data.programs[0].values.find((v) => v[1] === 'exp')[0]")
    browser.run(f"weft.select({{ values: [{exp}] }}, {{ pin: true }})")
    browser.settle()
    found = [lit(browser, pane) for pane in range(4)]
    assert len(found[0]) > 1
    assert all(" = exp(" in line for line in found[0])
    assert found[1]
    assert all("expf(" in line for line in found[1])
    assert any("fma" in line for line in found[2])
    assert all(found)
