"""Conversion targets, the walker, entry-point names, and what a backend does not support."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from weft.driver import conversion
from weft.driver.backends import get_backend
from weft.driver.conversion import (
    LegalitySpec,
    check_program_legality,
    conversion_target_names,
    convert,
    entry_point_name,
    entry_point_names,
    get_conversion_target,
    register_conversion_target,
    require_legal,
    walk_program,
)
from weft.foundation.dtypes import ANY, F32, I1, SI32
from weft.foundation.errors import PluginFault, SpecViolation, Unimplemented, UserError
from weft.ptir import Builder, Function, Program, loads
from weft.ptir.ir import HintKind, HintPolicy, HintRegion
from weft.ptir.op import CORE
from weft.ptir.ops.control import Cond
from weft.ptir.types import TupleType, tensor


@pytest.fixture(autouse=True)
def _clean_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion.REGISTRY, "registered", {})


def small() -> Program:
    b = Builder("small")
    x = b.param("f32", [2, 3])
    return b.build(b.tanh(x) + x)


# -- targets -------------------------------------------------------------------------------------


class Shout:
    name = "shout"
    description = "the name of the entry function, loudly"
    extension = ".txt"

    def convert(self, program: Program) -> str:
        return program.entry.upper()


def test_own_targets() -> None:
    assert conversion_target_names()[:3] == ["ptir-text", "ptir-json", "ptir-bincode"]
    page = (Path(__file__).parents[3] / "docs/backends.md").read_text()
    assert all(f"`{name}`" in page for name in conversion_target_names())
    for name in conversion_target_names()[:3]:
        target = get_conversion_target(name)
        assert target.name == name
        assert target.description
        assert target.extension.startswith(".")


@pytest.mark.parametrize("name", ["ptir-text", "ptir-json", "ptir-bincode"])
def test_own_targets_write_what_loads_reads(name: str) -> None:
    converted = convert(small(), name)
    assert isinstance(converted, bytes if name == "ptir-bincode" else str)
    assert loads(converted) == small()


def test_json_target_writes_json() -> None:
    assert json.loads(convert(small(), "ptir-json"))["entry"] == "small"


def test_registered_target() -> None:
    register_conversion_target(Shout())
    assert "shout" in conversion_target_names()
    assert convert(small(), "shout") == "SMALL"


def test_own_names_are_taken() -> None:
    taken = Shout()
    taken.name = "ptir-json"
    with pytest.raises(UserError, match="the conversion target name 'ptir-json' is taken"):
        register_conversion_target(taken)


def test_incomplete_target_is_refused() -> None:
    class Nothing:
        name = "nothing"

    with pytest.raises(UserError, match="has no description, extension, convert"):
        register_conversion_target(Nothing())  # type: ignore[arg-type]


def test_unknown_target_lists_the_known_ones() -> None:
    with pytest.raises(
        UserError, match="no conversion target 'elf'; the conversion targets are ptir-t"
    ):
        convert(small(), "elf")


def test_convert_verifies_first() -> None:
    register_conversion_target(Shout())
    with pytest.raises(SpecViolation, match="EntryUndefined"):
        convert(replace(small(), entry="other"), "shout")


class Stubborn:
    """A target whose `convert` is given."""

    name = "stubborn"
    description = "whatever it likes"
    extension = ".txt"

    def __init__(self, convert: Any) -> None:
        self.convert = convert


def _fails(error: BaseException) -> Any:
    def convert(program: Program) -> str:
        raise error

    return convert


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (_fails(KeyError("add")), "failed in convert with KeyError: 'add' (test_conversion.py:"),
        (_fails(SystemExit()), "failed in convert with SystemExit (test_conversion.py:"),
        (lambda program: None, "made None, which is neither text nor bytes"),
        (lambda program: ["text"], "made an object of class list, which is neither text nor bytes"),
        (
            lambda program: "\ud800",
            "made text with half of a surrogate pair, which no file can hold",
        ),
    ],
)
def test_what_a_target_does_wrong_is_its_fault(made: Any, sentence: str) -> None:
    register_conversion_target(Stubborn(made))
    with pytest.raises(PluginFault) as caught:
        convert(small(), "stubborn")
    told = str(caught.value)
    assert told.startswith(f"the conversion target 'stubborn' ({__name__}) {sentence}")
    assert told.endswith("; this is a fault of the plug-in, not of Weft")


def test_a_target_may_refuse() -> None:
    register_conversion_target(Stubborn(_fails(Unimplemented("tanh", "no such instruction"))))
    with pytest.raises(Unimplemented, match="no such instruction"):
        convert(small(), "stubborn")


@pytest.mark.parametrize("member", ["description", "extension"])
def test_members_of_a_target_are_text(member: str) -> None:
    wrong = Stubborn(str)
    setattr(wrong, member, 3)
    sentence = f"the conversion target 'stubborn' has the {member} 3, which is not a text"
    with pytest.raises(UserError, match=sentence):
        register_conversion_target(wrong)


# -- walk_program --------------------------------------------------------------------------------


def nested() -> Program:
    b = Builder()
    pred, x = b.param("i1"), b.param("f32", [4])
    before = b.neg(x)

    def outer(r: Any, p: Any, v: Any) -> Any:
        inner = r.cond(p, lambda i, u: i.exp(u), lambda i, u: i.log(u), v)
        return r.abs(inner)

    made = b.cond(pred, outer, lambda r, p, v: r.tanh(v), pred, before)
    return b.build(b.neg(made))


def walked(program: Program) -> list[tuple[str, str, int, int]]:
    return [
        (v.body.label, v.instruction.op.mnemonic, v.position, v.depth)
        for v in walk_program(program)
    ]


def test_regions_come_right_after_their_use() -> None:
    # the builder numbers regions when it opens them: ^0 the outer one, ^1 and ^2 inside it
    assert walked(nested()) == [
        ("function @main", "neg", 0, 0),
        ("function @main", "cond", 1, 0),
        ("region ^0", "cond", 0, 1),
        ("region ^1", "exp", 0, 2),
        ("region ^2", "log", 0, 2),
        ("region ^0", "abs", 1, 1),
        ("region ^3", "tanh", 0, 1),
        ("function @main", "neg", 2, 0),
    ]


def test_path_names_the_instructions_around() -> None:
    paths = {v.instruction.op.mnemonic: v.path for v in walk_program(nested())}
    assert paths["neg"] == ()
    assert paths["tanh"] == (("function @main", 3),)
    assert paths["exp"] == (("function @main", 3), ("region ^0", 2))


def test_shared_region_is_visited_at_its_first_use() -> None:
    b = Builder()
    pred, x = b.param("i1"), b.param("f32")
    body = b.region([x.type], lambda r, v: r.neg(v))
    first = b.append(Cond(body, body), [pred, x])
    program = b.build(b.append(Cond(body, body), [pred, first]))
    assert walked(program) == [
        ("function @main", "cond", 0, 0),
        ("region ^0", "neg", 0, 1),
        ("function @main", "cond", 1, 0),
    ]


def test_entry_function_comes_first_and_unused_regions_do_not_come() -> None:
    program = small()
    other = replace(program.main, name="a")
    unused = replace(nested().regions[1], id=7)
    both = Program("small", (other, program.main), (unused,))
    assert [v.body.label for v in walk_program(both)] == ["function @small"] * 2 + [
        "function @a"
    ] * 2


def test_walk_ends_on_broken_programs() -> None:
    """A region that contains itself, and one that does not exist."""
    program = nested()
    (outer, *rest) = program.regions
    cyclic = replace(outer.body[0], op=Cond(0, 99))
    broken = replace(program, regions=(replace(outer, body=(cyclic,)), *rest))
    assert len(list(walk_program(broken))) == 5


def test_walk_is_the_same_every_time() -> None:
    assert walked(nested()) == walked(loads(convert(nested(), "ptir-bincode")))


def test_long_chains_and_deep_nesting() -> None:
    b = Builder()
    x = b.param("f32")
    for _ in range(5000):
        x = b.neg(x)
    assert sum(1 for _ in walk_program(b.build(x))) == 5000
    assert max(v.depth for v in walk_program(deep(90))) == 90


def deep(levels: int) -> Program:
    b = Builder()
    pred, x = b.param("i1"), b.param("f32")

    def body(level: int) -> Any:
        def build(r: Any, p: Any, v: Any) -> Any:
            if level == levels:
                return r.neg(v)
            return r.cond(p, body(level + 1), lambda i, q, u: i.abs(u), p, v)

        return build

    return b.build(b.cond(pred, body(1), lambda r, p, v: r.neg(v), pred, x))


# -- entry-point names ---------------------------------------------------------------------------

NAMES = [
    "main",
    "a_b",
    "A",
    "0",
    "",
    " ",
    "a b",
    "a-b",
    "a.b",
    "_a",
    "a_",
    "a__b",
    "__init__",
    "int",
    "größe",
    "重み",
    "🧵",
    "e\u0301",
    "\u00e9",
    "\ud800",
    "a\0b",
    "a\nb",
    '"; system("x"); //',
    "x" * 31,
    "x" * 32,
    "x" * 33,
    "x" * 1_000_000,
    "x" * 999_999 + "y",
    "h" + "0" * 24,
    "a_h" + "0" * 24,
]


def with_functions(names: list[str]) -> Program:
    main = small().main
    functions: tuple[Function, ...] = tuple(replace(main, name=name) for name in names)
    return Program(names[0], functions)


def test_names_are_unique_short_identifiers() -> None:
    names = entry_point_names(with_functions(NAMES))
    assert list(names) == NAMES
    for name in names.values():
        assert re.fullmatch(r"ptir_[A-Za-z0-9]+(_[A-Za-z0-9]+)*", name), name
        assert len(name) <= 63
    assert len(set(names.values())) == len(NAMES)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("main", "ptir_main"),
        ("gpt2_small_forward", "ptir_gpt2_small_forward"),
        ("0", "ptir_0"),
        ("int", "ptir_int"),
        ("x" * 31, "ptir_" + "x" * 31),
        # the digests are those of `b2sum -l 96`
        ("", "ptir_hb8e1dda3ac0aa3820ad2990b"),
        ("a b", "ptir_a_b_hf8ead3ec60da789524652385"),
        ("größe", "ptir_gr_e_h6f88437a8b72dcf4e4395cb5"),
    ],
)
def test_names_stay_what_they_are(name: str, expected: str) -> None:
    assert entry_point_name(with_functions([name])) == expected


def test_names_do_not_depend_on_the_rest_of_the_program() -> None:
    alone = {name: entry_point_name(with_functions([name])) for name in NAMES}
    assert alone == entry_point_names(with_functions(NAMES[::-1]))


def test_forged_digest_does_not_collide() -> None:
    mangled = entry_point_name(with_functions(["a b"])).removeprefix("ptir_")
    names = entry_point_names(with_functions(["a b", mangled]))
    assert names["a b"] != names[mangled]


def test_name_of_another_function() -> None:
    program = with_functions(["main", "other fn"])
    assert entry_point_name(program) == "ptir_main"
    assert entry_point_name(program, "other fn").startswith("ptir_other_fn_h")
    with pytest.raises(UserError, match="the program has no function @third; it has main, other"):
        entry_point_name(program, "third")


# -- legality ------------------------------------------------------------------------------------

ALL_OPS = frozenset(cls.wire_name for cls in CORE.values())
EVERYTHING = LegalitySpec("everything", ALL_OPS, ANY)


def codes(program: Program, spec: Any) -> list[tuple[str, str]]:
    return [(f.code, f.where.split(" (")[0]) for f in check_program_legality(program, spec)]


def test_legal_program_has_no_findings() -> None:
    assert check_program_legality(nested(), EVERYTHING) == []
    assert check_program_legality(nested(), get_backend("reference")) == []
    require_legal(nested(), EVERYTHING)


def test_missing_op_is_found_in_regions_too() -> None:
    spec = replace(EVERYTHING, name="tiny", ops=ALL_OPS - {"ElementwiseUnary"})
    findings = check_program_legality(nested(), spec)
    assert [f.code for f in findings] == ["UnsupportedOp"] * 6
    assert findings[0].where.startswith("%2 = neg(%1) in function @main (test_conversion.py:")
    assert (
        findings[0].why
        == "the backend 'tiny' does not support the op neg (wire name ElementwiseUnary)"
    )
    assert [f.where.split(" in ")[1].split(" (")[0] for f in findings] == [
        "function @main", "region ^1", "region ^2", "region ^0", "region ^3", "function @main",
    ]  # fmt: skip


def test_missing_dtype_of_parameter_output_literal_and_attribute() -> None:
    b = Builder()
    x = b.param("f64", [4])
    wide = b.cast(x, "f32")
    summed = b.reduce_sum(wide, [0], accum_dtype="f64")
    program = b.build(b.add(summed, b.cast(b.literal(1.0, "f64"), "f32")))
    spec = replace(EVERYTHING, dtypes=frozenset({F32, I1}))
    assert codes(program, spec) == [
        ("UnsupportedDType", "%0 of function @main"),
        ("UnsupportedDType", "%2 = reduce_sum(%1) in function @main"),
        ("UnsupportedDType", "%3 = cast(literal f64[]) in function @main"),
    ]
    finding = check_program_legality(program, spec)[0]
    assert finding.why == "the backend 'everything' does not support the dtype f64"
    assert finding.hint == "it supports i1, f32"


def test_dtypes_inside_tuples_and_of_region_parameters() -> None:
    b = Builder()
    pair = b.param_of(TupleType((tensor("f32", [2]), tensor("si64", [2]))))
    pred = b.param("i1")
    program = b.build(b.cond(pred, lambda r, p: r.neg(p[0]), lambda r, p: r.abs(p[0]), pair))
    spec = replace(EVERYTHING, dtypes=frozenset({F32, I1, SI32}))
    assert codes(program, spec) == [
        ("UnsupportedDType", "%0 of function @main"),
        ("UnsupportedDType", "%0 of region ^0"),
        ("UnsupportedDType", "%0 of region ^1"),
    ]


def test_one_finding_for_each_dtype_in_wire_order() -> None:
    b = Builder()
    program = b.build(b.top_k(b.param("f64", [4]), k=2, axis=0, largest=True, indices_dtype="si64"))
    spec = replace(EVERYTHING, dtypes=frozenset({F32}))
    whys = [f.why.rsplit(" ", 1)[1] for f in check_program_legality(program, spec)]
    assert whys == ["f64", "si64", "f64"]


def test_function_without_instructions_is_looked_at() -> None:
    b = Builder()
    program = b.build(b.param("f64"))
    assert codes(program, replace(EVERYTHING, dtypes=frozenset({F32}))) == [
        ("UnsupportedDType", "%0 of function @main")
    ]


def calls() -> Program:
    b = Builder()
    x = b.param("f32", [2])
    return b.build(b.sqrt(b.custom_call("acme.fused.v2", x, output=x.type)))


def test_custom_calls_and_extension_ops_go_by_target() -> None:
    assert codes(calls(), EVERYTHING) == [
        ("UnsupportedCustomCall", "%1 = custom_call(%0) in function @main"),
        ("UnsupportedCustomCall", "%2 = sqrt(%1) in function @main"),
    ]
    whys = [f.why for f in check_program_legality(calls(), EVERYTHING)]
    assert whys[0].endswith("does not support the custom call 'acme.fused.v2'")
    assert whys[1].endswith("does not support the custom call 'weft.sqrt.v1'")
    both = replace(EVERYTHING, targets=frozenset({"acme.fused.v2", "weft.sqrt.v1"}))
    assert check_program_legality(calls(), both) == []


def test_reference_knows_extension_ops_only() -> None:
    findings = check_program_legality(calls(), get_backend("reference"))
    assert [f.where.split(" ")[0] for f in findings] == ["%1"]


def hinted(policy: HintPolicy) -> Program:
    program = small()
    hint = HintRegion(
        3, HintKind.ELEMENTWISE_DAG, policy, (0,), (program.main.body[-1].id,), program.main.body
    )
    return program.with_main(replace(program.main, hints=(hint,)))


def test_only_required_hints_must_be_met() -> None:
    assert check_program_legality(hinted(HintPolicy.OPTIONAL), EVERYTHING) == []
    assert check_program_legality(hinted(HintPolicy.PREFERRED), EVERYTHING) == []
    (finding,) = check_program_legality(hinted(HintPolicy.REQUIRED), EVERYTHING)
    assert finding.code == "UnsupportedHint"
    assert finding.where == "hint 3 of function @small"
    assert "cannot run a required elementwise_dag as one kernel" in finding.why
    able = replace(EVERYTHING, hints=frozenset({HintKind.ELEMENTWISE_DAG}))
    assert check_program_legality(hinted(HintPolicy.REQUIRED), able) == []


def test_a_specification_names_ops_as_the_wire_does() -> None:
    with pytest.raises(UserError, match=r"'tiny' lists 'cond' in its ops.* is written 'Cond'"):
        replace(EVERYTHING, name="tiny", ops=frozenset({"cond"}))


def test_require_legal_names_the_first_op_its_place_and_the_reason() -> None:
    spec = replace(EVERYTHING, name="tiny", ops=ALL_OPS - {"Cond"})
    with pytest.raises(Unimplemented) as caught:
        require_legal(nested(), spec)
    assert caught.value.op == "cond"
    assert re.fullmatch(
        r"Unimplemented cond: the backend 'tiny' does not support the op cond \(wire name Cond\); "
        r"it is %3 = cond\(%0, %0, %2\) in function @main \(test_conversion.py:\d+\)",
        str(caught.value),
    )


def test_require_legal_on_a_hint() -> None:
    with pytest.raises(Unimplemented, match=r"^Unimplemented hint 3: the backend 'everything'"):
        require_legal(hinted(HintPolicy.REQUIRED), EVERYTHING)


def test_huge_shapes_cost_nothing() -> None:
    b = Builder()
    program = b.build(b.neg(b.param("f32", [2**38, 2**20])))
    assert check_program_legality(program, EVERYTHING) == []
