"""Pages that list what the sources hold: error codes, environment variables, test folders."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import weft
from docs import draw_curve
from weft.foundation import errors

ROOT = Path(__file__).parents[2]
SOURCE = Path(weft.__file__).parent
CODE = re.compile(r"(?:[A-Z][a-z0-9]*){2,}")
NOT_CODES = {"TypeVar", "core_op", "number"}
"""Calls whose arguments look like codes and are none."""
NEVER_RAISED = {"IntegerPromotionExceedsSi64"}


def first_column(page: str, heading: str) -> list[str]:
    """What stands in code letters in the first column of the table under a heading."""
    text = (ROOT / page).read_text()
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


CLASSES = {"TorchModule"}
"""Names that a class is given, and that are no codes."""


def given(node: ast.AST) -> list[ast.expr]:
    """The arguments of a call, what a function takes where none are given, private names."""
    if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "").startswith("_"):
        return [node.value]
    if isinstance(node, ast.FunctionDef):
        return [*node.args.defaults, *filter(None, node.args.kw_defaults)]
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name not in NOT_CODES:
            return [*node.args, *(keyword.value for keyword in node.keywords)]
    return []


@cache
def codes_in(folder: str) -> set[str]:
    """Every code that stands in a call or as a default in a folder."""
    trees = [ast.parse(path.read_text()) for path in (SOURCE / folder).rglob("*.py")]
    values = [a for tree in trees for node in ast.walk(tree) for a in given(node)]
    texts = [a.value for a in values if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return {text for text in texts if CODE.fullmatch(text) and not text.isupper()}


def test_the_search_for_codes_finds_them() -> None:
    found = codes_in("ptir")
    assert {"ShapeMismatch", "CompareDTypePromotionInvalid", "HintInvalid"} <= found
    assert len(found) > 35


@pytest.mark.parametrize(
    "folder", ["foundation", "ptir", "coarse", "ops", "target", "interop/torch"]
)
def test_every_code_is_on_the_page(folder: str) -> None:
    listed = {*first_column("docs/errors.md", "Codes"), *first_column("docs/errors.md", "Types")}
    assert codes_in(folder) - listed - CLASSES == set()


def test_every_code_on_the_page_exists() -> None:
    listed = first_column("docs/errors.md", "Codes")
    assert len(set(listed)) == len(listed)
    folders = ("foundation", "ptir", "coarse", "ops", "target")
    raised = NEVER_RAISED.union(*map(codes_in, (*folders, "interop/onnx", "interop/torch")))
    assert set(listed) <= raised
    assert NEVER_RAISED.isdisjoint(codes_in("ptir"))


def test_every_numbered_code_of_the_compiler_is_on_the_page() -> None:
    texts = [path.read_text() for path in SOURCE.rglob("*.py")]
    raised = {code for text in texts for code in re.findall(r'"([EW]\d{4} [A-Z]\w+)"', text)}
    assert len(raised) > 10
    assert raised <= set(first_column("docs/errors.md", "Codes of the compiler"))


def test_the_types_on_the_page_are_all_there_are() -> None:
    types = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.WeftError | errors.WeftWarning)
    }
    assert set(first_column("docs/errors.md", "Types")) == types - {"WeftError"}


def test_every_environment_variable_is_on_the_page() -> None:
    sources = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    read = set(re.findall(r"\bWEFT_[A-Z_]+\b", sources))
    assert {"WEFT_DEBUG", "WEFT_MAX_LOOP_STEPS"} <= read
    assert set(first_column("docs/environment.md", "Variables")) == read


def test_every_folder_of_tests_is_listed() -> None:
    folders = {f"tests/{p.name}/" for p in (ROOT / "tests").iterdir() if any(p.glob("**/*.py"))}
    folders = {name for name in folders if (ROOT / name).is_dir() and "__pycache__" not in name}
    assert set(first_column("CONTRIBUTING.md", "Where things are")) == folders


@pytest.mark.usefixtures("default_backend")
def test_the_curve_on_the_front_page_is_that_of_its_code() -> None:
    """To two pixels: sums of another machine may round differently."""
    drawn = re.search(r'points="([^"]*)"', draw_curve.PICTURE.read_text())
    assert drawn is not None
    shown = [tuple(map(int, point.split(","))) for point in drawn[1].split()]
    found = draw_curve.points(draw_curve.losses())
    assert len(shown) == len(found)
    for (x, y), (right_x, right_y) in zip(shown, found, strict=True):
        assert abs(x - right_x) + abs(y - right_y) <= 2, "run python -m docs.draw_curve"
