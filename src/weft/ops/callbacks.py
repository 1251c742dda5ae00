"""Python functions that a program calls while it runs.

Outside of a trace they are called at once. In a trace each call is an instruction (`callback`), and
one with an effect follows the effect before it (`weft.ops.effects`). A function gets NumPy arrays
in the place of tensors, and everything else as it was when the function around it was traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.calls import handed_over
from weft.foundation.dims import shape_of
from weft.foundation.errors import UserError, a_type, brief
from weft.ops.array.data_types import dtype_named
from weft.ops.calls import check_function, public
from weft.ops.default_backend import at_home
from weft.ops.effects import follow, token_of
from weft.ops.graph.context import current
from weft.ops.pytree import Structure, alike, flatten, leaf_names, unflatten
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor, from_array
from weft.ptir.ops.callback import Callback
from weft.ptir.types import TensorType

Array = NDArray[Any]
_TURNS = (None, "sequential")


@public
@at_home
def pure_callback(
    function: Callable[..., Any],
    result_shape: Any,
    /,
    *args: Any,
    vmap_method: str | None = None,
    **kwargs: Any,
) -> Any:
    """`function(*args, **kwargs)`, called with NumPy arrays while the program runs. Its results
    must be as `result_shape` says: a type, or anything that has a `shape` and a `dtype`, or a
    container of them. The function must do nothing but compute: it may be called often, or never.
    Under `vmap` it is called for one value after the other."""
    check_function("pure_callback", function)
    if vmap_method not in _TURNS:
        raise UserError(f"vmap_method is {brief(vmap_method)}; there is only 'sequential'")
    wanted, shape = flatten(result_shape)
    if not wanted:
        raise UserError("the result has no tensors; weft.debug.callback calls for an effect")
    named = zip(wanted, leaf_names(shape, "result_shape"), strict=True)
    kinds = [_result_type(leaf, name) for leaf, name in named]
    call = _Call(function, args, kwargs, kinds, shape)
    if not current().tracing:
        return unflatten(shape, [from_array(x, current()) for x in call(call.arrays())])
    return unflatten(shape, call.captured(effect=False))


@at_home
def effect(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Call a function for what it does, in order: now, or while the program runs."""
    call = _Call(function, args, kwargs, (), None)
    if current().tracing:
        call.captured(effect=True)
    else:
        call(call.arrays())


class _Call:
    """One call of a function: its tensors, and how they lie among the arguments."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        kinds: Sequence[TensorType],
        shape: Structure | None,
    ) -> None:
        leaves, self.structure = flatten((args, kwargs))
        self.function, self.kinds, self.shape = function, kinds, shape
        self.name = getattr(function, "__name__", type(function).__name__)
        self.tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self.leaves = [None if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves]

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """What the function gives for these elements of its tensors, checked."""
        supply = iter(arrays)
        filled = [next(supply) if leaf is None else leaf[0] for leaf in self.leaves]
        args, kwargs = unflatten(self.structure, filled)
        result = handed_over(self.function, args, kwargs)
        if self.shape is None:
            return []
        found, shape = flatten(result)
        if not alike(shape, self.shape):
            raise UserError(
                f"[pure_callback] {self.name} returns {a_type(result)}, which is not nested as "
                "result_shape is"
            )
        return [self._check_result(x, kind) for x, kind in zip(found, self.kinds, strict=True)]

    def arrays(self) -> list[Array]:
        """The elements of the tensors, now."""
        return [np.array(tensor.numpy()) for tensor in self.tensors]

    def captured(self, effect: bool) -> list[Tensor]:
        """The call as an instruction of the trace; its results."""
        session = Session.here()
        # The instruction holds this call, and the tensors of a trace must not outlive it.
        tensors, self.tensors = self.tensors, []
        op = Callback.of(self, self.name, effect, self.kinds)
        first = [token_of(session.arena)] if effect else []
        nodes = [*first, *(tensor._node for tensor in tensors)]
        made = session.append(op, *(Handle(session, node) for node in nodes))
        handles = [made] if isinstance(made.type, TensorType) else list(made)
        if effect:
            follow(session.arena, handles.pop(0).node)
        return [session.export(handle) for handle in handles]

    def _check_result(self, value: Any, kind: TensorType) -> Array:
        """A result of the function; a Python number has the dtype that was said."""
        plain = isinstance(value, bool | int | float | complex)
        found = np.asarray(value, kind.dtype.numpy if plain else None)
        if found.dtype != kind.dtype.numpy or found.shape != kind.shape:
            raise UserError(
                f"[pure_callback] {self.name} returns an array of {found.dtype} and shape "
                f"{list(found.shape)}, but result_shape says {kind}"
            )
        return found


def _result_type(leaf: Any, name: str) -> TensorType:
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise UserError(
            f"{name} is {a_type(leaf)}; give something with a shape and a dtype, "
            "such as weft.ptir.TensorType(weft.float32, (2, 3))"
        )
    kind = TensorType(dtype_named(leaf.dtype), shape_of(leaf.shape))
    if not kind.is_static:
        raise UserError(f"{name} is {kind}; its sizes must be numbers")
    return kind
