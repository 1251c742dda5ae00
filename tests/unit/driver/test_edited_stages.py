"""Dumps that somebody edited: what they say takes effect, or is refused with code, place and
reason."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from examples.make_programs import attention, mlp, mlp_bf16, softmax_layernorm
from tests.support.cases import each
from tests.support.example_inputs import inputs_for
from tests.support.gpu_programs import through_stages
from weft.driver.compile import Executable
from weft.foundation.errors import SpecViolation
from weft.ptir import Program

pytestmark = pytest.mark.usefixtures("small_machine")
Json = Any
PROGRAMS: dict[str, Callable[[], Program]] = {
    "mlp": lambda: mlp(batch=8, width=16, hidden=32, out=16),
    "rows": lambda: softmax_layernorm(rows=6, columns=20),
    "attention": lambda: attention(sequence=4, cache=8, depth=4),
}


@cache
def compiled(name: str) -> Executable:
    return weft.compile(PROGRAMS[name]())


def document(name: str, stage: str) -> Json:
    return json.loads(compiled(name).stages[stage])


def with_stage(name: str, stage: str, edited: Json) -> Executable:
    text = edited if isinstance(edited, str) else json.dumps(edited)
    return weft.compile(PROGRAMS[name](), overrides={stage: text})


def refusal(name: str, stage: str, edited: Json) -> SpecViolation:
    with pytest.raises(SpecViolation) as caught:
        with_stage(name, stage, edited)
    return caught.value


# -- loop nests ----------------------------------------------------------------------------------


def test_loop_nests_read_back_as_they_are() -> None:
    for name in PROGRAMS:
        text = compiled(name).stages["cpu"]
        again = with_stage(name, "cpu", text)
        assert again.stages["cpu"] == text
        assert again.stages["llvm"] == compiled(name).stages["llvm"]


def test_an_edited_loop_nest_is_what_runs() -> None:
    b = weft.ptir.Builder("scaled")
    x = b.param("f32", [3, 40])
    program = b.build(x * b.full([3, 40], 2.0, "f32"))
    text = weft.compile(program).stages["cpu"]
    assert "const 2.0" in text
    data = np.arange(120, dtype=np.float32).reshape(3, 40)
    edited = weft.compile(program, overrides={"cpu": text.replace("const 2.0", "const 5.0")})
    assert np.array_equal(edited(data)[0], data * 5)


def row_sums() -> Program:
    b = weft.ptir.Builder("row_sums")
    x = b.param("f32", [4, 16])
    return b.build(b.reduce_sum(b.exp(x), axes=[1]))


BY_HAND = """scratch f32[16]
parallel p in 0..4 {
  init a:f32 sum over [u=2 unrolled, l=4 lanes]
  serial t in 0..2 {
    unrolled u in 0..2 {
      lanes l in 0..4 {
        load v0 = b0[l + 16*p + 8*t + 4*u]
        let v1:f32 = exp(v0)
        store b2[l + 8*t + 4*u] = v1 at []
        accumulate a <- v1
      }
    }
  }
  finish s = a
  store b1[p] = s at [p]
}
"""
"""Another nest for the row sums than the one that Weft makes."""


@cache
def by_hand() -> str:
    made = weft.compile(row_sums()).stages["cpu"]
    buffers = [line for line in made.splitlines() if line.startswith("buffer")]
    assert len(buffers) == 2
    symbol = made.split()[1]
    return "\n".join([f"routine {symbol} pieces=4", *buffers, BY_HAND])


def test_a_loop_nest_written_by_hand_runs() -> None:
    made = weft.compile(row_sums(), overrides={"cpu": by_hand()})
    data = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    assert np.allclose(made(data)[0], np.exp(data).sum(1), rtol=1e-5)
    assert made.stages["cpu"] == by_hand()


IDLE = "  {} z in 0..{} {{\n    let w:f32 = const 1.0\n  }}\n"
NESTS = {
    "a piece less": (
        "pieces=4", "pieces=3", "RoutineLoop", "its loops have 4 pieces, but it says 3"
    ),
    "a loop one too long": (
        "t in 0..2", "t in 0..3", "RoutineMemory", "leaves the 64 elements of the buffer at"
    ),
    "a step of two": ("t in 0..2", "t in 0..2 by 2", "RoutineLoop", "loops go by ones"),
    "a variable of a loop around": ("serial t", "serial p", "RoutineLoop", "by a loop around it"),
    "an unknown variable": (
        "16*p + 8*t", "16*p + 8*q", "RoutineName", "q is neither a loop around here nor a param"
    ),
    "an address beyond": (
        "b0[l", "b0[1000 + l", "RoutineMemory", "leaves the 64 elements of the buffer at"
    ),
    "elements of another row": (
        "16*p + 8*t", "16*t + 8*p", "RoutineDomain",
        "b1 at [0] is made of b0[16], which its kernel does not read for it",
    ),
    "elements that nobody reads": (
        "8*t + 4*u]", "4*u]", "RoutineDomain",
        "b1 at [0] is not made of b0[8], which its kernel reads for it",
    ),
    "a buffer that is only read": (
        "store b2", "store b0", "RoutineMemory", "the buffer 0 is only read"
    ),
    "a buffer that is not there": ("= b0[", "= b9[", "RoutineMemory", "there is no buffer 9"),
    "a value that is not there": (
        "exp(v0)", "exp(nobody)", "RoutineName", "nobody is not defined here"
    ),
    "a value whose loop is over": (
        "= s at", "= v1 at", "RoutineName", "v1 is not defined here"
    ),
    "a function that is not there": (
        "exp(v0)", "exq(v0)", "RoutineType", "there is no exq of (f32) in f32"
    ),
    "an operand too many": (
        "exp(v0)", "exp(v0, v0)", "RoutineType", "there is no exp of (f32, f32) in f32"
    ),
    "an accumulator that is not there": (
        "accumulate a", "accumulate b", "RoutineName", "there is no accumulator b here"
    ),
    "an accumulator with too few instances": (
        "u=2 unrolled", "u=1 unrolled", "RoutineLoop", "a has no instance here: it has 1 over u"
    ),
    "lanes that are not a power of two": (
        "l in 0..4", "l in 0..3", "RoutineLoop", "a power of two"
    ),
    "a store to another place": (
        "store b1[p]", "store b1[0]", "RoutineDomain", "is not where its point belongs, which is p"
    ),
    "a store less": (
        "  store b1[p] = s at [p]\n", "", "RoutineDomain", "over its domain: the point (i0 = 0)"
    ),
    "a turn of a sum less": (
        "t in 0..2", "t in 0..1", "RoutineDomain", "takes 32 terms in all, the kernel has 64"
    ),
    "a store twice": (
        "  store b1[p] = s at [p]\n", "  store b1[p] = s at [p]\n" * 2, "RoutineDomain", "twice"
    ),
    "too much scratch": (
        "f32[16]", "f32[9999999]",
        "RoutineMemory", "scratch takes 39,999,996 bytes of a thread's stack; 2,097,152 is",
    ),
    "too much unrolling": (
        "  finish", f"{IDLE.format('unrolled', 10**5)}  finish",
        "RoutineLoop", "statements; the most are 32,768",
    ),
    "too much work": (
        "  finish", f"{IDLE.format('serial', 10**9)}  finish",
        "RoutineLoop", "statements, the one that was made",
    ),
    "too many turns to count": (
        "  finish", f"{IDLE.format('serial', 2**62)}  finish",
        "RoutineMemory", "leaves the numbers of the machine",
    ),
    "another buffer": ("f32[64]", "f32[65]", "RoutineFrame", "its buffers follow from the kernel"),
    "a size beyond 64 bits": (
        "f32[64]", "f32[99999999999999999999]",
        "MalformedText", "99999999999999999999 is beyond 64 bits",
    ),
    "another name": ("routine k_", "routine j_", "RoutineFrame", "no kernel becomes j_"),
    "no statement": ("finish s = a", "fly", "MalformedText", "cannot read 'fly'"),
}  # fmt: skip


@each("name", NESTS)
def test_faults_in_loop_nests_are_refused(name: str) -> None:
    old, new, code, why = NESTS[name]
    assert old in by_hand()
    with pytest.raises(SpecViolation) as caught:
        weft.compile(row_sums(), overrides={"cpu": by_hand().replace(old, new, 1)})
    assert caught.value.code == code
    assert why in caught.value.why
    assert caught.value.where


def test_reads_that_are_not_followed_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    kept = "load v2 = b2[l + 8*t + 4*u]\n        accumulate a <- v2"
    nest = by_hand().replace("accumulate a <- v1", kept)
    told = "not known whether it reads the elements.*--check"
    for reason in ("0 from the cache", "0 kernels built, 1 from the cache"):
        with pytest.warns(weft.WeftWarning, match=told) as found:
            made = weft.compile(row_sums(), overrides={"cpu": nest})
        assert len(found) == 1
        assert reason in made.explain()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weft.compile(row_sums(), overrides={"cpu": by_hand().replace("exp(v0)", "tanh(v0)")})


COLUMN_SUMS = """parallel p in 0..1 {
  init a:f32 sum over [u=2 unrolled, l=4 lanes]
  serial r in 0..3 {
    unrolled u in 0..2 {
      lanes l in 0..4 {
        load v = b0[l + 8*r + 4*u]
        accumulate a <- v
      }
    }
  }
  unrolled u in 0..2 {
    lanes l in 0..4 {
      finish s = a
      store b1[l + 4*u] = s at [l + 4*u]
    }
  }
}
"""


def test_an_accumulator_for_several_elements_is_refused() -> None:
    """Unrolled vectors that add to one instance give each element a sum of two columns."""
    b = weft.ptir.Builder("column_sums")
    program = b.build(b.reduce_sum(b.param("f32", [3, 8]), axes=[0]))
    routine, *lines = weft.compile(program).stages["cpu"].splitlines()
    buffers = [line for line in lines if line.startswith("buffer")]
    nest = "\n".join([f"{routine.partition(' pieces')[0]} pieces=1", *buffers, COLUMN_SUMS])
    data = np.arange(24, dtype=np.float32).reshape(3, 8)
    made = weft.compile(program, overrides={"cpu": nest})
    assert np.array_equal(made(data)[0], data.sum(0))
    with pytest.raises(SpecViolation, match=r"b1 at \[\d\] is made of b0.*does not read for it"):
        weft.compile(program, overrides={"cpu": nest.replace("[u=2", "[w=2")})


def test_other_values_beside_scratch_are_told() -> None:
    """The sum of a softmax takes other values, from the same loads."""
    b = weft.ptir.Builder("softmax")
    program = b.build(b.softmax(b.param("f32", [4, 64])))
    text = weft.compile(program).stages["cpu"]
    assert "scratch" in text
    edited = text.replace("accumulate v4.a <- v3", "accumulate v4.a <- v0")
    assert edited != text
    with pytest.warns(weft.WeftWarning, match="not known whether it reads the elements"):
        weft.compile(program, overrides={"cpu": edited})


def test_unrolling_without_end_is_refused() -> None:
    text = compiled("mlp").stages["cpu"]
    edited = re.sub(r"unrolled (\w+) in 0\.\.\d+", r"unrolled \1 in 0..4611686018427387904", text)
    assert refusal("mlp", "cpu", edited).code.startswith("Routine")


# -- kernels -------------------------------------------------------------------------------------


def _put(*path: Any) -> Callable[[Json], None]:
    """Sets what the path leads to; the last part is the new value."""
    *keys, last, value = path

    def edit(document: Json) -> None:
        for key in keys:
            document = document[key]
        assert document[last] != value
        document[last] = value

    return edit


def _drop(*path: Any) -> Callable[[Json], None]:
    *keys, last = path

    def edit(document: Json) -> None:
        for key in keys:
            document = document[key]
        del document[last]

    return edit


_KERNEL = ("module", "kernels", 0, "region")
_TENSOR = ("memory", "tensors")
_ROLES = {"batch": [], "k": ["k"], "contraction": "v3", "lhs": "v0", "rhs": "v1"}
_SHARE = {"kernel": "matmul1", "first": "v13", "second": "out0", "why": ""}
Edited = tuple[str, str, Callable[[Json], None], str, str]
_HUGE = 99_999_999_999_999_999_999
EDITS: dict[str, Edited] = {
    "a size beyond 64 bits in a kernel": (
        "mlp", "region", _put(*_KERNEL, "axes", 0, "size", _HUGE),
        "MalformedJson", f"field 'size' is beyond 64 bits: {_HUGE}",
    ),
    "a size beyond 64 bits in a graph": (
        "mlp", "tiny", _put("values", "in2", "shape", [_HUGE]),
        "MalformedJson", f"{_HUGE} is not a size",
    ),
    "a size beyond 64 bits in a view": (
        "mlp", "poly_view", _put("poly_view", "shapes", "in0", [_HUGE, 8]),
        "MalformedJson", "field 'in0' is beyond 64 bits",
    ),
    "an atom beyond 64 bits": (
        "mlp", "indexbook", _put("index_book", "v1", "atoms", [[_HUGE]]),
        "MalformedJson", "field 'atoms' is beyond 64 bits",
    ),
    "an index beyond 64 bits": (
        "mlp", "indexbook", _put("index_book", "v1", "inputs", 0, "map", [f"{_HUGE}*i0", "0"]),
        "E1405 NonAffine", "has a number beyond 64 bits",
    ),
    "an offset beyond 64 bits": (
        "mlp", "memory", _put(*_TENSOR, 1, "number", _HUGE),
        "MalformedJson", "field 'number' is beyond 64 bits",
    ),
    "a memref that is not the tensor's": (
        "mlp", "region", _put(*_KERNEL, "inputs", 0, "memref", "strides", [1, 8]),
        "MalformedJson", "where it lies is for the stage memory to say",
    ),
    "another alignment": (
        "mlp", "region", _put(*_KERNEL, "outputs", 0, "memref", "alignment", 4),
        "MalformedJson", "the memref of v13 is",
    ),
    "inputs in another order": (
        "mlp", "region", lambda d: d["module"]["kernels"][0]["region"]["inputs"].reverse(),
        "MalformedJson", "but it reads in0, in1, in2, in this order",
    ),
    "an input of another shape": (
        "mlp", "region", _put("module", "tensors", "in2", "shape", [64]),
        "MalformedJson", "the memref of in2",
    ),
    "an input of another role": (
        "mlp", "region", _put("module", "tensors", "in2", "role", "state"),
        "RegionInputs", "it is state f32[32], not input f32[32]",
    ),
    "an output less": (
        "attention", "region", lambda d: d["module"]["outputs"].pop(),
        "RegionOutputs", "there are 2; the program has 3",
    ),
    "a result that is not deferred": (
        "mlp", "region", _put(*_KERNEL, "outputs", 0, "materialize", "gmem"),
        "RegionMaterialize", "what follows the contraction: deferred",
    ),
    "an axis that is not reduced": (
        "mlp", "region", _drop(*_KERNEL, "axes", 2, "reduce"),
        "RegionAxis", "axis k is not marked as reduced",
    ),
    "another pattern": (
        "rows", "region", _put(*_KERNEL, "pattern", "map"),
        "RegionPattern", "it is called map, but its body is a row",
    ),
    "roles the wrong way round": (
        "mlp", "region", _put(*_KERNEL, "roles", {**_ROLES, "m": ["n"], "n": ["m"]}),
        "RegionRoles", "is not read along the axes of its role",
    ),
    "a dependence that is not there": (
        "mlp", "poly_view", _put("poly_view", "edges", 0, "deps", "true", [1]),
        "E1407 ViewInvalid", "the accesses say otherwise",
    ),
    "a dependence less": (
        "mlp", "poly_view", lambda d: d["poly_view"]["edges"].pop(),
        "E1407 ViewInvalid", "is missing; the accesses say otherwise",
    ),
    "a view of an input of another shape": (
        "mlp", "poly_view", _put("poly_view", "inputs", "in0", "shape", [16, 16]),
        "E1407 ViewInvalid", "follow from the graph",
    ),
    "another shape for an input": (
        "mlp", "poly_view", _put("poly_view", "shapes", "in0", [16, 16]),
        "E1407 ViewInvalid", "follow from the graph",
    ),
    "roles of axes that are not theirs": (
        "mlp", "poly_view", _put("poly_view", "blocks", 0, "attrs", "lhs_idx", ["i1"]),
        "E1407 ViewInvalid", "not the roles that its axes have",
    ),
    "a block that computes something else": (
        "mlp", "poly_view", _put("poly_view", "blocks", 1, "fn", "sub"),
        "E1407 ViewInvalid", "its fn follows from the graph",
    ),
    "a map that is not the graph's": (
        "mlp", "indexbook", _put("index_book", "v1", "inputs", 0, "map", ["i0", "0"]),
        "E1306 BookDisagrees", "the field inputs is not what follows from the graph",
    ),
    "a graph with another input": (
        "mlp", "tiny", _put("values", "in2", "shape", [1, 32]),
        "E1107 GraphInvalid", "those of the program are in0",
    ),
    "another slot": (
        "mlp", "memory", _put(*_TENSOR, 1, "number", 7),
        "BufferFact", "its number is 7, but must be 1",
    ),
    "a tensor that is not there": (
        "mlp", "memory", _put(*_TENSOR, 0, "name", "nobody"), "BufferName", "it has no buffer",
    ),
    "a tensor twice": (
        "mlp", "memory", _put(*_TENSOR, 0, "name", "in1"), "MalformedJson", "listed twice",
    ),
    "too few bytes": (
        "mlp", "memory", _put(*_TENSOR, 0, "bytes", 4), "BufferFact", "its bytes is 4",
    ),
    "a life that ends too early": (
        "mlp", "memory", _put(*_TENSOR, -1, "life", [0, 0]),
        "BufferFact", "its life is [0, 0], but must be [0, 1]",
    ),
    "outside the arena": (
        "mlp", "memory", _put(*_TENSOR, -1, "offset", 1 << 40), "BufferSize", "the arena at",
    ),
    "an arena without end": (
        "mlp", "memory", _put("memory", "arena_bytes", 1 << 50), "BufferSize", "are used",
    ),
    "a copy less": (
        "attention", "memory", _put("memory", "copies", []),
        "BufferCopy", "what must be copied is: in3 to",
    ),
    "a share less": (
        "attention", "memory", _put("memory", "shares", []), "BufferFact", "its noalias is False",
    ),
    "a share that must not be": (
        "mlp", "memory",
        _put("memory", "shares", [_SHARE]),
        "BufferShare", "v13 is not free to be overwritten",
    ),
    "no plan for a kernel": (
        "mlp", "plan", _drop("kernels", "matmul0"), "PlanMissing", "there is no plan for it",
    ),
    "a tile for which no register is enough": (
        "mlp", "plan",
        lambda d: d["plans"][0].update(cache=[], warp_tile="64x64", tile=[64, 64, 16]),
        "PlanRefused", "warp_tile 64x64 is 1024 vectors of 4; 256 is the most",
    ),
    "a row of a tile that ends inside a vector": (
        "mlp", "plan",
        lambda d: d["plans"][0].update(
            cache=[{"tensor": t, "where": "packed", "at": "k", "pingpong": False} for t in "AB"],
            warp_tile="4x6", tile=[8, 12, 16], vectorize={"axis": "n", "width": 4},
        ),
        "PlanRefused", "warp_tile columns is 6, not a multiple of 4 lanes",
    ),
    "a block for which no stack is enough": (
        "mlp", "plan",
        lambda d: d["plans"][0].update(
            cache=[{"tensor": t, "where": "packed", "at": "k", "pingpong": False} for t in "AB"],
            warp_tile="8x12", tile=[4096, 4092, 4096],
        ),
        "PlanRefused", "packed blocks of tile 4096x4092x4096 take 201,195,520 bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", EDITS)
def test_what_is_not_so_is_refused(case: str) -> None:
    name, stage, edit, code, why = EDITS[case]
    edited = document(name, stage)
    edit(edited)
    found = refusal(name, stage, edited)
    assert found.code == code
    assert any(why in finding.why for finding in found.findings)


def test_an_edited_program_keeps_its_signature() -> None:
    text = compiled("mlp").stages["frontend"].replace("f32[8, 16]", "f32[4, 16]")
    found = refusal("mlp", "frontend", text.replace("[8, ", "[4, "))
    assert found.code == "ProgramSignature"


# -- what takes effect ---------------------------------------------------------------------------


def test_a_tensor_moved_in_the_arena_is_used_there() -> None:
    edited = document("mlp", "memory")
    tensor = edited["memory"]["tensors"][-1]
    assert (tensor["space"], tensor["offset"]) == ("arena", 0)
    tensor["offset"], edited["memory"]["arena_bytes"] = 256, 256 + tensor["bytes"]
    made, inputs = with_stage("mlp", "memory", edited), inputs_for(PROGRAMS["mlp"]())
    assert np.array_equal(made(*inputs)[0], compiled("mlp")(*inputs)[0])
    assert made.report()[-1].startswith("arena: 1,280 bytes hold 1 tensor of 1,024 bytes")


def test_another_read_of_a_view_is_what_is_computed() -> None:
    """The bias of the second layer, read at its first element only."""
    edited = document("mlp", "poly_view")
    block = edited["poly_view"]["blocks"][-1]
    (bias,) = (access for access in block["accesses"] if access["tensor"] == "in4")
    bias["map"] = "[0]"
    inputs = inputs_for(PROGRAMS["mlp"]())
    made = with_stage("mlp", "poly_view", edited)(*inputs)[0]
    inputs[4] = np.full_like(inputs[4], inputs[4][0])
    assert np.allclose(made, compiled("mlp")(*inputs)[0], rtol=1e-6, atol=1e-6)


def test_the_plan_of_the_cpu_has_what_the_cpu_uses() -> None:
    (row,) = document("rows", "plan")["plans"]
    used = {"vector", "accumulators", "keep_row", "across", "lines"}
    assert set(row) == {"kind", "target", "kernel", *used}
    product = document("mlp", "plan")["plans"][0]
    for unused in ("registers", "cluster", "stages", "consumers", "split_k", "roles"):
        assert unused not in product


def test_an_edited_tile_changes_the_cuda() -> None:
    program = mlp_bf16()
    plain = through_stages(program, "sm90")
    plans = json.loads(plain.text("plan"))
    assert plans["plans"][0]["arch"] == "sm90"
    rows, columns, depth = plans["plans"][0]["tile"]
    plans["plans"][0] |= {"tile": [rows, columns // 2, depth], "warp_tile": f"64x{columns // 2}"}
    edited = through_stages(program, "sm90", plan=json.dumps(plans))
    assert edited.text("gpu") != plain.text("gpu")
    assert edited.text("cu") != plain.text("cu")
