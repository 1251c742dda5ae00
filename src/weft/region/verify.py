"""The verifier of kernels: names, axes, dtypes, reads in range, each output element written once.

Ranges are proved by interval arithmetic over axes and params. That an index reaches every element
of a tensor exactly once is proved by reading it as a mixed-radix number. Where neither suffices,
small kernels are checked point by point, and large ones by a `prover` if the caller has one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from weft.foundation.dtypes import I1, SI64, UI32, DType
from weft.foundation.errors import Finding, SpecViolation
from weft.foundation.functions import BINARY, COMPARISONS, REDUCTIONS, UNARY
from weft.foundation.index_expr import (
    Axis,
    Expr,
    FloorDiv,
    Guard,
    Index,
    always,
    axes_of,
    bounds,
    evaluate,
    params_of,
)
from weft.foundation.numeric import is_number_of
from weft.foundation.records import replace
from weft.region.form_text import differences
from weft.region.forms.find import find_form
from weft.region.ir import (
    AxisIndex,
    Binary,
    Carry,
    Cast,
    Check,
    Const,
    Fold,
    Kernel,
    Let,
    Module,
    Output,
    Pattern,
    Read,
    Reduce,
    Select,
    Tensor,
    Unary,
    Words,
    operands,
)
from weft.region.structure import without_tensors
from weft.region.verify_claims import claim_problems

RULES = frozenset({"inside", "nonzero", "nonnegative"})
ROLES = frozenset({"input", "param", "state", "constant", "run", "output", "internal"})
_POINTS = 1 << 20
"""Up to this many points, what interval arithmetic cannot settle is checked one by one."""
Ranges: TypeAlias = Mapping[str, tuple[int, int]]
Prover: TypeAlias = Callable[[Guard, Sequence[Guard], Ranges], bool]
"""Whether a guard holds wherever others do, over inclusive ranges of axes and params."""


def verify(module: Module, prover: Prover | None = None) -> None:
    """Raise with everything that is wrong."""
    found = list(findings(module, prover))
    if found:
        raise SpecViolation.of(found)


def findings(module: Module, prover: Prover | None = None) -> Iterator[Finding]:
    """Everything that is wrong with a module."""
    written = {name for name, t in module.tensors.items() if t.role in _GIVEN}
    given, results = frozenset(module.inputs), frozenset(module.outputs)
    for name, tensor in module.tensors.items():
        yield from _tensor_findings(name, tensor, given, results)
    yield from _name_findings(module)
    right: set[Hashable] = set()
    for kernel in module.kernels:
        yield from _order_findings(kernel, module.tensors, written)
        stages = list(_stages(kernel, module.tensors))
        yield from stages
        if not stages and all(name in module.tensors for name in kernel.buffers):
            alike = without_tensors(kernel, module.tensors)
            if alike is None or alike not in right:
                known = kernel.with_locals(module.tensors)
                parts = [replace(stage.kernel, form=None) for stage in kernel.stages]
                wrong = [f for part in parts for f in _Check(part, known, prover).findings()]
                wrong = wrong or list(_Check(kernel, known, prover).findings())
                yield from wrong
                if not wrong:
                    right.add(alike)
        written |= {output.tensor for output in kernel.outputs}
    for name in module.outputs:
        if name not in written:
            yield Finding("RegionOutput", name, "no kernel writes this output of the module")


def _tensor_findings(
    name: str, tensor: Tensor, given: Collection[str], results: Collection[str]
) -> Iterator[Finding]:
    if tensor.name != name or tensor.role not in ROLES:
        yield Finding("RegionTensor", name, f"tensor {tensor.name} has role {tensor.role}")
    if any(size < 0 for size in tensor.shape):
        yield Finding("RegionTensor", name, f"it has the shape {list(tensor.shape)}")
    fits = any(0 < tensor.room < size for size in tensor.shape[-1:])
    if tensor.room and (tensor.role != "internal" or not fits):
        why = f"{tensor.role} {list(tensor.shape)} cannot have rows with room for {tensor.room}"
        yield Finding("RegionTensor", name, why)
    if tensor.role == "output" and name not in results:
        yield Finding("RegionTensor", name, "it has the role output, but is none")
    if (tensor.role in _GIVEN) is not (name in given):
        said = "among" if name in given else "not among"
        why = f"it has the role {tensor.role}, and is {said} the inputs"
        yield Finding("RegionTensor", name, why)


def _name_findings(module: Module) -> Iterator[Finding]:
    """Kernels have names of their own; what is said about kernels and tensors is about known
    ones."""
    kernels = Counter(kernel.name for kernel in module.kernels)
    for name in (name for name, count in kernels.items() if count > 1):
        yield Finding("RegionName", name, "two kernels have this name")
    chained = [name for chain in module.chains for name in chain.kernels]
    for name in sorted({*chained, *module.origin} - set(kernels)):
        yield Finding("RegionName", name, "there is no kernel with this name")
    for name in sorted(set(module.inputs) - set(module.tensors)):
        yield Finding("RegionName", name, "this input is not declared")
    if len(set(module.inputs)) != len(module.inputs):
        yield Finding("RegionName", "the inputs", "an input is listed twice")


_GIVEN = frozenset({"input", "param", "state", "constant", "run"})


def _order_findings(
    kernel: Kernel, tensors: Mapping[str, Tensor], written: set[str]
) -> Iterator[Finding]:
    bases = [output.base for output in kernel.outputs if output.base is not None]
    for name in (*kernel.inputs, *bases):
        if name not in tensors:
            yield Finding("RegionName", kernel.name, f"tensor {name} is not declared")
        elif name not in written:
            yield Finding("RegionOrder", kernel.name, f"{name} is read before it is written")
    for output in kernel.outputs:
        if output.tensor not in tensors:
            yield Finding("RegionName", kernel.name, f"tensor {output.tensor} is not declared")
        elif output.tensor in written:
            yield Finding("RegionOrder", kernel.name, f"{output.tensor} is written a second time")


def _stages(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Iterator[Finding]:
    """Locals have names and shapes of their own, and are read after they are made."""
    made: set[str] = set()
    own = {stage.name for stage in kernel.stages}
    for stage in kernel.stages:
        where = f"{kernel.name}, stage {stage.name}"
        names = tuple(found.name for found in stage.outer)
        values = {let.name: let for let in stage.body}
        if stage.name in tensors or stage.name in made:
            yield Finding("RegionName", where, "its local has the name of another tensor")
        if stage.local.shape != tuple(found.size for found in stage.outer):
            yield Finding("RegionAxis", where, "its axes are not those of its local")
        if stage.value not in values or values[stage.value].axes != names:
            why = f"{stage.value or 'its value'} does not live over all its axes"
            yield Finding("RegionAxis", where, why)
        late = sorted((set(stage.kernel.inputs) & own) - made)
        if late:
            yield Finding("RegionOrder", where, f"{late[0]} is read before it is made")
        made.add(stage.name)


@dataclass
class _Check:
    """The checks of one kernel; `values` holds the Lets in scope."""

    kernel: Kernel
    tensors: Mapping[str, Tensor]
    prover: Prover | None = None
    values: dict[str, tuple[DType, tuple[str, ...]]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def findings(self) -> Iterator[Finding]:
        yield from self._axes_and_params()
        if self.kernel.pattern is Pattern.OPAQUE or self.kernel.opaque is not None:
            found = list(self._opaque())
            yield from found or self._form()
            return
        found = list(self._body(self.kernel.body, gone=()))
        for output in self.kernel.outputs:
            found += self._output(output)
        found = found or [self.wrong(*problem) for problem in claim_problems(self.kernel)]
        yield from found or self._form()

    def _form(self) -> Iterator[Finding]:
        """A kernel that says what it is is that."""
        if self.kernel.form is None:
            return
        wanted = find_form(self.kernel, self.tensors)
        if self.kernel.form != wanted:
            why = f"its form says {differences(self.kernel.form, wanted)}"
            hint = "leave the form out: it follows from the kernel"
            yield Finding("RegionForm", self.kernel.name, why, hint)

    def wrong(self, code: str, why: str) -> Finding:
        return Finding(code, self.kernel.name, why)

    # -- the frame -------------------------------------------------------------------------------

    def _axes_and_params(self) -> Iterator[Finding]:
        names = [axis.name for axis in self.kernel.axes] + [p.name for p in self.kernel.params]
        if len(set(names)) != len(names):
            yield self.wrong("RegionName", f"axes and params {names} are not all different")
        for axis in self.kernel.axes:
            if axis.size < 0:
                yield self.wrong("RegionAxis", f"axis {axis.name} has size {axis.size}")
        for param in self.kernel.params:
            tensor = self.tensors[param.tensor]
            inside = 0 <= param.element < math.prod(tensor.shape)
            if not tensor.dtype.is_integer or not inside:
                yield self.wrong(
                    "RegionParam", f"param {param.name} is not an element of an integer tensor"
                )
            if param.low > param.high:
                yield self.wrong(
                    "RegionParam", f"param {param.name} has the range {param.low}..{param.high}"
                )

    def _opaque(self) -> Iterator[Finding]:
        call = self.kernel.opaque
        if call is None or self.kernel.pattern is not Pattern.OPAQUE or self.kernel.body:
            yield self.wrong("RegionOpaque", "an opaque kernel has an op and no body")
        elif len(call.results) != len(self.kernel.outputs):
            yield self.wrong("RegionOpaque", "an opaque kernel has one output for each result")

    # -- values ----------------------------------------------------------------------------------

    def _body(self, body: Sequence[Let], gone: tuple[str, ...]) -> Iterator[Finding]:
        """Check Lets in order. `gone` are axes that no Let may live over: those of a fold."""
        for let in body:
            if let.name in self.names:
                yield self.wrong("RegionName", f"{let.name} is defined twice")
            self.names.add(let.name)
            ordered = tuple(axis.name for axis in self.kernel.axes if axis.name in let.axes)
            if let.axes != ordered or set(let.axes) & set(gone):
                yield self.wrong(
                    "RegionAxis", f"{let.name} lives over {list(let.axes)}, not axes in order"
                )
            yield from self._let(let, gone)
            self.values[let.name] = (let.dtype, let.axes)

    def _let(self, let: Let, gone: tuple[str, ...]) -> Iterator[Finding]:
        unknown = [name for name in operands(let) if name not in self.values]
        if unknown:
            yield self.wrong("RegionName", f"{let.name} uses {unknown[0]}, which is not defined")
            return
        free = (set(let.axes) | set(gone)) & set(self.kernel.sizes)
        if isinstance(let.expr, Reduce | Fold):
            free |= set(let.expr.axes) & set(self.kernel.sizes)
        lost = {a for name in operands(let) for a in self.values[name][1]} - free
        if lost:
            yield self.wrong(
                "RegionAxis", f"{let.name} does not live over {min(lost)}, its operand does"
            )
        match let.expr:
            case Read():
                yield from self._read(let, let.expr, free)
            case AxisIndex(expr=expr):
                yield from self._index_scope(let, (expr,), free)
            case Check() | Words():
                yield from self._index_scope(let, (let.expr.element,), free)
                yield from self._dtypes(let)
            case Reduce() | Fold():
                yield from self._reduction(let, let.expr, gone)
            case _:
                yield from self._dtypes(let)

    def _index_scope(
        self, let: Let, exprs: Sequence[Expr], free: set[str], places: Collection[str] = ()
    ) -> Iterator[Finding]:
        known = {p.name for p in self.kernel.params}.union(places)
        for expr in exprs:
            beyond = axes_of(expr) - free
            params = params_of(expr) - known
            if beyond or params:
                missing = min(beyond | params)
                yield self.wrong("RegionAxis", f"{let.name} is indexed by {missing}, not its axis")

    def _read(self, let: Let, read: Read, free: set[str]) -> Iterator[Finding]:
        tensor = self.tensors[read.tensor]
        exprs = [*read.index, *(guard.expr for guard in read.guards)]
        selected = {place.param: place for place in read.places}
        scope = list(self._index_scope(let, exprs, free, selected))
        yield from scope
        for place in read.places:
            if not self.values[place.value][0].is_integer or place.size < 1:
                yield self.wrong("RegionDType", f"{let.name} is read at {place.value}, no index")
        if tensor.dtype is not let.dtype:
            yield self.wrong(
                "RegionDType", f"{let.name} reads {tensor.dtype} {tensor.name} as {let.dtype}"
            )
        if len(read.index) != len(tensor.shape):
            yield self.wrong(
                "RegionRank", f"{let.name} reads {tensor.name} with {len(read.index)} indices"
            )
        elif not scope:
            limits = {name: (0, place.size - 1) for name, place in selected.items()}
            yield from self._in_range(let.name, read.index, tensor, read.guards, limits)
        if read.guards and read.fill is None:
            yield self.wrong("RegionFill", f"{let.name} has guards but no fill")
        elif read.fill is not None and not read.guards:
            yield self.wrong("RegionFill", f"{let.name} has a fill but no guards")
        elif read.fill is not None and not is_number_of(read.fill, let.dtype):
            yield self.wrong("RegionFill", f"{read.fill} is not a number of {let.dtype}")

    def _in_range(
        self,
        name: str,
        index: Index,
        tensor: Tensor,
        guards: Sequence[Guard],
        places: Ranges | None = None,
    ) -> Iterator[Finding]:
        if any(axis.size == 0 for axis in self.kernel.axes):
            return
        ranges = {**self.kernel.ranges, **(places or {})}
        for place, (expr, size) in enumerate(zip(index, tensor.extents, strict=True)):
            if _is_guarded(expr, size, guards, ranges):
                continue
            if self._holds(Guard(expr, size), guards, ranges):
                continue
            low, high = bounds(expr, ranges)
            yield self.wrong(
                "RegionRange",
                f"{name} indexes axis {place} of {tensor.name}, which has {size} elements, with "
                f"{expr} from {low} to {high}",
            )

    def _holds(self, wanted: Guard, guards: Sequence[Guard], ranges: Ranges) -> bool:
        every = _points_of((wanted, *guards), ranges)
        if every is not None:
            inside = np.ones((), np.bool_)
            for guard in guards:
                at = evaluate(guard.expr, every)
                inside = inside & (at >= 0) & (at < guard.size)
            at = evaluate(wanted.expr, every)
            return bool((~inside | ((at >= 0) & (at < wanted.size))).all())
        return self.prover is not None and self.prover(wanted, guards, ranges)

    def _reduction(self, let: Let, expr: Reduce | Fold, gone: tuple[str, ...]) -> Iterator[Finding]:
        known = set(expr.axes) <= set(self.kernel.sizes) and len(set(expr.axes)) == len(expr.axes)
        if not known or set(expr.axes) & {*let.axes, *gone}:
            yield self.wrong("RegionAxis", f"{let.name} cannot reduce over {list(expr.axes)}")
        if isinstance(expr, Reduce):
            if expr.fn not in REDUCTIONS:
                yield self.wrong("RegionFunction", f"there is no reduction named {expr.fn}")
            yield from self._dtypes(let)
            return
        yield from self._fold(let, expr, gone)

    def _fold(self, let: Let, fold: Fold, gone: tuple[str, ...]) -> Iterator[Finding]:
        outside = dict(self.values)
        carried = {carry.name: carry for carry in fold.carries}
        if fold.result not in carried or carried[fold.result].dtype is not let.dtype:
            yield self.wrong("RegionFold", f"{let.name} has no carry {fold.result} of its dtype")
        inner = (*gone, *fold.axes)
        for sides, body, chosen in (
            (("",), fold.step, [carry.next for carry in fold.carries]),
            ((".a", ".b"), fold.combine, [carry.merged for carry in fold.carries]),
        ):
            self.values = dict(outside)
            names = set(self.names)
            for carry in fold.carries:
                self.values.update((carry.name + s, (carry.dtype, carry.axes)) for s in sides)
            yield from self._body(body, inner if sides == ("",) else gone)
            yield from self._check_carries(fold.carries, chosen)
            # Folds that share a loop share the names inside it.
            self.names = names
        self.values = outside

    def _check_carries(self, carries: Sequence[Carry], chosen: Sequence[str]) -> Iterator[Finding]:
        for carry, name in zip(carries, chosen, strict=True):
            if not is_number_of(carry.init, carry.dtype):
                yield self.wrong("RegionFold", f"{carry.init} is not a number of {carry.dtype}")
            dtype, axes = self.values.get(name, (None, ()))
            if dtype is not carry.dtype or not set(axes) <= set(carry.axes):
                yield self.wrong("RegionFold", f"{name} cannot be the next {carry.name}")

    def _dtypes(self, let: Let) -> Iterator[Finding]:
        kinds = [self.values[name][0] for name in operands(let)]
        match let.expr:
            case Unary(fn=fn):
                right = fn in UNARY and kinds == [let.dtype]
            case Binary(fn=fn) if fn in COMPARISONS:
                right = kinds[0] is kinds[1] and let.dtype is I1
            case Binary(fn=fn):
                right = fn in BINARY and kinds == [let.dtype] * 2
            case Reduce():
                right = kinds[0] is let.dtype or _accumulates(kinds[0], let.dtype)
            case Select():
                right = kinds == [I1, let.dtype, let.dtype]
            case Check(rule=rule):
                right = rule in RULES and kinds == [let.dtype] and let.dtype.is_integer
            case Words():
                right = kinds == [SI64, SI64] and let.dtype is UI32
            case Const(value=value):
                right = is_number_of(value, let.dtype)
            case Cast():
                right = True
            case _:
                right = False
        if not right:
            shown = type(let.expr).__name__.lower()
            yield self.wrong(
                "RegionDType", f"{let.name} : {let.dtype} cannot be this {shown} of {kinds}"
            )

    # -- outputs ---------------------------------------------------------------------------------

    def _output(self, output: Output) -> Iterator[Finding]:
        tensor = self.tensors[output.tensor]
        if output.value not in {let.name for let in self.kernel.body}:
            yield self.wrong("RegionName", f"{output.value} is stored but not defined")
            return
        let = self.kernel.let(output.value)
        if let.dtype is not tensor.dtype or len(output.index) != len(tensor.shape):
            yield self.wrong(
                "RegionDType", f"{output.value} : {let.dtype} cannot be stored to {tensor.name}"
            )
            return
        if output.base is not None and not _same_elements(self.tensors[output.base], tensor):
            yield self.wrong("RegionBase", f"{output.base} and {tensor.name} differ in elements")
        known = set(let.axes) & set(self.kernel.sizes)
        scope = list(self._index_scope(let, output.index, known))
        yield from scope
        if not scope and set(let.axes) == known:
            yield from self._in_range(f"the store of {output.value}", output.index, tensor, ())
            yield from self._once(output, let, tensor)

    def _once(self, output: Output, let: Let, tensor: Tensor) -> Iterator[Finding]:
        sizes = {name: self.kernel.sizes[name] for name in let.axes}
        points, elements = math.prod(sizes.values()), math.prod(tensor.extents)
        if output.base is None and points != elements:
            yield self.wrong(
                "RegionCover",
                f"{points} points are stored to {tensor.name}, which has {elements} elements",
            )
        elif not _injective(output.index, sizes, self.kernel.ranges, tensor.shape):
            yield self.wrong(
                "RegionCover",
                f"the index [{', '.join(map(str, output.index))}] is not known to reach each "
                f"element of {tensor.name} once",
            )


def _same_elements(first: Tensor, second: Tensor) -> bool:
    counts = math.prod(first.shape), math.prod(second.shape)
    return first.dtype is second.dtype and counts[0] == counts[1]


def _is_guarded(expr: Expr, size: int, guards: Sequence[Guard], ranges: Ranges) -> bool:
    """Whether an index is in range wherever all guards hold."""
    if always(Guard(expr, size), ranges):
        return True
    for guard in guards:
        shift = expr - guard.expr
        if shift.is_constant and shift.constant >= 0 and shift.constant + guard.size <= size:
            return True
    narrowed = _narrow_ranges(guards, ranges)
    return narrowed is None or always(Guard(expr, size), narrowed)


def _narrow_ranges(guards: Sequence[Guard], ranges: Ranges) -> dict[str, tuple[int, int]] | None:
    """Axis ranges narrowed by guards on a single axis; None where no point is left."""
    found = dict(ranges)
    for guard in guards:
        if len(guard.expr.terms) != 1:
            continue
        term, factor = guard.expr.terms[0]
        if not isinstance(term, Axis) or abs(factor) != 1:
            continue
        ends = (-guard.expr.constant, guard.size - 1 - guard.expr.constant)
        low, high = ends if factor == 1 else (-ends[1], -ends[0])
        first, last = found[term.name]
        found[term.name] = (max(low, first), min(high, last))
        if found[term.name][0] > found[term.name][1]:
            return None
    return found


def _accumulates(dtype: DType, total: DType) -> bool:
    """Whether values of a dtype are added up in another one: a wider one of the same kind."""
    alike = (dtype.is_float, dtype.is_integer, dtype.is_complex)
    return alike == (total.is_float, total.is_integer, total.is_complex) and dtype.bits < total.bits


def _points_of(guards: Sequence[Guard], ranges: Ranges) -> dict[str, Any] | None:
    """Every point of the axes and params that guards depend on; None where these are too many."""
    names = sorted({n for g in guards for n in (*axes_of(g.expr), *params_of(g.expr))})
    sizes = [ranges[name][1] - ranges[name][0] + 1 for name in names]
    if math.prod(sizes) > _POINTS:
        return None
    grids = np.meshgrid(*(np.arange(n) for n in sizes), indexing="ij", sparse=True)
    return {name: grid + ranges[name][0] for name, grid in zip(names, grids, strict=True)}


def _injective(
    index: Index,
    sizes: Mapping[str, int],
    ranges: Ranges,
    shape: Sequence[int],
) -> bool:
    """Whether different points get different indices."""
    if math.prod(sizes.values()) <= 1 or _is_mixed_radix(_rejoin_index(index), sizes):
        return True
    if math.prod(sizes.values()) > _POINTS or any(params_of(expr) for expr in index):
        return False
    grids = np.meshgrid(*(np.arange(size) for size in sizes.values()), indexing="ij")
    env = dict(zip(sizes, grids, strict=True))
    where = [np.broadcast_to(evaluate(expr, env), grids[0].shape) for expr in index]
    if any(((at < 0) | (at >= size)).any() for at, size in zip(where, shape, strict=True)):
        return False
    flat = np.ravel_multi_index(tuple(where), tuple(shape))
    return len(np.unique(flat)) == flat.size


def _rejoin_index(index: Index) -> Index:
    """The index with a quotient and a remainder of one number as that number, which they tell. The
    number may be a quotient itself, of which the next remainder is the rest: the digits of one axis
    are joined from the first to the last."""
    left = list(index)
    for expr in index:
        joined = _find_joined(expr, left)
        while joined is not None:
            quotient, rest, number = joined
            left.remove(rest)
            left[left.index(quotient)] = number
            joined = _find_joined(number, left)
    return tuple(left)


def _find_joined(expr: Expr, index: Sequence[Expr]) -> tuple[Expr, Expr, Expr] | None:
    """A quotient, the remainder that belongs to it, and the number that they are of."""
    term = expr.terms[0][0] if len(expr.terms) == 1 else None
    if expr not in index or not isinstance(term, FloorDiv) or expr != Expr(0, ((term, 1),)):
        return None
    for rest in index:
        for factor in {-f for t, f in rest.terms if t == term and f < 0}:
            number = rest + expr * factor
            whole = term.divisor % factor == 0
            if whole and number == term.value // (term.divisor // factor):
                return expr, rest, number
    return None


def _is_mixed_radix(index: Index, sizes: Mapping[str, int]) -> bool:
    """Whether each axis is a digit of one index: factors are at least the extent of the digits
    below them."""
    seen: set[str] = set()
    for expr in index:
        digits = []
        for term, factor in expr.terms:
            if isinstance(term, Axis) and sizes.get(term.name) == 1:
                continue
            if isinstance(term, Axis) and term.name in sizes:
                digits.append((abs(factor), sizes[term.name]))
                if term.name in seen:
                    return False
                seen.add(term.name)
            elif axes_of(Expr(0, ((term, 1),))):
                return False
        extent = 1
        for factor, size in sorted(digits):
            if factor < extent:
                return False
            extent = factor * (size - 1) + extent
    return seen == {name for name, size in sizes.items() if size > 1}
