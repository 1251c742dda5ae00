"""Backends of others: whatever they raise or answer, the error names them and not Weft."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft.driver.backends import get_backend
from weft.driver.execute import prepare
from weft.driver.loading.guard import guarded
from weft.driver.reference import ReferenceBackend
from weft.foundation.errors import (
    ExecutionError,
    InternalError,
    PluginFault,
    ResourceExceeded,
    SpecViolation,
    Unimplemented,
)
from weft.ptir import Builder, Program

FAULT = "; this is a fault of the plug-in, not of Weft"


class Faulty(ReferenceBackend):
    """The reference backend with some members replaced."""

    name = "faulty"

    def __init__(self, **members: Any) -> None:
        vars(self).update(members)


def program() -> Program:
    b = Builder()
    return b.build(b.sqrt(b.param("f32", [2])))


def run(backend: Any) -> Any:
    return weft.run(program(), [np.array([1, 4], np.float32)], backend=backend)


def raising(error: BaseException) -> Callable[..., Any]:
    def member(*args: Any, **options: Any) -> Any:
        raise error

    return member


class Executes:
    """An executable whose `execute` is given."""

    def __init__(self, execute: Callable[..., Any]) -> None:
        self.execute = execute


def executing(execute: Callable[..., Any]) -> Faulty:
    return Faulty(compile=lambda program: Executes(execute))


def test_a_backend_that_works_is_not_in_the_way() -> None:
    assert run(Faulty())[0].tolist() == [1, 2]
    assert run(Faulty(dtypes=list(ReferenceBackend.dtypes)))[0].tolist() == [1, 2]


def test_wefts_own_are_not_wrapped() -> None:
    own = get_backend("reference")
    assert guarded(own) is own
    wrapped = guarded(Faulty())
    assert guarded(wrapped) is wrapped
    assert (wrapped.name, wrapped.ops) == ("faulty", own.ops)


@pytest.mark.parametrize("member", ["supports", "compile", "store", "read_storage"])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KeyError("x"), "KeyError: 'x'"),
        (RuntimeError(), "RuntimeError"),
        (ValueError("two\nlines"), "ValueError: two lines"),
        (SystemExit(3), "SystemExit: 3"),
        (RecursionError("deep"), "RecursionError: deep"),
    ],
)
def test_what_a_backend_raises_is_its_fault(member: str, error: Exception, told: str) -> None:
    start = f"the backend 'faulty' ({__name__}) failed in {member} with {told} (test_guard.py:"
    whole = rf"^{re.escape(start)}\d+\){re.escape(FAULT)}$"
    with pytest.raises(PluginFault, match=whole) as caught:
        run(Faulty(**{member: raising(error)}))
    assert caught.value.__cause__ is error


def test_what_an_executable_raises_is_its_fault() -> None:
    with pytest.raises(ExecutionError, match="failed in execute with ZeroDivisionError: zero "):
        run(executing(raising(ZeroDivisionError("zero"))))


def test_the_line_is_the_innermost_of_the_package_that_was_called() -> None:
    def execute(inputs: Any, **options: Any) -> Any:
        return np.broadcast_to(inputs[0], (3, 3))

    with pytest.raises(PluginFault) as caught:
        run(executing(execute))
    line = execute.__code__.co_firstlineno + 1
    assert f" (test_guard.py:{line}); this is" in str(caught.value)


def test_a_property_may_raise_too() -> None:
    class Moody(ReferenceBackend):
        @property
        def ops(self) -> Any:  # type: ignore[override]
            raise OSError("no driver")

    with pytest.raises(
        ExecutionError, match=r"the backend of class Moody failed in ops with OSErr"
    ):
        run(Moody())


@pytest.mark.parametrize(
    "error",
    [
        Unimplemented("sqrt", "not today"),
        SpecViolation("IntegerDivideByZero", "zero"),
        ExecutionError("the device has gone"),
        InternalError("a promise was broken"),
        KeyboardInterrupt(),
    ],
)
def test_errors_of_wefts_go_through(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        run(Faulty(compile=raising(error)))
    assert caught.value is error


def test_running_out_of_memory_is_said_as_ever() -> None:
    with pytest.raises(ResourceExceeded, match="out of memory while running @main"):
        run(executing(raising(MemoryError())))


@pytest.mark.parametrize(
    ("backend", "sentence"),
    [
        (Faulty(compile=lambda p: None), "compiled None, which has no execute"),
        (executing(lambda x, **_: None), "answers None instead of a list of results"),
        (executing(lambda x, **_: x[0]), "answers an object of class ndarray instead of a list of"),
        (executing(lambda x, **_: []), "answers 0 results instead of 1"),
        (executing(lambda x, **_: [*x, *x]), "answers 2 results instead of 1"),
        (executing(lambda x: x), "failed in execute with TypeError: "),
        (executing(lambda x, **_: [3.0]), "read 3.0 instead of an array"),
        (executing(lambda x, **_: [x[0].astype(float)]), "gives an array of float64[2] for f32[2]"),
        (executing(lambda x, **_: [x[0][:1]]), "gives an array of float32[1] for f32[2]"),
    ],
)
def test_wrong_answers_are_its_fault(backend: Faulty, sentence: str) -> None:
    with pytest.raises(ExecutionError, match=re.escape(sentence)) as caught:
        run(backend)
    assert str(caught.value).startswith(f"the backend 'faulty' ({__name__}) ")
    assert str(caught.value).endswith(FAULT)


def test_a_prepared_program_is_guarded_too() -> None:
    ready = prepare(program(), executing(raising(KeyError("x"))))
    with pytest.raises(ExecutionError, match="the backend 'faulty'"):
        ready.execute([np.ones(2, np.float32)])


# -- inputs are read, never written ----------------------------------------------------------------


def overwriting(**members: Any) -> Faulty:
    """A backend that writes its result over its first input."""

    def execute(inputs: Any, **options: Any) -> Any:
        inputs[0][...] = 0
        return [inputs[0]]

    return Faulty(compile=lambda program: Executes(execute), **members)


def test_a_backend_cannot_overwrite_what_the_user_gave() -> None:
    given = np.array([1, 4], np.float32)
    with pytest.raises(PluginFault) as caught:
        weft.run(program(), [given], backend=overwriting())
    assert "failed in execute with ValueError: " in str(caught.value)
    assert "read-only (test_guard.py:" in str(caught.value)
    assert "; inputs are read, never written" in str(caught.value)
    assert given.tolist() == [1, 4]
    assert given.flags.writeable


def test_a_backend_cannot_overwrite_what_it_holds() -> None:
    backend = guarded(overwriting(store=lambda array: array.copy()))
    with pytest.raises(PluginFault, match="inputs are read, never written"):
        prepare(program(), backend).execute([backend.store(np.ones(2, np.float32))])


def test_an_input_that_is_a_result_belongs_to_the_caller() -> None:
    given = np.array([1, 4], np.float32)
    backend = Faulty(compile=lambda program: Executes(lambda inputs, **options: [inputs[0]]))
    found = weft.run(program(), [given], backend=backend)[0]
    found[0] = 7
    assert given.tolist() == [1, 4]


def test_a_tensor_over_the_limit_never_reaches_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MAX_TENSOR_BYTES", "4")
    with pytest.raises(ResourceExceeded, match=r"the result of %1 = sqrt.* need 8 bytes"):
        run(Faulty(compile=raising(AssertionError("it was reached"))))
