"""A functional graph of ATen as a compiled program of Weft, called with torch's tensors.

Sizes come as Python ints in front of the tensors: a program is compiled for each set of them. What
the graph writes back into its inputs (`copy_`) are further results, written when it has run.
Results that are inputs stay the tensors that they are.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.fx import GraphModule, Node

from weft.driver.backends import Backend, default_backend
from weft.driver.compile import compile_program
from weft.driver.cpu import CpuExecutable
from weft.driver.execute import Prepared
from weft.driver.legalise import legalise
from weft.driver.stages.levels import DEFAULT_LEVEL
from weft.foundation.dtypes import SI64
from weft.foundation.errors import UserError, WeftError
from weft.interop.torch.dtypes import THEIRS, ours
from weft.interop.torch.interpret import WRITES, carry_out, name_of
from weft.interop.torch.lines import shown
from weft.interop.torch.memory import Arrays, tensor_of
from weft.ops.graph.cache import PROGRAMS
from weft.ops.graph.context import backend_named
from weft.ops.graph.faults import told_by_line
from weft.ops.mode import Mode, within_mode
from weft.ops.tensor import Tensor
from weft.ops.tracing import Trace, trace
from weft.ptir.files import dumps
from weft.ptir.types import TensorType

KEY: Final = TensorType(SI64, (2,))


@dataclass(frozen=True)
class Settings:
    """What `torch.compile(options=...)` says, and what torch says of the call."""

    opt_level: int = DEFAULT_LEVEL
    explain: bool = False
    dump: str = ""
    whole: bool = False
    """Whether nothing may fall back: `fullgraph=True`."""


@dataclass(frozen=True)
class Version:
    """A program for one set of sizes."""

    prepared: Prepared
    traced: Trace
    draws: bool
    """Whether it draws random numbers."""
    seconds: float
    arrays: Arrays
    """The tensors of its last call."""

    def execute(self, tensors: list[torch.Tensor]) -> list[Any]:
        """The results as the backend stores them."""
        given, holder, moving = self.arrays.of(tensors)
        if self.draws:
            moving = (*moving, len(given))
        given.append(_seeded() if self.draws else _UNUSED)
        given += [each.storage() for each in self.traced.captured]
        return self.prepared.execute(given, holder=holder, data=moving)


class CompiledGraph:
    """What torch calls in the place of a graph, with one list of arguments."""

    def __init__(self, module: GraphModule, settings: Settings) -> None:
        self.module = module
        self.settings = settings
        nodes = list(module.graph.nodes)
        self.inputs = [node for node in nodes if node.op == "placeholder"]
        fakes = [node.meta.get("val") for node in self.inputs]
        self.tensors = [at for at, fake in enumerate(fakes) if isinstance(fake, torch.Tensor)]
        self.numbers = [at for at in range(len(fakes)) if at not in set(self.tensors)]
        (results,) = nodes[-1].args
        self.results: list[Any] = list(results) if isinstance(results, list | tuple) else [results]
        self.kept = {node: at for at, node in enumerate(self.inputs)}
        """Inputs, which are results as they are, also where they were written to."""
        written = [node for node in nodes if node.op == "call_function" and _writes(node)]
        self.kept |= {node: self.kept[node.args[0]] for node in written}
        self.copies = [(self.kept[node.args[0]], node.args[1]) for node in written]
        self.wanted = [each for each in self.results if self._is_computed(each)]
        self.orders = [_order(node) for node in self.wanted]
        self.versions: dict[Any, Version] = {}
        self._traced: tuple[Any, tuple[Trace, bool]] | None = None
        """The last trace, and what it was made for."""
        self.backend = backend_for([node.meta.get("val") for node in nodes])

    def _is_computed(self, value: Any) -> bool:
        return (
            isinstance(value, Node)
            and value not in self.kept
            and isinstance(value.meta.get("val"), torch.Tensor)
        )

    # -- compiling -------------------------------------------------------------------------------

    def version(self, key: Any, inputs: Sequence[Any]) -> Version:
        found = self.versions.get(key)
        if found is None:
            found = self.versions[key] = self._compile(inputs)
        return found

    def trace(self, inputs: Sequence[Any], lost: Any = ()) -> tuple[Trace, bool]:
        """The graph as a program for inputs like these, and whether it draws random numbers."""
        kinds = [_kind(inputs[at]) for at in self.tensors]
        drawn: list[int] = []
        roots = [*self.wanted, *(source for _, source in self.copies)]

        def call(given: list[Tensor]) -> Any:
            *tensors, key = given
            mode = Mode(training=True, key=key)
            values = list(inputs)
            for at, tensor in zip(self.tensors, tensors, strict=True):
                values[at] = tensor
            with within_mode(mode):
                found = carry_out(self.module, values, roots, lost)
            drawn.append(mode.drawn)
            ordered = [_ordered(x, o) for x, o in zip(found, self.orders, strict=False)]
            return ordered + found[len(ordered) :]

        traced = trace(_named(self.module), [*kinds, KEY], list, call, backend=self.backend)
        self._traced = inputs, (traced, drawn[-1] > 0)
        return traced, drawn[-1] > 0

    def _compile(self, inputs: Sequence[Any]) -> Version:
        started = time.perf_counter()
        known, self._traced = self._traced, None
        traced, draws = known[1] if known and known[0] is inputs else self.trace(inputs)
        level = self.settings.opt_level
        if level != DEFAULT_LEVEL and self.backend.name == "cpu":
            ready = legalise(traced.program, self.backend, None)
            made = CpuExecutable(compile_program(ready, "cpu", opt_level=level))
            prepared = Prepared(traced.program, self.backend, made)
        else:
            prepared = PROGRAMS.compile(traced.program, self.backend, "jit")
        made_in = time.perf_counter() - started
        self._tell(inputs, made_in)
        if self.settings.dump:
            _write(Path(self.settings.dump), prepared)
        return Version(prepared, traced, draws, made_in, Arrays(self.backend.store))

    def _tell(self, inputs: Sequence[Any], seconds: float) -> None:
        """One line on what was compiled, where and why."""
        if not self.settings.explain:
            return
        ops = [node for node in self.module.graph.nodes if node.op == "call_function"]
        place = next((shown(node) for node in ops if shown(node)), "")
        sizes = [inputs[at] for at in self.numbers]
        why = f"sizes {sizes} are new" if sizes or self.versions else "first call"
        print(
            f"[weft] compiled a graph of {len(ops)} ops{place} for {self.backend.name} in "
            f"{seconds:.2f} s: {why}",
            file=sys.stderr,
        )

    # -- calling ---------------------------------------------------------------------------------

    def __call__(self, args: list[Any]) -> list[Any]:
        key = tuple([args[at] for at in self.numbers]) if self.numbers else ()
        version = self.versions.get(key) or self.version(key, args)
        try:
            made = version.execute([args[at] for at in self.tensors])
        except WeftError as error:
            raise told_by_line(error, lambda: version.traced.program) from None
        found = self._returned(made, version)
        for (at, _), value in zip(self.copies, found[len(self.wanted) :], strict=True):
            args[at].copy_(value)
        return self._nested(args, found)

    def _returned(self, made: list[Any], version: Version) -> list[torch.Tensor]:
        supply = iter(zip(made, version.prepared.results, strict=True))
        found: list[torch.Tensor] = []
        for output in version.traced.outputs:
            assert output is None
            storage, kind = next(supply)
            array = self.backend.read_storage(storage, kind)
            found.append(tensor_of(array, THEIRS[kind.dtype]))
        for at, order in enumerate(self.orders):
            if order is not None:
                found[at] = found[at].permute(order[1])
        return found

    def _nested(self, args: list[Any], found: list[torch.Tensor]) -> list[Any]:
        supply = iter(found)
        results: list[Any] = []
        for each in self.results:
            if not isinstance(each, Node):
                results.append(each)
            elif each in self.kept:
                results.append(args[self.kept[each]])
            elif isinstance(each.meta.get("val"), torch.Tensor):
                results.append(next(supply))
            else:
                results.append(self._number(each, args))
        return results

    def _number(self, node: Node, args: list[Any]) -> Any:
        """A size among the results: arithmetic on the sizes that came in."""
        values = dict(zip(self.inputs, args, strict=True))

        def value(each: Any) -> Any:
            if not isinstance(each, Node):
                return each
            if each not in values:
                function: Any = each.target
                values[each] = function(*[value(a) for a in each.args])
            return values[each]

        return value(node)


def _write(folder: Path, prepared: Prepared) -> None:
    """The program, and what every stage made of it where the backend compiles, in a folder of its
    own."""
    home = folder / f"graph_{len(list(folder.glob('graph_*'))) if folder.exists() else 0}"
    home.mkdir(parents=True)
    (home / "ptir.txt").write_text(str(dumps(prepared.program, "text")))
    compiled = getattr(prepared.executable, "executable", None)
    for name, text in (compiled.stages if compiled is not None else {}).items():
        ending = "json" if text.lstrip().startswith("{") else "txt"
        (home / f"{name}.{ending}").write_text(text)


def _writes(node: Node) -> bool:
    return name_of(node) == WRITES and node.args[0].op == "placeholder"


def backend_for(fakes: Sequence[Any]) -> Backend:
    """The backend for tensors on these devices."""
    kinds = {fake.device.type for fake in fakes if isinstance(fake, torch.Tensor)}
    if kinds - {"cpu"}:
        raise UserError(
            f"there are tensors on {', '.join(sorted(kinds))}, and Weft takes torch's tensors on "
            "the cpu; move the model and its inputs there",
            "UnsupportedDevice",
        )
    return backend_named(default_backend())


_UNUSED: Final = np.zeros((2,), np.int64)


def _seeded() -> Any:
    """The key of a call: a seed drawn from torch's generator, and offset 0."""
    seed = int(torch.randint(0, (1 << 63) - 1, ()).item())
    return np.array([seed, 0], np.int64)


def _kind(value: Any) -> TensorType:
    return TensorType(ours(value.dtype), tuple(int(size) for size in value.shape))


def _named(module: GraphModule) -> Callable[..., Any]:
    def forward() -> None:
        """What errors and programs call the graph."""

    forward.__name__ = "forward"
    return forward


def _order(node: Node) -> tuple[list[int], list[int]] | None:
    """How the axes of a result lie in memory, where torch says that they do not lie in order."""
    fake = node.meta["val"]
    if fake.layout is not torch.strided or fake.is_contiguous() or not fake.numel():
        return None
    strides = fake.stride()
    order = sorted(range(fake.ndim), key=lambda axis: -int(strides[axis]))
    if order == list(range(fake.ndim)):
        return None
    return order, [order.index(axis) for axis in range(fake.ndim)]


def _ordered(x: Tensor, order: tuple[list[int], list[int]] | None) -> Tensor:
    return x if order is None else x.permute_dims(tuple(order[0]))
