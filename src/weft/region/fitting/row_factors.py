"""Attention whose weights are not powers over their sum rewritten into its canonical form, and a
factor of each row behind it.

    p = exp(x - c),  l = sum_j p,  y = sum_j (p / h) * v
        ->    p = exp(x - m),  l = sum_j p,  y = (sum_j (p / l) * v) * (l * e / h),  e = exp(m - c)

Here m is the greatest x of a row, c what is made of it, and h what is made of sums: one more weight
that nothing is mixed with (a sink), a small number for safety, or the inverse of a sum. What h and
others make of sums is made of l * e, which are the sums as they were. Where e is 0, so are all
powers, also in rows that see nothing, whose canonical form is no number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from weft.foundation.dtypes import F32, I1
from weft.foundation.records import replace
from weft.region.fitting.joining import live
from weft.region.fitting.shares import order_lets, rename_value
from weft.region.forms.attention import leads_to
from weft.region.ir import (
    Binary,
    Const,
    Kernel,
    Let,
    Reduce,
    Select,
    Unary,
    ValueExpr,
    operands,
)


def with_row_factors(kernel: Kernel) -> Kernel:
    """The kernel with rows scaled behind its softmax; as it is where that is canonical, or is
    read by others."""
    lets = {let.name: let for let in kernel.body}
    for total in kernel.body:
        if isinstance(total.expr, Reduce) and total.expr.fn == "sum" and total.dtype is F32:
            found = _find_softmax(lets, total)
            if found is not None:
                return _Scaled(kernel, lets, total, *found).kernel_of_rows()
    return kernel


def _find_softmax(lets: Mapping[str, Let], total: Let) -> tuple[Let, Let, Let, str] | None:
    """The difference of which powers are made, the greatest of each row, the weights and what these
    are made of sums with."""
    assert isinstance(total.expr, Reduce)
    power = lets[total.expr.value]
    made = lets[power.expr.x] if isinstance(power.expr, Unary) else None
    if power.expr != Unary("exp", made.name if made is not None else "") or made is None:
        return None
    if not isinstance(made.expr, Binary) or made.expr.fn != "sub":
        return None
    largest = Reduce("max", total.expr.axes, made.expr.lhs)
    top = next((let for let in lets.values() if let.expr == largest), None)
    if top is None or not set(lets[made.expr.rhs].axes) <= set(top.axes):
        return None
    for share in lets.values():
        match share.expr:
            case Binary(fn="div", lhs=lhs, rhs=rhs) if lhs == power.name:
                by = rhs
            case Binary(fn="mul", lhs=lhs, rhs=rhs) if power.name in (lhs, rhs):
                by = rhs if lhs == power.name else lhs
            case _:
                continue
        rows = set(lets[by].axes) <= set(total.axes)
        if rows and leads_to(lets, by, total.name) and share.dtype is F32:
            return made, top, share, by
    return None


class _Scaled:
    """A kernel whose weights are `share`, made of powers of `difference` and of `by`."""

    def __init__(
        self,
        kernel: Kernel,
        lets: Mapping[str, Let],
        total: Let,
        difference: Let,
        top: Let,
        share: Let,
        by: str,
    ) -> None:
        self.kernel, self.lets, self.total = kernel, lets, total
        self.difference, self.top, self.share, self.by = difference, top, share, by

    def kernel_of_rows(self) -> Kernel:
        """The kernel with the factor behind what it mixes."""
        assert isinstance(self.difference.expr, Binary)
        assert isinstance(self.share.expr, Binary)
        assert isinstance(self.total.expr, Reduce)
        shift, divides = self.difference.expr.rhs, self.share.expr.fn == "div"
        is_canonical = shift == self.top.name and divides and self.by == self.total.name
        power, mixed = self.total.expr.value, self.mixed()
        uses = Counter(name for let in self.kernel.body for name in operands(let))
        uses.update(output.value for output in self.kernel.outputs)
        # Whoever else reads powers or weights reads them as they were.
        alone = uses[self.difference.name] == 1 and uses[power] == 2 and uses[self.share.name] == 1
        if is_canonical or mixed is None or not alone:
            return self.kernel
        own, rows = f"{mixed.name}_of_row", self.total.axes
        made: list[Let] = []

        def add(what: str, value: ValueExpr, axes: tuple[str, ...] = rows) -> str:
            made.append(Let(f"{own}_{what}", I1 if what == "none" else F32, axes, value))
            return made[-1].name

        total, none, zero = self.total.name, "", ""
        if shift != self.top.name:
            rate = add("rate", Unary("exp", add("fall", Binary("sub", self.top.name, shift))))
            zero = add("zero", Const(0.0), ())
            none = add("none", Binary("eq", rate, zero))
            total = add("sum", Select(none, zero, add("all", Binary("mul", total, rate))))
        by = total if self.by == self.total.name else self.by
        factor = add("factor", Binary("div" if divides else "mul", total, by))
        scaled = add("scaled", Binary("mul", mixed.name, factor), mixed.axes)
        if none:
            scaled = add("mixed", Select(none, zero, scaled), mixed.axes)
        return self.rewritten(made, {self.total.name: total, mixed.name: scaled})

    def rewritten(self, made: list[Let], names: Mapping[str, str]) -> Kernel:
        """The kernel with new Lets, others reading what is called so now."""
        assert isinstance(self.difference.expr, Binary)
        assert isinstance(self.total.expr, Reduce)
        canonical = {
            self.difference.name: replace(self.difference.expr, rhs=self.top.name),
            self.share.name: Binary("div", self.total.expr.value, self.total.name),
        }
        body = [
            replace(let, expr=canonical.get(let.name) or rename_value(let, names))
            for let in self.kernel.body
        ]
        outputs = tuple(
            replace(output, value=names.get(output.value, output.value))
            for output in self.kernel.outputs
        )
        return live(replace(self.kernel, body=order_lets([*body, *made]), outputs=outputs))

    def mixed(self) -> Let | None:
        """What sums weights times values."""
        found = [
            let
            for let in self.kernel.body
            if isinstance(let.expr, Reduce)
            and let.expr.fn == "sum"
            and let.dtype is F32
            and leads_to(self.lets, let.name, self.share.name)
        ]
        return found[0] if len(found) == 1 else None
