"""A name of a function says what that function does."""

from __future__ import annotations

import re

from tests.arch.figures import names_of_ops, repeated_names, sources

SHARED = {"_", "__dir__"}
"""Names that Python gives a meaning, or that nobody calls."""

PARTICIPLE = re.compile(
    r"^ *(?:async )?def (_(?:[a-z]+(?:ed|ing)|held|kept|made|laid|found|given|taken|drawn|written|"
    r"shown|told|sent|built|bound|done|gone|lost|won|met|chosen|hidden|caught|known|seen))\(",
    re.MULTILINE,
)
ALLOWED = {
    *("_seed", "_padding", "_ceiling", "_ranking", "_string", "_ring"),
    *("_stirling", "_searchsorted"),
    *("_unpickled", "_typed", "_listed", "_matching"),
}
"""Nouns; a person and an op; the name that pickles of tensors hold, and words of the readers of
texts, which take it as it is where it has the type or the form that is asked for."""


def test_no_private_name_stands_in_many_modules() -> None:
    """One word for many functions says of none of them what it does: give them a verb and its
    object, or one of them to all modules."""
    private = {name for name in repeated_names() if name.startswith("_")}
    assert {name for name in private - SHARED if name.strip("_") not in names_of_ops()} == set()


def test_no_private_function_is_named_by_a_participle() -> None:
    """`_turned` says neither what is turned nor how: `_turn_axes` does, or a noun does."""
    found = {
        f"{path}: {name}"
        for path, text in sources()
        for name in PARTICIPLE.findall(text)
        if name not in ALLOWED
    }
    assert found == set()
