"""Native memory is given back: of a program that is compiled and dropped nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

MEASURED = """
import gc
import os

from weft.runtime.jit import Library, compile_object


def source(number):
    value = f"%y = add i32 %x, {number}"
    return f"define i32 @f(ptr %p) {{\\n %x = load i32, ptr %p\\n {value}\\n ret i32 %y }}"


def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def work(first, last):
    for number in range(first, last):
        assert Library([compile_object(source(number))], ["f"]).address("f")


work(0, 60)
before = resident()
work(60, 260)
print((resident() - before) // 200)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux's /proc")
def test_what_is_compiled_and_dropped_leaves_nothing() -> None:
    """It was 33 kB for each module that was compiled, and 9 for each that was linked."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.stderr == ""
    assert int(done.stdout) < 4_000
