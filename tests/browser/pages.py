"""Pages to look at, and what tests of them have in common."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.browser.driver import BROWSER, DRIVER, Browser
from weft.explorer.collect import of_program, records
from weft.ptir.ir import Program

needs_browser = pytest.mark.skipif(
    not (BROWSER and DRIVER and os.environ.get("WEFT_BROWSER")),
    reason="make test-browser runs these, where Chromium and its driver are installed",
)
ROOT = Path(__file__).parents[2]
PICTURES = os.environ.get("PICTURES")
TOUR = """import weft
import weft.functional as F


@weft.jit
def head(x, w):
    logits = x @ w
    return F.softmax(logits * 0.125)


head(weft.ones((64, 128)), weft.ones((128, 96)))
"""
EVIL = "</script><script>window.bad=1</script><img src=x onerror='window.bad=2'>"


def keep(browser: Browser, name: str) -> None:
    """A picture for the docs, where they are wanted."""
    if PICTURES:
        browser.picture(Path(PICTURES) / f"{name}.png")


def chain(layers: int) -> Program:
    """A program of five instructions a layer."""

    def deep(x: Any) -> Any:
        value = x
        for _ in range(layers):
            value = weft.tanh(value + x) * weft.exp(value) - x
        return value

    found: Program = weft.jit(deep).program(weft.ones((4,)))
    return found


def deep() -> list[dict[str, Any]]:
    """A page of 10,000 instructions, a line of text each, and as many kernels."""
    found = records([of_program("deep", chain(3), run=False)])[0]
    (record,) = found
    values = [
        [at, "add", "f32[4]", "deep.py", 3, f"blocks[{at // 50}].mlp", [at - 1, at - 7]]
        for at in range(8, 10_008)
    ]
    record["values"] = [*record["values"][:8], *values]
    lines = [f"  %{at} = add(%{at - 1}, %{at - 7}) : f32[4]" for at in range(8, 10_008)]
    marks = [[at, at + 1, [at + 8]] for at in range(10_000)]
    record["stages"][0].update(text=lines, marks=marks)
    kernel = record["kernels"][0]
    record["kernels"] = [{**kernel, "name": f"map{at}", "values": [at]} for at in range(10_008)]
    return found


def boxes_are_instructions(browser: Browser) -> None:
    """Show the graph of instructions, all of it."""
    browser.run("weft.show('graph')")
    change = "((s) => { s.value = 'instructions'; s.dispatchEvent(new Event('change')); })"
    browser.run(f"{change}(document.querySelector('.graph-view select'))")
    browser.run("weft.views.get('graph').unfold()")
    browser.settle()
