"""The state of a compilation: the program on its way through the stages, and how much effort fusion
may take.

An error about a kernel names an instruction that the kernel computes, and the line of the user that
wrote it (`naming_lines`); what somebody edited keeps the lines of what stayed as it was.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final

from weft.driver.legalise import without_composites
from weft.driver.signature import Signature
from weft.foundation.errors import SpecViolation, Unimplemented, UserError, WeftWarning
from weft.foundation.records import dataclass
from weft.foundation.tally import Tally
from weft.ptir.ir import Program, ValueKey
from weft.ptir.passes.log import PassLog
from weft.target.target import Target

if TYPE_CHECKING:
    from weft.tiny.ir import Graph

DEFAULT_LEVEL: Final = 2
EXACT_LEVEL: Final = 3
LEVELS: Final[Mapping[int, str]] = {
    0: "nothing is fused",
    DEFAULT_LEVEL: "greedy",
    EXACT_LEVEL: "exact, window by window",
}


def check_level(level: int) -> None:
    """Refuse what is no level."""
    if type(level) is not int or level not in LEVELS:
        known = ", ".join(f"{number} ({what})" for number, what in LEVELS.items())
        raise UserError(f"there is no optimisation level {level!r}; the levels are {known}")


@dataclass(repr=False)
class Compilation:
    """What each stage made of a program, and how long it took."""

    program: Program
    target: Target
    signature: Signature
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Stage to text: what is read instead of computed."""
    opt_level: int = DEFAULT_LEVEL
    stages: dict[str, Stage] = field(default_factory=dict)
    """The stages that have run."""
    values: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    log: PassLog = field(default_factory=PassLog)
    tally: Tally = field(default_factory=Tally)
    """What was worked out, and what was known already."""
    bodies: dict[str, Compilation] = field(default_factory=dict)
    """The bodies of branches and loops, compiled like programs of their own."""
    warned: list[str] = field(default_factory=list)
    """What the user was warned of: it is kept with the program, to be told again."""
    ahead: Any = None
    """Who makes machine code of kernels while stages run that come after them; None where nobody
    does, or asked for it."""
    unchecked: list[Stage] = field(default_factory=list)
    """Stages whose values are checked while others make machine code of what became of them."""
    algorithm_sets: Mapping[ValueKey, tuple[str, ...]] | None = None
    """The algorithms that ops allow for the contractions they were decomposed into, once known."""
    _simple: tuple[Program, Program] | None = field(default=None, init=False)
    """The program of the first stage, and the same without composite ops."""

    def __repr__(self) -> str:
        done = ", ".join(self.values) or "no stage"
        return f"<Compilation of @{self.program.entry} for {self.target.name}: {done}>"

    def __getitem__(self, stage: str) -> Any:
        return self.values[stage]

    def simple(self, log: PassLog | None = None) -> Program:
        """The program with every composite op decomposed, worked out once; `log` is told how where
        that is now."""
        program = self["frontend"]
        if self._simple is None or self._simple[0] is not program:
            self._simple = program, without_composites(program, log, self.target)
        return self._simple[1]

    def warn(self, sentence: str) -> None:
        """Warn the user of something about this program."""
        if sentence not in self.warned:
            self.warned.append(sentence)
            warnings.warn(sentence, WeftWarning, stacklevel=2)

    def text(self, stage: str) -> str:
        """The dump of a stage that has run."""
        if stage not in self.values:
            raise UserError(f"stage {stage!r} did not run; there are {', '.join(self.values)}")
        return self.stages[stage].render(self.values[stage])


@dataclass(frozen=True)
class Stage:
    """One step: how its value is made, checked, shown, and read back."""

    name: str
    extension: str
    enter: Callable[[Compilation], Any]
    verify: Callable[[Compilation], object]
    render: Callable[[Any], str]
    parse: Callable[[str, Compilation], Any] | None = None
    agree: Callable[[Any, Any, Compilation], object] | None = None
    """Refuses what was read where it contradicts what the stage would have made."""
    follow: Callable[[Any, Any], Any] | None = None
    """What was read, with what the text does not say taken from what would have been made."""

    @property
    def file_name(self) -> str:
        """The file that its dump goes to."""
        return f"{self.name}.{self.extension}"


def unchecked(compilation: Compilation) -> None:
    """For stages whose value is checked on the way: templates check what they build."""


@contextmanager
def naming_lines(compilation: Compilation) -> Iterator[None]:
    """Errors about kernels of a compilation, with their instructions."""
    try:
        yield
    except SpecViolation as error:
        found = [replace(f, where=_with_line(f.where, compilation)) for f in error.findings]
        raise type(error).of(found) from None
    except Unimplemented as error:
        raise Unimplemented(_with_line(error.op, compilation), error.reason) from None


def _with_line(where: str, compilation: Compilation) -> str:
    kernel = where.removeprefix("kernel ").partition(",")[0]
    place = _place_of(kernel, compilation)
    return f"{where}, {place}" if place and place not in where else where


def _place_of(kernel: str, compilation: Compilation) -> str:
    """The first instruction of a kernel, of those with a known line where there are any."""
    module = compilation.values.get("region")
    ids = () if module is None else module.origin.get(kernel, ())
    if not ids:
        return ""
    program = compilation.simple()
    main = program.main
    inside = [instruction for instruction in main.body if instruction.id in ids]
    inside.sort(key=lambda instruction: (main.label, instruction.id) not in program.locations)
    return program.place(main, inside[0]) if inside else ""


def with_lines_of(read: Program, made: Program) -> Program:
    """An edited program, with the user's lines for the instructions that stayed as they were."""
    written = {
        (body.label, instruction.id): instruction
        for body in made.bodies
        for instruction in body.body
    }
    lines = {
        (body.label, instruction.id): made.locations[body.label, instruction.id]
        for body in read.bodies
        for instruction in body.body
        if (body.label, instruction.id) in made.locations
        and written.get((body.label, instruction.id)) == instruction
    }
    return replace(read, locations=lines)


def with_origins_of(read: Graph, made: Graph) -> Graph:
    """An edited graph, with the origins of the values that stayed as they were."""
    known = {value: made.origin[value] for value in read.values if value in made.origin}
    return replace(read, origin=known)
