"""Attention rewritten into its canonical form: the softmax is divided by its sum before the product
with the values, not after.

    y[q, e] = (sum_j p[q, j] * v[j, e]) / l[q]    ->    y[q, e] = sum_j (p[q, j] / l[q]) * v[j, e]

Both are one softmax, and what computes it block by block divides at the end in any case. Powers of
what is at most 0 have sums of at least 1, so a quotient is a number wherever its parts are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from weft.foundation.dtypes import BF16, F32, F64
from weft.foundation.records import replace
from weft.region.fitting.cutting import renamed
from weft.region.fitting.joining import live
from weft.region.forms.attention import leads_to, share_of
from weft.region.ir import (
    Binary,
    Cast,
    Const,
    Kernel,
    Let,
    Output,
    Reduce,
    Unary,
    ValueExpr,
    operands,
)


def with_shares(kernel: Kernel) -> Kernel:
    """The kernel with shares where powers are mixed and divided after; as it is where none are."""
    lets = {let.name: let for let in kernel.body}
    for total in kernel.body:
        power = total.expr.value if _is_sum(total) and isinstance(total.expr, Reduce) else ""
        made = lets[power].expr if power else None
        if not isinstance(made, Unary) or made.fn != "exp":
            continue
        for let in kernel.body:
            found = _mixed_then_divided(lets, let, total)
            if found is not None:
                return _Divided(kernel, lets, total, power, let.name, found).before()
    return kernel


def _is_sum(let: Let) -> bool:
    return isinstance(let.expr, Reduce) and let.expr.fn == "sum"


def _mixed_then_divided(
    lets: Mapping[str, Let], let: Let, total: Let
) -> tuple[str, tuple[str, ...]] | None:
    """What a value is but for the division by a sum, and the Lets from there to the mixed powers,
    which are the last of them."""
    match let.expr:
        case Binary(fn="div", lhs=lhs, rhs=rhs):
            pairs = [(lhs, _skip_casts(lets, rhs).name == total.name)]
        case Binary(fn="mul", lhs=lhs, rhs=rhs):
            pairs = [(lhs, _inverts(lets, rhs, total)), (rhs, _inverts(lets, lhs, total))]
        case _:
            return None
    for name, divides in pairs:
        path = tuple(_path(lets, name, total)) if divides else ()
        if path and _is_sum(lets[path[-1]]):
            return name, path
    return None


def _inverts(lets: Mapping[str, Let], name: str, total: Let) -> bool:
    """Whether a value is 1 over a sum."""
    expr = _skip_casts(lets, name).expr
    if not isinstance(expr, Binary) or expr.fn != "div":
        return False
    one = lets[expr.lhs].expr
    return _skip_casts(lets, expr.rhs).name == total.name and one == Const(1.0)


def _skip_casts(lets: Mapping[str, Let], name: str) -> Let:
    """What a value was before it was converted."""
    let = lets[name]
    while isinstance(let.expr, Cast) and _keeps_range(lets, let):
        let = lets[let.expr.x]
    return let


def _keeps_range(lets: Mapping[str, Let], let: Let) -> bool:
    """Whether a conversion holds whatever it is given: undivided values may be large."""
    assert isinstance(let.expr, Cast)
    return let.dtype == F64 or (let.dtype in (BF16, F32) and lets[let.expr.x].dtype != F64)


def _path(lets: Mapping[str, Let], name: str, total: Let) -> Iterator[str]:
    """From a value to the sum over the axes of `total` that it is a multiple of."""
    while True:
        yield name
        match lets[name].expr:
            case Cast(x=x) if _keeps_range(lets, lets[name]):
                name = x
            case Binary(fn="mul" | "div" as fn, lhs=lhs, rhs=rhs):
                summed = isinstance(total.expr, Reduce) and total.expr.value
                sides = [s for s in (lhs, rhs) if leads_to(lets, s, str(summed))]
                if len(sides) != 1 or (fn == "div" and sides[0] != lhs):
                    return
                name = sides[0]
            case _:
                return


class _Divided:
    """A kernel whose Let `quotient` is `undivided`, the first of `path`, over `total`."""

    def __init__(
        self,
        kernel: Kernel,
        lets: Mapping[str, Let],
        total: Let,
        power: str,
        quotient: str,
        found: tuple[str, tuple[str, ...]],
    ) -> None:
        self.kernel, self.lets, self.total, self.power = kernel, lets, total, power
        self.quotient, (self.undivided, self.path) = quotient, found
        self.uses = Counter(name for let in kernel.body for name in operands(let))
        self.uses.update(output.value for output in kernel.outputs)

    def before(self) -> Kernel:
        """The kernel that divides the powers; as it is where something else reads them undivided,
        mixed or on their way."""
        weights = self.weights()
        if not weights or any(self.uses[name] != 1 for name in (*self.path, *weights)):
            return self.kernel
        total, power = self.total, self.lets[self.power]
        share = Let(
            f"{self.power}_share", power.dtype, power.axes, Binary("div", power.name, total.name)
        )
        if share.name in self.lets or total.dtype != power.dtype:
            return self.kernel
        whole = {self.quotient: self.undivided}
        body = [share]
        for let in self.kernel.body:
            names = whole | ({self.power: share.name} if let.name in weights else {})
            body.append(replace(let, expr=rename_value(let, names)))
        outputs = tuple(_rename_output(output, whole) for output in self.kernel.outputs)
        return live(replace(self.kernel, body=order_lets(body), outputs=outputs))

    def weights(self) -> tuple[str, ...]:
        """The Lets from the product with values to the powers, but for these."""
        expr = self.lets[self.path[-1]].expr
        product = self.lets[expr.value] if isinstance(expr, Reduce) else None
        if product is None or not isinstance(product.expr, Binary) or product.expr.fn != "mul":
            return ()
        power = self.lets[self.power]
        for name in (product.expr.lhs, product.expr.rhs):
            if share_of(self.lets, name, power.expr, self.power) == self.power:
                return (product.name, *_lets_between(self.lets, name, self.power))
        return ()


def _lets_between(lets: Mapping[str, Let], name: str, goal: str) -> Iterator[str]:
    """The Lets from a value to another one that it is made of, the last one left out."""
    while name != goal:
        yield name
        name = next(x for x in operands(lets[name]) if leads_to(lets, x, goal))


def rename_value(let: Let, names: Mapping[str, str]) -> ValueExpr:
    """What a Let computes, of operands that have other names."""
    if isinstance(let.expr, Reduce):
        return replace(let.expr, value=names.get(let.expr.value, let.expr.value))
    return renamed(let.expr, names)


def _rename_output(output: Output, names: Mapping[str, str]) -> Output:
    return replace(output, value=names.get(output.value, output.value))


def order_lets(body: list[Let]) -> tuple[Let, ...]:
    """Lets after what they are made of, otherwise in their order."""
    lets, done = {let.name: let for let in body}, dict[str, Let]()
    stack = [let.name for let in reversed(body)]
    while stack:
        name = stack.pop()
        missing = [x for x in operands(lets[name]) if x not in done]
        if missing:
            stack += [name, *reversed(missing)]
        else:
            done.setdefault(name, lets[name])
    return tuple(done.values())
