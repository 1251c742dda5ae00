"""The backend where nobody chooses one: it compiles, can be chosen otherwise, and where it cannot
work says so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from weft.driver.loading.lazy_modules import load_part
from weft.foundation.errors import BackendUnavailable
from weft.ptir import Builder
from weft.runtime import jit

pytestmark = pytest.mark.usefixtures("default_backend")


@pytest.fixture
def restored() -> Iterator[None]:
    before = weft.default_backend()
    yield
    weft.set_default_backend(before)


def printed(code: str, **environment: str) -> str:
    """What a process of its own prints, or the last line of its complaint."""
    kept = {name: value for name, value in os.environ.items() if name != "WEFT_BACKEND"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return (done.stdout or done.stderr).strip().splitlines()[-1]


SUM = "import weft; print(weft.asarray([1, 2, 3]) + 1)"


@pytest.mark.parametrize(
    ("environment", "backend"),
    one_in(
        2,
        [({}, "cpu"), ({"WEFT_BACKEND": ""}, "cpu"), ({"WEFT_BACKEND": "reference"}, "reference")],
        unpack=True,
    ),
    ids=["nothing", "empty", "reference"],
)
def test_the_environment_chooses(environment: dict[str, str], backend: str) -> None:
    shown = f"Tensor([2, 3, 4], shape=[3], dtype=int64, backend='{backend}')"
    assert printed(SUM, **environment) == shown


def test_an_unknown_choice_is_told() -> None:
    said = printed(SUM, WEFT_BACKEND="tpu")
    assert "there is no backend 'tpu'; the backends are " in said


def refused_by() -> str:
    """Which backend refuses a custom call that nobody knows."""
    b = Builder()
    x = b.param("f32", [3])
    program = b.build(b.custom_call("theirs.thing.v1", x, output=x.type))
    with pytest.raises(weft.Unimplemented, match="does not support") as refused:
        weft.run(program, [np.zeros(3, np.float32)])
    return str(refused.value)


def test_programs_run_there_too(restored: None) -> None:
    assert "the backend 'cpu'" in refused_by()
    weft.set_default_backend("reference")
    assert "the backend 'reference'" in refused_by()
    assert weft.ones((2,)).backend == "reference"


def test_explain_says_where_it_runs() -> None:
    double = weft.jit(lambda x: x * 2)
    double(weft.ones((3,)))
    assert " for cpu in " in weft.explain(double)


WITHOUT = "import sys; sys.modules[{package!r}] = None; " + SUM


@pytest.mark.parametrize("package", ["llvmlite", "islpy"])
def test_a_missing_package_is_named(package: str) -> None:
    said = printed(WITHOUT.format(package=package), WEFT_CACHE="off")
    assert said.endswith(
        f"compiling programs needs the package {package}, which is not installed: pip install "
        f"{package}, or choose the backend that compiles nothing with WEFT_BACKEND=reference"
    )


def test_a_missing_part_of_weft_is_a_bug() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"weft\.nothing"):
        load_part("weft.nothing")


def test_a_machine_without_code_generator_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    alien = ("pdp11-unknown-none", "generic", "")
    monkeypatch.setattr(jit, "host_cpu", lambda: alien)
    monkeypatch.setenv("WEFT_CACHE", "off")
    b = Builder()
    x = b.param("f32", [37])
    program = b.build(x * x + x)
    with pytest.raises(BackendUnavailable, match="no code generator for pdp11-unknown-none"):
        weft.run(program, [np.zeros(37, np.float32)])


def test_work_without_end_is_refused() -> None:
    """Nothing of this size is ever in memory, so that no other limit sees it."""
    b = Builder()
    x = b.param("f32", [1])
    endless = b.build(b.reduce_sum(b.exp(b.broadcast_to(x, [2**57])), [0]))
    with pytest.raises(weft.ResourceExceeded, match="over the limit of 17,592,186,044,416"):
        weft.run(endless, [np.zeros(1, np.float32)])
