"""Sorting as LLVM code: positions ordered by keys that compare as unsigned numbers.

A stable radix sort, eight bits at a time from the lowest on; a pass in which all keys agree is
left out. Short rows are sorted by insertion.
"""

from __future__ import annotations

from weft.codegen.cpu.code import Code, Val, number
from weft.foundation.dtypes import DType

_SHORT = 32


def key_type(dtype: DType) -> str:
    """The unsigned type of the keys of a dtype."""
    return "i64" if dtype.bits == 64 else "i32"


def key_of(code: Code, x: Val, dtype: DType, descending: bool) -> Val:
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


def sort_function(code: Code, dtype: DType) -> str:
    """The name of the function `ptr (keys, places, other keys, other places, n)` that sorts places
    by keys, both in either of two pieces of memory, and says where the sorted places are."""
    scalar = key_type(dtype)
    bits = int(scalar[1:]) if dtype.is_float else max(dtype.bits, 8)
    name = f"sort_by_{bits}_of_{scalar}"
    code.functions.setdefault(name, _sort_text(name, scalar, bits))
    return name


def _sort_text(name: str, key: str, bits: int) -> str:
    """The function for keys that differ only in their lowest bits."""
    passes = _begin_pass(key, bits) + _count(key) + _FIRST_SLOTS + _deal(key) + _end_pass(key)
    return f"""
define internal ptr @{name}(ptr %k0, ptr %p0, ptr %k1, ptr %p1, i64 %n) nounwind {{
entry:
  %counts = alloca i64, i64 256, align 64
  %short = icmp sle i64 %n, {_SHORT}
  br i1 %short, label %insert, label %pass

{_insertion(key)}
{passes}"""


def _insertion(key: str) -> str:
    """Short rows, where they lie."""
    return f"""insert:
  %i = phi i64 [ 1, %entry ], [ %i.next, %placed ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %take, label %inserted
take:
  %i.next = add i64 %i, 1
  %ki.at = getelementptr {key}, ptr %k0, i64 %i
  %pi.at = getelementptr i64, ptr %p0, i64 %i
  %ki = load {key}, ptr %ki.at
  %pi = load i64, ptr %pi.at
  br label %shift
shift:
  %j = phi i64 [ %i, %take ], [ %j.before, %move ]
  %any = icmp sgt i64 %j, 0
  br i1 %any, label %compare, label %placed
compare:
  %j.before = sub i64 %j, 1
  %kj.at = getelementptr {key}, ptr %k0, i64 %j.before
  %kj = load {key}, ptr %kj.at
  %larger = icmp ugt {key} %kj, %ki
  br i1 %larger, label %move, label %placed
move:
  %pj.at = getelementptr i64, ptr %p0, i64 %j.before
  %pj = load i64, ptr %pj.at
  %kto.at = getelementptr {key}, ptr %k0, i64 %j
  %pto.at = getelementptr i64, ptr %p0, i64 %j
  store {key} %kj, ptr %kto.at
  store i64 %pj, ptr %pto.at
  br label %shift
placed:
  %kput.at = getelementptr {key}, ptr %k0, i64 %j
  %pput.at = getelementptr i64, ptr %p0, i64 %j
  store {key} %ki, ptr %kput.at
  store i64 %pi, ptr %pput.at
  br label %insert
inserted:
  ret ptr %p0
"""


def _begin_pass(key: str, bits: int) -> str:
    """A pass over one digit: from which memory to which, with no key counted yet."""
    return f"""pass:
  %digit = phi {key} [ 0, %entry ], [ %digit.next, %passed ]
  %kf = phi ptr [ %k0, %entry ], [ %kf.next, %passed ]
  %pf = phi ptr [ %p0, %entry ], [ %pf.next, %passed ]
  %kt = phi ptr [ %k1, %entry ], [ %kt.next, %passed ]
  %pt = phi ptr [ %p1, %entry ], [ %pt.next, %passed ]
  %done = icmp uge {key} %digit, {bits}
  br i1 %done, label %sorted, label %clear
clear:
  %c = phi i64 [ 0, %pass ], [ %c.next, %clear ]
  %c.at = getelementptr i64, ptr %counts, i64 %c
  store i64 0, ptr %c.at
  %c.next = add i64 %c, 1
  %c.more = icmp slt i64 %c.next, 256
  br i1 %c.more, label %clear, label %count
"""


def _count(key: str) -> str:
    """How many keys have each digit; where all have the same the pass is left out."""
    return f"""count:
  %a = phi i64 [ 0, %clear ], [ %a.next, %count ]
  %ka.at = getelementptr {key}, ptr %kf, i64 %a
  %ka = load {key}, ptr %ka.at
  %ka.moved = lshr {key} %ka, %digit
  %ka.digit = and {key} %ka.moved, 255
  %ka.at.count = getelementptr i64, ptr %counts, {key} %ka.digit
  %old = load i64, ptr %ka.at.count
  %new = add i64 %old, 1
  store i64 %new, ptr %ka.at.count
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


def _deal(key: str) -> str:
    """Every key and its place to the next slot of its digit."""
    return f"""deal:
  %b = phi i64 [ 0, %sum ], [ %b.next, %deal ]
  %kb.at = getelementptr {key}, ptr %kf, i64 %b
  %pb.at = getelementptr i64, ptr %pf, i64 %b
  %kb = load {key}, ptr %kb.at
  %pb = load i64, ptr %pb.at
  %kb.moved = lshr {key} %kb, %digit
  %kb.digit = and {key} %kb.moved, 255
  %slot.at = getelementptr i64, ptr %counts, {key} %kb.digit
  %slot = load i64, ptr %slot.at
  %slot.next = add i64 %slot, 1
  store i64 %slot.next, ptr %slot.at
  %kd.at = getelementptr {key}, ptr %kt, i64 %slot
  %pd.at = getelementptr i64, ptr %pt, i64 %slot
  store {key} %kb, ptr %kd.at
  store i64 %pb, ptr %pd.at
  %b.next = add i64 %b, 1
  %b.more = icmp slt i64 %b.next, %n
  br i1 %b.more, label %deal, label %dealt
"""


def _end_pass(key: str) -> str:
    """The two pieces of memory change places, unless the pass was left out."""
    return f"""dealt:
  br label %passed
passed:
  %kf.next = phi ptr [ %kf, %skip ], [ %kt, %dealt ]
  %pf.next = phi ptr [ %pf, %skip ], [ %pt, %dealt ]
  %kt.next = phi ptr [ %kt, %skip ], [ %kf, %dealt ]
  %pt.next = phi ptr [ %pt, %skip ], [ %pf, %dealt ]
  %digit.next = add {key} %digit, 8
  br label %pass
sorted:
  ret ptr %pf
}}
"""
