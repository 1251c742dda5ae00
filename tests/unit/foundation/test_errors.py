"""Errors travel: pickled for another process or copied, they say what they said."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from typing import Any

import pytest

import weft
from weft.foundation.errors import Finding, OutOfRange, SpecViolation, UserError, WeftError
from weft.ptir.rules import SizesDiffer

SAMPLES: dict[str, object] = {"str": "a word", "int": 3}
TRAVELS: dict[str, Callable[[Any], Any]] = {
    "pickled": lambda error: pickle.loads(pickle.dumps(error)),
    "copied": copy.copy,
    "copied deeply": copy.deepcopy,
}


def every_module() -> None:
    """Load all of Weft that can be loaded here: classes are known once their modules are."""
    for module in pkgutil.walk_packages(weft.__path__, "weft."):
        if not module.name.endswith("__main__"):
            with suppress(ImportError, UserError):  # of a package that is not installed
                importlib.import_module(module.name)


def subclasses(kind: type[WeftError]) -> Iterator[type[WeftError]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from subclasses(inner)


def made(kind: type[WeftError]) -> WeftError:
    """One with a word or a number for every argument that it needs."""
    needed: list[Any] = [
        SAMPLES[str(parameter.annotation)]
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.default is parameter.empty
    ]
    return kind(*needed)


def same(found: WeftError, error: WeftError) -> None:
    assert type(found) is type(error)
    assert found is not error
    assert (str(found), found.args, vars(found)) == (str(error), error.args, vars(error))


@pytest.mark.parametrize("way", TRAVELS)
def test_every_error_travels(way: str) -> None:
    every_module()
    kinds = sorted(set(subclasses(WeftError)), key=lambda kind: kind.__name__)
    assert {SpecViolation, OutOfRange, UserError, SizesDiffer} < set(kinds)
    for kind in kinds:
        error = made(kind)
        error.add_note("a note")
        same(TRAVELS[way](error), error)


@pytest.mark.parametrize("way", TRAVELS)
def test_all_that_an_error_holds_travels(way: str) -> None:
    findings = [Finding("A", "x", "why", "do"), Finding("B", "y", "how")]
    found = TRAVELS[way](SpecViolation.of(findings))
    assert found.findings == tuple(findings)
    assert (found.code, found.where, found.why, found.hint) == ("A", "x", "why", "do")
    user = TRAVELS[way](UserError("it is wrong", "Wrong", "line 3"))
    assert (user.why, user.code, user.where) == ("it is wrong", "Wrong", "line 3")
    sizes = SizesDiffer.between(2, 3, "2 is not 3")
    assert TRAVELS[way](sizes).dims == (2, 3)


def wrong_shapes() -> float:
    return float((weft.ones((2, 3)) @ weft.ones((2, 3))).sum().item())


def test_an_error_of_another_process_arrives() -> None:
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes,
        pytest.raises(WeftError, match="matmul"),
    ):
        processes.submit(wrong_shapes).result(timeout=120)
