"""`weft.run`: verify a program, check the inputs, bind its dims, legalise it, and carry it out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

from numpy.typing import NDArray

from weft.core_ir.ir import Module
from weft.core_ir.to_ptir import core_violation, to_ptir
from weft.driver.agreement import Agreement, agreement_on, same_inputs
from weft.driver.backends import (
    Backend,
    DonatingBackend,
    Executable,
    HoldingExecutable,
    KeepingBackend,
    Storage,
    check_backend,
    default_backend,
    get_backend,
    is_own,
)
from weft.driver.inputs import check_inputs, check_seed
from weft.driver.legalise import legalise
from weft.driver.loading.guard import guarded
from weft.driver.loading.plugins import described
from weft.foundation.calls import options_told, told_outside
from weft.foundation.errors import BackendUnavailable, ResourceExceeded, SpecViolation, UserError
from weft.foundation.forks import new_lock, no_fork
from weft.foundation.launches import note_nothing_started
from weft.ptir.interp import Observer
from weft.ptir.ir import Program
from weft.ptir.passes.log import PassLog
from weft.ptir.specialise import bind_shapes, specialise
from weft.ptir.types import TensorType, leaves
from weft.ptir.verify import check_program, verify

Array = NDArray[Any]


@told_outside
@options_told("weft.run")
def run(
    program: Program | Module,
    inputs: Sequence[Any] = (),
    *,
    backend: str | Backend | None = None,
    seed: int = 0,
    observer: Observer | None = None,
    log: PassLog | None = None,
) -> list[Array]:
    """Run a program. Inputs and results are flat lists: tuples are flattened in order.

    A Core IR module is lowered to PTIR first, and what goes wrong is told in its own codes.

    Arrays must have exactly the declared dtype; Python numbers and lists are converted where that
    loses nothing. `backend` is a name or a backend itself, the default one if none is given. `seed`
    (64 bits) feeds the random ops.
    `observer` is told the time of every instruction, on backends that run one at a time. `log` is
    told which ops were decomposed for the backend.
    """
    if isinstance(program, Module):
        lowered = to_ptir(program)
        with in_core_words(lowered):
            return run(lowered, inputs, backend=backend, seed=seed, observer=observer, log=log)
    check_program("run", program)
    seed = check_seed(seed)
    chosen = _choose_backend(backend)
    try:
        return _run_program(program, inputs, chosen, seed, observer, log)
    except MemoryError:
        raise ResourceExceeded(f"out of memory while running @{program.entry}") from None


def _run_program(
    program: Program,
    inputs: Sequence[Any],
    chosen: Backend,
    seed: int,
    observer: Observer | None,
    log: PassLog | None,
) -> list[Array]:
    verify(program)
    arrays = check_inputs(program, inputs)
    sizes = bind_shapes(program.main.parameters, [array.shape for array in arrays])
    prepared = _RECENT.find(program, chosen, sizes) if log is None else None
    if prepared is None:
        made = _prepare(specialise(program, sizes), chosen, log)
        prepared = replace(made, source=program)
        _RECENT.keep(program, chosen, sizes, prepared)
    stored = [chosen.store(array) for array in arrays]
    prepared.agree()
    results = prepared.executable.execute(stored, seed=seed, observer=observer)
    kinds = prepared.results
    return [chosen.read_storage(x, kind) for x, kind in zip(results, kinds, strict=True)]


@dataclass(frozen=True)
class Prepared:
    """A program that was verified, legalised and compiled once, for any number of runs."""

    program: Program
    backend: Backend
    executable: Executable
    donated: frozenset[int] = frozenset()
    """The positions of the inputs that a run may overwrite."""
    files: list[str] = field(default_factory=list, compare=False, repr=False)
    """Where its profiles and pages were written, in words for `explain`."""
    source: Program | None = field(default=None, compare=False, repr=False)
    """What the program was before its sizes were filled in and passes changed it."""

    def note_file(self, told: str) -> None:
        """Remember a file that tells of this program, in words; it is named once."""
        if told not in self.files:
            self.files.append(told)

    @cached_property
    def results(self) -> tuple[TensorType, ...]:
        """The types of the flattened results."""
        return tuple(leaf for kind in self.program.main.results for leaf in leaves(kind))

    @cached_property
    def _agreement(self) -> Agreement | None:
        return agreement_on(self.source or self.program)

    @cached_property
    def _same_inputs(self) -> tuple[int, ...]:
        return same_inputs(self.source or self.program)

    def agree(self, inputs: Sequence[Storage] = ()) -> None:
        """Return when all ranks have come to this program, which they run together. Of the inputs
        those are looked at that are to be the same on all ranks."""
        if self._agreement is None:
            return

        def arrays() -> list[Array | None]:
            found: list[Array | None] = [None] * len(inputs)
            for at in self._same_inputs if inputs else ():
                kind = self.program.main.parameters[at]
                if isinstance(kind, TensorType):
                    found[at] = self.backend.read_storage(inputs[at], kind)
            return found

        self._agreement.reach(arrays)

    @cached_property
    def _holding_executable(self) -> HoldingExecutable | None:
        return self.executable if isinstance(self.executable, HoldingExecutable) else None

    def execute(
        self,
        inputs: Sequence[Storage],
        *,
        seed: int = 0,
        holder: object = None,
        data: Sequence[int] = (),
    ) -> list[Storage]:
        """The flattened results for flattened inputs, as the backend stores them. While `holder`
        stays the same, so do all inputs but those at the positions `data`."""
        if self._agreement is not None:
            try:
                self.agree(inputs)
            except BaseException as error:
                note_nothing_started(error)
                raise
        held = self._holding_executable if holder is not None else None
        if held is None:
            return self.executable.execute(inputs, seed=seed)
        return held.execute_held(inputs, holder, data, seed=seed)


def prepare(
    program: Program,
    backend: Backend,
    donated: frozenset[int] = frozenset(),
    params: frozenset[int] = frozenset(),
) -> Prepared:
    """Make a program without dynamic dims ready to run on tensors that the backend holds.

    `donated` are the positions of (flattened) inputs whose memory a run may use for its results,
    `params` of others that are the same in many runs. A backend that can use the one or both has
    methods `compile_donating(program, donated)` and `compile_keeping(program, donated, params)`.
    """
    verify(program)
    chosen = guarded(backend)
    if params and isinstance(chosen, KeepingBackend):
        ready = legalise(program, chosen, None)
        made = chosen.compile_keeping(ready, donated, params - donated)
        return Prepared(program, chosen, made, donated)
    if donated and isinstance(chosen, DonatingBackend):
        ready = legalise(program, chosen, None)
        return Prepared(program, chosen, chosen.compile_donating(ready, donated), donated)
    return _prepare(program, chosen, None)


def _prepare(program: Program, backend: Backend, log: PassLog | None) -> Prepared:
    with no_fork:
        return Prepared(program, backend, backend.compile(legalise(program, backend, log)))


class _Recent:
    """The programs that `run` prepared last, by identity: running one again does not compile it
    again. Only for Weft's own backends; what others do in `compile` is their business."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._holding_executable: OrderedDict[_Key, tuple[Program, Prepared]] = OrderedDict()
        self._lock = new_lock()

    def find(self, program: Program, backend: Backend, sizes: Mapping[str, int]) -> Prepared | None:
        key = _program_key(program, backend, sizes)
        with self._lock:
            held = self._holding_executable.get(key)
            if held is None:
                return None
            self._holding_executable.move_to_end(key)
            return held[1]

    def keep(
        self, program: Program, backend: Backend, sizes: Mapping[str, int], prepared: Prepared
    ) -> None:
        if is_own(backend):
            with self._lock:
                # Program and backend are held, so that no other object gets their identities.
                self._holding_executable[_program_key(program, backend, sizes)] = (
                    program,
                    prepared,
                )
                while len(self._holding_executable) > self.most:
                    self._holding_executable.popitem(last=False)


_Key: TypeAlias = tuple[int, int, tuple[tuple[str, int], ...]]


def _program_key(program: Program, backend: Backend, sizes: Mapping[str, int]) -> _Key:
    return id(program), id(backend), tuple(sorted(sizes.items()))


_RECENT = _Recent(16)


def _choose_backend(backend: str | Backend | None) -> Backend:
    backend = default_backend() if backend is None else backend
    check_choice(backend)
    return guarded(get_backend(backend) if isinstance(backend, str) else backend)


def check_choice(backend: str | Backend) -> None:
    """A backend is asked for by its name, or is one."""
    if isinstance(backend, str):
        return
    if not hasattr(backend, "compile"):
        raise UserError(f"{described(backend)} is neither the name of a backend nor a backend")
    if not is_own(backend):
        check_backend(backend)


@contextmanager
def in_core_words(program: Program) -> Iterator[None]:
    """What goes wrong inside is about the module that `program` was lowered from."""
    try:
        yield
    except SpecViolation as error:
        raise core_violation(error, program) from None
    except BackendUnavailable as error:
        raise BackendUnavailable(f"E6002: {error}") from None
