"""Random programs: valid, deterministic, well conditioned, and over every op and dtype.

A seed always makes the same program and the same inputs. Programs verify, run on the reference
backend, and are fair to other backends: functions are used inside their domains, numbers stay far
from overflow, indices are in range, loops end, and ops that jump see only values that every correct
backend computes exactly (see `weft.testing.facts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

from weft.driver.inputs import check_seed
from weft.driver.loading.plugins import described
from weft.foundation.dtypes import ALL, DType, as_dtype, in_order
from weft.foundation.errors import UserError
from weft.ptir.ir import Program, Ref
from weft.ptir.op import SPELLINGS, Op
from weft.ptir.types import Dim, TensorType, TupleType
from weft.testing.choices import Choices
from weft.testing.data import DataSource
from weft.testing.draft import Bundle, Draft, Item, Symbols
from weft.testing.generator import Generator, Rules, Setting
from weft.testing.generators import GENERATORS, grow

MAX_SIZE = 1_000_000
ATTEMPTS = 16
"""From how many seeds it is told that rules allow nothing."""


@dataclass(frozen=True)
class RandomCase:
    """A random program with inputs for it."""

    program: Program
    inputs: list[NDArray[Any]]
    seed: int

    def __repr__(self) -> str:
        count = sum(len(body.body) for body in self.program.bodies)
        return f"<random program {self.seed} with {count} instructions>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What IPython and Hypothesis print; the fields alone would fill pages."""
        printer.text(repr(self))


def random_program(
    seed: int,
    size: int = 20,
    *,
    ops: Iterable[type[Op] | str] | None = None,
    dtypes: Iterable[DType | str] | None = None,
    control_flow: bool = True,
    dynamic: bool = True,
) -> RandomCase:
    """The random program of about `size` instructions that belongs to a seed.

    `ops` (classes, or names as in the text form: "add", "dot_general") and `dtypes` restrict what
    the program may contain, for backends that do not have everything; nothing else occurs in it.
    Without `control_flow` there are no regions, without `dynamic` no symbols.
    """
    seed, size = check_seed(seed), _check_size(size, "size")
    rules = rules_for(ops, dtypes, control_flow=control_flow, dynamic=dynamic)
    draft, results = drafted(seed, size, rules)
    if size and not draft.steps and not _is_possible(rules):
        raise UserError(
            "none of the ops that are allowed can be used: the others, the dtypes or the control "
            "flow that they need are not allowed"
        )
    return RandomCase(draft.build("main", results), draft.arrays(), seed)


@lru_cache(maxsize=64)
def _is_possible(rules: Rules) -> bool:
    """Whether the rules allow any instruction at all: one seed alone may have had no luck."""
    return any(drafted(seed, 20, rules)[0].steps for seed in range(ATTEMPTS))


def _check_size(value: Any, what: str) -> int:
    whole = hasattr(value, "__index__") and not isinstance(value, bool)
    if not whole or not 0 <= int(value) <= MAX_SIZE:
        raise UserError(f"{what} {described(value)} is not a whole number from 0 to {MAX_SIZE:,}")
    return int(value)


def rules_for(
    ops: Iterable[type[Op] | str] | None,
    dtypes: Iterable[DType | str] | None,
    *,
    control_flow: bool,
    dynamic: bool,
) -> Rules:
    """The rules that arguments of `random_program` stand for."""
    named = GENERATORS if ops is None else _check_list(ops, "ops")
    spellings = frozenset(name for op in named for name in _spellings(op))
    kinds = frozenset(ALL if dtypes is None else map(as_dtype, _check_list(dtypes, "dtypes")))
    if not spellings or not kinds:
        raise UserError("a random program needs at least one op and one dtype")
    return Rules(spellings, kinds, control_flow, dynamic)


def _check_list(given: Any, what: str) -> Iterable[Any]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UserError(f"{what} must be a list, not {described(given)}")
    return given


def _spellings(op: Any) -> Iterable[str]:
    if isinstance(op, type) and issubclass(op, Op):
        return op.spellings()
    if isinstance(op, str) and op in SPELLINGS:
        return [op]
    raise UserError(f"there is no op called {described(op)}")


def drafted(seed: int, size: int, rules: Rules) -> tuple[Draft, list[Item | Bundle]]:
    """A program before it is built, with the facts of all its values, and what it returns."""
    choices, symbols = Choices(seed), Symbols()
    dims = _draw_dims(choices, symbols, rules)
    preferred = choices.sample(in_order(rules.dtypes), choices.integer(2, 5))
    setting = Setting(rules, dims, frozenset(preferred), _focus(choices, rules))
    g = Generator(choices, DataSource(seed), setting, Draft(symbols, set()))
    _first_inputs(g)
    grow(g, size)
    return g.draft, _choose_results(g)


def _focus(choices: Choices, rules: Rules) -> frozenset[str] | None:
    """Half of the programs are made of few ops, which then meet more often."""
    names = sorted({SPELLINGS[spelling][0].name for spelling in rules.spellings})
    if len(names) <= 24 or choices.chance(0.5):
        return None
    return frozenset(choices.sample(names, choices.integer(8, 24)))


def _draw_dims(choices: Choices, symbols: Symbols, rules: Rules) -> list[Dim]:
    """The sizes that the shapes of a program are made of."""
    dims: list[Dim] = []
    for _ in range(choices.integer(2, 4)):
        size = choices.choose((2, 3, 4, 5, 7, 1))
        if rules.dynamic and choices.chance(0.2):
            size = 0 if choices.chance(0.04) else size
            dims.append(symbols.fresh(size, "N"))
        else:
            dims.append(size)
    return dims


def _first_inputs(g: Generator) -> None:
    """One input for each symbol, which binds it, and a few more, now and then as a tuple."""
    for dim in g.setting.dims:
        if not isinstance(dim, int):
            _add_input(g, [(dim, *g.shape(0, 2))])
    for _ in range(g.choices.integer(1, 3)):
        count = 2 if g.choices.chance(0.06) else 1
        _add_input(g, [g.shape() for _ in range(count)])


def _add_input(g: Generator, shapes: Sequence[tuple[Dim, ...]]) -> None:
    kinds, arrays, known = [], [], []
    for shape in shapes:
        dtype = g.dtype(ALL)
        facts = g.invent(dtype)
        kinds.append(TensorType(dtype, shape))
        arrays.append(g.data.array(dtype, g.draft.sizes(shape), facts))
        known.append(facts)
    g.draft.input(kinds[0] if len(kinds) == 1 else TupleType(tuple(kinds)), arrays, known)


def _choose_results(g: Generator) -> list[Item | Bundle]:
    """Every value that nothing uses, and now and then one that something does."""
    draft = g.draft
    chosen: list[Item | Bundle] = []
    whole: set[int] = set()
    for bundle in draft.bundles:
        copies = g.allows("broadcast_to") and g.choices.chance(0.5)
        if bundle.operand.id not in draft.uses and not copies:
            chosen.append(bundle)
            whole.add(bundle.operand.id)
    inputs = {entry.id for entry in draft.inputs}
    for item in filter(g.may_return, draft.items):
        used = getattr(item.operand, "id", -1)
        wanted = g.choices.chance(0.08) if used in draft.uses else g.choices.chance(0.92)
        if used not in whole and used not in inputs and used >= 0 and wanted:
            chosen.append(item)
    if not chosen:
        chosen += [item for item in draft.items if isinstance(item.operand, Ref)][-1:]
    return g.choices.shuffled(chosen) if g.choices.chance(0.3) else chosen
