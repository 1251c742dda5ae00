"""A model laid out for its bundle: what its tensors are called and where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.bundles.cubins import Cubins
from weft.bundles.model import Model
from weft.bundles.variants import Variant
from weft.bundles.versions import Follower, Ranges, Version
from weft.bundles.weights import Weights
from weft.foundation.dtypes import DType, Kind
from weft.foundation.errors import InternalError
from weft.ptir.types import Symbol, TensorType
from weft.runtime.artifact import BufferSlot

Array = NDArray[Any]
_CODES: Final = {
    Kind.SIGNED: 0, Kind.UNSIGNED: 1, Kind.FLOAT: 2, Kind.COMPLEX: 5, Kind.BOOL: 6,
}  # fmt: skip
_OWN_CODES: Final = {"bf16": 4, "fp8_e4m3": 10, "fp8_e5m2": 12}


@dataclass(frozen=True)
class Tensor:
    """An input, a result or a state. A negative number n in its shape is size -1 - n."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def dlpack(self) -> tuple[int, int]:
        """DLPack's type code, and the bits of an element."""
        code = _OWN_CODES.get(self.dtype.name, _CODES[self.dtype.kind])
        return code, 8 if self.dtype.kind is Kind.BOOL else self.dtype.bits


def stored(model: Model, variants: Sequence[Variant]) -> dict[str, Array]:
    """What the file of weights holds: weights by name, what states begin with unless it is zeros,
    and the constants of the programs."""
    names = _rename_doubles([model.input_names[n] for n in model.weights])
    found = dict(zip(names, model.weights.values(), strict=True))
    for state in model.states:
        # By bytes: -0.0 equals 0, and is not what memory of zeros holds.
        if np.ascontiguousarray(state.first).reshape(-1).view(np.uint8).any():
            found[f"state.{model.input_names[state.input]}"] = state.first
    for constant in _constants(variants):
        found[f"constant.{len(found)}"] = np.frombuffer(constant, _widest(len(constant)))
    return found


def _widest(count: int) -> Any:
    """A dtype of which so many bytes are whole elements: constants have lost theirs, and are to be
    aligned to it."""
    return next(
        kind
        for kind in (np.uint64, np.uint32, np.uint16, np.uint8)
        if count % np.dtype(kind).itemsize == 0
    )


def constant_places(tensors: Mapping[str, Array], variants: Sequence[Variant]) -> dict[bytes, int]:
    """Which of the stored tensors the constants of programs are: they are the last."""
    constants = _constants(variants)
    first = len(tensors) - len(constants)
    return {data: first + number for number, data in enumerate(constants)}


def _constants(variants: Sequence[Variant]) -> dict[bytes, None]:
    """The constants of all programs, each once."""
    versions = (version for variant in variants for version in variant.compiled.versions)
    return dict.fromkeys(data for v in versions for data in v.artifact.constants if data)


def _rename_doubles(names: list[str]) -> list[str]:
    """Names of which no two are equal."""
    found: dict[str, None] = {}
    for name in names:
        other, count = name, 1
        while other in found:
            count += 1
            other = f"{name}.{count}"
        found[other] = None
    return list(found)


@dataclass(frozen=True)
class Layout:
    """Everything that the C source of a model says: that of a bundle, or of one of its libraries,
    which has the variants of one kind of machine."""

    model: Model
    variants: tuple[Variant, ...]
    weights: Weights
    stored: Mapping[str, Array]
    constants: Mapping[bytes, int]
    """Which of the stored tensors each constant of a program is."""
    made_by: str
    loop_steps: int
    cubins: Cubins | None = None
    """The machine code of a GPU; that of processors is in the library."""

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def target(self) -> str:
        """What it is built for, in words."""
        return ", ".join(variant.words for variant in self.variants)

    @cached_property
    def versions(self) -> tuple[Version, ...]:
        """The programs of all variants, one variant after the other."""
        return tuple(each for variant in self.variants for each in variant.compiled.versions)

    @property
    def ranges(self) -> Ranges:
        """Of the model, and so of every variant."""
        return self.variants[0].compiled.ranges

    @property
    def followers(self) -> dict[str, Follower]:
        return self.variants[0].compiled.followers

    @property
    def inputs(self) -> list[Tensor]:
        kinds, names = self.model.input_types, self.model.input_names
        return [self._tensor(names[n], kinds[n]) for n in self.model.data]

    @property
    def results(self) -> list[Tensor]:
        return [self._tensor(name, self.model.result_types[n]) for n, name in self.model.results]

    @property
    def states(self) -> list[Tensor]:
        kinds, names = self.model.input_types, self.model.input_names
        return [self._tensor(names[s.input], kinds[s.input]) for s in self.model.states]

    @property
    def ends(self) -> list[int]:
        """The results of the program that the caller gets, and then the new states."""
        return [*(n for n, _ in self.model.results), *(s.result for s in self.model.states)]

    @property
    def first_states(self) -> list[int]:
        """Where what each state begins with is among the weights; -1: it is zeros."""
        places = dict(zip(self.stored, self.weights.offsets, strict=True))
        names = [self.model.input_names[state.input] for state in self.model.states]
        return [places.get(f"state.{name}", -1) for name in names]

    def _tensor(self, name: str, kind: TensorType) -> Tensor:
        sizes = [*self.ranges, *self.followers]
        shape = tuple(
            -1 - sizes.index(dim.name) if isinstance(dim, Symbol) else dim for dim in kind.shape
        )
        return Tensor(name, kind.dtype, shape)

    def place(self, slot: BufferSlot, version: Version) -> tuple[str, int]:
        """Where a buffer of a program is, as the runtime says it."""
        match slot.space:
            case "input":
                return self._inputs[slot.number]
            case "output":
                return "weft_in_output", self.ends.index(slot.number)
            case "constant":
                data = version.artifact.constants[slot.number]
                return "weft_in_weight", self.constants.get(data, 0)
            case "arena":
                return "weft_in_arena", 0
            case "run":
                return "weft_in_run", slot.number
        raise InternalError(f"a bundle has no memory of the space {slot.space}")

    @cached_property
    def _inputs(self) -> list[tuple[str, int]]:
        """What every input of the programs is; the last are the sizes that they are told."""
        model, spaces = self.model, dict[int, tuple[str, int]]()
        for space, numbers in (
            ("weft_in_data", model.data),
            ("weft_in_weight", list(model.weights)),
            ("weft_in_state", [state.input for state in model.states]),
        ):
            spaces |= {number: (space, place) for place, number in enumerate(numbers)}
        count = len(model.input_types)
        told = [("weft_in_told", n) for n in range(max(len(v.told) for v in self.versions))]
        return [*(spaces[number] for number in range(count)), *told]
