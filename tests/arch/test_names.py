"""A name of a function says what that function does."""

from __future__ import annotations

from tests.arch.figures import names_of_ops, repeated_names

SHARED = {"_", "__dir__"}
"""Names that Python gives a meaning, or that nobody calls."""


def test_no_private_name_stands_in_many_modules() -> None:
    """One word for many functions says of none of them what it does: give them a verb and its
    object, or one of them to all modules."""
    private = {name for name in repeated_names() if name.startswith("_")}
    assert {name for name in private - SHARED if name.strip("_") not in names_of_ops()} == set()
