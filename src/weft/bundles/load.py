"""`weft.load_bundle`: a bundle run from Python, without the compiler.

This needs NumPy and the bundle's own library, nothing else. The digests of all files are checked
before any code of them is loaded.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.bundles import manifest
from weft.bundles.manifest import Manifest, TensorEntry
from weft.foundation.calls import told_outside
from weft.foundation.dtypes import BY_NAME
from weft.foundation.errors import (
    BackendUnavailable,
    ExecutionError,
    InternalError,
    ResourceExceeded,
    SpecViolation,
    UserError,
)

Array = NDArray[Any]
_VIOLATION, _NO_MEMORY, _ENDLESS, _NO_DEVICE, _DRIVER = -7, -2, -8, -10, -11
_CUDA: Final = 2
"""The device type of memory on a GPU."""


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int32), ("text", ctypes.c_char * 508)]


class _Options(ctypes.Structure):
    _fields_ = [
        ("bytes", ctypes.c_uint32),
        ("threads", ctypes.c_int32),
        ("memory_limit", ctypes.c_uint64),
        ("allocate", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("user", ctypes.c_void_p),
        ("verify", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("target", ctypes.c_char_p),
    ]


class _Type(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("element_bytes", ctypes.c_uint16),
        ("ndim", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
    ]


class _Signature(ctypes.Structure):
    _fields_ = [
        ("abi", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("target", ctypes.c_char_p),
        ("made_by", ctypes.c_char_p),
        ("inputs", ctypes.c_int32),
        ("results", ctypes.c_int32),
        ("states", ctypes.c_int32),
        ("sizes", ctypes.c_int32),
        ("input", ctypes.POINTER(_Type)),
        ("result", ctypes.POINTER(_Type)),
        ("state", ctypes.POINTER(_Type)),
        ("size", ctypes.c_void_p),
    ]


_POINTER: Final = ctypes.c_void_p
_TENSORS: Final = ctypes.POINTER(_Tensor)
_ERROR: Final = ctypes.POINTER(_Error)
_FUNCTIONS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "signature": (ctypes.POINTER(_Signature), ()),
    "open": (ctypes.c_int, (ctypes.c_char_p, ctypes.POINTER(_Options), _POINTER, _ERROR)),
    "target": (ctypes.c_char_p, (_POINTER,)),
    "close": (None, (_POINTER,)),
    "context_new": (ctypes.c_int, (_POINTER, _POINTER, _ERROR)),
    "context_free": (None, (_POINTER,)),
    "results": (ctypes.c_int, (_TENSORS, _TENSORS, _ERROR)),
    "run": (ctypes.c_int, (_POINTER, _TENSORS, _TENSORS, ctypes.c_uint64, _ERROR)),
    "state": (ctypes.c_int, (_POINTER, ctypes.c_int32, _TENSORS, _ERROR)),
    "reset": (None, (_POINTER,)),
}
_ON_GPUS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "read_state": (ctypes.c_int, (_POINTER, ctypes.c_int32, _POINTER, _ERROR)),
}
"""What a bundle for a GPU has beside."""


def _fits_manifest(own: _Signature, found: Manifest) -> bool:
    """Whether a library takes and gives what a manifest says: memory is made by its word."""
    sides = (
        (own.inputs, own.input, found.inputs),
        (own.results, own.result, found.results),
        (own.states, own.state, found.states),
    )
    return own.abi == manifest.ABI and all(
        count == len(entries)
        and all(_is_of(entry, types[number]) for number, entry in enumerate(entries))
        for count, types, entries in sides
    )


def _is_of(entry: TensorEntry, own: _Type) -> bool:
    """Whether a tensor of a manifest is of a type, in whose shape open sizes are negative."""
    return (
        own.dtype == entry.dtype.encode()
        and own.ndim == len(entry.shape)
        and all(
            own.shape[axis] < 0 if isinstance(size, str) else own.shape[axis] == size
            for axis, size in enumerate(entry.shape)
        )
    )


@told_outside
def load_bundle(
    folder: str | os.PathLike[str],
    *,
    threads: int = 1,
    verify: bool = True,
    device: int = 0,
    target: str | None = None,
) -> Bundle:
    """A model that `weft.build` wrote, ready to run with so many threads, or on the GPU of a number
    where it is built for one. The code in the folder is run by this process: load what you trust.
    With `verify` every file is compared with its digest; without it the weights are mapped and read
    when they are used. Of several targets that it is built for the best that this machine runs is
    chosen, or the one that is named."""
    if type(threads) is not int or not 1 <= threads <= 4096:
        raise UserError(f"threads is {threads!r}; it must be a number from 1 to 4096")
    if type(device) is not int or not 0 <= device < 1 << 16:
        raise UserError(f"device is {device!r}; it must be the number of a GPU, counted from 0")
    found = manifest.read_manifest(Path(folder))
    _check_target(found, target)
    if verify:
        found.check_files()
    else:
        found.check_library(platform.machine())
    return Bundle(found, threads, device, target)


def _check_target(found: Manifest, target: str | None) -> None:
    """There is code for this kind of machine, of the target that is wanted."""
    if target is not None and target not in found.targets:
        raise UserError(
            f"the bundle {found.folder} has no code for {target!r:.40}: it was built for "
            f"{', '.join(found.targets)}"
        )
    wanted = found.targets if target is None else {target: found.targets[target]}
    if platform.machine() not in wanted.values():
        raise BackendUnavailable(
            f"the bundle {found.folder} is for {', '.join(dict.fromkeys(wanted.values()))}, but "
            f"this machine is {platform.machine()}: build it for this machine"
        )


def _spell_path(library: Path) -> str:
    """A path of a library that no file had before it. The system knows what it has loaded by the
    text of its path, and would take the old library where a bundle was built anew: so the number of
    the file is spelled in the path, by steps that go nowhere."""
    steps = ("/." if bit == "1" else "/" for bit in f"{library.stat().st_ino:b}")
    return f"{library.parent}{''.join(steps)}/{library.name}"


class _Code:
    """The functions of a bundle's library."""

    def __init__(self, found: Manifest) -> None:
        try:
            library = ctypes.CDLL(_spell_path(found.library(platform.machine()).resolve()))
            functions = _FUNCTIONS | (_ON_GPUS if found.on_gpu else {})
            for name, (result, arguments) in functions.items():
                function = library[f"{found.name}_{name}"]
                function.restype, function.argtypes = result, list(arguments)
                setattr(self, name, function)
        except (OSError, AttributeError) as error:
            raise UserError(
                f"the library of the bundle {found.folder} cannot be loaded: {error}",
                "DamagedBundle",
            ) from None
        self.signature_of: _Signature = self.signature().contents
        if not _fits_manifest(self.signature_of, found):
            raise UserError(
                f"the library of the bundle {found.folder} is not the one that its manifest "
                "describes",
                "DamagedBundle",
            )

    signature: Any
    open: Any
    target: Any
    close: Any
    context_new: Any
    context_free: Any
    results: Any
    run: Any
    state: Any
    read_state: Any
    reset: Any


class _Users:
    """The bundle and its instances, which share a program. The last of them closes it: Python ends
    those that die together in any order, from any thread, and inside of any call. So the others
    are a list, whose methods nothing can interrupt."""

    def __init__(self, close: Callable[[], object]) -> None:
        self._close, self._others = close, list[None]()

    def join(self) -> None:
        self._others.append(None)

    def leave(self) -> None:
        try:
            self._others.pop()
        except IndexError:
            self._close()


class Bundle:
    """A model with its weights: `bundle(x, y)` gives the list of its results. Any number of threads
    may call it. One with state has it in instances, which `instance()` makes."""

    def __init__(self, found: Manifest, threads: int, device: int, target: str | None) -> None:
        self._manifest = found
        self._code = _Code(found)
        options = _Options(bytes=ctypes.sizeof(_Options), threads=threads, device=device)
        options.target = None if target is None else target.encode()
        self._program = ctypes.c_void_p()
        error = _Error()
        folder = os.fsencode(found.folder)
        if self._code.open(folder, options, ctypes.byref(self._program), error):
            raise _make_error(error)
        self._users = _Users(partial(self._code.close, self._program))
        self._idle: list[Instance] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Bundle {self.name}: {len(self.inputs)} inputs, {len(self.results)} results>"

    def __del__(self) -> None:
        if getattr(self, "_users", None):
            self._users.leave()

    @property
    def name(self) -> str:
        return self._manifest.name

    @property
    def target(self) -> str:
        """Whose code it runs."""
        return str(self._code.target(self._program).decode())

    @property
    def inputs(self) -> tuple[TensorEntry, ...]:
        """Name, dtype and shape of what it takes."""
        return self._manifest.inputs

    @property
    def results(self) -> tuple[TensorEntry, ...]:
        """Name, dtype and shape of what it gives."""
        return self._manifest.results

    @property
    def states(self) -> tuple[TensorEntry, ...]:
        """Name, dtype and shape of what an instance keeps."""
        return self._manifest.states

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """The ranges of open sizes."""
        return dict(self._manifest.sizes)

    def instance(self) -> Instance:
        """Memory to run in, and a state of its own; for one thread at a time."""
        return Instance(self)

    @told_outside
    def __call__(self, *inputs: Any, seed: int = 0) -> list[Array]:
        """The results of a run. A model with state has one instance for all such calls."""
        if self.states:
            with self._lock:
                if not self._idle:
                    self._idle.append(self.instance())
                return self._idle[0](*inputs, seed=seed)
        with self._lock:
            instance = self._idle.pop() if self._idle else None
        instance = instance or self.instance()
        try:
            return instance(*inputs, seed=seed)
        finally:
            with self._lock:
                self._idle.append(instance)


class Instance:
    """The memory of one run at a time, and the state that runs update."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle, self._code = bundle, bundle._code
        self._context = ctypes.c_void_p()
        error = _Error()
        if self._code.context_new(bundle._program, ctypes.byref(self._context), error):
            raise _make_error(error)
        self._users = bundle._users
        self._users.join()
        own = self._code.signature_of
        self._kinds = [BY_NAME[entry.dtype].numpy for entry in bundle.inputs]
        self._types = [own.input[n] for n in range(own.inputs)]
        self._inputs = (_Tensor * max(1, own.inputs))()
        self._results = (_Tensor * max(1, own.results))()
        self._error = error

    def __del__(self) -> None:
        if getattr(self, "_context", None):
            self._code.context_free(self._context)
            self._users.leave()

    @told_outside
    def __call__(self, *inputs: Any, seed: int = 0) -> list[Array]:
        """The results of a run."""
        if type(seed) is not int or not 0 <= seed < 1 << 64:
            raise UserError(f"seed {seed!r:.60} is not a whole number from 0 to 2^64 - 1")
        held = self._fill(inputs)
        if self._code.results(self._inputs, self._make_results(), self._error):
            raise _make_error(self._error)
        made = [self._room(n, entry) for n, entry in enumerate(self._bundle.results)]
        if self._code.run(self._context, self._inputs, self._results, seed, self._error):
            raise _make_error(self._error)
        del held
        return made

    def reset(self) -> None:
        """All states as they were at first."""
        self._code.reset(self._context)

    @property
    def states(self) -> dict[str, Array]:
        """The states by name, in the memory that runs read and write; copies where that is on a
        GPU."""
        found: dict[str, Array] = {}
        for number, entry in enumerate(self._bundle.states):
            tensor = _Tensor()
            if self._code.state(self._context, number, tensor, self._error):
                raise _make_error(self._error)
            dtype = BY_NAME[entry.dtype].numpy
            shape = [size for size in entry.shape if isinstance(size, int)]
            if tensor.device_type == _CUDA:
                copy = np.empty(shape, dtype)
                place = copy.ctypes.data_as(ctypes.c_void_p)
                if self._code.read_state(self._context, number, place, self._error):
                    raise _make_error(self._error)
                found[entry.name] = copy
                continue
            count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            memory: Any = (ctypes.c_uint8 * count).from_address(tensor.data or 0)
            memory.instance = self  # The memory is there while somebody looks at it.
            found[entry.name] = np.ndarray(shape, dtype, memory)
        return found

    def _fill(self, inputs: Sequence[Any]) -> list[Any]:
        """Describe the inputs; what is returned must live as long as the run."""
        if len(inputs) != len(self._kinds):
            listed = ", ".join(entry.name for entry in self._bundle.inputs) or "nothing"
            name = self._bundle.name
            raise UserError(f"{name} takes {len(self._kinds)} inputs ({listed}), not {len(inputs)}")
        held: list[Any] = []
        for number, (value, dtype) in enumerate(zip(inputs, self._kinds, strict=True)):
            array = self._array(number, value, dtype)
            shape = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
            tensor, kind = self._inputs[number], self._types[number]
            tensor.data, tensor.device_type = array.ctypes.data, 1
            tensor.ndim, tensor.shape, tensor.lanes = array.ndim, shape, 1
            tensor.code, tensor.bits = kind.code, kind.bits
            held += [array, shape]
        return held

    def _array(self, number: int, value: Any, dtype: np.dtype[Any]) -> Array:
        array = np.asarray(value)
        if array.dtype != dtype and isinstance(value, np.ndarray | np.generic):
            name = self._bundle.inputs[number].name
            raise UserError(
                f"the input {name} has dtype {array.dtype}, but the model takes {dtype}; convert "
                "it with .astype first"
            )
        return np.require(array, dtype, ["C", "A"])

    def _make_results(self) -> Any:
        """The results, with room for their shapes alone."""
        for number, entry in enumerate(self._bundle.results):
            tensor = self._results[number]
            tensor.data = None
            tensor.shape = (ctypes.c_int64 * max(1, len(entry.shape)))()
        return self._results

    def _room(self, number: int, entry: TensorEntry) -> Array:
        """Memory for a result whose shape is known."""
        tensor = self._results[number]
        shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
        made = np.empty(shape, BY_NAME[entry.dtype].numpy)
        tensor.data = made.ctypes.data
        return made


def _make_error(error: _Error) -> Exception:
    """What C said, as the error that Weft would raise."""
    text = error.text.decode(errors="replace")
    if error.code == _VIOLATION:
        code, _, rest = text.partition(" at ")
        where, _, why = rest.partition(": ")
        return SpecViolation(code, why, where=where)
    if error.code == _NO_MEMORY:
        return ResourceExceeded(text)
    if error.code in (_ENDLESS, _DRIVER):
        return ExecutionError(text)
    if error.code == _NO_DEVICE:
        return BackendUnavailable(text)
    if error.code >= 0:
        return InternalError(f"a bundle reported {error.code}: {text}")
    return UserError(text)
