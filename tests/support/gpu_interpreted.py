"""GPU kernels by their meaning, as a backend: every stage up to the dialect, which is
interpreted. A result that takes over the memory of an operand is written there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.codegen.gpu.interp import run
from weft.driver.cuda import BACKEND
from weft.driver.pipeline import run_pipeline
from weft.driver.reference import ReferenceBackend
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.driver.stages.opaque import run_opaque
from weft.foundation import numeric
from weft.ptir import Program
from weft.ptir.interp import Observer
from weft.ptir.types import TensorType, leaves
from weft.region.interp import run_kernel
from weft.region.ir import Kernel, Module
from weft.region.structure import buffers
from weft.target.known import target_named
from weft.tiny.from_ptir import RUN

Array = NDArray[Any]


class InterpretedExecutable:
    """The kernels of a program, and everything made on the way to them."""

    def __init__(self, compilation: Compilation) -> None:
        self.compilation = compilation

    def execute(
        self, inputs: Sequence[Array], *, seed: int = 0, observer: Observer | None = None
    ) -> list[Array]:
        module: Module = self.compilation["region"]
        arrays: dict[str, Array] = dict(self.compilation["tiny"].constants)
        arrays[RUN] = np.array([seed, 0], np.uint64).view(np.int64)
        given = [name for name in module.inputs if name not in arrays]
        arrays.update(zip(given, map(numeric.as_pairs, inputs), strict=True))
        begun: dict[str, list[Kernel]] = {}
        code = self.compilation["gpu"]
        for kernel in module.kernels:
            if kernel.name in code.hosted:
                arrays |= run_kernel(kernel, module.tensors, arrays)
            elif kernel.name not in code.launches:
                arrays |= self.on_the_host(kernel, arrays, seed)
            else:
                symbol = code.launches[kernel.name].symbol
                parts = begun.setdefault(symbol, [])
                parts.append(kernel)
                if len(parts) == code.kernels[symbol].sets:
                    arrays |= self.launch(begun.pop(symbol), arrays)
        assert not begun
        declared = self.compilation.program.main.results
        kinds = [leaf for kind in declared for leaf in leaves(kind)]
        return [
            declared_form(arrays[name], kind)
            for name, kind in zip(module.outputs, kinds, strict=True)
        ]

    def on_the_host(self, kernel: Kernel, arrays: dict[str, Array], seed: int) -> dict[str, Array]:
        """The tensors that an op without a kernel makes."""
        call, tensors = kernel.opaque, self.compilation["region"].tensors
        assert call is not None
        given = [arrays[name] for name in call.inputs]
        given = [numeric.as_complex(a) if n in call.pairs else a for n, a in enumerate(given)]
        results = [numeric.as_pairs(result) for result in run_opaque(call.op, given, seed)]
        return {
            output.tensor: results[number].reshape(tensors[output.tensor].shape)
            for output, number in zip(kernel.outputs, call.results, strict=True)
            if number >= 0
        }

    def launch(self, kernels: Sequence[Kernel], arrays: dict[str, Array]) -> dict[str, Array]:
        """The tensors that the kernels of a launch write."""
        written: dict[str, Array] = {}
        flat, *others = [self.operands(kernel, arrays, written) for kernel in kernels]
        code = self.compilation["gpu"]
        run(code.kernels[code.launches[kernels[0].name].symbol], flat, others=others)
        return written

    def operands(
        self, kernel: Kernel, arrays: dict[str, Array], written: dict[str, Array]
    ) -> dict[str, Array]:
        """What a kernel is given, by the names of its code; room for results is `written`."""
        tensors, code = self.compilation["region"].tensors, self.compilation["gpu"]
        shares = [s for s in self.compilation["memory"].shares if s.kernel == kernel.name]
        taken = {share.second: share.first for share in shares}
        arrays = dict(arrays)
        for output in kernel.outputs:
            tensor, first = tensors[output.tensor], taken.get(output.tensor, output.base)
            made = np.empty(tensor.shape, tensor.dtype.numpy)
            if first is None:
                made.reshape(-1).view(np.uint8)[...] = 0xFF
            else:
                raw = np.ascontiguousarray(arrays[first]).reshape(-1)
                made.reshape(-1).view(np.uint8)[...] = raw.view(np.uint8)
            if first is not None and output.tensor in taken:
                arrays[first] = made.reshape(-1).view(arrays[first].dtype)
            written[output.tensor] = made
        launch = code.launches[kernel.name]
        made_kernel, names = code.kernels[launch.symbol], buffers(kernel)
        flat = {}
        for parameter, place in zip(made_kernel.buffers, launch.tensors, strict=True):
            array = written.get(names[place], arrays.get(names[place]))
            assert array is not None
            flat[parameter] = np.asarray(array, order="C").reshape(-1)
        return flat


def declared_form(array: Array, kind: TensorType) -> Array:
    """A result as the program declares it."""
    made = np.array(array, order="C")
    if kind.dtype.is_complex:
        made = numeric.as_complex(made.reshape(*kind.static_shape, 2))
    return made.reshape(kind.static_shape)


class InterpretedGpu(ReferenceBackend):
    """A GPU without a GPU."""

    dtypes = BACKEND.dtypes

    def __init__(self, target: str) -> None:
        self.name = f"interpreted {target}"
        self.target = target_named(target)

    def compile(self, program: Program) -> Any:
        compilation = Compilation(program, self.target, make_signature(program))
        return InterpretedExecutable(run_pipeline(compilation))
