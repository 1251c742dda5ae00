"""Pages for those who come from other libraries: what a table says to write runs, and what it is
said to stand for exists there."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.support.doc_pages import blocks, run_python

ROOT = Path(__file__).parents[2]
PAGES = {"docs/coming-from-pytorch.md": "torch", "docs/coming-from-jax.md": "jax"}
SHORT = {"nn.": "torch.nn.", "F.": "torch.nn.functional."}
THIRD = {"flax", "equinox", "optax"}
"""Libraries that nobody here needs."""


def rows(page: str) -> Iterator[tuple[list[str], list[str]]]:
    """The pieces of code of every row: theirs, and ours."""
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split(" | ")]
        if line.startswith("| `") and len(cells) == 2:
            theirs, ours = (re.findall(r"`([^`]+)`", cell) for cell in cells)
            assert ours or cells[1].strip(" |") == "–", f"{page}: {line} says nothing"
            yield theirs, ours


def names_of(page: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        run_python(block.code, names)
    return names


ROWS = [(page, row) for page in PAGES for row in rows(page)]


def test_there_are_rows() -> None:
    for page in PAGES:
        assert sum(found == page for found, _ in ROWS) > 60


@pytest.mark.parametrize("page", PAGES)
def test_what_a_row_says_to_write_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the reference: what is computed is compared elsewhere, with every backend."""
    monkeypatch.chdir(tmp_path)
    with weft.graph(backend="reference"):
        common = names_of(page)
        for _, ours in rows(page):
            for code in ours:
                if re.match(r"\"|__", code):
                    continue
                try:
                    carry_out(code, dict(common))
                except Exception as error:
                    raise AssertionError(f"{page}: {code}: {error}") from error


def carry_out(code: str, names: dict[str, Any]) -> None:
    """An expression, whose tensors are computed, or a statement."""
    try:
        expression = compile(code, "row", "eval")
    except SyntaxError:
        exec(compile(code, "row", "exec"), names)
    else:
        leaves = weft.tree.leaves(eval(expression, names))
        weft.eval(*[leaf for leaf in leaves if isinstance(leaf, weft.Tensor)])


@pytest.mark.parametrize(("page", "library"), PAGES.items())
def test_what_a_row_stands_for_exists(page: str, library: str) -> None:
    pytest.importorskip(library)
    for theirs, _ in rows(page):
        for code in theirs:
            name = re.match(r"[\w.]+", code)
            assert name is not None
            path = name[0]
            for short, whole in SHORT.items():
                path = re.sub(rf"^{re.escape(short)}", whole, path) if library == "torch" else path
            first = path.partition(".")[0]
            if first == library:
                resolve(path)
            else:
                assert first in THIRD | {"x", "model", "loss", "optimizer"}, code


def resolve(path: str) -> Any:
    """The object of a dotted name, whose parts may be modules that nobody loaded yet."""
    first, *others = path.split(".")
    found: Any = importlib.import_module(first)
    at = first
    for part in others:
        at = f"{at}.{part}"
        if not hasattr(found, part):
            with suppress(ImportError):
                importlib.import_module(at)
        assert hasattr(found, part), f"there is no {at}"
        found = getattr(found, part)
    return found
