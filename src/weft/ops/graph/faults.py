"""Errors of captured programs, at compile or run time, with the line of the user's code that wrote
the instruction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from weft.foundation.errors import Finding, InternalError, SpecViolation, WeftError
from weft.foundation.lines import Place
from weft.foundation.tracebacks import ending_outside
from weft.ptir.ir import Program, ValueKey

_PLACE = re.compile(r"%(\d+) = ([\w.]+)\(.* in (function @\w+|region \S+)(?: \((\S+:\d+)\))?")
"""An instruction as the place of a finding: its id, its op, its body, and its line."""


def told_by_line(error: WeftError, program: Callable[[], Program]) -> WeftError:
    """A violation with op and line in it; `program` has the lines of the graph that runs now, for
    that may share its compiled program with an earlier one. Of a fault in Weft nothing is left
    out."""
    if isinstance(error, InternalError):
        return error
    if not isinstance(error, SpecViolation):
        return ending_outside(error.with_traceback(None))
    lines = program().locations
    findings = [_tell_finding(finding, lines) for finding in error.findings]
    return ending_outside(type(error).of(findings))


def _tell_finding(finding: Finding, lines: Mapping[ValueKey, str]) -> Finding:
    found = _PLACE.match(finding.where)
    if found is None or finding.why.startswith("["):
        return finding
    number, op, body, line = found.groups()
    place = lines.get((body, int(number))) or line or finding.where
    called = place.function if isinstance(place, Place) and place.function else op
    return Finding(finding.code, place, f"[{called}] {finding.why}", finding.hint)
