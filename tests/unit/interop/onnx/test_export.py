"""Programs as ONNX models: ONNX's checker takes them, and read back, or run by ONNX's own evaluator
or ONNX Runtime, they give what the program gives."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import weft
from tests.hostile.bases import program_of
from tests.hostile.judge import inputs as ones
from tests.support import onnx_models as m
from tests.support.cases import each, one_in
from tests.support.command_line import weft_command
from weft import functional as F
from weft import nn
from weft.interop.onnx import export, load
from weft.ptir import Builder, Program
from weft.ptir.op import all_ops
from weft.testing.conformance.table import all_cases
from weft.testing.random_programs import random_program

REFUSED = {
    "rng_uniform", "rng_normal", "custom_call", "byteir.flash_attn_fwd", "byteir.rng_normal",
    "byteir.rng_uniform", "atan2", "weft.attention", "bitcast", "callback", "cholesky", "complex",
    "conj", "copysign", "cumulative_prod", "eigh", "imag", "lu", "nextafter", "philox_bits",
    "philox_normal", "philox_uniform", "qr", "real", "rng_state", "shift_left", "shift_right",
    "signbit", "svd", "triangular_solve", "weft.fourier",
}  # fmt: skip
"""Ops whose example ONNX cannot say: factorisations, complex numbers, random numbers, shifts of
signed integers; attention's has dropout."""


def close(found: Any, wanted: Any, bound: float = 2e-5) -> None:
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    if wanted.dtype.kind in "biu":
        np.testing.assert_array_equal(found, wanted)
    else:
        loose = {1: 0.3, 2: 2e-2}.get(wanted.dtype.itemsize, bound)
        wide = found.astype(np.float64), wanted.astype(np.float64)
        np.testing.assert_allclose(wide[0], wide[1], rtol=loose, atol=loose)


def check(program: Program, inputs: Any) -> None:
    """What the model gives, read back, is what the program gives."""
    wanted = weft.run(program, list(inputs), backend="reference")
    with weft.graph(backend="reference"):
        model = load(export(program).SerializeToString())
        found = [one.numpy() for one in model(*inputs).values()]
    for one, expected in zip(found, wanted, strict=True):
        close(one, expected)


ALONE = {cls.name for cls in all_ops() if not cls.__module__.endswith("ops.collective")}
"""Ops for one device: those of several ranks have no inputs of their own here."""


@each("name", sorted(ALONE))
def test_every_op_comes_back_or_is_refused_with_its_line(name: str) -> None:
    program = program_of(next(cls for cls in all_ops() if cls.name == name))
    if name not in REFUSED:
        check(program, ones(program))
        return
    with pytest.raises(weft.Unimplemented, match=r"ONNX|cf32"):
        export(program)


@pytest.mark.parametrize("start", one_in(4, range(0, 120, 30)))
def test_random_programs_come_back(start: int) -> None:
    """Refused ones name the op; none is wrong."""
    right = 0
    for seed in range(start, start + 30):
        case = random_program(seed, size=8, dtypes=["f32", "f64", "si32", "si64", "ui8", "i1"])
        try:
            check(case.program, case.inputs)
            right += 1
        except weft.Unimplemented as error:
            assert "ONNX" in str(error), seed  # noqa: PT017
    assert right > 5


CASES = [case for case in all_cases() if case.family != "rejections" and case.dtype is not None]


@pytest.mark.slow
@pytest.mark.parametrize("start", range(16))
def test_cases_of_the_conformance_kit_come_back(start: int) -> None:
    for case in CASES[start * 40 :: 640]:
        with np.errstate(all="ignore"):
            trial = case.trial()
        try:
            check(trial.program(), trial.inputs)
        except weft.Unimplemented:
            continue


def test_open_dims_are_named_axes() -> None:
    b = Builder()
    x, w = b.param("f32", ["?B", 3]), b.param("f32", [3, 2])
    program = b.build(b.softmax(b.tanh(x @ w)))
    model = export(program, inputs=["x", "w"], outputs=["y"])
    dims = model.graph.input[0].type.tensor_type.shape.dim
    assert [dims[0].dim_param, dims[1].dim_value] == ["B", 3]
    given = np.ones((4, 3), np.float32), np.eye(3, 2, dtype=np.float32)
    close(load(model.SerializeToString())(*given)["y"].numpy(), weft.run(program, list(given))[0])


class Net(nn.Module):
    """A convolution, a norm, attention and a hidden layer."""

    def __init__(self) -> None:
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiHeadAttention(8, 2, causal=True)
        self.out = nn.Linear(8, 5)

    def __call__(self, x: Any) -> Any:
        x = F.max_pool2d(F.gelu(self.conv(x)), 2)
        tokens = x.reshape((x.shape[0], 8, -1)).swapaxes(1, 2)
        mixed = tokens + self.attention(self.norm(tokens))
        return F.log_softmax(self.out(mixed).mean(axis=1), axis=-1)


def a_network() -> tuple[Net, Any]:
    nn.manual_seed(0)
    return Net(), np.random.default_rng(0).standard_normal((2, 3, 16, 16), np.float32)


def test_a_network_runs_in_onnx_runtime(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    net, x = a_network()
    export(net, tmp_path / "net.onnx", example=[x], inputs=["pixels"], outputs=["chances"])
    session = runtime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(["chances"], {"pixels": x})
    close(found, net(weft.asarray(x)).numpy(), 1e-4)


def test_a_network_keeps_the_operators_that_onnx_has() -> None:
    net, x = a_network()
    model = export(net, example=[x])
    kinds = {node.op_type for node in model.graph.node}
    assert {"MatMul", "LayerNormalization", "LogSoftmax", "Gelu"} <= kinds
    assert len(model.graph.initializer) >= len(net.state_dict())
    (found,) = load(model.SerializeToString())(x).values()
    close(found.numpy(), net(weft.asarray(x)).numpy(), 1e-4)


class Windows(nn.Module):
    """Convolutions of one group and of several, with strides, padding and dilation, and pools."""

    def __init__(self) -> None:
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.apart = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8, bias=False)
        self.grouped = nn.Conv2d(8, 16, (1, 3), groups=4)
        self.line = nn.Conv1d(16, 4, 3, padding=1)

    def __call__(self, x: Any) -> Any:
        x = F.max_pool2d(self.apart(self.first(x)), 3, stride=2, padding=1)
        x = F.avg_pool2d(self.grouped(x), 2)
        return F.softmax(self.line(x.reshape((x.shape[0], 16, -1))), axis=1)


def test_windows_are_convolutions_and_pools_of_onnx(tmp_path: Path) -> None:
    """Nothing is turned on the way: the weights are initialisers as they were."""
    nn.manual_seed(0)
    net, x = Windows(), np.random.default_rng(0).standard_normal((2, 3, 17, 17), np.float32)
    model = export(net, tmp_path / "net.onnx", example=[x])
    kinds = Counter(node.op_type for node in model.graph.node)
    assert (kinds["Conv"], kinds["MaxPool"], kinds["AveragePool"], kinds["Softmax"]) == (4, 1, 1, 1)
    assert not kinds.keys() & {"Gather", "MatMul", "Transpose", "Expand", "Pad"}
    wanted = net(weft.asarray(x)).numpy()
    (found,) = load(model.SerializeToString())(x).values()
    close(found.numpy(), wanted, 1e-5)
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    close(session.run(None, {"input_0": x})[0], wanted, 1e-5)


def test_choices_among_booleans_run_in_onnx_runtime() -> None:
    """Masks: ONNX has Where for booleans, ONNX Runtime has it not."""
    runtime = pytest.importorskip("onnxruntime")
    x = np.arange(12).reshape(3, 4) % 3 == 0
    for call in (
        weft.tril,
        lambda x: weft.where(x[:, :1], x, True),
        lambda x: weft.where(x, False, x[0]),
    ):
        model = export(call, example=[x])
        found = runtime.InferenceSession(model.SerializeToString()).run(None, {"input_0": x})[0]
        close(found, call(weft.asarray(x)).numpy())


def test_an_open_batch_goes_through_a_convolution() -> None:
    b = Builder()
    image, weight = b.param("f32", ["?N", 5, 5, 2]), b.param("f32", [18, 3])
    patches = b.emit(
        "extract_patches", image, window=(3, 3), strides=(1, 1), dilation=(1, 1),
        padding=((1, 1), (1, 1)), pad_value=0.0,
    )  # fmt: skip
    program = b.build(b.emit("dot_general", patches, weight, contract_lhs=(3,), contract_rhs=(0,)))
    model = export(program)
    assert "Conv" in {node.op_type for node in model.graph.node}
    rng = np.random.default_rng(0)
    check(program, [rng.standard_normal(s, np.float32) for s in ((4, 5, 5, 2), (18, 3))])


def test_a_model_goes_out_as_it_came_in() -> None:
    model = load(m.perceptron().SerializeToString())
    again = load(export(model).SerializeToString())
    assert (again.inputs, again.outputs) == (model.inputs, model.outputs)
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    close(again(x)["y"].numpy(), model(x)["y"].numpy())


def test_weft_convert_writes_onnx(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    onnx.save(m.perceptron(), str(tmp_path / "m.onnx"))
    assert weft_command("convert", tmp_path / "m.onnx", tmp_path / "m.ptir.json") == 0
    assert weft_command("convert", tmp_path / "m.ptir.json", tmp_path / "again.onnx") == 0
    onnx.checker.check_model(str(tmp_path / "again.onnx"), full_check=True)
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    given = "--input", f"input_0={tmp_path / 'x.npy'}"
    assert weft_command("run", tmp_path / "again.onnx", *given) == 0
    assert "f32[2, 2]" in capfd.readouterr().out


def test_mistakes_are_told(tmp_path: Path) -> None:
    b = Builder()
    program = b.build(b.param("f32", [2]))
    with pytest.raises(
        weft.UserError, match=r"\[export\] inputs are .*; 1 different names are want"
    ):
        export(program, inputs=["a", "b"])
    with pytest.raises(
        weft.UserError, match=r"\[export\] a program is wanted, or a function .*, not 3"
    ):
        export(3)  # type: ignore[arg-type]
    with pytest.raises(weft.UserError, match=r"\[export\] cannot write .*: No such file"):
        export(program, tmp_path / "no" / "m.onnx")
