"""Mistakes that users make: each is told with the op, the shapes or values, the user's line, a
stable code, and what to do."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import weft
from tests.support.cases import each
from weft import functional as F
from weft.foundation.errors import SpecViolation, UserError, WeftError

I32 = weft.int32
I64 = weft.int64


def t(*shape: int, dtype: Any = weft.float32) -> Any:
    """A tensor of ones."""
    return weft.ones(shape, dtype=dtype)


def far(*shape: int) -> Any:
    """A tensor on another backend."""
    return t(*shape).to("cpu")


class Mistake(NamedTuple):
    op: str
    code: str
    """Empty for a call that is wrong as a call: a `UserError`, whose code is not looked at."""
    call: Callable[[], Any]
    says: str
    """Shapes, dtypes or values, as the message has them."""
    advice: str


MISTAKES = [
    # -- shapes --
    Mistake("matmul", "ShapeMismatch", lambda: t(3, 4) @ t(5, 6),
            "lhs (3, 4) and rhs (5, 6): inner sizes 4 and 5 differ", "transpose one"),
    Mistake("matmul", "ShapeMismatch", lambda: F.matmul(t(3, 4), t(3, 4)),
            "lhs (3, 4) and rhs (3, 4): inner sizes 4 and 3 differ", ".mT"),
    Mistake("matmul", "BroadcastDimsInvalid", lambda: F.matmul(t(2, 3, 4), t(3, 4, 5)),
            "lhs (2, 3, 4) and rhs (3, 4, 5)", "reshape"),
    Mistake("matmul", "RankMismatch", lambda: F.matmul(t(), t(2)), "lhs () has rank 0", "None"),
    Mistake("add", "BroadcastDimsInvalid", lambda: t(3, 4) + t(3, 5),
            "lhs (3, 4) and rhs (3, 5)", "reshape one of them"),
    Mistake("less", "BroadcastDimsInvalid", lambda: t(3) < t(4), "lhs (3,) and rhs (4,)", "None"),
    Mistake("iadd", "ShapeMismatch", lambda: t(3).__iadd__(t(2, 3)),
            "the result is f32[2, 3], but the tensor assigned to is f32[3]", "new name"),
    Mistake("concat", "ShapeMismatch", lambda: weft.concat([t(2, 3), t(2, 4)], axis=0),
            "tensor 0 (2, 3) and tensor 1 (2, 4)", "only the joined axis differs"),
    Mistake("stack", "ShapeMismatch", lambda: weft.stack([t(2, 3), t(2, 4)]),
            "tensor 0 (2, 3) and tensor 1 (2, 4)", "one shape"),
    Mistake("broadcast_to", "BroadcastDimsInvalid", lambda: weft.broadcast_to(t(2, 3), (2, 4)),
            "x (2, 3) does not broadcast to (2, 4)", "aligned at the last"),
    Mistake("reshape", "ShapeMismatch", lambda: weft.reshape(t(2, 3), (4, 2)),
            "from [2, 3] to [4, 2]", ""),
    Mistake("squeeze", "ShapeMismatch", lambda: weft.squeeze(t(2, 3), 0),
            "axis 0 of x (2, 3) has size 2", "size 1"),
    Mistake("T", "RankMismatch", lambda: t(2, 3, 4).T, "f32[2, 3, 4] has rank 3", "use mT"),
    Mistake("inv", "ShapeMismatch", lambda: weft.linalg.inv(t(2, 3)), "x (2, 3)", ""),
    Mistake("linear", "ShapeMismatch", lambda: F.linear(t(2, 3), t(4, 5)),
            "x (2, 3) and weight (4, 5)", "(out, in)"),
    Mistake("linear", "ShapeMismatch", lambda: F.linear(t(2, 3), t(4, 3), t(3)),
            "bias has shape (3,), but (4,) is wanted", "reshape"),
    Mistake("layer_norm", "ShapeMismatch", lambda: F.layer_norm(t(2, 3), 4),
            "x (2, 3) does not end with the normalised shape (4,)", "last axes"),
    Mistake("layer_norm", "ShapeMismatch", lambda: F.layer_norm(t(2, 3), 3, t(2)),
            "weight has shape (2,), but (3,) is wanted", "reshape"),
    Mistake("attention", "ShapeMismatch",
            lambda: F.attention(t(1, 2, 3, 4), t(1, 2, 3, 5), t(1, 2, 3, 4)),
            "q (1, 2, 3, 4), k (1, 2, 3, 5) and v (1, 2, 3, 4)", "q is (B, H, Sq, D)"),
    Mistake("attention", "ShapeMismatch",
            lambda: F.attention(t(1, 3, 3, 4), t(1, 2, 3, 4), t(1, 2, 3, 4)),
            "q (1, 3, 3, 4) has 3 heads and k (1, 2, 3, 4) has 2", "multiple"),
    Mistake("attention", "RankMismatch", lambda: F.attention(t(4), t(2, 3, 4), t(2, 3, 4)),
            "q (4,) has rank 1", "insert axes"),
    Mistake("attention", "ShapeMismatch",
            lambda: F.attention(*[t(1, 2, 3, 4)] * 3, segments=t(4, dtype=weft.int32)),
            "segments (4,) do not number the queries, (1, 3)", "for each position"),
    Mistake("attention", "ShapeMismatch",
            lambda: F.attention(
                t(1, 2, 3, 4), *[t(1, 2, 5, 4)] * 2, segments=t(3, dtype=weft.int32)
            ),
            "segments (3,) do not number the keys, (1, 5)", "for each position"),
    Mistake("attention", "InvalidAttributeValue",
            lambda: F.attention(*[t(1, 2, 3, 4)] * 3, dropout=1.0, seed=1),
            "dropout is 1.0", "less than 1"),
    Mistake("attention", "InvalidAttributeValue",
            lambda: F.attention(*[t(1, 2, 3, 4)] * 3, dropout=0.5),
            "seed is None", "for every step"),
    Mistake("attention", "BroadcastDimsInvalid",
            lambda: F.attention(t(1, 1, 2, 4), t(1, 1, 2, 4), t(1, 1, 2, 4), t(3, 3)),
            "the mask (3, 3) does not broadcast to the scores (1, 1, 2, 2)", "boolean mask"),
    Mistake("update_cache", "ShapeMismatch",
            lambda: F.update_cache(t(1, 2, 4, 3), t(1, 2, 5, 3), 0),
            "new (1, 2, 5, 3) does not fit into the cache (1, 2, 4, 3)", "no longer than"),
    Mistake("conv2d", "ShapeMismatch", lambda: F.conv2d(t(1, 3, 8, 8), t(4, 2, 3, 3)),
            "x (1, 3, 8, 8) (NCHW) has 3 channels, and weight (4, 2, 3, 3) takes 2", "in / groups"),
    Mistake("conv2d", "RankMismatch", lambda: F.conv2d(t(3, 8), t(4, 3, 3, 3)),
            "x (3, 8) has rank 2, but rank 4 (NCHW) is wanted", "insert axes"),
    Mistake("conv2d", "ShapeMismatch", lambda: F.conv2d(t(1, 3, 2, 2), t(4, 3, 3, 3)),
            "spans 3, but x (1, 3, 2, 2) with its padding has 2", "pad more"),
    Mistake("conv_transpose2d", "ShapeMismatch",
            lambda: F.conv_transpose2d(t(1, 3, 8, 8), t(4, 3, 3, 3)),
            "x (1, 3, 8, 8) (NCHW) has 3 channels, and weight (4, 3, 3, 3) takes 4",
            "(in, out / groups, window...)"),
    Mistake("max_pool2d", "ShapeMismatch", lambda: F.max_pool2d(t(1, 3, 2, 2), 3),
            "the window spans 3, but x (1, 3, 2, 2)", "smaller window"),
    Mistake("rotary_embedding", "ShapeMismatch",
            lambda: F.rotary_embedding(t(2, 5), t(2, dtype=I64)), "x (2, 5) is odd", "pairs"),
    Mistake("rotary_embedding", "ShapeMismatch",
            lambda: F.rotary_embedding(t(2, 4), t(3, dtype=I64)),
            "positions (3,) do not belong to x (2, 4)", "one position for every"),
    Mistake("cross_entropy", "ShapeMismatch",
            lambda: F.cross_entropy(t(4, 10), t(5, dtype=I64)),
            "x (4, 10) has a place for every element of (4,), but the target is (5,)",
            "class axis"),
    Mistake("mse_loss", "ShapeMismatch", lambda: F.mse_loss(t(4), t(4, 1)),
            "x (4,) and target (4, 1) differ in shape", "reshape"),
    Mistake("gather", "ShapeMismatch", lambda: F.gather(t(2, 3), t(4, 1, dtype=I64), 1),
            "indices (4, 1) have more places than x (2, 3) besides axis 1", "broadcast"),
    Mistake("einsum", "ShapeMismatch", lambda: F.einsum("ij,jk->ik", t(2, 3), t(4, 5)),
            "the label 'j' has the sizes 3 and 4 in (2, 3), (4, 5)", "equally long"),
    Mistake("pixel_shuffle", "ShapeMismatch", lambda: F.pixel_shuffle(t(1, 3, 2, 2), 2),
            "x (1, 3, 2, 2) has 3 channels, not a multiple of 4", "squares"),
    Mistake("glu", "ShapeMismatch", lambda: F.glu(t(2, 3)), "axis 1 of x (2, 3)", "two halves"),
    # -- dtypes --
    Mistake("multiply", "DTypeMismatch", lambda: t(2, dtype=I64) * t(2, dtype=weft.uint64),
            "si64 and ui64", "astype"),
    Mistake("bitwise_and", "DTypeNotSupported", lambda: t(3) & t(3), "dtype f32", "defined for i1"),
    Mistake("matmul", "DTypeNotSupported",
            lambda: F.matmul(t(2, 2, dtype=weft.bool), t(2, 2, dtype=weft.bool)),
            "lhs of shape (2, 2) is i1", "astype"),
    Mistake("iadd", "DTypeMismatch", lambda: t(3, dtype=I32).__iadd__(t(3)),
            "the result is f32[3], but the tensor assigned to is si32[3]", ".astype(si32)"),
    Mistake("softmax", "DTypeNotSupported", lambda: F.softmax(t(2, 3, dtype=I32)),
            "x of shape (2, 3) is si32", "f32"),
    Mistake("linear", "DTypeMismatch", lambda: F.linear(t(2, 3), t(4, 3, dtype=weft.float64)),
            "x is f32 and weight is f64", ".astype(weft.float64)"),
    Mistake("mse_loss", "DTypeMismatch", lambda: F.mse_loss(t(4), t(4, dtype=weft.bool)),
            "x is f32 and target is i1", "convert target, with .astype(weft.float32)"),
    Mistake("embedding", "DTypeNotSupported", lambda: F.embedding(t(2), t(4, 3)),
            "indices of shape (2,) is f32", "si64"),
    Mistake("cross_entropy", "DTypeNotSupported", lambda: F.cross_entropy(t(4, 10), t(4)),
            "target of shape (4,) is f32", "si64"),
    Mistake("one_hot", "DTypeNotSupported", lambda: F.one_hot(t(2), 3), "indices of shape (2,)",
            "astype"),
    # -- axes --
    Mistake("sum", "InvalidAttributeValue", lambda: weft.sum(t(2, 3), axis=2),
            "axis 2 is out of range; a rank-2 operand has [-2, 2)", ""),
    Mistake("sum", "InvalidAttributeValue", lambda: weft.sum(t(2, 3), axis=(0, 0)), "[0, 0]", ""),
    Mistake("argmax", "InvalidAttributeValue", lambda: weft.argmax(t(2, 3), axis=-3),
            "axis -3", ""),
    Mistake("permute_dims", "InvalidAttributeValue", lambda: weft.permute_dims(t(2, 3), (0, 0)),
            "[0, 0]", ""),
    Mistake("expand_dims", "InvalidAttributeValue", lambda: weft.expand_dims(t(2, 3), axis=5),
            "axis 5", ""),
    Mistake("softmax", "InvalidAttributeValue", lambda: F.softmax(t(2, 3), axis=2),
            "axis 2 is out of range for x (2, 3)", "from -2 to 1"),
    Mistake("top_k", "InvalidAttributeValue", lambda: F.top_k(t(2, 3), 5),
            "k is 5, but axis 1 of x (2, 3) has 3", "fewer"),
    Mistake("group_norm", "InvalidAttributeValue", lambda: F.group_norm(t(2, 6, 4), 4),
            "6 channels of x (2, 6, 4) cannot be parted into 4", "divide"),
    # -- indices --
    Mistake("getitem", "GatherIndexOutOfBounds", lambda: t(2, 3)[5],
            "index 5 is out of range for axis 0 of x (2, 3)", "-2 to 1"),
    Mistake("getitem", "GatherIndexOutOfBounds", lambda: t(2, 3)[0, 0, 0],
            "3 axes are indexed, but x (2, 3) has 2", "leave indices out"),
    Mistake("getitem", "DTypeNotSupported", lambda: t(2, 3)[t(2)], "dtype f32", "astype"),
    Mistake("getitem", "ShapeMismatch", lambda: t(2, 3)[t(3, dtype=weft.bool)],
            "the mask (3,) has size 3 on axis 0, but x (2, 3) has 2", "sizes of the axes"),
    Mistake("setitem", "BroadcastDimsInvalid", lambda: t(2, 3).__setitem__(0, t(2)),
            "shape (2,) does not broadcast to the (3,)", "reshape"),
    Mistake("setitem", "GatherIndexOutOfBounds", lambda: t(2, 3).__setitem__((0, 7), 1.0),
            "index 7 is out of range for axis 1 of x (2, 3)", "-3 to 2"),
    # -- values of arguments --
    Mistake("zeros", "NegativeDimension", lambda: weft.zeros((-1, 2)), "dimension -1", ""),
    Mistake("gelu", "InvalidAttributeValue", lambda: F.gelu(t(3), "fast"),
            "approximate is 'fast'", "'none', 'tanh'"),
    Mistake("layer_norm", "InvalidAttributeValue", lambda: F.layer_norm(t(2, 3), eps=-1),
            "eps is -1", "0 or more"),
    Mistake("conv2d", "InvalidAttributeValue",
            lambda: F.conv2d(t(1, 3, 8, 8), t(4, 3, 3, 3), stride=1.5),  # type: ignore[arg-type]
            "stride is 1.5, but 2 whole numbers of at least 1 are wanted", "one number"),
    Mistake("max_pool2d", "InvalidAttributeValue",
            lambda: F.max_pool2d(t(1, 3, 8, 8), 2, padding=-1), "padding is -1", "'same'"),
    Mistake("conv2d", "InvalidAttributeValue",
            lambda: F.conv2d(t(1, 3, 8, 8), t(4, 3, 3, 3), padding="full"),
            "padding is 'full'", "'same'"),
    Mistake("conv2d", "InvalidAttributeValue",
            lambda: F.conv2d(t(1, 3, 8, 8), t(4, 3, 3, 3), layout="CHWN"),
            "layout is 'CHWN'", "'NHWC'"),
    Mistake("avg_pool2d", "InvalidAttributeValue", lambda: F.avg_pool2d(t(1, 3, 4, 4), 0),
            "window is 0", "one number"),
    Mistake("cross_entropy", "InvalidAttributeValue",
            lambda: F.cross_entropy(t(4, 9), t(4, dtype=I64), "average"),
            "reduction is 'average'", "'sum'"),
    Mistake("huber_loss", "InvalidAttributeValue", lambda: F.huber_loss(t(4), t(4), delta=-1.0),
            "delta is -1.0", "at least 0"),
    Mistake("einsum", "InvalidAttributeValue", lambda: F.einsum("ijk->k", t(2, 3)),
            "'ijk' does not name the 2 axes of (2, 3)", "one letter"),
    Mistake("einsum", "InvalidAttributeValue", lambda: F.einsum("ij->ijk", t(2, 3)),
            "subscripts is 'ij->ijk'", "each once"),
    Mistake("einsum", "InvalidAttributeValue", lambda: F.einsum("ij,jk", t(2, 3)),
            "subscripts is 'ij,jk'", "2 operands, but 1 are given: (2, 3)"),
    Mistake("pad", "InvalidAttributeValue", lambda: F.pad(t(2, 3), ((1, 1),)),
            "((1, 1),) do not say how to pad x (2, 3)", "a pair (low, high) for every axis"),
    Mistake("pad", "InvalidAttributeValue", lambda: F.pad(t(2, 3), 5, "reflect"),
            "axis 0 of x (2, 3) cannot be padded by (5, 5)", "at most 1"),
    Mistake("dropout", "InvalidAttributeValue", lambda: F.dropout(t(2), 1.5, seed=0),
            "rate is 1.5", "from 0 to 1"),
    Mistake("batch_norm", "", lambda: F.batch_norm(t(2, 3), t(3)), "running_var", "give both"),
    Mistake("interpolate", "", lambda: F.interpolate(t(1, 2, 3, 3)), "scale_factor", "give either"),
    Mistake("softmax", "", lambda: F.softmax([1.0, 2.0]), "not list", "weft.asarray"),  # type: ignore[arg-type]
    Mistake("asarray", "", lambda: weft.asarray([[1, 2], [3]]), "list", "rectangular"),
    Mistake("zeros", "", lambda: weft.zeros((2,), dtype="float99"), "'float99'", "float32"),
    Mistake("item", "", lambda: t(2).item(), "f32[2]", "reduce it"),
    Mistake("getitem", "", lambda: t(2, 3)["x"], "a str", "integers, slices"),
    # -- backends --
    Mistake("add", "BackendMismatch", lambda: t(2) + far(2), "backend 'cpu'", ".to('reference')"),
    Mistake("matmul", "BackendMismatch", lambda: F.matmul(t(2, 2), far(2, 2)),
            "lhs is on backend 'reference' and rhs on 'cpu'", ".to('reference')"),
    Mistake("to", "", lambda: t(2).to("gpu0"), "'gpu0'", "the backends are reference, cpu"),
    Mistake("set_default_backend", "", lambda: weft.set_default_backend("tpu"), "'tpu'", "cpu"),
    # -- traced functions and control flow --
    Mistake("cond", "CondPredicateInvalid", lambda: weft.cond(t(2) > 0, lambda: t(), lambda: t()),
            "i1 of shape (2,)", "all or any"),
    Mistake("cond", "RegionSignatureMismatch",
            lambda: weft.cond(weft.asarray(True), lambda: t(2), lambda: t(3)),
            "f32[2] and f32[3]", "make both the same"),
    Mistake("while_loop", "RegionSignatureMismatch",
            lambda: weft.while_loop(lambda c: weft.any(c > 9), lambda c: c[:1], t(2)),
            "f32[2] and f32[1]", "make both the same"),
    Mistake("scan", "ShapeMismatch", lambda: weft.scan(lambda c, x: (c, c), t(), (t(2), t(3))),
            "(2,), (3,)", "slice them"),
    Mistake("grad", "GradientOfNonScalar", lambda: weft.grad(lambda x: x)(t(2)), "f32[2]", "sum"),
    Mistake("function", "", lambda: weft.jit(lambda x: x if x.sum() > 0 else -x)(t(2)),
            "known only when the function runs", "weft.cond"),
    Mistake("<lambda>", "", lambda: weft.jit(lambda x, mode: x)(t(2), "fast"),
            "the argument mode is a str", "static="),
    Mistake("jit", "", lambda: weft.jit(lambda x: x, static="y"), "'y'", "takes x"),
]  # fmt: skip


@each("mistake", MISTAKES)
def test_a_mistake_is_told_in_one_sentence(mistake: Mistake) -> None:
    with pytest.raises(WeftError) as caught:
        mistake.call()
    error, text = caught.value, str(caught.value)
    assert "\n" not in text
    assert f"[{mistake.op}]" in text
    assert mistake.says in text
    assert mistake.advice in text
    line = mistake.call.__code__.co_firstlineno
    assert f"test_user_mistakes.py:{line}" in text
    if mistake.code:
        assert isinstance(error, SpecViolation)
        assert error.code == mistake.code
        assert mistake.advice in error.hint
    else:
        assert isinstance(error, UserError)
    assert text.startswith(f"{error.code} at ")
    assert error.__suppress_context__ or error.__context__ is None
    assert last_file(error) == __file__


def last_file(error: BaseException) -> str:
    """Where the traceback ends, as Python prints it."""
    return traceback.extract_tb(error.__traceback__)[-1].filename


def test_there_are_sixty_with_a_code() -> None:
    assert sum(bool(mistake.code) for mistake in MISTAKES) >= 60
    assert len({(mistake.op, mistake.says) for mistake in MISTAKES}) == len(MISTAKES)


def test_a_mistake_leaves_no_trace_in_the_graph() -> None:
    x, weight = t(2, 3), t(4, 5)
    version = x.arena.version
    with pytest.raises(SpecViolation):
        F.linear(x, weight)
    assert x.arena.version == version
