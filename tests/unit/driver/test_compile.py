"""Programs through the whole pipeline: every stage is what runs, and can be replaced by an edit."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.cases import one_in
from weft.driver.compile import Executable
from weft.driver.pipeline import MIDDLE
from weft.foundation.errors import ResourceExceeded, SpecViolation, UserError
from weft.ptir import Builder, Program, load

pytestmark = pytest.mark.usefixtures("small_machine")
EXAMPLES = Path(__file__).parents[3] / "examples"
Array = NDArray[Any]


def example(name: str) -> Program:
    return load(EXAMPLES / f"{name}.ptir.txt")


def data_for(program: Program, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    found: list[Array] = []
    for kind in program.main.parameters:
        assert isinstance(kind, weft.ptir.TensorType)
        shape = tuple(d if isinstance(d, int) else 5 for d in kind.shape)
        whole = kind.dtype.is_integer
        found.append(
            (rng.integers(0, 3, shape) if whole else rng.standard_normal(shape)).astype(
                kind.dtype.numpy
            )
        )
    return found


def mlp(rows: int | str = 8) -> Program:
    b = Builder("mlp")
    x, w = b.param("f32", [rows, 24]), b.param("f32", [24, 40])
    bias = b.param("f32", [40])
    y = x @ w
    return b.build(b.gelu(y + b.broadcast_to(bias, y.shape)))


def close(got: Array, want: Array) -> bool:
    return bool(np.allclose(got, want, rtol=1e-5, atol=1e-5))


@pytest.mark.parametrize("name", one_in(2, ["mlp", "softmax_layernorm", "attention"]))
def test_every_stage_that_reads_back_can_be_fed_back(name: str) -> None:
    program = example(name)
    inputs = data_for(program)
    plain = weft.compile(program)
    want = [array.tobytes() for array in plain(*inputs)]
    readable = [stage.name for stage in MIDDLE if stage.parse is not None]
    assert len(readable) == len(MIDDLE)
    for stage in readable:
        again = weft.compile(program, overrides={stage: plain.stages[stage]})
        for later in ("plan", "cpu", "llvm"):
            assert again.stages[later] == plain.stages[later], stage
        assert [array.tobytes() for array in again(*inputs)] == want


def test_an_edited_plan_changes_the_code_and_not_the_result() -> None:
    program = mlp()
    inputs = data_for(program)
    plain = weft.compile(program)
    document = json.loads(plain.stages["plan"])
    document["plans"][0]["warp_tile"] = "2x8"
    document["plans"][0]["tile"] = [2, 8, 24]
    edited = weft.compile(program, overrides={"plan": json.dumps(document)})
    assert "unrolled m" in plain.stages["cpu"]
    assert edited.stages["cpu"] != plain.stages["cpu"]
    assert "mu_2=2 unrolled" in edited.stages["cpu"]
    assert edited.stages["llvm"] != plain.stages["llvm"]
    assert close(edited(*inputs)[0], weft.run(program, inputs)[0])


def test_a_plan_that_cannot_be_is_refused_with_the_stage() -> None:
    program = mlp()
    document = json.loads(weft.compile(program).stages["plan"])
    document["plans"][0]["tile"] = [0, 8, 24]
    with pytest.raises(SpecViolation) as caught:
        weft.compile(program, overrides={"plan": json.dumps(document)})
    assert "tile" in str(caught.value)


def test_unknown_stages_and_targets_are_sentences() -> None:
    with pytest.raises(
        UserError, match="there is no stage 'planned'; the stages are frontend, tiny"
    ):
        weft.compile(mlp(), overrides={"planned": ""})
    with pytest.raises(UserError, match="sm12"):
        weft.compile(mlp(), "sm12")


def test_a_cache_update_happens_in_place() -> None:
    program = example("attention")
    inputs = data_for(program)
    executable = weft.compile(program, state=[3, 4])
    caches = [array.copy() for array in inputs[3:5]]
    for held, start in zip(executable.state, caches, strict=True):
        held[...] = start
    assert sum("in place, 0 bytes copied" in line for line in executable.report()) == 2
    for step in range(3):
        inputs[5] = np.asarray(inputs[5] * 0 + step, inputs[5].dtype)
        want = weft.run(program, [*inputs[:3], *caches, *inputs[5:]])
        got = executable(*inputs[:3], *inputs[5:])
        for mine, theirs in zip(got, want, strict=True):
            assert close(mine, theirs)
        caches = want[1:3]
        assert np.shares_memory(got[1], executable.state[0])
        assert close(executable.state[0], caches[0])


def test_dynamic_dims_compile_once_for_each_size() -> None:
    program = mlp("?B")
    executable = weft.compile(program)
    assert weft.explain(executable) == "nothing compiled yet: the program has dynamic dims"
    for rows in (3, 7, 3, 3, 7):
        inputs = [np.ones((rows, 24), np.float32), *data_for(program)[1:]]
        assert close(executable(*inputs)[0], weft.run(program, inputs)[0])
    lines = weft.explain(executable).splitlines()
    assert [line.split(" in ")[0] for line in lines] == ["compiled for B=3", "compiled for B=7"]
    assert all(line.endswith("first run with these sizes") for line in lines)


def test_parameters_are_bound_once() -> None:
    program = mlp()
    x, w, bias = data_for(program)
    run = weft.compile(program, params=[1, 2]).bind([w, bias])
    assert close(run(x)[0], weft.run(program, [x, w, bias])[0])
    with pytest.raises(UserError, match="this takes 1 data inputs but got 2"):
        run(x, w)
    with pytest.raises(UserError, match="bind takes the 2 parameters but got 1"):
        weft.compile(program, params=[1, 2]).bind([w])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"params": [3]}, "params names input 3; @mlp has inputs 0 to 2"),
        ({"params": [1], "state": [1]}, "input 1 is named in both params and state"),
        ({"params": [1], "donate": [0, 1]}, "input 1 is named in both params and donate"),
        ({"params": 3}, "params is a list of positions of inputs such as .0, 2., not 3"),
        ({"donate": ["x"]}, "donate is a list of positions of inputs"),
        ({"target": None}, "there is no target None"),
        ({"shapes": "auto"}, "shapes is a weft.ShapeSet, not str"),
        ({"overrides": ["plan"]}, "overrides maps stages to texts, not list"),
        ({"overrides": {"plan": 12}}, "the text of stage 'plan' is int, not str"),
        ({"overrides": {"cu": ""}}, "there is no stage 'cu'"),
    ],
)
def test_wrong_arguments_are_sentences(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        weft.compile(mlp(), **arguments)


def test_an_executable_is_shown_in_a_line() -> None:
    made = weft.compile(mlp())
    (cluster,) = made.clusters.values()
    assert repr(made) == "<Executable of @mlp for cpu, 1 version compiled>"
    assert repr(cluster.compilation).startswith("<Compilation of @mlp for cpu: frontend, tiny, ")
    assert len(repr(cluster)) < 200


def test_wrong_calls_of_an_executable_are_sentences() -> None:
    made = weft.compile(mlp("?B"), params=[1, 2])
    with pytest.raises(UserError, match="nothing is compiled yet"):
        made.report()
    with pytest.raises(UserError, match="bind takes a list of the parameters, not int"):
        made.bind(3)  # type: ignore[arg-type]
    data: Any = data_for(mlp("?B"))
    wrong: list[Any] = [0, -1, "two", True, 4097, 10**9]
    for threads in wrong:
        with pytest.raises(UserError, match="threads is"):
            made.run(data, threads=threads)


def test_wrong_seeds_of_an_executable_are_sentences() -> None:
    b = Builder()
    x = b.param("f32", [4])
    made = weft.compile(b.build(x + b.emit("rng_uniform", shape=[4], dtype="f32")), params=[0])
    zeros = np.zeros(4, np.float32)
    bound = made.bind([zeros])
    wrong: list[Any] = [-1, 2**64, 1.5, True, None, "7"]
    for seed in wrong:
        for call in (made.run, made.profile, lambda inputs, seed: bound(seed=seed)):
            with pytest.raises(UserError, match=r"seed .* is not a whole number from 0 to"):
                call([zeros], seed=seed)
    seven: Any = np.uint8(7)
    np.testing.assert_array_equal(bound(seed=seven)[0], made(zeros, seed=7)[0])


def stack_of_blocks(count: int) -> Program:
    """Blocks that are equal but for their weights."""
    b = Builder("stack")
    x = b.param("f32", [16, 32])
    weights = [(b.param("f32", [32, 32]), b.param("f32", [32])) for _ in range(count)]
    for w, bias in weights:
        y = x @ w
        x = x + b.softmax(b.gelu(y + b.broadcast_to(bias, y.shape)), axis=-1)
    return b.build(x)


def test_equal_blocks_are_compiled_once() -> None:
    def distinct(executable: Executable) -> tuple[int, int]:
        (cluster,) = executable.clusters.values()
        module = cluster.compilation["region"]
        return len(module.kernels), len(cluster.compilation["cpu"].routines)

    program = stack_of_blocks(12)
    executable = weft.compile(program)
    kernels, routines = distinct(executable)
    assert kernels >= 24
    assert routines <= 4
    inputs = data_for(program)
    assert close(executable(*inputs)[0], weft.run(program, inputs)[0])


# -- limits ----------------------------------------------------------------------------------------


def spread(rows: int | str = 8) -> tuple[Builder, Any]:
    """A builder, and a tensor of 64 columns that is made from one."""
    b = Builder()
    x = b.param("f32", [rows, 1])
    return b, b.exp(b.broadcast_to(x, [x.shape[0], 64]))


def test_a_result_over_the_limit_is_refused_before_it_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WEFT_MAX_TENSOR_BYTES", "1024")
    b, x = spread()
    with pytest.raises(ResourceExceeded, match=r"the result of %\d+ = exp.* need 2,048 bytes"):
        weft.compile(b.build(x))
    b, x = spread("?N")
    compiled = weft.compile(b.build(x))
    assert compiled(np.ones((4, 1), np.float32))[0].shape == (4, 64)
    with pytest.raises(ResourceExceeded, match=r"the result of %\d+ = exp.* need 2,048 bytes"):
        compiled(np.ones((8, 1), np.float32))


def test_only_what_has_to_be_in_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MAX_TENSOR_BYTES", "1024")
    b, x = spread()
    fused = weft.compile(b.build(b.reduce_sum(x, [0, 1])))
    assert fused(np.zeros((8, 1), np.float32))[0] == 512
    b, x = spread()
    held = b.emit("cumulative_sum", x, axis=0)
    with pytest.raises(ResourceExceeded, match=r"the result of %\d+ = .* need 2,048 bytes"):
        weft.compile(b.build(b.reduce_sum(held, [0, 1]), b.reduce_max(held, [0, 1])))


def test_a_state_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MAX_TENSOR_BYTES", "16")
    b = Builder()
    x = b.param("f32", [8])
    with pytest.raises(ResourceExceeded, match=r"a state of type f32\[8\] would need 32 bytes"):
        weft.compile(b.build(b.exp(x)), state=[0])


def test_running_out_of_memory_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise MemoryError

    b = Builder("big")
    compiled = weft.compile(b.build(b.exp(b.param("f32", [2]))))
    bound = compiled.bind([])
    monkeypatch.setattr("weft.runtime.executor._Workspace", full)
    for call in (compiled, bound):
        with pytest.raises(ResourceExceeded, match=r"out of memory while running @big$"):
            call(np.ones(2, np.float32))


@pytest.mark.parametrize("leave", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_is_compiled_stays_in_its_process(leave: Callable[[Any], Any]) -> None:
    b = Builder()
    x = b.param("f32", ["?N"])
    whole, open_size = weft.compile(mlp()), b.build(x + x)
    shaped = weft.compile(open_size, shapes=weft.ShapeSet())
    bound = weft.compile(mlp(), params=[1, 2]).bind(data_for(mlp())[1:])
    for compiled in (whole, shaped, bound):
        with pytest.raises(UserError, match="send the program and compile it there") as raised:
            leave(compiled)
        assert raised.value.code == "CannotBePickled"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (weft.compile, "weft.compile has no option 'nope'; it takes program, target, params, "),
        (weft.run, "weft.run has no option 'nope'; it takes program, inputs, backend, "),
    ],
)
def test_an_unknown_option_is_told(call: Any, message: str) -> None:
    with pytest.raises(UserError) as raised:
        call(mlp(), nope=1)
    assert message in str(raised.value)
    assert isinstance(raised.value, TypeError)


def test_an_option_with_a_near_name_is_told() -> None:
    call: Any = weft.compile
    with pytest.raises(UserError, match="has no option 'optlevel', but opt_level; it takes"):
        call(mlp(), optlevel=3)


@pytest.mark.parametrize("text", ["0", "-1", "abc", "2.5"])
def test_a_wrong_thread_count_is_told_when_a_program_is_compiled(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a kernel this small is never cut in pieces."""
    b = Builder()
    x = b.param("f32", [4])
    monkeypatch.setenv("WEFT_NUM_THREADS", text)
    with pytest.raises(UserError, match=r"WEFT_NUM_THREADS is .*; it must be a number from 1"):
        weft.compile(b.build(x * x))


def test_a_target_that_there_is_not_is_told_with_the_line() -> None:
    b = Builder()
    with pytest.raises(
        UserError, match=r"^UnknownTarget at test_compile\.py:\d+: there is no targ"
    ):
        weft.compile(b.build(b.param("f32", [2]) * 2.0), "sm12")
