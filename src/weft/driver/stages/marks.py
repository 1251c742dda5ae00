"""Which values and kernels each line of a stage's text is about, for the explorer.

A mark of a line is the id of an instruction, or -1 - n for kernel n: a line that names a value is
about its instructions, one inside a kernel, a plan or a routine about the kernels that have it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from weft.driver.stages.links import Links

Marks: TypeAlias = dict[int, list[int]]
"""Line to marks; lines that are about nothing are left out."""

_INSTRUCTION: Final = re.compile(r"\s*%(\d+) = ")
_NAMED: Final = re.compile(r'\s*(?:\{"op": .*?"name": |\{"name": |\{"from": )"(\w+)"')
_ENTRY: Final = re.compile(r'\s*"(\w+)": [\[{]')
_KERNEL: Final = re.compile(r'\s*"name": "(\w+)",$')
_KEY: Final = re.compile(r'\s*"kernel": "(\w+)"')
_USED: Final = re.compile(r'\s*"(\w+)": "(\w+)"')
_ROUTINE: Final = re.compile(r"(?:routine |kernel |(?:;|//) ==== kernel )(\w+)")


_LET: Final = re.compile(r'\s*\{"(?:let|yield)": \[?"(\w+)')
_STATEMENT: Final = re.compile(
    r"\s*(?:(?:load|let|init|finish|accumulate|current|assign|check|words)\w* (\w+)"
    r"|store .*\] = (\w+))"
)


def marks_of(stage: str, lines: Sequence[str], links: Links) -> Marks:
    """The marks of every line of a stage."""
    found = _READERS.get(stage, _of_routines)(lines, _Names(links))
    return {number: marks for number, marks in found.items() if marks}


def names_of(stage: str, lines: Sequence[str]) -> Mapping[int, str]:
    """What the lines of kernels and of a CPU's routines are about, as those call it."""
    pattern = {"region": _LET, "cpu": _STATEMENT}.get(stage)
    matches = enumerate(map(pattern.match, lines)) if pattern else ()
    return {number: next(filter(None, match.groups())) for number, match in matches if match}


class _Names:
    """What names in the texts of stages stand for."""

    def __init__(self, links: Links) -> None:
        self.links = links
        self.numbers = {name: -1 - at for at, name in enumerate(links.kernels)}
        self.by_plan: dict[str, list[int]] = {}
        self.by_routine: dict[str, list[int]] = {}
        for name, found in links.kernels.items():
            self.by_plan.setdefault(found.plan, []).append(self.numbers[name])
            self.by_routine.setdefault(found.routine, []).append(self.numbers[name])
        self.results = dict(_named_ends(links))

    def value(self, name: str) -> list[int]:
        """The instructions of a value of Tiny, or of what is handed in or out."""
        if name in self.results:
            return [self.results[name]]
        return list(self.links.tiny.get(name, ()))

    def kernel(self, name: str) -> list[int]:
        return [self.numbers[name]] if name in self.numbers else []


def _named_ends(links: Links) -> list[tuple[str, int]]:
    main = links.program.main
    given = [(f"in{at}", number) for at, number in enumerate(main.parameter_ids)]
    return given + [(f"out{at}", number) for at, number in enumerate(main.result_ids)]


def _of_program(lines: Sequence[str], names: _Names) -> Marks:
    """Instructions of the main body: others have ids of their own."""
    found: Marks = {}
    inside = False
    for number, line in enumerate(lines):
        if line.startswith("func "):
            inside = line.startswith(f"func @{names.links.program.entry}(")
        elif inside and (match := _INSTRUCTION.match(line)):
            found[number] = [int(match[1])]
    return found


def _marks_by_pattern(pattern: re.Pattern[str]) -> Callable[[Sequence[str], _Names], Marks]:
    """Lines that name a value."""

    def read(lines: Sequence[str], names: _Names) -> Marks:
        matches = ((number, pattern.match(line)) for number, line in enumerate(lines))
        return {number: names.value(match[1]) for number, match in matches if match}

    return read


def _of_kernels(lines: Sequence[str], names: _Names) -> Marks:
    """Tensors by name; then every line of a kernel is about it."""
    found: Marks = {}
    kernel: list[int] = []
    for number, line in enumerate(lines):
        if line.startswith('    {"region": {'):
            kernel = []
        elif match := _KERNEL.match(line):
            kernel = names.kernel(match[1])
            found[number - 1] = kernel
        elif not kernel and (match := _ENTRY.match(line)):
            found[number] = names.value(match[1])
        if kernel:
            found[number] = kernel
    return found


def _of_plans(lines: Sequence[str], names: _Names) -> Marks:
    """Every line of a plan is about the kernels that are carried out by it."""
    found: Marks = {}
    start = 0
    for number, line in enumerate(lines):
        if line.strip() == "{":
            start = number
        elif match := _KEY.match(line):
            found.update(dict.fromkeys(range(start, number + 1), names.by_plan.get(match[1], [])))
        elif match := _USED.match(line):
            found.setdefault(number, names.kernel(match[1]) or found.get(number - 1, []))
        elif number - 1 in found and line.startswith("    ") and line.strip() not in ("],", "]"):
            found[number] = found[number - 1]
    return found


def _of_routines(lines: Sequence[str], names: _Names) -> Marks:
    """Every line of a routine is about the kernels that it is the code of."""
    found: Marks = {}
    kernels: list[int] = []
    for number, line in enumerate(lines):
        if match := _ROUTINE.match(line):
            kernels = names.by_routine.get(match[1], kernels)
        found[number] = kernels
    return found


_READERS: Final[Mapping[str, Callable[[Sequence[str], _Names], Marks]]] = {
    "frontend": _of_program,
    "tiny": _marks_by_pattern(_NAMED),
    "indexbook": _marks_by_pattern(_ENTRY),
    "poly_view": _marks_by_pattern(_NAMED),
    "region": _of_kernels,
    "memory": _marks_by_pattern(_NAMED),
    "plan": _of_plans,
}
