"""MLIR through jaxlib's bundled bindings: the only file that loads jaxlib, and no more of it than
parsing, verifying and printing text. Nothing here needs JAX itself.

Everything that the bindings say about bad text becomes a `SpecViolation` with the line and column.
"""

from __future__ import annotations

import importlib
import re
from functools import cache
from typing import Any, Final, NamedTuple

from weft.foundation.errors import ResourceExceeded, SpecViolation, Unimplemented, UserError

DEEPEST: Final = 256
"""How deep brackets may nest: MLIR's parser calls itself once for each, on a stack that ends."""
_QUANTISED: Final = "!quant."
_LOADING: Final = "builtin.module(vhlo-legalize-to-stablehlo)"
_IN_FLOATS: Final = "builtin.module(func.func(stablehlo-legalize-quantized-op-to-qdq))"
_PLACE: Final = re.compile(r":(\d+):(\d+)")
_NESTING: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|[\[({<]|->|[\])}>]')


class Bindings(NamedTuple):
    """The modules of jaxlib that Weft uses."""

    ir: Any
    stablehlo: Any
    context: Any
    """A context that knows StableHLO, CHLO, MHLO, Shardy, func and what jaxlib has beside them."""


@cache
def bindings() -> Bindings:
    """The bindings, with every dialect registered."""
    try:
        ir = importlib.import_module("jaxlib.mlir.ir")
        stablehlo = importlib.import_module("jaxlib.mlir.dialects.stablehlo")
        chlo = importlib.import_module("jaxlib.mlir.dialects.chlo")
        mhlo = importlib.import_module("jaxlib.mlir.dialects.mhlo")
        sdy = importlib.import_module("jaxlib.mlir.dialects.sdy")
        extension = importlib.import_module("jaxlib.mlir._mlir_libs._jax_mlir_ext")
    except ImportError:
        raise UserError(
            "StableHLO text is read and written through jaxlib, which is not installed; "
            "pip install weft[stablehlo]"
        ) from None
    context = ir.Context()
    registry = ir.DialectRegistry()
    extension.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    stablehlo.register_dialect(context)
    chlo.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    sdy.register_dialect(context)
    return Bindings(ir, stablehlo, context)


@cache
def _quantised_types() -> Any:
    """The class of pass managers, once the types `!quant.uniform` are known. jaxlib registers them
    nowhere; a pass that can make them loads them, whatever it runs on."""
    mlir = bindings()
    managers = importlib.import_module("jaxlib.mlir.passmanager").PassManager
    mlir.stablehlo.register_stablehlo_passes()
    empty = mlir.ir.Module.parse("module {}", context=mlir.context)
    managers.parse(_LOADING, context=mlir.context).run(empty.operation)
    return managers


def parse_module(text: str) -> Any:
    """The module in `text`, which MLIR's verifier has accepted. What computes with quantised
    tensors is said in floats, between `uniform_dequantize` and `uniform_quantize`."""
    mlir = bindings()
    _refuse_deep_nesting(text)
    managers = _quantised_types() if _QUANTISED in text else None
    try:
        module = mlir.ir.Module.parse(text, context=mlir.context)
        if managers is not None:
            managers.parse(_IN_FLOATS, context=mlir.context).run(module.operation)
    except mlir.ir.MLIRError as error:
        raise _violation(error) from None
    return module


def parse_attribute(text: str) -> Any:
    """The attribute that `text` is, all of it."""
    mlir = bindings()
    if not text:  # MLIR would read on behind it
        raise SpecViolation("MalformedText", "an attribute has a text, and this one is empty")
    _refuse_deep_nesting(text)
    try:
        return mlir.ir.Attribute.parse(text, context=mlir.context)
    except mlir.ir.MLIRError as error:
        raise _violation(error) from None
    except TypeError:
        raise Unimplemented(text[:60], "MLIR's bindings cannot read a value of its kind") from None


def _refuse_deep_nesting(text: str) -> None:
    depth = 0
    for match in _NESTING.finditer(text):
        token = match.group()
        if token in ("[", "(", "{", "<"):
            depth += 1
            if depth > DEEPEST:
                raise ResourceExceeded(
                    f"brackets nest more than {DEEPEST} deep in the StableHLO text, at character "
                    f"{match.start()}"
                )
        elif token in ("]", ")", "}", ">"):
            depth = max(0, depth - 1)


def _violation(error: Any) -> SpecViolation:
    """The first diagnostic, with its line and column."""
    diagnostics = list(error.error_diagnostics)
    if not diagnostics:
        return SpecViolation("MalformedText", str(error))
    first = diagnostics[0]
    found = _PLACE.search(str(first.location))
    where = f"line {found[1]}, column {found[2]}" if found else ""
    return SpecViolation("MalformedText", first.message, where=where)
