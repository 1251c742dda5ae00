"""ONNX's own interface for those who run models: `onnx.backend.base.Backend`.

import weft.onnx
prepared = weft.onnx.backend.prepare(model)
outputs = prepared.run([x])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx import ModelProto, NodeProto
from onnx.backend.base import Backend, BackendRep
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

from weft.driver.backends import default_backend
from weft.foundation.errors import Unimplemented
from weft.interop.onnx.model import Model, from_proto
from weft.ops.default_backend import graph
from weft.ops.tensor import Tensor
from weft.ops.tensor import eval as compute

__all__ = ["WeftBackend", "is_compatible", "prepare", "run_model", "supports_device"]


class WeftModel(BackendRep):
    """A model that is ready to run."""

    def __init__(self, model: Model, backend: str) -> None:
        self.model = model
        self.backend = backend

    def run(self, inputs: Any, **options: Any) -> tuple[Any, ...]:
        """The outputs as arrays, for a list of inputs in order, or inputs by name."""
        named = inputs if isinstance(inputs, dict) else None
        given = () if named is not None else inputs
        try:
            with graph(backend=self.backend):
                made = self.model(*given, **(named or {}))
                compute([each for each in made.values() if each is not None])
                return tuple(_as_numpy(each) for each in made.values())
        except Unimplemented as error:
            raise BackendIsNotSupposedToImplementIt(str(error)) from error


def _as_numpy(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_numpy(each) for each in value]
    return value.numpy() if isinstance(value, Tensor) else value


class WeftBackend(Backend):
    """Runs models with Weft."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **options: Any) -> WeftModel:
        """Read a model, for a backend of Weft's: `backend="reference"`, or the default one."""
        backend = options.get("backend") or default_backend()
        try:
            with graph(backend=backend):
                return WeftModel(from_proto(model), backend)
        except Unimplemented as error:
            raise BackendIsNotSupposedToImplementIt(str(error)) from error

    @classmethod
    def run_model(
        cls, model: ModelProto, inputs: Sequence[Any], device: str = "CPU", **options: Any
    ) -> tuple[Any, ...]:
        return cls.prepare(model, device, **options).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Any = None,
        **options: Any,
    ) -> Any:
        raise BackendIsNotSupposedToImplementIt("a node alone has no types; give a model")

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


prepare = WeftBackend.prepare
run_model = WeftBackend.run_model
supports_device = WeftBackend.supports_device
is_compatible = WeftBackend.is_compatible
