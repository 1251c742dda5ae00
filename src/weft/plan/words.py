"""The plan language for all kernels but products, which `plan.dsl` reads.

A program of statements changes the plan that was chosen for a kernel. A statement is a field of the
plan and its value (`threads 128`), or one of the words below; what a kernel has no use for is
refused with the reason and what to write instead. The axes of a kernel are `i0`, `i1`, ... in the
order of its results, those that rows are reduced along `r0`, ...; an attention has `q` and `kv`.

           vectorize, unroll   split           parallel (GPU)      others
    map    vector, unroll      block, or       threads             -
                               grain (GPU)
    row    vector,             rows_per_thread threads (r),        reorder: across; store_at row I,
           accumulators        (GPU)           rows_per_block (i)  compute_at row R: keep_row
    attention
           vector,             tile_q, tile_kv consumers           pipeline kv stages=N;
           register_tile                                           algo_choice attention NAME
    staged vector, unroll      tile            -                   slide, compute_at, store_at,
                                                                   local_edge
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Final

from weft.plan.attention import gpu_consumers
from weft.plan.cpu_rows import vector_axis
from weft.plan.dsl import STATEMENTS, Statement, Words
from weft.plan.ir import (
    AttentionPlan,
    Header,
    MapPlan,
    Plan,
    RowPlan,
    StageAt,
    StagedPlan,
)
from weft.plan.staged import RING, axis_names
from weft.plan.transposes import crossing_of
from weft.region.forms.widths import inner_axis
from weft.region.ir import Kernel, Tensor, form_of

_NO_STAGES: Final = (
    "the kernel has no stages",
    "the region stage says which blocks are stages of a kernel",
)
_SHARED: Final = (
    "threads of a CPU take the pieces of all axes as they come",
    "leave it out; how many threads there are is the machine's to say",
)


def edited(
    plan: Plan, kernel: Kernel, tensors: Mapping[str, Tensor], statements: Sequence[Statement]
) -> Plan:
    """A plan of a kernel as statements change it."""
    edit = _EDITS[type(plan)](plan=plan, kernel=kernel, tensors=tensors)
    for word, rest in edit.each(statements):
        edit.take(word, rest)
    return edit.done()


@dataclass(kw_only=True)
class _Edit(Words):
    """A plan that statements change, and the words that its kind has."""

    plan: Any
    kernel: Kernel
    tensors: Mapping[str, Tensor]
    given: set[str] = field(default_factory=set)
    kind: ClassVar[str]
    words: ClassVar[Mapping[str, str]]
    """The words that have a meaning, and the methods that read them."""
    refused: ClassVar[Mapping[str, tuple[str, str]]]
    """Why other words have none, and what to do."""

    @property
    def on_gpu(self) -> bool:
        return bool(self.plan.header.target != "cpu")

    def take(self, word: str, rest: Sequence[str]) -> None:
        names = {known.name for known in fields(self.plan)} - {"header"}
        plain = isinstance(getattr(self.plan, word, None), int | str) and len(rest) == 1
        if word == "target":
            (target,) = self.counted(rest, 1)
            self.plan = replace(self.plan, header=Header(self.name(target), ""))
        elif word in self.words and not plain:
            getattr(self, self.words[word])(rest)
        elif word in names and not isinstance(getattr(self.plan, word), dict):
            self.set(word, self.value(getattr(self.plan, word), rest))
        elif word in self.refused:
            self.fail(*self.refused[word])
        elif word in STATEMENTS:
            self.fail(f"{self.kind} has no {word}; it has {', '.join(sorted(names))}")
        else:
            self.fail(f"{word!r} is not a statement")

    def set(self, name: str, value: Any) -> None:
        if name in self.given:
            self.fail(f"{name} is given twice")
        self.given.add(name)
        self.plan = replace(self.plan, **{name: value})

    def done(self) -> Plan:
        found: Plan = self.plan
        return found

    def sized(self, words: Sequence[str], axes: Sequence[str]) -> tuple[str, int]:
        """An axis, one of those that there are, and a number."""
        name, size = self.counted(words, 2)
        return self.known(name, axes), self.whole(size)

    def known(self, name: str, axes: Sequence[str]) -> str:
        if self.axis(name) not in axes:
            self.fail(f"{name} is not an axis of this kernel: {', '.join(axes)}")
        return name

    def along(self, words: Sequence[str], axes: Sequence[str], only: str) -> int:
        """The number of a statement about the axis that vectors run along."""
        name, size = self.sized(words, axes)
        if name != only:
            why = f"vectors run along {only}, where elements are contiguous, not along {name}"
            self.fail(why, f"write {only}")
        return size


class _MapEdit(_Edit):
    kind = "an elementwise kernel"
    words: ClassVar = {
        "split": "_split", "vectorize": "_vectorize", "unroll": "_unroll", "parallel": "_parallel",
    }  # fmt: skip
    refused: ClassVar = {
        "reorder": (
            "results are computed in the order that they have in memory",
            "leave it out; if an operand is transposed, split both axes into blocks",
        ),
        "fuse": (
            "axes that memory goes along together are one axis already, and others cannot be",
            "leave it out",
        ),
        "compute_at": _NO_STAGES,
        "store_at": _NO_STAGES,
        "slide": _NO_STAGES,
        "pipeline": ("every point is by itself, so that nothing waits for a copy", "leave it out"),
    }

    @property
    def _axes(self) -> list[str]:
        return list(axis_names(self.kernel).values())

    @property
    def _inner(self) -> str:
        found = inner_axis(self.kernel)
        return axis_names(self.kernel)[found.name] if found is not None else "i0"

    def _vectorize(self, words: Sequence[str]) -> None:
        self.set("vector", self.along(words, self._axes, self._inner))

    def _unroll(self, words: Sequence[str]) -> None:
        self.set("unroll", self.along(words, self._axes, self._inner))

    def _parallel(self, words: Sequence[str]) -> None:
        if not self.on_gpu:
            self.fail(*_SHARED)
        self.set("threads", self.along(words, self._axes, self._inner))

    def _split(self, words: Sequence[str]) -> None:
        name, size = self.sized(words, self._axes)
        crossing, names = crossing_of(self.kernel), axis_names(self.kernel)
        if crossing is not None and name in {names[crossing.rows], names[crossing.columns]}:
            if "block" in self.given and self.plan.block != size:
                self.fail("blocks are as long as they are wide", f"split {name} {self.plan.block}")
            self.given.discard("block")
            self.set("block", size)
        elif self.on_gpu and name == self._inner:
            self.set("grain", size)
        else:
            why = "pieces of an elementwise kernel are whole rows, or vectors of them"
            self.fail(why, f"unroll {self._inner} says how many vectors are taken at a time")

    def done(self) -> Plan:
        plan: MapPlan = self.plan
        if self.on_gpu and "grain" not in self.given and self.given - {"grain"}:
            each = plan.unroll * plan.threads * plan.vector
            plan = replace(plan, grain=plan.block**2 if plan.block > 1 else each)
        return plan


class _RowEdit(_Edit):
    kind = "a kernel of rows"
    words: ClassVar = {
        "split": "_split", "vectorize": "_vectorize", "unroll": "_unroll", "parallel": "_parallel",
        "reorder": "_reorder", "store_at": "_store_at", "compute_at": "_compute_at",
    }  # fmt: skip
    refused: ClassVar = {
        "fuse": (
            "axes that memory goes along together are one axis already, and others cannot be",
            "leave it out",
        ),
        "slide": (
            "rows are reduced one by one, and nothing is left of one for the next",
            "leave it out; on a GPU split says how many rows a thread takes at once",
        ),
        "pipeline": ("rows wait in a ring", "write ring N, on a GPU"),
    }

    @property
    def _kept_names(self) -> list[str]:
        return [name for name in _row_names(self.kernel).values() if name.startswith("i")]

    @property
    def _reduced_names(self) -> list[str]:
        return [name for name in _row_names(self.kernel).values() if name.startswith("r")]

    @property
    def _inner(self) -> str:
        names = _row_names(self.kernel)
        if self.plan.across and self._kept_names:
            return self._kept_names[-1]
        found = inner_axis(self.kernel)
        name = found.name if found is not None else None
        if not self.on_gpu:
            name = vector_axis(self.kernel, self.tensors) or name
        return names.get(name or "", (self._kept_names + self._reduced_names)[-1])

    @property
    def _axes(self) -> list[str]:
        return self._kept_names + self._reduced_names

    def _vectorize(self, words: Sequence[str]) -> None:
        self.set("vector", self.along(words, self._axes, self._inner))

    def _unroll(self, words: Sequence[str]) -> None:
        self.set("accumulators", self.along(words, self._axes, self._inner))

    def _parallel(self, words: Sequence[str]) -> None:
        if not self.on_gpu:
            self.fail(*_SHARED)
        name, size = self.sized(words, self._axes)
        self.set("threads" if name in self._reduced_names else "rows_per_block", size)

    def _split(self, words: Sequence[str]) -> None:
        name, size = self.sized(words, self._axes)
        if not self.on_gpu:
            hint = "unroll says how many sums are kept side by side"
            self.fail("rows are taken whole, each by one thread", hint)
        if name in self._reduced_names:
            self.fail("the threads of a row share it", f"parallel {name} says how many they are")
        self.set("rows_per_thread", size)

    def _reorder(self, words: Sequence[str]) -> None:
        orders = {
            False: self._kept_names + self._reduced_names,
            True: self._reduced_names + self._kept_names,
        }
        for across, order in orders.items():
            if list(words) == order:
                self.set("across", across)
                return
        told = " or ".join(" ".join(order) for order in orders.values())
        self.fail(
            f"{' '.join(words) or 'nothing'} is not an order of these loops", f"reorder {told}"
        )

    def _store_at(self, words: Sequence[str]) -> None:
        self._row_at(words, self._kept_names, "a row is kept at the axes of rows")
        self.set("keep_row", True)

    def _compute_at(self, words: Sequence[str]) -> None:
        self._row_at(words, self._reduced_names, "values of a row are computed again in every pass")
        self.set("keep_row", False)

    def _row_at(self, words: Sequence[str], axes: Sequence[str], why: str) -> None:
        what, name = self.counted(words, 2)
        if what != "row" or name not in axes:
            self.fail(f"{what} {name}: {why}", f"write row {axes[-1] if axes else 'i0'}")


class _AttentionEdit(_Edit):
    kind = "an attention"
    words: ClassVar = {
        "split": "_split", "vectorize": "_vectorize", "unroll": "_unroll", "parallel": "_parallel",
        "pipeline": "_pipeline", "algo_choice": "_algorithm",
    }  # fmt: skip
    refused: ClassVar = {
        "reorder": (
            "blocks of queries stay and keys go by, so that no score is stored",
            "leave it out; split says how large blocks are",
        ),
        "fuse": ("queries and keys are blocks of two axes", "leave it out"),
        "compute_at": (
            "scores are computed where they are used, once for each block of keys",
            "algo_choice attention streaming_softmax_2pass computes them twice",
        ),
        "store_at": (
            "scores are never stored, and sums stay with their queries",
            "leave it out; the region stage may have a kernel for the scores",
        ),
        "slide": ("blocks of keys follow one another already", "split kv says how long they are"),
    }
    axes: ClassVar = ("q", "kv")

    def _split(self, words: Sequence[str]) -> None:
        name, size = self.sized(words, self.axes)
        self.set(f"tile_{name}", size)

    def _vectorize(self, words: Sequence[str]) -> None:
        self._on_cpu("vectors of a matrix instruction have one length")
        self.set("vector", self.along(words, self.axes, "q"))

    def _unroll(self, words: Sequence[str]) -> None:
        self._on_cpu("the tile of a matrix instruction is always unrolled")
        name, size = self.sized(words, self.axes)
        keys, queries = self.plan.register_tile
        self.given.discard("register_tile")
        self.set("register_tile", (keys, size) if name == "q" else (size, queries))

    def _on_cpu(self, why: str) -> None:
        if self.on_gpu:
            self.fail(why, "split says how many queries and keys a block has")

    def _parallel(self, words: Sequence[str]) -> None:
        if not self.on_gpu:
            self.fail(*_SHARED)
        name, size = self.sized(words, self.axes)
        if name != "q":
            self.fail("keys go by one block after the other", "write q")
        self.set("consumers", size)

    def _pipeline(self, words: Sequence[str]) -> None:
        if not self.on_gpu:
            self.fail("a CPU loads keys when they are packed", "leave it out")
        name, stages = self.counted(words, 2)
        if name != "kv":
            self.fail(f"keys are what is loaded ahead, not {name}", "write kv")
        self.set("stages", self.whole(self.option(stages, "stages")))

    def _algorithm(self, words: Sequence[str]) -> None:
        kind, name = self.counted(words, 2)
        if kind != "attention":
            self.fail(f"the kernel is an attention, not a {kind}", "write attention")
        self.set("algo", self.name(name))

    def done(self) -> Plan:
        """Consumers and queries follow from each other on a GPU, and registers from consumers."""
        plan: AttentionPlan = self.plan
        if self.on_gpu and self.given & {"tile_q", "consumers"}:
            found = gpu_consumers(plan, by_queries="consumers" not in self.given)
            free = {"tile_q", "consumers", "registers"} - self.given
            plan = replace(plan, **{name: getattr(found, name) for name in free})
        return plan


@dataclass(kw_only=True)
class _StagedEdit(_Edit):
    chosen: Mapping[str, int] = field(init=False)
    """The tile before."""
    kind: ClassVar = "a kernel with stages"
    words: ClassVar = {
        "split": "_split", "vectorize": "_vectorize", "unroll": "_unroll", "slide": "_slide",
        "compute_at": "_compute_at", "store_at": "_store_at", "local_edge": "_local_edge",
    }  # fmt: skip
    refused: ClassVar = {
        "reorder": (
            "stages follow one another in each step, and rows come one after the other",
            "compute_at says which stages come first",
        ),
        "fuse": ("strips and tiles of columns are cut along one axis each", "leave it out"),
        "parallel": (
            "threads take strips as they come; a row needs those before it",
            "split says how long a strip is",
        ),
        "pipeline": ("stages hand on rows in rings", "local_edge says how deep they are"),
    }

    def __post_init__(self) -> None:
        self.chosen = self.plan.tile

    @property
    def _axes(self) -> list[str]:
        return list(axis_names(self.kernel).values())

    def done(self) -> Plan:
        """Strips are as long as they were where only columns are split, and blocks of a GPU as
        wide where only rows are; on a CPU rows are whole then."""
        kept = {
            name: size
            for name, size in self.chosen.items()
            if self.on_gpu or name == self.plan.slide
        }
        sizes = {**kept, **self.plan.tile}
        found: Plan = self.plan
        if "tile" in self.given:
            tile = {name: sizes[name] for name in self._axes if name in sizes}
            found = replace(self.plan, tile=tile)
        return found

    def _split(self, words: Sequence[str]) -> None:
        name, size = self.sized(words, self._axes)
        before = self.plan.tile if "tile" in self.given else {}
        if name in before:
            self.fail(f"{name} is split twice")
        self.given.discard("tile")
        self.set("tile", {**before, name: size})

    def _vectorize(self, words: Sequence[str]) -> None:
        self.set("vector", self.along(words, self._axes, self._axes[-1]))

    def _unroll(self, words: Sequence[str]) -> None:
        # Steps of a GPU's warps are interleaved, or its blocks make several rows in one; vectors of
        # a CPU's rows are.
        along = self.plan.slide if self.on_gpu else self._axes[-1]
        self.set("unroll", self.along(words, self._axes, along))
        if self.on_gpu:
            self._deepen(edge.source for edge in self.plan.local_edges if edge.buffer == RING)

    def _slide(self, words: Sequence[str]) -> None:
        self.set("slide", self.axis(self.counted(words, 1)[0]))

    def _compute_at(self, words: Sequence[str]) -> None:
        place = self._place("compute_at", words)
        self._deepen([place.stage])

    def _deepen(self, stages: Iterable[str]) -> None:
        """Rings that somebody made deeper stay so; others are as deep as the plan asks for."""
        if "local_edges" not in self.given:
            names = {*stages}
            edges = tuple(
                replace(edge, depth=None) if edge.source in names else edge
                for edge in self.plan.local_edges
            )
            self.plan = replace(self.plan, local_edges=edges)

    def _store_at(self, words: Sequence[str]) -> None:
        self._place("store_at", words)

    def _place(self, what: str, words: Sequence[str]) -> StageAt:
        stage, at = self.counted(words, 2)
        place = StageAt(self.name(stage), self.axis(at))
        before = getattr(self.plan, what) if what in self.given else ()
        self.given.discard(what)
        self.set(what, (*before, place))
        return place

    def _local_edge(self, words: Sequence[str]) -> None:
        before = self.plan.local_edges if "local_edges" in self.given else ()
        edge = self.edge(words)
        self.given.discard("local_edges")
        self.set("local_edges", (*before, edge))


_EDITS: Final[Mapping[type, type[_Edit]]] = {
    MapPlan: _MapEdit,
    RowPlan: _RowEdit,
    AttentionPlan: _AttentionEdit,
    StagedPlan: _StagedEdit,
}


def _row_names(kernel: Kernel) -> dict[str, str]:
    """Axes of rows, and axes that rows are reduced along."""
    reduced = form_of(kernel).rows.reduced
    kept = [found.name for found in kernel.axes if found.name not in reduced]
    names = {name: f"i{number}" for number, name in enumerate(kept)}
    return names | {name: f"r{number}" for number, name in enumerate(reduced)}
