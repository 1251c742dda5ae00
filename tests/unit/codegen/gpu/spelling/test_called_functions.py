"""Of a prelude the compiler reads what a kernel calls."""

from __future__ import annotations

import re

from weft.codegen.gpu.spelling.called_functions import only_called
from weft.codegen.gpu.spelling.prelude import TEXTS

SAMPLE = """typedef unsigned int u32;
// What a function is for stands above it.
INLINE u32 low(u32 x) { return x & 1; }
INLINE u32 high(u32 x) {
  if (x) { return low(x >> 31); }
  return 0;
}
template <class T> INLINE T twice(T x) { return x + x; }
template <class T>
INLINE T twice(T x, T y) {
  return twice(x) + y;
}
template <class T> struct Held { static INLINE_MEMBER T from(u64 x) { return (T)x; } };
#define MADE(name) INLINE u32 name(u32 x) { \\
  return unused(x); }
INLINE u32 unused(u32 x) { return x; }
INLINE u32 idle(u32 x) { return x; }
"""


def kept(body: str) -> str:
    return "\n".join(only_called([SAMPLE], [body]))


def test_what_is_called_is_there_with_what_it_calls() -> None:
    assert kept("high(3)") == SAMPLE.partition("template")[0] + "\n".join(
        line for line in SAMPLE.splitlines()[12:] if "idle" not in line
    )


def test_all_of_one_name_are_there() -> None:
    assert kept("twice(3)").count("INLINE T twice") == 2
    assert "low" not in kept("twice(3)")


def test_a_function_is_found_in_every_text() -> None:
    """All that is called `INLINE` at the start of a line is a part of its own."""
    for text in TEXTS:
        left = "\n".join(only_called([text], [""]))
        macros = re.sub(r"#define(?:.*\\\n)*.*", "", left)
        called = set(re.findall(r"^(?:template <.*> )?INLINE .*?(\w+)\(", macros, re.MULTILINE))
        words = re.sub(r"^(?:template <.*> )?INLINE .*?\w+\(", "", left, flags=re.MULTILINE)
        assert all(re.search(rf"\b{name}\b", words) for name in called), called
        assert all(part in text for part in left.split("\n"))
    assert not only_called([TEXTS[0]], [""])[-1].startswith("INLINE")
