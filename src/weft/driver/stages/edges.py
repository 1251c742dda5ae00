"""The fusion report: for each value that another one is computed from, whether it is inlined, a
stage of the reading kernel, or stored, with its cost and that of the next best choice.

Values of which the same can be said, such as those of equal layers, are one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from typing import Final

from weft.driver.stages.compilation import Compilation
from weft.driver.stages.links import links_of
from weft.foundation.lines import Place
from weft.foundation.records import dataclass
from weft.foundation.tally import counted
from weft.plan.ir import Plan, PlanSet, StagedPlan
from weft.plan.staged import axis_names, held_by, tiles_of
from weft.poly_view.ir import Scop
from weft.region.form import Staged
from weft.region.forms.shared_slides import find_place
from weft.region.forms.slides import Slide
from weft.region.ir import Kernel, Module, Stage
from weft.target.roofline import Work, time_estimate
from weft.target.target import Kind, Target

_INLINE: Final = "where it is read"
_STAGE: Final = "as a stage"
_STORED: Final = "stored"
_COUNTED: Final = re.compile(r"(?<=[a-z])\d+\b|\[\d+\]")
"""The numbers in the names of values, kernels and layers, in which equal layers differ."""
_MOST_NAMED: Final = 4
"""Kernels or values that a line names."""


@dataclass(frozen=True)
class _Line:
    """What is said of some values; lines that say the same of others are `alike`."""

    who: str
    said: str
    alike: str

    def together(self, count: int) -> str:
        more = f", and {count - 1:,} like it" if count > 1 else ""
        return f"{self.who}{more}: {self.said}"


def edge_lines(compilation: Compilation) -> list[str]:
    """A line for every edge, or for all that are alike."""
    found: dict[str, list[_Line]] = {}
    for line in _Edges(compilation).lines():
        found.setdefault(line.alike, []).append(line)
    return [lines[0].together(len(lines)) for lines in found.values()]


class _Edges:
    """The edges of one body."""

    def __init__(self, compilation: Compilation) -> None:
        self.module: Module = compilation["region"]
        self.scop: Scop = compilation["poly_view"]
        self.target: Target = compilation.target
        self.plans: PlanSet | None = compilation.values.get("plan")
        self.places = _value_places(compilation)
        self.stages = {
            stage.name: (kernel, stage) for kernel in self.module.kernels for stage in kernel.stages
        }
        owners = {name: access.tensor for name, access, _ in self.scop.outputs}
        self.writers = {
            owners.get(output.tensor, output.tensor): kernel
            for kernel in self.module.kernels
            for output in kernel.outputs
        }
        self.homes = self._homes()
        alone = [w for w in self.module.weighed if not w.beside]
        self.inline = {w.value: w for w in alone if not w.stage}
        self.staged = {w.value: w for w in alone if w.stage}

    def lines(self) -> Iterator[_Line]:
        read = {edge.source for edge in self.scop.edges}
        unasked: dict[tuple[str, ...], list[str]] = {}
        for block in self.scop.blocks:
            name = block.name
            if name not in read or block.fn == "const" or not self.homes[name]:
                continue
            if name in self.stages or name in self.writers or name in self.inline:
                yield self._line(name)
            else:
                unasked.setdefault(self.homes[name], []).append(name)
        for kernels, names in unasked.items():
            yield self._unasked_line(kernels, names)

    def _homes(self) -> dict[str, tuple[str, ...]]:
        """The kernels that compute every block, in order."""
        readers: dict[str, list[str]] = {}
        for edge in self.scop.edges:
            readers.setdefault(edge.source, []).append(edge.to)
        order = {kernel.name: number for number, kernel in enumerate(self.module.kernels)}
        found: dict[str, tuple[str, ...]] = {}
        # Blocks come after what they read.
        for block in reversed(self.scop.blocks):
            if block.name in self.stages:
                found[block.name] = (self.stages[block.name][0].name,)
            elif block.name in self.writers:
                found[block.name] = (self.writers[block.name].name,)
            else:
                names = {home for to in readers.get(block.name, ()) for home in found[to]}
                found[block.name] = tuple(sorted(names, key=order.__getitem__))
        return found

    # -- sentences -------------------------------------------------------------------------------

    def _line(self, name: str) -> _Line:
        kernels = _some(self.homes[name])
        if name in self.stages:
            kernel, stage = self.stages[name]
            where = self._place(kernel) if self.target.kind is Kind.GPU else ""
            plan = None if self.plans is None else self.plans.of(kernel.name)
            told = _tell_kept(kernel, stage, where, plan)
            how, what = _STAGE, f"a stage of {kernels}, {told}"
        elif name in self.writers:
            how, what = _STORED, f"stored by {kernels}"
        else:
            how, what = _INLINE, f"computed where it is read, by {kernels}"
        why = self.module.stored.get(name, "") if how is _STORED else ""
        said = "; ".join(part for part in (what, why, self._price(name, how)) if part)
        place = self.places.get(name, "")
        return _Line(f"{name}{place}", said, _COUNTED.sub("", place + said))

    def _price(self, name: str, how: str) -> str:
        """What the choice takes, and the next best one of those that were weighed."""
        weighed = {_STAGE: self.staged.get(name), _INLINE: self.inline.get(name)}
        known = {what: found for what, found in weighed.items() if found is not None}
        # Kernels are weighed as they are at the time: only beside storing can prices be compared.
        more = {_STORED: 0.0} | {what: w.together - w.apart for what, w in known.items()}
        if not known or how not in more:
            return ""
        stored, chosen = next(iter(known.values())).apart, more.pop(how)
        other = min(more, key=more.__getitem__)
        # Choices are made again as a whole: what is shorter by itself may be longer with the rest.
        rest = ", and all kernels together longer" if more[other] < chosen else ""
        times = (1e6 * (stored + each) for each in (chosen, more[other]))
        return f"{next(times):.1f} µs; {other} {next(times):.1f} µs{rest}"

    def _place(self, kernel: Kernel) -> str:
        """Where a GPU keeps the rows of a kernel with stages."""
        place = find_place(kernel, self.module.tensors, self.target)
        return "registers" if isinstance(place, Slide) else "shared memory"

    def _unasked_line(self, kernels: tuple[str, ...], names: list[str]) -> _Line:
        """Values about which nothing had to be weighed."""
        sizes = [prod(self.scop.by_name[n].shape) * self._element(n) for n in names]
        moved = time_estimate(self.target, Work(bytes=2 * max(sizes)))
        price = 1e6 * (moved + self.target.rates.launch_seconds)
        shown = ", ".join(f"{name}{self.places.get(name, '')}" for name in names[:_MOST_NAMED])
        left = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        said = (
            f"{counted(len(names), 'value')} computed where read, with nothing to weigh ({shown}"
            f"{left}); stored, the largest is {price:.1f} µs more"
        )
        who = _some(kernels)
        return _Line(who, said, _COUNTED.sub("", who + said))

    def _element(self, name: str) -> int:
        return self.scop.by_name[name].dtype.storage_bytes


def _tell_kept(kernel: Kernel, stage: Stage, where: str, plan: Plan | None) -> str:
    """Where a stage is computed, what a row of the results needs of it, and what is kept: in bytes,
    or on a GPU somewhere."""
    form = kernel.form
    if not isinstance(form, Staged):
        return "kept whole"
    number = kernel.stages.index(stage)
    ring = form.rings[number]
    reach, depth = f"rows {ring.low} to {ring.high} of it for each row", ring.depth
    if isinstance(plan, StagedPlan) and not where:
        held, tiles = held_by(kernel, plan)[number], tiles_of(kernel, plan)
        where, depth = f"{held.bytes:,} bytes", held.depth
        if held.tile is not None and tiles is not None:
            reach += f", {held.tile.width:,} columns of it for {tiles.size:,}"
    return f"at {axis_names(kernel)[form.slide]}: {reach}, {depth} kept in {where}"


def _some(names: tuple[str, ...]) -> str:
    left = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {left} more" if left > 0 else "")


def _value_places(compilation: Compilation) -> dict[str, str]:
    """The user's line and the layer of every value of which they are known, in brackets."""
    links = links_of(compilation)
    label, locations = links.program.main.label, links.program.locations
    found = {}
    for name, ids in links.tiny.items():
        place = next((p for i in ids if (p := locations.get((label, i)))), "")
        layer = place.layer if isinstance(place, Place) else ""
        if place:
            found[name] = f" ({place}, {layer})" if layer else f" ({place})"
    return found
