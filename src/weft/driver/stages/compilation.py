"""A program on its way through the stages, and what a stage is."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.driver.legalise import without_composites
from weft.driver.signature import Signature
from weft.driver.stages.levels import DEFAULT_LEVEL
from weft.foundation.errors import UserError, WeftWarning
from weft.foundation.tally import Tally
from weft.ptir.ir import Program, ValueKey
from weft.ptir.passes.log import PassLog
from weft.target.target import Target


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
