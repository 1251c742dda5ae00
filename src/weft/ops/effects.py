"""The order of effects in a trace.

An effect takes a token, which the effect before it gave, and gives the next one. So the order of
effects is a matter of operands, and nothing between a trace and a machine has to know of it. The
last token of a trace is one more result of its program; loops carry it from turn to turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ops.graph.arena import Arena
from weft.ops.graph.evaluate import evaluate
from weft.ops.graph.forms import form, form_of
from weft.ops.graph.node import Node
from weft.ptir.literal import literal
from weft.ptir.ops.callback import TOKEN
from weft.ptir.ops.constant import Constant


def token_of(arena: Arena) -> Node:
    """What the next effect in this arena follows. A traced body follows what is around it."""
    if not arena.tokens:
        first = form_of(Constant(literal(0, TOKEN.dtype)), ())
        around = arena.parent
        arena.tokens.append(arena.emit(first, (), None) if around is None else token_of(around))
    return arena.tokens[-1]


def follow(arena: Arena, token: Node, beside: Sequence[Node] = ()) -> None:
    """An effect has been captured, and this is the token it gives. Outside of a trace it happens at
    once, and so does what is computed beside it: it is not to happen again for their sake."""
    if not arena.tracing:
        evaluate([token, *beside])
        return
    token_of(arena)
    arena.tokens.append(token)


def last_token(arena: Arena) -> Node | None:
    """The last token of a trace; None where it has no effect."""
    return arena.tokens[-1] if len(arena.tokens) > 1 else None


def one_token(arena: Arena, token: Node) -> Node:
    """A token that every value of a batch gave, as one."""
    axes = tuple(range(len(token.tensor.shape)))
    if not axes:
        return token
    attrs = {"axes": axes, "keepdims": False}
    return arena.emit(form("reduce_max", (token.type,), attrs), (token,), None)


def after_body(arena: Arena, outside: Sequence[Node]) -> list[Node]:
    """What becomes of values of the outside in a traced body: the token that it began with is now
    the one that its last effect gave."""
    last = last_token(arena)
    return [last if last is not None and node is arena.tokens[0] else node for node in outside]


def first_token(*bodies: Arena) -> Node | None:
    """The token that the effects in these bodies begin with; None where they have none."""
    return next((arena.tokens[0] for arena in bodies if last_token(arena) is not None), None)
