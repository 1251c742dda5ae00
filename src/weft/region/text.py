"""Region Buffer SSA as JSON, both ways without loss: document 2's section 12.4, extended.

A module is `{"module": {"tensors", "inputs", "outputs", "kernels": [{"region": ...}, ...]}}`, with
`origin` and `chains` where there are any. A region has the document's fields `name`, `inputs`,
`outputs` and `body`, and beside them:

- `pattern`, `axes` (`{"name", "size", "reduce"?}`), `params` and, for contractions, `roles`;
- a Let says its `dtype` and its `axes`; its `op` is Tiny's form (`{"op": "Unary", "fn", "inputs"}`)
  with `Read` (`tensor`, `index`, `guards`?, `fill`?, `places`?), `Const`, `AxisIndex`, `Check`,
  `Words` and `Fold` added;
- an output says at which `index` its value is stored and, where it has one, its `base`;
- a kernel with stages has them before its body, `stages`: each with the `local` it fills (`name`,
  `dtype`, `shape`), its `axes` and its `body`;
- an opaque region has `opaque` instead of a body, written by the caller's codec;
- `form` says what the kernel is (`form_text.py`);
- `labels` gives Lets the names that the program has for them.

The `memref` of an input or output is the row-major view of the tensor; where its buffer lies is the
business of the memory stage. Index expressions and guards are text; numbers that JSON cannot write
are the strings "NaN", "Infinity" and "-Infinity". Unknown fields are errors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, get_args

from weft.foundation.errors import Unimplemented
from weft.foundation.json_fields import Fields, parse, reading
from weft.foundation.json_records import Codec, Json, Object, Records
from weft.foundation.records import replace
from weft.region.form import Form
from weft.region.form_text import form_from_json, form_to_json
from weft.region.ir import (
    Binary,
    Cast,
    Check,
    Kernel,
    Let,
    Module,
    OpaqueCall,
    Output,
    Reduce,
    Select,
    Stage,
    Tensor,
    Unary,
    ValueExpr,
    Words,
)

Encode: TypeAlias = Callable[[object], Any]
"""Writes the op of an opaque kernel."""
Decode: TypeAlias = Callable[[Any], object]
"""Reads it back."""

ALIGNMENT = 128
"""Bytes: the lines of a GPU's memory, and two of a CPU's."""


def dumps(module: Module, encode_op: Encode | None = None) -> str:
    """The module as JSON text, one Let on a line."""
    document = to_json(module, encode_op)["module"]
    kernels = document.pop("kernels")
    head = _block_text(document, 2)
    regions = ",\n".join(_region_text(kernel["region"]) for kernel in kernels)
    body = f"[\n{regions}\n  ]" if kernels else "[]"
    return f'{{"module": {{\n{head},\n  "kernels": {body}\n}}}}\n'


def loads(text: str, decode_op: Decode | None = None) -> Module:
    """The module that a JSON text describes."""
    return from_json(parse(text, "region file"), decode_op)


def _block_text(fields: Json, indent: int) -> str:
    """Fields of an object one per line, lists of objects one item per line."""
    space = " " * indent
    lines = []
    for key, value in fields.items():
        nested = isinstance(value, list) and value and isinstance(value[0], dict)
        if nested:
            items = f",\n{space}  ".join(json.dumps(item) for item in value)
            lines.append(f"{space}{json.dumps(key)}: [\n{space}  {items}\n{space}]")
        elif key == "tensors":
            items = f",\n{space}  ".join(
                f"{json.dumps(name)}: {json.dumps(item)}" for name, item in value.items()
            )
            lines.append(f"{space}{json.dumps(key)}: {{\n{space}  {items}\n{space}}}")
        else:
            lines.append(f"{space}{json.dumps(key)}: {json.dumps(value)}")
    return ",\n".join(lines)


def _region_text(region: Json) -> str:
    return '    {"region": {\n' + _block_text(region, 6) + "\n    }}"


# -- writing -------------------------------------------------------------------------------------


def to_json(module: Module, encode_op: Encode | None = None) -> Json:
    """The module as a JSON document."""
    tensors = {t.name: RECORDS.write(t, name=None) for t in module.tensors.values()}
    kernels = [kernel_to_json(kernel, module.tensors, encode_op) for kernel in module.kernels]
    regions = [{"region": kernel} for kernel in kernels]
    found = RECORDS.write(module, tensors=tensors, kernels=regions)
    return {"module": dict.fromkeys(("tensors", "inputs", "outputs")) | found}


def kernel_to_json(
    kernel: Kernel, tensors: Mapping[str, Tensor], encode_op: Encode | None = None
) -> Json:
    """One kernel as document 2's `region` object."""
    outputs = [
        {"name": output.tensor, "memref": _memref(tensors[output.tensor]), "materialize": ""}
        | RECORDS.write(output, tensor=None, value=None)
        for output in kernel.outputs
    ]
    stores = [f"{output.value} -> {output.tensor}" for output in kernel.outputs]
    body = None if kernel.opaque is not None else _write_body(kernel.body, stores)
    opaque = None if kernel.opaque is None else _write_opaque(kernel.opaque, encode_op)
    found = RECORDS.write(kernel, body=body, outputs=outputs, opaque=opaque)
    found["inputs"] = [{"name": n, "memref": _memref(tensors[n])} for n in kernel.inputs]
    return {name: found[name] for name in _IN_ORDER if name in found}


def _write_body(lets: tuple[Let, ...], stores: list[str]) -> list[Json]:
    return [*map(RECORDS.write, lets), {"yield": stores}]


def _write_stage(stage: Stage) -> Json:
    local = RECORDS.write(stage.local, role=None)
    body = _write_body(stage.body, [f"{stage.value} -> {stage.local.name}"])
    return RECORDS.write(stage, local=local, body=body, value=None)


def _memref(tensor: Tensor) -> Json:
    strides = [math.prod(tensor.shape[place + 1 :]) for place in range(len(tensor.shape))]
    return {
        "shape": list(tensor.shape),
        "strides": strides,
        "alignment": ALIGNMENT,
        "noalias": True,
    }


def _write_opaque(call: OpaqueCall, encode_op: Encode | None) -> Json:
    if encode_op is None:
        raise Unimplemented("region text", "nothing was given that can write an opaque op")
    return RECORDS.write(call, op=encode_op(call.op))


def _write_op(expr: ValueExpr) -> Json:
    """The names of operands are a list, behind the function."""
    operands = _OPERANDS.get(type(expr), ())
    found = RECORDS.write(expr, **dict.fromkeys(operands))
    op: Json = {"op": type(expr).__name__}
    if isinstance(expr, Select):
        op = {"op": "Binary", "fn": "where"}
    elif "fn" in found:
        op["fn"] = found["fn"]
    if operands:
        op["inputs"] = [getattr(expr, name) for name in operands]
    return op | found


# -- reading -------------------------------------------------------------------------------------


def from_json(document: Any, decode_op: Decode | None = None) -> Module:
    """The module that a JSON document describes. It is read, not verified."""
    with reading(document, "module file") as outer, reading(outer.take("module"), "module") as top:
        tensors = {}
        for name, entry in top.named("tensors"):
            with reading(entry, f"tensor {name}") as fields:
                tensors[name] = RECORDS.read(Tensor, fields, name=name)
        kernels = top.items("kernels", lambda fields: _read_region(fields, tensors, decode_op))
        return RECORDS.read(Module, top, tensors=tensors, kernels=kernels)


def _read_region(fields: Fields, tensors: Mapping[str, Tensor], decode_op: Decode | None) -> Kernel:
    with reading(fields.take("region"), f"{fields.where}.region") as region:
        inputs = region.items("inputs", lambda f: _read_memref(f, tensors))
        outputs = region.items("outputs", lambda f: _read_output(f, tensors))
        body: tuple[Let, ...] = ()
        if region.has("body"):
            lets = region.documents("body")
            stores = lets.pop() if lets else None
            body = _read_lets(lets, f"{region.where}.body")
            outputs = _with_values(outputs, stores, region)
        opaque = _read_opaque(region, decode_op)
        made = RECORDS.read(Kernel, region, body=body, outputs=outputs, opaque=opaque)
        if inputs != made.inputs:
            shown = ", ".join(made.inputs)
            region.fail(f"its inputs are {', '.join(inputs)}, but it reads {shown}, in this order")
        return made


def _read_stage(fields: Fields) -> Stage:
    with reading(fields.take("local"), f"{fields.where}.local") as local:
        tensor = RECORDS.read(Tensor, local, role="local", room=0)
    lets = fields.documents("body")
    with reading(lets.pop() if lets else None, f"{fields.where}.body[-1]") as end:
        stores = end.texts("yield")
    value, _, name = stores[0].partition(" -> ") if len(stores) == 1 else ("", "", "")
    if name != tensor.name:
        fields.fail(f"its yield does not name a value for {tensor.name}")
    body = _read_lets(lets, f"{fields.where}.body")
    return RECORDS.read(Stage, fields, local=tensor, body=body, value=value)


def _read_memref(fields: Fields, tensors: Mapping[str, Tensor]) -> str:
    """The name of a tensor whose view is as the tensor lies."""
    name, memref = fields.text("name"), fields.take("memref")
    if name not in tensors:
        fields.fail(f"tensor {name!r} is not declared")
    wanted = _memref(tensors[name])
    if memref != wanted:
        fields.fail(
            f"the memref of {name} is {json.dumps(memref)}, but the tensor of shape "
            f"{list(tensors[name].shape)} is {json.dumps(wanted)}; where it lies is for the stage "
            "memory to say"
        )
    return name


def _read_lets(documents: list[Any], where: str) -> tuple[Let, ...]:
    found = []
    for number, document in enumerate(documents):
        with reading(document, f"{where}[{number}]") as fields:
            found.append(RECORDS.read(Let, fields))
    return tuple(found)


def _read_output(fields: Fields, tensors: Mapping[str, Tensor]) -> Output:
    return RECORDS.read(Output, fields, tensor=_read_memref(fields, tensors), value="")


def _with_values(outputs: tuple[Output, ...], stores: Any, region: Fields) -> tuple[Output, ...]:
    """The outputs with the values that the final `yield` names, in order."""
    with reading(stores, f"{region.where}.body[-1]") as fields:
        pairs = [store.split(" -> ", 1) for store in fields.texts("yield")]
    if [pair[-1] for pair in pairs] != [output.tensor for output in outputs]:
        region.fail("the yield does not name the outputs in order")
    return tuple(
        replace(output, value=pair[0]) for output, pair in zip(outputs, pairs, strict=True)
    )


def _read_opaque(region: Fields, decode_op: Decode | None) -> OpaqueCall | None:
    if not region.has("opaque"):
        return None
    if decode_op is None:
        raise Unimplemented("region text", "nothing was given that can read an opaque op")
    with reading(region.take("opaque"), f"{region.where}.opaque") as fields:
        return RECORDS.read(OpaqueCall, fields, op=decode_op(fields.take("op")))


def _read_op(op: Fields) -> ValueExpr:
    kind = op.text("op")
    if kind not in _OPS:
        op.fail(f"there is no op {kind!r}")
    cls = _OPS[kind]
    given: Json = {"fn": op.text("fn")} if cls in (Unary, Binary, Reduce) else {}
    said = " ".join([kind, *given.values()])
    if said == "Binary where":
        cls, given = Select, {}
    if operands := _OPERANDS.get(cls):
        inputs = op.texts("inputs")
        if len(inputs) != len(operands):
            op.fail(f"{said} takes {len(operands)} inputs, not {len(inputs)}")
        given |= zip(operands, inputs, strict=True)
    found: ValueExpr = RECORDS.read(cls, op, **given)
    return found


def _read_form(region: Fields, name: str) -> Form:
    return form_from_json(region.take(name), f"{region.where}.{name}")


_OPS: Final[Mapping[str, type]] = {
    cls.__name__: cls for cls in get_args(ValueExpr) if cls is not Select
}
_OPERANDS: Final[Mapping[type, tuple[str, ...]]] = {
    Unary: ("x",),
    Cast: ("x",),
    Binary: ("lhs", "rhs"),
    Select: ("pred", "x", "y"),
    Check: ("x",),
    Words: ("seed", "offset"),
    Reduce: ("value",),
}
_IN_ORDER: Final = (
    *("name", "pattern", "form", "axes", "params", "inputs", "outputs", "roles", "opaque"),
    *("stages", "body", "labels"),
)
"""The fields of a region."""
RECORDS: Final = Records(
    {
        ValueExpr: Object(_write_op, _read_op),
        Stage: Object(_write_stage, _read_stage),
        Form: Codec(form_to_json, _read_form),
    }
)
