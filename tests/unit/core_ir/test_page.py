"""docs/core-ir.md lists what the sources hold."""

from __future__ import annotations

import re
from pathlib import Path

from weft.core_ir import INSTRUCTIONS, surface

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "core-ir.md").read_text()
SOURCES = "\n".join(path.read_text() for path in (ROOT / "src/weft/core_ir").rglob("*.py"))


def test_the_page_lists_every_instruction() -> None:
    rows = [
        f"| `{row.opcode}` | {', '.join(row.operands)} | {', '.join(row.attributes)} "
        f"| {row.meaning} |"
        for row in INSTRUCTIONS.values()
    ]
    section = PAGE.partition("## Instructions")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `.*$", section, re.MULTILINE) == rows


def test_the_page_lists_every_code() -> None:
    listed = re.findall(r"^\| `(E\d{4})` \|", PAGE, re.MULTILINE)
    used = set(re.findall(r"\bE\d{4}\b", SOURCES)) | {"E6002"}
    assert listed == sorted(listed)
    assert set(listed) == used


def test_the_page_has_the_grammar_of_the_surface_language() -> None:
    grammar = (surface.__doc__ or "").partition("    source ")[2].partition("\n\n")[0]
    words = re.sub(r"\s+", " ", grammar.replace("declaration=", "declaration ="))
    assert words.strip() in re.sub(r"\s+", " ", PAGE)
