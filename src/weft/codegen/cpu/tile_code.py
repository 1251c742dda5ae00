"""Matrix products on the AMX tiles of x86-64, as LLVM code.

    sums[i, j] (+)= sum over k of a[i, k] * b[k, j]        32 x 32 of them at a time

A is rows one after the other. B is panels of 32 columns; of each a row of 32 words, a word being so
many neighbours along k as 32 bits hold, then the next. Four tiles of 16 x 16 sums meet two tiles of
A and two of B.

Tiles of bf16 take denormal numbers for zeros, and make zeros of sums that would be denormal. Where
no number but 0 is below 2^-56, every product is a multiple of 2^-126, and so is every sum: none is
denormal. Where some are, and on machines without tiles, vectors do the same in plain loops.

A number of f16 is two of bf16, and its product with another one is four products. The parts are
multiples of 2^-24, so that none is denormal; but where a number is infinite, its first part times a
second part that is 0 is none. Vectors, which add the parts first, multiply those, too.
"""

from __future__ import annotations

from typing import Final

from weft.codegen.cpu.code import Code
from weft.codegen.cpu.transposing import transposed
from weft.foundation.dtypes import BF16, SI8, SI32, UI8, UI32, DType

EDGE: Final = 32
"""Rows and columns of sums that are computed at a time."""
STEP: Final = 16
"""Words along k that a tile has."""
FEATURES: Final = {"bf16": "amx_bf16", "i8": "amx_int8"}
HALVES: Final = "halves"
"""What numbers of bf16 in two parts are called; they are `_FLOATS` as whole ones are."""
_FLOATS: Final = ("bf16", HALVES)
# A bf16 has eight significant bits: one of 2^-56 or more is a multiple of 2^-63, a product of two
# of 2^-126, the least normal f32. Sums of such multiples are multiples too, unless they are
# rounded, and then they are larger still.
_LEAST: Final = 71 << 7
"""2^-56 as bf16."""
_ENDLESS: Final = 0xFF << 7
"""Infinity as bf16; what is larger is no number."""
_TILE: Final = 16
_PLAIN_ROWS: Final = 4
"""Rows of a tile register, and of a tile of vectors where there are none."""
_GIVEN: Final = "ptr %a, ptr %b, ptr %sums, i64 %rows, i64 %columns, i64 %words, i1 %adds"
# 64 bytes: the palette, 15 that are 0, 16 numbers of 16 bits for the bytes of a tile's rows, and 16
# of 8 bits for its rows; there are eight tiles.
_CONFIG: Final = [1, *[0] * 15, *[64, 0] * 8, *[0] * 16, *[_TILE] * 8, *[0] * 8]
"""Palette 1: tiles of 16 rows of 64 bytes."""
_MANAGED: Final = {
    "llvm.x86.ldtilecfg": "ptr",
    "llvm.x86.tilerelease": "",
    "llvm.x86.tilezero": "i8 immarg",
    "llvm.x86.tileloadd64": "i8 immarg, ptr, i64",
    "llvm.x86.tilestored64": "i8 immarg, ptr, i64",
}


WORDS: Final = (([SI8] * 4, SI32), ([UI8] * 4, UI32), ([BF16] * 2, UI32))
"""What a word is made of, and the number that it is."""


def signs_of(a: DType, b: DType, parts: int) -> str:
    """What `tiles_function` calls operands of these dtypes, in so many parts."""
    if parts > 1:
        return HALVES
    return "bf16" if a is BF16 else "".join("s" if side.is_signed else "u" for side in (a, b))


def tiles_function(code: Code, signs: str, features: frozenset[str]) -> str:
    """The name of the function that multiplies panels. `signs` is `bf16` or `HALVES`, or for bytes
    whether those of A and of B are signed: `su` where A's are and B's are not."""
    plain = f"panels_of_{signs}"
    added, is_float = "llvm.fmuladd.v16f32", signs in _FLOATS
    if is_float:
        operands = ", ".join(["<16 x float>"] * 3)
        code.declared[added] = f"declare <16 x float> @{added}({operands})"
    code.functions.setdefault(plain, _vector_function(plain, signs))
    if FEATURES["bf16" if is_float else "i8"] not in features:
        return plain
    instruction = f"llvm.x86.tdp{'bf16ps' if is_float else f'b{signs}d'}"
    code.declared[instruction] = f"declare void @{instruction}(i8 immarg, i8 immarg, i8 immarg)"
    for name, kinds in _MANAGED.items():
        code.declared[name] = f"declare void @{name}({kinds})"
    if is_float:
        which = "umin" if signs == "bf16" else "umax"
        across, pair = f"llvm.vector.reduce.{which}.v32i16", f"llvm.{which}.v32i16"
        code.declared[across] = f"declare i16 @{across}(<32 x i16>)"
        code.declared[pair] = f"declare <32 x i16> @{pair}(<32 x i16>, <32 x i16>)"
        code.functions.setdefault(*(_HAS_WEAK if signs == "bf16" else _HAS_ENDLESS))
    name = f"tiles_of_{signs}"
    code.functions.setdefault(name, _by_tiles(name, instruction, plain, signs))
    return name


def turn_function(code: Code) -> str:
    """The name of the function `(from, to, words)` that makes a panel of rows of words: squares of
    16 x 16 are turned."""
    inner = Code()
    rows = []
    for row in range(_TILE):
        inner.line(f"%from{row}.at = add i64 %first, {row}")
        inner.line(f"%from{row}.row = mul i64 %from{row}.at, %words")
        inner.line(f"%from{row}.place = add i64 %from{row}.row, %k")
        inner.line(f"%from{row} = getelementptr i32, ptr %from, i64 %from{row}.place")
        rows.append(inner.load("i32", f"%from{row}", _TILE, 4))
    for row, value in enumerate(transposed(inner, rows)):
        inner.line(f"%to{row}.at = add i64 %k, {row}")
        inner.line(f"%to{row}.row = mul i64 %to{row}.at, {EDGE}")
        inner.line(f"%to{row}.place = add i64 %to{row}.row, %first")
        inner.line(f"%to{row} = getelementptr i32, ptr %to, i64 %to{row}.place")
        inner.store(value, f"%to{row}", 4)
    lines = inner.text()
    code.functions.setdefault(
        "turn_words",
        f"""
define internal void @turn_words(ptr %from, ptr %to, i64 %words) nounwind {{
entry:
  br label %halves
halves:
  %first = phi i64 [ 0, %entry ], [ %first.next, %halves.next ]
  br label %deep
deep:
  %k = phi i64 [ 0, %halves ], [ %k.next, %deep ]
{lines}
  %k.next = add i64 %k, {STEP}
  %deeper = icmp ult i64 %k.next, %words
  br i1 %deeper, label %deep, label %halves.next
halves.next:
  %first.next = add i64 %first, {_TILE}
  %more = icmp ult i64 %first.next, {EDGE}
  br i1 %more, label %halves, label %done
done:
  ret void
}}""",
    )
    return "turn_words"


def _splat(count: int, kind: str, value: int) -> str:
    return f"<{', '.join([f'{kind} {value}'] * count)}>"


def _scan(name: str, which: str, first: int, less: int, test: str) -> tuple[str, str]:
    """A function that says whether the least or largest size of numbers of bf16, less so much,
    passes a test, and its name."""
    return (
        name,
        f"""
define internal i1 @{name}(ptr %from, i64 %words) nounwind {{
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %head ]
  %found = phi <32 x i16> [ {_splat(32, "i16", first)}, %entry ], [ %more.found, %head ]
  %at = getelementptr i32, ptr %from, i64 %i
  %bits = load <32 x i16>, ptr %at, align 4
  %size = and <32 x i16> %bits, {_splat(32, "i16", 0x7FFF)}
  %less = sub <32 x i16> %size, {_splat(32, "i16", less)}
  %more.found = call <32 x i16> @llvm.{which}.v32i16(<32 x i16> %found, <32 x i16> %less)
  %i.next = add i64 %i, {STEP}
  %more = icmp ult i64 %i.next, %words
  br i1 %more, label %head, label %done
done:
  %one = call i16 @llvm.vector.reduce.{which}.v32i16(<32 x i16> %more.found)
  %is = icmp {test}
  ret i1 %is
}}""",
    )


# 0 less 1 is the largest size.
_HAS_WEAK: Final = _scan("has_weak", "umin", -1, 1, f"ult i16 %one, {_LEAST - 1}")
"""Whether numbers of bf16 have one that is not 0 and below 2^-56."""
_HAS_ENDLESS: Final = _scan("has_endless", "umax", 0, 0, f"uge i16 %one, {_ENDLESS}")
"""Whether numbers of bf16 have one that is infinite, or none."""


def _by_tiles(name: str, instruction: str, plain: str, signs: str) -> str:
    """The product by tiles. Where there are sums to add to, products are stored apart first."""
    config = ", ".join(f"i8 {number}" for number in _CONFIG)
    stores = "\n".join(
        f"  %kept{n} = getelementptr i8, ptr %target, i64 %kept.at{n}\n"
        f"  call void @llvm.x86.tilestored64(i8 {n}, ptr %kept{n}, i64 %target.row)"
        for n in range(4)
    )
    kind = "float" if signs in _FLOATS else "i32"
    multiply = _multiply_halves if signs == HALVES else _multiply_tiles
    return f"""
define internal void @{name}({_GIVEN}) nounwind {{
entry:
  %config = alloca <64 x i8>, align 64
  %part = alloca [{EDGE * EDGE} x i32], align 64
{_leave_to_vectors(plain, signs) if signs in _FLOATS else "  br label %begin"}
begin:
  store <64 x i8> <{config}>, ptr %config, align 64
  call void @llvm.x86.ldtilecfg(ptr %config)
  %a.row = mul i64 %words, 4
  %a.half = mul i64 %a.row, {_TILE}
  %width = mul i64 %columns, 4
  %target.row = select i1 %adds, i64 {EDGE * 4}, i64 %width
  %target.half = mul i64 %target.row, {_TILE}
  %kept.at0 = add i64 0, 0
  %kept.at1 = add i64 0, {_TILE * 4}
  %kept.at2 = add i64 %target.half, 0
  %kept.at3 = add i64 %target.half, {_TILE * 4}
  br label %across
across:
  %i = phi i64 [ 0, %begin ], [ %i.next, %across.next ]
  %a.first = mul i64 %i, %a.row
  %a.panel = getelementptr i8, ptr %a, i64 %a.first
  br label %along
along:
  %j = phi i64 [ 0, %across ], [ %j.next, %along.next ]
  %b.first = mul i64 %j, %a.row
  %b.panel = getelementptr i8, ptr %b, i64 %b.first
  call void @llvm.x86.tilezero(i8 0)
  call void @llvm.x86.tilezero(i8 1)
  call void @llvm.x86.tilezero(i8 2)
  call void @llvm.x86.tilezero(i8 3)
  br label %deep
{multiply(instruction)}
keep:
  %row.at = mul i64 %i, %width
  %column.at = mul i64 %j, 4
  %place = add i64 %row.at, %column.at
  %own = getelementptr i8, ptr %sums, i64 %place
  %target = select i1 %adds, ptr %part, ptr %own
{stores}
  br i1 %adds, label %add, label %along.next
{_add_part(kind)}
along.next:
{_next_sums(EDGE)}
done:
  call void @llvm.x86.tilerelease()
  ret void
}}"""


def _leave_to_vectors(plain: str, signs: str) -> str:
    """Numbers that tiles would take for zeros, or would lose, are left to vectors."""
    test = _HAS_WEAK[0] if signs == "bf16" else _HAS_ENDLESS[0]
    return f"""  %a.words = mul i64 %rows, %words
  %b.words = mul i64 %columns, %words
  %is.a = call i1 @{test}(ptr %a, i64 %a.words)
  %is.b = call i1 @{test}(ptr %b, i64 %b.words)
  %is = or i1 %is.a, %is.b
  br i1 %is, label %plain, label %begin
plain:
  call void @{plain}({_GIVEN})
  ret void"""


def _multiply_tiles(instruction: str) -> str:
    """The loop along k: the sums are tiles 0 to 3, those of A are 4 and 5, those of B 6 and 7. The
    next step's tile is loaded after the last product with this step's: where two threads share a
    core, loads and products that wait for them do not overlap otherwise."""
    products = [
        f"  call void @{instruction}(i8 {2 * a + b}, i8 {4 + a}, i8 {6 + b})"
        for a in range(2)
        for b in range(2)
    ]

    def load(tile: int, place: str) -> str:
        step = "%a.row" if tile < 6 else f"{EDGE * 4}"
        return f"  call void @llvm.x86.tileloadd64(i8 {tile}, ptr %{place}, i64 {step})"

    places = {6: "b.panel", 4: "a.panel", 7: "b.second", 5: "a.second"}
    first = "\n".join(load(tile, place) for tile, place in places.items())
    body = "\n".join(
        [
            *(*products[:2], load(4, "a0"), products[2], load(6, "b0")),
            *(products[3], load(5, "a1"), load(7, "b1")),
        ]
    )
    every = "\n".join(products)
    return f"""deep:
  %a.second = getelementptr i8, ptr %a.panel, i64 %a.half
  %b.second = getelementptr i8, ptr %b.panel, i64 {_TILE * 4}
{first}
  %several = icmp ugt i64 %words, {STEP}
  br i1 %several, label %steps, label %last
steps:
  %k = phi i64 [ {STEP}, %deep ], [ %k.next, %steps ]
  %a0 = getelementptr i32, ptr %a.panel, i64 %k
  %a1 = getelementptr i8, ptr %a0, i64 %a.half
  %b.row = mul i64 %k, {EDGE * 4}
  %b0 = getelementptr i8, ptr %b.panel, i64 %b.row
  %b1 = getelementptr i8, ptr %b0, i64 {_TILE * 4}
{body}
  %k.next = add i64 %k, {STEP}
  %deeper = icmp ult i64 %k.next, %words
  br i1 %deeper, label %steps, label %last
last:
{every}
  br label %keep"""


_EVERY_PAIR: Final = (
    *((6, "b0"), (4, "a0"), (0, 4, 6), (7, "b1"), (1, 4, 7), (5, "a1"), (2, 5, 6), (3, 5, 7)),
    *((4, "a2"), (0, 4, 6), (1, 4, 7), (5, "a3"), (2, 5, 6), (3, 5, 7)),
    *((6, "b2"), (0, 4, 6), (2, 5, 6), (7, "b3"), (1, 4, 7), (3, 5, 7)),
    *((4, "a0"), (0, 4, 6), (1, 4, 7), (5, "a1"), (2, 5, 6), (3, 5, 7)),
)
"""Loads of a tile, and products of two that are added to a third: every part of A with every part
of B. A tile stays for all that meets it next, and the four sums take turns: the next product with
one comes when the last one is done."""


def _multiply_halves(instruction: str) -> str:
    """The same for numbers in two parts: `a2`, `a3`, `b2` and `b3` are the second ones."""
    steps = {"a": "i64 %a.row", "b": f"i64 {EDGE * 4}"}
    lines = []
    for step in _EVERY_PAIR:
        match step:
            case (int(tile), str(place)):
                given = f"i8 {tile}, ptr %{place}, {steps[place[0]]}"
                lines.append(f"  call void @llvm.x86.tileloadd64({given})")
            case (sums, x, y):
                lines.append(f"  call void @{instruction}(i8 {sums}, i8 {x}, i8 {y})")
    body = "\n".join(lines)
    return f"""deep:
  %k = phi i64 [ 0, %along ], [ %k.next, %deep ]
  %a0 = getelementptr i32, ptr %a.panel, i64 %k
  %a1 = getelementptr i8, ptr %a0, i64 %a.half
  %a2 = getelementptr i32, ptr %a0, i64 %a.words
  %a3 = getelementptr i32, ptr %a1, i64 %a.words
  %b.row = mul i64 %k, {EDGE * 4}
  %b0 = getelementptr i8, ptr %b.panel, i64 %b.row
  %b1 = getelementptr i8, ptr %b0, i64 {_TILE * 4}
  %b2 = getelementptr i32, ptr %b0, i64 %b.words
  %b3 = getelementptr i32, ptr %b1, i64 %b.words
{body}
  %k.next = add i64 %k, {STEP}
  %deeper = icmp ult i64 %k.next, %words
  br i1 %deeper, label %deep, label %keep"""


def _add_part(kind: str) -> str:
    """The products, which are in `part`, are added to the sums as vectors, row by row."""
    return f"""add:
  %r = phi i64 [ 0, %keep ], [ %r.next, %add ]
  %part.at = mul i64 %r, {EDGE * 4}
  %sum.at = mul i64 %r, %width
  %part0 = getelementptr i8, ptr %part, i64 %part.at
  %part1 = getelementptr i8, ptr %part0, i64 {_TILE * 4}
  %sum0 = getelementptr i8, ptr %own, i64 %sum.at
  %sum1 = getelementptr i8, ptr %sum0, i64 {_TILE * 4}
{_add_half(kind, 0)}
{_add_half(kind, 1)}
  %r.next = add i64 %r, 1
  %rows.left = icmp ult i64 %r.next, {EDGE}
  br i1 %rows.left, label %add, label %along.next"""


def _next_sums(rows: int) -> str:
    """The end of both loops over the sums: to the right, then down by so many rows."""
    return f"""  %j.next = add i64 %j, {EDGE}
  %more.along = icmp ult i64 %j.next, %columns
  br i1 %more.along, label %along, label %across.next
across.next:
  %i.next = add i64 %i, {rows}
  %more.across = icmp ult i64 %i.next, %rows
  br i1 %more.across, label %across, label %done"""


def _add_half(kind: str, half: int) -> str:
    vector, op = f"<16 x {kind}>", "fadd" if kind == "float" else "add"
    return f"""  %new{half} = load {vector}, ptr %part{half}, align 64
  %old{half} = load {vector}, ptr %sum{half}, align 4
  %both{half} = {op} {vector} %old{half}, %new{half}
  store {vector} %both{half}, ptr %sum{half}, align 4"""


def _vector_function(name: str, signs: str) -> str:
    """The same by vectors: some rows by two vectors of columns."""
    kind = "float" if signs in _FLOATS else "i32"
    vector, zero = f"<16 x {kind}>", "zeroinitializer"
    places = [(r, v) for r in range(_PLAIN_ROWS) for v in range(2)]
    phis = "\n".join(
        f"  %t{r}{v} = phi {vector} [ {zero}, %along ], [ %s{r}{v}, %deep ]" for r, v in places
    )
    parts = 2 if signs in _FLOATS else 4
    sides = [(f"a{r}", signs[0]) for r in range(_PLAIN_ROWS)] + [("b0", signs[1]), ("b1", signs[1])]
    loads = "\n".join(_load_words(side, signs == HALVES) for side, _ in sides)
    apart = "\n".join(
        _join_parts(side, part) if signs == HALVES else _part_of(side, part, sign)
        for side, sign in ((side, signs if signs == "bf16" else sign) for side, sign in sides)
        for part in range(parts)
    )
    products = "\n".join(_products(r, v, parts, kind) for r, v in places)
    keeps = "\n".join(_keep_sums(r, v, kind) for r, v in places)
    return f"""
define internal void @{name}({_GIVEN}) nounwind {{
entry:
  %a.all = mul i64 %rows, %words
  %b.all = mul i64 %columns, %words
  br label %across
across:
  %i = phi i64 [ 0, %entry ], [ %i.next, %across.next ]
  br label %along
along:
  %j = phi i64 [ 0, %across ], [ %j.next, %keep ]
  %b.first = mul i64 %j, %words
  %b.panel = getelementptr i32, ptr %b, i64 %b.first
  br label %deep
deep:
  %k = phi i64 [ 0, %along ], [ %k.next, %deep ]
{phis}
  %b.at = mul i64 %k, {EDGE}
  %b.row = getelementptr i32, ptr %b.panel, i64 %b.at
{loads}
{apart}
{products}
  %k.next = add i64 %k, 1
  %deeper = icmp ult i64 %k.next, %words
  br i1 %deeper, label %deep, label %keep
keep:
{keeps}
{_next_sums(_PLAIN_ROWS)}
done:
  ret void
}}"""


def _load_words(side: str, halves: bool) -> str:
    """A word of a row, spread over a vector, or a vector of words of columns; in two parts, the
    second ones under names that end in `.low`."""
    matrix, number = side[0], int(side[1:])
    if matrix == "a":
        place = (
            f"  %{side}.row = add i64 %i, {number}\n"
            f"  %{side}.first = mul i64 %{side}.row, %words\n"
            f"  %{side}.place = add i64 %{side}.first, %k\n"
            f"  %{side}.at = getelementptr i32, ptr %a, i64 %{side}.place"
        )
    else:
        place = f"  %{side}.at = getelementptr i32, ptr %b.row, i64 {_TILE * number}"
    lines = [place, _load_at(side)]
    if halves:
        lines.append(
            f"  %{side}.low.at = getelementptr i32, ptr %{side}.at, i64 %{matrix}.all\n"
            + _load_at(f"{side}.low")
        )
    return "\n".join(lines)


def _load_at(name: str) -> str:
    if name[0] == "b":
        return f"  %{name} = load <16 x i32>, ptr %{name}.at, align 4"
    return (
        f"  %{name}.one = load i32, ptr %{name}.at, align 4\n"
        f"  %{name}.in = insertelement <16 x i32> poison, i32 %{name}.one, i64 0\n"
        f"  %{name} = shufflevector <16 x i32> %{name}.in, <16 x i32> poison, "
        "<16 x i32> zeroinitializer"
    )


def _join_parts(side: str, part: int) -> str:
    """One of the numbers of each word, both its parts added; infinity has no second one."""
    vector, made = "<16 x float>", f"%{side}.p{part}"
    high, low = f"%{side}.high.p{part}", f"%{side}.low.p{part}"
    return "\n".join(
        [
            _part_of(side, part, "bf16").replace(made, high),
            _part_of(f"{side}.low", part, "bf16"),
            f"  {made}.all = fadd {vector} {high}, {low}",
            f"  {made}.endless = fcmp uno {vector} {low}, {low}",
            f"  {made} = select <16 x i1> {made}.endless, {vector} {high}, {vector} {made}.all",
        ]
    )


def _part_of(side: str, part: int, sign: str) -> str:
    """One of the numbers of each word, in 32 bits."""
    value, made = f"<16 x i32> %{side}", f"%{side}.p{part}"
    if sign == "bf16":
        if part == 0:
            bits = f"shl {value}, {_splat(16, 'i32', 16)}"
        else:
            bits = f"and {value}, {_splat(16, 'i32', -65536)}"
        return f"  {made}.bits = {bits}\n  {made} = bitcast <16 x i32> {made}.bits to <16 x float>"
    right = "ashr" if sign == "s" else "lshr"
    return (
        f"  {made}.up = shl {value}, {_splat(16, 'i32', 24 - 8 * part)}\n"
        f"  {made} = {right} <16 x i32> {made}.up, {_splat(16, 'i32', 24)}"
    )


def _products(row: int, column: int, parts: int, kind: str) -> str:
    vector, lines, total = f"<16 x {kind}>", [], f"%t{row}{column}"
    for part in range(parts):
        made = f"%s{row}{column}" if part == parts - 1 else f"%s{row}{column}.{part}"
        x, y = f"%a{row}.p{part}", f"%b{column}.p{part}"
        if kind == "float":
            lines.append(
                f"  {made} = call {vector} @llvm.fmuladd.v16f32({vector} {x}, {vector} {y}, "
                f"{vector} {total})"
            )
        else:
            lines.append(f"  {made}.ab = mul {vector} {x}, {y}")
            lines.append(f"  {made} = add {vector} {made}.ab, {total}")
        total = made
    return "\n".join(lines)


def _keep_sums(row: int, column: int, kind: str) -> str:
    vector, own, op = f"<16 x {kind}>", f"{row}{column}", "fadd" if kind == "float" else "add"
    return f"""  %row{own} = add i64 %i, {row}
  %row{own}.first = mul i64 %row{own}, %columns
  %place{own} = add i64 %row{own}.first, %j
  %first{own} = getelementptr i32, ptr %sums, i64 %place{own}
  %sum{own} = getelementptr i32, ptr %first{own}, i64 {_TILE * column}
  %any{own} = load {vector}, ptr %sum{own}, align 4
  %old{own} = select i1 %adds, {vector} %any{own}, {vector} zeroinitializer
  %both{own} = {op} {vector} %old{own}, %s{own}
  store {vector} %both{own}, ptr %sum{own}, align 4"""
