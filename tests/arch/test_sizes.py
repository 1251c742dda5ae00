"""Files are small enough to be read in one sitting."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("src", "tests", "examples", "benchmarks", "docs")
MOST_LINES = 600


def test_no_file_is_longer_than_one_reads_at_once() -> None:
    """A longer file holds two ideas: give the second one a file of its own."""
    lengths = {
        str(path.relative_to(ROOT)): path.read_text().count("\n")
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
    }
    assert len(lengths) > 1000
    assert {path: count for path, count in lengths.items() if count > MOST_LINES} == {}
