"""Control flow and calls. A region of StableHLO sees the values around it; one of PTIR sees its
parameters only, so what a region uses from outside becomes an argument of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from weft.interop.stablehlo.reading.site import Lowering, Results, Site
from weft.interop.stablehlo.records import HloBlock
from weft.ptir.builder import BodyBuilder, RegionBody, Value
from weft.ptir.literal import TensorLiteral
from weft.ptir.types import leaves


def _values_in_block(block: HloBlock) -> Iterator[int]:
    """Every value that a block or a block inside it mentions."""
    stack = [block]
    while stack:
        top = stack.pop()
        yield from top.returned
        for op in top.ops:
            yield from op.operands
            stack.extend(op.blocks)


def captured(at: Site, blocks: Sequence[HloBlock]) -> list[int]:
    """The values from outside that blocks use; constants need not be handed over."""
    used = dict.fromkeys(use for block in blocks for use in _values_in_block(block))
    return [
        number
        for number in used
        if number in at.env and not isinstance(at.env[number].operand, TensorLiteral)
    ]


def _region(
    at: Site, block: HloBlock, taken: Sequence[int], keep: int = 0,
    models: list[Value] | None = None,
) -> RegionBody:  # fmt: skip
    """A block as the body of a region whose last parameters are the captured values. The last
    `keep` parameters are returned after the block's own results. These have the sizes of `models`;
    where there are none yet, they are the models of others."""

    def body(b: BodyBuilder, *params: Value) -> list[Value]:
        own = len(params) - len(taken)
        env = {**at.env, **dict(zip(taken, params[own:], strict=True))}
        found = at.reader.inline(b, block, params[:own], env)
        if models:
            _same_sizes(at, found, models)
        elif models is not None:
            models.extend(found)
        return [*found, *(params[len(params) - keep :] if keep else ())]

    return body


def _same_sizes(at: Site, found: Sequence[Value], models: Sequence[Value]) -> None:
    """Sizes that operations make in a region are those that it must return, which the run checks.
    Parameters of open sizes may well differ, so theirs stay apart."""
    for value, model in zip(found, models, strict=True):
        for kind, wanted in zip(leaves(value.type), leaves(model.type), strict=True):
            for dims in zip(kind.shape, wanted.shape, strict=True):
                if dims[0] != dims[1] and any(map(at.reader.is_made, dims)):
                    at.reader.same(dims)


def _list_results(at: Site, value: Value) -> list[Value]:
    return [value] if len(at.op.results) == 1 else list(value)


def _if(at: Site) -> Results:
    taken = captured(at, at.op.blocks)
    args = [at.env[number] for number in taken]
    models: list[Value] = []
    on_true, on_false = (_region(at, block, taken, 0, models) for block in at.op.blocks)
    return _list_results(at, at.b.cond(at.x[0], on_true, on_false, *args))


def _lower_case(at: Site) -> Results:
    """One after the other; an index that names no branch means the last."""
    taken = captured(at, at.op.blocks)
    args = [at.env[number] for number in taken]
    return _list_results(at, _branch(at.b, at, 0, at.x[0], taken, args, []))


def _branch(
    b: BodyBuilder, at: Site, number: int, index: Value, taken: Sequence[int],
    args: Sequence[Value], models: list[Value],
) -> Value:  # fmt: skip
    blocks = at.op.blocks
    if len(blocks) == 1:
        always = b.literal(True, "i1")
        only = _region(at, blocks[0], taken)
        return b.cond(always, only, only, *args)
    chosen = index == b.literal(number, index.dtype)

    def here(inner: BodyBuilder, *params: Value) -> list[Value]:
        return list(_region(at, blocks[number], taken, 0, models)(inner, *params[1:]))

    def later(inner: BodyBuilder, *params: Value) -> list[Value]:
        if number == len(blocks) - 2:
            return list(_region(at, blocks[-1], taken, 0, models)(inner, *params[1:]))
        found = _branch(inner, at, number + 1, params[0], taken, params[1:], models)
        return [found] if len(at.op.results) == 1 else list(found)

    return b.cond(chosen, here, later, index, *args)


def _while(at: Site) -> Results:
    taken = captured(at, at.op.blocks)
    carry = [*at.x, *(at.env[number] for number in taken)]
    cond = _region(at, at.op.blocks[0], taken, keep=len(carry))
    body = _region(at, at.op.blocks[1], taken, len(taken), list(at.x))
    found = at.b.while_(cond, body, *carry)
    values = [found] if len(carry) == 1 else list(found)
    return values[: len(at.x)]


def _call(at: Site) -> Results:
    return at.reader.call(at.b, str(at.attr("callee")), at.x)


def _composite(at: Site) -> Results:
    return at.reader.call(at.b, str(at.attr("decomposition")).lstrip("@"), at.x)


CONTROL: Final[Mapping[str, Lowering]] = {
    "if": _if,
    "case": _lower_case,
    "while": _while,
    "func.call": _call,
    "composite": _composite,
}
