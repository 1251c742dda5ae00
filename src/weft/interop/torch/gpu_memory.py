"""The memory of a GPU, which torch and Weft use at the same addresses.

Torch works in one stream and Weft in another; they wait for each other on the device, and the host
for neither, unless a program has checks whose outcome must be known. So what torch frees after a
call is free, and what Weft handed over serves it again when torch has dropped it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch

from weft.driver.backends import Storage
from weft.interop.torch.dtypes import ours
from weft.interop.torch.memory import Array, current
from weft.interop.torch.tensor_layouts import Order, lying
from weft.ptir.types import TensorType

_ALIGNMENT: Final = 256
"""Where tensors begin that kernels take as they are."""


class GpuMemory:
    """That of the GPU which a backend works on."""

    device = "cuda"

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def stored(self, array: Array) -> Storage:
        return self.backend.store(array)

    def taken(self, tensor: torch.Tensor, order: Order) -> tuple[Storage, bool]:
        """A tensor that is on the GPU stays where it is; one of the host is copied there."""
        tensor = lying(tensor, order)
        kind = TensorType(ours(tensor.dtype), tuple(tensor.shape))
        if not tensor.numel():
            return self.stored(np.empty(kind.static_shape, kind.dtype.numpy)), True
        if tensor.device.type != self.device:
            return self.stored(current(tensor)), False
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        plain = plain.clone() if plain.data_ptr() % _ALIGNMENT else plain
        if plain.data_ptr() == tensor.data_ptr():
            return self.backend.view(plain.data_ptr(), kind), True
        return self.backend.view(plain.data_ptr(), kind, plain), False

    def given(self, storage: Storage, kind: TensorType) -> torch.Tensor:
        storage.check()
        return torch.from_dlpack(storage.lent_to(stream_in_use()))

    @contextmanager
    def turn(self) -> Iterator[None]:
        stream = stream_in_use()
        self.backend.follow(stream)
        try:
            yield
        finally:
            self.backend.precede(stream)


def stream_in_use() -> int:
    """The stream that torch works in, in this thread; asked for every result of a call."""
    return int(torch._C._cuda_getCurrentRawStream(0))
