"""Writes docs/api.txt: every public name with its parameters, one a line.

    python -m docs.generate_api            (or: make docs)

A change of the public surface is a change of this file, so that none goes by unseen; a test fails
when the file is not what this prints. CONTRIBUTING.md says how a name may change or go.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType

import weft

PAGE = Path(__file__).parent / "api.txt"
SOURCES = Path(weft.__file__).parent
OPTIONAL = ("jax", "onnx", "torch")
"""Parts that need packages of others: their names are read, and they are not imported."""


def modules() -> Iterator[tuple[str, ModuleType]]:
    yield "weft", weft
    for name in set(dir(weft)) - set(OPTIONAL):
        found = getattr(weft, name)
        if isinstance(found, ModuleType):
            yield f"weft.{name}", found


def optional() -> Iterator[str]:
    for part in OPTIONAL:
        path = SOURCES / f"{part}.py"
        for statement in ast.parse(path.read_text()).body if path.exists() else ():
            match statement:
                case ast.Assign([ast.Name("__all__")], names):
                    yield from (f"weft.{part}.{name}" for name in ast.literal_eval(names))


def parameters(found: object) -> str:
    """The parameters without their types: names, order, and which have a default."""
    if not callable(found) or (isinstance(found, type) and issubclass(found, Enum)):
        return ""
    try:
        signature = inspect.signature(found)
    except ValueError:  # an exception whose constructor Python itself gives it
        return "(...)"
    return str(inspect.Signature([_bare(p) for p in signature.parameters.values()]))


def _bare(parameter: inspect.Parameter) -> inspect.Parameter:
    default = parameter.default
    if default is not parameter.empty:
        text = getattr(default, "__name__", repr(default))
        default = Shown(
            "..." if " at 0x" in text else text
        )  # an object that marks what was not given
    return parameter.replace(annotation=parameter.empty, default=default)


class Shown(str):
    """A default as text. A function stands by its name: its repr holds an address."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def lines() -> Iterator[str]:
    for path, module in modules():
        for name in dir(module):
            if name.startswith("_") or (module is weft and name in OPTIONAL):
                continue
            found = getattr(module, name)
            if not isinstance(found, ModuleType):
                yield f"{path}.{name}{parameters(found)}"
    yield from methods(weft.Tensor)
    yield from optional()


def methods(cls: type) -> Iterator[str]:
    for name in dir(cls):
        if name.startswith("_"):
            continue
        found = inspect.getattr_static(cls, name)
        shown = "" if isinstance(found, property) else parameters(getattr(cls, name))
        yield f"weft.{cls.__name__}.{name}{shown}"


def render() -> str:
    return "\n".join(sorted(lines())) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render())
