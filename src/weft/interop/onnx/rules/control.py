"""If, Loop and Scan of ONNX. Conditions that are known when the model is read are decided then;
others stay in the program.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from weft.foundation.dtypes import SI64
from weft.foundation.errors import ResourceExceeded, SpecViolation, Unimplemented
from weft.foundation.limits import current
from weft.interop.onnx.graph import Graph
from weft.interop.onnx.table import Call, rule
from weft.interop.onnx.values import Value, array, is_array, value_as_tensor, wf
from weft.ops.tensor import Tensor

UNROLLED: Final = 64
"""Up to how many steps a loop of known length is written out."""


def _is_traced(value: Value) -> bool:
    return isinstance(value, Tensor) and value.is_traced


def _as_tensors(values: list[Value]) -> tuple[Tensor, ...]:
    return tuple(value_as_tensor(each) for each in values)


@rule("If", raw=True)
def choice(call: Call, condition: Value) -> tuple[Value, ...]:
    yes, no = call.need("then_branch"), call.need("else_branch")
    if not _is_traced(condition):
        return tuple(call.run(yes if bool(array(condition).reshape(-1)[0]) else no, []))
    made = wf.cond(
        condition.reshape(()),
        lambda: _as_tensors(call.run(yes, [])),
        lambda: _as_tensors(call.run(no, [])),
    )
    return tuple(made)


@rule("Loop", raw=True)
def loop(
    call: Call, count: Value = None, going: Value = None, *carried: Value
) -> tuple[Value, ...]:
    body = call.need("body")
    outputs = len(body.outputs) - 1 - len(carried)
    if len(body.inputs) != 2 + len(carried) or outputs < 0:
        raise SpecViolation(
            "MalformedModel", f"the body takes {len(body.inputs)} inputs for {len(carried)} values"
        )
    starts = going is None or (not _is_traced(going) and bool(array(going).reshape(-1)[0]))
    if count is None and starts and _goes_on(body):
        raise ResourceExceeded(
            "the loop never ends: it has no count, and its body returns the condition unchanged"
        )
    known = not _is_traced(count) and not _is_traced(going) and not _is_computed(body, carried)
    if known and not (_is_long(count) and _goes_on(body)):
        return _unroll_loop(call, body, count, going, list(carried), outputs)
    return _in_program(call, body, count, going, carried, outputs)


def _is_long(count: Value) -> bool:
    return count is not None and int(array(count).reshape(-1)[0]) > UNROLLED


def _is_computed(body: Graph, carried: tuple[Value, ...]) -> bool:
    """Whether it would be known only to the program when the loop ends."""
    return any(map(_is_traced, carried)) and not _goes_on(body)


def _goes_on(body: Graph) -> bool:
    """Whether the body only ever hands on the condition that it was given, or says true."""
    name = body.outputs[0]
    for node in reversed(body.nodes):
        if name in node.outputs:
            if node.op == "Identity":
                name = node.inputs[0]
            elif node.op == "Constant":
                return bool(np.all(node.attributes.get("value", np.zeros(1))))
            else:
                return False
    return name == body.inputs[1].name


def _unroll_loop(
    call: Call, body: Graph, count: Value, going: Value, carried: list[Value], outputs: int
) -> tuple[Value, ...]:
    most = None if count is None else int(array(count).reshape(-1)[0])
    rows: list[list[Value]] = [[] for _ in range(outputs)]
    on: Value = np.array(True) if going is None else going
    step = 0
    while (most is None or step < most) and bool(array(on).reshape(-1)[0]):
        if step >= current().loop_steps:
            raise ResourceExceeded(f"a loop takes over {current().loop_steps:,} steps")
        made = call.run(body, [np.array(step, np.int64), on, *carried])
        on, carried = made[0], made[1 : 1 + len(carried)]
        for row, value in zip(rows, made[1 + len(carried) :], strict=True):
            row.append(value)
        step += 1
    return *carried, *(_stack_row(row, body, 1 + len(carried) + i) for i, row in enumerate(rows))


def _stack_row(row: list[Value], body: Graph, index: int) -> Value:
    if not row:
        raise Unimplemented(
            "Loop", f"no step makes {body.outputs[index]!r}, which has no shape then"
        )
    if all(map(is_array, row)):
        return np.stack(row)
    return wf.stack([value_as_tensor(each) for each in row], axis=0)


def _in_program(
    call: Call, body: Graph, count: Value, going: Value, carried: tuple[Value, ...], outputs: int
) -> tuple[Value, ...]:
    """The loop as one of the program: with results of every step it must be known how many."""
    init = _as_tensors(list(carried))
    if _goes_on(body) and count is not None and not _is_traced(count) and not _is_traced(going):
        steps = wf.arange(int(array(count).reshape(-1)[0]), dtype=SI64)
        on = value_as_tensor(np.array(True))

        def each(state: tuple[Tensor, ...], at: Tensor) -> Any:
            made = _as_tensors(call.run(body, [at, on, *state]))
            return made[1 : 1 + len(state)], made[1 + len(state) :]

        last, rows = wf.scan(each, init, steps)
        return *last, *rows
    if outputs:
        raise Unimplemented("Loop", "how often it runs is computed, and so are the sizes it gives")
    limit = value_as_tensor(np.array(np.iinfo(np.int64).max) if count is None else count).reshape(
        ()
    )
    first = value_as_tensor(np.array(True) if going is None else going).reshape(())
    zero = value_as_tensor(np.array(0, np.int64))

    def advance(state: Any) -> Any:
        at, on, values = state
        made = _as_tensors(call.run(body, [at, on, *values]))
        return at + 1, made[0].reshape(()), made[1:]

    start = (zero, first, init)
    found = wf.while_loop(lambda s: wf.logical_and(s[1], s[0] < limit), advance, start)
    return tuple(found[2])


@rule("Scan", raw=True)
def scan(call: Call, *operands: Value) -> tuple[Value, ...]:
    body, scanned = call.need("body"), call.need("num_scan_inputs")
    if call.version < 9:
        return _batched_scan(call, body, scanned, operands)
    states = len(operands) - scanned
    outputs = len(body.outputs) - states
    axes = call.attr("scan_input_axes") or [0] * scanned
    back = call.attr("scan_input_directions") or [0] * scanned
    slices = [
        wf.flip(moved, axis=0) if reverse else moved
        for moved, reverse in (
            (wf.moveaxis(value_as_tensor(x), axis, 0), reverse)
            for x, axis, reverse in zip(operands[states:], axes, back, strict=True)
        )
    ]
    last, rows = _scan_body(call, body, operands[:states], slices)
    out_axes = call.attr("scan_output_axes") or [0] * outputs
    out_back = call.attr("scan_output_directions") or [0] * outputs
    whole = [wf.flip(r, axis=0) if back else r for r, back in zip(rows, out_back, strict=True)]
    return *last, *(wf.moveaxis(r, 0, axis) for r, axis in zip(whole, out_axes, strict=True))


def _scan_body(
    call: Call, body: Graph, states: Any, slices: list[Tensor]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    def each(state: tuple[Tensor, ...], given: tuple[Tensor, ...]) -> Any:
        made = _as_tensors(call.run(body, [*state, *given]))
        return made[: len(state)], made[len(state) :]

    last, rows = wf.scan(each, _as_tensors(list(states)), tuple(slices))
    return tuple(last), tuple(rows)


def _batched_scan(
    call: Call, body: Graph, scanned: int, operands: tuple[Value, ...]
) -> tuple[Value, ...]:
    """Version 8: the first operand is the lengths, and every other has a batch in front."""
    lengths, rest = operands[0], operands[1:]
    if lengths is not None or any(call.attr("directions") or []):
        raise Unimplemented("Scan", "version 8 with lengths or directions is not known")
    states = len(rest) - scanned
    found = []
    for row in range(int(rest[0].shape[0])):
        own = [value_as_tensor(each)[row] for each in rest]
        last, rows = _scan_body(call, body, own[:states], own[states:])
        found.append((*last, *rows))
    return tuple(wf.stack(list(each), axis=0) for each in zip(*found, strict=True))
