"""How many ideas the house has, in figures: `python -m tests.arch.figures`. With `softmax` or
`product` behind it: which functions of which files one of them runs through.

Size of the package; files that name an op; functions that one softmax and one product run through
from the call to the machine code; names of functions that stand in many modules; and the classes
that PTIR is written with.
"""

from __future__ import annotations

import ast
import inspect
import io
import os
import re
import sys
import tempfile
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import weft
from weft.ptir import all_ops

PACKAGE = Path(weft.__file__).parent
NAMED = {"gelu": "gelu", "tanh": "tanh", "gather": "gather", "convolution": "conv(?!e)"}
"""Ops, and what their names look like."""
MANY = 3
"""Modules that may have a function of one name."""
AIMS = {
    "softmax": " (aim: 900 in 120)",
    "names": " (aim: 40)",
    "writers": " (aim: 3 and their protocol)",
}
"""What the figures should come to (docs/decisions/0021)."""


def sources() -> Iterator[tuple[Path, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE), path.read_text()


def tokens_of(text: str) -> int:
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    found = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type not in skipped for token in found)


def comments_of(text: str) -> int:
    return sum(line.lstrip().startswith("#") for line in text.splitlines())


def repeated_names() -> dict[str, int]:
    """Names of functions that are no methods, by the number of modules that have one. Functions
    that are registered and have no name (`_`), and what Python calls (`__dir__`), do not count."""
    found: defaultdict[str, set[Path]] = defaultdict(set)
    for path, text in sources():
        for name in re.findall(r"^def (\w+)", text, re.MULTILINE):
            found[name].add(path)
    return {
        name: len(paths)
        for name, paths in found.items()
        if len(paths) > MANY and name != "_" and not name.startswith("__")
    }


def names_of_ops() -> set[str]:
    """What ops are called: each room that has a table of ops has a function for each of them."""
    return {name.rpartition(".")[2] for op in all_ops() for name in op.spellings()}


def naming(pattern: str) -> int:
    """Files that name an op in code or in text."""
    return sum(bool(re.search(pattern, text, re.IGNORECASE)) for _, text in sources())


def ran(function: Callable[[], Any]) -> dict[str, list[str]]:
    """The functions of Weft that a call goes through, by their files, in their order there."""
    seen: set[CodeType] = set()

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            seen.add(frame.f_code)

    sys.setprofile(look)
    try:
        function()
    finally:
        sys.setprofile(None)
    found: defaultdict[str, list[str]] = defaultdict(list)
    for code in sorted(seen, key=lambda code: (code.co_filename, code.co_firstlineno)):
        path = Path(code.co_filename)
        # Bodies of modules and classes, and comprehensions, are code but no functions.
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if is_function and path.is_relative_to(PACKAGE):
            found[str(path.relative_to(PACKAGE))].append(code.co_qualname)
    return found


def ways() -> dict[str, dict[str, list[str]]]:
    """What one softmax and one product run through, with nothing of them on the disk."""
    x = np.ones((64, 64), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["WEFT_CACHE"] = folder
        (weft.asarray(x) + 1).numpy()  # What is imported or made once belongs to neither.
        return {
            "softmax": ran(lambda: weft.functional.softmax(weft.asarray(x)).numpy()),
            "product": ran(lambda: (weft.asarray(x) @ weft.asarray(x)).numpy()),
        }


def writers() -> list[str]:
    """The classes by which ops of PTIR are written: those that emit one by its name."""
    found = []
    for path, text in sources():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and any(map(_emits_by_name, node.body)):
                found.append(f"{path.with_suffix('')}:{node.name}")
    return found


def _emits_by_name(node: ast.stmt) -> bool:
    if not isinstance(node, ast.FunctionDef) or node.name != "emit":
        return False
    return [argument.arg for argument in node.args.args[1:2]] == ["name"]


def main() -> None:
    texts = [text for _, text in sources()]
    lines = sum(text.count("\n") for text in texts)
    print(f"{len(texts)} files, {lines:,} lines, {sum(map(tokens_of, texts)):,} tokens")
    print(f"{100 * sum(map(comments_of, texts)) / lines:.1f} % of lines are comments")
    longest = max(sources(), key=lambda found: found[1].count("\n"))
    print(f"the longest file is {longest[0]}, {longest[1].count(chr(10))} lines")
    print("files that name " + ", ".join(f"{op} {naming(word)}" for op, word in NAMED.items()))
    for name, way in ways().items():
        functions, aim = sum(map(len, way.values())), AIMS.get(name, "")
        print(f"one {name} runs through {functions} functions in {len(way)} files{aim}")
    names = repeated_names()
    ours = {name for name in names if name.strip("_") in names_of_ops()}
    print(f"{len(names)} names of functions stand in more than {MANY} modules{AIMS['names']}:")
    private = sum(name.startswith("_") for name in names.keys() - ours)
    public = len(names) - len(ours) - private
    print(f"{len(ours)} of ops, {private} others that are private, {public} public:")
    print("  " + ", ".join(f"{n} {c}" for n, c in sorted(names.items(), key=lambda i: -i[1])))
    print("PTIR is written by " + ", ".join(writers()) + AIMS["writers"])


def list_way(name: str) -> None:
    """Print what a softmax or a product runs through."""
    for path, functions in ways()[name].items():
        print(f"{path}: {', '.join(functions)}")


if __name__ == "__main__":
    list_way(sys.argv[1]) if len(sys.argv) > 1 else main()
