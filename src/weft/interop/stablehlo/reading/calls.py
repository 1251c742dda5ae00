"""Custom calls, and the operations that draw random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from weft.foundation.dtypes import F32, F64, I1, SI64
from weft.foundation.errors import SpecViolation
from weft.interop.stablehlo.reading.lapack import lapack_routine
from weft.interop.stablehlo.reading.shapes import broadcast_in_dim, shape_of
from weft.interop.stablehlo.reading.site import Lowering, Results, Site
from weft.interop.stablehlo.reading.sizes import SHAPE_OF
from weft.interop.stablehlo.reading.sorting import extremes
from weft.interop.stablehlo.reading.windows import reduce_window
from weft.interop.stablehlo.records import CALL_DICTIONARIES, HloTensor, MlirText, tensors
from weft.ptir.builder import Value
from weft.ptir.codecs.wire import STREAMED, decode_call, is_target
from weft.ptir.op import BY_TARGET, Op
from weft.ptir.ops.constant import CustomCall
from weft.ptir.schema import ShapeOf, attr_map
from weft.ptir.types import Dim, Shape, Symbol, TensorType, TupleType, ValueType, leaves

CARRIED: Final = {
    "api_version": 1,
    "backend_config": "",
    "backend_record": "",
    "called_computations": (),
}
"""Fields of a custom call that say nothing about its meaning, and what they usually are."""
CARRIED_PREFIX: Final = "mlir."
TEXT_PREFIX: Final = "mlir.attr."
"""Begins the names of attributes that PTIR has no class for: their values are MLIR's text."""
SEED: Final = "byre.GetSeed"
OFFSET: Final = "byre.NextOffset"
ERF: Final = "mhlo.erf"
TOP_K: Final = "mhlo.topk"
DRAWN: Final = ("byteir.rng_uniform", "byteir.rng_normal")
DRAWN_FROM: Final = 4
"""How many operands those have before the one that holds sizes."""
_MOST_NAME: Final = 60
_MOST_MESSAGE: Final = 400


def _custom_call(at: Site) -> Results:
    target = str(at.attr("call_target_name"))
    if target in _ABOUT_SIZES:
        return _ABOUT_SIZES[target](at)
    if at.attr("has_side_effect", False):
        at.refuse(f"the custom call {target[:_MOST_NAME]!r} has a side effect, and PTIR is pure")
    if (routine := lapack_routine(at, target)) is not None:
        return _plain_call(at, target, routine)
    if not is_target(target):
        at.refuse(
            f"the custom call {target[:_MOST_NAME]!r} is a kernel of another compiler; targets "
            "that PTIR can carry are named namespace.name.vN, as acme.fused_norm.v1"
        )
    if target not in _PLAIN_CALLS:
        return _carried_call(at, target)
    return _plain_call(at, target, _PLAIN_CALLS[target])


def _plain_call(at: Site, target: str, call: tuple[int, int, Lowering]) -> Results:
    operands, results, lower = call
    if (len(at.x), len(at.op.types)) != (operands, results):
        raise SpecViolation(
            "ArityMismatch",
            f"{target} takes {operands} operands and has {results} results, not {len(at.x)} and "
            f"{len(at.op.types)}",
        )
    found = lower(at)
    values = [found] if isinstance(found, Value) else list(found)
    _check_declared(at, target, [leaf for value in values for leaf in leaves(value.type)])
    return values


def _shape_assertion(at: Site) -> Results:
    """What jax demands of sizes. Those that must be equal become one, and a demand on numbers is
    checked here; one on open sizes (that they are at least 1) is left to the ops, which check
    what they need."""
    if at.reader.is_false(at.op.operands[0]):
        said = str(at.attr("error_message", "")).strip()[:_MOST_MESSAGE]
        raise SpecViolation("ShapeMismatch", said or "the sizes break a shape assertion")
    return []


def _dynamic_reduce_window(at: Site) -> Results:
    """The form of `reduce_window` whose attributes are operands."""
    called = at.attr("called_computations", ())
    if len(called) != 1 or len(at.x) != len(_WINDOW) + 3:
        at.refuse("it has other operands than one tensor, its start, and five lists of numbers")
    attributes: dict[str, Any] = {name: at.numbers(2 + k) for k, name in enumerate(_WINDOW)}
    ends = at.numbers(2 + len(_WINDOW))
    attributes["padding"] = tuple(zip(ends[::2], ends[1::2], strict=True))
    block = at.reader.function(str(called[0]).lstrip("@"))
    op = replace(at.op, operands=at.op.operands[:2], attributes=attributes, blocks=(block,))
    return reduce_window(Site(at.reader, at.b, op, at.x[:2], at.env))


_WINDOW: Final = ("window_dimensions", "window_strides", "base_dilations", "window_dilations")
_ABOUT_SIZES: Final[Mapping[str, Lowering]] = {
    "shape_assertion": _shape_assertion,
    "stablehlo.dynamic_reduce_window": _dynamic_reduce_window,
}
"""Calls by which jax says what StableHLO has no operation for, where sizes are open."""


def _part_of_state(index: int) -> Lowering:
    return lambda at: at.sliced(at.b.emit("rng_state"), [index], [1]).reshape(())


def _erf(at: Site) -> Value:
    return at.b.emit("erf", at.x[0])


def _top_k(at: Site) -> Results:
    given = _dictionary(at, "mhlo.attributes")
    k, largest = given.get("k"), given.get("largest", True)
    if not isinstance(k, int) or isinstance(k, bool) or not isinstance(largest, bool):
        raise at.violation(f"{TOP_K} needs the attribute 'k', a number, and may have 'largest'")
    return extremes(at, k, largest)


_PLAIN_CALLS: Final[Mapping[str, tuple[int, int, Lowering]]] = {
    SEED: (0, 1, _part_of_state(0)),
    OFFSET: (0, 1, _part_of_state(1)),
    SHAPE_OF: (1, 1, shape_of),
    ERF: (1, 1, _erf),
    TOP_K: (1, 2, _top_k),
}
"""Calls that are ops of PTIR by another name: how many operands and results, and which ops."""


def _dictionary(at: Site, name: str) -> Mapping[str, Any]:
    found = at.attr(name, {})
    if not isinstance(found, Mapping):
        raise at.violation(f"{name} of a custom call is a dictionary of attributes")
    return found


def _carried_call(at: Site, target: str) -> Results:
    attrs = {
        name: value for part in CALL_DICTIONARIES for name, value in _dictionary(at, part).items()
    }
    fields = _unusual_fields(at)
    known = STREAMED.get(target) or BY_TARGET.get(target)
    if known is None:
        attrs = {_carried_name(name, value): value for name, value in attrs.items()}
        attrs.update({CARRIED_PREFIX + name: value for name, value in fields.items()})
    kinds = [_declared_type(at, target, index) for index in range(len(at.op.types))]
    output = kinds[0] if len(kinds) == 1 else TupleType(tuple(kinds))
    shapes = _shapes_given(known, attrs) if known else []
    attrs.update(dict.fromkeys(shapes, ()))
    op = decode_call(CustomCall(target, attr_map(attrs)), output)
    if isinstance(op, CustomCall):
        found = at.b.append(op, at.x, output)
    else:
        found = _known_call(at, target, op, shapes)
        if fields:
            at.reader.keep_fields(at.b, found, fields)
    return [found] if len(kinds) == 1 else list(found)


def _carried_name(name: str, value: Any) -> str:
    return TEXT_PREFIX + name if isinstance(value, MlirText) else name


def _shapes_given(known: type[Op], attrs: Mapping[str, Any]) -> list[str]:
    """The attributes of an op that are shapes and that the call leaves out: it has them as its last
    operands."""
    kinds = known.call_attributes()
    return [n for n, kind in kinds.items() if isinstance(kind, ShapeOf) and n not in attrs]


def _known_call(at: Site, target: str, op: Op, shapes: Sequence[str] = ()) -> Value:
    """An op of Weft's. Its own rule knows more about sizes than a type with open ones; what the
    text says of the results must agree with it."""
    args = at.aligned(at.x) if op.elementwise and at.is_lifted() else at.x
    if shapes:
        if len(args) < len(shapes):
            raise at.violation(f"{target} needs the attribute {shapes[0]!r}, or it as an operand")
        args, first = args[: len(args) - len(shapes)], len(args) - len(shapes)
        sizes: Any = {name: at.sizes(first + index) for index, name in enumerate(shapes)}
        op = replace(op, **sizes)
    found = at.settled(lambda: at.b.append(op, args))
    _check_declared(at, target, list(leaves(found.type)))
    return found


def _check_declared(at: Site, target: str, found: Sequence[TensorType]) -> None:
    """The declared results are those that the call has; a size that the text gives is known."""
    declared = [leaf for kind in at.op.types for leaf in tensors(kind)]
    if len(declared) != len(found):
        raise SpecViolation(
            "OutputTypeMismatch",
            f"{target} has {len(found)} results here, but {len(declared)} are declared",
        )
    for index, (kind, said) in enumerate(zip(found, declared, strict=True)):
        # What a region says of single elements holds for the dtype of whole tensors.
        dims = kind.shape if at.is_lifted() else said.dims
        if kind.dtype is not said.dtype or not _may_be(kind.shape, dims):
            raise SpecViolation(
                "OutputTypeMismatch",
                f"result {index} of {target} is {kind}, but {said} is declared",
            )
        for size, wanted in zip(kind.shape, dims, strict=True):
            if isinstance(size, Symbol) and isinstance(wanted, int):
                at.reader.same((size, wanted))


def _may_be(shape: Shape, dims: Sequence[Dim | None]) -> bool:
    """Whether no size that is known contradicts one that is declared."""
    return len(shape) == len(dims) and not any(
        isinstance(size, int) and isinstance(said, int) and size != said
        for size, said in zip(shape, dims, strict=True)
    )


def _declared_type(at: Site, target: str, index: int) -> ValueType:
    """The type of a result; what draws numbers has open sizes from its last operand."""
    kind = at.op.types[index]
    drawn = target in DRAWN and len(at.x) > DRAWN_FROM
    if drawn and isinstance(kind, HloTensor) and not kind.is_static:
        return TensorType(kind.dtype, at.sizes(DRAWN_FROM))
    return at.kind(index)


def _unusual_fields(at: Site) -> dict[str, Any]:
    """The fields of the call itself, where they are not the usual ones: a target that Weft does
    not know carries them as attributes, beside one that it knows they are noted."""
    given = {name: at.attr(name) or usual for name, usual in CARRIED.items()}
    return {name: value for name, value in given.items() if value != CARRIED[name]}


# -- random numbers ------------------------------------------------------------------------------


def _rng(at: Site) -> Value:
    """Uniform in [a, b), or normal with mean a and deviation b, from a stream of the run."""
    low, high = at.x[0], at.x[1]
    shape, dtype = at.shape(), at.result().dtype
    low, high = (broadcast_in_dim(at, v, [], shape) for v in (low, high))
    if at.word("rng_distribution") == "NORMAL":
        return low + at.b.emit("rng_normal", shape=shape, dtype=dtype) * high
    if dtype.is_float:
        return low + at.b.emit("rng_uniform", shape=shape, dtype=dtype) * (high - low)
    if dtype is I1:
        return at.b.emit("rng_uniform", shape=shape, dtype=F32) < 0.5
    draw = at.b.emit("rng_uniform", shape=shape, dtype=F64)
    width = at.b.cast(at.b.cast(high, SI64) - at.b.cast(low, SI64), F64)
    step = at.b.cast(at.b.emit("floor", draw * width), SI64)
    return at.b.cast(at.b.cast(low, SI64) + step, dtype)


CALLS: Final[Mapping[str, Lowering]] = {
    "custom_call": _custom_call,
    "rng": _rng,
}
