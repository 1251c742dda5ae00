"""Tables of hostile files, and the parts that the files are made of."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

Data = str | bytes
Make = Callable[[], Data]

MANY = 100_000
SOME = 10_000
"""Enough that anything that grows with the square takes longer than it may."""
MEGABYTE = 1_000_000
HEAD = "ptir.v0.4\nentry @main\n"
X = "f32[2]"


class Entries(dict[str, tuple[str, Make]]):
    """By name: the expected verdict, and what makes the file."""

    def entry(self, expected: str) -> Callable[[Make], Make]:
        """Put a maker into the table, under its name."""

        def add(make: Make) -> Make:
            self[make.__name__.replace("_", "-")] = (expected, make)
            return make

        return add

    def in_all_forms(self, name: str, expected: str, make: Callable[[str], Data]) -> None:
        """Three entries that differ in the form of the file."""
        for form in ("text", "json", "bincode"):
            self[f"{name}-{form}"] = (expected, partial(make, form))


def main(lines: Iterable[str], result: str, kind: str = X, parameters: str = f"%0: {X}") -> str:
    """A text program with one function."""
    body = "\n".join(lines)
    return f"{HEAD}func @main({parameters}) -> ({kind}) {{\n{body}\nreturn {result}\n}}\n"


def static(*dims: int) -> dict[str, Any]:
    return {"dims": [{"Static": dim} for dim in dims]}


def tensor_json(*dims: int) -> dict[str, Any]:
    return {"Tensor": {"dtype": "F32", "shape": static(*dims)}}


def program_json(body: list[Any], **changed: Any) -> str:
    """A JSON program with one function, some of whose fields are changed."""
    function = {
        "name": "main",
        "parameters": [tensor_json(2)],
        "parameter_ids": [0],
        "results": [tensor_json(2)],
        "body": body,
        "hints": [],
        "result_ids": [0],
    }
    root = {"spec_version": "ptir.v0.4", "entry": "main", "functions": [{**function, **changed}]}
    return json.dumps({**root, "regions": []})


def instruction_json(value_id: int, op: Any, *operands: int, output: Any = None) -> dict[str, Any]:
    refs = [{"Value": operand} for operand in operands]
    return {
        "id": value_id,
        "op": op,
        "operands": refs,
        "output": tensor_json(2) if output is None else output,
    }


def u64(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def u32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def string(text: str) -> bytes:
    raw = text.encode()
    return u64(len(raw)) + raw
