"""A PTIR program as StableHLO text, in MLIR's generic form.

Every function becomes a function; the entry is public and comes first. Names of values are
counted, so the same program always gives the same text.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.foundation.errors import Unimplemented
from weft.interop.stablehlo.dense import tensor_text
from weft.interop.stablehlo.reading.calls import DRAWN, DRAWN_FROM
from weft.interop.stablehlo.writing.calls import Fields, write_call
from weft.interop.stablehlo.writing.control import write_cond, write_scan, write_while
from weft.interop.stablehlo.writing.elementwise import ELEMENTWISE
from weft.interop.stablehlo.writing.page import Page, Ssa, Written, flattened, quoted
from weft.interop.stablehlo.writing.quantisation import write_quantisation
from weft.interop.stablehlo.writing.structure import STRUCTURE, top_k
from weft.interop.stablehlo.writing.windows import WINDOWS
from weft.ptir.codecs.wire import encode_call
from weft.ptir.decompose import decompose
from weft.ptir.decompositions import DECOMPOSITIONS
from weft.ptir.ir import Body, Function, Instruction, Operand, Program, Ref, Region
from weft.ptir.literal import TensorLiteral
from weft.ptir.op import Op
from weft.ptir.ops.constant import Constant, CustomCall
from weft.ptir.ops.control import Cond, Scan, While
from weft.ptir.ops.normalisation import LayerNorm
from weft.ptir.ops.ordering import TopK
from weft.ptir.ops.quantisation import Dequantize, Quantize, Requantize
from weft.ptir.ops.random import Drawing
from weft.ptir.ops.tuples import MakeTuple
from weft.ptir.schema import ShapeOf
from weft.ptir.streams import assign_streams
from weft.ptir.types import Shape, TensorType, TupleType, ValueType, leaves

_WRITERS = {**ELEMENTWISE, **STRUCTURE, **WINDOWS}
_TAKEN_APART = frozenset({LayerNorm})
"""Ops that StableHLO has no word for, and that are the sum of ops it has."""


def write_module(program: Program) -> str:
    """The program in MLIR's generic form; `Unimplemented` names what StableHLO cannot say."""
    kept = [cls for cls in DECOMPOSITIONS if cls not in _TAKEN_APART]
    program = assign_streams(decompose(program, keep=kept))
    names = [0]
    lines = ['"builtin.module"() ({']
    for function in sorted(program.functions, key=lambda f: f.name != program.entry):
        lines += _Writer(program, names).function(function)
    lines.append("}) : () -> ()")
    return "\n".join(lines) + "\n"


def _type_text(kind: ValueType) -> str:
    if isinstance(kind, TensorType):
        return tensor_text(kind)
    return f"tuple<{', '.join(map(_type_text, kind.elements))}>"


class _Writer:
    """Writes one function and the regions it uses."""

    def __init__(self, program: Program, names: list[int]) -> None:
        self.program = program
        self.names = names

    def function(self, function: Function) -> list[str]:
        page = Page(self.names, 2)
        params = [(page.fresh(), kind) for kind in function.parameters]
        args = [self._parameter(page, name, kind) for name, kind in params]
        results = self._body(page, function, args)
        flat = [leaf for value in results for leaf in flattened(value)]
        page.ops("func.return", flat, ())
        inputs = ", ".join(_type_text(kind) for kind in function.parameters)
        outputs = ", ".join(tensor_text(value.type) for value in flat)
        private = "" if function.name == self.program.entry else ', sym_visibility = "private"'
        listed = ", ".join(f"{name}: {_type_text(kind)}" for name, kind in params)
        head = f"  ^bb0({listed}):" if params else "  ^bb0:"
        attrs = f"sym_name = {quoted(function.name)}{private}"
        kind = f"function_type = ({inputs}) -> ({outputs})"
        return ['  "func.func"() ({', head, *page.lines, f"  }}) {{{attrs}, {kind}}} : () -> ()"]

    def _parameter(self, page: Page, name: str, kind: ValueType) -> Written:
        """A tuple is taken apart where it comes in."""
        if isinstance(kind, TensorType):
            return page.noted(Ssa(name, kind))
        found = []
        for index, element in enumerate(kind.elements):
            made = page.fresh()
            page.line(
                f'{made} = "stablehlo.get_tuple_element"({name}) {{index = {index} : i32}} : '
                f"({_type_text(kind)}) -> {_type_text(element)}"
            )
            found.append(self._parameter(page, made, element))
        return tuple(found)

    # -- what control flow asks for (`control.BodyWriter`) ---------------------------------------

    def region(self, region_id: int) -> Region:
        return self.program.regions_by_id[region_id]

    def inline(self, page: Page, region: Region, args: Sequence[Written]) -> list[Written]:
        return self._body(page, region, args)

    # -- instructions ----------------------------------------------------------------------------

    def _body(self, page: Page, body: Body, args: Sequence[Written]) -> list[Written]:
        env = dict(zip(body.parameter_ids, args, strict=True))
        for instruction in body.body:
            try:
                operands = [_operand_value(page, operand, env) for operand in instruction.operands]
                noted = self.program.call_fields.get((body.label, instruction.id))
                env[instruction.id] = self._instruction(page, instruction, operands, noted)
            except Unimplemented as error:
                place = self.program.place(body, instruction)
                raise Unimplemented(error.op, f"{error.reason}; {place}") from None
        return [env[number] for number in body.result_ids]

    def _instruction(
        self, page: Page, made: Instruction, args: list[Written], noted: Fields | None
    ) -> Written:
        op, output = made.op, made.output
        match op:
            case MakeTuple():
                return tuple(args)
            case Constant():
                return page.constant(op.value)
            case Cond():
                return _pack_results(write_cond(self, page, op, args), output)
            case While():
                return _pack_results(write_while(self, page, op, args), output)
            case Scan():
                kinds = list(leaves(output))
                return _pack_results(write_scan(self, page, op, args, kinds), output)
        flat = [leaf for value in args for leaf in flattened(value)]
        return self._plain(page, op, flat, output, noted)

    def _plain(
        self, page: Page, op: Op, x: list[Ssa], output: ValueType, noted: Fields | None
    ) -> Written:
        if isinstance(op, TopK):
            return top_k(page, op, x[0])
        call = _call_of(op)
        writer = _WRITERS.get(op.mnemonic)
        if op.mnemonic == "isfinite" and x[0].dtype.is_complex:
            writer = None
        if writer is not None and isinstance(output, TensorType):
            return writer(page, op, x, output)
        if isinstance(op, Quantize | Dequantize | Requantize) and isinstance(output, TensorType):
            return write_quantisation(page, op, x, output)
        if call is not None:
            given = _call_operands(page, op, x, output)
            return _pack_results(write_call(page, call, given, output, noted), output)
        raise Unimplemented(op.mnemonic, "StableHLO has no operation of its meaning")


def _call_of(op: Op) -> CustomCall | None:
    """The custom call that carries an op beyond the contract, or one that draws."""
    if isinstance(op, CustomCall):
        return op
    if op.call_target is None and not isinstance(op, Drawing):
        return None
    # StableHLO has no names for sizes, so an attribute cannot mention one.
    found = encode_call(op.with_dims(lambda dim: dim if isinstance(dim, int) else 0))
    if not isinstance(found, CustomCall):
        return None
    left_out = {name for name, _ in _open_shapes(op)}
    return CustomCall(found.target, tuple(a for a in found.attrs if a[0] not in left_out))


def _open_shapes(op: Op) -> list[tuple[str, Shape]]:
    """The attributes that are shapes with sizes that only the run knows: they become operands."""
    found = []
    for name, kind in op.call_attributes().items():
        if isinstance(kind, ShapeOf) and not all(isinstance(n, int) for n in getattr(op, name)):
            found.append((name, getattr(op, name)))
    return found


def _call_operands(page: Page, op: Op, x: list[Ssa], output: ValueType) -> list[Ssa]:
    """What a call is given: its operands, then shapes that only the run knows."""
    shapes = [shape for _, shape in _open_shapes(op)]
    if op.call_target in DRAWN and len(x) == DRAWN_FROM and isinstance(output, TensorType):
        shapes += [] if output.is_static else [output.shape]
    return [*x, *(page.sizes(shape) for shape in shapes)]


def _operand_value(page: Page, operand: Operand, env: dict[int, Written]) -> Written:
    if isinstance(operand, TensorLiteral):
        return page.constant(operand)
    value = env[operand.id]
    if isinstance(operand, Ref):
        return value
    assert isinstance(value, tuple)
    return value[operand.index]


def _pack_results(values: list[Ssa], output: ValueType) -> Written:
    """Flat results as the value of a PTIR type."""
    rest = iter(values)

    def rebuilt(kind: ValueType) -> Written:
        if isinstance(kind, TupleType):
            return tuple(rebuilt(element) for element in kind.elements)
        return next(rest)

    return rebuilt(output)
