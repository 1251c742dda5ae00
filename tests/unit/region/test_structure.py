"""Structure keys: equal for renamed kernels, different for everything else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import kernels
from weft.foundation.dtypes import F32
from weft.foundation.index_expr import axis
from weft.foundation.memo import forget
from weft.region import structure
from weft.region.interp import run_kernel
from weft.region.ir import Binary, Kernel, KernelAxis, Module, Output, Pattern, Tensor, Unary
from weft.region.structure import buffers, canonical, structure_key
from weft.region.writing.axes import coalesce, rename_axes


def key(module: Module, number: int = 0) -> str:
    return structure_key(module.kernels[number], module.tensors)


def test_names_do_not_matter() -> None:
    plain = kernels.linear()
    other = kernels.linear(name="else", tensors=("a", "b", "c", "d"))
    assert key(plain) == key(other)
    names = {"m": "r", "n": "s", "k": "a"}
    renamed = replace(plain, kernels=(rename_axes(plain.kernels[0], names),))
    assert key(renamed) == key(plain)


def test_a_key_is_made_once_for_kernels_on_other_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Kernel] = []

    def note(kernel: Kernel) -> tuple[Kernel, dict[str, str]]:
        made.append(kernel)
        return canonical(kernel)

    forget()
    monkeypatch.setattr(structure, "canonical", note)
    keys = {key(kernels.linear(tensors=(f"x{n}", f"w{n}", f"b{n}", f"y{n}"))) for n in range(4)}
    assert len(made) == len(keys) == 1


def test_every_hand_written_kernel_has_its_own_key() -> None:
    found = [
        structure_key(kernel, module.tensors)
        for module in (make() for make in kernels.ALL.values())
        for kernel in module.kernels
    ]
    assert len(set(found)) == len(found)


def activation_changed(kernel: Kernel) -> Kernel:
    body = tuple(
        replace(let, expr=replace(let.expr, fn="tanh"))
        if isinstance(let.expr, Unary) and let.expr.fn == "gelu"
        else let
        for let in kernel.body
    )
    return replace(kernel, body=body)


def function_changed(kernel: Kernel) -> Kernel:
    body = tuple(
        replace(let, expr=Binary("sub", let.expr.lhs, let.expr.rhs))
        if isinstance(let.expr, Binary) and let.expr.fn == "add"
        else let
        for let in kernel.body
    )
    return replace(kernel, body=body)


@pytest.mark.parametrize("change", [activation_changed, function_changed])
def test_contents_matter(change: object) -> None:
    module = kernels.linear()
    assert callable(change)
    assert key(replace(module, kernels=(change(module.kernels[0]),))) != key(module)


def test_shapes_matter_and_roles_of_tensors_do_not() -> None:
    module = kernels.linear()
    assert key(kernels.linear(m=13)) != key(module)
    given = module.tensors | {"x": replace(module.tensors["x"], role="internal")}
    assert key(replace(module, tensors=given)) == key(module)


def test_which_tensors_are_one_matters() -> None:
    once = kernels.linear(16, 16, 16, tensors=("x", "x", "b", "y"))
    assert key(once) != key(kernels.linear(16, 16, 16))


def test_buffers_are_inputs_outputs_and_bases_in_order() -> None:
    assert buffers(kernels.cache_update().kernels[0]) == ("rows", "position", "new_cache", "cache")


def split_copy() -> Module:
    """A copy of 24 elements whose index was split: `y[6*a + 2*b + c] = x[6*a + 2*b + c] + a`."""
    axes = (KernelAxis("a", 4), KernelAxis("b", 3), KernelAxis("c", 2))
    body = kernels.body_over(axes)
    index = (6 * axis("a") + 2 * axis("b") + axis("c"),)
    x = body.read("x", F32, index)
    value = body.binary("add", x, body.index(axis("a"), F32))
    kernel = Kernel("split", Pattern.MAP, axes, tuple(body.lets), (Output("y", value, index),))
    tensors = [Tensor("x", F32, (24,), "input"), Tensor("y", F32, (24,), "output")]
    return kernels.module_of(kernel, tensors=tensors)


def test_axes_that_are_never_apart_become_one() -> None:
    module = split_copy()
    joined = coalesce(module.kernels[0])
    assert [(found.name, found.size) for found in joined.axes] == [("a", 4), ("c", 6)]
    given = kernels.arrays_for(module)
    before, after = (
        run_kernel(kernel, module.tensors, given)["y"] for kernel in (module.kernels[0], joined)
    )
    assert before.tobytes() == after.tobytes()


def test_what_cannot_be_joined_stays() -> None:
    for name in ("linear", "softmax", "cache_update", "shifted_window"):
        kernel = kernels.ALL[name]().kernels[0]
        assert coalesce(kernel) == kernel
