"""Passes over PTIR: simplify, fold, merge, drop, and keep less between forward and backward.

`optimise` runs the list `PASSES`. A pass takes a verified program and a log and gives a program
that verifies and computes the same; it respects hints, lines and random streams (see `edit`).
"""

from weft.ptir.passes.canonicalise import RULES, canonicalise
from weft.ptir.passes.fold import fold
from weft.ptir.passes.log import Fired, Note, PassLog
from weft.ptir.passes.pipeline import PASSES, Pass, optimise
from weft.ptir.passes.recompute import kept_bytes, recompute
from weft.ptir.passes.redundant import cse, dce
from weft.ptir.passes.rewrite import Match, New, Rule, rewrite

__all__ = [
    "PASSES",
    "RULES",
    "Fired",
    "Match",
    "New",
    "Note",
    "Pass",
    "PassLog",
    "Rule",
    "canonicalise",
    "cse",
    "dce",
    "fold",
    "kept_bytes",
    "optimise",
    "recompute",
    "rewrite",
]
