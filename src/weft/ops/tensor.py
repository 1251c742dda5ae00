"""`weft.Tensor`: a value of the lazy graph, or data that a backend holds.

A tensor is *lazy* while its node waits to be computed and *eager* from then on; reading it (with
`numpy`, `item`, `repr`, `np.asarray`, DLPack) computes it. Elements never change under a tensor
that was read: assignment to an element makes the tensor show a new node.

Methods are functions too: a function of the ops layer that is marked `@tensor_method` becomes a
method of the same name, so `weft.sum(x)` and `x.sum()` are one thing. Operators are installed the
same way, by `@tensor_method("__add__", ...)`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, overload
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from weft.driver.backends import duplicated
from weft.foundation.calls import told, told_outside
from weft.foundation.dims import Shape
from weft.foundation.dtypes import DType, as_dtype
from weft.foundation.errors import SpecViolation, UserError, WeftError, WrongArguments, a_type
from weft.foundation.lines import user_line
from weft.foundation.tracebacks import ending_outside
from weft.ops.calls import explained, public
from weft.ops.dlpack import exported
from weft.ops.graph.arena import Arena
from weft.ops.graph.context import current, default_arena
from weft.ops.graph.evaluate import evaluate
from weft.ops.graph.group import LEAVING, Group, Place
from weft.ops.graph.node import CHANGES, Donated, Node
from weft.ops.graph.program import as_program, reachable
from weft.ops.other_names import method_advice
from weft.ops.printing import MOST_SHOWN, WRITTEN, corner, printed, written
from weft.ops.pytree import LEAF, flatten
from weft.ops.traced_numbers import TracedNumber
from weft.ptir.ir import Program
from weft.ptir.literal import TensorLiteral
from weft.ptir.types import TensorType

Array = NDArray[Any]
F = TypeVar("F", bound=Callable[..., Any])
API_VERSION = "2024.12"
"""The version of the array API standard that the namespace follows."""
_HOST = (1, 0)
"""The host's memory, as DLPack numbers it."""


class Tensor:
    """An n-dimensional array of one dtype, computed when it is read."""

    __slots__ = ("__weakref__", "_group", "_node", "_place", "_wants_grad", "number")

    _group: Group
    """Together with what it was made; only as long as nobody has looked at it."""
    _place: Place | None
    """Where in its group it is; None: it has a node."""

    __array_priority__ = 1_000

    def __init__(self, node: Node, requires_grad: bool = False) -> None:
        """The tensor that shows a node; users make tensors with `weft.asarray`."""
        self._node = node
        self._place = None
        self._wants_grad = requires_grad
        self.number: TracedNumber | None = None
        """The Python number that it stands for in a traced function: it takes the dtype of the
        tensor beside it."""
        try:
            node.owner = ref(self)
        except AttributeError:
            error = UserError(
                f"a tensor is not made of {a_type(node)} by calling its class; use "
                "weft.asarray or weft.tensor"
            )
            raise explained("Tensor", error, user_line()) from None

    # -- what it is ------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are wanted with respect to this tensor, or to one it came from."""
        return self._wants_grad

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        if self._place is not None:
            self._looked_at()
        self._wants_grad = wanted

    @property
    def type(self) -> TensorType:
        """Dtype and shape, as PTIR writes them."""
        return self._node.tensor

    @property
    def shape(self) -> Shape:
        return self._node.tensor.shape

    @property
    def dtype(self) -> DType:
        return self._node.tensor.dtype

    @property
    def ndim(self) -> int:
        return len(self._node.tensor.shape)

    @property
    def size(self) -> int | None:
        """The number of elements; None where a dim is symbolic."""
        kind = self._node.tensor
        return kind.size if kind.is_static else None

    @property
    def nbytes(self) -> int:
        return self._node.tensor.bytes

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self.dtype.numpy.itemsize

    @property
    def arena(self) -> Arena:
        """Where its instruction was captured."""
        arena = self._node.arena
        assert isinstance(arena, Arena)
        return arena

    @property
    def value_id(self) -> int:
        """The number of its node; grows with time."""
        return self._node.id

    @property
    def backend(self) -> str:
        """The name of the backend that computes and holds it."""
        return self._node.arena.backend.name

    @property
    def device(self) -> str:
        """The same as `backend`, under the array API's name."""
        return self.backend

    @property
    def is_lazy(self) -> bool:
        """Whether it has not been computed yet."""
        return self._node.storage is None

    @property
    def is_traced(self) -> bool:
        """Whether it is a value of a function being traced: its elements are not known."""
        return self._node.arena.tracing and self._node.storage is None

    @property
    @public
    def T(self) -> Tensor:  # noqa: N802
        """A matrix with rows and columns exchanged; other ranks have `mT` and `permute_dims`."""
        if self.ndim != 2:
            raise SpecViolation(
                "RankMismatch",
                f"{self.type} has rank {self.ndim}, but T is defined for matrices",
                "use mT for stacks of matrices, or permute_dims",
            )
        return self.permute_dims((1, 0))

    @property
    @public
    def mT(self) -> Tensor:  # noqa: N802
        """Every matrix of a stack with rows and columns exchanged."""
        return self.matrix_transpose()

    # -- reading ---------------------------------------------------------------------------------

    @told
    def eval(self) -> Tensor:
        """Compute it now, and everything else the same program gives to a tensor that is held."""
        evaluate([self._node])
        return self

    @told
    def numpy(self) -> Array:
        """The elements as a NumPy array that belongs to the caller."""
        return np.array(self._elements(), copy=True)

    def _elements(self) -> Array:
        """The elements, maybe shared with the backend's memory."""
        node = self._node
        if node.storage is None:
            evaluate([node])
        if isinstance(node.storage, TensorLiteral):
            return node.storage.array
        if isinstance(node.storage, Donated):
            raise node.storage.error()
        return node.arena.backend.read_storage(node.storage, node.tensor)

    @public
    def item(self) -> Any:
        """The only element, as a Python number."""
        if self.size != 1:
            raise UserError(
                f"a tensor with one element is wanted, not {self.type}; reduce it, or use tolist"
            )
        return self._elements().reshape(-1)[0].item()

    @told
    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers."""
        return self._elements().tolist()

    @told
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        elements = self._elements()
        wanted = elements.dtype if dtype is None else np.dtype(dtype)
        if copy or wanted != elements.dtype:
            return elements.astype(wanted)
        _lend_elements(elements)
        return elements.view()

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The elements for another library, as a copy that belongs to it. With `copy=False` they
        are shared, and marked as read-only where the consumer knows DLPack 1.0; nobody may write to
        them. Those of a GPU are shared unless `copy` is True or the host's memory is asked for."""
        lent = self._lent_storage()
        if lent is not None and dl_device != _HOST:
            return lent.__dlpack__(stream=stream, dl_device=dl_device, copy=copy)
        if lent is not None and copy is False:
            raise BufferError("the tensor is in the memory of a GPU: the host's needs a copy")
        if lent is None and stream is not None:
            raise BufferError("the tensor is in host memory and has no stream")
        if copy is not False:
            options = {"max_version": max_version, "dl_device": dl_device}
            return exported(np.array(self._elements()), **options)
        elements = self._elements()
        shared = _lend_elements(elements) if elements.flags.writeable else np.array(elements)
        if max_version is not None and max_version >= (1, 0):
            shared.flags.writeable = False
        return exported(shared, max_version=max_version, dl_device=dl_device, copy=False)

    def __dlpack_device__(self) -> tuple[int, int]:
        lent = self._lent_storage()
        device: tuple[int, int] = _HOST if lent is None else lent.__dlpack_device__()
        return device

    def _lent_storage(self) -> Any:
        """The backend's own handle, where its memory can be lent to others as it is; else None."""
        node = self._node
        if not getattr(node.arena.backend, "lends_memory", False):
            return None
        if node.storage is None:
            evaluate([node])
        return None if isinstance(node.storage, TensorLiteral | Donated) else node.storage

    @public
    def __bool__(self) -> bool:
        if self.size != 1 and not self.is_traced:
            raise UserError(
                f"a tensor of type {self.type} is neither true nor false as a whole; reduce it "
                "with any or all, or choose element by element with weft.where"
            )
        return bool(self.item())

    @told_outside
    def __int__(self) -> int:
        return int(self.item())

    @told_outside
    def __float__(self) -> float:
        return float(self.item())

    @told_outside
    def __complex__(self) -> complex:
        return complex(self.item())

    @told_outside
    def __index__(self) -> int:
        if not self.dtype.is_integer:
            raise WrongArguments(f"only an integer tensor can be an index, not one of {self.dtype}")
        return int(self.item())

    @public
    def __len__(self) -> int:
        if not self.shape:
            raise WrongArguments("a tensor of rank 0 has no length; its number is x.item()")
        size = self.shape[0]
        if not isinstance(size, int):
            raise UserError(f"the length of {self.type} is known only when the function runs")
        return size

    @told
    def __contains__(self, value: Any) -> bool:
        """Whether an element equals the value."""
        same = self == value
        return isinstance(same, Tensor) and bool(same.any())

    @told
    def __iter__(self) -> Iterator[Tensor]:
        return map(self.__getitem__, range(len(self)))

    __hash__ = object.__hash__

    @told
    def __repr__(self) -> str:
        about = f"shape={list(self.shape)}, dtype={written(self.dtype)}, backend={self.backend!r}"
        if self.is_traced:
            return f"Tensor(traced, {about})"
        if not self.is_lazy or (self.size or 0) <= MOST_SHOWN:
            return f"Tensor({printed(self._elements())}, {about})"
        try:
            corners = self._corners()
        except WeftError:  # Who prints a tensor to find a mistake must not meet another one.
            return f"Tensor(lazy, {about})"
        return f"Tensor({printed(corners, whole=False)}, {about})"

    def _corners(self) -> Array:
        """What is shown of a large tensor: nothing else of it is computed, and nothing is kept."""
        shown = self
        for axis, size in enumerate(self.shape):
            places = corner(size)
            if places is not None:
                shown = shown.take(from_array(places, self.arena), axis=axis)
        node = shown._node
        evaluate([node], alone=True)
        return self._node.arena.backend.read_storage(node.storage, node.tensor)

    @public
    def __format__(self, spec: str) -> str:
        """A tensor of rank 0 is written as its number is; others take no format."""
        if self.shape or (self.is_traced and not spec):
            if spec:
                raise UserError(
                    f"the format {spec!r} is for one number, not for {self.type}; write elements, "
                    "or a reduction, or use numpy.array2string"
                )
            return str(self)
        return format(self.item(), spec)

    @told_outside
    def __round__(self, digits: int | None = None) -> Any:
        """The only element, rounded as Python rounds."""
        return round(self.item(), digits)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its elements; it is read back on the default backend."""
        return _unpickled, (self.numpy(), self.requires_grad)

    def __getattr__(self, name: str) -> Callable[..., Tensor]:
        if name == "_node":
            return self._looked_at()  # type: ignore[return-value]
        if name.startswith("__"):
            # NumPy asks every tensor that it reads for two protocols before `__array__`: no advice,
            # which would take longer than a small kernel.
            raise AttributeError(f"a tensor has no attribute {name!r}")
        raise ending_outside(
            AttributeError(f"a tensor has no attribute {name!r}{method_advice(name)}")
        )

    def _looked_at(self) -> Node:
        """Its node, with which it leaves its group."""
        with LEAVING:
            place = self._place
            if place is not None:
                node = self._group.leave(place.index)
                node.owner = ref(self)
                self._node = node
                self._place = None
                del self._group
            return self._node

    # -- programs and backends -------------------------------------------------------------------

    @told
    def program(self) -> Program:
        """The PTIR program that computes it; tensors that are data are its parameters."""
        leaves = [n for n in reachable([self._node]) if n.form is None and not is_constant(n)]
        return as_program("main", leaves, [self._node])

    @public
    def to(self, backend: str | DType) -> Tensor:
        """The tensor on another backend, itself where it is there already; or in another dtype."""
        if isinstance(backend, DType):
            return self if backend is self.dtype else self.astype(backend)
        if backend in WRITTEN:
            raise UserError(
                f"a tensor is moved to a backend, and {backend!r} is a dtype; write "
                f"x.astype(weft.{backend}) or x.to(weft.{backend})"
            )
        if backend == self.backend:
            return self
        return from_array(self._elements(), default_arena(backend), self.requires_grad)

    @public
    def to_device(self, device: str, /, *, stream: Any = None) -> Tensor:
        """The same as `to`, under the array API's name."""
        if stream is not None:
            raise UserError("tensors have no streams; leave `stream` out")
        return self.to(device)

    @public
    def __array_namespace__(self, /, *, api_version: str | None = None) -> ModuleType:
        """The module whose functions take this tensor: `weft` itself."""
        if api_version not in (None, "2021.12", "2022.12", "2023.12", API_VERSION):
            raise UserError(
                f"version {api_version!r} of the array API is not known; Weft has {API_VERSION}"
            )
        return sys.modules[__name__.partition(".")[0]]

    # -- assignment ------------------------------------------------------------------------------

    @told_outside
    def become(self, other: Tensor) -> None:
        """Show the value of another tensor of the same type from now on: an assignment to elements,
        or an operator such as `+=`."""
        if not isinstance(other, Tensor):
            raise UserError(f"a tensor becomes another tensor, not {a_type(other)}")
        arena = current()
        if arena.tracing and self._node.arena is not arena:
            raise UserError(
                f"a tensor of type {self.type} that the traced function did not make is "
                "assigned to; a traced function may change nothing outside: make a new tensor and "
                "return it",
                "CapturedStateChanged",
            )
        self._check_type(other)
        old = self._node
        if old.owner is not None and old.owner() is self:
            old.owner = None
        self._node = other._node
        self._node.owner = ref(self)
        CHANGES.tell()
        self.requires_grad = self.requires_grad or other.requires_grad

    def _check_type(self, other: Tensor) -> None:
        if self.dtype is not other.dtype:
            raise SpecViolation(
                "DTypeMismatch",
                f"the result is {other.type}, but the tensor assigned to is {self.type}",
                f"convert the value with .astype({self.dtype}), or assign to a new name",
            )
        if self.shape != other.shape:
            raise SpecViolation(
                "ShapeMismatch",
                f"the result is {other.type}, but the tensor assigned to is {self.type}",
                "assign to a new name",
            )

    def __copy__(self) -> Tensor:
        return Tensor(self._node, self.requires_grad)

    def __deepcopy__(self, memo: object) -> Tensor:
        """A tensor with these elements in memory of its own: it stays when this one is donated. A
        traced value has no memory, and is the same."""
        node = self._node
        if self.is_traced or self.number is not None:
            return Tensor(node, self.requires_grad)
        if node.storage is None:
            evaluate([node])
        storage, home = node.storage, self.arena
        if isinstance(storage, Donated):
            raise storage.error()
        if isinstance(storage, TensorLiteral):
            return Tensor(home.constant(storage), self.requires_grad)
        made = duplicated(home.backend, storage, node.tensor)
        return Tensor(home.leaf(made, node.tensor), self.requires_grad)

    if TYPE_CHECKING:

        @property
        def real(self) -> Tensor: ...
        @property
        def imag(self) -> Tensor: ...
        def detach(self) -> Tensor: ...
        def __getitem__(self, index: Any) -> Tensor: ...
        def __setitem__(self, index: Any, value: Any) -> None: ...
        def __add__(self, other: Any) -> Tensor: ...
        def __radd__(self, other: Any) -> Tensor: ...
        def __iadd__(self, other: Any) -> Tensor: ...
        def __sub__(self, other: Any) -> Tensor: ...
        def __rsub__(self, other: Any) -> Tensor: ...
        def __isub__(self, other: Any) -> Tensor: ...
        def __mul__(self, other: Any) -> Tensor: ...
        def __rmul__(self, other: Any) -> Tensor: ...
        def __imul__(self, other: Any) -> Tensor: ...
        def __truediv__(self, other: Any) -> Tensor: ...
        def __rtruediv__(self, other: Any) -> Tensor: ...
        def __itruediv__(self, other: Any) -> Tensor: ...
        def __floordiv__(self, other: Any) -> Tensor: ...
        def __rfloordiv__(self, other: Any) -> Tensor: ...
        def __ifloordiv__(self, other: Any) -> Tensor: ...
        def __mod__(self, other: Any) -> Tensor: ...
        def __rmod__(self, other: Any) -> Tensor: ...
        def __imod__(self, other: Any) -> Tensor: ...
        def __pow__(self, other: Any) -> Tensor: ...
        def __rpow__(self, other: Any) -> Tensor: ...
        def __ipow__(self, other: Any) -> Tensor: ...
        def __matmul__(self, other: Any) -> Tensor: ...
        def __rmatmul__(self, other: Any) -> Tensor: ...
        def __imatmul__(self, other: Any) -> Tensor: ...
        def __and__(self, other: Any) -> Tensor: ...
        def __rand__(self, other: Any) -> Tensor: ...
        def __iand__(self, other: Any) -> Tensor: ...
        def __or__(self, other: Any) -> Tensor: ...
        def __ror__(self, other: Any) -> Tensor: ...
        def __ior__(self, other: Any) -> Tensor: ...
        def __xor__(self, other: Any) -> Tensor: ...
        def __rxor__(self, other: Any) -> Tensor: ...
        def __ixor__(self, other: Any) -> Tensor: ...
        def __lshift__(self, other: Any) -> Tensor: ...
        def __rlshift__(self, other: Any) -> Tensor: ...
        def __ilshift__(self, other: Any) -> Tensor: ...
        def __rshift__(self, other: Any) -> Tensor: ...
        def __rrshift__(self, other: Any) -> Tensor: ...
        def __irshift__(self, other: Any) -> Tensor: ...
        def __neg__(self) -> Tensor: ...
        def __pos__(self) -> Tensor: ...
        def __abs__(self) -> Tensor: ...
        def __invert__(self) -> Tensor: ...
        def __lt__(self, other: Any) -> Tensor: ...
        def __le__(self, other: Any) -> Tensor: ...
        def __gt__(self, other: Any) -> Tensor: ...
        def __ge__(self, other: Any) -> Tensor: ...
        def __eq__(self, other: object) -> Any: ...
        def __ne__(self, other: object) -> Any: ...


def is_constant(node: Node) -> bool:
    """Whether a node is a number that is part of the program."""
    return isinstance(node.storage, TensorLiteral)


def _lend_elements(elements: Array) -> Array:
    """The elements for a reader outside. From here on they are read-only in the tensor, so that not
    even a call that they are donated to writes over them."""
    shared = elements.view()
    elements.flags.writeable = False
    return shared


def from_array(array: Array, arena: Arena | None = None, requires_grad: bool = False) -> Tensor:
    """A tensor with these elements; the memory may be shared, so hand over what nobody writes."""
    home = arena or current()
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    kind = TensorType(as_dtype(array.dtype), tuple(array.shape))
    return Tensor(home.leaf(home.backend.store(array), kind), requires_grad)


def _unpickled(array: Array, requires_grad: bool) -> Tensor:
    return from_array(array, requires_grad=requires_grad)


@public
def eval(*values: Any) -> None:  # noqa: A001
    """Compute several tensors, or containers of tensors, in one program; shared work is done
    once."""
    found: list[Node] = []
    for value in values:
        leaves, structure = flatten(value)
        if structure is LEAF and not isinstance(value, Tensor):
            raise UserError(
                f"tensors, or containers of tensors, are computed, not {type(value).__name__}"
            )
        found += [leaf._node for leaf in leaves if isinstance(leaf, Tensor)]
    evaluate(found)


@overload
def tensor_method(function: F, /) -> F: ...
@overload
def tensor_method(*names: str) -> Callable[[F], F]: ...
def tensor_method(*given: Any) -> Any:
    """Install a function as a method of `Tensor`, under its own name or the names given."""
    if given and callable(given[0]):
        setattr(Tensor, given[0].__name__, given[0])
        return given[0]

    def install(function: F) -> F:
        for name in given:
            setattr(Tensor, name, function)
        return function

    return install


def tensor_property(function: F) -> F:
    """Install a function of one tensor as an attribute of `Tensor`, under its own name."""
    setattr(Tensor, function.__name__, property(function))
    return function
