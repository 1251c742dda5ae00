"""What a kernel of the dialect must not say, and with which words it is told."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.support.cases import each, one_in
from tests.support.gpu_contractions import SM90_CASES, sm90_kernel
from tests.support.gpu_programs import CASES, compiled
from weft.codegen.gpu import ir
from weft.codegen.gpu.spelling.names import is_free
from weft.codegen.gpu.spelling.prelude import instructions
from weft.codegen.gpu.spelling.text import parse_module
from weft.codegen.gpu.verify import findings, verify
from weft.foundation.errors import SpecViolation
from weft.target.known import target_named
from weft.target.sm80 import SM80
from weft.target.sm90 import SM90

FRAME = """kernel k grid=4 threads=64 {
  buffers (x, y)
  m : bf16 = tensor_map(buffer=0, offset=0, sizes=(64, 9), strides=(64), box=(64, 8), swizzle=128)
  room = shared_tile(offset=0, bytes=1024)
  full = barriers(offset=1024, count=2, arrivals=1)
  turns = table(values=(0, 1))
"""
START = """
  let n = thread
  v : f32 = load_element(buffer=0, offset=wide(n), guard=(n < 9))
  i : si32 = index_value(value=n)
  sum : f32 = variable(start=0.0)
  acc = registers(kind=float, count=8)
  part = registers(kind=u32, count=4)
"""


def kernel_of(text: str) -> ir.Kernel:
    return parse_module(text + "}\n").kernels["k"]


def statement(text: str) -> list[str]:
    """What is wrong with a statement that follows those of `START`."""
    found = [str(f) for f in findings(kernel_of(FRAME + START + text), SM90)]
    head = r"(\w+) at kernel k, statement \d+ \(\w+\): "
    return [re.sub(head, r"\1: ", line) for line in found]


RIGHT = (
    "let w = (turns[n] + 1)",
    "set n = (n * 3)",
    "w : f32 = add(v, sum)",
    "w : i1 = lt(v, sum)",
    "w : f32 = const(1.5)",
    "w : si32 = const(-5)",
    "w : bf16 = cast(i)",
    "sum = assign(source=v, guard=1)",
    "a, b : si32 = load_vector(buffer=1, offset=0, guard=1)",
    "if (n < 3) { let q = 1 } else { let q = 2 }",
    "for k in (0, n, 1) { set n = k }",
    "roles { one first=0 count=1 { sync_threads() } two first=1 count=1 { } }",
    "st_shared(target=room[0], source=v, dtype=f32)",
    "sync_warp()",
    "a, b = alike(number=n, bits=8)",
    "w : ui32 = sort_key(source=v, descending=true)",
    "count_shared(target=room[(n * 4)])",
    "combine_element(buffer=1, dtype=si32, fn=max, offset=0, guard=1, source=i)",
    "tma_load(target=room[0], map=m, coords=(0, n), barrier=full[1])",
    "mma_sync(acc=acc[4], a=part[0], b=part[2], a_dtype=bf16, b_dtype=bf16)",
)
WRONG: dict[str, str] = {
    "cluster_arrive()": "KernelField: the kernel has no clusters",
    "st_cluster(target=room[0], block=0, source=v, dtype=f32)": (
        "KernelField: the kernel has no clusters"
    ),
    "let n = 1": "KernelName: n is defined already",
    "let return = 1": "KernelName: 'return' cannot be a name",
    "let lane = 1": "KernelName: 'lane' cannot be a name",
    "let b0 = 1": "KernelName: 'b0' cannot be a name",
    "let i8 = 1": "KernelName: 'i8' cannot be a name",
    "let gelu = 1": "KernelName: 'gelu' cannot be a name",
    "let w_ = 1": "KernelName: 'w_' cannot be a name",
    "let w = u": "KernelName: there is no number u here",
    "let w = v": "KernelName: there is no number v here",
    "let w = more[0]": "KernelName: there is no table more",
    "let w = (n / 0)": "KernelField: div by 0",
    "let w = (n << -1)": "KernelField: shl by -1",
    "let w = 99999999999999999999": "KernelField: 99999999999999999999 does not fit 64 bits",
    "set w = 1": "KernelName: there is no number w here",
    "if n { let q = 1 } set q = 2": "KernelName: there is no number q here",
    "for k in (0, 4, 0) { }": "KernelField: a step must be positive",
    "for k in (0, 4, 1) times=1000 { }": "KernelField: 1000 turns at a time",
    "for k in (0, 4, 1) { } set k = 1": "KernelName: there is no number k here",
    "w = registers(kind=float, count=100000)": "KernelField: 100000 registers",
    "roles { one first=0 count=1 { } }": "KernelField: 1 of 2 warps have a role",
    "roles { one first=1 count=1 { } }": (
        "KernelField: the warps of one do not begin where the last ones end"
    ),
    "w : f32 = exp(u)": "KernelName: there is no value u here",
    "w : f32 = exp(n)": "KernelName: there is no value n here",
    "w : f32 = fly(v)": "KernelType: there is no fly of f32",
    "w : si32 = exp(i)": "KernelType: there is no exp of si32",
    "w : f32 = add(v)": "KernelField: add does not take 1 arguments",
    "w : f32 = add(v, i)": "KernelType: add of f32 makes f32",
    "w : f32 = lt(v, v)": "KernelType: lt of f32 makes i1",
    "w : f32 = select(v, v, v)": "KernelType: select needs i1 and its dtype",
    "w : cf32 = cast(v)": "KernelType: kernels cannot hold cf32",
    "w : si8 = const(128)": "KernelField: 128 is not a number of si8",
    "w : si8 = const(1.5)": "KernelField: 1.5 is not a number of si8",
    "w : f32 = load_element(buffer=2, offset=0, guard=1)": "KernelField: there is no buffer 2 of 2",
    "a, b, c : f32 = load_vector(buffer=0, offset=0, guard=1)": (
        "KernelField: 3 elements of f32 are not a vector"
    ),
    "v = assign(source=sum, guard=1)": "KernelName: there is no variable v here",
    "sum = assign(source=i, guard=1)": "KernelType: i is si32, not f32",
    "w : f32 = choose(cond=1, x=v, y=i)": "KernelType: i is si32, not f32",
    "w : f32 = shuffle(source=v, mask=32)": "KernelField: a mask of 32",
    "a, b, c = alike(number=n, bits=3)": "KernelField: 3 numbers of lanes",
    "a, b = alike(number=n, bits=32)": "KernelField: numbers of 32 bits",
    "w : ui64 = sort_key(source=v)": "KernelType: a key of f32 is a ui32",
    "count_shared(target=hall[0])": "KernelName: there is no tile hall",
    "combine_element(buffer=1, dtype=f32, fn=add, offset=0, guard=1, source=v)": (
        "KernelType: f32 is not combined in one step"
    ),
    "combine_element(buffer=1, dtype=si32, fn=mul, offset=0, guard=1, source=i)": (
        "KernelField: elements are not combined by mul"
    ),
    "w : ui32 = sort_key(source=u)": "KernelName: there is no value u here",
    "w : f32 = read_param(buffer=0, element=0, low=0, high=1)": "KernelType: a parameter of f32",
    "w : si32 = read_param(buffer=0, element=0, low=2, high=1)": "KernelField: a range of 2..1",
    "store_element(buffer=1, dtype=f32, offset=0, guard=1, source=i)": (
        "KernelType: i is si32, not f32"
    ),
    "report(value=i, rule=inside, size=3, number=0, element=0, guard=1)": (
        "KernelField: the kernel does not say that it reports"
    ),
    "report(value=v, rule=inside, size=3, number=0, element=0, guard=1)": (
        "KernelType: a check of f32"
    ),
    "report(value=i, rule=even, size=3, number=0, element=0, guard=1)": (
        "KernelField: there is no rule even"
    ),
    "p = place_of(source=v, size=3)": "KernelType: a place of f32",
    "p = place_of(source=i, size=0)": "KernelField: a range of 0",
    "st_shared(target=hall[0], source=v, dtype=f32)": "KernelName: there is no tile hall",
    "st_shared_vec(target=room[0], source=acc[7], count=2)": (
        "KernelField: 2 registers from acc[7] on are not in the array of 8"
    ),
    "st_shared_vec(target=room[0], source=acc[0], count=3)": "KernelField: 3 registers at a time",
    "named_barrier(number=1, threads=65)": "KernelField: 65 threads cannot meet",
    "named_barrier(number=16, threads=64)": "KernelField: there are 16 barriers with numbers",
    "mbarrier_init(barriers=empty)": "KernelName: there are no barriers empty",
    "mbarrier_arrive(barrier=empty[0])": "KernelName: there are no barriers empty",
    "prefetch_map(map=a)": "KernelName: there is no map a",
    "tma_load(target=room[0], map=m, coords=(0), barrier=full[0])": (
        "KernelField: 1 places in a map of rank 2"
    ),
    "tma_wait_read(pending=8)": "KernelField: 8 groups",
    "wait_group(pending=-1)": "KernelField: -1 groups",
    "ld_matrix(target=part[1], source=room[0], transposed=false)": (
        "KernelField: 4 registers from part[1] on are not in the array of 4"
    ),
    "mma_sync(acc=part[0], a=part[0], b=part[0], a_dtype=bf16, b_dtype=bf16)": (
        "KernelType: part holds words"
    ),
    "mma_sync(acc=acc[0], a=acc[0], b=part[0], a_dtype=bf16, b_dtype=bf16)": (
        "KernelType: acc holds f32"
    ),
    "mma_sync(acc=acc[0], a=part[0], b=part[0], a_dtype=si8, b_dtype=ui8)": (
        "KernelType: acc holds f32"
    ),
    "mma_sync(acc=acc[0], a=part[0], b=part[0], a_dtype=bf16, b_dtype=f16)": (
        "KernelType: matrices of bf16 and f16"
    ),
    "ld_register(target=part[0], source=room[0], dtype=f32)": "KernelType: part holds words",
    "ld_register(target=acc[0], source=room[0], dtype=si32)": "KernelType: a register of si32",
    "add_registers(target=acc, source=part)": "KernelField: acc does not have 4 registers",
    "add_shifted(target=acc, source=acc, by=1)": (
        "KernelField: the 8 registers of acc are not panels"
    ),
    "x = pool_pairs(source=acc)": "KernelField: the 8 registers of acc are not panels",
    "set_max_n_reg(count=250, grow=true)": "KernelField: 250 registers",
    "st_matrix(target=room[0], source=part[0], count=3)": "KernelField: 3 matrices",
    "wgmma_wait(pending=0, acc=(none0))": "KernelName: there is no registers none0 here",
    "wgmma(acc=acc, n=12, a=wgmma_operand(descriptor=d, offset=0, major=k), "
    "b=wgmma_operand(descriptor=d, offset=8, major=k), a_dtype=bf16, b_dtype=bf16, "
    "accumulate=true)": ("KernelField: 12 columns"),
    "wgmma(acc=acc, n=16, a=wgmma_operand(descriptor=d, offset=0, major=k), "
    "b=wgmma_operand(descriptor=d, offset=0, major=mn), a_dtype=fp8_e4m3, b_dtype=fp8_e5m2, "
    "accumulate=true)": "KernelField: operands of fp8_e4m3 must lie along k",
    "gather(target=room[0], buffer=0, dtype=f32, offset=0, step=1, count=8, limit=8, guard=1)": (
        "KernelField: 8 elements of f32"
    ),
}


@each("text", RIGHT)
def test_right_statements(text: str) -> None:
    assert statement(text) == []


@each("text", WRONG)
def test_wrong_statements(text: str) -> None:
    assert WRONG[text] in statement(text)


EPILOGUE = """
  epilogue(acc=acc[0], fragment=fragment(groups={groups}, row=n, column=0, rows=9, columns=9),
           value=w, result={result}, out=part[0], out_dtype={dtype}) {{ {program} }}
"""


def epilogue(groups: int = 2, result: str = "w", dtype: str = "bf16", program: str = "") -> str:
    return EPILOGUE.format(groups=groups, result=result, dtype=dtype, program=program)


def test_element_programs() -> None:
    assert statement(epilogue(program="u : f32 = exp(w)", result="u")) == []
    assert statement(epilogue() + epilogue()) == []
    assert "KernelName: there is no value u here" in statement(epilogue(result="u"))
    assert "KernelField: 33 groups" in statement(epilogue(groups=33))
    assert "KernelType: results of si64" in statement(epilogue(dtype="si64"))
    assert "KernelName: v is defined already" in statement(epilogue(program="v : f32 = exp(w)"))
    columns = "c : si32 = shared_columns(source=room[0])"
    assert "KernelType: si32 in shared memory" in statement(epilogue(program=columns))
    far = "c : f32 = global_elements(buffer=5, base=0, row_stride=1, column_stride=0)"
    assert "KernelField: there is no buffer 5 of 2" in statement(epilogue(program=far))


FRAMES: dict[tuple[str, str], str] = {
    ("grid=4", "grid=-1"): "a grid of -1 blocks",
    ("grid=4", "grid=99999999999"): "a grid of 99999999999 blocks",
    ("threads=64", "threads=48"): "48 threads are not whole warps up to 1024",
    ("threads=64", "threads=2048"): "2048 threads are not whole warps up to 1024",
    ("threads=64", "threads=64 cluster=3"): "a cluster of 3 blocks on sm90",
    ("threads=64", "threads=64 cluster=8"): "4 blocks are not whole clusters of 8",
    ("threads=64", "threads=64 resident=33"): "33 resident blocks of 64 threads, over 32",
    ("(x, y)", f"({', '.join(['x'] * 300)})"): "300 buffers, over 256",
    ("room =", "float ="): "'float' cannot be a name",
    ("room =", "room = shared_tile(offset=2048, bytes=4)\n  room ="): "one name twice among room",
    ("offset=1024,", "offset=1000,"): "room and full overlap in shared memory",
    ("offset=1024,", "offset=1028,"): "the barriers full are not there, or no multiple of 8",
    ("bytes=1024", "bytes=-4"): "room takes the bytes 0..-4",
    ("values=(0, 1)", "values=()"): "the table turns is empty or has numbers beyond 32 bits",
    ("values=(0, 1)", "values=(9999999999)"): "the table turns is empty or has numbers beyond",
    ("buffer=0", "buffer=7"): "the map m is of buffer 7 of 2",
    ("strides=(64)", "strides=()"): "the map m has no sizes, strides and box of one rank",
    ("sizes=(64, 9)", "sizes=(64, 0)"): "the map m is of nothing",
    ("strides=(64)", "strides=(63)"): "strides and offset of m are not multiples of 16 bytes",
    ("box=(64, 8)", "box=(64, 300)"): "the box of m is not 1 to 256 elements wide",
    ("box=(64, 8)", "box=(128, 8)"): "a row of the box of m does not fit 128 bytes",
    ("offset=1024,", "offset=800000,"): "800016 bytes of shared memory, over 232448",
}


@each(("old", "new"), FRAMES)
def test_wrong_frames(old: str, new: str) -> None:
    assert old in FRAME
    found = [str(f) for f in findings(kernel_of(FRAME.replace(old, new)), SM90)]
    assert any(FRAMES[old, new] in line for line in found), found


def test_a_tile_of_a_matrix_begins_where_its_pattern_does() -> None:
    layout = "layout=tile_layout(rows=8, columns=64, size=2, swizzle=128)"
    text = FRAME + f"  b = shared_tile(offset=2048, bytes=1024, {layout})\n"
    assert list(findings(kernel_of(text), SM90)) == []
    found = list(findings(kernel_of(text.replace("offset=2048", "offset=2176")), SM90))
    assert [f.why for f in found] == ["the tile b begins at 2176, not a multiple of 1024"]


def test_a_kernel_needs_a_name() -> None:
    kernel = replace(kernel_of(FRAME), name="while")
    assert [f.why for f in findings(kernel, SM90)] == ["'while' cannot be the name of a kernel"]


def test_newer_instructions_need_a_newer_target() -> None:
    kernel = kernel_of(FRAME + "  proxy_fence()\n")
    verify(kernel, SM90)
    with pytest.raises(SpecViolation, match="sm80 does not have it"):
        verify(kernel, SM80)


@pytest.mark.parametrize(("name", "dtype", "target"), one_in(3, CASES, unpack=True))
def test_what_the_templates_make_is_right(name: str, dtype: str, target: str) -> None:
    for kernel in compiled(name, dtype, target)["gpu"].kernels.values():
        verify(kernel, target_named(target))


@each("case", SM90_CASES)
def test_contractions_are_right(case: str) -> None:
    verify(sm90_kernel(*SM90_CASES[case]), SM90)


def test_functions_of_the_prelude_are_taken() -> None:
    assert "INLINE void cp_async(" in instructions.SM80
    assert not any(map(is_free, ("cp_async", "wgmma_bf16_n64_k_k", "thread", "m7", "shared", "_x")))
    assert not any(map(is_free, ("cluster_wait", "await_previous", "fetch_across", "tma_load")))
    assert all(map(is_free, ("slot", "acc0", "at8", "bias", "m", "b", "i0")))
