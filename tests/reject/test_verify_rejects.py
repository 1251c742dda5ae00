"""Every violation the verifier can report, word for word, on programs made by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import weft
from weft.foundation.dtypes import F16, F32, F64, I1, SI4, SI32, DType
from weft.foundation.errors import SpecViolation
from weft.ptir import (
    ElementRef,
    Function,
    HintRegion,
    Instruction,
    Op,
    Operand,
    Program,
    Ref,
    Region,
    Symbol,
    TensorLiteral,
    TensorType,
    TupleType,
    ValueType,
    tensor,
    verify,
)
from weft.ptir.ir import HintKind, HintPolicy
from weft.ptir.ops.constant import Constant, CustomCall
from weft.ptir.ops.contraction import DotGeneral
from weft.ptir.ops.control import Cond, Scan, While
from weft.ptir.ops.elementwise import (
    BinaryFn,
    Cast,
    Compare,
    CompareFn,
    ElementwiseBinary,
    ElementwiseUnary,
    Select,
    UnaryFn,
)
from weft.ptir.ops.movement import BroadcastTo, Concat, Reshape, Transpose
from weft.ptir.ops.random import RngUniform
from weft.ptir.ops.reduce_kind import ReduceKind
from weft.ptir.ops.reduction import ArgMax, Reduce
from weft.ptir.schema import attr_map

X = tensor("f32", [2])
PREDICATE = tensor("i1")
NEG = ElementwiseUnary(UnaryFn.NEG)
ADD = ElementwiseBinary(BinaryFn.ADD)


def program(
    op: Op,
    operands: Sequence[Operand],
    output: ValueType,
    parameters: Sequence[ValueType] = (X,),
    regions: Sequence[Region] = (),
) -> Program:
    """One instruction applied to the parameters of @main."""
    new = len(parameters)
    function = Function(
        "main",
        tuple(parameters),
        tuple(range(new)),
        (output,),
        (Instruction(new, op, tuple(operands), output),),
        (),
        (new,),
    )
    return Program("main", (function,), tuple(regions))


def applied(op: Op, *parameters: ValueType, gives: ValueType) -> Program:
    """`op` applied to one parameter of each type."""
    return program(op, [Ref(i) for i in range(len(parameters))], gives, parameters)


def region(
    region_id: int,
    parameters: Sequence[ValueType],
    results: Sequence[int],
    body: Sequence[Instruction] = (),
) -> Region:
    types = [*parameters, *(instruction.output for instruction in body)]
    kinds = tuple(types[i] for i in results)
    return Region(region_id, tuple(parameters), tuple(body), kinds, tuple(results))


def nested(depth: int) -> ValueType:
    kind: ValueType = X
    for _ in range(depth):
        kind = TupleType((kind,))
    return kind


GOOD = applied(NEG, X, gives=X)
MAIN = GOOD.main


def with_main(**changes: object) -> Program:
    return GOOD.with_main(replace(MAIN, **changes))  # type: ignore[arg-type]


def hint(**changes: object) -> Program:
    """`GOOD` with a hint around its one instruction, changed in one place."""
    right = HintRegion(3, HintKind.ELEMENTWISE_DAG, HintPolicy.PREFERRED, (0,), (1,), MAIN.body, ())
    return with_main(hints=(replace(right, **changes),))  # type: ignore[arg-type]


def cycle() -> Program:
    inner = Instruction(1, Cond(0, 0), (Ref(0),), PREDICATE)
    body = region(0, [PREDICATE], [1], [inner])
    return program(Cond(0, 0), [Ref(0), Ref(0)], PREDICATE, [PREDICATE], [body])


def tower(height: int) -> Program:
    """Regions 0 .. height - 1, each inside the next."""
    regions = [region(0, [PREDICATE], [0])]
    for level in range(1, height):
        call = Instruction(1, Cond(level - 1, level - 1), (Ref(0), Ref(0)), PREDICATE)
        regions.append(region(level, [PREDICATE], [1], [call]))
    top = Cond(height - 1, height - 1)
    return program(top, [Ref(0), Ref(0)], PREDICATE, [PREDICATE], regions)


def literal_operand(kind: TensorType, data: bytes) -> Program:
    return program(NEG, [TensorLiteral(kind, data)], kind, [])


def dtype(kind: DType) -> TensorType:
    return TensorType(kind, (2,))


AT = "%1 = neg(%0) in function @main"
ADD_AT = "%2 = add(%0, %1) in function @main"
CASES: dict[str, tuple[Program, str]] = {
    "a target of ours that does not exist": (
        applied(CustomCall("weft.sqrt.v2"), X, gives=X),
        "UnknownCustomCall at %1 = custom_call(%0) in function @main: Weft has no op with the "
        "target 'weft.sqrt.v2' (did you mean 'weft.sqrt.v1'?)",
    ),
    "a target of ours from another time": (
        applied(CustomCall("weft.frobnicate_all.v1"), X, gives=X),
        "UnknownCustomCall at %1 = custom_call(%0) in function @main: Weft has no op with the "
        "target 'weft.frobnicate_all.v1' (a newer Weft may know it)",
    ),
    # -- the program as a whole
    "no entry": (
        replace(GOOD, entry="other"),
        "EntryUndefined at program: the entry function @other does not exist",
    ),
    "two functions of one name": (
        replace(GOOD, functions=(MAIN, MAIN)),
        "DuplicateName at program: two functions are named @main",
    ),
    "two regions of one id": (
        replace(GOOD, regions=(region(4, [X], [0]), region(4, [X], [0]))),
        "DuplicateRegion at program: two regions have the id ^4",
    ),
    "a region inside itself": (
        cycle(),
        "RegionCycle at region ^0: the region contains itself",
    ),
    "regions too deep": (
        tower(101),
        "NestingTooDeep at region ^100: regions nest more than 100 deep",
    ),
    # -- signatures
    "a parameter without an id": (
        with_main(parameters=(X, X)),
        "SignatureMismatch at function @main: 2 parameter types but 1 ids",
    ),
    "a result without an id": (
        with_main(results=(X, X)),
        "SignatureMismatch at function @main: 2 result types but 1 result ids",
    ),
    "a result that is not defined": (
        with_main(result_ids=(7,)),
        "UseBeforeDefinition at function @main: the result %7 is not defined",
    ),
    "a result of another type": (
        with_main(results=(tensor("f32", [3]),)),
        "OutputTypeMismatch at function @main: the result %1 has type f32[2], declared as f32[3]",
    ),
    # -- types
    "a rank without end": (
        with_main(parameters=(tensor("f32", [1] * 65),), body=(), results=(), result_ids=()),
        "RankTooLarge at function @main: a tensor has rank 65; at most 64",
    ),
    "a tuple without end": (
        with_main(parameters=(nested(65),), body=(), results=(nested(65),), result_ids=(0,)),
        "NestingTooDeep at function @main: a tuple nests deeper than 64",
    ),
    "a negative dimension": (
        with_main(parameters=(TensorType(F32, (-1,)),), body=(), results=(), result_ids=()),
        "NegativeDimension at function @main: f32[-1] has the negative dimension -1",
    ),
    "a dimension without a name": (
        with_main(parameters=(TensorType(F32, (Symbol(""),)),), body=(), results=(), result_ids=()),
        "InvalidAttributeValue at function @main: a dynamic dimension has no name",
    ),
    "more elements than can be counted": (
        with_main(
            parameters=(tensor("f32", [2**32, 2**32]),), body=(), results=(), result_ids=()
        ),
        "ElementCountOverflow at function @main: f32[4294967296, 4294967296] has more than "
        "2^59 - 1 elements",
    ),
    # -- values
    "a value defined twice": (
        with_main(body=(*MAIN.body, *MAIN.body)),
        f"DoubleDefinition at {AT}: %1 is defined twice",
    ),
    "an id beyond 32 bits": (
        with_main(body=(replace(MAIN.body[0], id=2**32),), result_ids=(2**32,)),
        "InvalidAttributeValue at %4294967296 = neg(%0) in function @main: the id 4294967296 is "
        "not a 32-bit number",
    ),
    "a value that is not defined before": (
        program(NEG, [Ref(5)], X),
        "UseBeforeDefinition at %1 = neg(%5) in function @main: %5 is used but not defined before",
    ),
    "a tuple element that does not exist": (
        program(NEG, [ElementRef(0, 2)], X, [TupleType((X, X))]),
        "TupleElementInvalid at %1 = neg(%0[2]) in function @main: %0[2] does not exist: "
        "%0 has type (f32[2], f32[2])",
    ),
    "an element of a tensor": (
        program(NEG, [ElementRef(0, 0)], X),
        "TupleElementInvalid at %1 = neg(%0[0]) in function @main: %0[0] does not exist: "
        "%0 has type f32[2]",
    ),
    "a literal of a dynamic type": (
        literal_operand(tensor("f32", ["?B"]), b""),
        "LiteralInvalid at %0 = neg(literal f32[?B]) in function @main: a literal of type f32[?B] "
        "has a dynamic dimension",
    ),
    "a literal with too few bytes": (
        literal_operand(X, b"\0" * 7),
        "LiteralInvalid at %0 = neg(literal f32[2]) in function @main: a literal of type f32[2] "
        "has 7 bytes, not 8",
    ),
    "a 4-bit literal with 8 bits": (
        literal_operand(dtype(SI4), b"\x01\x7f"),
        "LiteralInvalid at %0 = neg(literal si4[2]) in function @main: a literal of type si4[2] "
        "has a byte outside -8..15",
    ),
    "an i1 constant with a byte of 2": (
        program(Constant(TensorLiteral(dtype(I1), b"\0\2")), [], dtype(I1), []),
        "LiteralInvalid at %0 = constant() in function @main: a literal of type i1[2] has a byte "
        "outside 0..1",
    ),
    # -- operands and results of an op
    "another declared type": (
        applied(NEG, X, gives=tensor("f32", [3])),
        f"OutputTypeMismatch at {AT}: the declared type is f32[3] but the op gives f32[2]",
    ),
    "too few operands": (
        program(ADD, [Ref(0)], X),
        "ArityMismatch at %1 = add(%0) in function @main: add takes operands (lhs, rhs) but got 1",
    ),
    "too many operands": (
        program(NEG, [Ref(0), Ref(0)], X),
        "ArityMismatch at %1 = neg(%0, %0) in function @main: neg takes operands (x) but got 2",
    ),
    "a tuple for a tensor": (
        applied(NEG, TupleType((X, X)), gives=X),
        f"TensorExpected at {AT}: operand x of neg is the tuple (f32[2], f32[2]) "
        "(select an element of the tuple)",
    ),
    "a dtype the op is not defined for": (
        applied(ElementwiseUnary(UnaryFn.ERF), dtype(SI32), gives=dtype(SI32)),
        "DTypeNotSupported at %1 = erf(%0) in function @main: erf is not defined for x of dtype "
        "si32 (defined for fp8_e4m3, fp8_e5m2, bf16, f16, f32, f64)",
    ),
    "two dtypes": (
        applied(ADD, X, dtype(F64), gives=X),
        f"DTypeMismatch at {ADD_AT}: the operands of add have dtypes f32 and f64 "
        "(cast one of them first)",
    ),
    "two shapes": (
        applied(ADD, X, tensor("f32", [3]), gives=X),
        f"ShapeMismatch at {ADD_AT}: the operands of add have shapes [2] and [3] "
        "(insert broadcast_to)",
    ),
    "two dims that need not agree": (
        applied(ADD, tensor("f32", ["?A"]), tensor("f32", ["?B"]), gives=tensor("f32", ["?A"])),
        f"DynamicDimensionMismatch at {ADD_AT}: the operands of add have shapes [?A] and [?B] "
        "(give the dims one name)",
    ),
    "a dim that nothing binds": (
        applied(BroadcastTo((Symbol("N"), 2)), X, gives=tensor("f32", ["?N", 2])),
        "DynamicDimensionMismatch at %1 = broadcast_to(%0) in function @main: result_shape uses "
        "?N, which no parameter or earlier instruction binds",
    ),
    "comparing two shapes": (
        applied(Compare(CompareFn.LESS), X, tensor("f32", [3]), gives=dtype(I1)),
        "CompareOperandsMustMatchShape at %2 = compare(%0, %1) in function @main: the operands of "
        "compare have shapes [2] and [3] (insert broadcast_to)",
    ),
    "comparing two dtypes": (
        applied(Compare(CompareFn.LESS), X, dtype(F64), gives=dtype(I1)),
        "CompareDTypePromotionInvalid at %2 = compare(%0, %1) in function @main: the operands of "
        "compare have dtypes f32 and f64 (cast one of them first)",
    ),
    "a predicate that is no i1": (
        applied(Select(), X, X, X, gives=X),
        "DTypeNotSupported at %3 = select(%0, %1, %2) in function @main: select is not defined "
        "for pred of dtype f32 (defined for i1)",
    ),
    "broadcasting to fewer axes": (
        applied(BroadcastTo(()), X, gives=tensor("f32")),
        "BroadcastRankMismatch at %1 = broadcast_to(%0) in function @main: shape [2] has more "
        "axes than result_shape []",
    ),
    "broadcasting 2 to 3": (
        applied(BroadcastTo((3,)), X, gives=tensor("f32", [3])),
        "BroadcastDimsInvalid at %1 = broadcast_to(%0) in function @main: axis 0 of shape [2] has "
        "size 2, which does not broadcast to 3 in [3]",
    ),
    "ranks that differ": (
        applied(Concat(0), X, tensor("f32", [2, 2]), gives=X),
        "RankMismatch at %2 = concat(%0, %1) in function @main: operands 0 and 1 of concat have "
        "ranks 1 and 2",
    ),
    "no permutation": (
        applied(Transpose((1,)), X, gives=X),
        "InvalidAttributeValue at %1 = transpose(%0) in function @main: perm [1] is not a "
        "permutation of the 1 axes of the operand (name each axis once)",
    ),
    "another number of elements": (
        applied(Reshape((3,)), X, gives=tensor("f32", [3])),
        "ShapeMismatch at %1 = reshape(%0) in function @main: reshape from [2] to [3] changes the "
        "number of elements",
    ),
    "a narrower accumulator": (
        applied(Reduce(ReduceKind.SUM, (0,), False, F16, None), X, gives=tensor("f32")),
        "InvalidAccumDTypeOverride at %1 = reduce_sum(%0) in function @main: reduce_sum of f32 "
        "cannot accumulate in f16 (the accumulator must be of the same class and at least as "
        "wide)",
    ),
    "the largest of nothing": (
        applied(ArgMax(0, False, SI32), tensor("f32", [0]), gives=tensor("si32")),
        "EmptyReduction at %1 = arg_max(%0) in function @main: axis 0 of arg_max has no elements "
        "to choose from",
    ),
    "a custom call with an unknown attribute": (
        program(CustomCall("weft.sqrt.v1", attr_map({"fast": True})), [Ref(0)], X),
        "InvalidAttributeValue at %1 = custom_call(%0) in function @main: weft.sqrt.v1 has no "
        "attribute 'fast' (its attributes are none)",
    ),
    # -- regions
    "a region that does not exist": (
        applied(Cond(5, 5), PREDICATE, X, gives=X),
        "RegionUndefined at %2 = cond(%0, %1) in function @main: region ^5 does not exist",
    ),
    "a region with other parameters": (
        program(
            While(0, 0), [Ref(0)], X, [X], [region(0, [PREDICATE], [0])]
        ),
        "RegionSignatureMismatch at %1 = while(%0) in function @main: cond_region takes (i1[]), "
        "not (f32[2])",
    ),
    "a region with other results": (
        program(
            Cond(0, 1),
            [Ref(0), Ref(1)],
            X,
            [PREDICATE, X],
            [
                region(0, [X], [0]),
                region(1, [X], [1], [Instruction(1, Cast(F64), (Ref(0),), dtype(F64))]),
            ],
        ),
        "RegionSignatureMismatch at %2 = cond(%0, %1) in function @main: false_region returns "
        "(f64[2]), not (f32[2])",
    ),
    "a scan over a scalar": (
        program(
            Scan(0, 0, 1), [Ref(0)], X, [tensor("f32")], [region(0, [tensor("f32")], [0])]
        ),
        "RankMismatch at %1 = scan(%0) in function @main: scanned input 0 is f32[]; it needs a "
        "leading axis",
    ),
    "a mistake inside a region": (
        program(
            Cond(0, 0),
            [Ref(0), Ref(1)],
            X,
            [PREDICATE, X],
            [region(0, [X], [1], [Instruction(1, NEG, (Ref(3),), X)])],
        ),
        "UseBeforeDefinition at %1 = neg(%3) in region ^0: %3 is used but not defined before",
    ),
    # -- hints
    "a hint without a body": (
        hint(body=()),
        "HintInvalid at hint 3 in function @main: the hint has no instructions",
    ),
    "a hint with an instruction of its own": (
        hint(body=(replace(MAIN.body[0], id=9),)),
        "HintInvalid at hint 3 in function @main: %9 = neg(%0) is not an instruction of the "
        "function",
    ),
    "a hint without its input": (
        hint(inputs=()),
        "HintInvalid at hint 3 in function @main: inputs are [] but the body reads [%0]",
    ),
    "a hint that exports what it does not define": (
        hint(exports=(0,)),
        "HintInvalid at hint 3 in function @main: exports [%0] are not all defined in the hint",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_program_is_rejected_with_this_sentence(name: str) -> None:
    wrong, sentence = CASES[name]
    assert sentence in [str(finding) for finding in verify(wrong, collect=True)]


@pytest.mark.parametrize("name", [n for n in CASES if n not in {"a region inside itself"}])
def test_the_sentence_is_the_only_one(name: str) -> None:
    wrong, sentence = CASES[name]
    assert [str(finding) for finding in verify(wrong, collect=True)] == [sentence]


def test_a_program_without_mistakes_is_accepted() -> None:
    for good in (GOOD, hint(), tower(100)):
        assert verify(good, collect=True) == []


def test_the_wrong_op_in_a_hint() -> None:
    dot = DotGeneral((), (), (0,), (0,), None, None)
    wrong = program(dot, [Ref(0), Ref(0)], tensor("f32"))
    region_hint = HintRegion(
        0, HintKind.ELEMENTWISE_DAG, HintPolicy.REQUIRED, (0,), (1,), wrong.main.body, ()
    )
    wrong = wrong.with_main(replace(wrong.main, hints=(region_hint,)))
    assert [str(f) for f in verify(wrong, collect=True)] == [
        "HintInvalid at hint 0 in function @main: dot_general does not belong in elementwise_dag"
    ]
    right = replace(region_hint, kind=HintKind.DOT_EPILOGUE)
    assert verify(wrong.with_main(replace(wrong.main, hints=(right,))), collect=True) == []


@pytest.mark.parametrize(
    ("kind", "heart"),
    [(HintKind.DOT_EPILOGUE, "dot_general"), (HintKind.REDUCTION_CHAIN, "reduce")],
)
def test_a_hint_has_what_it_is_about(kind: HintKind, heart: str) -> None:
    wrong = program(NEG, [Ref(0)], X)
    region_hint = HintRegion(0, kind, HintPolicy.OPTIONAL, (0,), (1,), wrong.main.body, ())
    wrong = wrong.with_main(replace(wrong.main, hints=(region_hint,)))
    assert [str(f) for f in verify(wrong, collect=True)] == [
        f"HintInvalid at hint 0 in function @main: a {kind} without a {heart} "
        "(an elementwise_dag needs none)"
    ]


@pytest.mark.parametrize("target", ["", "t", "fast.kernel", "fast kernel.v1", "acme.v1", ".a.v1"])
def test_targets_of_custom_calls_have_a_namespace_and_a_version(target: str) -> None:
    (finding,) = verify(program(CustomCall(target), [Ref(0)], X), collect=True)
    assert (finding.code, finding.why) == (
        "InvalidAttributeValue", f"the target {target!r} is not named namespace.name.vN"
    )  # fmt: skip


@pytest.mark.parametrize("target", ["acme.fused.v2", "gpt_rs.faer.conv2d.nhwc.f32.v1", "tf.Foo"])
def test_targets_that_are_named_well(target: str) -> None:
    assert verify(program(CustomCall(target), [Ref(0)], X), collect=True) == []


def test_random_ops_do_not_belong_in_a_hint() -> None:
    wrong = program(RngUniform((2,), F32), [], X, [])
    region_hint = HintRegion(
        0, HintKind.REDUCTION_CHAIN, HintPolicy.OPTIONAL, (), (0,), wrong.main.body, ()
    )
    wrong = wrong.with_main(replace(wrong.main, hints=(region_hint,)))
    assert [str(f) for f in verify(wrong, collect=True)] == [
        "HintInvalid at hint 0 in function @main: rng_uniform does not belong in reduction_chain"
    ]


def test_without_collect_the_first_finding_is_raised() -> None:
    wrong = with_main(
        body=(
            Instruction(1, ADD, (Ref(0), Ref(8)), X),
            Instruction(2, NEG, (Ref(9),), X),
        )
    )
    with pytest.raises(SpecViolation) as caught:
        verify(wrong)
    assert str(caught.value) == (
        "UseBeforeDefinition at %1 = add(%0, %8) in function @main: "
        "%8 is used but not defined before"
    )
    assert len(verify(wrong, collect=True)) == 2


def test_a_list_of_findings_ends() -> None:
    wrong = with_main(body=tuple(Instruction(i, NEG, (Ref(2**20),), X) for i in range(1, 2_000)))
    findings = verify(wrong, collect=True)
    assert len(findings) == 1_001
    assert str(findings[-1]) == ("TooManyFindings at program: there are more findings than these")
    assert {finding.code for finding in findings[:-1]} == {"UseBeforeDefinition"}


def test_uses_of_a_value_whose_type_is_out_of_bounds_are_not_judged() -> None:
    broad = tensor("f32", [1] * 65)
    wrong = with_main(
        parameters=(broad,),
        body=(Instruction(1, NEG, (Ref(0),), X), Instruction(2, NEG, (Ref(1),), broad)),
        results=(broad,),
        result_ids=(2,),
    )
    assert [finding.code for finding in verify(wrong, collect=True)] == ["RankTooLarge"] * 2


def test_the_users_line_is_part_of_the_place() -> None:
    wrong, _ = CASES["another declared type"]
    wrong = replace(wrong, locations={("function @main", 1): "model.py:12"})
    (finding,) = verify(wrong, collect=True)
    assert finding.where == f"{AT} (model.py:12)"


# Codes that no table can hold: of readers, of running, of ops that need no program, of the limit;
# of several ranks, in tests/unit/ptir/ops/test_collective.py.
ELSEWHERE = {
    "MalformedText", "MalformedJson", "MalformedBincode", "UnknownOp", "SpecVersionMismatch",
    "GatherIndexOutOfBounds", "ScatterIndexOutOfBounds", "IntegerDivideByZero", "InvalidShift",
    "InvalidExponent", "NotPositiveDefinite", "TooManyFindings", "MeshMismatch", "RanksDiffer",
}  # fmt: skip


def test_every_code_of_the_verifier_has_a_case() -> None:
    calls = r'(?:SpecViolation|violation|Finding|_bad)\(\s*(?:\w+,\s*)?"([A-Z]\w+)"'
    defaults = r'"((?:Compare|Dynamic)[A-Z]\w+)"|code: str = "([A-Z]\w+)"'
    root = Path(weft.__file__).parent / "ptir"
    source = "\n".join(path.read_text() for path in root.rglob("*.py"))
    found = {name for match in re.findall(f"{calls}|{defaults}", source) for name in match if name}
    tested = {sentence.partition(" ")[0] for _, sentence in CASES.values()}
    assert {"ShapeMismatch", "ArityMismatch", "HintInvalid"} <= found
    assert found - ELSEWHERE - tested == set()
