"""Tables that the command line prints on stdout."""

from __future__ import annotations

import sys

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def new_table() -> Table:
    """A table in the one style of the command line: a line under its head and no frame."""
    return Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)


def print_table(table: Table) -> None:
    """A table on stdout, as wide as it needs to be where no terminal sets the width."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
