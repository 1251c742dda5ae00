"""Damaged Core IR: each file is a module, or an error that Weft raises on purpose.

A module that loads can be shown, read back and verified; one that verifies is made canonical,
differentiated and run, or says why not. Nothing else ever happens.
"""

from __future__ import annotations

import math
import random
import re
import warnings
from functools import cache

import numpy as np
import pytest

import weft
from tests.hostile.judge import LONGEST_COMPLAINT
from tests.support.cases import one_in
from tests.support.core_modules import random_case
from tests.support.core_texts import CALLS, FIRST, SECOND, X
from tests.support.one_op import Array
from weft.core_ir import (
    Module,
    canonicalise,
    dumps,
    from_expression,
    gradient,
    loads,
    to_ptir,
    verify,
)
from weft.foundation.errors import InternalError, WeftError

CHUNK = 250
WORDS = [
    "0", "1", "-1", "2", "64", "9223372036854775807", "9223372036854775808", "1e400", "0.5", "inf",
    "nan", "true", "%", "%0", "%1", "%99", "?", '""', '"\\u0000"', "(", ")", "[", "]", "{", "}",
    "<", ">", ",", ":", "=", "0x", "0x00", "f32", "i32", "i64", "f64", "tensor", "Tensor", "Input",
    "Add", "BinOp", "Slice", "Conv2d", "Same", "Custom", "axes", "outputs", "extensions", "div",
    "gradient", "^", "#", "\n", "\x00", "\u0663", "$", "if",
]  # fmt: skip
_TOKENS = re.compile(r'"[^"]*"|[A-Za-z_]\w*|-?\d+(?:\.\d+)?(?:e[-+]?\d+)?|\s+|.', re.DOTALL)


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MAX_TENSOR_BYTES", str(1 << 20))


@cache
def originals() -> list[str]:
    """Modules of every instruction in both encodings, random ones, and gradients."""
    calls = [from_expression(X + c, extensions=["div", "gradient"]) for c in CALLS.values()]
    cases = [random_case(seed, size=6, div=True).module for seed in range(20)]
    smooth = [random_case(seed, size=6, dtypes=["f64"]).module for seed in range(10)]
    seeded = [m for m in smooth if m.types[m.outputs[0]].size]
    gradients = [gradient(m, output=0, seed="seed") for m in seeded]
    return [FIRST, SECOND, *map(dumps, [*calls, *cases, *gradients])]


def damaged(rng: random.Random, text: str) -> str:
    """The text with some of its tokens changed, exchanged, repeated or gone."""
    tokens: list[str] = _TOKENS.findall(text)
    for _ in range(rng.choice([1, 1, 2, 4])):
        a, b = rng.randrange(len(tokens)), rng.randrange(len(tokens))
        match rng.randrange(6):
            case 0:
                tokens[a], tokens[b] = tokens[b], tokens[a]
            case 1:
                tokens[a] = ""
            case 2:
                tokens.insert(a, tokens[b])
            case 3:
                tokens[a] = rng.choice(WORDS)
            case 4:
                tokens[a:a] = tokens[a : a + 30]
            case 5:
                numbers = [i for i, t in enumerate(tokens) if re.fullmatch(r"-?\d+", t)] or [a]
                tokens[rng.choice(numbers)] = rng.choice(["0", "1", "2", "3", "-1", "7", "1000"])
    return "".join(tokens)


def mutant(seed: int) -> bytes:
    rng = random.Random(seed)
    data = damaged(rng, rng.choice(originals())).encode(errors="replace")
    if rng.random() < 0.2:
        changed = bytearray(data or b"%")
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        data = bytes(changed)
    return data


def ones(module: Module) -> list[Array]:
    kinds = [op.result_type for op in module.inputs]
    if any(math.prod(kind.shape) > 1_000_000 for kind in kinds):
        return []
    return [np.ones(kind.shape, kind.dtype.numpy) for kind in kinds]


def readable(*complaints: str) -> None:
    assert all(len(complaint) < LONGEST_COMPLAINT for complaint in complaints)


def outcome(data: bytes) -> str:
    """What became of the file; any exception that is not Weft's own comes out."""
    try:
        module = loads(data)
    except InternalError:
        raise
    except WeftError as error:
        readable(str(error))
        return "rejected"
    assert loads(dumps(module)) == module
    findings = verify(module, collect=True)
    if findings:
        readable(*map(str, findings))
        return "invalid"
    canonical = canonicalise(module)
    assert canonicalise(canonical) == canonical
    for act in (
        lambda: gradient(module, output=0, seed="another seed"),
        lambda: weft.run(module, ones(module)),
    ):
        try:
            act()
        except InternalError:
            raise
        except WeftError as error:
            readable(str(error))
            return "refused"
    return "ok"


@pytest.mark.parametrize("chunk", one_in(2, range(8)))
def test_damaged_modules(chunk: int) -> None:
    found = {outcome(mutant(seed)) for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK)}
    assert found >= {"ok", "invalid", "rejected"}


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(8, 200))
def test_many_damaged_modules(chunk: int) -> None:
    found = {outcome(mutant(seed)) for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK)}
    assert found >= {"invalid", "rejected"}


@pytest.mark.parametrize("text", [FIRST, SECOND])
def test_truncated_modules(text: str) -> None:
    found = {outcome(text[:length].encode()) for length in range(len(text))}
    assert found == {"invalid", "rejected"}


@pytest.mark.parametrize("seed", range(4))
def test_damaged_expressions(seed: int) -> None:
    rng = random.Random(seed)
    sources = [X + call for call in CALLS.values()] + ["x: i32[3]; x[1:3] * 2 + [1, 2] - x[[0, 1]]"]
    for _ in range(500):
        try:
            module = from_expression(damaged(rng, rng.choice(sources)), extensions=["gradient"])
        except InternalError:
            raise
        except WeftError as error:
            readable(str(error))
            continue
        verify(module)


HUGE = [
    b"%0 = Input () {name=x} : tensor<f32[" + b"1, " * 100_000 + b"1]>\noutputs: %0",
    b"%0 = Input () {name=x} : tensor<f32[" + b"9" * 100_000 + b"]>\noutputs: %0",
    b"%" + b"9" * 100_000 + b" = Input",
    b"%0 = ConstTensor(" + b"[" * 100_000,
    b"%0 = ConstF32(" + b"9" * 100_000 + b") : tensor<f32[]>\noutputs: %0",
    b"%0 = ConstF32(1e" + b"9" * 100_000 + b") : tensor<f32[]>\noutputs: %0",
    b"%0 = ConstF32(0x" + b"0" * 100_001 + b") : tensor<f32[]>\noutputs: %0",
    b"%0 = Input () {name=" + b"x" * 100_000 + b"} : tensor<f32[0]>\noutputs: %0",
    b"%0 = " + b"x" * 100_000,
    b"#" * 1_000_000,
    b" " * 1_000_000,
    b"\xff" * 1000,
    b"%0 = ConstF32(1.0) : tensor<f32[]>\n%1 = ExpandDims(%0, ["
    + b", ".join(str(i).encode() for i in range(50_000))
    + b"]) : tensor<f32[]>\noutputs: %1",
    b"%0 = ConstF32(1.0) : tensor<f32[]>\n%1 = Reshape(%0, ["
    + b"1, " * 50_000
    + b"2]) : tensor<f32[]>\noutputs: %1",
]


@pytest.mark.parametrize("data", HUGE, ids=range(len(HUGE)))
def test_huge_texts_are_refused_quickly(data: bytes) -> None:
    assert outcome(data) in ("rejected", "invalid")


def test_padding_that_no_machine_holds() -> None:
    source = "x: f32[1, 2, 2, 1]; k: f32[1, 1, 1, 1];"
    huge = 2**61
    for padding in (f"[[{huge}, {huge}], [0, 0]]", f"[[0, {huge}], [{huge}, {huge}]]"):
        call = f"conv2d(x, k, [{huge}, {huge}], Custom({padding}))"
        with pytest.raises(WeftError):
            weft.run(from_expression(f"{source} {call}"), [np.ones((1, 2, 2, 1), "f4")] * 2)


def test_nothing_is_said_on_the_side() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = from_expression("const_f32(3e38) * 10 + const_f32(inf) - const_f32(inf)")
        weft.run(canonicalise(module))
        to_ptir(module)
