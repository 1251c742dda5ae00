"""Hypothesis strategies: programs, dtypes, shapes and arrays for property tests.

    @given(programs(max_size=10))
    def test_my_backend(case: RandomCase) -> None:
        assert compare(case.program, case.inputs, "mine").agrees

Hypothesis draws the seed and the size of a program and makes both as small as it can when a test
fails; from there, `weft.testing.reduce_program` goes much further.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from numpy.typing import NDArray

from weft.driver.inputs import MAX_SEED
from weft.foundation.dtypes import ALL, DType, as_dtype, in_order
from weft.foundation.errors import UserError
from weft.ptir.op import Op
from weft.ptir.types import TensorType, tensor
from weft.testing.data import DataSource
from weft.testing.facts import Facts, limit, part_dtype
from weft.testing.random_programs import RandomCase, random_program

Array = NDArray[Any]


def programs(
    *,
    min_size: int = 1,
    max_size: int = 12,
    ops: Iterable[type[Op] | str] | None = None,
    dtypes: Iterable[DType | str] | None = None,
    control_flow: bool = True,
    dynamic: bool = True,
) -> SearchStrategy[RandomCase]:
    """Random programs with inputs, as `weft.testing.random_program` makes them."""
    make = partial(
        random_program,
        ops=None if ops is None else tuple(ops),
        dtypes=None if dtypes is None else tuple(dtypes),
        control_flow=control_flow,
        dynamic=dynamic,
    )
    # The size comes first: Hypothesis shrinks what it drew first hardest.
    drawn = st.tuples(st.integers(min_size, max_size), st.integers(0, MAX_SEED))
    return drawn.map(lambda pair: make(pair[1], pair[0]))


def dtypes(among: Iterable[DType | str] | None = None) -> SearchStrategy[DType]:
    """The nineteen dtypes, or some of them."""
    chosen = ALL if among is None else tuple(in_order({as_dtype(dtype) for dtype in among}))
    return st.sampled_from(chosen)


def shapes(
    min_rank: int = 0, max_rank: int = 4, max_dim: int = 6, *, empty: bool = True
) -> SearchStrategy[tuple[int, ...]]:
    """Static shapes; with `empty`, a dim may be 0."""
    dims = st.integers(0 if empty else 1, max_dim)
    return st.lists(dims, min_size=min_rank, max_size=max_rank).map(tuple)


@st.composite
def arrays(
    draw: DrawFn, kind: TensorType | SearchStrategy[TensorType], *, special: bool = False
) -> Array:
    """Arrays of a static tensor type (or of types drawn from a strategy): integers over the whole
    range, floats exact multiples of a power of two. With `special`, floats are sprinkled with NaN,
    infinities and -0."""
    wanted = draw(kind) if isinstance(kind, SearchStrategy) else kind
    if not wanted.is_static:
        raise UserError(f"{wanted} has a dynamic dimension; give the arrays a size")
    source = DataSource(draw(st.integers(0, MAX_SEED)))
    return source.array(wanted.dtype, wanted.static_shape, _draw_facts(draw, wanted.dtype, special))


def _draw_facts(draw: DrawFn, dtype: DType, special: bool) -> Facts:
    if dtype.is_float or dtype.is_complex:
        top = float(draw(st.sampled_from((1, 2, 8, 64))))
        step = top / 2 ** draw(st.integers(0, part_dtype(dtype).precision - 1))
        return Facts(-top, top, step, special and dtype.is_float)
    if dtype.is_integer and draw(st.booleans()):
        return Facts(int(dtype.lowest), int(dtype.highest))
    return Facts(max(int(dtype.lowest), -3), min(int(limit(dtype)), 3))


def types(
    of: SearchStrategy[DType] | None = None,
    shape: SearchStrategy[tuple[int, ...]] | None = None,
) -> SearchStrategy[TensorType]:
    """Static tensor types."""
    kinds = dtypes() if of is None else of
    return st.builds(tensor, kinds, shapes() if shape is None else shape)
