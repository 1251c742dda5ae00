"""Region JSON: every kernel reads back equal, and what is malformed is refused in words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import kernels
from weft.foundation.dtypes import F32
from weft.foundation.errors import SpecViolation, Unimplemented
from weft.region.ir import Kernel, Module, OpaqueCall, Output, Pattern, Tensor
from weft.region.text import dumps, from_json, loads, to_json


@pytest.mark.parametrize("name", kernels.ALL)
def test_a_module_reads_back(name: str) -> None:
    module = kernels.ALL[name]()
    text = dumps(module)
    assert loads(text) == module
    assert dumps(loads(text)) == text
    assert json.loads(text) == to_json(module)


def test_the_documents_fields_are_there() -> None:
    region = to_json(kernels.linear())["module"]["kernels"][0]["region"]
    assert {"name", "inputs", "outputs", "body"} <= set(region)
    assert region["inputs"][0] == {
        "name": "x",
        "memref": {"shape": [12, 16], "strides": [16, 1], "alignment": 128, "noalias": True},
    }
    assert region["outputs"][0]["materialize"] == "deferred"
    assert region["body"][-1] == {"yield": ["v6 -> y"]}
    assert region["body"][3]["op"] == {"op": "Reduce", "fn": "sum", "inputs": ["v2"], "axes": ["k"]}


def test_the_text_of_a_kernel(golden: Any) -> None:
    golden("region_cache_update.json", dumps(kernels.cache_update()))


def opaque_module() -> Module:
    call = OpaqueCall("sort", ("x",), (0,))
    kernel = Kernel("o", Pattern.OPAQUE, (), (), (Output("y", "", ()),), opaque=call)
    tensors = [Tensor("x", F32, (3,), "input"), Tensor("y", F32, (3,), "output")]
    return kernels.module_of(kernel, tensors=tensors)


def test_opaque_ops_go_through_the_callers_codec() -> None:
    module = opaque_module()
    text = dumps(module, lambda op: {"op": op})
    assert loads(text, lambda document: document["op"]) == module
    with pytest.raises(Unimplemented):
        dumps(module)
    with pytest.raises(Unimplemented):
        loads(text)


def broken(change: Any) -> Any:
    document = to_json(kernels.linear())
    change(document["module"]["kernels"][0]["region"])
    return document


def assign(*path: Any) -> Any:
    def change(region: Any) -> None:
        *keys, last, value = path
        for key in keys:
            region = region[key]
        region[last] = value

    return change


MALFORMED = {
    "an unknown field": (assign("speed", 9), "field 'speed' is not known here"),
    "an unknown pattern": (assign("pattern", "star"), "field 'pattern' is 'star', not one of"),
    "an unknown op": (assign("body", 0, "op", {"op": "Fly"}), "there is no op 'Fly'"),
    "an unknown dtype": (assign("body", 0, "dtype", "f17"), "'f17' is not a dtype"),
    "too many operands": (
        assign("body", 2, "op", "inputs", ["v0", "v1", "v1"]),
        "Binary mul takes 2 inputs",
    ),
    "a yield of another output": (
        assign("body", -1, "yield", ["v13 -> z"]),
        "the yield does not name the outputs in order",
    ),
    "an index that is not affine": (
        assign("body", 0, "op", "index", ["m*k", "k"]),
        "two axes are multiplied",
    ),
    "a size that is not a number": (
        assign("axes", 0, "size", "12"),
        "field 'size' must be a whole number",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_text_is_refused(name: str) -> None:
    change, why = MALFORMED[name]
    with pytest.raises(SpecViolation) as raised:
        from_json(broken(change))
    assert why in str(raised.value)


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(SpecViolation, match="the region file is not JSON"):
        loads("{")
