"""The verifier: every rule of Core IR that can be checked without running a module.

It visits the operations once, in order, and reports all it finds. After a violation the declared
type of an operation stands, so that one mistake is reported once; where that type itself is out of
bounds, operations that use the value are not judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from weft.core_ir.infer import check_bounds, infer
from weft.core_ir.instructions import I64_MAX
from weft.core_ir.ir import CoreOperation, Module, type_of
from weft.core_ir.rules.checks import positive_dims
from weft.core_ir.types import TensorType, dtype_name, show_shape
from weft.foundation.calls import told_outside
from weft.foundation.errors import Finding, SpecViolation, UserError

MAX_FINDINGS = 1_000


@told_outside
def verify(
    module: Module, *, extensions: Iterable[str] = (), collect: bool = False
) -> list[Finding]:
    """Check a module, with more extensions switched on than it names itself if wanted.

    Raises `SpecViolation` with the first finding; with `collect`, returns them all, or after
    `MAX_FINDINGS` of them says that there are more.
    """
    if not isinstance(module, Module):
        raise UserError(f"verify takes a Core IR module, not {type(module).__name__}")
    found: list[Finding] = []
    for finding in _Verifier(module.with_extensions(extensions)).findings():
        if len(found) == MAX_FINDINGS:
            found.append(Finding("TooManyFindings", "module", "there are more findings than these"))
            break
        found.append(finding)
        if not collect:
            raise SpecViolation.of(found)
    return found


class _Verifier:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.types: dict[int, TensorType] = {}
        self.defined_at: dict[int, int] = {}
        self.unusable: set[int] = set()
        """Values whose types are out of bounds."""
        self.names: dict[str, int] = {}
        """The position of the input of each name."""
        self.later = {op.value_id: at for at, op in enumerate(module.operations)}
        self.free = max(self.later, default=-1) + 1

    def findings(self) -> Iterator[Finding]:
        for position, op in enumerate(self.module.operations):
            for error in self._operation(position, op):
                yield from error.at(self.module.place(position)).findings
            if op.value_id not in self.types:
                self.types[op.value_id] = op.result_type
                self.defined_at[op.value_id] = position
        yield from self._outputs()

    def _operation(self, position: int, op: CoreOperation) -> Iterator[SpecViolation]:
        yield from self._definition(op)
        yield from self._extension(op)
        undefined = [value_id for value_id in op.operands if value_id not in self.types]
        for value_id in dict.fromkeys(undefined):
            yield self._use_before_definition(value_id, position)
        yield from self._type_bounds(op)
        if undefined or not self.unusable.isdisjoint((op.value_id, *op.operands)):
            return
        try:
            self._check_type(position, op)
        except SpecViolation as error:
            yield error

    def _definition(self, op: CoreOperation) -> Iterator[SpecViolation]:
        if op.value_id in self.types:
            first = self.module.line(self.defined_at[op.value_id])
            yield SpecViolation(
                "E4002",
                f"%{op.value_id} is defined twice, first at {first}",
                f"%{self.free} is free" if self.free <= I64_MAX else "give it a number of its own",
            )

    def _extension(self, op: CoreOperation) -> Iterator[SpecViolation]:
        wanted = op.instruction.extension
        if wanted and wanted not in self.module.extensions:
            yield SpecViolation(
                "E0102",
                f"{op.opcode} is not part of Core v1 but of the extension {wanted!r}",
                f"write 'extensions: {wanted}' in the first line",
            )

    def _use_before_definition(self, value_id: int, position: int) -> SpecViolation:
        if value_id not in self.later:
            return SpecViolation(
                "E4001", f"%{value_id} is used but never defined", self._nearest(position)
            )
        where = self.module.line(self.later[value_id])
        return SpecViolation(
            "E4001",
            f"%{value_id} is used before its definition at {where}",
            "move the definition up",
        )

    def _nearest(self, position: int) -> str:
        if position == 0:
            return "nothing is defined here yet"
        return f"the last value before is %{self.module.operations[position - 1].value_id}"

    def _type_bounds(self, op: CoreOperation) -> Iterator[SpecViolation]:
        kind = op.result_type
        try:
            if any(dim < 0 for dim in kind.shape):
                positive_dims(kind.shape, "shape")
            check_bounds(kind)
        except SpecViolation as error:
            self.unusable.add(op.value_id)
            yield error

    def _check_type(self, position: int, op: CoreOperation) -> None:
        if op.opcode == "Input":
            self._check_input(position, op)
            return
        operands = [type_of(value_id, self.types) for value_id in op.operands]
        check_declared(infer(op.opcode, op.attributes, operands), op.result_type, op.opcode)

    def _check_input(self, position: int, op: CoreOperation) -> None:
        positive_dims(op.result_type.shape, "shape")
        name = op.attributes.get("name", "")
        if not isinstance(name, str) or not name:
            raise SpecViolation("E4004", "the input has no name", "write {name=x}")
        if name in self.names:
            first = self.module.line(self.names[name])
            raise SpecViolation(
                "E4004",
                f"two inputs are named {name[:40]!r}, the first at {first}",
                "give each a name of its own",
            )
        self.names[name] = position

    def _outputs(self) -> Iterator[Finding]:
        where = self.module.line(len(self.module.operations))
        if not self.module.outputs:
            last = self.module.operations[-1].value_id if self.module.operations else None
            hint = "" if last is None else f"the last value is %{last}"
            yield Finding("E4003", where, "the module has no outputs", hint)
        for position, value_id in enumerate(self.module.outputs):
            if value_id not in self.types:
                hint = self._nearest(len(self.module.operations))
                why = f"output {position} is %{value_id}, which is not defined"
                yield Finding("E4003", where, why, hint)


def check_declared(found: TensorType, declared: TensorType, opcode: str) -> None:
    """An operation declares the type that it has."""
    if found == declared:
        return
    if found.dtype is not declared.dtype:
        raise SpecViolation(
            "E2004",
            f"{opcode} gives {dtype_name(found.dtype)}, declared is {dtype_name(declared.dtype)}",
            f"declare {found}",
        )
    code = "E3002" if found.rank != declared.rank else "E3003"
    raise SpecViolation(
        code,
        f"{opcode} gives {show_shape(found.shape)}, declared is {show_shape(declared.shape)}",
        f"declare {found}",
    )
