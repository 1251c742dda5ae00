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
from typing import Any, TypeAlias

from weft.foundation.errors import Unimplemented
from weft.foundation.index_text import parse_expr, parse_guard, parse_index
from weft.foundation.json_fields import Fields, Scalar, parse, reading, write_scalar
from weft.foundation.records import replace
from weft.region.form_text import form_from_json, form_to_json
from weft.region.ir import (
    AxisIndex,
    Binary,
    Carry,
    Cast,
    Chain,
    Check,
    Const,
    Fold,
    Kernel,
    KernelAxis,
    Let,
    Materialize,
    Module,
    OpaqueCall,
    Output,
    Param,
    Pattern,
    Place,
    Read,
    Reduce,
    Roles,
    Select,
    Stage,
    Tensor,
    Unary,
    ValueExpr,
    Words,
)

Json: TypeAlias = dict[str, Any]
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
    tensors = {
        t.name: {"dtype": t.dtype.name, "shape": list(t.shape), "role": t.role}
        | ({"room": t.room} if t.room else {})
        for t in module.tensors.values()
    }
    kernels = [kernel_to_json(kernel, module.tensors, encode_op) for kernel in module.kernels]
    origin = {name: list(ids) for name, ids in module.origin.items()}
    document: Json = {
        "tensors": tensors,
        "inputs": list(module.inputs),
        "outputs": list(module.outputs),
        "kernels": [{"region": kernel} for kernel in kernels],
    }
    if origin:
        document["origin"] = origin
    if module.chains:
        chains = [{"kind": chain.kind, "kernels": list(chain.kernels)} for chain in module.chains]
        document["chains"] = chains
    return {"module": document}


def kernel_to_json(
    kernel: Kernel, tensors: Mapping[str, Tensor], encode_op: Encode | None = None
) -> Json:
    """One kernel as document 2's `region` object."""
    form = {} if kernel.form is None else {"form": form_to_json(kernel.form)}
    region: Json = {
        "name": kernel.name,
        "pattern": kernel.pattern.value,
        **form,
        "axes": [_axis_document(found) for found in kernel.axes],
        "params": [_param(found) for found in kernel.params],
        "inputs": [{"name": n, "memref": _memref(tensors[n])} for n in kernel.inputs],
        "outputs": [_output_document(output, tensors) for output in kernel.outputs],
    }
    if kernel.roles is not None:
        region["roles"] = _roles_document(kernel.roles)
    if kernel.opaque is not None:
        region["opaque"] = _opaque(kernel.opaque, encode_op)
    else:
        if kernel.stages:
            region["stages"] = [_stage(stage) for stage in kernel.stages]
        stores = [f"{output.value} -> {output.tensor}" for output in kernel.outputs]
        region["body"] = [*map(_let_document, kernel.body), {"yield": stores}]
    if kernel.labels:
        region["labels"] = dict(kernel.labels)
    return region


def _stage(stage: Stage) -> Json:
    local = stage.local
    return {
        "local": {"name": local.name, "dtype": local.dtype.name, "shape": list(local.shape)},
        "axes": [_axis_document(found) for found in stage.axes],
        "body": [*map(_let_document, stage.body), {"yield": [f"{stage.value} -> {local.name}"]}],
    }


def _axis_document(found: KernelAxis) -> Json:
    return {"name": found.name, "size": found.size} | ({"reduce": True} if found.reduce else {})


def _param(found: Param) -> Json:
    return {
        "name": found.name,
        "tensor": found.tensor,
        "element": found.element,
        "low": found.low,
        "high": found.high,
    }


def _memref(tensor: Tensor) -> Json:
    strides = [math.prod(tensor.shape[place + 1 :]) for place in range(len(tensor.shape))]
    return {
        "shape": list(tensor.shape),
        "strides": strides,
        "alignment": ALIGNMENT,
        "noalias": True,
    }


def _output_document(output: Output, tensors: Mapping[str, Tensor]) -> Json:
    found: Json = {
        "name": output.tensor,
        "memref": _memref(tensors[output.tensor]),
        "materialize": output.materialize.value,
        "index": [str(expr) for expr in output.index],
    }
    return found | ({} if output.base is None else {"base": output.base})


def _roles_document(roles: Roles) -> Json:
    lists = {key: list(getattr(roles, key)) for key in ("batch", "m", "n", "k")}
    return {**lists, "contraction": roles.contraction, "lhs": roles.lhs, "rhs": roles.rhs}


def _opaque(call: OpaqueCall, encode_op: Encode | None) -> Json:
    if encode_op is None:
        raise Unimplemented("region text", "nothing was given that can write an opaque op")
    found: Json = {
        "op": encode_op(call.op),
        "inputs": list(call.inputs),
        "results": list(call.results),
    }
    return found | ({"pairs": list(call.pairs)} if call.pairs else {})


def _let_document(let: Let) -> Json:
    return {
        "let": let.name,
        "dtype": let.dtype.name,
        "axes": list(let.axes),
        "op": _op_document(let.expr),
    }


def _op_document(expr: ValueExpr) -> Json:
    match expr:
        case Read():
            return _write_read(expr)
        case Const(value=value):
            return {"op": "Const", "value": write_scalar(value)}
        case AxisIndex(expr=index):
            return {"op": "AxisIndex", "expr": str(index)}
        case Unary(fn=fn, x=x):
            return {"op": "Unary", "fn": fn, "inputs": [x]}
        case Cast(x=x):
            return {"op": "Cast", "inputs": [x]}
        case Binary(fn=fn, lhs=lhs, rhs=rhs):
            return {"op": "Binary", "fn": fn, "inputs": [lhs, rhs]}
        case Select(pred=pred, x=x, y=y):
            return {"op": "Binary", "fn": "where", "inputs": [pred, x, y]}
        case Check(x=x, rule=rule, code=code, size=size, element=element):
            found = {"op": "Check", "inputs": [x], "rule": rule, "code": code, "size": size}
            return found | {"element": str(element)}
        case Words(seed=seed, offset=offset, element=element):
            return {"op": "Words", "inputs": [seed, offset], "element": str(element)}
        case Reduce(fn=fn, axes=axes, value=value):
            return {"op": "Reduce", "fn": fn, "inputs": [value], "axes": list(axes)}
        case Fold():
            return _fold(expr)


def _write_read(read: Read) -> Json:
    found: Json = {"op": "Read", "tensor": read.tensor, "index": [str(e) for e in read.index]}
    if read.guards:
        found["guards"] = [str(guard) for guard in read.guards]
    if read.places:
        found["places"] = [
            {"param": place.param, "value": place.value, "size": place.size}
            for place in read.places
        ]
    return found | ({} if read.fill is None else {"fill": write_scalar(read.fill)})


def _fold(fold: Fold) -> Json:
    carries = [
        {
            "name": carry.name,
            "dtype": carry.dtype.name,
            "axes": list(carry.axes),
            "init": write_scalar(carry.init),
            "next": carry.next,
            "merged": carry.merged,
        }
        for carry in fold.carries
    ]
    return {
        "op": "Fold",
        "axes": list(fold.axes),
        "carries": carries,
        "step": [_let_document(let) for let in fold.step],
        "combine": [_let_document(let) for let in fold.combine],
        "result": fold.result,
    }


# -- reading -------------------------------------------------------------------------------------


def from_json(document: Any, decode_op: Decode | None = None) -> Module:
    """The module that a JSON document describes. It is read, not verified."""
    with reading(document, "module file") as outer, reading(outer.take("module"), "module") as top:
        tensors = {}
        for name, entry in top.named("tensors"):
            with reading(entry, f"tensor {name}") as fields:
                tensors[name] = Tensor(
                    name,
                    fields.dtype("dtype"),
                    fields.wholes("shape"),
                    fields.text("role"),
                    fields.whole("room") if fields.has("room") else 0,
                )
        kernels = top.items("kernels", lambda fields: _read_region(fields, tensors, decode_op))
        origin = _read_origin(top) if top.has("origin") else {}
        chains = top.items("chains", _read_chain) if top.has("chains") else ()
        ends = top.texts("inputs"), top.texts("outputs")
        return Module(tensors, kernels, *ends, origin, chains)


def _read_origin(top: Fields) -> dict[str, tuple[int, ...]]:
    with reading(top.take("origin"), "module.origin") as origin:
        return {name: origin.wholes(name) for name in origin.names}


def _read_chain(fields: Fields) -> Chain:
    return Chain(fields.text("kind"), fields.texts("kernels"))


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
        made = Kernel(
            region.text("name"),
            region.choice("pattern", Pattern),
            region.items("axes", _read_axis),
            body,
            outputs,
            region.items("params", _read_param),
            _read_roles(region),
            _read_opaque(region, decode_op),
            _read_labels(region) if region.has("labels") else {},
            form_from_json(region.take("form"), f"{region.where}.form")
            if region.has("form")
            else None,
            region.items("stages", _read_stage) if region.has("stages") else (),
        )
        if inputs != made.inputs:
            shown = ", ".join(made.inputs)
            region.fail(f"its inputs are {', '.join(inputs)}, but it reads {shown}, in this order")
        return made


def _read_stage(fields: Fields) -> Stage:
    with reading(fields.take("local"), f"{fields.where}.local") as local:
        dtype, shape = local.dtype("dtype"), local.wholes("shape")
        tensor = Tensor(local.text("name"), dtype, shape, "local")
    lets = fields.documents("body")
    with reading(lets.pop() if lets else None, f"{fields.where}.body[-1]") as end:
        stores = end.texts("yield")
    value, _, name = stores[0].partition(" -> ") if len(stores) == 1 else ("", "", "")
    if name != tensor.name:
        fields.fail(f"its yield does not name a value for {tensor.name}")
    body = _read_lets(lets, f"{fields.where}.body")
    return Stage(tensor, fields.items("axes", _read_axis), body, value)


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


def _read_labels(region: Fields) -> dict[str, str]:
    with reading(region.take("labels"), f"{region.where}.labels") as labels:
        return {name: labels.text(name) for name in labels.names}


def _read_lets(documents: list[Any], where: str) -> tuple[Let, ...]:
    return tuple(_read_let(let, f"{where}[{n}]") for n, let in enumerate(documents))


def _read_axis(fields: Fields) -> KernelAxis:
    return KernelAxis(fields.text("name"), fields.whole("size"), fields.flag("reduce", False))


def _read_param(fields: Fields) -> Param:
    numbers = (fields.whole(key) for key in ("element", "low", "high"))
    return Param(fields.text("name"), fields.text("tensor"), *numbers)


def _read_output(fields: Fields, tensors: Mapping[str, Tensor]) -> Output:
    return Output(
        _read_memref(fields, tensors),
        "",
        parse_index(list(fields.texts("index"))),
        fields.text("base") if fields.has("base") else None,
        fields.choice("materialize", Materialize),
    )


def _with_values(outputs: tuple[Output, ...], stores: Any, region: Fields) -> tuple[Output, ...]:
    """The outputs with the values that the final `yield` names, in order."""
    with reading(stores, f"{region.where}.body[-1]") as fields:
        pairs = [store.split(" -> ", 1) for store in fields.texts("yield")]
    if [pair[-1] for pair in pairs] != [output.tensor for output in outputs]:
        region.fail("the yield does not name the outputs in order")
    return tuple(
        replace(output, value=pair[0]) for output, pair in zip(outputs, pairs, strict=True)
    )


def _read_roles(region: Fields) -> Roles | None:
    if not region.has("roles"):
        return None
    with reading(region.take("roles"), f"{region.where}.roles") as fields:
        batch, m, n, k = (fields.texts(key) for key in ("batch", "m", "n", "k"))
        contraction, lhs, rhs = (fields.text(key) for key in ("contraction", "lhs", "rhs"))
        return Roles(batch, m, n, k, contraction, lhs, rhs)


def _read_opaque(region: Fields, decode_op: Decode | None) -> OpaqueCall | None:
    if not region.has("opaque"):
        return None
    if decode_op is None:
        raise Unimplemented("region text", "nothing was given that can read an opaque op")
    with reading(region.take("opaque"), f"{region.where}.opaque") as fields:
        op, pairs = decode_op(fields.take("op")), fields.wholes("pairs", ())
        return OpaqueCall(op, fields.texts("inputs"), fields.wholes("results"), pairs)


def _read_let(document: Any, where: str) -> Let:
    with reading(document, where) as fields:
        name, dtype, axes = fields.text("let"), fields.dtype("dtype"), fields.texts("axes")
        with reading(fields.take("op"), f"{where}.op") as op:
            return Let(name, dtype, axes, _read_op(op))


def _read_op(op: Fields) -> ValueExpr:
    kind = op.text("op")
    match kind:
        case "Read":
            guards = tuple(parse_guard(text) for text in op.texts("guards", ()))
            fill: Scalar | None = op.scalar("fill") if op.has("fill") else None
            index = parse_index(list(op.texts("index")))
            places = op.items("places", _read_place) if op.has("places") else ()
            return Read(op.text("tensor"), index, guards, fill, places)
        case "Const":
            return Const(op.scalar("value"))
        case "AxisIndex":
            return AxisIndex(parse_expr(op.text("expr")))
        case "Fold":
            return _read_fold(op)
        case "Unary" | "Cast" | "Binary" | "Reduce":
            return _read_compute(kind, op)
        case "Check":
            (x,), element = _inputs(op, kind, 1), parse_expr(op.text("element"))
            return Check(x, op.text("rule"), op.text("code"), op.whole("size"), element)
        case "Words":
            seed, offset = _inputs(op, kind, 2)
            return Words(seed, offset, parse_expr(op.text("element")))
        case _:
            op.fail(f"there is no op {kind!r}")


def _read_place(fields: Fields) -> Place:
    return Place(fields.text("param"), fields.text("value"), fields.whole("size"))


def _read_compute(kind: str, op: Fields) -> ValueExpr:
    fn = "" if kind == "Cast" else op.text("fn")
    wanted = 3 if (kind, fn) == ("Binary", "where") else (2 if kind == "Binary" else 1)
    inputs = _inputs(op, f"{kind} {fn}", wanted)
    match kind:
        case "Unary":
            return Unary(fn, inputs[0])
        case "Cast":
            return Cast(inputs[0])
        case "Reduce":
            return Reduce(fn, op.texts("axes"), inputs[0])
        case _:
            return Select(*inputs) if fn == "where" else Binary(fn, *inputs)


def _inputs(op: Fields, what: str, wanted: int) -> tuple[str, ...]:
    found = op.texts("inputs")
    if len(found) != wanted:
        op.fail(f"{what} takes {wanted} inputs, not {len(found)}")
    return found


def _read_fold(op: Fields) -> Fold:
    step, combine = (
        _read_lets(op.documents(key), f"{op.where}.{key}") for key in ("step", "combine")
    )
    carries = op.items("carries", _read_carry)
    return Fold(op.texts("axes"), carries, step, combine, op.text("result"))


def _read_carry(fields: Fields) -> Carry:
    return Carry(
        fields.text("name"),
        fields.dtype("dtype"),
        fields.texts("axes"),
        fields.scalar("init"),
        fields.text("next"),
        fields.text("merged"),
    )
