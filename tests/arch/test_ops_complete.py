"""Every op is whole: docs, operands, dtypes, a type rule, a meaning, a place in the reference."""

from __future__ import annotations

import inspect
import re

from docs import generate_ops
from tests.support.cases import each
from weft.foundation.dtypes import ALL
from weft.ptir.composite import Composite
from weft.ptir.decompositions import DECOMPOSITIONS
from weft.ptir.op import BY_TARGET, CORE, SPELLINGS, Op, all_ops

OPS = all_ops()
BY_CLASS = each("cls", OPS)

# Ops whose result has the dtype that an attribute names, and ops on values of any type.
NO_DTYPE_TABLE = {
    "Constant": "its dtype is that of the literal",
    "CustomCall": "the declared output type is authoritative",
    "While": "its carries may be of any type, tuples included",
    "Scan": "its carries may be of any type, tuples included",
}
NO_OPERANDS = {"Constant", "Iota", "Rank", "RngUniform", "RngNormal", "RngState"}

EXTENSIONS = [
    "sqrt", "floor", "ceil", "trunc", "round", "sign", "sin", "cos", "tan", "asin", "acos",
    "atan", "atan2", "sinh", "cosh", "asinh", "acosh", "atanh", "expm1", "log1p", "exp2",
    "log2", "pow", "fmod", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not",
    "shift_left", "shift_right", "isnan", "isinf", "isfinite", "real", "imag", "conj",
    "complex", "nextafter", "sort", "argsort", "argmin", "searchsorted", "copysign", "signbit",
    "hypot", "logaddexp", "cumulative_sum", "cumulative_prod", "cumulative_max",
    "cumulative_min", "reduce_prod", "reduce_any", "reduce_all", "cholesky", "qr", "eigh",
    "svd", "lu", "triangular_solve", "rng_state", "philox_bits", "philox_uniform", "philox_normal",
    "make_tuple", "barrier", "bitcast", "custom_gradient", "callback",
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute",
    "collective_broadcast", "mesh_rank", "mark_varying", "assert_same", "reshard",
]  # fmt: skip


COARSE = [
    "layer_norm", "l2_norm", "softmax", "log_softmax", "gelu", "arg_max", "arg_min", "top_k", "erf",
    "addn", "one_hot", "repeat", "quantize", "dequantize", "resize", "rng_uniform", "rng_normal",
    "flash_attn_fwd", "flash_attn_bwd", "flash_attn_kvcache", "non_zero",
]  # fmt: skip
OURS = [
    *("weft.conv.v1", "weft.attention.v1"),
    *("weft.grouped_matmul.v1", "weft.grouped_outer.v1", "weft.fourier.v1"),
]


def overrides(cls: type[Op], method: str) -> bool:
    return getattr(cls, method) is not getattr(Op, method)


def test_the_contract_is_complete() -> None:
    assert sorted(CORE) == list(range(39))


@each("name", EXTENSIONS)
def test_the_extension_op_exists(name: str) -> None:
    cls = BY_TARGET[f"weft.{name}.v1"]
    assert cls.name == name
    assert cls.tag is None
    assert cls.wire_name == "CustomCall"


@each("target", [*(f"byteir.{n}" for n in COARSE), *OURS])
def test_the_coarse_op_exists(target: str) -> None:
    cls = BY_TARGET[target]
    assert issubclass(cls, Composite)
    assert cls.name == target.removesuffix(".v1")
    assert cls.decompose is not Composite.decompose
    assert cls in DECOMPOSITIONS


@BY_CLASS
def test_an_op_says_what_it_means(cls: type[Op]) -> None:
    doc = cls.__dict__.get("__doc__") or ""
    assert len(doc.split()) >= 4
    assert doc.rstrip().endswith(".")
    assert not doc.startswith(f"{cls.__name__}("), "this is the docstring that dataclass makes"


@BY_CLASS
def test_an_op_names_its_operands(cls: type[Op]) -> None:
    assert bool(cls.operands) == (cls.__name__ not in NO_OPERANDS)
    plain = [name.strip("*?") for name in cls.operands]
    assert len(set(plain)) == len(plain)
    assert all(re.fullmatch(r"[a-z][a-z_]*", name) for name in plain)


@BY_CLASS
def test_an_op_has_a_type_rule_and_a_meaning(cls: type[Op]) -> None:
    assert overrides(cls, "infer") or overrides(cls, "result_type")
    assert overrides(cls, "evaluate") or overrides(cls, "run_regions")
    assert overrides(cls, "run_regions") == overrides(cls, "with_regions")


@BY_CLASS
def test_an_op_has_a_dtype_table(cls: type[Op]) -> None:
    plain = {name.strip("*?") for name in cls.operands} | set(cls.all_attributes()) | {"result"}
    for spelling, table in cls.rows().items():
        assert spelling in cls.spellings()
        assert set(table) <= plain
        assert all(dtypes and dtypes <= set(ALL) for dtypes in table.values())
        if cls.__name__ in NO_DTYPE_TABLE:
            assert not table
        elif cls.operands:
            assert cls.operands[0].strip("*?") in table
        else:
            assert "dtype" in table or "result" in table


@BY_CLASS
def test_an_op_is_found_by_its_names(cls: type[Op]) -> None:
    for spelling, fixed in cls.spellings().items():
        assert SPELLINGS[spelling] == (cls, fixed)
        assert re.fullmatch(r"((byteir|weft)\.)?[a-z][a-z0-9_]*", spelling)
        assert ("." in spelling) == cls.__module__.startswith("weft.coarse.")


def test_no_two_ops_share_a_name() -> None:
    names = [name for cls in OPS for name in cls.spellings()]
    assert len(names) == len(set(names))
    assert set(names) == set(SPELLINGS)
    assert len({cls.__name__ for cls in OPS}) == len(OPS)


@BY_CLASS
def test_axes_that_count_from_the_end_are_attributes(cls: type[Op]) -> None:
    assert set(cls.relative_axes) <= set(cls.all_attributes())


@BY_CLASS
def test_an_op_is_in_the_reference(cls: type[Op]) -> None:
    page = generate_ops.PAGE.read_text()
    assert generate_ops.section(cls) in page
    doc = inspect.getdoc(cls)
    assert doc
    assert doc in page


def test_the_reference_is_up_to_date() -> None:
    assert generate_ops.PAGE.read_text() == generate_ops.render(), "run `make docs`"
