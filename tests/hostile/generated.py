"""Hostile files too large to keep: each entry makes one and says what must become of it.

The verdicts are those of `judge`. Long chains, odd names and wide programs are valid and must work.
"""

from __future__ import annotations

from tests.hostile.deep_programs import DEEP
from tests.hostile.false_claims import CLAIMS
from tests.hostile.long_names import NAMES
from tests.hostile.long_programs import LONG
from tests.hostile.odd_characters import CHARACTERS

GENERATED = {**LONG, **DEEP, **NAMES, **CHARACTERS, **CLAIMS}
"""By name: the expected verdict, and what makes the file."""

SLOW = {
    "a-ring-of-very-many-regions",
    "chain-bincode",
    "chain-json",
    "chain-text",
    "nested-regions-bincode",
    "nested-regions-json",
    "nested-regions-text",
}
"""Those that take many seconds; what they show is shown by a smaller or another one as well."""
