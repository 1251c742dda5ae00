"""The dialect as text: what is printed reads back, and what is edited is understood or refused with
its place."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.support.cases import each, one_in
from tests.support.gpu_contractions import SM90_CASES, sm90_kernel
from tests.support.gpu_programs import CASES, compiled, program, through_stages
from weft.codegen.gpu import ir
from weft.codegen.gpu.ir import formats, values
from weft.codegen.gpu.ir.element_ops import ElementOp
from weft.codegen.gpu.ir.module import GpuModule, Launch
from weft.codegen.gpu.ir.scalar import BLOCK, LANE, Lit, Name, TableAt, least, op, wide
from weft.codegen.gpu.spelling.text import print_module, spelling
from weft.codegen.gpu.spelling.text.parser import MAX_NESTING, RECORDS, parse_module
from weft.codegen.gpu.verify import findings
from weft.foundation import functions
from weft.foundation.dtypes import BF16, F32, SI8, SI32
from weft.foundation.errors import SpecViolation
from weft.target.sm90 import SM90

# -- both ways -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dtype", "target"), one_in(3, CASES, unpack=True))
def test_kernels_of_programs_read_back(name: str, dtype: str, target: str) -> None:
    module = compiled(name, dtype, target)["gpu"]
    text = print_module(module)
    assert parse_module(text) == module
    assert print_module(parse_module(text)) == text


@each("case", SM90_CASES)
def test_contractions_read_back(case: str) -> None:
    kernel = sm90_kernel(*SM90_CASES[case])
    module = GpuModule({kernel.name: kernel})
    assert parse_module(print_module(module)) == module


SMALL = ir.Kernel(
    "k",
    grid=2,
    threads=32,
    buffers=("x", "a tensor", "y"),
    maps=(),
    tiles=(ir.SharedTile("room", 0, 64),),
    barriers=(),
    tables=(ir.Table("turns", (3, -1)),),
    body=(
        values.ReadParam("p", 1, SI32, 0, -4, 9),
        ir.Let("at", op("sub", BLOCK * 32 + LANE, Name("p"))),
        ir.For(
            "i",
            0,
            least(Name("at"), TableAt("turns", Lit(1))),
            2,
            (
                ir.LoadElement("v1", 0, BF16, wide(Name("at")), Name("at") < 5, -0.0, False),
                values.Compute(ElementOp("v2", BF16, "const", (), float("inf"))),
                values.Compute(ElementOp("v3", BF16, "add", ("v1", "v2"), None, True)),
                ir.If(LANE.equals(0), (ir.Set("at", Lit(-7)),), (ir.ClusterWait(),)),
            ),
            times=4,
        ),
    ),
    reports=True,
    cluster=2,
)
TEXT = """launch "row 0" = k(0, 2, 1)

kernel k grid=2 threads=32 cluster=2 reports {
  buffers (x, "a tensor", y)
  room = shared_tile(offset=0, bytes=64)
  turns = table(values=(3, -1))
  p : si32 = read_param(buffer=1, element=0, low=-4, high=9)
  let at = (((block * 32) + lane) - p)
  for i in (0, min(at, turns[1]), 2) times=4 {
    v1 : bf16 = load_element(buffer=0, offset=wide(at), guard=(at < 5), fill=-0.0, constant=false)
    v2 : bf16 = const(inf)
    v3 : bf16 = add(v1, v2) unrounded
    if (lane == 0) {
      set at = -7
    }
    else {
      cluster_wait()
    }
  }
}
"""


def test_the_text_of_a_small_kernel() -> None:
    module = GpuModule({"k": SMALL}, {"row 0": Launch("k", (0, 2, 1))})
    assert print_module(module) == TEXT
    assert parse_module(TEXT) == module


def test_spaces_comments_and_parentheses_are_free() -> None:
    loose = TEXT.replace("\n", "\n\n # a remark\n").replace("set at = -7", "set at=((-7))")
    assert parse_module(loose) == parse_module(TEXT)


def test_a_negative_zero_and_numbers_of_each_kind_keep_their_kind() -> None:
    numbers: tuple[bool | int | float, ...] = (True, 1, 1.0, -0.0, 0, 0.1, -1e-30, float("-inf"))
    ops = [ElementOp(f"v{i}", F32, "const", (), n) for i, n in enumerate(numbers)]
    kernel = replace(SMALL, body=tuple(map(values.Compute, ops)))
    again = parse_module(print_module(GpuModule({"k": kernel}))).kernels["k"]
    found = [s.op.value for s in again.body if isinstance(s, values.Compute)]
    assert list(map(repr, found)) == list(map(repr, numbers))


def test_records_and_functions_have_different_names() -> None:
    names = {*functions.UNARY, *functions.BINARY, "cast", "select", "const"}
    assert not names & set(RECORDS)
    assert {spelling(ir.TmaLoad), spelling(values.LoadVector)} <= set(RECORDS)
    assert formats.HELD[SI8] == "i8"


# -- edited and hostile texts ----------------------------------------------------------------------


def inside(statement: str) -> str:
    return f"kernel k grid=1 threads=32 {{\n  buffers ()\n  {statement}\n}}\n"


WRONG: dict[str, tuple[str, str]] = {
    "prose": ("hello", "line 1, column 1: expected 'launch', 'host' or 'kernel' but found 'hello'"),
    "a stray character": ("kernel k @", "line 1, column 10: unexpected character '@'"),
    "no grid": ("kernel k {", "line 1, column 10: expected 'grid' but found '{'"),
    "cut off": ("kernel k grid=1", "line 1, column 16: expected 'threads' but found the end"),
    "no buffers": (
        "kernel k grid=1 threads=32 {\n}",
        "line 2, column 1: expected 'buffers' but found '}'",
    ),
    "an open block": (inside("if 1 {"), "line 5, column 1: expected a name but found the end"),
    "a brace too many": (inside("}"), "line 4, column 1: expected 'launch', 'host' or 'kernel'"),
    "two kernels of one name": (
        inside("") + inside(""),
        "line 5, column 1: k appears here for the second time",
    ),
    "two launches of one name": (
        "launch a = k()\nlaunch a = k()",
        "line 2, column 1: a appears here for the second time",
    ),
    "a frame after a statement": (
        inside("sync_threads()\n  t = table(values=(1))"),
        "line 4, column 3: maps, tiles, barriers and tables stand before the statements",
    ),
    "a tile inside a block": (
        inside("if 1 { t = table(values=(1)) }"),
        "line 3, column 10: table is not a statement",
    ),
    "an unknown record": (
        inside("fly(high=1)"),
        "line 3, column 6: 'fly' is not a record of the dialect; expected one but found '('",
    ),
    "an unknown field": (
        inside("wait_group(patience=1)"),
        "line 3, column 14: expected one of the fields pending but found 'patience'",
    ),
    "a field twice": (
        inside("wait_group(pending=1, pending=1)"),
        "line 3, column 25: expected ')' but found 'pending'",
    ),
    "a missing field": (
        inside("assign(guard=1)"),
        "line 3, column 9: name must stand before assign",
    ),
    "fields out of order": (
        inside("a = assign(guard=1, source=b)"),
        "line 3, column 14: expected the field 'source' before here but found 'guard'",
    ),
    "a name too many": (
        inside("a = sync_threads()"),
        "line 3, column 19: nothing must stand before sync_threads",
    ),
    "no dtype": (
        inside("a = load_element(buffer=0)"),
        "line 3, column 19: name and dtype must stand before load_element",
    ),
    "an unknown dtype": (inside("a : f99 = exp(b)"), "line 3, column 7: expected one of i1, si4,"),
    "half a number": (
        inside("let a = 1.5"),
        "line 3, column 11: expected a whole number but found",
    ),
    "a huge number": (
        inside(f"let a = {'9' * 5000}"),
        "line 3, column 11: expected a whole number but found '999999999999999999999999999...'",
    ),
    "no operator": (inside("let a = (1 2)"), "line 3, column 14: expected ')' but found '2'"),
    "an unknown function": (
        inside("let a = pow(1, 2)"),
        "line 4, column 1: there is no pow of 2 numbers; expected another function but found '}'",
    ),
    "a name with a dot": (inside("let a.b = 1"), "line 3, column 7: expected a name but found 'a."),
    "a swizzle of 100 bytes": (
        inside("a : f32 = tensor_map(buffer=0, offset=0, sizes=(), strides=(), box=(), swizzle=9)"),
        "line 3, column 82: expected one of 16, 32, 64, 128 but found '9'",
    ),
    "a statement in an element program": (
        inside(
            "epilogue(acc=a[0], fragment=fragment(groups=1, row=0, column=0, rows=1, columns=1), "
            "value=v, result=v, out=o[0], out_dtype=f32) { sync_threads() }"
        ),
        "line 3, column 133: an element program has only sources and functions",
    ),
    "deep parentheses": (
        inside(f"let a = {'(' * 100_000}"),
        f"line 3, column {11 + MAX_NESTING}: expected fewer levels but found '('",
    ),
    "deep blocks": (
        inside("if 1 {" * 100_000),
        "line 3, column 392: expected fewer levels but found '{'",
    ),
}


@each("name", WRONG)
def test_wrong_texts_are_refused_with_their_place(name: str) -> None:
    text, message = WRONG[name]
    with pytest.raises(SpecViolation) as caught:
        parse_module(text)
    assert caught.value.code == "MalformedText"
    assert message in str(caught.value)


@pytest.mark.parametrize("seed", one_in(4, range(4)))
def test_mutated_texts_are_read_or_refused(seed: int) -> None:
    """Nothing but a violation comes of a text that somebody damaged, nor of verifying it."""
    rng = random.Random(seed)
    name, dtype, target = CASES[1 + 3 * seed % len(CASES)]
    text = print_module(compiled(name, dtype, target)["gpu"])[:6000]
    words = [*text.split()[:200], "", "(", "}", "-1", "1e999", "nan", "\0", "wide(", "λ", '"']
    refused = 0
    for _ in range(200):
        start = rng.randrange(len(text))
        damaged = text[:start] + rng.choice(words) + text[start + rng.randrange(8) :]
        try:
            for kernel in parse_module(damaged).kernels.values():
                list(findings(kernel, SM90))
        except SpecViolation:
            refused += 1
    assert refused > 100


# -- the stage -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dtype", "target"), one_in(3, CASES, unpack=True))
def test_the_stage_can_be_fed_back(name: str, dtype: str, target: str) -> None:
    plain = compiled(name, dtype, target)
    again = through_stages(program(name, dtype), target, gpu=plain.text("gpu"))
    assert again["gpu"] == plain["gpu"]
    assert again.text("cu") == plain.text("cu")


def test_an_edited_stage_changes_the_code() -> None:
    plain = compiled("softmax_layernorm", "f32", "sm90")
    edited = plain.text("gpu").replace(" exp(", " exp2(", 1)
    assert edited != plain.text("gpu")
    again = through_stages(program("softmax_layernorm", "f32"), "sm90", gpu=edited)
    assert again.text("cu").count("= exp2f(") == 1
    assert "= exp2f(" not in plain.text("cu")


def test_an_error_in_an_edited_stage_is_a_sentence() -> None:
    plain = compiled("softmax_layernorm", "f32", "sm90").text("gpu")
    source = program("softmax_layernorm", "f32")
    with pytest.raises(SpecViolation, match=r"KernelLaunch at stage gpu: nothing is launched"):
        through_stages(source, "sm90", gpu=plain.replace("launch row0", "launch row1"))
    with pytest.raises(SpecViolation, match=r"KernelLaunch at stage gpu: there is no kernel k_0"):
        through_stages(source, "sm90", gpu=plain.replace("= k_", "= k_0"))
    with pytest.raises(
        SpecViolation, match="takes 5 of the 5 tensors of row0, not the tensors 0, "
    ):
        through_stages(source, "sm90", gpu=plain.replace("(0, 1, 2, 3, 4)", "(0, 1, 2, 3, 5)"))
