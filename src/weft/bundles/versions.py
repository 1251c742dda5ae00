"""The compiled programs of a model: one, or for sizes that are not fixed those of a shape set.

Every size has a range. A size that inputs can be filled up to has a program for each bucket of its
shape set in that range; any other one has a program for each of its values. Sizes of results that
follow from those of the inputs are sums of products of them, which is proved on samples: other
formulas are refused.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Final, TypeAlias

from weft.bundles.model import Model
from weft.driver.compile import Executable, compile_program
from weft.driver.programs.shape_sets import EXACT, Clusters, ShapeSet
from weft.driver.stages.opaque import called_op, host_op
from weft.foundation.errors import SpecViolation, Unimplemented, UserError
from weft.ptir.ir import Program
from weft.ptir.specialise import settled_sizes, specialise
from weft.ptir.types import Symbol, TensorType, leaves, symbols_of
from weft.runtime.artifact import Artifact, HostCall
from weft.target.target import Target

Sizes: TypeAlias = dict[str, int]
Ranges: TypeAlias = dict[str, tuple[int, int]]
MOST_VERSIONS: Final = 64
_MOST_SIZES: Final = 6
"""Sizes that are not fixed: a formula of them has up to two to that many terms."""
_MOST_IN_ALL: Final = 64
"""Sizes that the runtime has room for."""
_SAMPLES: Final = 64


@dataclass(frozen=True)
class Version:
    """A compiled program, and the sizes that it is for."""

    sizes: Sizes
    filled: frozenset[str]
    """Which of them may be less, and are filled up."""
    told: tuple[str, ...]
    """The sizes that the program is told after its inputs."""
    artifact: Artifact


@dataclass(frozen=True)
class Follower:
    """A size that is a sum of products of others, over a number."""

    terms: tuple[tuple[int, frozenset[str]], ...]
    over: int

    def at(self, sizes: Mapping[str, int]) -> int:
        total = sum(times * math.prod(sizes[n] for n in names) for times, names in self.terms)
        return total // self.over


@dataclass(frozen=True)
class Versions:
    """All programs of a model, from small to large."""

    ranges: Ranges
    versions: tuple[Version, ...]
    followers: dict[str, Follower]


def compile_versions(model: Model, target: Target, ranges: Ranges) -> Versions:
    """The programs of a model for sizes in these ranges."""
    own = _sizes_of(model.program)
    _check_ranges(model, own, ranges)
    compiled = partial(_compile_version, model, target)
    if not own:
        return Versions({}, (Version({}, frozenset(), (), compiled(model.program).artifact),), {})
    clusters = Clusters(model.program, compiled, _buckets(model.shapes, ranges))
    ordered = {name: ranges[name] for name in own}
    versions = tuple(_versions(model, clusters, ordered))
    followers = _followers(model, clusters, ordered)
    if len(followers) + len(ordered) > _MOST_IN_ALL:
        raise Unimplemented(f"{len(followers)} sizes that follow", f"{_MOST_IN_ALL} are the most")
    return Versions(ordered, versions, followers)


def _sizes_of(program: Program) -> list[str]:
    """The sizes of the inputs that are not fixed, in order."""
    kinds = program.main.parameters
    return list(dict.fromkeys(symbol.name for kind in kinds for symbol in symbols_of(kind)))


def _check_ranges(model: Model, own: Sequence[str], ranges: Ranges) -> None:
    listed = ", ".join(own) or "none"
    for name, (least, most) in ranges.items():
        if name not in own:
            raise UserError(f"there is no size {name!r}; the open sizes are {listed}")
        if not 0 <= least <= most:
            raise UserError(f"the range of the size {name}, {least} to {most}, is empty")
    missing = [name for name in own if name not in ranges]
    if missing:
        raise UserError(
            f"the size {missing[0]} of {model.name} is open, and a bundle needs its range: "
            f"give sizes={{{missing[0]!r}: (1, 64)}}, or --dynamic {missing[0]}=1..64"
        )
    if len(own) > _MOST_SIZES:
        raise Unimplemented(f"{len(own)} open sizes", f"a bundle has {_MOST_SIZES} at most")


def _compile_version(model: Model, target: Target, program: Program) -> Executable:
    made = compile_program(program, target, donate=[state.input for state in model.states])
    for step in made.artifact.steps:
        if isinstance(step, HostCall):
            raise _refuse_step(program, step)
    return made


def _refuse_step(program: Program, step: HostCall) -> Unimplemented:
    """What cannot be in a bundle, and who wrote it."""
    op = called_op(step.call)
    written = ((body, i) for body in program.bodies for i in body.body)
    lines = (program.line(body, found) for body, found in written if found.op == op)
    line = next(filter(None, lines), "")
    where = f" ({line})" if line else ""
    return Unimplemented(
        f"{host_op(step.call).partition(' ')[0]}{where} in a bundle",
        f"it runs on the host, and a bundle has no NumPy: {host_op(step.call)}",
    )


def _buckets(shapes: ShapeSet | None, ranges: Ranges) -> ShapeSet:
    """What a shape set says inside the ranges: the sizes that inputs are filled up to."""
    chosen = shapes or ShapeSet()
    dims: dict[str, int | str | Sequence[int]] = {}
    for name, (least, most) in ranges.items():
        said = chosen.dims.get(name)
        if said == EXACT or most == 0:
            dims[name] = EXACT
            continue
        # What is larger than the last bucket is filled up to the end of the range.
        listed = [n for n in said if n < most] if isinstance(said, tuple) else ()
        doubled = {chosen.capacity(name, n) for n in range(max(1, least), most + 1)}
        sizes = {*(listed if isinstance(said, tuple) else doubled), most}
        dims[name] = sorted(size for size in sizes if max(1, least) <= size <= most)
    return ShapeSet(dims, most=MOST_VERSIONS)


def _versions(model: Model, clusters: Clusters[Executable], ranges: Ranges) -> Iterator[Version]:
    chosen = _choose_sizes(model, clusters, ranges)
    told = clusters.padded.sizes
    for sizes in chosen:
        fit = clusters.fit(_shapes(model, sizes))
        wanted = clusters.padded.padded if all(sizes[n] for n in clusters.padded.padded) else set()
        if wanted and not fit.cluster.padded:
            raise Unimplemented(f"the sizes {sizes} in a bundle", fit.cluster.reason)
        filled = fit.cluster.padded
        yield Version(sizes, filled, told if filled else (), fit.cluster.compiled.artifact)


def _choose_sizes(model: Model, clusters: Clusters[Executable], ranges: Ranges) -> list[Sizes]:
    """The sizes that programs are compiled for, from small to large."""
    padded = clusters.padded
    options = []
    for name, (least, most) in ranges.items():
        buckets = clusters.shapes.dims[name]
        every = name not in padded.padded or isinstance(buckets, str)
        # A size of 0 is never filled up, and neither are others beside it.
        zero = [0] if least == 0 else []
        options.append(list(range(least, most + 1)) if every else [*zero, *buckets])
    count = math.prod(map(len, options))
    if count > MOST_VERSIONS:
        reasons = [f"{name} is exact: {why}" for name, why in sorted(padded.refused.items())]
        told = f" ({'; '.join(reasons)})" if reasons else ""
        raise UserError(
            f"{model.name} needs a program for each of {count:,} sets of sizes, and a "
            f"bundle holds {MOST_VERSIONS} at most{told}; narrow the ranges, or give larger buckets"
        )
    found = [dict(zip(ranges, sizes, strict=True)) for sizes in itertools.product(*options)]
    for sizes in found:
        if any(sizes[n] == 0 for n in padded.padded) and len(ranges) > 1:
            raise Unimplemented("a range from 0 beside other open sizes", "start it at 1")
    return found


def _shapes(model: Model, sizes: Sizes) -> list[tuple[int, ...]]:
    """The shapes of all inputs for these sizes."""
    return [
        tuple(sizes[dim.name] if isinstance(dim, Symbol) else dim for dim in kind.shape)
        for kind in model.input_types
    ]


# -- sizes that follow from others ---------------------------------------------------------------


def _followers(model: Model, clusters: Clusters[Executable], ranges: Ranges) -> dict[str, Follower]:
    """The formulas of the sizes of results, and of those that a program is told."""
    kinds = model.result_types
    wanted = {dim.name for kind in kinds for dim in kind.shape if isinstance(dim, Symbol)}
    names = sorted((wanted | set(clusters.padded.sizes)) - ranges.keys())
    if not names:
        return {}

    @_remember_sizes
    def known(sizes: Sizes) -> Sizes:
        return _settle_sizes(model, clusters, sizes)

    return {name: _follower(name, known, ranges) for name in names}


def _settle_sizes(model: Model, clusters: Clusters[Executable], sizes: Sizes) -> Sizes:
    """All sizes of the program, from those of its inputs."""
    real = specialise(model.program, sizes)
    found = settled_sizes(model.program, real)
    actual = [leaf for kind in real.main.results for leaf in leaves(kind)]
    for kind, concrete in zip(model.result_types, actual, strict=True):
        found |= _symbol_sizes(kind, concrete)
    padded = clusters.padded.program
    return settled_sizes(padded, specialise(padded, sizes)) | found


def _symbol_sizes(kind: TensorType, concrete: TensorType) -> Sizes:
    pairs = zip(kind.shape, concrete.static_shape, strict=True)
    return {dim.name: size for dim, size in pairs if isinstance(dim, Symbol)}


def _remember_sizes(function: Callable[[Sizes], Sizes]) -> Callable[[Sizes], Sizes]:
    found: dict[tuple[tuple[str, int], ...], Sizes] = {}

    def call(sizes: Sizes) -> Sizes:
        key = tuple(sizes.items())
        if key not in found:
            found[key] = function(sizes)
        return found[key]

    return call


def _follower(name: str, known: Callable[[Sizes], Sizes], ranges: Ranges) -> Follower:
    """The sum of products that agrees with a size at the corners of the ranges, if it agrees with
    it elsewhere too."""
    terms: dict[frozenset[str], Fraction] = {}
    for corner in itertools.product(*ranges.values()):
        sizes = dict(zip(ranges, corner, strict=True))
        value = Fraction(known(sizes)[name])
        for key, times in _basis(sizes, ranges).items():
            terms[key] = terms.get(key, Fraction(0)) + value * times
    over = math.lcm(*(times.denominator for times in terms.values()))
    kept = sorted((sorted(key), times) for key, times in terms.items() if times)
    found = Follower(tuple((int(times * over), frozenset(key)) for key, times in kept), over)
    for sizes in _samples(ranges):
        try:
            real = known(sizes)[name]
        except SpecViolation:
            continue  # A run with these sizes is refused, too.
        if found.at(sizes) != real:
            raise Unimplemented(
                f"the size ?{name} in a bundle",
                f"it is not a sum of products of {', '.join(ranges)}: for {sizes} it is {real}",
            )
    return found


def _basis(corner: Sizes, ranges: Ranges) -> dict[frozenset[str], Fraction]:
    """The product that is 1 at a corner and 0 at all others, as a sum."""
    found = {frozenset[str](): Fraction(1)}
    for name, (least, most) in ranges.items():
        if least == most:
            continue
        other = most if corner[name] == least else least
        span = Fraction(corner[name] - other)
        grown: dict[frozenset[str], Fraction] = {}
        for key, times in found.items():
            grown[key | {name}] = times / span
            grown[key] = grown.get(key, Fraction(0)) - times * other / span
        found = grown
    width = math.prod(2 if least == most else 1 for least, most in ranges.values())
    # The corners of a range of one size are the same point, met twice.
    return {key: times / width for key, times in found.items()}


def _samples(ranges: Ranges) -> Iterator[Sizes]:
    """All sizes where they are few; else the first and last of every range, and some others."""
    count = math.prod(most - least + 1 for least, most in ranges.values())
    if count <= _SAMPLES:
        for sizes in itertools.product(*(range(a, b + 1) for a, b in ranges.values())):
            yield dict(zip(ranges, sizes, strict=True))
        return
    chance = random.Random(0)  # noqa: S311
    for name, (least, most) in ranges.items():
        rest = {other: span[1] for other, span in ranges.items() if other != name}
        for size in {*range(least, min(least + 16, most + 1)), *range(max(least, most - 8), most)}:
            yield {other: size if other == name else rest[other] for other in ranges}
    for _ in range(_SAMPLES):
        yield {name: chance.randint(least, most) for name, (least, most) in ranges.items()}
