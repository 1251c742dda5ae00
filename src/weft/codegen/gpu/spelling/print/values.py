"""Statements on single values as CUDA text.

The printer remembers the dtype of every value it has named: functions are chosen by it. Vectors
travel as 32-bit words and are cut into elements by shifts, which the compiler turns into byte
selections.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.element_ops import ElementOp, Number, literal, statement
from weft.codegen.gpu.ir.formats import (
    NARROW,
    NIBBLES,
    PAIRED,
    from_index,
    held,
    held_bytes,
    narrow,
    storage,
    widen,
)
from weft.codegen.gpu.ir.scalar import Lit, Scalar
from weft.codegen.gpu.spelling.print.scalars import text
from weft.foundation.dtypes import F32, I1, SI8, UI8, UI32, DType
from weft.foundation.errors import InternalError

WORD = 4
_REPRESENTED_TWICE = NIBBLES | {I1}
"""Dtypes of which different bytes are the same value: every byte but 0 is true."""

_SMALLEST: Final = 2.0**-100
"""A divisor whose reciprocal is made by dividing."""


def load_lines(
    name: str,
    dtype: DType,
    buffer: int,
    offset: Scalar,
    guard: Scalar,
    *,
    fill: Number = 0,
    constant: bool = True,
) -> str:
    """Declare a value that is an element of a buffer."""
    place = f"(const {storage(dtype)}*)b{buffer} + {text(offset)}"
    value = widen(f"fetch({place}, {_truth_text(constant)})", dtype)
    if guard != Lit(1):
        value = f"({text(guard)}) ? {value} : {literal(fill, dtype)}"
    return f"{held(dtype)} {name} = {value};"


class ValuePrinter:
    """Prints the statements of one kernel on single values."""

    def __init__(self) -> None:
        self.dtypes: dict[str, DType] = {}
        self.numbers: dict[str, float] = {}
        """Values of f32 that are known."""
        self.loaded: dict[tuple[str, ...], str] = {}
        """Words that were loaded, by the values that each holds: stored again they stay as they
        are."""
        self.alone: dict[str, str] = {}
        """Elements narrower than a word that were loaded one by one, in words of their own."""
        self.bytes: dict[str, tuple[str, int]] = {}
        """Integers of 8 bits that were loaded: the word, and the byte of it."""

    def name(self, name: str, dtype: DType) -> str:
        """The head of a declaration."""
        self.dtypes[name] = dtype
        return f"{held(dtype)} {name}"

    def declared(self, names: tuple[str, ...], dtype: DType) -> str:
        """The declaration of values that a call sets."""
        self.dtypes.update(dict.fromkeys(names, dtype))
        return f"{held(dtype)} {', '.join(names)}"

    def lines(self, node: values.ValueStmt) -> Iterator[str]:
        match node:
            case values.Compute(op=op):
                yield self.known_quotient(op) or statement(op, self.dtypes)
                self.dtypes[op.name] = op.dtype
            case values.ReadParam():
                yield self.param(node)
            case values.LoadVector():
                yield from self.load_vector(node)
            case values.LoadAcross():
                yield from self.load_across(node)
            case values.IndexValue(name=name, dtype=dtype, value=value):
                yield f"{self.name(name, dtype)} = {from_index(text(value), dtype)};"
            case values.Words():
                yield from self.words(node)
            case values.Variable(name=name, dtype=dtype, start=start):
                yield f"{self.name(name, dtype)} = {literal(start, dtype)};"
            case values.Assign(name=name, source=source, guard=guard):
                test = "" if guard == Lit(1) else f"if ({text(guard)}) "
                yield f"{test}{name} = {source};"
            case values.Choose(name=name, dtype=dtype, cond=cond, x=x, y=y):
                yield f"{self.name(name, dtype)} = {text(cond)} ? {x} : {y};"
            case values.Shuffle(name=name, dtype=dtype, source=source, mask=mask):
                other = f"exchange(bits({source}), {mask})"
                yield f"{self.name(name, dtype)} = {from_bits(other, dtype)};"
            case values.ShuffleDown(name=name, dtype=dtype, source=source, count=count):
                other = f"further_on(bits({source}), {count})"
                yield f"{self.name(name, dtype)} = {from_bits(other, dtype)};"
            case values.Alike(names=(before, count), number=number, bits=bits):
                yield f"int {before}, {count};"
                yield f"alike<{bits}>({text(number)}, {before}, {count});"
            case values.SortKey(name=name, dtype=dtype):
                yield f"{self.name(name, dtype)} = {self.sort_key(node)};"
            case values.StoreElement():
                yield self.store(node)
            case values.StoreVector():
                yield from self.store_vector(node)
            case values.CombineElement():
                yield self.combine(node)
            case values.PlaceOf(name=name, source=source, size=size):
                yield f"const int {name} = (int){_clamp(source, self.dtypes[source], size)};"
            case values.Report():
                yield self.report(node)

    def known_quotient(self, op: ElementOp) -> str:
        """A quotient whose divisor is a number that has a reciprocal; nothing for other ops."""
        if op.fn == "const" and op.dtype is F32 and isinstance(op.value, int | float):
            self.numbers[op.name] = float(F32.numpy.type(op.value))
        number = self.numbers.get(op.args[1], 0.0) if op.shared else 0.0
        if not _SMALLEST < abs(number) < 1 / _SMALLEST:
            return ""
        given = ", ".join((*op.args, literal(1 / number, F32)))
        return f"float {op.name} = known_quotient({given});"

    def report(self, node: values.Report) -> str:
        kind = "u64" if _is_unsigned(self.dtypes[node.value]) else "i64"
        value = f"({kind}){node.value}"
        broken = {
            "inside": f"({value} < 0 || {value} >= {node.size})",
            "nonzero": f"{value} == 0",
            "nonnegative": f"{value} < 0",
        }[node.rule]
        guard = "" if node.guard == Lit(1) else f" && {text(node.guard)}"
        return f"if ({broken}{guard}) report(error, {node.number}, {text(node.element)});"

    def sort_key(self, node: values.SortKey) -> str:
        source = self.dtypes[node.source]
        value = narrow(node.source, source) if source in NARROW else f"bits({node.source})"
        key = f"({held(node.dtype)}){value}"
        if source.is_float:
            key = f"float_key<{source.bits}>({key}, {node.source} != {node.source})"
        elif source.is_signed:
            key = f"integer_key<{source.bits}>({key})"
        return f"reversed_key<{source.bits}>({key})" if node.descending else key

    def param(self, node: values.ReadParam) -> str:
        place = f"(const {storage(node.dtype)}*)b{node.buffer} + {node.element}"
        place = widen(f"fetch({place}, {_truth_text(node.constant)})", node.dtype)
        kind = "u64" if _is_unsigned(node.dtype) else "i64"
        value = f"min(({kind}){node.high}, max(({kind}){node.low}, ({kind}){place}))"
        return f"const int {node.name} = (int){value};"

    def words(self, node: values.Words) -> Iterator[str]:
        state = f"(u64){node.seed}, (u64){node.offset}"
        if len(node.names) == 1:
            name = self.name(node.names[0], UI32)
            yield f"{name} = philox_word({state}, {text(node.element)});"
            return
        words = f"{node.names[0]}_w_"
        yield f"u32 {words}[4];"
        yield f"philox_block({words}, {state}, (u64){text(node.element)} >> 2);"
        for number, made in enumerate(node.names):
            yield f"{self.name(made, UI32)} = {words}[{number}];"

    def load_vector(self, node: values.LoadVector) -> Iterator[str]:
        size = node.dtype.storage_bytes
        count = _vector_words(len(node.names), size)
        words = f"{node.names[0]}_w_"
        yield f"u32 {words}[{count}] = {{}};"
        place = f"b{node.buffer} + {text(node.offset)} * {size}"
        fetch = f"fetch_words({words}, {place}, {_truth_text(node.constant)});"
        if node.once and node.constant:
            fetch = f"fetch_words_once({words}, {place});"
        elif node.lasting and node.constant:
            fetch = f"fetch_words_lasting({words}, {place});"
        yield fetch if node.guard == Lit(1) else f"if ({text(node.guard)}) {fetch}"
        yield from self.pieces(node.names, node.dtype, words)

    def load_across(self, node: values.LoadAcross) -> Iterator[str]:
        size = node.dtype.storage_bytes
        words = f"{node.names[0]}_w_"
        yield f"u32 {words}[4];"
        place = f"b{node.buffer}, (i64)({text(node.offset)}) * {size}"
        rest = f"({text(node.count)}) * {size}, {_truth_text(node.constant)}"
        yield f"fetch_across({words}, {place}, {rest});"
        yield from self.pieces(node.names, node.dtype, words)

    def pieces(self, names: tuple[str, ...], dtype: DType, words: str) -> Iterator[str]:
        """The elements of a vector of words."""
        if dtype.storage_bytes < WORD and dtype not in _REPRESENTED_TWICE:
            each = WORD // dtype.storage_bytes
            for word, first in enumerate(range(0, len(names), each)):
                self.loaded[names[first : first + each]] = f"{words}[{word}]"
        for number, name in enumerate(names):
            if dtype in (SI8, UI8):
                self.bytes[name] = (f"{words}[{number // WORD}]", number % WORD)
            yield f"{self.name(name, dtype)} = {_piece(words, number, dtype)};"

    def load_shared_vector(
        self, names: tuple[str, ...], dtype: DType, address: str
    ) -> Iterator[str]:
        words = f"{names[0]}_w_"
        each = held_bytes(dtype) // WORD
        yield f"u32 {words}[{each * len(names)}];"
        yield f"load_shared_words({words}, {address});"
        for number, name in enumerate(names):
            value = from_bits(_word_or_two(words, number, each), dtype)
            yield f"{self.name(name, dtype)} = {value};"

    def load_staged(self, names: tuple[str, ...], dtype: DType, address: str) -> Iterator[str]:
        words, size = f"{names[0]}_w_", dtype.storage_bytes
        if len(names) * size < WORD:
            yield f"const u32 {words}[1] = {{load_staged_{size}({address})}};"
            if dtype not in _REPRESENTED_TWICE:
                self.alone[names[0]] = f"{words}[0]"
            yield f"{self.name(names[0], dtype)} = {_piece(words, 0, dtype)};"
            return
        yield f"u32 {words}[{_vector_words(len(names), size)}];"
        yield f"load_shared_words({words}, {address});"
        yield from self.pieces(names, dtype, words)

    def store(self, node: values.StoreElement) -> str:
        place = f"*((({storage(node.dtype)}*)b{node.buffer}) + {text(node.offset)})"
        store = f"{place} = {narrow(node.source, node.dtype)};"
        return store if node.guard == Lit(1) else f"if ({text(node.guard)}) {store}"

    def combine(self, node: values.CombineElement) -> str:
        place = f"({storage(node.dtype)}*)b{node.buffer} + {text(node.offset)}"
        combine = f"combine_{node.fn}({place}, {node.source});"
        return combine if node.guard == Lit(1) else f"if ({text(node.guard)}) {combine}"

    def store_vector(self, node: values.StoreVector) -> Iterator[str]:
        size = node.dtype.storage_bytes
        count = _vector_words(len(node.sources), size)
        words = f"{node.sources[0]}_s{node.buffer}_"
        parts = ", ".join(self.packed(node.sources, number, node.dtype) for number in range(count))
        yield f"const u32 {words}[{count}] = {{{parts}}};"
        place = f"b{node.buffer} + {text(node.offset)} * {size}"
        put = f"put_words{'_passing' if node.passing else ''}({words}, {place});"
        yield put if node.guard == Lit(1) else f"if ({text(node.guard)}) {put}"

    def byte_pair(self, low: str, high: str) -> str:
        """The bits of two integers of 8 bits, each in half a word."""
        first, second = self.bytes.get(low), self.bytes.get(high)
        if first is not None and second is not None and first[0] == second[0]:
            return f"__byte_perm({first[0]}, 0, 0x4{second[1]}4{first[1]})"
        return f"((u32)(u8){low} | (u32)(u8){high} << 16)"

    def small(self, node: ir.PackSmall) -> str:
        """Two integers from 0 on, or parts of them, each in half a word, and which bits count."""
        names, least = (node.low, node.high), node.least
        mask = f"{node.mask << 16 | node.mask:#x}u"
        if node.mask and not least and all(name in self.bytes for name in names):
            pair = self.byte_pair(*names)
            return f"{f'({pair} >> {node.shift})' if node.shift else pair}, {mask}"
        parts = [f"((u32)((int){name} - ({least})))" for name in names]
        if node.mask:
            parts = [f"(((u32){name} >> {node.shift} & {node.mask}u) - {least})" for name in names]
        return f"({parts[0]} | {parts[1]} << 16), 0xffffffffu"

    def packed(self, sources: tuple[str, ...], word: int, dtype: DType) -> str:
        """A word of a vector of values."""
        size = dtype.storage_bytes
        if size == 8:
            half = f"bits({sources[word // 2]})"
            return f"(u32)({half} >> 32)" if word % 2 else f"(u32){half}"
        if size == WORD:
            return f"bits({sources[word]})"
        each = WORD // size
        own = sources[word * each : (word + 1) * each]
        if own in self.loaded:
            return self.loaded[own]
        if all(name in self.alone for name in own):
            return " | ".join(f"{self.alone[name]} << {8 * size * i}" for i, name in enumerate(own))
        if dtype in PAIRED:
            return f"pack_{dtype.name}({own[0]}, {own[1]})"
        mask = (1 << 8 * size) - 1
        parts = [f"((u32){narrow(name, dtype)} & {mask})" for name in own]
        return " | ".join(f"{part} << {8 * size * i}" for i, part in enumerate(parts))


def _clamp(source: str, dtype: DType, size: int) -> str:
    """An integer held to [0, size), in as many bits as it has."""
    kind = "u32" if dtype is UI32 else "int" if dtype.bits < 64 else "i64"
    if _is_unsigned(dtype):
        kind = "u64"
    value = f"({kind}){source}"
    floor = value if kind.startswith("u") else f"max(({kind})0, {value})"
    return f"min(({kind}){size - 1}, {floor})"


def _is_unsigned(dtype: DType) -> bool:
    """Whether 64 signed bits do not hold every number of a dtype."""
    return dtype.bits == 64 and not dtype.is_signed


def from_bits(value: str, dtype: DType) -> str:
    """A held value back from its bits."""
    return f"Held<{held(dtype)}>::from({value})"


def put_shared(address: str, name: str) -> str:
    """Store a value's bits in shared memory."""
    return f"store_shared({address}, bits({name}));"


def get_shared(address: str, dtype: DType) -> str:
    return from_bits(f"load_shared_{held_bytes(dtype)}({address})", dtype)


def _truth_text(value: bool) -> str:
    return "true" if value else "false"


def _vector_words(count: int, size: int) -> int:
    total = count * size
    if total not in (4, 8, 16):
        raise InternalError(f"{count} elements of {size} bytes are not a vector")
    return total // WORD


def _piece(words: str, number: int, dtype: DType) -> str:
    """An element of a vector of words."""
    size = dtype.storage_bytes
    word, inside = divmod(number * size, WORD)
    if size >= WORD:
        return from_bits(_word_or_two(words, number, size // WORD), dtype)
    shifted = f"({words}[{word}] >> {8 * inside})"
    if dtype is I1:
        return f"({shifted} & 0xff) != 0"
    return widen(f"({storage(dtype)}){shifted}", dtype)


def _word_or_two(words: str, number: int, each: int) -> str:
    """The bits of a value of one or two words."""
    if each == 1:
        return f"{words}[{number}]"
    return f"((u64){words}[{2 * number + 1}] << 32 | {words}[{2 * number}])"
