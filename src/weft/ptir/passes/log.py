"""What the passes did: which rule fired where, and what had to be given up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from weft.foundation.tally import counted


@dataclass(frozen=True, slots=True)
class Fired:
    """One application of a rule; `place` names the instruction as it was, with the user's line."""

    rule: str
    place: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.place}"


@dataclass(frozen=True, slots=True)
class Note:
    """Something a reader may want to know that is not the application of a rule."""

    text: str

    def __str__(self) -> str:
        return f"note: {self.text}"


@dataclass
class PassLog:
    """Everything the passes report, in order. `str` is what `-v` prints."""

    entries: list[Fired | Note] = field(default_factory=list)
    settled: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)
    """What rules looked at and left as it is, by the rules: see `rewrite.Settled`."""

    def fire(self, rule: str, place: str) -> None:
        self.entries.append(Fired(rule, place))

    def note(self, text: str) -> None:
        self.entries.append(Note(text))

    @property
    def fired(self) -> list[Fired]:
        return [entry for entry in self.entries if isinstance(entry, Fired)]

    @property
    def notes(self) -> list[str]:
        return [entry.text for entry in self.entries if isinstance(entry, Note)]

    @property
    def counts(self) -> Counter[str]:
        """How often each rule fired."""
        return Counter(entry.rule for entry in self.fired)

    @property
    def summary(self) -> list[str]:
        """How often each rule fired, the busiest first, and every note: a line each."""
        times = [f"{rule}: {counted(n, 'time')}" for rule, n in self.counts.most_common()]
        return [*times, *self.notes]

    def __str__(self) -> str:
        return "\n".join(map(str, self.entries))
