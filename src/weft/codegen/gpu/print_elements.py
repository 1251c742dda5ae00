"""Element programs and their loads and stores as CUDA text."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from weft.codegen.gpu import ir
from weft.codegen.gpu.element import held, statement
from weft.codegen.gpu.print_scalars import braced, text
from weft.foundation.dtypes import BF16, F16, F32, I1, DType

AddressText = Callable[[ir.Address], str]

_NARROW = (BF16, F16)


def epilogue(node: ir.Epilogue, address: AddressText) -> Iterator[str]:
    """The loop over the groups of a fragment, unrolled by the compiler."""
    yield from braced("", _epilogue(node, address))


def _epilogue(node: ir.Epilogue, address: AddressText) -> Iterator[str]:
    fragment = node.fragment
    yield f"const int row_ = {text(fragment.row)};"
    yield f"const int column_ = {text(fragment.column)};"
    for source in node.sources:
        if isinstance(source, ir.GlobalElements) and source.column_stride == 0:
            yield from _rows(source, fragment)
    yield "#pragma unroll"
    yield from braced(f"for (int g_ = 0; g_ < {fragment.groups}; ++g_)", _group(node, address))


def _rows(source: ir.GlobalElements, fragment: ir.Fragment) -> Iterator[str]:
    """Values that depend on the row alone are loaded once, before the loop."""
    for half in (0, 1):
        place = text(source.base) + f" + (i64)(row_ + {8 * half}) * {source.row_stride}"
        guard = f"row_ + {8 * half} < {fragment.rows}" if source.row_stride else "1"
        yield _load_text(f"{source.name}_r{half}_", source, place, guard)


def _load_text(name: str, source: ir.GlobalElements, place: str, guard: str) -> str:
    kind = held(source.dtype)
    if source.dtype in _NARROW:
        value = f"load_{source.dtype.name}((const u16*)b{source.buffer} + {place})"
    elif source.dtype is I1:
        value = f"(__ldg((const u8*)b{source.buffer} + {place}) != 0)"
    else:
        value = f"__ldg((const {kind}*)b{source.buffer} + {place})"
    return f"{kind} {name} = " + (f"{value};" if guard == "1" else f"({guard}) ? {value} : 0;")


def _group(node: ir.Epilogue, address: AddressText) -> Iterator[str]:
    for source in node.sources:
        if isinstance(source, ir.SharedColumns):
            yield f"float {source.name}_c0_, {source.name}_c1_;"
            place = f"{address(source.source)} + g_ * 32"
            yield f"load_shared_pair({source.name}_c0_, {source.name}_c1_, {place});"
    yield "float y0_, y1_, y2_, y3_;"
    for element in range(4):
        yield from braced("", _element(node, element))
    if node.out_dtype is F32:
        for element in range(4):
            yield f"{_out(node.out, 4, element)} = y{element}_;"
    else:
        pack = f"pack_{node.out_dtype.name}"
        yield f"{_out(node.out, 2, 0)} = {pack}(y0_, y1_);"
        yield f"{_out(node.out, 2, 1)} = {pack}(y2_, y3_);"


def _out(out: ir.RegAt, per_group: int, element: int) -> str:
    return f"{out.array}[{out.index} + g_ * {per_group} + {element}]"


def _element(node: ir.Epilogue, element: int) -> Iterator[str]:
    half, side = divmod(element, 2)
    dtypes: dict[str, DType] = {node.value: F32}
    yield f"const float {node.value} = {_out(node.acc, 4, element)};"
    for source in node.sources:
        dtypes[source.name] = source.dtype
        yield _source(source, node.fragment, half, side)
    for op in node.ops:
        yield statement(op, dtypes)
        dtypes[op.name] = op.dtype
    yield f"y{element}_ = {node.result};"


def _source(source: ir.ElementSource, fragment: ir.Fragment, half: int, side: int) -> str:
    row, column = f"(row_ + {8 * half})", f"(column_ + g_ * 8 + {side})"
    match source:
        case ir.SharedColumns(name=name):
            return f"const float {name} = {name}_c{side}_;"
        case ir.GlobalElements(name=name, column_stride=0):
            return f"const {held(source.dtype)} {name} = {name}_r{half}_;"
        case ir.GlobalElements(name=name, row_stride=rows, column_stride=columns):
            place = f"{text(source.base)} + (i64){row} * {rows} + (i64){column} * {columns}"
            guard = f"{row} < {fragment.rows} && {column} < {fragment.columns}"
            return _load_text(name, source, place, guard)
        case ir.IndexElements(name=name, row_factor=rows, column_factor=columns):
            place = f"{text(source.base)} + {row} * {rows} + {column} * {columns}"
            return f"const {held(source.dtype)} {name} = {place};"


def store_vectors(node: ir.StGlobalVec) -> Iterator[str]:
    """A loop over groups that stores pairs or single elements, guarded at the edges."""
    yield from braced("", _store_vectors(node))


def _store_vectors(node: ir.StGlobalVec) -> Iterator[str]:
    fragment = node.fragment
    yield f"const int row_ = {text(fragment.row)};"
    yield f"const int column_ = {text(fragment.column)};"
    yield "#pragma unroll"
    yield from braced(
        f"for (int g_ = 0; g_ < {fragment.groups}; ++g_)",
        (line for half in (0, 1) for line in _store_half(node, half)),
    )


def _store_half(node: ir.StGlobalVec, half: int) -> Iterator[str]:
    fragment = node.fragment
    place = f"{text(node.base)} + (i64)(row_ + {8 * half}) * {node.row_stride}"
    place += f" + (i64)(column_ + g_ * 8) * {node.column_stride}"
    size = node.dtype.storage_bytes
    yield from braced(
        f"if (row_ + {8 * half} < {fragment.rows})",
        _store_pair(node, half, f"b{node.buffer} + ({place}) * {size}"),
    )


def _store_pair(node: ir.StGlobalVec, half: int, pointer: str) -> Iterator[str]:
    columns = node.fragment.columns
    wide_store = node.width == 2
    if node.dtype is F32:
        values = [_out(node.source, 4, 2 * half + side) for side in (0, 1)]
        pair = f"*(float2*)({pointer}) = make_float2({values[0]}, {values[1]});"
        single = [f"*(float*)(p{{}}_) = {value};" for value in values]
    else:
        value = _out(node.source, 2, half)
        pair = f"*(u32*)({pointer}) = {value};"
        single = [f"*(u16*)(p{{}}_) = (u16){value};", f"*(u16*)(p{{}}_) = (u16)({value} >> 16);"]
    if wide_store:
        yield f"if (column_ + g_ * 8 < {columns}) {pair}"
        return
    step = node.column_stride * node.dtype.storage_bytes
    yield f"char* p0_ = {pointer};"
    yield f"char* p1_ = p0_ + {step};"
    for side in (0, 1):
        yield f"if (column_ + g_ * 8 + {side} < {columns}) " + single[side].format(side)
