"""Functions of JAX in Weft, and programs of Weft in JAX: values and gradients are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from weft.foundation.errors import SpecViolation, Unimplemented, UserError
from weft.interop import stablehlo
from weft.ptir import dumps

jax = pytest.importorskip("jax", reason="the extra weft[jax] is not installed")

from weft.jax import from_function, to_function  # noqa: E402


def drawn(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X = drawn(1, 3, 4)
PARAMS = {"w": drawn(2, 4, 8), "b": drawn(3, 8)}


def model(params: Any, x: Any) -> Any:
    return {"y": jax.numpy.tanh(x @ params["w"] + params["b"]), "rows": x.shape[0], "s": x.sum()}


def tensors(params: Any) -> Any:
    return {name: weft.asarray(value) for name, value in params.items()}


def test_a_function_of_jax_gives_its_values_and_nesting() -> None:
    found = from_function(model, PARAMS, X)(tensors(PARAMS), weft.asarray(X))
    wanted = model(PARAMS, X)
    assert set(found) == {"y", "rows", "s"}
    np.testing.assert_allclose(np.asarray(found["y"]), wanted["y"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.asarray(found["s"]), wanted["s"], rtol=1e-5)
    assert int(found["rows"]) == 3


def test_it_is_compiled_and_differentiated_as_any_other() -> None:
    function = from_function(model, PARAMS, X)
    compiled = weft.jit(weft.grad(lambda p, x: (function(p, x)["y"] ** 2).sum()))
    found = compiled(tensors(PARAMS), weft.asarray(X))
    wanted = jax.grad(lambda p, x: (model(p, x)["y"] ** 2).sum())(PARAMS, X)
    for name in PARAMS:
        np.testing.assert_allclose(np.asarray(found[name]), wanted[name], rtol=1e-4, atol=1e-5)


def test_loops_of_jax_are_loops_here() -> None:
    def decay(x: Any) -> Any:
        return jax.lax.scan(lambda s, row: (0.5 * s + row, s), jax.numpy.zeros(4), x)

    last, all_of_them = from_function(decay, X)(weft.asarray(X))
    wanted = decay(X)
    np.testing.assert_allclose(np.asarray(last), wanted[0], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(all_of_them), wanted[1], rtol=1e-6)


def test_other_arguments_than_the_examples_get_a_sentence() -> None:
    function = from_function(model, PARAMS, X)
    with pytest.raises(UserError, match=r"the argument at \[1\] is f32\[2, 4\]; the function was"):
        function(tensors(PARAMS), weft.asarray(X[:2]))
    with pytest.raises(UserError, match="nested as"):
        function(weft.asarray(X))


def test_an_argument_that_the_function_ignores_is_taken() -> None:
    function = from_function(lambda x, unused: x + 1, X, np.int32(3))
    np.testing.assert_array_equal(np.asarray(function(weft.asarray(X), np.int32(3))), X + 1)


def test_a_program_of_weft_runs_inside_jax_with_its_gradients() -> None:
    def pair(a: weft.Tensor, b: weft.Tensor) -> tuple[weft.Tensor, weft.Tensor]:
        return weft.tanh(a @ b), (a * a).sum()

    program = weft.jit(pair).program(weft.asarray(X), weft.asarray(PARAMS["w"]))
    function = to_function(program)
    np.testing.assert_allclose(
        jax.jit(function)(X, PARAMS["w"])[0], np.tanh(X @ PARAMS["w"]), rtol=1e-5, atol=1e-6
    )

    def loss(a: Any, b: Any) -> Any:
        product, squares = function(a, b)
        return (3.0 * product).sum() + squares

    def plain(a: Any, b: Any) -> Any:
        return (3.0 * jax.numpy.tanh(a @ b)).sum() + (a * a).sum()

    found = jax.jit(jax.grad(loss, argnums=(0, 1)))(X, PARAMS["w"])
    wanted = jax.grad(plain, argnums=(0, 1))(X, PARAMS["w"])
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_integers_have_no_gradient_in_jax_either() -> None:
    def chosen(x: weft.Tensor, i: weft.Tensor) -> Any:
        return weft.take(x, i, axis=0).sum()

    places = np.array([2, 0], np.int32)
    function = to_function(weft.jit(chosen).program(weft.asarray(X), weft.asarray(places)))
    found = jax.grad(function)(X, places)
    np.testing.assert_array_equal(found, np.array([[1.0] * 4, [0.0] * 4, [1.0] * 4], np.float32))


def test_what_is_no_program_gets_a_sentence() -> None:
    with pytest.raises(UserError, match=r"at test_jax\.py:\d+: to_function takes a program"):
        to_function(lambda x: x)  # type: ignore[arg-type]


def attend(**options: Any) -> Any:
    def attention(q: Any, k: Any, v: Any, *given: Any) -> Any:
        named = dict(zip(["bias", "mask"], given, strict=False))
        return jax.nn.dot_product_attention(q, k, v, **named, **options)

    return attention


def einsums(q: Any, k: Any, v: Any) -> Any:
    scores = jax.numpy.einsum("bthd,bshd->bhts", q, k) / 3.0
    return jax.numpy.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)


def one_query(q: Any, k: Any, v: Any) -> Any:
    return jax.numpy.einsum("hs,shd->hd", jax.nn.softmax(jax.numpy.einsum("hd,shd->hs", q, k)), v)


Q, KV = drawn(4, 2, 6, 4, 8), drawn(5, 2, 6, 2, 8)
KEYS, BIAS = drawn(6, 2, 9, 4, 8), drawn(7, 1, 4, 6, 6)
SEEN = np.random.default_rng(8).random((2, 1, 6, 6)) > 0.7  # some rows see nothing


@pytest.mark.parametrize(
    ("function", "args", "causal"),
    one_in(
        6,
        [
            (attend(), (Q, Q, Q), False),
            (attend(scale=0.3), (Q, KEYS, KEYS), False),
            (attend(is_causal=True), (Q, Q, Q), True),
            (attend(is_causal=True), (Q, KEYS, KEYS), False),  # rows begin at the first column
            (attend(is_causal=True), (Q, KV, KV), True),
            (attend(), (Q, KV, KV, BIAS), False),
            (attend(is_causal=True), (Q, Q, Q, BIAS), True),
            (attend(), (Q, Q, Q, np.zeros_like(BIAS), SEEN), False),
            (attend(), (Q, KV, KV, BIAS, SEEN), False),
            (attend(is_causal=True), (Q, KV, KV, BIAS, SEEN), False),
            (einsums, (Q, KEYS, KEYS), False),
            (one_query, (Q[0, 0], Q[1], Q[1]), False),
        ],
        unpack=True,
    ),
)
def test_attention_of_jax_is_one_op(function: Any, args: Any, causal: bool) -> None:
    program = weft.jit(from_function(function, *args)).program(*map(weft.asarray, args))
    (op,) = [i.op for i in program.main.body if i.op.mnemonic == "weft.attention"]
    assert getattr(op, "causal") is causal  # noqa: B009
    assert not [i for i in program.main.body if i.op.mnemonic in ("dot_general", "exp")]
    (found,) = weft.run(program, list(args), backend="reference")
    np.testing.assert_allclose(found, function(*args), rtol=1e-5, atol=1e-6)


def test_attention_of_jax_has_its_gradients() -> None:
    function, args = attend(is_causal=True), (Q, KV, KV, BIAS)
    ours = from_function(function, *args)
    found = weft.grad(lambda *a: (ours(*a) ** 2).sum(), argnums=(0, 1, 2, 3))(
        *map(weft.asarray, args)
    )
    wanted = jax.grad(lambda *a: (function(*a) ** 2).sum(), argnums=(0, 1, 2, 3))(*args)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", one_in(2, [0, 1]))
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_of_jax_is_one_op(name: str, axis: int) -> None:
    def function(x: Any) -> Any:
        return getattr(jax.nn, name)(x, axis=axis)

    program = weft.jit(from_function(function, X)).program(weft.asarray(X))
    assert [i.op.mnemonic for i in program.main.body] == [f"byteir.{name}"]
    (found,) = weft.run(program, [X], backend="reference")
    np.testing.assert_allclose(found, function(X), rtol=1e-5, atol=1e-6)


def test_narrow_attention_of_jax_is_one_op() -> None:
    args = [x.astype(jax.numpy.bfloat16) for x in (Q, KV, KV)]
    function = attend(is_causal=True)
    program = weft.jit(from_function(function, *args)).program(*map(weft.asarray, args))
    assert [i.op.mnemonic for i in program.main.body].count("weft.attention") == 1
    (found,) = weft.run(program, args, backend="reference")
    wanted = np.asarray(function(*args), np.float32)
    np.testing.assert_allclose(np.asarray(found, np.float32), wanted, rtol=2e-2, atol=2e-2)


def test_a_portable_artifact_is_the_program_of_its_text() -> None:
    exported = jax.export.export(jax.jit(lambda x: jax.nn.softmax(x)))(X)
    data = exported.mlir_module_serialized
    assert stablehlo.is_stablehlo(data)
    program = stablehlo.loads(data)
    assert dumps(program) == dumps(stablehlo.loads(exported.mlir_module()))
    for broken in (data[:60], b"ML\xefR", b"ML\xefR" + bytes(99)):
        with pytest.raises(SpecViolation, match="not a portable artifact of StableHLO that can be"):
            stablehlo.loads(broken)


def spd(seed: int, *shape: int) -> Any:
    x = drawn(seed, *shape)
    return x @ np.swapaxes(x, -1, -2) + 3 * np.eye(shape[-1], dtype=np.float32)


SQUARE, RIGHT = drawn(11, 2, 5, 5), drawn(12, 2, 5, 3)


@pytest.mark.parametrize(
    ("name", "args"),
    one_in(
        3,
        [
            ("cholesky", (spd(13, 2, 4, 4),)),
            ("solve", (SQUARE, RIGHT)),
            ("inv", (SQUARE,)),
            ("det", (SQUARE,)),
            ("slogdet", (SQUARE[0],)),
            ("eigvalsh", (spd(14, 2, 4, 4),)),
            ("svdvals", (RIGHT,)),
            ("lstsq", (RIGHT[0], RIGHT[0][:, :2])),
            ("cholesky", (spd(15, 3, 3).astype(np.complex64),)),
        ],
        unpack=True,
    ),
)
def test_linear_algebra_of_jax_is_ours(name: str, args: Any) -> None:
    function = getattr(jax.numpy.linalg, name)
    found = from_function(function, *args)(*map(weft.asarray, args))
    wanted = function(*args)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=2e-3, atol=2e-3)


def test_lu_of_jax_has_its_exchanges() -> None:
    for x in (drawn(16, 2, 5, 3), drawn(17, 3, 5), SQUARE):
        found = from_function(jax.lax.linalg.lu, x)(weft.asarray(x))
        for one, other in zip(found, jax.lax.linalg.lu(x), strict=True):
            np.testing.assert_allclose(np.asarray(one), other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("left_side", [True, False])
@pytest.mark.parametrize("lower", one_in(2, [True, False]))
@pytest.mark.parametrize("transpose_a", [True, False])
def test_triangular_systems_of_jax(left_side: bool, lower: bool, transpose_a: bool) -> None:
    def function(a: Any, b: Any) -> Any:
        return jax.lax.linalg.triangular_solve(
            a, b, left_side=left_side, lower=lower, transpose_a=transpose_a
        )

    a, b = spd(18, 2, 4, 4), drawn(19, *((2, 4, 3) if left_side else (2, 3, 4)))
    found = from_function(function, a, b)(weft.asarray(a), weft.asarray(b))
    np.testing.assert_allclose(np.asarray(found), function(a, b), rtol=1e-4, atol=1e-5)


def test_eigenvectors_and_singular_vectors_of_jax_make_the_matrix_again() -> None:
    x = spd(20, 2, 4, 4)
    values, vectors = (np.asarray(t) for t in from_function(jax.numpy.linalg.eigh, x)(x))
    np.testing.assert_allclose(vectors * values[:, None] @ vectors.mT, x, rtol=1e-4, atol=1e-4)
    u, s, vh = (np.asarray(t) for t in from_function(jax.numpy.linalg.svd, RIGHT)(RIGHT))
    assert u.shape == (2, 5, 5)
    np.testing.assert_allclose(u[..., :3] * s[:, None] @ vh, RIGHT, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("shape", "mode"), one_in(2, [
    ((2, 5, 3), "reduced"), ((3, 5), "reduced"), ((5, 3), "complete"), ((4, 4), "r"),
], unpack=True))  # fmt: skip
def test_qr_of_jax_has_its_reflections(shape: tuple[int, ...], mode: str) -> None:
    def function(x: Any) -> Any:
        return jax.numpy.linalg.qr(x, mode=mode)

    # A column that is 0 below its row is left alone; the squares of large numbers are none.
    for x in (drawn(21, *shape), np.triu(drawn(22, *shape)), drawn(23, *shape) * 1e30):
        found = jax.tree.leaves(from_function(function, x)(weft.asarray(x)))
        for one, other in zip(found, jax.tree.leaves(function(x)), strict=True):
            scale = max(1.0, float(np.abs(other).max()))
            np.testing.assert_allclose(np.asarray(one) / scale, other / scale, rtol=0, atol=1e-5)


def test_a_routine_without_an_op_is_refused_by_name() -> None:
    with pytest.raises(
        Unimplemented, match="'lapack_sgees_ffi' is a routine for linear algebra that is not"
    ):
        from_function(jax.scipy.linalg.schur, SQUARE[0])
