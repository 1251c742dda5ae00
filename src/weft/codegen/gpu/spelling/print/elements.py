"""Element programs and their loads and stores as CUDA text."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from weft.codegen.gpu import ir
from weft.codegen.gpu.ir.element_ops import statement
from weft.codegen.gpu.ir.formats import (
    PAIRED,
    from_index,
    held,
    narrow,
    results_per_group,
    storage,
    widen,
)
from weft.codegen.gpu.spelling.print.scalars import braced, text
from weft.foundation.dtypes import F32, F64, DType

AddressText = Callable[[ir.Address], str]


def epilogue(node: ir.Epilogue, address: AddressText) -> Iterator[str]:
    """The loop over the groups of a fragment, unrolled by the compiler."""
    yield from braced("", _epilogue(node, address))


def _epilogue(node: ir.Epilogue, address: AddressText) -> Iterator[str]:
    fragment = node.fragment
    yield f"const int row_ = {text(fragment.row)};"
    yield f"const int column_ = {text(fragment.column)};"
    for source in node.sources:
        if isinstance(source, ir.GlobalElements):
            yield from _row_lines(source, fragment)
        elif isinstance(source, ir.RandomElements):
            yield from _rows_drawn(source)
        elif isinstance(source, ir.StagedElements):
            yield f"u32 {source.name}_s_ = {address(source.row)};"
            yield f"pin({source.name}_s_);"
            # What is mixed into the addresses of a row is the same all along it, since rows begin
            # at whole spans, and the same eight rows on, where the pattern begins again.
            mask = (1 << source.swizzle.bits) - 1
            yield f"const u32 {source.name}_x_ = ({source.name}_s_ >> 7 & {mask}) << 4;"
    yield "#pragma unroll"
    yield from braced(f"for (int g_ = 0; g_ < {fragment.groups}; ++g_)", _group(node, address))


def draw_bits(node: ir.DrawBits) -> Iterator[str]:
    """Bits of a fragment, by the blocks that neighbours share or by those of each."""
    yield from braced("", _draw_together(node) if node.shared == 4 else _draw_apart(node))


def _draw_together(node: ir.DrawBits) -> Iterator[str]:
    """Of the blocks that some lanes share, each of them makes one."""
    down = node.column_factor != 1
    yield f"const int row_ = {text(node.fragment.row)};"
    yield f"const int column_ = {text(node.fragment.column)};"
    yield f"const u32 own_ = {'row_ & 3' if down else 'column_ >> 1 & 1'};"
    # A block has four neighbouring elements. Along a row they are two lanes': these share the
    # blocks of their two rows, and make one each. Down a column they are four lanes', which share
    # those of two times four rows and two columns.
    half, side = ("own_ >> 1", "(own_ & 1)") if down else ("own_", "0")
    row = f"(i64)({'(row_ & ~3)' if down else 'row_'} + 8 * ({half})) * {node.row_factor}"
    column = f"(i64)({'column_' if down else '(column_ & ~3)'} + {side}) * {node.column_factor}"
    yield f"const u64 block_ = (u64)({text(node.base)} + {row} + {column}) >> 2;"
    flags = f"{node.fragment.groups}, {int(down)}, {int(node.narrow)}"
    given = f"{_drawn_to(node)}, block_, {2 * node.column_factor}, {node.least}u, own_"
    yield f"draw_together<{flags}>({given});"


def _draw_apart(node: ir.DrawBits) -> Iterator[str]:
    row, column = (f"(i64)({text(at)})" for at in (node.fragment.row, node.fragment.column))
    start = f"{text(node.base)} + {row} * {node.row_factor} + {column} * {node.column_factor}"
    yield f"const u64 place_ = (u64)({start});"
    flags = f"{node.fragment.groups}, {2 // node.shared}, {int(node.narrow)}"
    steps = f"{8 * node.row_factor}, {node.column_factor}"
    yield f"draw_apart<{flags}>({_drawn_to(node)}, place_, {steps}, {node.least}u);"


def _drawn_to(node: ir.DrawBits) -> str:
    return f"{node.out.array} + {node.out.index}, (u64){node.seed}, (u64){node.offset}"


def _row_lines(source: ir.GlobalElements, fragment: ir.Fragment) -> Iterator[str]:
    """What depends on the row alone, before the loop: a value, or where the row's values begin."""
    kind = storage(source.dtype)
    for half in (0, 1):
        start = f"(const {kind}*)b{source.buffer} + {text(source.base)}"
        start += _row_offset(f"row_ + {8 * half}", source)
        if source.column_stride:
            pointer = f"{source.name}_p{half}_"
            yield f"const {kind}* {pointer} = {start} + (i64)column_ * {source.column_stride};"
            yield f"pin({pointer});"
        else:
            guard = f"row_ + {8 * half} < {fragment.rows}" if source.row_stride else "1"
            yield _load_text(f"{source.name}_r{half}_", source.dtype, start, guard)


def _row_offset(row: str, source: ir.GlobalElements) -> str:
    if not source.digits:
        return f" + (i64)({row}) * {source.row_stride}"
    found, below = "", 1
    for size, stride in reversed(source.digits):
        digit = f"(u32)({row}) / {below}u % {size}u"
        found = f" + (i64)({digit}) * {stride}{found}"
        below *= size
    return found


def _load_text(name: str, dtype: DType, place: str, guard: str) -> str:
    # Ordinary loads: what the kernel stores may lie in the same buffer.
    value = widen(f"*({place})", dtype)
    return f"{held(dtype)} {name} = " + (f"{value};" if guard == "1" else f"{guard} ? {value} : 0;")


def _group(node: ir.Epilogue, address: AddressText) -> Iterator[str]:
    for source in node.sources:
        if isinstance(source, ir.SharedColumns):
            yield f"float {source.name}_c0_, {source.name}_c1_;"
            place = f"{address(source.source)} + g_ * 32"
            yield f"load_shared_pair({source.name}_c0_, {source.name}_c1_, {place});"
        elif isinstance(source, ir.StagedElements):
            yield from _staged_pairs(source)
        elif isinstance(source, ir.RandomElements):
            yield from _random_lines(source)
    yield f"{held(node.out_dtype)} y0_, y1_, y2_, y3_;"
    for element in range(4):
        yield from braced("", _element_lines(node, element))
    if results_per_group(node.out_dtype) == 4:
        for element in range(4):
            yield f"{_register_text(node.out, 4, element)} = y{element}_;"
    else:
        for half in (0, 1):
            pair = _pack_pair(node.out_dtype, f"y{2 * half}_", f"y{2 * half + 1}_")
            yield f"{_register_text(node.out, 2, half)} = {pair};"


def _pack_pair(dtype: DType, low: str, high: str) -> str:
    """Two results in a word."""
    if dtype in PAIRED:
        return f"pack_{dtype.name}({low}, {high})"
    bits = 8 * dtype.storage_bytes
    first, second = (f"(u32)(u{bits}){narrow(value, dtype)}" for value in (low, high))
    return f"{first} | {second} << {bits}"


def _staged_pairs(source: ir.StagedElements) -> Iterator[str]:
    """The pairs of a group: one in a row, one eight rows on."""
    name, size = source.name, source.dtype.storage_bytes
    inside = f"(({text(source.column)} + g_ * {8 * size}) ^ {name}_x_)"
    for half in (0, 1):
        place = f"{name}_s_ + {8 * half * source.swizzle.span} + {inside}"
        if size == 4:
            yield f"float {name}_h{half}0_, {name}_h{half}1_;"
            yield f"load_shared_pair({name}_h{half}0_, {name}_h{half}1_, {place});"
        elif size == 1:
            yield f"const u32 {name}_a{half}_ = {place};"
            # The pair is the lower or the upper half of a word.
            word = f"load_staged({name}_a{half}_ & ~3u) >> (({name}_a{half}_ & 2) * 8)"
            yield f"const u32 {name}_h{half}_ = {word};"
            for side in (0, 1):
                value = widen(f"(u8)({name}_h{half}_ >> {8 * side})", source.dtype)
                yield f"const {held(source.dtype)} {name}_h{half}{side}_ = {value};"
        else:
            yield f"const u32 {name}_h{half}_ = load_staged({place});"
            for side in (0, 1):
                value = widen(f"(u16)({name}_h{half}_ >> {16 * side})", source.dtype)
                yield f"const float {name}_h{half}{side}_ = {value};"


def _random_lines(source: ir.RandomElements) -> Iterator[str]:
    """The blocks of the stream that the elements of a group are in: of a pair one, or of each."""
    name, sides = source.name, (0,) if source.paired else (0, 1)
    places = [_place_drawn(source, half, side) for half in (0, 1) for side in sides]
    count = len(places)
    yield f"const u64 {name}_e_[{count}] = {{{', '.join(places)}}};"
    yield f"u32 {name}_w_[{count}][4];"
    yield f"philox_blocks({name}_w_, (u64){source.seed}, (u64){source.offset}, {name}_e_);"


def _rows_drawn(source: ir.RandomElements) -> Iterator[str]:
    """Where the places of each row begin. They are held as they are: of places that several
    programs compute alike, all would be kept until the last has used them."""
    for half in (0, 1):
        row, column = f"(i64)(row_ + {8 * half}) * {source.row_factor}", "(i64)column_"
        start = f"{text(source.base)} + {row} + {column} * {source.column_factor}"
        yield f"u64 {source.name}_b{half}_ = (u64)({start});"
        yield f"pin({source.name}_b{half}_);"


def _place_drawn(source: ir.RandomElements, half: int, side: int) -> str:
    return f"{source.name}_b{half}_ + (u64)((i64)(g_ * 8 + {side}) * {source.column_factor})"


def _register_text(out: ir.RegAt, per_group: int, element: int) -> str:
    return f"{out.array}[{out.index} + g_ * {per_group} + {element}]"


def _element_lines(node: ir.Epilogue, element: int) -> Iterator[str]:
    half, side = divmod(element, 2)
    dtypes: dict[str, DType] = {node.value: node.value_dtype}
    kind = held(node.value_dtype)
    yield f"const {kind} {node.value} = {_register_text(node.acc, 4, element)};"
    for source in node.sources:
        dtypes[source.name] = source.dtype
        yield _source_line(source, node.fragment, half, side)
    for op in node.ops:
        yield statement(op, dtypes)
        dtypes[op.name] = op.dtype
    yield f"y{element}_ = {node.result};"


def _source_line(source: ir.ElementSource, fragment: ir.Fragment, half: int, side: int) -> str:
    row, column = f"(row_ + {8 * half})", f"(column_ + g_ * 8 + {side})"
    match source:
        case ir.SharedColumns(name=name):
            return f"const float {name} = {name}_c{side}_;"
        case ir.StagedElements(name=name, dtype=dtype):
            return f"const {held(dtype)} {name} = {name}_h{half}{side}_;"
        case ir.GlobalElements(name=name, column_stride=0):
            return f"const {held(source.dtype)} {name} = {name}_r{half}_;"
        case ir.GlobalElements(name=name, column_stride=columns):
            place = f"{name}_p{half}_ + (i64)(g_ * 8 + {side}) * {columns}"
            guard = f"{row} < {fragment.rows} && {column} < {fragment.columns}"
            return _load_text(name, source.dtype, place, guard)
        case ir.RandomElements(name=name, paired=True):
            words = f"{name}_w_[{half}]"
            chosen = f"{name}_e_[{half}] & 2 ? {words}[{2 + side}] : {words}[{side}]"
            return f"const {held(source.dtype)} {name} = {chosen};"
        case ir.RandomElements(name=name):
            number = 2 * half + side
            word = f"word_of({name}_w_[{number}], {name}_e_[{number}])"
            return f"const {held(source.dtype)} {name} = {word};"
        case ir.BitElements(name=name, source=place, inverted=inverted):
            bit = f"{place.array}[{place.index} + g_ / 8] >> (g_ % 8 * 4 + {2 * half + side}) & 1"
            return f"const bool {name} = ({bit}) {'==' if inverted else '!='} 0;"
        case ir.RegisterElements(name=name, source=place):
            return f"const float {name} = {_register_text(place, 4, 2 * half + side)};"
        case ir.RowValues(name=name, values=values):
            return f"const {held(source.dtype)} {name} = {values[half]};"
        case ir.IndexElements(name=name, row_factor=rows, column_factor=columns):
            place = f"{text(source.base)} + {row} * {rows} + {column} * {columns}"
            return f"const {held(source.dtype)} {name} = {from_index(f'({place})', source.dtype)};"


def store_vectors(node: ir.StGlobalVec) -> Iterator[str]:
    """A loop over groups that stores pairs or single elements, guarded at the edges."""
    yield from braced("", _store_vectors(node))


def _store_vectors(node: ir.StGlobalVec) -> Iterator[str]:
    fragment, size = node.fragment, node.dtype.storage_bytes
    yield f"const int row_ = {text(fragment.row)};"
    yield f"const int column_ = {text(fragment.column)};"
    for half in (0, 1):
        place = f"{text(node.base)} + (i64)(row_ + {8 * half}) * {node.row_stride}"
        place += f" + (i64)column_ * {node.column_stride}"
        yield f"char* p{half}_ = b{node.buffer} + ({place}) * {size};"
        yield f"pin(p{half}_);"
    yield "#pragma unroll"
    yield from braced(
        f"for (int g_ = 0; g_ < {fragment.groups}; ++g_)",
        (line for half in (0, 1) for line in _store_half(node, half)),
    )


def _store_half(node: ir.StGlobalVec, half: int) -> Iterator[str]:
    guard = f"if (row_ + {8 * half} < {node.fragment.rows})"
    yield from braced(guard, _store_pair(node, half))


def _stored_pair(node: ir.StGlobalVec, half: int) -> tuple[tuple[str, str], str, list[str]]:
    """The C types of a pair of results and of one, the pair, and each of them."""
    bits = 8 * node.dtype.storage_bytes
    if results_per_group(node.dtype) == 2:
        pair = _register_text(node.source, 2, half)
        values = [f"(u{bits}){pair}", f"(u{bits})({pair} >> {bits})"]
        return (f"u{2 * bits}", f"u{bits}"), pair, values
    values = [_register_text(node.source, 4, 2 * half + side) for side in (0, 1)]
    kind = {F32: "float", F64: "double"}.get(node.dtype, "uint")
    single = "u32" if kind == "uint" else kind
    return (f"{kind}2", single), f"make_{kind}2({values[0]}, {values[1]})", values


def _store_pair(node: ir.StGlobalVec, half: int) -> Iterator[str]:
    columns, step = node.fragment.columns, node.column_stride * node.dtype.storage_bytes
    kinds, pair, values = _stored_pair(node, half)
    if node.width == 2:
        place = f"*({kinds[0]}*)(p{half}_ + g_ * {8 * step})"
        yield f"if (column_ + g_ * 8 < {columns}) {place} = {pair};"
        return
    for side in (0, 1):
        place = f"*({kinds[1]}*)(p{half}_ + (i64)(g_ * 8 + {side}) * {step})"
        yield f"if (column_ + g_ * 8 + {side} < {columns}) {place} = {values[side]};"
