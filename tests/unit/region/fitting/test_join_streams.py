"""The gradients of an attention as kernels without anything that has both queries and keys between
them; and programs that stay as they are."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.example_inputs import inputs_for
from tests.support.gpu_attention import GRADIENTS, Case
from tests.support.gpu_interpreted import InterpretedGpu
from weft import Tensor, functional
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.foundation.dtypes import BF16
from weft.ptir import Builder, Program
from weft.ptir.gradient import gradient, vjp
from weft.region.fitting import join_streams
from weft.region.fitting.joining import merged
from weft.region.form import Stream
from weft.region.form_text import form_from_json, form_to_json
from weft.region.interp import run_kernel
from weft.region.ir import Chain, Kernel, Module, Pattern, form_of, stream_parts
from weft.target.known import target_named
from weft.testing.compare import compare


def kernels_of(program: Program, target: str = "sm90") -> Module:
    made = Compilation(program, target_named(target), make_signature(program))
    module: Module = run_pipeline(made, "region")["region"]
    return module


def patterns(module: Module) -> list[str]:
    return [kernel.pattern.value for kernel in module.kernels]


def largest_internal(module: Module) -> int:
    sizes = [math.prod(t.shape) for t in module.tensors.values() if t.role == "internal"]
    return max(sizes, default=0)


@pytest.mark.parametrize("name", GRADIENTS)
def test_nothing_of_queries_and_keys_is_stored(name: str) -> None:
    case = GRADIENTS[name]
    module = kernels_of(case.gradients())
    assert patterns(module).count("stream") == 2
    assert patterns(module).count("attention") == 1
    assert "matmul" not in patterns(module)
    assert largest_internal(module) <= case.heads * case.queries


@pytest.mark.parametrize("name", ["causal", "shared heads", "mask in bf16", "log-sum-exp"])
def test_kernels_mean_what_they_did(name: str) -> None:
    program = GRADIENTS[name].gradients()
    module, inputs = kernels_of(program), inputs_for(program, 3)
    arrays = dict(zip(module.inputs, inputs, strict=True))
    for kernel in module.kernels:
        arrays |= run_kernel(kernel, module.tensors, arrays)
    for result, wanted in zip(
        module.outputs, weft.run(program, inputs, backend="reference"), strict=True
    ):
        found = arrays[result].reshape(wanted.shape).astype(np.float64)
        np.testing.assert_allclose(found, wanted.astype(np.float64), rtol=0.02, atol=1e-4)


def test_results_that_sum_over_the_same_axes_share_a_kernel() -> None:
    module = kernels_of(GRADIENTS["shared heads"].gradients())
    queries, keys = (k for k in module.kernels if k.pattern is Pattern.STREAM)
    assert [len(stream_parts(k).results) for k in (queries, keys)] == [1, 2]
    assert stream_parts(queries).row == stream_parts(keys).column
    assert not stream_parts(queries).group
    assert [keys.sizes[name] for name in stream_parts(keys).group] == [2]


def test_the_forward_kernel_stores_the_log_sum_exp() -> None:
    module = kernels_of(GRADIENTS["causal"].gradients())
    (forward,) = (k for k in module.kernels if k.pattern is Pattern.ATTENTION)
    assert sorted(math.prod(module.tensors[o.tensor].shape) for o in forward.outputs) == [
        136,
        136 * 64,
    ]
    assert patterns(module) == ["attention", "row", "stream", "stream"]


def test_forms_of_streams_read_back() -> None:
    module = kernels_of(GRADIENTS["shared heads"].gradients())
    for kernel in module.kernels:
        form = form_of(kernel)
        assert form_from_json(json.loads(json.dumps(form_to_json(form))), "form") == form
    assert any(isinstance(form_of(kernel), Stream) for kernel in module.kernels)


def test_scores_that_somebody_wants_are_stored() -> None:
    """The gradient of a mask is as large as the scores."""
    case = Case(heads=1, mask="bf16", queries=64, keys=64)
    module = kernels_of(vjp(case.program(), (0, 1, 2, 3)))
    assert "stream" not in patterns(module)


@pytest.mark.parametrize(
    "case",
    [
        Case(heads=1, queries=64, keys=64, dtype="f32"),
        Case(heads=1, queries=64, keys=64, depth=192, width=192),
    ],
    ids=["f32", "wide rows"],
)
def test_what_matrix_units_cannot_hold_stays_as_it_is(case: Case) -> None:
    assert "stream" not in patterns(kernels_of(case.gradients()))


def test_gradients_by_single_warps_are_streams_too() -> None:
    assert patterns(kernels_of(GRADIENTS["plain"].gradients(), "sm80")).count("stream") == 2


def test_a_cpu_stores_the_weights() -> None:
    assert "stream" not in patterns(kernels_of(GRADIENTS["plain"].gradients(), "cpu"))


def test_powers_of_other_things_are_no_streams() -> None:
    """A loss over classes has the same ops, but its rows are too long, and a layer before it."""
    b = Builder()
    x, w, rows = b.param("bf16", [64, 512]), b.param("bf16", [512, 96]), b.param("f32", [64])
    scores = b.dot_general(
        x, w, contract=([1], [0]), batch=([], []), accum_dtype="f32", out_dtype="f32"
    )
    shift = b.reshape(rows, [64, 1])
    powers = b.cast(b.exp(scores - b.broadcast_to(shift, [64, 96])), "bf16")
    back = b.dot_general(
        powers, w, contract=([1], [1]), batch=([], []), accum_dtype="f32", out_dtype="f32"
    )
    assert "stream" not in patterns(kernels_of(b.build(back)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("results", [3, 5], ids=["one dtype", "two dtypes"])
def test_a_result_in_two_dtypes_comes_from_one_stream(*, causal: bool, results: int) -> None:
    """The flash op's gradient of queries is a result in two dtypes: a map makes the other."""
    b = Builder()
    rows = [b.param("bf16", [1, 64, 2, 64]) for _ in range(5)]
    lse, state = b.param("f32", [1, 2, 64]), b.param("si64", [2])
    found = b.emit(
        "byteir.flash_attn_bwd", *rows, lse, state, dropout_p=0.0, softmax_scale=0.125,
        causal=causal,
    )  # fmt: skip
    kinds = patterns(kernels_of(b.build(*(found[n] for n in range(results)))))
    assert (kinds.count("stream"), kinds.count("map")) == (2, results // 5)


def test_cotangents_that_are_computed_on_the_way_are_no_reason_to_fail() -> None:
    """The cotangent of a sum is a number for all: nothing that the copy engine could read."""
    b = Builder()
    q, k, v = (b.param("bf16", [1, 2, 64, 64]) for _ in range(3))
    out = b.cast(b.emit("weft.attention", q, k, v)[0], "f32")
    program = gradient(b.build(b.reduce_sum(out * out, axes=[0, 1, 2, 3])), (0, 1, 2))
    module, inputs = kernels_of(program), inputs_for(program, 3)
    arrays = dict(zip(module.inputs, inputs, strict=True))
    for kernel in module.kernels:
        arrays |= run_kernel(kernel, module.tensors, arrays)
    wanted = weft.run(program, inputs, backend="reference")[3].astype(np.float64)
    found = arrays[module.outputs[3]].reshape(wanted.shape).astype(np.float64)
    np.testing.assert_allclose(found, wanted, rtol=0.02, atol=1e-3)


def test_heads_that_share_keys_between_layers_stream_too() -> None:
    """The slope of a result that a product makes lies in rows of all heads; the sum over the query
    heads of a key asks for it in another order, which no stream needs."""
    heads, shared, length, depth = 4, 2, 128, 64

    def of(x: Tensor, weight: Tensor, count: int) -> Tensor:
        return (x @ weight).reshape((1, length, count, depth)).permute_dims((0, 2, 1, 3))

    def loss(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wo: Tensor) -> Tensor:
        q, k, v = of(x, wq, heads), of(x, wk, shared), of(x, wv, shared)
        mixed = functional.attention(q, k, v, causal=True).permute_dims((0, 2, 1, 3))
        return (mixed.reshape((1, length, heads * depth)) @ wo).astype("f32").sum()

    wide, narrow = heads * depth, shared * depth
    shapes = [(1, length, 32), (32, wide), (32, narrow), (32, narrow), (wide, 32)]
    rng = np.random.default_rng(0)
    arrays = [(rng.standard_normal(shape) / 4).astype(BF16.numpy) for shape in shapes]
    slopes = weft.jit(weft.grad(loss, argnums=(0, 1, 2, 3, 4)))
    program = slopes.program(*map(weft.asarray, arrays))
    module = kernels_of(program)
    assert patterns(module).count("stream") == 2
    assert patterns(module).count("attention") == 1
    assert largest_internal(module) < heads * length * length
    report = compare(program, arrays, InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def test_where_nothing_is_drawn_nobody_asks_who_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel was compared with every other, for each chain: half of the time of fusion."""
    asked: list[str] = []

    def noted(kernel: Kernel) -> list[str]:
        asked.append(kernel.name)
        return list(kernel.inputs)

    monkeypatch.setattr(join_streams, "_tensors_read", noted)
    streams = join_streams._Streams(
        kernels_of(GRADIENTS["causal"].gradients()), Chain("stream", ())
    )
    asked.clear()
    assert streams.drawn([]) == []
    assert asked == []


def test_equal_layers_are_joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of further layers are the first layer's on other tensors: the same as by themselves."""

    def layers(count: int) -> Program:
        b = Builder()
        x, *others = (b.param("bf16", [1, 2, 128, 64]) for _ in range(1 + 2 * count))
        for k, v in zip(others[::2], others[1::2], strict=True):
            x = b.emit("weft.attention", x, k, v, causal=True)[0]
        return vjp(b.build(x), range(1 + 2 * count))

    asked: list[int] = []

    def counted(*parts: Any) -> Kernel | None:
        asked.append(1)
        return merged(*parts)

    monkeypatch.setattr(join_streams, "merged", counted)
    counts, modules = [], []
    for count in (3, 5):
        asked.clear()
        modules.append(kernels_of(layers(count)))
        counts.append(len(asked))
    assert [patterns(module).count("stream") for module in modules] == [6, 10]
    assert counts[0] == counts[1]
    monkeypatch.setattr(join_streams._Streams, "key", lambda *parts: None)
    asked.clear()
    assert kernels_of(layers(5)) == modules[1]
    assert len(asked) > counts[1]
