"""Conversion targets, and what everything that reads a program to write another form needs.

A conversion target is an object with the attributes and the method of `ConversionTarget`. Weft's
own write PTIR's formats; others announce themselves through the entry-point group `weft.targets`
(each entry names a target object) or with `register_conversion_target`.

    convert(program, "ptir-json")               verify, then hand the program to a target
    walk_program(program)                       every instruction, in one order for all
    entry_point_names(program)                  a C identifier for every function
    check_program_legality(program, backend)    what a backend lacks, as findings
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from weft.driver.backends import check_wire_names
from weft.driver.loading.plugins import (
    Registry,
    blaming,
    check_members,
    described,
    identified,
)
from weft.foundation.dtypes import DType, in_order
from weft.foundation.errors import Finding, PluginFault, Unimplemented, UserError
from weft.ptir.files import dumps
from weft.ptir.ir import (
    Body,
    Function,
    HintKind,
    HintPolicy,
    HintRegion,
    Instruction,
    Program,
    ValueKey,
)
from weft.ptir.literal import TensorLiteral
from weft.ptir.op import Op
from weft.ptir.ops.constant import CustomCall
from weft.ptir.types import leaves
from weft.ptir.verify import verify

# -- targets -------------------------------------------------------------------------------------


class ConversionTarget(Protocol):
    """Something that writes a program in another form."""

    @property
    def name(self) -> str:
        """The name by which users ask for it."""
        ...

    @property
    def description(self) -> str:
        """What it writes, in a few words."""
        ...

    @property
    def extension(self) -> str:
        """How the names of the files it writes end: `.json`."""
        ...

    def convert(self, program: Program) -> str | bytes:
        """The program, which verifies, in the target's form; `Unimplemented` where it cannot."""
        ...


@dataclass(frozen=True)
class PtirFormat:
    """A target that writes one of PTIR's own formats."""

    name: str
    description: str
    extension: str
    format: str

    def convert(self, program: Program) -> str | bytes:
        return dumps(program, self.format)


_OWN: dict[str, ConversionTarget] = {
    target.name: target
    for target in (
        PtirFormat("ptir-text", "PTIR as text that people read and edit", ".txt", "text"),
        PtirFormat("ptir-json", "PTIR as JSON, for interchange", ".json", "json"),
        PtirFormat("ptir-bincode", "PTIR as bincode, small and fast to read", ".bin", "bincode"),
    )
}


def check_target(target: Any) -> None:
    """An object is a conversion target: it has every member."""
    check_members(target, ConversionTarget, "conversion target")
    for member in ("description", "extension"):
        value = getattr(target, member)
        if not isinstance(value, str):
            what = f"the conversion target {target.name!r}"
            raise UserError(f"{what} has the {member} {described(value)}, which is not a text")


REGISTRY: Registry[ConversionTarget] = Registry(
    "conversion target", "weft.targets", check_target, tuple(_OWN), _OWN.__getitem__
)


def register_conversion_target(target: ConversionTarget) -> None:
    """Make a target known under its name, for this process; an earlier one of that name goes."""
    REGISTRY.register(target)


def conversion_target_names() -> list[str]:
    """Every known target: Weft's own, the registered, the installed."""
    return REGISTRY.names()


def get_conversion_target(name: str) -> ConversionTarget:
    """The target with that name; `package.module:OBJECT` names one that is not installed."""
    return REGISTRY.get(name)


def convert(program: Program, target: str) -> str | bytes:
    """The program in the form of the target with that name. It is verified first."""
    chosen = get_conversion_target(target)
    verify(program)
    if isinstance(chosen, PtirFormat):
        return chosen.convert(program)
    what = identified(chosen, "conversion target")
    with blaming(what, "convert"):
        found = chosen.convert(program)
    if not isinstance(found, str | bytes):
        raise PluginFault(what, f"made {described(found)}, which is neither text nor bytes")
    if isinstance(found, str) and not _is_unicode(found):
        raise PluginFault(what, "made text with half of a surrogate pair, which no file can hold")
    return found


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# -- traversal -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Visit:
    """An instruction where `walk_program` meets it."""

    body: Body
    position: int
    """Its index in the body."""
    instruction: Instruction
    path: tuple[ValueKey, ...]
    """The control-flow instructions around it, outermost first."""

    @property
    def depth(self) -> int:
        """How many regions it stands in."""
        return len(self.path)


def walk_program(program: Program) -> Iterator[Visit]:
    """Every instruction: the entry function first, then the other functions in their order.

    The regions of a control-flow instruction come right after it, in the order of its attributes
    and with all that is inside them. A region that is used more than once is visited at its first
    use only; one that nothing uses is not visited.
    """
    entered: set[int] = set()
    for function in sorted(program.functions, key=lambda f: f.name != program.entry):
        stack = [_visits(function, ())]
        while stack:
            visit = next(stack[-1], None)
            if visit is None:
                stack.pop()
                continue
            yield visit
            inside = (*visit.path, (visit.body.label, visit.instruction.id))
            for region_id in reversed(dict.fromkeys(visit.instruction.op.regions)):
                region = program.regions_by_id.get(region_id)
                if region is not None and region_id not in entered:
                    stack.append(_visits(region, inside))
            entered.update(visit.instruction.op.regions)


def _visits(body: Body, path: tuple[ValueKey, ...]) -> Iterator[Visit]:
    for position, instruction in enumerate(body.body):
        yield Visit(body, position, instruction, path)


# -- names ---------------------------------------------------------------------------------------

_PREFIX = "ptir_"
_PLAIN = re.compile(r"[A-Za-z0-9]+(?:_[A-Za-z0-9]+)*")
_ENDS_LIKE_MANGLED = re.compile(r"(?:^|_)h[0-9a-f]{24}$")
_LONGEST_STEM = 31
"""Characters of a name that are kept."""


def entry_point_names(program: Program) -> dict[str, str]:
    """A C identifier for each function, by the function's name.

    `ptir_` and the name, where that is a short ASCII identifier; otherwise what can be kept of the
    name and a digest of it. An identifier depends on the function's own name only, so it does not
    change with what else is in the program, and two names never share one: a plain name that ends
    as if it had a digest gets one too.
    """
    return {function.name: _identifier(function.name) for function in program.functions}


def entry_point_name(program: Program, function: str | None = None) -> str:
    """The C identifier of the entry function, or of the function with that name."""
    name = program.entry if function is None else function
    names = entry_point_names(program)
    if name not in names:
        raise UserError(f"the program has no function @{name}; it has {', '.join(names) or 'none'}")
    return names[name]


def _identifier(name: str) -> str:
    kept = name if len(name) <= _LONGEST_STEM else ""
    if _PLAIN.fullmatch(kept) and not _ENDS_LIKE_MANGLED.search(kept):
        return _PREFIX + name
    stem = re.sub(r"[^A-Za-z0-9]+", "_", name[: 4 * _LONGEST_STEM]).strip("_")[:_LONGEST_STEM]
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return f"{_PREFIX}{stem.rstrip('_')}_h{digest}".replace("__", "_")


# -- legality ------------------------------------------------------------------------------------


class Capabilities(Protocol):
    """The part of a `Backend` that says what it can do."""

    @property
    def name(self) -> str: ...

    @property
    def dtypes(self) -> frozenset[DType]: ...

    @property
    def ops(self) -> frozenset[str]: ...

    @property
    def hints(self) -> frozenset[HintKind]: ...

    def supports(self, op: Op) -> bool: ...


@dataclass(frozen=True)
class LegalitySpec:
    """What something that is not a backend can do: a conversion target, a device, a release."""

    name: str
    ops: frozenset[str]
    dtypes: frozenset[DType]
    targets: frozenset[str] = frozenset()
    """Custom-call targets, those of extension ops included."""
    hints: frozenset[HintKind] = frozenset()

    def __post_init__(self) -> None:
        check_wire_names(self.ops, f"the specification {self.name!r}")

    def supports(self, op: Op) -> bool:
        return call_target(op) in self.targets


def call_target(op: Op) -> str | None:
    """The custom-call target of an op that is not part of the contract."""
    return op.target if isinstance(op, CustomCall) else op.call_target


def is_supported(op: Op, backend: Capabilities) -> bool:
    """Whether a backend carries out an op, its dtypes aside."""
    return op.wire_name in backend.ops if call_target(op) is None else backend.supports(op)


def check_program_legality(program: Program, backend: Capabilities) -> list[Finding]:
    """Everything in a program that a backend does not support, in the order of `walk_program`.

    The codes are UnsupportedOp, UnsupportedCustomCall, UnsupportedDType and UnsupportedHint. An
    empty list means that the backend accepts the program.
    """
    return [finding for _, finding in _illegal(program, backend)]


def require_legal(program: Program, backend: Capabilities) -> None:
    """Raise `Unimplemented` for the first thing that a backend does not support."""
    for op, finding in _illegal(program, backend):
        raise Unimplemented(op, f"{finding.why}; it is {finding.where}")


def _illegal(program: Program, backend: Capabilities) -> Iterator[tuple[str, Finding]]:
    """Findings, each with the name of the op (or parameter, or hint) it is about."""
    entered: set[str] = set()
    for visit in walk_program(program):
        if visit.body.label not in entered:
            entered.add(visit.body.label)
            yield from _illegal_parameters(visit.body, backend)
        lacking = _dtypes(visit.instruction) - backend.dtypes
        supported = is_supported(visit.instruction.op, backend)
        if lacking or not supported:
            where = program.place(visit.body, visit.instruction)
            yield from _illegal_op(visit.instruction.op, where, backend, supported, lacking)
    for function in program.functions:
        if function.label not in entered:
            yield from _illegal_parameters(function, backend)
        yield from _illegal_hints(function, backend)


def _dtypes(instruction: Instruction) -> set[DType]:
    """The dtypes of an instruction's result, its literals and its attributes."""
    literals = (o.type for o in instruction.operands if isinstance(o, TensorLiteral))
    kinds = (instruction.output, *literals)
    attributes = (value for value in vars(instruction.op).values() if isinstance(value, DType))
    return {leaf.dtype for kind in kinds for leaf in leaves(kind)}.union(attributes)


def _illegal_op(
    op: Op, where: str, backend: Capabilities, supported: bool, lacking: set[DType]
) -> Iterator[tuple[str, Finding]]:
    target = call_target(op)
    name = op.mnemonic if target is None else f"custom call {target!r}"
    if not supported:
        code = "UnsupportedOp" if target is None else "UnsupportedCustomCall"
        lacks = f"the op {name} (wire name {op.wire_name})" if target is None else f"the {name}"
        yield name, Finding(code, where, f"the backend {backend.name!r} does not support {lacks}")
    yield from _illegal_dtypes(name, where, backend, lacking)


def _illegal_parameters(body: Body, backend: Capabilities) -> Iterator[tuple[str, Finding]]:
    for value_id, kind in zip(body.parameter_ids, body.parameters, strict=True):
        lacking = {leaf.dtype for leaf in leaves(kind)} - backend.dtypes
        yield from _illegal_dtypes("parameter", f"%{value_id} of {body.label}", backend, lacking)


def _illegal_dtypes(
    name: str, where: str, backend: Capabilities, lacking: set[DType]
) -> Iterator[tuple[str, Finding]]:
    for dtype in in_order(lacking):
        why = f"the backend {backend.name!r} does not support the dtype {dtype}"
        supported = ", ".join(map(str, in_order(backend.dtypes)))
        yield name, Finding("UnsupportedDType", where, why, f"it supports {supported}")


def _illegal_hints(function: Function, backend: Capabilities) -> Iterator[tuple[str, Finding]]:
    for hint in function.hints:
        if hint.policy is HintPolicy.REQUIRED and hint.kind not in backend.hints:
            yield f"hint {hint.id}", _unmet(hint, function, backend)


def _unmet(hint: HintRegion, function: Function, backend: Capabilities) -> Finding:
    return Finding(
        "UnsupportedHint",
        f"hint {hint.id} of {function.label}",
        f"the backend {backend.name!r} cannot run a required {hint.kind} as one kernel",
        "make the policy Preferred if separate kernels will do",
    )
