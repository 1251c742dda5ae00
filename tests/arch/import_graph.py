"""The import graph of `src/weft`, read from the sources: nothing is imported to build it."""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class Import:
    """One import of a module: who imports it, where, and whether inside a function."""

    importer: str
    imported: str
    line: int
    in_function: bool

    def __str__(self) -> str:
        return f"{self.importer} imports {self.imported} (line {self.line})"

    @property
    def is_ours(self) -> bool:
        return self.imported.partition(".")[0] == "weft"

    @property
    def is_standard(self) -> bool:
        return self.imported.partition(".")[0] in sys.stdlib_module_names


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of Weft by name, parsed. To look for garbage among millions of nodes, none of
    which is, again and again, would take as long as to parse them."""
    paths = sorted(SOURCE.rglob("*.py"))
    gc.disable()
    try:
        return {module_name(path): ast.parse(path.read_text(), str(path)) for path in paths}
    finally:
        gc.enable()


@cache
def imports() -> tuple[Import, ...]:
    """Every import of every module, those under TYPE_CHECKING included."""
    return tuple(found for name, tree in modules().items() for found in _imports(name, tree))


def _imports(importer: str, tree: ast.Module) -> Iterator[Import]:
    stack: list[tuple[ast.AST, bool]] = [(tree, False)]
    while stack:
        node, inside = stack.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(importer, alias.name, node.lineno, inside)
        elif isinstance(node, ast.ImportFrom):
            for name in _targets(node, importer):
                yield Import(importer, name, node.lineno, inside)
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        # Statements stand in these alone; nine nodes of ten are in expressions, without imports.
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            stack.extend((child, inside) for child in getattr(node, part, ()))


@cache
def calls() -> dict[str, tuple[ast.Call, ...]]:
    """Every call in every module."""
    return {name: calls_in(tree) for name, tree in modules().items()}


def calls_in(tree: ast.Module) -> tuple[ast.Call, ...]:
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _targets(node: ast.ImportFrom, importer: str) -> Iterator[str]:
    """What `from base import a, b` imports: the modules `base.a`, `base.b` where they exist."""
    if node.level:
        raise AssertionError(f"{importer} has a relative import at line {node.lineno}")
    base = str(node.module)
    for alias in node.names:
        inner = f"{base}.{alias.name}"
        yield inner if inner in modules() else base


def folder(module: str) -> str:
    """The folder of a module under `weft`; the package face and `__main__` are their own."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""
