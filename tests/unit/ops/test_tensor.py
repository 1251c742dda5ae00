"""`weft.Tensor` itself: how it is made, written, pickled, computed; and what is said about names
and arguments that it does not have."""

from __future__ import annotations

import ast
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import functional as F
from weft.foundation.errors import BackendUnavailable, InternalError, UserError, WrongArguments

pytestmark = pytest.mark.usefixtures("default_backend")

OPS = Path(weft.__file__).parent / "ops"


def test_the_class_says_how_tensors_are_made() -> None:
    with pytest.raises(UserError, match=r"use weft.asarray or weft.tensor"):
        weft.Tensor([1, 2])  # type: ignore[arg-type]


def _refuse() -> str:
    try:
        raise OSError("the library is not there")
    except OSError:
        raise BackendUnavailable("there is no GPU here") from None


def test_a_missing_gpu_is_a_sentence_without_the_way_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.driver.cuda.target_of_device", _refuse)
    monkeypatch.setattr("weft.driver.cuda.CudaBackend.store", lambda _, array: array)
    x = weft.ones(3).to("cuda") + 1
    with pytest.raises(BackendUnavailable, match="there is no GPU here") as raised:
        x.numpy()
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
    assert [frame.name for frame in raised.traceback] == [inspect.stack()[0].function]


def test_a_fault_in_weft_keeps_the_way_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise InternalError("this cannot be")

    x = weft.ones(3) + 41
    monkeypatch.setattr("weft.ops.graph.evaluate.execute", fail)
    with pytest.raises(InternalError) as raised:
        x.numpy()
    assert raised.traceback[-1].name == "fail"


def test_containers_of_tensors_are_computed() -> None:
    x = weft.asarray([1.0, 2.0])
    a, b, c = x + 1, x * 2, x - 1
    weft.eval([a, {"b": b, "step": 3}], c)
    assert not any(tensor.is_lazy for tensor in (a, b, c))
    weft.eval({}, None)
    with pytest.raises(UserError, match=r"\[eval\] tensors, or containers of tensors"):
        weft.eval(3)


@pytest.mark.parametrize(
    ("value", "spec", "text"),
    [(1.23456, ".3f", "1.235"), (7, "5d", "    7"), (0.5, "", "0.5"), (True, "", "True")],
)
def test_a_number_is_written_as_python_writes_it(value: Any, spec: str, text: str) -> None:
    assert format(weft.asarray(value), spec) == text


def test_other_tensors_take_no_format() -> None:
    x = weft.asarray([1.0, 2.0])
    assert f"{x}" == repr(x)
    with pytest.raises(UserError, match=r"\[format\] the format '.2f' is for one number"):
        format(x, ".2f")
    assert round(weft.asarray(2.345, dtype=weft.float64), 1) == 2.3


def test_the_truth_of_many_elements_is_asked_for_by_name() -> None:
    assert weft.asarray([[3.0]])
    with pytest.raises(UserError, match=r"\[bool\] a tensor of type f32\[2\] .* any or all"):
        bool(weft.asarray([1.0, 2.0]))


def test_an_element_is_in_a_tensor() -> None:
    x = weft.asarray([[1.0, 2.0], [3.0, 4.0]])
    assert 3.0 in x
    assert 5 not in x
    assert np.float32(2) in x.to("cpu")
    assert "a" not in x


def test_a_tensor_is_pickled_as_its_elements() -> None:
    x = weft.asarray([1.0, 2.5], dtype=weft.bfloat16) + 1
    x.requires_grad = True
    back = pickle.loads(pickle.dumps(x))
    assert back.tolist() == [2.0, 3.5]
    assert back.dtype is weft.bfloat16
    assert back.requires_grad


def test_to_takes_a_dtype_too() -> None:
    x = weft.asarray([1.5])
    assert x.to(weft.int32).tolist() == [1]
    assert x.to(weft.float32) is x
    assert x.itemsize == 4


# -- what is said about other names --------------------------------------------------------------

ADVICE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "view": (lambda x: x.view(4), "here it is x.reshape"),
    "numel": (lambda x: x.numel(), "here it is x.size"),
    "add_": (lambda x: x.add_(1), "operators such as"),
    "backward": (lambda x: x.backward(), "weft.grad"),
    "weft.cat": (lambda x: weft.cat([x]), "here it is weft.concat"),
    "weft.softmax": (lambda x: weft.softmax(x), "here it is weft.functional.softmax"),
    "weft.outer": (lambda x: weft.outer(x, x), "here it is weft.linalg.outer"),
    "F.unknown": (lambda x: F.normalise_me(x), "weft.functional has no 'normalise_me'"),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("name", ADVICE)
def test_names_of_other_libraries_are_answered(name: str) -> None:
    call, advice = ADVICE[name]
    with pytest.raises(AttributeError, match=advice):
        call(weft.ones((2, 2)))
    assert not hasattr(weft.ones(1), "no_such_name")


ARGUMENTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "dim": (lambda x: x.sum(dim=0), r"\[sum\].*'dim'.*axis"),
    "kernel_size": (lambda x: F.max_pool1d(x, kernel_size=2), r"\[max_pool1d\].*window"),  # type: ignore[call-arg]
    "ddof": (lambda x: x.std(ddof=1), r"\[std\].*correction"),
    "too many": (lambda x: weft.zeros(3, 4), r"\[zeros\] too many positional arguments"),
    "none": (lambda x: weft.sum(), r"\[sum\] missing a required argument"),
    "a seed": (lambda x: F.dropout(x, 0.5), r"\[dropout\].*'seed'"),  # type: ignore[call-arg]
    "one of two": (lambda x: weft.where(x), r"\[where\] missing a required argument"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_wrong_arguments_are_told_in_a_sentence(name: str) -> None:
    call, message = ARGUMENTS[name]
    with pytest.raises(WrongArguments, match=message) as caught:
        call(weft.ones((2, 2)))
    assert isinstance(caught.value, TypeError)


def test_a_mistake_inside_a_function_is_not_taken_for_one_of_the_call() -> None:
    with pytest.raises(weft.WeftError, match=r"\[argmax\] axis is .*one whole number"):
        weft.argmax(weft.ones(3), axis=(0,))


KINDS: dict[str, Callable[[Any], Any]] = {
    "no list": lambda x: weft.concat(None),
    "no number": lambda x: weft.std(x, correction="a"),
    "no device": lambda x: weft.zeros(2, device=[1]),
    "no diagonal": lambda x: weft.tril(x, "a"),
}


@pytest.mark.parametrize("name", KINDS)
def test_an_argument_of_another_kind_is_told_in_a_sentence(name: str) -> None:
    with pytest.raises(
        WrongArguments, match=r"\[\w+\] an argument has a kind that is not supported"
    ):
        KINDS[name](weft.ones((2, 2)))


def test_a_tensor_of_fractions_is_no_size() -> None:
    with pytest.raises(weft.UserError, match=r"\[zeros\] a dimension is a whole number"):
        weft.zeros(weft.ones((2, 2)))


def test_the_errors_of_a_users_own_function_stay_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError):
        weft.vmap(lambda x: x * (1 // 0))(weft.ones(3))
    with pytest.raises(TypeError, match="unsupported operand") as caught:
        weft.vmap(lambda x: x * object())(weft.ones(3))
    assert not isinstance(caught.value, weft.WeftError)
    with pytest.raises(TypeError, match="only an integer tensor can be an index"):
        weft.vmap(lambda x: range(x))(weft.ones(3))


def test_every_violation_says_what_to_do() -> None:
    """In the source: a violation has a code, a reason and a hint."""
    without = [
        f"{path.name}:{call.lineno}"
        for path in OPS.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ("SpecViolation", "OutOfRange")
        and len(call.args) < 3
    ]
    assert not without


def test_numpy_numbers_are_numbers() -> None:
    x = weft.asarray([1.0, 2.0])
    assert x.sum(np.int64(0)).item() == 3.0


@pytest.mark.parametrize("read", [repr, np.asarray, str], ids=["repr", "asarray", "str"])
def test_a_backend_that_is_not_there_is_told_by_whoever_reads(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[Any], Any]
) -> None:
    def refuse(*given: Any, **options: Any) -> None:
        raise BackendUnavailable("this machine has no GPU")

    x = weft.ones((3,)) + 1.0
    monkeypatch.setattr("weft.ops.tensor.evaluate", refuse)
    where = r"^BackendUnavailable at test_tensor\.py:\d+: \[(repr|array)\] this machine has no GPU"
    with pytest.raises(BackendUnavailable, match=where):
        read(x)
