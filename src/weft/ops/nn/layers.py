"""Layer paths for error messages and profiles: where in a model an instruction is written, such as
`blocks[1].qkv`.

While a module is called, what it is called by the modules around it is part of the lines of the
instructions that are written. An error on its way out passes the calls of the modules around the
one it happened in. Each of them knows what it calls the one inside it, and so the name grows from
the innermost layer outwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from typing import Any, NamedTuple, TypeVar

from weft.foundation.errors import SpecViolation, UserError
from weft.foundation.lines import LAYER
from weft.foundation.tracebacks import ending_outside
from weft.ops.state import attributes

F = TypeVar("F", bound=Callable[..., Any])


class _Inside(NamedTuple):
    """The error as it was, the module that it has just left, and the way there from the layer."""

    error: SpecViolation | UserError
    module: object
    path: str


def told_by_layer(call: F) -> F:
    """What a module computes; an error in it names the layer, as the modules around it call it, and
    so do the lines of its instructions."""

    @wraps(call)
    def told(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        around, path = LAYER.module, LAYER.path
        LAYER.module = self
        LAYER.path = "" if around is None else path + _path_to_child(around, self)
        try:
            return call(self, *args, **kwargs)
        except (SpecViolation, UserError) as error:
            raise ending_outside(_seen_from(self, error)) from None
        finally:
            LAYER.module, LAYER.path = around, path

    return told  # type: ignore[return-value]


def _seen_from(module: object, error: SpecViolation | UserError) -> SpecViolation | UserError:
    found = getattr(error, "inside", None)
    inside = found if isinstance(found, _Inside) else _Inside(error, module, "")
    path = _path_to_child(module, inside.module) + inside.path
    made = _name_error(inside.error, path.removeprefix(".")) if path else error
    made.inside = _Inside(inside.error, module, path)  # type: ignore[union-attr]
    return made


def _name_error(error: SpecViolation | UserError, path: str) -> SpecViolation | UserError:
    where = f", in the layer {path}"
    if isinstance(error, SpecViolation):
        return type(error).of([replace(f, why=f.why + where) for f in error.findings])
    return type(error)(error.why + where, error.code, error.where)


def _path_to_child(module: object, child: object) -> str:
    """What a module calls one that it holds; its class where it does not hold it."""
    if module is child:
        return ""
    ways = (
        f".{name}{way}"
        for name, held in attributes(module).items()
        for way in _paths_to_child(held, child)
    )
    return next(ways, f".{type(child).__name__}")


def _paths_to_child(held: object, child: object) -> Iterator[str]:
    if held is child:
        yield ""
    elif isinstance(held, list | tuple):
        yield from (
            f"[{at}]{way}" for at, each in enumerate(held) for way in _paths_to_child(each, child)
        )
    elif isinstance(held, dict):
        yield from (
            f"[{key!r}]{way}" for key, each in held.items() for way in _paths_to_child(each, child)
        )
