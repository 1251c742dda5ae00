"""Sorting as LLVM code: indices sorted by keys that compare as unsigned numbers.

A stable radix sort of the differences from the least key, eight bits at a time from the lowest on,
as many as the largest difference has; a pass in which all agree is left out. Short rows are sorted
by insertion. What is moved is an item, a key with its place: one number of 64 bits, the key above,
where both fit into halves of it, else two numbers.

Where few of a row are wanted, only the items that come before the last of the first so many are
kept; they are sorted whenever there are several times as many, and the others forgotten. So a row
in an unfortunate order takes little longer than sorting it.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.codegen.cpu.code import Code, Val, number
from weft.foundation.dtypes import DType
from weft.foundation.errors import ResourceExceeded

_SHORT = 32
"""Elements up to which inserting takes less than passes over digits."""
_KEPT = 4
"""Items that are kept for each that is wanted."""
_HALF = 32
"""Bits of a key, and of a place, that share a number."""


def key_type(dtype: DType) -> str:
    """The unsigned type of the keys of a dtype."""
    return "i64" if dtype.bits == 64 else "i32"


def sort_key(code: Code, x: Val, dtype: DType, descending: bool) -> Val:
    """The key of an element in its compute type: NaN after everything else, equal zeros."""
    scalar = key_type(dtype)
    if dtype.is_float:
        # Adding +0 turns -0 into +0.
        plain = code.assign(f"fadd {x}, {number(0.0, x.scalar).text}", x.scalar)
        bits = code.convert("bitcast", plain, scalar)
        negative = code.compare("icmp slt", bits, number(0, scalar))
        flipped = code.binary("xor", bits, number(-1, scalar))
        sign = number(1 << (int(scalar[1:]) - 1), scalar)
        key = code.select(negative, flipped, code.binary("or", bits, sign))
        key = code.select(code.compare("fcmp uno", x, x), number(-1, scalar), key)
    else:
        key = code.convert("zext", x, scalar) if x.scalar != scalar else x
        if dtype.is_signed:
            own = number(1 << (int(x.scalar[1:]) - 1), scalar)
            key = code.binary("xor", key, own)
    return code.binary("xor", key, number(-1, scalar)) if descending else key


@dataclass(frozen=True)
class Items:
    """How the keys and places of a row are held in memory."""

    dtype: DType
    length: int

    def __post_init__(self) -> None:
        if self.shared and self.length > 1 << _HALF:
            raise ResourceExceeded(
                f"rows of {self.length:,} elements are too long to sort: {self.dtype} takes at "
                f"most {1 << _HALF:,}"
            )

    @property
    def shared(self) -> bool:
        """Whether a key and its place are one number."""
        return key_type(self.dtype) == "i32"

    @property
    def size(self) -> int:
        """The bytes of one."""
        return 8 if self.shared else 16

    def store(self, code: Code, items: str, key: Val, place: Val, index: Val) -> None:
        """Write down the item of a place, as the one with a number."""
        if self.shared:
            above = code.binary("shl", code.convert("zext", key, "i64"), number(_HALF, "i64"))
            code.store(code.binary("or", above, place), code.pointer(items, "i64", index), 8)
            return
        first = code.binary("shl", index, number(1, "i64"))
        code.store(key, code.pointer(items, "i64", first), 8)
        second = code.binary("or", first, number(1, "i64"))
        code.store(place, code.pointer(items, "i64", second), 8)

    def place(self, code: Code, items: str, index: Val) -> Val:
        """The place of the item with a number."""
        if self.shared:
            item = code.load("i64", code.pointer(items, "i64", index), 1, 8)
            return code.binary("and", item, number((1 << _HALF) - 1, "i64"))
        first = code.binary("shl", index, number(1, "i64"))
        second = code.binary("or", first, number(1, "i64"))
        return code.load("i64", code.pointer(items, "i64", second), 1, 8)

    def copy_places(self, code: Code, items: str, out: str, first: Val, count: int) -> None:
        """The places of the first items, from an element of the result on."""
        target = code.pointer(out, "i64", first)

        def copy(index: Val) -> None:
            code.store(self.place(code, items, index), code.pointer(target, "i64", index), 8)

        code.loop(number(0, "i64"), number(count, "i64"), 1, copy)

    def key(self, code: Code, items: str, index: Val) -> Val:
        """The key of the item with a number."""
        if self.shared:
            item = code.load("i64", code.pointer(items, "i64", index), 1, 8)
            above = code.binary("lshr", item, number(_HALF, "i64"))
            return code.convert("trunc", above, "i32")
        first = code.binary("shl", index, number(1, "i64"))
        return code.load("i64", code.pointer(items, "i64", first), 1, 8)

    def sort_function(self, code: Code) -> str:
        """The name of the function `ptr (items, other memory, n, least key, largest)` that sorts
        items, which are in one of these two pieces of memory then; it says in which."""
        name = f"sort_items_of_{self.size}"
        code.declared["llvm.ctlz.i64"] = "declare i64 @llvm.ctlz.i64(i64, i1 immarg)"
        code.functions.setdefault(name, self._text(name))
        return name

    def _text(self, name: str) -> str:
        kind = "i64" if self.shared else "{ i64, i64 }"
        passes = _NEXT_DIGIT + _count_digits(kind) + _FIRST_SLOTS + _deal(kind) + _TURN_ROUND
        return f"""
define internal ptr @{name}(ptr %x0, ptr %x1, i64 %n, i64 %least, i64 %most) nounwind {{
entry:
  %counts = alloca i64, i64 256, align 64
  %difference = sub i64 %most, %least
  %above = call i64 @llvm.ctlz.i64(i64 %difference, i1 false)
  %bits = sub i64 64, %above
  %short = icmp sle i64 %n, {_SHORT}
  br i1 %short, label %insert, label %pass

{_insertion(kind)}
{passes}"""


def kept_at_once(length: int, count: int) -> int:
    """How many items are kept before they are sorted where the first `count` of a row are wanted;
    0 where all are sorted at once."""
    kept = _SHORT if 2 * count <= _SHORT else _KEPT * count
    return kept if 2 * kept <= length else 0


class Kept:
    """The items that come before the last of the first `count`, as far as the row was looked at."""

    def __init__(self, code: Code, items: Items, here: str, there: str, count: int) -> None:
        self.code, self.items, self.here, self.there = code, items, here, there
        self.count, self.most = count, kept_at_once(items.length, count)
        self.kept, self.last = code.alloca("i64"), code.alloca(key_type(items.dtype))
        self.takes_all = code.alloca("i1")
        code.store(number(0, "i64"), self.kept, 8)
        code.store(number(0, key_type(items.dtype)), self.last, 8)
        code.store(number(1, "i1"), self.takes_all, 1)

    def see(self, key: Val, place: Val) -> None:
        """Keep the item of a place, unless so many come before it already."""
        code = self.code
        last = code.load(key.scalar, self.last, 1, 8)
        comes_before = code.compare("icmp ult", key, last)
        takes_all = code.load("i1", self.takes_all, 1, 1)

        def keep() -> None:
            kept = code.load("i64", self.kept, 1, 8)
            self.items.store(code, self.here, key, place, kept)
            more = code.binary("add", kept, number(1, "i64"))
            code.store(more, self.kept, 8)
            is_full = code.compare("icmp eq", more, number(self.most, "i64"))
            code.when(is_full, self._forget)

        code.when(code.binary("or", comes_before, takes_all), keep)

    def _forget(self) -> None:
        """All but the first so many."""
        code, items = self.code, self.items
        found, count = self.sort(), number(self.count, "i64")
        words = code.binary("mul", count, number(items.size // 8, "i64"))

        def move(index: Val) -> None:
            word = code.load("i64", code.pointer(found, "i64", index), 1, 8)
            code.store(word, code.pointer(self.here, "i64", index), 8)

        code.loop(number(0, "i64"), words, 1, move)
        code.store(count, self.kept, 8)
        last = items.key(code, self.here, number(self.count - 1, "i64"))
        code.store(last, self.last, 8)
        code.store(number(0, "i1"), self.takes_all, 1)

    def sort(self) -> str:
        """Where those that are kept are, in order."""
        ends = _ends_of_all(int(key_type(self.items.dtype)[1:]))
        name = self.items.sort_function(self.code)
        kept = self.code.load("i64", self.kept, 1, 8)
        given = f"ptr {self.here}, ptr {self.there}, {kept}, {ends}"
        return self.code.result(f"call ptr @{name}({given})", "ptr").text


def sorted_row(code: Code, items: Items, here: str, there: str, count: int) -> Kept | Every:
    """A row of which the first so many are wanted, in two pieces of memory."""
    is_kept = kept_at_once(items.length, count)
    return (Kept if is_kept else Every)(code, items, here, there, count)


def _ends_of_all(bits: int) -> str:
    """The least and the largest key of so many bits, as arguments."""
    return f"i64 0, i64 {(1 << bits) - 1 if bits < 64 else -1}"


class Every:
    """All items of a row.

    The least and the largest key of whole numbers of several bytes are found as keys are written,
    which takes a twentieth of the time of sorting and may save passes; floats have digits enough,
    and keys of a byte are sorted in one pass."""

    def __init__(self, code: Code, items: Items, here: str, there: str, count: int) -> None:
        self.code, self.items, self.here, self.there = code, items, here, there
        self.ends, dtype = dict[str, str](), items.dtype
        self.bits = int(key_type(dtype)[1:]) if dtype.is_float else max(dtype.bits, 8)
        if dtype.is_float or self.bits == 8:
            return
        for fn, start in (("umin", -1), ("umax", 0)):
            self.ends[fn] = code.alloca("i64")
            code.store(number(start, "i64"), self.ends[fn], 8)

    def see(self, key: Val, place: Val) -> None:
        """Write down the item of a place."""
        code = self.code
        self.items.store(code, self.here, key, place, place)
        wide = key if key.scalar == "i64" else code.convert("zext", key, "i64")
        for fn, end in self.ends.items():
            before = code.load("i64", end, 1, 8)
            code.store(code.intrinsic(f"llvm.{fn}", before, wide), end, 8)

    def sort(self) -> str:
        """Where they are, in order."""
        ends = ", ".join(str(self.code.load("i64", p, 1, 8)) for p in self.ends.values())
        given = f"ptr {self.here}, ptr {self.there}, i64 {self.items.length}, "
        given += ends or _ends_of_all(self.bits)
        name = self.items.sort_function(self.code)
        return self.code.result(f"call ptr @{name}({given})", "ptr").text


def _take_key(kind: str, item: str) -> str:
    """The line that takes the key out of an item."""
    how = f"lshr i64 {item}, {_HALF}" if kind == "i64" else f"extractvalue {kind} {item}, 0"
    return f"{item}.key = {how}"


def _insertion(kind: str) -> str:
    """Short rows, where they lie."""
    return f"""insert:
  %i = phi i64 [ 1, %entry ], [ %i.next, %placed ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %take, label %inserted
take:
  %i.next = add i64 %i, 1
  %one.at = getelementptr {kind}, ptr %x0, i64 %i
  %one = load {kind}, ptr %one.at, align 8
  {_take_key(kind, "%one")}
  br label %shift
shift:
  %j = phi i64 [ %i, %take ], [ %j.before, %move ]
  %any = icmp sgt i64 %j, 0
  br i1 %any, label %compare, label %placed
compare:
  %j.before = sub i64 %j, 1
  %other.at = getelementptr {kind}, ptr %x0, i64 %j.before
  %other = load {kind}, ptr %other.at, align 8
  {_take_key(kind, "%other")}
  %larger = icmp ugt i64 %other.key, %one.key
  br i1 %larger, label %move, label %placed
move:
  %to.at = getelementptr {kind}, ptr %x0, i64 %j
  store {kind} %other, ptr %to.at, align 8
  br label %shift
placed:
  %put.at = getelementptr {kind}, ptr %x0, i64 %j
  store {kind} %one, ptr %put.at, align 8
  br label %insert
inserted:
  ret ptr %x0
"""


_NEXT_DIGIT = """pass:
  %digit = phi i64 [ 0, %entry ], [ %digit.next, %passed ]
  %from = phi ptr [ %x0, %entry ], [ %from.next, %passed ]
  %to = phi ptr [ %x1, %entry ], [ %to.next, %passed ]
  %done = icmp uge i64 %digit, %bits
  br i1 %done, label %sorted, label %clear
clear:
  %c = phi i64 [ 0, %pass ], [ %c.next, %clear ]
  %c.at = getelementptr i64, ptr %counts, i64 %c
  store i64 0, ptr %c.at
  %c.next = add i64 %c, 1
  %c.more = icmp slt i64 %c.next, 256
  br i1 %c.more, label %clear, label %count
"""
"""A pass over one digit: from which memory to which, with no key counted yet."""


# `%new` is the count of the last key's digit: where it is n, all keys have that digit.
def _count_digits(kind: str) -> str:
    """How many keys have each digit; where all have the same the pass is left out."""
    return f"""count:
  %a = phi i64 [ 0, %clear ], [ %a.next, %count ]
  %seen.at = getelementptr {kind}, ptr %from, i64 %a
  %seen = load {kind}, ptr %seen.at, align 8
  {_take_key(kind, "%seen")}
  %seen.own = sub i64 %seen.key, %least
  %seen.moved = lshr i64 %seen.own, %digit
  %seen.digit = and i64 %seen.moved, 255
  %count.at = getelementptr i64, ptr %counts, i64 %seen.digit
  %old = load i64, ptr %count.at
  %new = add i64 %old, 1
  store i64 %new, ptr %count.at
  %a.next = add i64 %a, 1
  %a.more = icmp slt i64 %a.next, %n
  br i1 %a.more, label %count, label %judge
judge:
  %all = icmp eq i64 %new, %n
  br i1 %all, label %skip, label %sum
skip:
  br label %passed
"""


_FIRST_SLOTS = """sum:
  %s = phi i64 [ 0, %judge ], [ %s.next, %sum ]
  %total = phi i64 [ 0, %judge ], [ %total.next, %sum ]
  %s.at = getelementptr i64, ptr %counts, i64 %s
  %here = load i64, ptr %s.at
  store i64 %total, ptr %s.at
  %total.next = add i64 %total, %here
  %s.next = add i64 %s, 1
  %s.more = icmp slt i64 %s.next, 256
  br i1 %s.more, label %sum, label %deal
"""
"""Counts become the places where the keys of each digit begin."""


def _deal(kind: str) -> str:
    """Every item to the next slot of its digit."""
    return f"""deal:
  %b = phi i64 [ 0, %sum ], [ %b.next, %deal ]
  %dealt.at = getelementptr {kind}, ptr %from, i64 %b
  %dealt.one = load {kind}, ptr %dealt.at, align 8
  {_take_key(kind, "%dealt.one")}
  %dealt.own = sub i64 %dealt.one.key, %least
  %dealt.moved = lshr i64 %dealt.own, %digit
  %dealt.digit = and i64 %dealt.moved, 255
  %slot.at = getelementptr i64, ptr %counts, i64 %dealt.digit
  %slot = load i64, ptr %slot.at
  %slot.next = add i64 %slot, 1
  store i64 %slot.next, ptr %slot.at
  %new.at = getelementptr {kind}, ptr %to, i64 %slot
  store {kind} %dealt.one, ptr %new.at, align 8
  %b.next = add i64 %b, 1
  %b.more = icmp slt i64 %b.next, %n
  br i1 %b.more, label %deal, label %dealt
"""


_TURN_ROUND = """dealt:
  br label %passed
passed:
  %from.next = phi ptr [ %from, %skip ], [ %to, %dealt ]
  %to.next = phi ptr [ %to, %skip ], [ %from, %dealt ]
  %digit.next = add i64 %digit, 8
  br label %pass
sorted:
  ret ptr %from
}
"""
"""The two pieces of memory change places, unless the pass was left out."""
