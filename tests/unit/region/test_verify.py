"""What the verifier accepts, and one broken kernel for each thing it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support import kernels
from tests.support.cases import each
from weft.foundation.dtypes import F32, I1, SI32
from weft.foundation.errors import SpecViolation
from weft.foundation.index_expr import Expr, Guard, axis, constant, param
from weft.region.ir import (
    Binary,
    Fold,
    Kernel,
    KernelAxis,
    Let,
    Module,
    Output,
    Param,
    Pattern,
    Read,
    Reduce,
    Tensor,
    Unary,
)
from weft.region.prove import holds
from weft.region.verify import findings, verify
from weft.region.verify_claims import claim_problems


@pytest.mark.parametrize("name", kernels.ALL)
def test_kernels_written_by_hand_are_right(name: str) -> None:
    assert not list(findings(kernels.ALL[name]()))


def changed(module: Module, change: Callable[[Kernel], Kernel], kernel: int = 0) -> Module:
    found = list(module.kernels)
    found[kernel] = change(found[kernel])
    return replace(module, kernels=tuple(found))


def with_let(kernel: Kernel, name: str, **fields: object) -> Kernel:
    body = tuple(
        replace(let, **fields) if let.name == name else let  # type: ignore[arg-type]
        for let in kernel.body
    )
    return replace(kernel, body=body)


def linear(change: Callable[[Kernel], Kernel]) -> Module:
    return changed(kernels.linear(), change)


def swap_first(kernel: Kernel) -> Kernel:
    return replace(kernel, body=(kernel.body[2], *kernel.body))


def fold_result(kernel: Kernel) -> Kernel:
    let = kernel.body[1]
    assert isinstance(let.expr, Fold)
    return with_let(kernel, let.name, expr=replace(let.expr, result="nobody"))


def fold_carry(kernel: Kernel) -> Kernel:
    let = kernel.body[1]
    assert isinstance(let.expr, Fold)
    carries = tuple(replace(carry, next="nobody") for carry in let.expr.carries)
    return with_let(kernel, let.name, expr=replace(let.expr, carries=carries))


BROKEN: dict[str, tuple[Module, str, str]] = {
    "a name twice": (
        linear(lambda k: replace(k, body=(*k.body, k.body[0]))),
        "RegionName",
        "v0 is defined twice",
    ),
    "use before definition": (
        linear(swap_first),
        "RegionName",
        "v2 uses v0, which is not defined",
    ),
    "axes out of order": (
        linear(lambda k: with_let(k, "v0", axes=("k", "m"))),
        "RegionAxis",
        "v0 lives over ['k', 'm'], not axes in order",
    ),
    "an axis lost": (
        linear(lambda k: with_let(k, "v5", axes=("m",))),
        "RegionAxis",
        "v5 does not live over n, its operand does",
    ),
    "an index by a foreign axis": (
        linear(lambda k: with_let(k, "v4", axes=())),
        "RegionAxis",
        "v4 is indexed by n, not its axis",
    ),
    "a dtype that is not the tensor's": (
        linear(lambda k: with_let(k, "v4", dtype=SI32)),
        "RegionDType",
        "v4 reads f32 bias as si32",
    ),
    "operands of two dtypes": (
        linear(lambda k: with_let(k, "v5", dtype=I1)),
        "RegionDType",
        "v5 : i1 cannot be this binary of [f32, f32]",
    ),
    "an unknown function": (
        linear(lambda k: with_let(k, "v5", expr=Unary("sinc", "v3"))),
        "RegionDType",
        "v5 : f32 cannot be this unary of [f32]",
    ),
    "an unknown reduction": (
        linear(lambda k: with_let(k, "v3", expr=Reduce("mean", ("k",), "v2"))),
        "RegionFunction",
        "there is no reduction named mean",
    ),
    "a sum of another kind than what is added": (
        linear(lambda k: with_let(k, "v3", dtype=SI32)),
        "RegionDType",
        "v3 : si32 cannot be this reduce of [f32]",
    ),
    "a reduction over an axis that stays": (
        linear(lambda k: with_let(k, "v3", expr=Reduce("sum", ("n",), "v2"))),
        "RegionAxis",
        "v3 cannot reduce over ['n']",
    ),
    "too few indices": (
        linear(lambda k: with_let(k, "v0", expr=Read("x", (axis("m"),)))),
        "RegionRank",
        "v0 reads x with 1 indices",
    ),
    "a read out of range": (
        linear(lambda k: with_let(k, "v4", expr=Read("bias", (axis("n") + 1,)))),
        "RegionRange",
        "v4 indexes axis 0 of bias, which has 20 elements, with n + 1 from 1 to 20",
    ),
    "guards without a fill": (
        linear(
            lambda k: with_let(k, "v4", expr=Read("bias", (axis("n"),), (Guard(axis("n"), 5),)))
        ),
        "RegionFill",
        "v4 has guards but no fill",
    ),
    "a store of nothing": (
        linear(lambda k: replace(k, outputs=(replace(k.outputs[0], value="v99"),))),
        "RegionName",
        "v99 is stored but not defined",
    ),
    "a store that does not cover": (
        linear(lambda k: replace(k, outputs=(replace(k.outputs[0], value="v4"),))),
        "RegionAxis",
        "v4 is indexed by m, not its axis",
    ),
    "a store of too few points": (
        linear(lambda k: replace(k, outputs=(Output("y", "v4", (constant(0), axis("n"))),))),
        "RegionCover",
        "20 points are stored to y, which has 240 elements",
    ),
    "a store that repeats": (
        linear(
            lambda k: replace(
                k,
                axes=(KernelAxis("m", 12), KernelAxis("n", 20), k.axes[2]),
                outputs=(replace(k.outputs[0], index=(constant(0), axis("n"))),),
            )
        ),
        "RegionCover",
        "the index [0, n] is not known to reach each element of y once",
    ),
    "an undeclared tensor": (
        linear(lambda k: replace(k, outputs=(replace(k.outputs[0], tensor="z"),))),
        "RegionName",
        "tensor z is not declared",
    ),
    "a tensor read before it is written": (
        replace(kernels.mlp(), kernels=kernels.mlp().kernels[::-1]),
        "RegionOrder",
        "h is read before it is written",
    ),
    "a tensor written twice": (
        replace(kernels.mlp(), kernels=(*kernels.mlp().kernels, kernels.mlp().kernels[0])),
        "RegionOrder",
        "h is written a second time",
    ),
    "an output nobody writes": (
        replace(kernels.mlp(), kernels=kernels.mlp().kernels[:1]),
        "RegionOutput",
        "no kernel writes this output of the module",
    ),
    "a role nobody knows": (
        replace(
            kernels.linear(),
            tensors=kernels.linear().tensors | {"x": Tensor("x", F32, (12, 16), "guest")},
        ),
        "RegionTensor",
        "tensor x has role guest",
    ),
    "a contraction without roles": (
        linear(lambda k: replace(k, roles=None)),
        "RegionRoles",
        "a matmul kernel needs roles",
    ),
    "roles that name an axis twice": (
        linear(lambda k: replace(k, roles=replace(k.roles, n=("m",)))),  # type: ignore[type-var]
        "RegionRoles",
        "the roles ['m', 'm', 'k'] are not axes, each in one role",
    ),
    "roles of another Let": (
        linear(lambda k: replace(k, roles=replace(k.roles, lhs="v2"))),  # type: ignore[type-var]
        "RegionRoles",
        "v2 and v1 are not the reads that it multiplies",
    ),
    "axes called alike": (
        linear(lambda k: replace(k, axes=(*k.axes, KernelAxis("m", 2)))),
        "RegionName",
        "axes and params ['m', 'n', 'k', 'm'] are not all different",
    ),
    "a param of a float tensor": (
        changed(
            kernels.cache_update(),
            lambda k: replace(k, params=(Param("p", "rows", 0, 0, 5),)),
        ),
        "RegionParam",
        "param p is not an element of an integer tensor",
    ),
    "a window that can leave the tensor": (
        changed(
            kernels.cache_update(),
            lambda k: replace(k, params=(Param("p", "position", 0, 0, 6),)),
        ),
        "RegionRange",
        "the store of v0 indexes axis 1 of new_cache, which has 8 elements, with s + $p from 0 "
        "to 8",
    ),
    "a base of another size": (
        replace(
            kernels.cache_update(),
            tensors=kernels.cache_update().tensors | {"cache": Tensor("cache", F32, (9,), "state")},
        ),
        "RegionBase",
        "cache and new_cache differ in elements",
    ),
    "a fold without its result": (
        changed(kernels.softmax_fold(), fold_result),
        "RegionFold",
        "v1 has no carry nobody of its dtype",
    ),
    "a carry without its next value": (
        changed(kernels.softmax_fold(), fold_carry),
        "RegionFold",
        "nobody cannot be the next m1",
    ),
    "an opaque kernel with a body": (
        linear(lambda k: replace(k, pattern=Pattern.OPAQUE)),
        "RegionOpaque",
        "an opaque kernel has an op and no body",
    ),
}


@each("name", BROKEN)
def test_broken_modules_are_refused(name: str) -> None:
    module, code, why = BROKEN[name]
    found = list(findings(module))
    assert (code, why) in [(finding.code, finding.why) for finding in found]
    with pytest.raises(SpecViolation):
        verify(module)


def reading(index: str, size: int, extent: int, guard: Guard | None = None) -> Module:
    """One read of a vector at an index that interval arithmetic does not settle."""
    i = axis("i")
    expr = {"mod": i - 3 * (i // 3), "far": i - 3 * (i // 4), "shift": i + param("p")}[index]
    axes = (KernelAxis("i", extent),)
    body = kernels.body_over(axes)
    value = body.read("x", F32, (expr,), [guard] if guard else [], 0.0 if guard else None)
    kernel = Kernel("read", Pattern.MAP, axes, tuple(body.lets), (Output("y", value, (i,)),))
    tensors = [Tensor("x", F32, (size,), "input"), Tensor("y", F32, (extent,), "output")]
    return kernels.module_of(kernel, tensors=tensors)


def test_small_kernels_are_checked_point_by_point() -> None:
    verify(reading("far", 6, 12))
    with pytest.raises(SpecViolation, match="RegionRange"):
        verify(reading("far", 5, 12))


def test_guards_count() -> None:
    far = axis("i") - 3 * (axis("i") // 4)
    verify(reading("far", 5, 12, Guard(far, 5)))
    verify(reading("far", 7, 4000, Guard(axis("i"), 12)))
    with pytest.raises(SpecViolation, match="RegionRange"):
        verify(reading("far", 7, 4000, Guard(axis("i"), 28)))


def test_large_kernels_are_left_to_a_prover() -> None:
    large = reading("far", 1 << 22, 1 << 23)
    with pytest.raises(SpecViolation, match="RegionRange"):
        verify(large)
    verify(reading("far", (1 << 21) + 3, 1 << 23), holds)
    with pytest.raises(SpecViolation, match="RegionRange"):
        verify(reading("far", 1 << 21, 1 << 23), holds)


def test_a_digit_index_reaches_every_element() -> None:
    """`y[4*a + b]` covers 12 elements; `y[3*a + b]` meets itself."""
    for factor, right in ((4, True), (3, False)):
        axes = (KernelAxis("a", 3), KernelAxis("b", 4))
        body = kernels.body_over(axes)
        value = body.let(F32, ("a", "b"), Read("x", (axis("b"),)))
        index = (factor * axis("a") + axis("b"),)
        kernel = Kernel("k", Pattern.MAP, axes, tuple(body.lets), (Output("y", value, index),))
        tensors = [Tensor("x", F32, (4,), "input"), Tensor("y", F32, (12,), "output")]
        module = kernels.module_of(kernel, tensors=tensors)
        assert (not list(findings(module))) is right


def test_lets_are_plain_records() -> None:
    assert Let("a", F32, (), Binary("add", "b", "c")) == Let("a", F32, (), Binary("add", "b", "c"))


@pytest.mark.parametrize("shape", [(512, 512, 3, 3), (1025, 257, 7, 3)])
def test_the_digits_of_one_long_axis_reach_each_element_once(shape: tuple[int, ...]) -> None:
    """There are too many points to try them all: the digits are joined from the first to the
    last."""
    index: tuple[Expr, ...] = ()
    rest = axis("m")
    for size in shape[:0:-1]:
        index, rest = (rest % size, *index), rest // size
    points = math.prod(shape)
    tensors = {
        n: Tensor(n, F32, s, r) for n, s, r in (("x", (points,), "input"), ("y", shape, "output"))
    }
    read = Let("v0", F32, ("m",), Read("x", (axis("m"),)))
    kernel = Kernel(
        "map0",
        Pattern.MAP,
        (KernelAxis("m", points),),
        (read,),
        (Output("y", "v0", (rest, *index)),),
    )
    whole = Module(tensors, (kernel,), ("x",), ("y",))
    assert not list(findings(whole))
    twice = replace(kernel, outputs=(Output("y", "v0", (rest, *index[:-1], constant(0))),))
    assert [f.code for f in findings(replace(whole, kernels=(twice,)))] == ["RegionCover"]


def test_axes_of_one_element_do_not_hide_that_others_reach_each_element_once() -> None:
    sizes = {"b": 1, "m": 2048, "n": 2048}
    shape, index = tuple(sizes.values()), tuple(map(axis, sizes))
    tensors = {n: Tensor(n, F32, shape, r) for n, r in (("x", "input"), ("y", "output"))}
    kernel = Kernel(
        "map0",
        Pattern.MAP,
        tuple(KernelAxis(name, size) for name, size in sizes.items()),
        (Let("v0", F32, tuple(sizes), Read("x", index)),),
        (Output("y", "v0", index),),
    )
    whole = Module(tensors, (kernel,), ("x",), ("y",))
    assert not list(findings(whole))
    twice = replace(kernel, outputs=(Output("y", "v0", (*index[:2], axis("m"))),))
    assert [f.code for f in findings(replace(whole, kernels=(twice,)))] == ["RegionCover"]


def twins(sizes: tuple[int, ...]) -> Module:
    """Kernels that differ in what their tensors are called, and in the sizes of these."""
    i, made, tensors = axis("i"), [], []
    for number, size in enumerate(sizes):
        axes = (KernelAxis("i", 12),)
        body = kernels.body_over(axes)
        value = body.read(f"x{number}", F32, (i,))
        outputs = (Output(f"y{number}", value, (i,)),)
        made.append(Kernel(f"read{number}", Pattern.MAP, axes, tuple(body.lets), outputs))
        tensors.append(Tensor(f"x{number}", F32, (size,), "input"))
        tensors.append(Tensor(f"y{number}", F32, (12,), "output"))
    return kernels.module_of(*made, tensors=tensors)


def test_kernels_that_differ_in_names_of_tensors_are_checked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[str] = []

    def noted(kernel: Kernel) -> object:
        checked.append(kernel.name)
        return claim_problems(kernel)

    monkeypatch.setattr("weft.region.verify.claim_problems", noted)
    verify(twins((12, 12, 12, 13)))
    assert checked == ["read0", "read3"]


def test_a_wrong_kernel_beside_right_ones_that_are_like_it() -> None:
    found = list(findings(twins((12, 12, 11, 12))))
    assert [finding.where for finding in found] == ["read2"]
    assert [finding.where for finding in findings(twins((11, 12, 11)))] == ["read0", "read2"]
