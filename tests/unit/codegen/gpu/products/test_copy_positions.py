"""Digits of the contracted axes that are carried from k step to k step are those that dividing
gives, and copies of convolutions divide by nothing at every step."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.support.gpu_convolutions import CASES, GRADIENTS, Case
from tests.support.gpu_interpreted import InterpretedGpu
from weft.codegen.gpu import ir
from weft.codegen.gpu.ir.scalar import FOLD, Lit, Name, Op, Scalar, scalar
from weft.codegen.gpu.products.copy_positions import Carried, carried
from weft.codegen.gpu.products.walks import Counted, Walk


def walk(*inner: tuple[str, int], phases: tuple[Counted, ...] = ()) -> Walk:
    return Walk((), inner, (), (), (), phases=phases)


def value(found: Scalar, known: dict[str, int]) -> int:
    match found:
        case Lit(value=number):
            return number
        case Name(name=name):
            return known[name]
        case Op(fn=fn, lhs=lhs, rhs=rhs):
            return FOLD[fn](value(lhs, known), value(rhs, known))
    raise AssertionError(found)


def carry_out(statements: Iterable[ir.Stmt], known: dict[str, int]) -> None:
    for statement in statements:
        match statement:
            case ir.Let(name=name, value=made) | ir.Set(name=name, value=made):
                known[name] = value(made, known)
            case ir.If(cond=cond, then=then):
                carry_out(then if value(cond, known) else (), known)


def seen(digits: Carried, first: int, steps: int, batch: tuple[int, ...]) -> list[list[int]]:
    known: dict[str, int] = {}
    carry_out(digits.start(scalar(first), tuple(map(scalar, batch))), known)
    found = []
    for _ in range(steps):
        found.append([value(digit, known) for digit in digits.digits.values()])
        carry_out(digits.advance(), known)
    return found


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize(
    "inner",
    [
        (("n", 5), ("y", 14), ("x", 14)),
        (("n", 9), ("y", 7), ("x", 5)),
        (("n", 4), ("y", 1), ("x", 64)),
        (("n", 2), ("x", 500)),
        (("r", 3), ("s", 3), ("c", 64)),
        (("r", 3), ("s", 2), ("c", 192)),
        (("c", 640),),
    ],
)
def test_carried_digits_are_those_of_the_number(
    inner: tuple[tuple[str, int], ...], first: int
) -> None:
    size = 1
    for _, each in inner:
        size *= each
    found = seen(Carried(walk(*inner), 64, "a"), first, -(-size // 64) - first, ())
    for step, digits in enumerate(found, first):
        rest, expected = 64 * step, list[int]()
        for _, each in reversed(inner):
            expected.insert(0, rest % each)
            rest //= each
        assert digits == expected


@pytest.mark.parametrize("batch", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_matrices_with_fewer_taps_go_through_fewer(batch: tuple[int, int]) -> None:
    phases = (Counted("r", 0, 2, 3), Counted("s", 1, 2, 3))
    digits = Carried(walk(("r", 2), ("s", 2), ("c", 128), phases=phases), 64, "a")
    rows, columns = (2 - each for each in batch)
    every = [[r, s, c] for r in range(rows) for s in range(columns) for c in (0, 64)]
    assert seen(digits, 0, len(every), batch) == every


def test_equal_digits_are_carried_once() -> None:
    one, other = walk(("r", 3), ("c", 64)), walk(("r", 3), ("c", 128))
    found = carried({"a": one, "b": one}, 64)
    assert found["a"] is found["b"]
    assert len({*carried({"a": one, "b": other}, 64).values()}) == 2
    assert carried({"a": one, "b": None}, 64).keys() == {"a"}


def divides_steps(found: Scalar, *, inside: bool = False) -> bool:
    match found:
        case Name(name="k"):
            return inside
        case Op(fn=fn, lhs=lhs, rhs=rhs):
            inside = inside or fn in ("div", "mod")
            return any(divides_steps(each, inside=inside) for each in (lhs, rhs))
    return False


@pytest.mark.parametrize(
    ("case", "of"),
    [(CASES["3x3"], None), GRADIENTS["of the filters"], GRADIENTS["of the image, stride 2"]],
    ids=["forward", "filters", "image"],
)
def test_copies_of_convolutions_divide_no_step(case: Case, of: int | None) -> None:
    program = case.program() if of is None else case.gradient(of)
    module = InterpretedGpu("sm90").compile(program).compilation["gpu"]
    loads = [
        each
        for kernel in module.kernels.values()
        for each in ir.walk(kernel.body)
        if isinstance(each, ir.TmaLoad)
    ]
    assert any(load.taps for load in loads)
    assert not any(divides_steps(at) for load in loads for at in (*load.coords, *load.taps))
