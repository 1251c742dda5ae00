"""A functional graph of ATen as a compiled program of Weft, called with torch's tensors.

Sizes come as Python ints in front of the tensors. They are open dims of one program, filled up to
the next bucket where it is compiled; where an op needs a size as a number, a program is compiled
for each set of them. What the graph writes back into its inputs (`copy_`) are further results,
written when it has run. Results that are inputs stay the tensors that they are.
"""

from __future__ import annotations

import re
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
from weft.driver.programs.shape_sets import ShapeSet
from weft.driver.stages.compilation import DEFAULT_LEVEL
from weft.foundation.dims import Dim, Symbol
from weft.foundation.dtypes import SI64
from weft.foundation.errors import UserError, WeftError, clipped
from weft.interop.torch.dtypes import ours
from weft.interop.torch.gpu_memory import GpuMemory
from weft.interop.torch.interpret import WRITES, NodeFailed, carry_out, name_of
from weft.interop.torch.lines import shown
from weft.interop.torch.memory import HostMemory, Memory, Tensors
from weft.interop.torch.tensor_layouts import Order, back, in_order, order_of, shown_by, views_from
from weft.ops.graph.cache import PROGRAMS
from weft.ops.graph.context import backend_named
from weft.ops.graph.faults import told_by_line
from weft.ops.mode import Mode, within_mode
from weft.ops.shapes import ByShape
from weft.ops.tensor import Tensor
from weft.ops.tracing import Trace, trace
from weft.ptir.files import dumps
from weft.ptir.ir import Program
from weft.ptir.types import TensorType, symbols_of

KEY: Final = TensorType(SI64, (2,))
BUCKETS: Final = tuple(8 << number for number in range(24))
"""Up to which sizes open dims are filled."""


@dataclass(frozen=True)
class Settings:
    """What `torch.compile(options=...)` says, and what torch says of the call."""

    opt_level: int = DEFAULT_LEVEL
    explain: bool = False
    dump: str = ""
    whole: bool = False
    """Whether nothing may fall back: `fullgraph=True`."""


@dataclass(frozen=True)
class Shaped:
    """The dtype and the shape of a tensor that is not there yet."""

    dtype: torch.dtype
    shape: tuple[Dim, ...]


@dataclass(frozen=True)
class Version:
    """A program for one set of sizes, or for all."""

    compiled: Prepared | ByShape
    traced: Trace
    draws: bool
    """Whether it draws random numbers."""
    tensors: Tensors
    """Those of its last call."""
    unused: Any
    """The key of what draws nothing, as the backend stores it."""

    def execute(
        self, tensors: list[torch.Tensor], memory: Memory
    ) -> tuple[list[Any], Sequence[TensorType]]:
        """The results as the backend stores them, and their types."""
        given, holder, moving = self.tensors.of(tensors)
        if self.draws:
            moving = (*moving, len(given))
        given.append(memory.stored(_draw_key()) if self.draws else self.unused)
        captured = [each.storage() for each in self.traced.captured]
        given += captured
        with memory.turn():
            if not isinstance(self.compiled, ByShape):
                made = self.compiled.execute(given, holder=holder, data=moving)
                return made, self.compiled.results
            kinds = [each.node.tensor for each in self.traced.captured]
            orders = self.tensors.orders
            pairs = zip(tensors, orders, strict=True)
            shapes = [*(in_order(each.shape, o) for each, o in pairs), KEY.static_shape]
            shapes += [kind.static_shape for kind in kinds]
            return self.compiled.execute(given, shapes)


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
        self.views = {} if written else self._views()
        """Results that are inputs seen another way, with the ops that show them."""
        self.wanted = [each for each in self.results if self._is_computed(each)]
        self.orders = [order_of(node.meta["val"]) for node in self.wanted]
        self.lying = [order_of(fakes[at]) for at in self.tensors]
        """How the tensors that come in lie."""
        self.versions: dict[Any, Version] = {}
        self._open: Version | None = None
        """The program for all sizes, where there is one; else `_closed` says why not."""
        self._closed = ""
        self._traced: tuple[Any, tuple[Trace, bool]] | None = None
        """The last trace, and what it was made for."""
        self.backend, self.memory = home_of([node.meta.get("val") for node in nodes])
        places = [node.meta["val"].device for node in self.wanted]
        self.elsewhere = [
            (at, place) for at, place in enumerate(places) if place.type != self.memory.device
        ]
        """Results that torch wants on another device than the program has them."""

    def _is_computed(self, value: Any) -> bool:
        return (
            isinstance(value, Node)
            and value not in self.kept
            and value not in self.views
            and isinstance(value.meta.get("val"), torch.Tensor)
        )

    def _views(self) -> dict[Node, list[Node]]:
        nodes = (node for node in self.results if isinstance(node, Node))
        return {node: views for node in nodes if (views := views_from(node))}

    # -- compiling -------------------------------------------------------------------------------

    def version(self, key: Any, inputs: Sequence[Any]) -> Version:
        found = self.versions.get(key)
        if found is None:
            found = self.versions[key] = self._compile(inputs)
        return found

    def leave_open(self, inputs: Sequence[Any]) -> bool:
        """Whether one program serves all sizes; it is compiled for those of these inputs."""
        fakes = [node.meta.get("val") for node in self.inputs]
        if not any(isinstance(fakes[at], torch.SymInt) for at in self.numbers):
            return False
        if self.memory.device != "cpu":
            # To fill tensors up to a bucket they would have to go through the host.
            self._closed = "on a GPU there is a program for each set of sizes"
            return False
        try:
            traced, draws = self.trace([opened(fake) for fake in fakes])
            program = _Open(self, traced.program)
            shapes = [*self._shapes([inputs[at] for at in self.tensors]), KEY.static_shape]
            shapes += [each.node.tensor.static_shape for each in traced.captured]
            program.clusters.fit(shapes)
        except (NodeFailed, WeftError) as error:
            cause = error.error if isinstance(error, NodeFailed) else error
            self._closed = clipped(getattr(cause, "why", "") or str(cause), 200)
            return False
        self._open = self._version(program, traced, draws)
        return True

    def _version(self, compiled: Prepared | ByShape, traced: Trace, draws: bool) -> Version:
        unused = self.memory.stored(np.zeros(KEY.static_shape, np.int64))
        tensors = Tensors(self.memory, self.lying)
        return Version(compiled, traced, draws, tensors, unused)

    def _shapes(self, tensors: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Those of the program's inputs."""
        pairs = zip(tensors, self.lying, strict=True)
        return [in_order(tensor.shape, order) for tensor, order in pairs]

    def trace(self, inputs: Sequence[Any], lost: Any = ()) -> tuple[Trace, bool]:
        """The graph as a program for inputs like these, and whether it draws random numbers."""
        given = [inputs[at] for at in self.tensors]
        pairs = zip(given, self._shapes(given), strict=True)
        kinds = [_tensor_type(tensor.dtype, shape) for tensor, shape in pairs]
        drawn: list[int] = []
        roots = [*self.wanted, *(source for _, source in self.copies)]

        def call(given: list[Tensor]) -> Any:
            *tensors, key = given
            mode = Mode(training=True, key=key)
            values = list(inputs)
            for at, tensor, order in zip(self.tensors, tensors, self.lying, strict=True):
                values[at] = tensor if order is None else tensor.permute_dims(back(order))
            with within_mode(mode):
                found = carry_out(self.module, values, roots, lost)
            drawn.append(mode.drawn)
            ordered = [_order_axes(x, o) for x, o in zip(found, self.orders, strict=False)]
            return ordered + found[len(ordered) :]

        traced = trace(_make_forward(self.module), [*kinds, KEY], list, call, backend=self.backend)
        self._traced = inputs, (traced, drawn[-1] > 0)
        return traced, drawn[-1] > 0

    def _compile(self, inputs: Sequence[Any]) -> Version:
        known, self._traced = self._traced, None
        traced, draws = known[1] if known and known[0] is inputs else self.trace(inputs)
        sizes = [inputs[at] for at in self.numbers]
        why = f"sizes {sizes} are new" if sizes or self.versions else "first call"
        closed = f"; the sizes are not open: {self._closed}" if self._closed else ""
        prepared = self.prepare(traced.program, why + closed)
        return self._version(prepared, traced, draws)

    def prepare(self, program: Program, why: str) -> Prepared:
        """A program without open dims, compiled as the settings say."""
        started = time.perf_counter()
        level = self.settings.opt_level
        if level != DEFAULT_LEVEL and self.backend.name == "cpu":
            ready = legalise(program, self.backend, None)
            made = CpuExecutable(compile_program(ready, "cpu", opt_level=level))
            prepared = Prepared(program, self.backend, made)
        else:
            prepared = PROGRAMS.compile(program, self.backend, "jit")
        self._tell(time.perf_counter() - started, why)
        if self.settings.dump:
            _write_dump(Path(self.settings.dump), prepared)
        return prepared

    def _tell(self, seconds: float, why: str) -> None:
        """One line on what was compiled, where and why."""
        if not self.settings.explain:
            return
        ops = [node for node in self.module.graph.nodes if node.op == "call_function"]
        place = next((shown(node) for node in ops if shown(node)), "")
        print(
            f"[weft] compiled a graph of {len(ops)} ops{place} for {self.backend.name} in "
            f"{seconds:.2f} s: {why}",
            file=sys.stderr,
        )

    # -- calling ---------------------------------------------------------------------------------

    def __call__(self, args: list[Any]) -> list[Any]:
        version = self._open
        if version is None:
            key = tuple([args[at] for at in self.numbers]) if self.numbers else ()
            version = self.versions.get(key) or self.version(key, args)
        try:
            made, kinds = version.execute([args[at] for at in self.tensors], self.memory)
            found = self._hand_back(made, kinds)
        except WeftError as error:
            raise told_by_line(error, lambda: version.traced.program) from None
        for (at, _), value in zip(self.copies, found[len(self.wanted) :], strict=True):
            args[at].copy_(value)
        return self._nest_results(args, found)

    def _hand_back(self, made: list[Any], kinds: Sequence[TensorType]) -> list[torch.Tensor]:
        pairs = zip(made, kinds, strict=True)
        found = [self.memory.given(storage, kind) for storage, kind in pairs]
        for at, order in enumerate(self.orders):
            if order is not None:
                found[at] = found[at].permute(back(order))
        for at, device in self.elsewhere:
            found[at] = found[at].to(device)
        return found

    def _nest_results(self, args: list[Any], found: list[torch.Tensor]) -> list[Any]:
        supply = iter(found)
        results: list[Any] = []
        for each in self.results:
            if not isinstance(each, Node):
                results.append(each)
            elif each in self.kept:
                results.append(args[self.kept[each]])
            elif each in self.views:
                views = self.views[each]
                results.append(shown_by(views, args[self.kept[views[0].args[0]]]))
            elif isinstance(each.meta.get("val"), torch.Tensor):
                results.append(next(supply))
            else:
                results.append(self._number(each.meta["val"], args))
        return results

    def _number(self, said: Any, args: list[Any]) -> Any:
        """A number among the results: what torch says of it, in the sizes that came in."""
        kind = _NUMBERS.get(type(said))
        if kind is None:
            return said
        sizes: dict[Any, Any] = {}
        for place, given in zip(self.inputs, args, strict=True):
            fake = place.meta.get("val")
            pairs = [(fake, given)]
            if isinstance(fake, torch.Tensor):
                pairs = list(zip(fake.shape, given.shape, strict=True))
            sizes |= {dim.node.expr: n for dim, n in pairs if isinstance(dim, torch.SymInt)}
        return kind(said.node.expr.xreplace(sizes))


_NUMBERS: Final = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


class _Open(ByShape):
    """A graph with open dims, compiled for every bucket of sizes that it meets."""

    def __init__(self, graph: CompiledGraph, program: Program) -> None:
        self._graph = graph
        names = {symbol.name for kind in program.main.parameters for symbol in symbols_of(kind)}
        shapes = ShapeSet(dict.fromkeys(names, BUCKETS))
        interprets = getattr(graph.backend, "interprets", False)
        super().__init__(program, graph.backend, None if interprets else shapes)

    def _compile(self, program: Program) -> Prepared:
        kinds = ", ".join(map(str, program.main.parameters[: len(self._graph.tensors)]))
        return self._graph.prepare(program, f"sizes are open, up to those of {clipped(kinds, 200)}")


def _write_dump(folder: Path, prepared: Prepared) -> None:
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


def home_of(fakes: Sequence[Any]) -> tuple[Backend, Memory]:
    """The backend for tensors on these devices, and the memory that it has with torch."""
    devices = {fake.device for fake in fakes if isinstance(fake, torch.Tensor)}
    others = {str(each) for each in devices if each.type != "cpu"}
    if not others:
        found = backend_named(default_backend())
        return found, HostMemory(found)
    if others <= {"cuda", "cuda:0"}:
        found = backend_named("cuda")
        return found, GpuMemory(found)
    raise UserError(
        f"there are tensors on {', '.join(sorted(others))}, and Weft takes torch's tensors on the "
        "cpu and on cuda:0; move the model and its inputs there",
        "UnsupportedDevice",
    )


def _draw_key() -> Any:
    """The key of a call: a seed drawn from torch's generator, and offset 0."""
    seed = int(torch.randint(0, (1 << 63) - 1, ()).item())
    return np.array([seed, 0], np.int64)


def _tensor_type(dtype: torch.dtype, shape: Sequence[Any]) -> TensorType:
    sizes = (size if isinstance(size, Symbol) else int(size) for size in shape)
    return TensorType(ours(dtype), tuple(sizes))


def opened(fake: Any) -> Any:
    """A stand-in for an argument, with names in the place of its free sizes."""
    if isinstance(fake, torch.Tensor):
        return Shaped(fake.dtype, tuple(_dim_of_size(size) for size in fake.shape))
    return _dim_of_size(fake) if isinstance(fake, torch.SymInt) else fake


def _dim_of_size(size: Any) -> Dim:
    """A size as a number, or by a name; one that torch computes from others has one of its own."""
    if isinstance(size, int):
        return size
    said = size.node.expr
    return int(said) if said.is_number else Symbol(re.sub(r"\W+", "_", str(said)))


def _make_forward(module: GraphModule) -> Callable[..., Any]:
    def forward() -> None:
        """What errors and programs call the graph."""

    forward.__name__ = "forward"
    return forward


def _order_axes(x: Tensor, order: Order) -> Tensor:
    return x if order is None else x.permute_dims(order)
