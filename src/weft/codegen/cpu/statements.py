"""The values of a kernel as statements of the CPU dialect: the part that all loop nests share.

A value is computed in the outermost loop in which all its axes are known. Where a number is known
to lie in a range, or two values to be parts of one sum, a cheaper function takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.codegen.cpu import ir
from weft.codegen.cpu.scopes import Scope
from weft.foundation.dtypes import F32, F64
from weft.foundation.errors import InternalError
from weft.foundation.functions import broken_rule
from weft.foundation.index_expr import Expr, Guard, linear, substitute
from weft.memory.ir import MemRef
from weft.region.ir import (
    AxisIndex,
    Binary,
    Cast,
    Check,
    Const,
    Kernel,
    Let,
    Output,
    Read,
    Reduce,
    Select,
    Tensor,
    Unary,
    Words,
    operands,
)
from weft.region.structure import buffers


class Statements:
    """A kernel whose loop nest is under construction. Its buffers are `buffers(kernel)`, in that
    order; scratch follows them."""

    def __init__(self, kernel: Kernel, tensors: dict[str, Tensor], refs: dict[str, MemRef]) -> None:
        self.kernel = kernel
        self.tensors = tensors
        self.refs = refs
        self.numbers = {tensor: i for i, tensor in enumerate(buffers(kernel))}
        self.lets = {let.name: let for let in kernel.body}
        self.checks = [let.expr for let in kernel.body if isinstance(let.expr, Check)]
        self.lifted = frozenset[str]()
        """Exponentials that are computed a power of two too large, see `_find_lifted`."""
        self.fresh = 0

    def _params(self) -> tuple[ir.ParamArg, ...]:
        return tuple(
            ir.ParamArg(p.name, self.numbers[p.tensor], p.element, p.low, p.high)
            for p in self.kernel.params
        )

    def _violations(self) -> tuple[tuple[str, str], ...]:
        return tuple((c.code, broken_rule(c.rule, c.size)) for c in self.checks)

    def _buffer_args(self) -> tuple[ir.BufferArg, ...]:
        written = {output.tensor for output in self.kernel.outputs}
        by_number = {number: tensor for tensor, number in self.numbers.items()}
        args = []
        for number in range(len(by_number)):
            name = by_number[number]
            size = max(1, math.prod(self.tensors[name].shape))
            noalias = self.refs[name].noalias
            args.append(ir.BufferArg(self.tensors[name].dtype, size, name in written, noalias))
        return tuple(args)

    def _name(self, stem: str) -> str:
        """A loop variable; the underscore keeps it apart from every param."""
        self.fresh += 1
        return f"{stem}_{self.fresh}"

    def _size(self, axes: Sequence[str]) -> int:
        return math.prod(self.kernel.sizes[name] for name in axes)

    def _unflatten(self, axes: Sequence[str], flat: Expr) -> dict[str, Expr]:
        """Each axis from a flattened index."""
        found, below = {}, 1
        for name in reversed(axes):
            size = self.kernel.sizes[name]
            place = flat if below == 1 else flat // below
            found[name] = place if name == axes[0] else place % size
            below *= size
        return found

    def _home(self, axes: Sequence[str], scope: Scope) -> Scope:
        """The outermost scope in which all these axes are known."""
        known: set[str] = set()
        for candidate in scope.chain():
            known |= set(candidate.axes)
            if set(axes) <= known:
                return candidate
        raise InternalError(f"axes {axes} of a value are not all in loops")

    def _statement(self, let: Let, scope: Scope) -> ir.Stmt:
        match let.expr:
            case Read():
                return self._load(let, let.expr, scope)
            case Const(value=value):
                return ir.Let(let.name, let.dtype, "const", value=value)
            case AxisIndex(expr=expr):
                index = substitute(expr, scope.bindings())
                return ir.Let(let.name, let.dtype, "index", index=index)
            case Unary(fn="exp", x=x) if self._is_nonpositive(x):
                fn = "exp_lifted" if let.name in self.lifted else "exp_nonpositive"
                return ir.Let(let.name, let.dtype, fn, (x,))
            case Unary(fn=fn, x=x):
                return ir.Let(let.name, let.dtype, fn, (x,))
            case Cast(x=x):
                return ir.Let(let.name, let.dtype, "cast", (x,))
            case Binary(fn="div", lhs=x, rhs=s) if x in self.lifted and self._is_part(x, s):
                # One of those that make up a sum, each from 0 to 1 and one of them 1.
                return ir.Let(let.name, let.dtype, "share", (x, s))
            case Binary(fn=fn, lhs=lhs, rhs=rhs):
                return ir.Let(let.name, let.dtype, fn, (lhs, rhs))
            case Select(pred=pred, x=x, y=y):
                return ir.Let(let.name, let.dtype, "select", (pred, x, y))
            case Check(x=x, rule=rule, size=size, element=element):
                place = substitute(element, scope.bindings())
                number = self.checks.index(let.expr)
                return ir.Check(let.name, x, rule, size, number, place)
            case Words(seed=seed, offset=offset, element=element):
                return ir.Words(let.name, seed, offset, substitute(element, scope.bindings()))
        raise InternalError(f"no statement for {let.expr}")

    def _is_nonpositive(self, name: str) -> bool:
        """Whether a value is a number less the greatest of its row."""
        expr = self.lets[name].expr if name in self.lets else None
        if not isinstance(expr, Binary) or expr.fn != "sub":
            return False
        top = self.lets[expr.rhs].expr if expr.rhs in self.lets else None
        return isinstance(top, Reduce) and (top.fn, top.value) == ("max", expr.lhs)

    def _find_lifted(self) -> frozenset[str]:
        """The exponentials of softmaxes of which nothing but sums and shares is made: all of a row
        are computed so many times too large that none is subnormal, and sums and shares are
        brought down."""
        users: dict[str, list[Let]] = {}
        for let in self.kernel.body:
            for operand in operands(let):
                users.setdefault(operand, []).append(let)

        def stays(name: str, user: Let) -> bool:
            match user.expr:
                case Reduce(fn="sum"):
                    return True
                case Binary(fn="div", lhs=lhs, rhs=rhs):
                    return lhs == name and self._is_part(lhs, rhs)
            return False

        stored = {output.value for output in self.kernel.outputs}
        return frozenset(
            let.name
            for let in self.kernel.body
            if isinstance(let.expr, Unary)
            and (let.expr.fn, let.dtype in (F32, F64)) == ("exp", True)
            and self._is_nonpositive(let.expr.x)
            and let.name not in stored
            and all(stays(let.name, user) for user in users.get(let.name, ()))
        )

    def _is_part(self, name: str, total: str) -> bool:
        whole = self.lets[total].expr if total in self.lets else None
        summed = isinstance(whole, Reduce) and (whole.fn, whole.value) == ("sum", name)
        return summed and set(self.lets[total].axes) < set(self.lets[name].axes)

    def _load(self, let: Let, read: Read, scope: Scope) -> ir.Load:
        bindings = scope.bindings()
        kept = self.kernel.open_guards(read)
        guards = tuple(Guard(substitute(g.expr, bindings), g.size) for g in kept)
        index = tuple(substitute(e, bindings) for e in read.index)
        address = linear(index, self.refs[read.tensor].strides)
        number = self.numbers[read.tensor]
        return ir.Load(let.name, number, address, guards, read.fill, read.places)

    def _store_value(self, output: Output, scope: Scope) -> None:
        """Store a value that is known in the scope."""
        home = self._home(self.lets[output.value].axes, scope)
        bindings = scope.bindings()
        index = tuple(substitute(e, bindings) for e in output.index)
        address = linear(index, self.refs[output.tensor].strides)
        point = tuple(bindings[name] for name in self.lets[output.value].axes)
        home.body.append(ir.Store(self.numbers[output.tensor], address, output.value, point))
