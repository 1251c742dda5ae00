"""What people meet in their first hour: names that are spelled otherwise, values that are not known
while a function is traced, errors deep inside a model; how tensors and dtypes are shown."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft
from tests.support.cases import each
from weft import functional as F
from weft import nn
from weft.foundation.dtypes import ALL
from weft.foundation.errors import SpecViolation, UserError
from weft.ops.graph.cache import PROGRAMS
from weft.ops.session import Session

# -- names ---------------------------------------------------------------------------------------


wide: Any = weft
"""`weft` for names that it does not have."""


@each(
    ("ask", "message"),
    [
        (lambda: wide.zeroes, "module 'weft' has no attribute 'zeroes'; did you mean zeros?"),
        (lambda: wide.sofmax, "'sofmax'; did you mean weft.functional.softmax?"),
        (lambda: wide.Linaer, "'Linaer'; did you mean weft.nn.Linear?"),
        (lambda: wide.optim.ema, "weft.optim has no 'ema'; here it is optim.average(decay)"),
        (lambda: wide.special.gammainc, "'gammainc'; here it is weft.special.igamma"),
        (lambda: wide.Linear, "module 'weft' has no attribute 'Linear'; here it is weft.nn.Linear"),
        (lambda: wide.div, "module 'weft' has no attribute 'div'; here it is weft.divide"),
        (lambda: wide.tree_map, "has no attribute 'tree_map'; here it is weft.tree.map"),
        (lambda: wide.functional.sofmax, "weft.functional has no 'sofmax'; did you mean softmax?"),
        (lambda: wide.nn.Relu, "weft.nn has no 'Relu'; did you mean ReLU?"),
        (lambda: wide.optim.Adm, "weft.optim has no 'Adm'; did you mean Adam?"),
        (lambda: wide.linalg.choleski, "weft.linalg has no 'choleski'; did you mean cholesky?"),
        (lambda: wide.fft.ffft, "weft.fft has no 'ffft'; did you mean fft?"),
        (lambda: wide.ones(3).realize, "here it is x.eval(), or nothing"),
        (
            lambda: wide.nn.Linear(2, 2).train,
            "Linear has no attribute 'train'; here it is the block",
        ),
        (lambda: wide.tree.tree_map, "weft.tree has no 'tree_map'; here it is weft.tree.map"),
        (lambda: wide.random.PRNGKey, "weft.random has no 'PRNGKey'; here it is weft.random.key"),
        (lambda: wide.random.norml, "weft.random has no 'norml'; did you mean normal?"),
        (lambda: wide.special.digama, "weft.special has no 'digama'; did you mean digamma?"),
        (lambda: wide.nn.init.xavier, "'xavier'; here it is nn.init.xavier_uniform"),
        (lambda: wide.data.batch, "weft.data has no 'batch'; did you mean batches?"),
        (lambda: wide.data.DataLoader, "here it is weft.data.batches(arrays, size, key=key)"),
        (lambda: wide.normal, "'normal'; here it is weft.random.normal(key, shape)"),
        (lambda: wide.random.logistic, "here it is the difference of two draws"),
        (lambda: wide.nn.BatchNorm2d, "here it is nn.BatchNorm, for any number of axes"),
        (lambda: wide.debug.prnt, "weft.debug has no 'prnt'; did you mean print?"),
        (lambda: wide.optim.adam, "weft.optim has no 'adam'; did you mean Adam?"),
        (lambda: wide.optim.sgd, "weft.optim has no 'sgd'; did you mean SGD?"),
        (lambda: wide.optim.lr_scheduler, "here it is a schedule as the rate"),
        (lambda: wide.nn.functional, "weft.nn has no 'functional'; here it is weft.functional"),
        (lambda: wide.nn.Dense, "here it is nn.Linear"),
        (lambda: wide.device_put, "here it is x.to"),
        (
            lambda: wide.optim.AdamW(1e-3).step,
            "AdamW has no attribute 'step'; here it is model, state = optimiser.update(",
        ),
        (lambda: wide.nn.Linear(2, 2).forward, "here it is model(x)"),
        (lambda: wide.nn.Linear(2, 2).wieght, "Linear has no attribute 'wieght'"),
    ],
)
def test_a_name_that_is_not_there_is_answered_with_one_that_is(
    ask: Callable[[], Any], message: str
) -> None:
    with pytest.raises(AttributeError) as caught:
        ask()
    assert message in str(caught.value)


def test_nothing_is_guessed_for_private_names() -> None:
    """Tools ask every module for some, and to look for the closest name takes half a ms."""
    with pytest.raises(AttributeError, match=r"weft.functional has no '_softmax'$"):
        wide.functional._softmax  # noqa: B018


def test_nothing_is_guessed_where_nothing_is_alike() -> None:
    with pytest.raises(AttributeError) as caught:
        wide.quaternion  # noqa: B018
    assert str(caught.value) == "module 'weft' has no attribute 'quaternion'"


def test_what_jit_calls_static() -> None:
    with pytest.raises(TypeError, match="static_argnums is called static here"):
        wide.jit(lambda x: x, static_argnums=0)


def test_a_tensor_is_not_moved_to_a_dtype() -> None:
    with pytest.raises(UserError, match=r"write x\.astype\(weft\.float16\)"):
        weft.ones(3).to("float16")


# -- public names --------------------------------------------------------------------------------


def parts() -> list[ModuleType]:
    """`weft`, and what of it is a module."""
    named = [getattr(weft, name) for name in dir(weft)]
    return [weft, *(part for part in named if isinstance(part, ModuleType))]


@pytest.mark.parametrize("part", parts(), ids=lambda part: part.__name__)
def test_dir_shows_public_names_only(part: ModuleType) -> None:
    shown = dir(part)
    assert shown == sorted(shown)
    hidden = [name for name in shown if name.startswith("_") and "__array_" not in name]
    assert hidden in ([], ["__version__"])
    for name in shown:
        assert hasattr(part, name), name
    if part is not weft:
        assert shown == sorted(part.__all__)


def test_dir_of_weft_is_what_it_hands_out() -> None:
    shown = dir(weft)
    assert {"Tensor", "jit", "grad", "nn", "optim", "functional", "compile", "load"} <= set(shown)
    assert not {"importlib", "annotations", "TYPE_CHECKING", "Any", "missing"} & set(shown)


# -- traced values -------------------------------------------------------------------------------


def read(message: str, function: Callable[..., Any], *args: Any) -> None:
    with pytest.raises(UserError) as caught:
        function(*args)
    assert caught.value.code == "TracedValueRead"
    assert message in str(caught.value)


def test_a_traced_value_that_is_read_is_told_by_its_argument() -> None:
    x = weft.ones(3)

    def step(params: Any, x: Any) -> Any:
        return x if params["w"].item() > 0 else -x

    read("[step] the elements of the argument params['w'], f32[], are", weft.jit(step),
         {"w": weft.ones(())}, x)  # fmt: skip

    def grow(x: Any, y: Any) -> Any:
        return x if (x * 2).sum() > y else y

    read("of the arguments x, y are needed", weft.jit(grow), x, 3.0)
    read("of the arguments x, y are needed", weft.grad(lambda x, y: weft.sum(grow(x, y))), x,
         weft.ones(()))  # fmt: skip
    read("the elements of the argument y, si64[],", weft.jit(lambda x, y: x[: int(y)]), x, 2)


# -- errors in a model ---------------------------------------------------------------------------


class Block(nn.Module):
    """Two layers, the second for more inputs than the first gives."""

    def __init__(self, wrong: int = 0) -> None:
        self.qkv = nn.Linear(4, 12)
        self.out = {"last": (nn.Linear(12 + wrong, 4),)}

    def __call__(self, x: Any) -> Any:
        return self.out["last"][0](self.qkv(x))


class Model(nn.Module):
    """Blocks in a list."""

    def __init__(self) -> None:
        self.blocks = [Block(), Block(wrong=1)]

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("around", [lambda f: f, weft.jit], ids=["eager", "jit"])
def test_an_error_in_a_layer_names_its_place_in_the_model(around: Any) -> None:
    with pytest.raises(SpecViolation) as caught:
        around(lambda model, x: model(x))(Model(), weft.ones((2, 4)))
    assert caught.value.code == "ShapeMismatch"
    assert caught.value.why.endswith(", in the layer blocks[1].out['last'][0]")
    assert caught.value.where.startswith("test_messages.py:")


def test_a_layer_of_a_sequence_and_one_alone() -> None:
    with pytest.raises(SpecViolation, match=r", in the layer \S*\[1\]"):
        nn.Sequential(nn.Linear(4, 3), nn.Linear(4, 3))(weft.ones((2, 4)))
    with pytest.raises(SpecViolation) as caught:
        nn.Linear(4, 3)(weft.ones((2, 3)))
    assert "layer " not in caught.value.why


# -- what is shown -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1001,), (40, 100), (3, 500), (2, 40, 30), (6, 6, 6, 6)])
def test_a_large_lazy_tensor_shows_its_corners(shape: tuple[int, ...]) -> None:
    x = weft.asarray(np.arange(np.prod(shape), dtype=np.float32).reshape(shape)).eval()
    lazy = x * 2.0
    text = repr(lazy)
    assert lazy.is_lazy or len(shape) == 4  # of which all is shown
    assert repr(lazy.eval()) == text
    assert "..." in text or len(shape) == 4


def test_what_cannot_be_computed_is_still_printed() -> None:
    x = weft.ones((2000,)) * 2.0
    wrong = weft.take(x, weft.asarray(np.full(2000, 5000)))
    assert repr(wrong) == f"Tensor(lazy, shape=[2000], dtype=float32, backend={x.backend!r})"


def test_corners_of_other_places_share_a_program() -> None:
    x = weft.asarray(np.ones((50, 60), np.float32)).eval()
    repr(x * 2.0)
    before = PROGRAMS.statistics.compiled
    repr(x * 2.0)
    assert PROGRAMS.statistics.compiled == before


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_tensors_show_dtypes_as_people_write_them(dtype: Any) -> None:
    shown = repr(weft.zeros((), dtype=dtype)).partition("dtype=")[2].partition(",")[0]
    assert getattr(weft, shown) is dtype


def test_dtypes_equal_the_numpy_types_that_they_are() -> None:
    x = weft.ones(3)
    assert x.dtype == np.float32
    assert np.float32 == x.dtype
    assert x.dtype == np.dtype("float32")
    assert np.dtype("float32") == x.dtype
    assert x.dtype != np.float64
    assert x.dtype != "f32"
    assert x.dtype == weft.float32
    assert weft.bfloat16 == ml_dtypes.bfloat16
    assert weft.bool == np.bool_
    for dtype in ALL:
        assert hash(dtype) == hash(dtype.numpy)
        assert dtype in {dtype.numpy}
        assert [other for other in ALL if other == dtype.numpy] == [dtype]


@pytest.mark.parametrize("traced", [False, True])
def test_what_fails_in_a_run_names_the_function_that_was_called(traced: bool) -> None:
    """Not the op that it came to."""
    rows, classes = weft.ones((2, 3)), weft.asarray([1, 7])
    for name in ("cross_entropy", "nll_loss"):
        call = getattr(F, name)
        made = weft.jit(call) if traced else call
        with pytest.raises(weft.SpecViolation, match=rf": \[{name}\] .*index 7 at "):
            F.relu(made(rows, classes)).numpy()
    with pytest.raises(weft.SpecViolation, match=r": \[take\] .*index 7"):
        F.relu(rows[classes]).numpy()


def _empty_hint() -> None:
    with weft.ptir.Builder().hint("dot_epilogue"):
        pass


def _no_contraction() -> None:
    builder = weft.ptir.Builder()
    x = builder.param("f32", (2, 2))
    builder.dot_general(x, x, contract=([1],))  # type: ignore[arg-type]


def _session_without_contraction() -> None:
    x = Session.here().import_(weft.ones((2, 2)))
    x.dot_general(x, contract=3)  # type: ignore[arg-type]


def _matmul_of_a_list() -> None:
    builder = weft.ptir.Builder()
    builder.matmul([], builder.param("f32", (2, 2)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: wide.compile(3), "compile takes a program, not int"),
        (lambda: wide.compile(len), "not builtin_function_or_method; weft.jit(f).program(x) is"),
        (lambda: wide.run(3, []), "run takes a program, not int"),
        (lambda: wide.ptir.verify(3), "verify takes a program, not int"),
        (lambda: wide.ptir.dumps(3), "dumps takes a program, not int"),
        (lambda: wide.explain(3), "explain takes what weft.compile or weft.jit answered, not int"),
        (lambda: weft.ptir.Builder().hint("zork"), "'zork' is not one of elementwise_dag"),
        (_empty_hint, "a hint needs at least one op in its block"),
        (_no_contraction, "contract is a pair of lists"),
        (_session_without_contraction, "such as ([1], [0]), not 3"),
        (_matmul_of_a_list, "differ in extent"),
        (lambda: wide.nn.Linear("a", 2), "[Linear] a parameter cannot have the shape (2, 'a')"),
        (lambda: wide.scan(3, weft.ones(2)), "[scan] a function is wanted, not an int"),
        (lambda: wide.load(3), "[load] a file or a folder is loaded by its path, not by an int"),
        (lambda: wide.roll(weft.ones(2), "a"), "[roll] whole numbers are wanted here, not 'a'"),
    ],
)
def test_a_wrong_argument_is_told_with_the_line_of_the_call(
    call: Callable[[], Any], sentence: str
) -> None:
    with pytest.raises((SpecViolation, UserError)) as caught:
        call()
    assert sentence in str(caught.value)
    assert " at test_messages.py:" in str(caught.value)
    assert caught.value.where.startswith("test_messages.py:")
