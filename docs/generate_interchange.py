"""Writes the list of operations at the end of docs/interchange.md.

    python docs/generate_interchange.py            (or: make docs; it needs weft[stablehlo])

The operations are those of jaxlib's dialects, and what becomes of them is read from the importer's
tables: a test fails when the page is not what this prints.
"""

from __future__ import annotations

import importlib
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from weft.interop.stablehlo.reading.module import LOWERINGS
from weft.interop.stablehlo.reading.refused import REFUSED

PAGE = Path(__file__).parent / "interchange.md"
HEADING = "## Every operation of StableHLO, CHLO and MHLO\n"
DIALECTS = ("stablehlo", "chlo", "mhlo")
WIDTH = 120
PART_OF_OTHERS = {"return"}
"""What ends a region is read with it."""


def names_of(dialect: str) -> list[str]:
    """The operations of a dialect, as jaxlib's bindings list them."""
    module = importlib.import_module(f"jaxlib.mlir.dialects._{dialect}_ops_gen")
    found = {getattr(value, "OPERATION_NAME", "") for value in vars(module).values()}
    named = {name.partition(".")[2] for name in found if re.match(rf"{dialect}\.", name)}
    return sorted(named - PART_OF_OTHERS)


def render() -> str:
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield HEADING
    yield "Read:\n"
    met: set[str] = set()
    for dialect in DIALECTS:
        read = [name for name in names_of(dialect) if name in LOWERINGS and name not in met]
        met.update(read)
        also = "" if dialect == "stablehlo" else ", besides those above"
        line = f"- `{dialect}`{also}: {', '.join(f'`{name}`' for name in read)}."
        yield textwrap.fill(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    yield "\nRefused, with the reason that the error gives:\n"
    yield "| operation | reason |"
    yield "|---|---|"
    listed = {name for dialect in DIALECTS for name in names_of(dialect)}
    by_reason: dict[str, list[str]] = {}
    for name, reason in REFUSED.items():
        if name in listed:
            by_reason.setdefault(reason, []).append(f"`{name}`")
    for reason, names in by_reason.items():
        yield f"| {', '.join(names)} | {reason} |"
    yield ""


def main() -> None:
    page = PAGE.read_text().partition(HEADING)[0]
    PAGE.write_text(page.rstrip() + "\n\n" + render())


if __name__ == "__main__":
    main()
