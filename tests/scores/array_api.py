"""The score of a run of the array API standard's own test suite, file by file.

`make test-array-api SUITE=DIR` writes the report that this reads. A test that was skipped counts as
not passed; the run fails where fewer pass than `LEAST`.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

LEAST = 1_293
"""What jax.numpy passes of the suite's 1,380 tests."""
OUTCOMES = ("passed", "failed", "skipped")


def outcome(case: ET.Element) -> str:
    """What became of one test."""
    found = {child.tag for child in case}
    if found & {"failure", "error"}:
        return "failed"
    return "skipped" if "skipped" in found else "passed"


def scores(report: Path) -> dict[str, Counter[str]]:
    """Outcomes by file of the suite."""
    found: dict[str, Counter[str]] = {}
    for case in ET.parse(report).iter("testcase"):
        file = next(p for p in case.attrib["classname"].split(".") if p.startswith("test_"))
        found.setdefault(file, Counter())[outcome(case)] += 1
    return found


def main(report: Path) -> int:
    """Print the table; 1 where too few pass."""
    table = scores(report)
    total = sum(table.values(), Counter())
    rows = [*sorted(table.items()), ("total", total)]
    print(f"{'file':42}" + "".join(f"{name:>9}" for name in OUTCOMES))
    for file, counts in rows:
        print(f"{file:42}" + "".join(f"{counts[name]:9}" for name in OUTCOMES))
    print(f"{total['passed']} of {total.total()} pass; {LEAST} are wanted")
    return 0 if total["passed"] >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
