"""Functional ops: the page that lists them is up to date, and every op is written the same way."""

from __future__ import annotations

import inspect
import pkgutil

from docs import generate_functional
from tests.support.cases import each
from weft.ops import functional
from weft.ops.functional import registry

FILES = [module.name for module in pkgutil.iter_modules(functional.__path__)]
MACHINERY = {"capture", "checks", "registry", "timing"}


def test_the_page_is_up_to_date() -> None:
    assert generate_functional.PAGE.read_text() == generate_functional.render(), "run `make docs`"


def test_every_file_is_a_family_of_the_page() -> None:
    assert set(FILES) - MACHINERY == set(generate_functional.FAMILIES)


def test_every_op_is_exported() -> None:
    assert set(registry._ENTRIES) <= set(functional.__all__)
    assert functional.__all__ == sorted(functional.__all__)


@each("op", sorted(registry._ENTRIES))
def test_every_op_says_what_it_means(op: str) -> None:
    function = registry.entry_of(op).implementations["default"].run
    assert inspect.getdoc(function)
