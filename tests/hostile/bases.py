"""One small valid program for every op, in its JSON form: what the systematic tables distort."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from functools import cache
from typing import Any

from weft.foundation.dtypes import ALL, CF32, F32, I1, SI32, DType
from weft.ptir import Builder, Program, Value, dumps
from weft.ptir.op import Op, all_ops
from weft.ptir.types import TensorType, tensor
from weft.testing.conformance.table import all_cases

Json = Any

X = "f32 2 3"
NO_AXES: dict[str, Any] = {"batch_lhs": [], "batch_rhs": []}
PAD_NOTHING = {"base_dilation": [1, 1], "window_dilation": [1, 1]}

# Operand types and attributes, where the elementwise default (see `_guess`) will not do. A name is
# one of the op's spellings.
MADE: dict[str, tuple[list[str], dict[str, Any]]] = {
    "dot_general": ([X, "f32 3 2"], {**NO_AXES, "contract_lhs": [1], "contract_rhs": [0]}),
    "reduce_sum": ([X], {"axes": [1], "keepdims": False}),
    "arg_max": ([X], {"axis": 1, "keepdims": False, "output_dtype": "si64"}),
    "argmin": ([X], {"axis": 1, "keepdims": False, "output_dtype": "si64"}),
    "compare": ([X, X], {"op": "less"}),
    "select": (["i1 2 3", X, X], {}),
    "cast": ([X], {"dtype": "si8"}),
    "bitcast": ([X], {"dtype": "si32"}),
    "reshape": ([X], {"new_shape": [3, 2]}),
    "transpose": ([X], {"perm": [1, 0]}),
    "broadcast_to": ([X], {"result_shape": [4, 2, 3]}),
    "slice": ([X], {"starts": [0, 1], "sizes": [2, 2]}),
    "concat": ([X, X], {"axis": 1}),
    "pad": ([X], {"low": [1, 0], "high": [0, 1], "interior": [0, 1]}),
    "tile": ([X], {"repeats": [2, 1]}),
    "iota": ([], {"shape": [2, 3], "dtype": "si32", "axis": 1}),
    "take": ([X, "si32 4"], {}),
    "gather": ([X, "si64 2 2"], {"axis": 1}),
    "scatter_add": (
        ["f32 4 3", "si32 2", "f32 2 3"],
        {
            "update_window_dims": [1],
            "inserted_window_dims": [0],
            "scatter_dims_to_operand_dims": [0],
            "index_vector_dim": 1,
        },
    ),
    "scatter_reduce": ([X, "si32 2 2", "f32 2 2"], {"axis": 1, "reduce": "add"}),
    "dynamic_slice": ([X, "si32 2"], {"sizes": [1, 2]}),
    "dynamic_update_slice": ([X, "f32 1 2", "si32 2"], {"sizes": [1, 2]}),
    "extract_patches": (
        ["f32 1 4 2"],
        {"window": [2], "strides": [1], "dilation": [1], "padding": [(0, 1)]},
    ),
    "reduce_window": (
        [X],
        {
            "window_dims": [1, 2],
            "strides": [1, 1],
            "padding": [(0, 0), (1, 0)],
            "reduce": "sum",
            **PAD_NOTHING,
        },
    ),
    "rng_uniform": ([], {"shape": [2, 3], "dtype": "f32"}),
    "rng_normal": ([], {"shape": [2, 3], "dtype": "f32"}),
    "top_k": ([X], {"k": 2, "axis": 1, "largest": True, "indices_dtype": "si32"}),
    "segment_sum": (
        [X, "si32 2"],
        {"num_segments": 2, "indices_are_sorted": False, "unique": False},
    ),
    "quantize": ([X, "f32 3", "si8 3"], {"output_dtype": "si8", "axis": 1}),
    "dequantize": (["si8 2 3", "f32 3", "si8 3"], {"axis": 1, "output_dtype": "f32"}),
    "requantize": (
        ["si8 2 3", "f32 3", "si8 3", "f32", "ui8"],
        {"output_dtype": "ui8", "axis": 1},
    ),
    "layer_norm": ([X, "f32 3", "f32 3"], {"epsilon": 1e-5, "feature_axis": -1}),
    "clamp": ([X, X, X], {}),
    "complex": ([X, X], {}),
    "argsort": ([X], {"axis": 0, "descending": True, "output_dtype": "si32"}),
    "sort": ([X], {"axis": 0, "descending": True}),
    "searchsorted": (["f32 3", X], {"side": "right", "output_dtype": "si32"}),
    "cumulative_sum": ([X], {"axis": 0, "reverse": True}),
    "cumulative_prod": ([X], {"axis": 0, "reverse": True}),
    "cumulative_max": ([X], {"axis": 0, "reverse": True}),
    "cumulative_min": ([X], {"axis": 0, "reverse": True}),
    "reduce_prod": ([X], {"axes": [1], "keepdims": True, "accum_dtype": "f64", "out_dtype": "f64"}),
    "reduce_any": (["i1 2 3"], {"axes": [1], "keepdims": True}),
    "reduce_all": (["i1 2 3"], {"axes": [1], "keepdims": True}),
    "qr": (["f32 2 2"], {"mode": "reduced"}),
    "eigh": (["f32 2 2"], {}),
    "svd": (["f32 2 2"], {"full_matrices": True}),
    "lu": (["f32 2 2"], {}),
    "triangular_solve": (
        ["f32 2 2", "f32 2 3"],
        {"lower": True, "transpose": False, "unit_diagonal": False},
    ),
}  # fmt: skip


def _type(text: str) -> TensorType:
    dtype, *dims = text.split()
    return tensor(dtype, [int(dim) for dim in dims])


def _guess(cls: type[Op]) -> list[str]:
    """Operands of one type that the op is defined for: enough for elementwise ops."""
    table = next(iter(cls.rows().values()))
    defined: frozenset[DType] = frozenset.intersection(*table.values())
    preferred = [d for d in (F32, SI32, I1, CF32, *ALL) if d in defined]
    return [f"{preferred[0]} 2 3"] * len(cls.operands)


def _constant() -> Program:
    b = Builder()
    return b.build(b.constant([1.0, 2.0], "f32"))


def _custom_call() -> Program:
    b = Builder()
    x = b.param_of(_type(X))
    call = b.custom_call(
        "other.kernel.v1", x, output=x.type, size=3, ratio=0.5, on=True, name="n", sizes=[1, 2]
    )
    return b.build(call)


def _cholesky() -> Program:
    b = Builder()
    x = b.literal([[2.0, 1.0], [1.0, 2.0]], "f32")
    return b.build(b.emit("cholesky", x, upper=False))


def _cond() -> Program:
    b = Builder()
    p, x = b.param("i1"), b.param_of(_type(X))
    return b.build(b.cond(p, lambda r, a: r.neg(a), lambda r, a: r.exp(a), x))


def _while() -> Program:
    b = Builder()
    n = b.param("si32")

    def below_nine(r: Any, i: Value) -> tuple[Value, Value]:
        return i < 9, r.add(i, 0)

    return b.build(b.while_(below_nine, lambda r, i: r.add(i, 1), n))


def _scan() -> Program:
    b = Builder()
    total, x = b.param("f32"), b.param("f32", [4])

    def step(r: Any, total: Value, x: Value) -> tuple[Value, Value]:
        return r.add(total, x), r.neg(x)

    found = b.scan(step, [total], [x])
    return b.build(found[0], found[1])


KIT: dict[str, str | None] = {
    "byteir.non_zero": "byteir.non_zero/i1/rank0",
    "byteir.repeat": "byteir.repeat/f32/empty/repeats=si32",
    "byteir.resize": "byteir.resize/f32/nearest/asymmetric/one",
    "byteir.rng_normal": "byteir.rng_normal/f32/odd",
    "byteir.rng_uniform": "byteir.rng_uniform/f32/odd",
    "callback": None,
    "custom_gradient": None,
    "philox_bits": None,
    "philox_normal": None,
    "philox_uniform": None,
    "rng_state": None,
}
"""Ops whose program comes from the conformance kit, as those of all coarse ops do: from the case
with this id, which works on inputs that are all ones, or from the first one."""

SPECIAL = {
    "constant": _constant,
    "custom_call": _custom_call,
    "cholesky": _cholesky,
    "cond": _cond,
    "while": _while,
    "scan": _scan,
}


def _from_the_kit(cls: type[Op]) -> Program:
    """The program of an op's first case in the conformance kit, on f32 where there is one."""
    name = KIT.get(cls.name)
    cases = [case for case in all_cases() if case.row == cls.name and case.family != "rejections"]
    chosen = [case for case in cases if case.id == name] or sorted(
        cases, key=lambda case: case.dtype is not F32
    )
    return replace(chosen[0].trial().program(), locations={})


def program_of(cls: type[Op]) -> Program:
    """The program for an op, with one instruction of it and all its results returned."""
    if cls.name in SPECIAL:
        return SPECIAL[cls.name]()
    if cls.name in KIT or cls.__module__.startswith(("weft.coarse", "weft.ptir.ops.collective")):
        return _from_the_kit(cls)
    name = next((s for s in cls.spellings() if s in MADE), next(iter(cls.spellings())))
    kinds, attrs = MADE[name] if name in MADE else (_guess(cls), {})
    b = Builder()
    value = b.emit(name, *[b.param_of(_type(kind)) for kind in kinds], **attrs)
    return b.build(*value) if hasattr(value.type, "elements") else b.build(value)


@cache
def _texts() -> dict[str, str]:
    texts = {cls.name: str(dumps(program_of(cls), "json")) for cls in all_ops()}
    gc.collect()  # or the function that a program calls is found as long as nobody looks for cycles
    return texts


def bases() -> dict[str, Json]:
    """The JSON form of every op's program, fresh to be changed."""
    return {name: json.loads(text) for name, text in _texts().items()}


def instruction(program: Json) -> Json:
    """The instruction with the op: the first one of the first function that has one."""
    return program["functions"][0]["body"][0]
