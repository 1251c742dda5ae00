"""What an op is, and the table of all of them.

An op is one class: its attributes are dataclass fields with a kind (`schema.attr`), and beside them
stand the operand names, the dtype table, the type rule (`infer`), the reference meaning
(`evaluate`) and the gradient rule (`vjp`). Everything else (codecs, printer, parser, docs) is
derived from that.

Three class decorators put a class into the table:

    @core_op(tag=4)             an op of the PTIR contract, with its bincode tag
    @extension_op("sqrt")       an op whose wire form is a CustomCall named weft.sqrt.v1
    @coarse_op("byteir.gelu")   the same under a public name

`infer` and `evaluate` see tensors only; control flow overrides `result_type` and `run_regions`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar, cast, dataclass_transform

from numpy.typing import NDArray

from weft.foundation.axes import normalise_axis
from weft.foundation.calls import told_outside
from weft.foundation.dtypes import DType, in_order
from weft.foundation.errors import InternalError, SpecViolation, Unimplemented
from weft.ptir.schema import Maybe, SchemaKind, attr, snake_case
from weft.ptir.term import Cotangents, Pullback
from weft.ptir.types import Dim, Symbol, TensorType, TupleType, ValueType

Array: TypeAlias = NDArray[Any]
Value: TypeAlias = "Array | tuple[Value, ...]"
"""What the reference computes: an array for a tensor, a tuple for a tuple."""


class RegionSignature(Protocol):
    """The part of a region that its user must agree with."""

    @property
    def parameters(self) -> tuple[ValueType, ...]: ...

    @property
    def results(self) -> tuple[ValueType, ...]: ...


class Scope(Protocol):
    """What a type rule may ask about the program around the instruction."""

    def region(self, region_id: int) -> RegionSignature:
        """The region with that id, or a violation."""
        ...

    def is_bound(self, symbol: Symbol) -> bool:
        """Whether a symbol has been given a size by a parameter or an earlier instruction."""
        ...


@dataclass(frozen=True)
class EvalContext:
    """What the reference meaning may use besides its operands."""

    output: ValueType
    """The declared type of the result, without symbols."""
    seed: int
    execution: Callable[[int], int]
    """How often the random stream with this number has been drawn from before in this run."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a tensor result."""
        if not isinstance(self.output, TensorType):
            raise InternalError("a tuple result has no single shape")
        return self.output.static_shape


@dataclass(frozen=True)
class RegionCall:
    """A request of a control-flow op: run this region on these values and send the results back."""

    region: int
    args: tuple[Value, ...]


RegionRun: TypeAlias = Generator[RegionCall, tuple[Value, ...], Value]


@dataclass(frozen=True)
class Op:
    """Base of every op."""

    name: ClassVar[str] = ""
    """Name in text and in the builder."""
    wire_name: ClassVar[str] = ""
    """Variant name in JSON and in the display form."""
    spec_name: ClassVar[str | None] = None
    """Name of the attribute record in the display form; None: the fields stand in the variant."""
    tag: ClassVar[int | None] = None
    """Bincode tag; None for ops whose wire form is a custom call."""
    call_target: ClassVar[str | None] = None
    """Custom-call target of an op that is not part of the contract."""
    newtype: ClassVar[bool] = False
    """Whether the single attribute is written bare, without a record around it."""
    operands: ClassVar[tuple[str, ...]] = ()
    """Operand names in order; `name?` may be absent, a last `*name` stands for one or more."""
    dtypes: ClassVar[Mapping[str, frozenset[DType]]] = {}
    """Which dtypes each operand (or attribute of that name) may have. The first is the op's row
    in the table op x dtype."""
    relative_axes: ClassVar[Mapping[str, int]] = {}
    """Attributes that the wire stores unsigned but people may write negative: operand to count
    by."""
    family: ClassVar[str] = ""
    """Heading in the op reference: the name of the module that defines the op."""
    elementwise: ClassVar[bool] = False
    """Whether each result element depends only on the operand elements at its own index."""
    random: ClassVar[bool] = False
    """Whether the op draws random numbers: never merged or folded."""
    foreign: ClassVar[bool] = False
    """Whether the op calls a function of the user's: only while a program runs, in this process."""
    dtype_bound: ClassVar[bool] = False
    """Whether the result belongs to its dtype, so that a wider one would give another result:
    random numbers, neighbours."""
    no_gradient: ClassVar[str] = ""
    """Why no gradient passes from the result to the operands; empty for an op with a rule."""

    def __post_init__(self) -> None:
        for name, kind in _fields_of_class(type(self)).kinds.items():
            try:
                checked = kind.check(getattr(self, name))
            except SpecViolation as error:
                raise SpecViolation(
                    error.code, f"attribute {name} of {self.mnemonic_safe}: {error.why}"
                ) from None
            object.__setattr__(self, name, checked)

    # -- attributes ------------------------------------------------------------------------------

    @classmethod
    def schema(cls) -> Mapping[str, SchemaKind]:
        """Attribute names and kinds, in wire order."""
        return _fields_of_class(cls).wire

    @classmethod
    def all_attributes(cls) -> Mapping[str, SchemaKind]:
        """Attribute names and kinds, those that the core wire form leaves out included."""
        return _fields_of_class(cls).kinds

    @classmethod
    def call_attributes(cls) -> dict[str, SchemaKind]:
        """Attribute names and kinds of the custom call that carries such an op."""
        said = {f.name for f in dataclasses.fields(cls) if f.metadata.get("declared", False)}
        return {
            name: kind for name, kind in _fields_of_class(cls).kinds.items() if name not in said
        }

    @classmethod
    def usual_attributes(cls) -> dict[str, Any]:
        """What the builder takes for attributes of which nothing is said."""
        usual = {field.name: field.metadata.get("usual") for field in dataclasses.fields(cls)}
        return {name: value for name, value in usual.items() if value is not None}

    @classmethod
    def needed_attributes(cls) -> tuple[str, ...]:
        """The attributes without which there is no such op."""
        return _fields_of_class(cls).needed

    @classmethod
    def declared_attributes(cls, output: ValueType) -> Mapping[str, Any]:
        """The attributes that a custom call leaves to the declared type of its result."""
        return {}

    @classmethod
    def spellings(cls) -> Mapping[str, Mapping[str, Any]]:
        """Names in text, each with the attributes that the name itself fixes."""
        return {cls.name: {}}

    @cached_property
    def same_key(self) -> Hashable:
        """What ops that are the same have in common, and others not."""
        return type(self), tuple(
            _hashable_value(getattr(self, name)) for name in self.all_attributes()
        )

    @property
    def mnemonic(self) -> str:
        """This op's name in text."""
        return self.name

    @property
    def mnemonic_safe(self) -> str:
        """A name that needs no checked attribute."""
        return self.name

    @classmethod
    def make(cls, types: Sequence[ValueType], **attrs: Any) -> Op:
        """The op for operands of these types, with negative axes counted from the end."""
        for name, operand in cls.relative_axes.items():
            value = attrs.get(name)
            if value is None or operand >= len(types):
                continue
            kind = types[operand]
            rank = kind.rank if isinstance(kind, TensorType) else 0
            attrs[name] = _count_from_end(value, rank, name)
        return cls(**attrs)

    @classmethod
    def rows(cls) -> Mapping[str, Mapping[str, frozenset[DType]]]:
        """The dtype table for the docs: spelling to operand to dtypes."""
        return {cls.name: cls.dtypes}

    # -- the type rule ---------------------------------------------------------------------------

    @property
    def dtype_table(self) -> Mapping[str, frozenset[DType]]:
        """The dtype table of this very op; those with a function attribute look it up."""
        return self.dtypes

    def result_type(self, types: Sequence[ValueType], scope: Scope) -> ValueType:
        """The type of the result, or a violation. Dims that cannot be named yet are `UNKNOWN`."""
        self.check_arity(len(types))
        tensors = [self._tensor(index, kind) for index, kind in enumerate(types)]
        if self.dtype_table:
            for index, kind in enumerate(tensors):
                self._check_dtype(self.operand_name(index), kind.dtype)
            for name, dtype in self._dtype_attributes():
                self._check_dtype(name, dtype)
        self.check_symbols(scope)
        return self.infer(*tensors)

    def infer(self, *types: TensorType) -> ValueType:
        """The type rule proper; arity, tensors and dtypes are already checked."""
        raise InternalError(f"{self.name} has no type rule")

    def check_symbols(self, scope: Scope) -> None:
        """Shapes written in attributes may only use symbols that are bound."""

    def check_arity(self, count: int) -> None:
        least, most = _arity(self.operands)
        if count < least or (most is not None and count > most):
            names = ", ".join(self.operands) or "none"
            raise SpecViolation(
                "ArityMismatch", f"{self.mnemonic} takes operands ({names}) but got {count}"
            )

    def operand_name(self, index: int) -> str:
        """The plain name of an operand."""
        return _plain_names(self.operands)[min(index, len(self.operands) - 1)]

    def _tensor(self, index: int, kind: ValueType) -> TensorType:
        if isinstance(kind, TupleType):
            raise SpecViolation(
                "TensorExpected",
                f"operand {self.operand_name(index)} of {self.mnemonic} is the tuple {kind}",
                "select an element of the tuple",
            )
        return kind

    def _dtype_attributes(self) -> Iterable[tuple[str, DType]]:
        table = self.dtype_table
        for name in _fields_of_class(type(self)).kinds:
            if name in table and isinstance(value := getattr(self, name), DType):
                yield name, value

    def _check_dtype(self, operand: str, dtype: DType) -> None:
        allowed = self.dtype_table.get(operand)
        if allowed is not None and dtype not in allowed:
            raise SpecViolation(
                "DTypeNotSupported",
                f"{self.mnemonic} is not defined for {operand} of dtype {dtype}",
                self.dtype_hint(dtype, allowed),
            )

    def dtype_hint(self, dtype: DType, allowed: frozenset[DType]) -> str:
        """What to do about an operand of a dtype that is not in the table."""
        return "defined for " + ", ".join(map(str, in_order(allowed)))

    # -- the reference meaning -------------------------------------------------------------------

    def evaluate(self, ctx: EvalContext, *args: Array) -> Value:
        """The result on concrete arrays; dtypes and shapes are already checked."""
        raise InternalError(f"{self.name} has no reference meaning")

    # -- the gradient ----------------------------------------------------------------------------

    def vjp(self, at: Pullback) -> Cotangents:
        """The cotangent of each operand, from those of the result: the adjoint of the derivative.

        Complex numbers count as pairs of real ones with the inner product `Re(conj(a) b)`, so the
        gradient of a real function of `z = x + i y` is `df/dx + i df/dy`."""
        raise Unimplemented(f"the gradient of {self.mnemonic}", "there is no rule for it")

    # -- for control flow ------------------------------------------------------------------------

    @property
    def regions(self) -> tuple[int, ...]:
        """Ids of the regions this op runs, in attribute order."""
        return ()

    def run_regions(self, ctx: EvalContext, *args: Value) -> RegionRun:
        """The reference meaning of a control-flow op: yields calls, returns the result."""
        raise InternalError(f"{self.name} runs no regions")

    def with_regions(self, rename: Mapping[int, int]) -> Op:
        """The same op on renamed regions."""
        return self

    def with_dims(self, replace: Callable[[Dim], Dim]) -> Op:
        """The same op with every dimension in its attributes replaced."""
        return self


def _hashable_value(value: Any) -> Hashable:
    """A float by its text, because 0.0 == -0.0 and nan != nan; everything else as it is."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, tuple):
        return tuple(map(_hashable_value, value))
    found: Hashable = value
    return found


class _Fields:
    """The attributes of a class of ops, worked out once."""

    def __init__(self, cls: type[Op]) -> None:
        fields = dataclasses.fields(cls)
        self.kinds: Mapping[str, SchemaKind] = {f.name: f.metadata["kind"] for f in fields}
        on_wire = [f.name for f in fields if f.metadata.get("wire", True)]
        self.wire: Mapping[str, SchemaKind] = {name: self.kinds[name] for name in on_wire}
        self.needed = tuple(f.name for f in fields if f.default is dataclasses.MISSING)
        self.unsaid = {n: None for n, kind in self.kinds.items() if isinstance(kind, Maybe)}
        """Those that need not be given, as they are then."""


_FIELDS: dict[type[Op], _Fields] = {}


def _fields_of_class(cls: type[Op]) -> _Fields:
    found = _FIELDS.get(cls)
    if found is None:
        found = _FIELDS[cls] = _Fields(cls)
    return found


@cache
def _arity(operands: tuple[str, ...]) -> tuple[int, int | None]:
    """The least and the largest number of operands with these names; None for any."""
    least = sum(not name.endswith("?") for name in operands)
    variadic = bool(operands) and operands[-1].startswith("*")
    return least, None if variadic else len(operands)


@cache
def _plain_names(operands: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.strip("*?") for name in operands)


OpClass = TypeVar("OpClass", bound=type[Op])

CORE: dict[int, type[Op]] = {}
BY_WIRE_NAME: dict[str, type[Op]] = {}
BY_TARGET: dict[str, type[Op]] = {}
SPELLINGS: dict[str, tuple[type[Op], Mapping[str, Any]]] = {}


@dataclass_transform(frozen_default=True, field_specifiers=(attr,))
def core_op(
    *, tag: int, spec: str | None = "", newtype: bool = False
) -> Callable[[OpClass], OpClass]:
    """Register an op of the contract. `spec` is the record name in the display form."""

    def decorate(cls: OpClass) -> OpClass:
        made = _finish(cls, snake_case(cls.__name__))
        made.tag, made.wire_name, made.newtype = tag, cls.__name__, newtype
        made.spec_name = f"{cls.__name__}Spec" if spec == "" else spec
        CORE[tag] = made
        BY_WIRE_NAME[made.wire_name] = made
        return made

    return decorate


@dataclass_transform(frozen_default=True, field_specifiers=(attr,))
def extension_op(name: str) -> Callable[[OpClass], OpClass]:
    """Register an op whose wire form is the custom call `weft.NAME.v1`."""
    return coarse_op(f"weft.{name}.v1", name)


@dataclass_transform(frozen_default=True, field_specifiers=(attr,))
def coarse_op(target: str, name: str = "") -> Callable[[OpClass], OpClass]:
    """Register an op whose wire form is the custom call `target`."""

    def decorate(cls: OpClass) -> OpClass:
        made = _finish(cls, name or target)
        made.call_target, made.wire_name = target, "CustomCall"
        BY_TARGET[target] = made
        return made

    return decorate


@dataclass_transform(frozen_default=True, field_specifiers=(attr,))
def op_base(cls: OpClass) -> OpClass:
    """A class whose attributes several ops inherit; not an op itself, so not in the table."""
    return cast(OpClass, dataclass(frozen=True)(cls))


def _count_from_end(value: Any, rank: int, name: str) -> Any:
    """Negative axes made positive; the others, right or wrong, are left to the type rule."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return tuple(_axis_from_end(item, rank, name) for item in value)
    return _axis_from_end(value, rank, name)


def _axis_from_end(value: Any, rank: int, name: str) -> Any:
    negative = isinstance(value, int) and value < 0
    return normalise_axis(value, rank, name) if negative else value


def _finish(cls: OpClass, name: str) -> OpClass:
    made = cast(OpClass, dataclass(frozen=True)(cls))
    made.name = name
    made.family = cls.__module__.rpartition(".")[2]
    for spelling, fixed in made.spellings().items():
        if spelling in SPELLINGS:
            raise InternalError(f"two ops are spelled {spelling}")
        SPELLINGS[spelling] = (made, fixed)
    return made


def make_op(name: str, types: Sequence[ValueType], attrs: Mapping[str, Any]) -> Op:
    """The op called `name` for operands of these types; optional attributes may be left out."""
    cls, fixed = SPELLINGS[name]
    return cls.make(types, **{**_fields_of_class(cls).unsaid, **fixed, **attrs})


@told_outside
def all_ops() -> list[type[Op]]:
    """Every registered op: the contract's by tag, then the others by name."""
    return [CORE[tag] for tag in sorted(CORE)] + [BY_TARGET[t] for t in sorted(BY_TARGET)]
