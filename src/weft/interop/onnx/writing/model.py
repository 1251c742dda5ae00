"""`weft.onnx.export`: a program as an ONNX model.

Each op becomes a node, or a few where ONNX has none of its meaning; constants become initialisers,
regions inner graphs, and open dims named axes. The user's line stands in a node's doc string.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, helper

from weft.coarse.raising import FOR_OTHERS, raise_program
from weft.foundation.dtypes import SI64
from weft.foundation.errors import Unimplemented, UserError, brief
from weft.interop.onnx.model import Model
from weft.interop.onnx.program import to_program
from weft.interop.onnx.tensors import NUMBER
from weft.interop.onnx.writing.elementwise import ELEMENTWISE
from weft.interop.onnx.writing.page import OPSET, Edge, Page, Written, flattened, info
from weft.interop.onnx.writing.structure import STRUCTURE, top_k
from weft.interop.onnx.writing.windows import KEPT, WINDOWS, says_all
from weft.ops.calls import public
from weft.ops.jit import jit
from weft.ptir.decompose import decompose
from weft.ptir.decompositions import DECOMPOSITIONS
from weft.ptir.ir import Body, Instruction, Operand, Program, Ref, Region
from weft.ptir.literal import TensorLiteral
from weft.ptir.op import Op
from weft.ptir.ops.constant import Constant
from weft.ptir.ops.control import Cond, Scan, While
from weft.ptir.ops.ordering import TopK
from weft.ptir.ops.tuples import MakeTuple
from weft.ptir.types import TensorType, TupleType, ValueType, leaves
from weft.ptir.verify import verify

_IR_VERSION: Final = 10
_LARGEST: Final = (1 << 31) - 1
_WHOLE_CHECK: Final = 1 << 28
"""In bytes: of larger models ONNX checks the nodes, and not the types that follow."""
_RULES: Final = {**ELEMENTWISE, **STRUCTURE, **WINDOWS}


@public
def export(
    program: Program | Model | Callable[..., Any],
    path: str | os.PathLike[str] | None = None,
    *,
    example: Sequence[Any] | None = None,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> ModelProto:
    """The program as a model of ONNX's operators of version 21, checked by ONNX, and written to a
    file where a path is given. An op that ONNX cannot say is an error with its line. A module or
    function is traced with the arguments of `example`; its weights are initialisers."""
    weights: list[Any] = []
    if isinstance(program, Model):
        inputs, outputs = inputs or program.inputs, outputs or program.outputs
        program = to_program(program)
    elif callable(program) and example is not None:
        seen = jit(program).seen(tuple(example), {})
        program, weights = seen.trace.program, list(seen.captured())
    if not isinstance(program, Program):
        raise UserError(
            f"[export] a program is wanted, or a function with an example of its arguments, not "
            f"{brief(program)}"
        )
    verify(program)
    made = _model(program, weights, inputs, outputs)
    size = made.ByteSize()
    if size > _LARGEST:
        raise UserError(f"[export] the model has {size:,} bytes; a file of ONNX holds {_LARGEST:,}")
    onnx.checker.check_model(made, full_check=size < _WHOLE_CHECK)
    if path is not None:
        _save(made, Path(path))
    return made


def _save(model: ModelProto, path: Path) -> None:
    try:
        path.write_bytes(model.SerializeToString())
    except OSError as error:
        raise UserError(f"[export] cannot write {path}: {error.strerror}") from None


def _model(
    program: Program, weights: Sequence[Any], inputs: Sequence[str] | None,
    outputs: Sequence[str] | None,
) -> ModelProto:  # fmt: skip
    """A model; weights are arrays for the last parameters of the program."""
    program = raise_program(_simple(program), patterns=FOR_OTHERS)
    program = _simple(program)
    page, function = Page(), program.main
    kinds = [leaf for kind in function.parameters for leaf in leaves(kind)]
    stored = kinds[len(kinds) - len(weights) :]
    kinds = kinds[: len(kinds) - len(weights)]
    names = _checked_names("inputs", inputs, len(kinds), "input")
    given = [
        page.noted(Edge(name, _require_known(kind)))
        for name, kind in zip(names, kinds, strict=True)
    ]
    held = [page.constant(x, kind.dtype) for x, kind in zip(weights, stored, strict=True)]
    rest = iter([*given, *held])
    args = [_pack_values(rest, kind) for kind in function.parameters]
    writer = _Writer(program)
    found = [leaf for value in writer.body(page, function, args) for leaf in flattened(value)]
    wanted = _checked_names("outputs", outputs, len(found), "output")
    results = [
        page.op("Identity", edge, like=edge.type) for edge in found
    ]  # so that each has a name of its own, also where an input is an output
    for node, name in zip(page.nodes[len(page.nodes) - len(found) :], wanted, strict=True):
        node.output[0] = name
    ends = [info(Edge(name, edge.type)) for name, edge in zip(wanted, results, strict=True)]
    nodes, used = _find_needed(page.nodes, wanted)
    constants = [each for each in page.constants if each.name in used]
    graph = helper.make_graph(nodes, program.entry, [info(e) for e in given], ends, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    made.ir_version, made.producer_name = _IR_VERSION, "weft"
    return made


def _find_needed(
    nodes: Sequence[NodeProto], wanted: Sequence[str]
) -> tuple[list[NodeProto], set[str]]:
    """The nodes that something wanted follows from, and the names that they read."""
    used, kept = set(wanted), []
    for node in reversed(nodes):
        if used.intersection(node.output):
            kept.append(node)
            used |= _names_read(node)
    return kept[::-1], used


def _names_read(node: NodeProto) -> set[str]:
    """The names that a node reads, those in its inner graphs included."""
    inner = [each.g for each in node.attribute if each.type == AttributeProto.GRAPH]
    found = set(node.input).union(*(_names_read(each) for graph in inner for each in graph.node))
    return found.union(*({each.name for each in graph.output} for graph in inner))


def _simple(program: Program) -> Program:
    """The program in ops that are operators of ONNX, or a few of them."""
    return decompose(
        program, keep=[cls for cls in DECOMPOSITIONS if _is_one_operator(cls, program)]
    )


def _is_one_operator(cls: type[Op], program: Program) -> bool:
    """Whether an op that could be taken apart is one operator of ONNX."""
    if cls not in KEPT:
        return any(name in _RULES for name in cls.spellings())
    made = [each for body in program.bodies for each in body.body if type(each.op) is cls]
    return all(says_all(each.op, list(leaves(each.output))) for each in made)


def _checked_names(what: str, given: Sequence[str] | None, count: int, word: str) -> list[str]:
    names = [f"{word}_{number}" for number in range(count)] if given is None else list(given)
    if len(names) != count or len(set(names)) != count or not all(names):
        raise UserError(f"[export] {what} are {brief(names)}; {count} different names are wanted")
    return names


def _require_known(kind: TensorType) -> TensorType:
    if kind.dtype not in NUMBER or kind.dtype.is_complex:
        raise Unimplemented(str(kind.dtype), "ONNX's operators do not take it")
    return kind


class _Writer:
    """Writes the bodies of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def body(self, page: Page, body: Body, args: Sequence[Written]) -> list[Written]:
        env = dict(zip(body.parameter_ids, args, strict=True))
        for instruction in body.body:
            page.line = self.program.line(body, instruction) or page.line
            try:
                operands = [_operand_value(page, operand, env) for operand in instruction.operands]
                env[instruction.id] = self._instruction(page, instruction, operands)
            except Unimplemented as error:
                place = self.program.place(body, instruction)
                raise Unimplemented(error.op, f"{error.reason}; {place}") from None
        return [env[number] for number in body.result_ids]

    def _instruction(self, page: Page, made: Instruction, args: list[Written]) -> Written:
        op, kinds = made.op, [_require_known(leaf) for leaf in leaves(made.output)]
        flat = [leaf for value in args for leaf in flattened(value)]
        match op:
            case MakeTuple():
                return tuple(args)
            case Constant():
                return page.constant(op.value.array, op.value.type.dtype)
            case Cond():
                found = self._cond(page, op, args, kinds)
            case While():
                found = self._while(page, op, args, kinds)
            case Scan():
                found = self._scan(page, op, args, kinds)
            case TopK():
                found = top_k(page, op, flat[0], *kinds)
            case _:
                found = [self._plain(page, made, flat)]
        renamed = [Edge(e.name, kind) for e, kind in zip(found, kinds, strict=True)]
        return _pack_values(iter([page.noted(edge) for edge in renamed]), made.output)

    def _plain(self, page: Page, made: Instruction, x: list[Edge]) -> Edge:
        rule = _RULES.get(made.op.mnemonic)
        if rule is None or not isinstance(made.output, TensorType):
            raise Unimplemented(made.op.mnemonic, "ONNX has no operator of its meaning")
        return rule(page, made.op, x, made.output)

    # -- control flow ------------------------------------------------------------------------------

    def _region(self, region_id: int) -> Region:
        return self.program.regions_by_id[region_id]

    def _cond(
        self, page: Page, op: Cond, args: list[Written], kinds: list[TensorType]
    ) -> list[Edge]:
        branches = {}
        for name, region in (("then", op.true_region), ("else", op.false_region)):
            inner = Page(page)
            found = self._flat(inner, region, args[1:])
            branches[f"{name}_branch"] = _graph(inner, name, [], found)
        return page.nodes_for("If", flattened(args[0]), kinds, **branches)

    def _flat(self, page: Page, region: int, args: Sequence[Written]) -> list[Edge]:
        found = self.body(page, self._region(region), args)
        return [leaf for value in found for leaf in flattened(value)]

    def _while(
        self, page: Page, op: While, args: list[Written], kinds: list[TensorType]
    ) -> list[Edge]:
        """The condition once before the loop, and after each turn: its values are carried."""
        go, *carried = self._flat(page, op.cond_region, args)
        inner = Page(page)
        turn = Edge(inner.fresh(), TensorType(SI64, ()))
        before = Edge(inner.fresh(), go.type)
        own = [inner.noted(Edge(inner.fresh(), edge.type)) for edge in carried]
        packed = _pack_like_types(self._region(op.body_region).parameters, own)
        after = self._flat(inner, op.body_region, packed)
        again = self._flat(
            inner, op.cond_region, _pack_like_types(self._region(op.cond_region).parameters, after)
        )
        graph = _graph(inner, "body", [turn, before, *own], again)
        return page.nodes_for("Loop", [None, go, *carried], kinds, body=graph)

    def _scan(
        self, page: Page, op: Scan, args: list[Written], kinds: list[TensorType]
    ) -> list[Edge]:
        given = [leaf for value in args for leaf in flattened(value)]
        inner, region = Page(page), self._region(op.body_region)
        own = [
            inner.noted(Edge(inner.fresh(), _require_known(leaf)))
            for kind in region.parameters
            for leaf in leaves(kind)
        ]
        found = self._flat(inner, op.body_region, _pack_like_types(region.parameters, own))
        count = sum(len(flattened(value)) for value in args[op.carry_count :])
        graph = _graph(inner, "body", own, found)
        return page.nodes_for("Scan", given, kinds, body=graph, num_scan_inputs=count)


def _graph(page: Page, name: str, own: Sequence[Edge], found: Sequence[Edge]) -> GraphProto:
    """An inner graph; what it gives has names of its own."""
    results = [page.op("Identity", edge, like=edge.type) for edge in found]
    return helper.make_graph(page.nodes, name, [info(e) for e in own], [info(e) for e in results])


def _pack_like_types(kinds: Sequence[ValueType], flat: Sequence[Edge]) -> list[Written]:
    rest = iter(flat)
    return [_pack_values(rest, kind) for kind in kinds]


def _pack_values(rest: Any, kind: ValueType) -> Written:
    """Flat values as the value of a PTIR type."""
    if isinstance(kind, TupleType):
        return tuple(_pack_values(rest, element) for element in kind.elements)
    found: Edge = next(rest)
    return found


def _operand_value(page: Page, operand: Operand, env: dict[int, Written]) -> Written:
    if isinstance(operand, TensorLiteral):
        return page.constant(operand.array, operand.type.dtype)
    value = env[operand.id]
    if isinstance(operand, Ref):
        return value
    assert isinstance(value, tuple)
    return value[operand.index]
