"""LLVM text: what stands once, and where it may be used."""

from __future__ import annotations

import re

from tests.support.cases import each
from weft.codegen.cpu.code import Code, Val, number
from weft.codegen.cpu.index_code import IndexCode, Lanes
from weft.codegen.cpu.transposing import transposed
from weft.foundation.index_expr import Guard, axis, floordiv

X, Y = Val("%x", "i64"), Val("%y", "i64")


def test_an_instruction_that_stands_already_is_not_written_again() -> None:
    code = Code()
    assert code.binary("add", X, Y) == code.binary("add", X, Y)
    assert code.binary("add", Y, X) != code.binary("add", X, Y)
    assert len(code.lines) == 2


def test_what_is_computed_inside_a_loop_or_a_branch_is_not_used_behind_it() -> None:
    code = Code()
    before = code.binary("add", X, Y)
    found: list[Val] = []

    def body(index: Val = X) -> None:
        assert code.binary("add", X, Y) == before
        found.append(code.binary("mul", index, Y))

    code.loop(number(0, "i64"), number(4, "i64"), 1, body)
    code.when(Val("%p", "i1"), body)
    found.append(code.binary("mul", X, Y))
    found.append(code.binary("mul", Val("%v2", "i64"), Y))
    assert len(set(found)) == 4
    assert code.binary("add", X, Y) == before


def test_what_is_the_same_in_every_turn_is_written_before_the_loop() -> None:
    """Before the outermost loop that does not change it; but what may be skipped stays there."""
    code = Code()

    def inner(i: Val, j: Val) -> None:
        code.binary("or", i, Y)
        code.binary("sub", code.binary("mul", X, Y), j)
        code.when(Val("%p", "i1"), lambda: code.line(f"use {code.binary('xor', X, Y).text}"))

    def outer(i: Val) -> None:
        code.loop(number(0, "i64"), number(4, "i64"), 1, lambda j: inner(i, j))

    code.loop(number(0, "i64"), number(4, "i64"), 1, outer)
    code.binary("mul", X, Y)
    lines = code.text().split("\n")
    words = ("mul", "or", "sub", "xor", "body", "then")
    found = [word for line in lines for word in words if f" {word} " in line or word in line[:4]]
    assert found == ["mul", "body", "or", "body", "sub", "then", "xor"]


def test_a_loop_asks_before_its_first_turn_only_where_its_bounds_are_not_known() -> None:
    def branches(start: Val, stop: Val) -> list[str]:
        code = Code()
        code.loop(start, stop, 1, lambda i: code.line(f"use {i.text}"))
        return [
            re.sub(r"\d+", "", line.strip()) for line in code.text().split("\n") if " br " in line
        ]

    again = "br i %v, label %body, label %exit"
    assert branches(number(0, "i64"), number(4, "i64")) == ["br label %body", again]
    assert branches(number(4, "i64"), number(4, "i64")) == [again.replace("%v", "false", 1), again]
    assert branches(number(0, "i64"), X) == [again, again]


@each("rewritten", [True, False])
def test_the_index_of_a_loop_that_is_not_rewritten_is_hidden_where_it_moves(
    rewritten: bool,
) -> None:
    """And only there: what the body uses is the number itself."""
    code = Code()
    zero, four = number(0, "i64"), number(4, "i64")
    code.loop(zero, four, 1, lambda i: code.line(f"use {i.text}"), rewritten=rewritten)
    hidden = code.text().count("call i64 @llvm.expect.i64(i64 %v2, i64 0)")
    assert hidden == len(code.declared) == (not rewritten)
    assert code.text().count("use %v2") == 1


def test_addresses_are_not_rewritten_in_loops_that_gather_many_lanes() -> None:
    def hidden(lanes: int) -> int:
        code = Code()

        def body(index: Val) -> None:
            parts = [code.load("float", f"%p{n}", 1, 4) for n in range(lanes)]
            code.gather_lanes(parts)

        code.loop(number(0, "i64"), X, 1, body)
        return code.text().count("@llvm.expect")

    assert [hidden(lanes) for lanes in (1, 16, 64)] == [0, 0, 1]


@each(
    ("op", "first", "second", "result"),
    [
        ("add", 3, -5, "-2"),
        ("mul", 1 << 62, 4, "0"),
        ("udiv", -1, 2, str(2**63 - 1)),
        ("sdiv", -7, 2, "-3"),
        ("srem", -7, 2, "-1"),
        ("icmp ult", -1, 63, "false"),
        ("icmp slt", -1, 63, "true"),
    ],
)
def test_what_is_known_of_numbers_is_no_instruction(
    op: str, first: int, second: int, result: str
) -> None:
    code = Code()
    write = code.compare if op.startswith("icmp") else code.binary
    assert write(op, number(first, "i64"), number(second, "i64")).text == result
    assert not code.lines


def test_what_one_number_decides_is_no_instruction() -> None:
    code, p = Code(), Val("%p", "i1")
    yes, no, zero = number(1, "i1"), number(0, "i1"), number(0, "i64")
    assert code.binary("and", p, yes) == code.binary("or", no, p) == p
    assert code.binary("and", no, p) == no
    assert code.binary("or", p, yes) == yes
    assert code.binary("add", zero, X) == code.binary("mul", X, number(1, "i64")) == X
    assert code.binary("mul", X, zero) == zero
    assert code.select(yes, X, Y) == X
    assert code.select(no, X, Y) == Y
    assert code.intrinsic("llvm.smax", number(-3, "i64"), zero) == zero
    assert code.convert("trunc", number(300, "i64"), "i8").text == "44"
    assert code.convert("zext", number(-1, "i8"), "i64").text == "255"
    assert code.gather_lanes([zero, zero]).text == "<i64 0, i64 0>"
    assert not code.lines
    assert not code.declared


@each("op", ["sub", "udiv", "sdiv", "srem"])
def test_what_numbers_do_not_decide_is_an_instruction(op: str) -> None:
    code, zero = Code(), number(0, "i64")
    code.binary(op, zero, X)
    code.binary(op, X, zero)
    code.binary("udiv", X, zero)
    assert len(code.lines) == 2 + (op != "udiv")


def test_it_is_known_which_lanes_a_guard_lets_in_where_it_depends_on_them_alone() -> None:
    """Of a row that was spread to every second place, l is element l / 2 where l is even."""
    indices = index_code()
    guard = Guard(axis("l") - floordiv(axis("l"), 2) * 2, 1)
    found = [indices.inside([guard], lane).text for lane in range(4)]
    assert found == ["true", "false", "true", "false"]
    assert not indices.code.lines


def test_memory_is_read_every_time() -> None:
    code = Code()
    assert code.load("float", "%p", 1, 4) != code.load("float", "%p", 1, 4)


def test_a_vector_of_parts_is_no_scalar_that_was_spread() -> None:
    """Both begin with the same instruction."""
    code, part = Code(), Val("%a", "float")
    code.gather_lanes([part, part])
    assert code.spread(part, 2).lanes == 2
    assert "shufflevector <2 x float> %v" in code.lines[-1]


def index_code() -> IndexCode:
    """A loop over i, and in it one over j; u is unrolled, l are four lanes."""
    ranges = {"i": (0, 7), "j": (0, 7), "u": (0, 3), "l": (0, 3)}
    variables: dict[str, Val | int] = {"i": X, "j": Y, "u": 2}
    return IndexCode(Code(), variables, ranges, Lanes("l", 4))


def test_neighbours_share_what_moves_and_differ_by_a_constant() -> None:
    indices = index_code()
    address = axis("j") + axis("i") * 64 + axis("u") * 8 + axis("l")
    places = [indices.pointer("%base", "float", address + shift) for shift in range(3)]
    assert len(set(places)) == 3
    # i * 64, + j, the place of both, and one constant step from there for each neighbour.
    assert len(indices.code.lines) == 3 + 3
    assert "%x" in indices.code.lines[0]


def test_a_part_that_could_leave_the_buffer_is_not_said_to_lie_inside() -> None:
    """64 - i is inside, -i is not: no instruction promises that the place on the way is."""
    indices = index_code()
    indices.pointer("%base", "float", axis("i") * -1 + 64)
    indices.pointer("%base", "float", axis("i") - 1)
    pointers = [line for line in indices.code.lines if "getelementptr" in line]
    assert len(pointers) == 4
    assert not any("inbounds" in line for line in pointers)


SHUFFLE = re.compile(
    r"(%\w+) = shufflevector <\d+ x \w+> (%\w+), <\d+ x \w+> (%\w+|poison), .*<(.*)>"
)


@each(
    ("scalar", "rows", "lanes"),
    [
        (scalar, rows, lanes)
        for scalar in ("float", "double", "i16", "i8")
        for rows in (1, 2, 4, 8, 16)
        for lanes in (rows, 2 * rows, 4 * rows)
        if lanes > 1
    ],
)
def test_rows_are_turned(scalar: str, rows: int, lanes: int) -> None:
    """Every vector that comes out has one lane of each row, in order."""
    code = Code()
    given = [Val(f"%r{row}", scalar, lanes) for row in range(rows)]
    turned = transposed(code, given)
    known = {row.text: [f"{row.text}.{lane}" for lane in range(lanes)] for row in given}
    for line in code.lines:
        match = SHUFFLE.search(line)
        assert match is not None
        both = known[match[2]] + known.get(match[3], [])
        known[match[1]] = [both[int(lane.split()[1])] for lane in match[4].split(",")]
    wanted = [[f"{row.text}.{lane}" for row in given] for lane in range(lanes)]
    assert [known[vector.text] for vector in turned] == wanted


def test_rows_are_turned_inside_of_16_bytes_first() -> None:
    """Steps across them are few, and exchange whole ones."""
    code = Code()
    transposed(code, [Val(f"%r{row}", "float", 8) for row in range(8)])
    masks = [
        [int(n.split()[1]) for n in line.rpartition("<")[2][:-1].split(",")] for line in code.lines
    ]
    across = [
        mask for mask in masks if any(lane % 8 // 4 != at // 4 for at, lane in enumerate(mask))
    ]
    assert len(masks) == 24
    assert sorted(across) == [[0, 1, 2, 3, 8, 9, 10, 11]] * 4 + [[4, 5, 6, 7, 12, 13, 14, 15]] * 4


def test_a_function_is_written_once_for_all_programs_that_call_it() -> None:
    """With those that it calls, which stand before it."""
    written: list[str] = []

    def inner(code: Code, x: Val) -> Val:
        written.append("inner")
        return code.intrinsic("llvm.fabs", x)

    def outer(code: Code, x: Val) -> Val:
        written.append("outer")
        return code.binary("fadd", code.function("inner", inner, x), x)

    found = []
    for _ in range(2):
        code = Code()
        code.function("outer", outer, Val("%a", "float", 4))
        found.append((list(code.functions.items()), code.declared))
    assert found[0] == found[1]
    assert [name for name, _ in found[0][0]] == ["inner_float_4", "outer_float_4"]
    assert found[0][1].keys() == {"llvm.fabs.v4f32"}
    assert written == ["outer", "inner"]
