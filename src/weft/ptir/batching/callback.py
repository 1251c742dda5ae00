"""The rule of callbacks: a function is called for each value of the batch, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ptir.batching.rules import Batching, batches
from weft.ptir.op_rules import op_as
from weft.ptir.ops.callback import Callback
from weft.ptir.ops.control import Scan
from weft.ptir.tape import elements
from weft.ptir.term import Term
from weft.ptir.types import TensorType


@batches(Callback)
def callback(b: Batching) -> Term:
    """Where only the token differs within the batch, the function is called once for all."""
    op = op_as(b, Callback)
    operands, batched = list(b.operands), list(b.batched)
    if op.effect and batched[0]:
        # A token says nothing but when: the greatest of them depends on all, so that the call comes
        # after all.
        operands[0], batched[0] = operands[0].reduce_max(axes=[0], keepdims=False), False
    if not any(batched):
        return _join_terms(
            b, [_repeat_over_batch(b, x) for x in elements(b.tape.append(op, operands))]
        )
    return _join_terms(b, _in_turn(b, op, operands, batched))


def _in_turn(
    b: Batching, op: Callback, operands: Sequence[Term], batched: Sequence[bool]
) -> list[Term]:
    """A loop over the batch; what is the same for all is carried through it."""
    order = sorted(range(len(operands)), key=lambda at: batched[at])
    carried = [at for at in order if not batched[at]]
    inner = b.tape.shop.region_tape()
    given = {at: inner.parameter(_type_of_one(operands[at], batched[at])) for at in order}
    made = list(elements(inner.append(op, [given[at] for at in range(len(operands))])))
    token = made[:1] if op.effect else []
    kept = [given[at] for at in carried[len(token) :]]
    outputs = made[len(token) :]
    region = b.tape.shop.add_region(inner, [*token, *kept, *outputs])
    loop = Scan(region.id, len(carried), len(outputs))
    found = list(elements(b.tape.append(loop, [operands[at] for at in order])))
    return [*(_repeat_over_batch(b, x) for x in found[: len(token)]), *found[len(carried) :]]


def _type_of_one(term: Term, batched: bool) -> TensorType:
    return TensorType(term.dtype, term.shape[1:] if batched else term.shape)


def _repeat_over_batch(b: Batching, term: Term) -> Term:
    return term.broadcast_to((b.size, *term.shape))


def _join_terms(b: Batching, terms: Sequence[Term]) -> Term:
    return terms[0] if len(terms) == 1 else b.tape.tuple_of(terms)
