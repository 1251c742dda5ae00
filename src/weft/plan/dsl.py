"""The plan language of document 2 (section 12.6), extended: an `MmaPlan` as a list of statements.

    program   = stmt (';' stmt)* [';']                 '#' begins a comment
    split     = 'split' axis int                       the tile: m, n and k
    reorder   = 'reorder' axis+                        the template's loop order, no other
    bind      = 'bind' axis target
    pipeline  = 'pipeline' axis 'stages=' int
    cache_read= 'cache_read' tensor 'smem' 'at=' axis ['pingpong=' bool]
    vectorize = 'vectorize' axis int
    predicate_tail = 'predicate_tail' axis+            epilogue = 'epilogue' op+
    algo_choice = 'algo_choice' key value              key = matmul | conv | attention
    fuse, unroll, compute_at, store_at, parallel, slide          read and refused: see below
  extended with
    target NAME · kernel KEY · arch NAME · warp_tile RxC · cluster int int · order NAME · batch int
    layout A|B row|col · split_k int · swap_ab bool · roles NAME · consumers int · in_flight int
    store_buffers int · registers int int · deferred_epilogue bool · precision NAME
    layout_hint NAME VALUE · local_edge FROM TO BUFFER ['depth=' int]

An axis is `[a-z][a-z0-9.]*`. `fuse` and `unroll` belong to the grammar but say nothing that the
template could do otherwise: tiles of a matrix instruction are not fused, and everything inside a
tile is always unrolled, because accumulators are registers. Stages and rows that slide belong to
other kernels, whose plans are edited by the same words (`plan.words`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, NoReturn

from weft.foundation.errors import SpecViolation, clipped
from weft.foundation.tally import counted as in_words
from weft.foundation.text import TokenStream
from weft.foundation.whole_numbers import read_whole
from weft.plan.ir import (
    CacheRead,
    Header,
    LocalEdge,
    MmaPlan,
    Plan,
    Vectorize,
    effective_fields,
    idle_fields,
)
from weft.plan.unsaid import following

CODE: Final = "PlanSyntax"
LOOPS: Final = ("m.o", "n.o", "k.o", "m.i.o", "n.i.o", "k.i.o", "m.i.i", "n.i.i", "k.i.i")
"""The loop order of the template."""
TARGETS: Final = tuple(f"{kind}.{way}" for kind in ("block", "warp") for way in "xyz")
_AXIS: Final = re.compile(r"[a-z][a-z0-9.]*")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]*")
_BOOLS: Final = {"true": True, "false": False}
_PLAIN: Final = (
    *("warp_tile", "cluster", "order", "batch", "split_k", "swap_ab", "roles", "consumers"),
    *("in_flight", "store_buffers", "registers", "deferred_epilogue", "precision"),
)
"""Fields whose statements say their value, behind the others."""
_TOKEN: Final = re.compile(r"(?:\s++|\#[^\n]*+)*+(?:(?P<word>[^\s;#]+)|(?P<mark>;)|(?P<end>\Z))")
_LISTS: Final = ("cache", "predicate_tail", "epilogue", "local_edges")


# -- printing ------------------------------------------------------------------------------------


def print_plan(plan: Plan) -> str:
    """The plan as statements; reading them gives an equal plan."""
    lines = _statements(plan) if isinstance(plan, MmaPlan) else _field_statements(plan)
    return "".join(f"{line};\n" for line in lines)


def _field_statements(plan: Plan) -> Iterator[str]:
    """Plans of other kernels than products: a statement for each field."""
    if plan.header.kernel:
        yield f"kernel {plan.header.kernel}"
    yield f"target {plan.header.target}"
    for name in (*effective_fields(plan), *idle_fields(plan)):
        value = getattr(plan, name)
        match value:
            case dict():
                yield from (f"split {axis} {size}" for axis, size in value.items())
            case _ if name == "local_edges":
                yield from map(_edge, value)
            case _ if name in ("compute_at", "store_at"):
                yield from (f"{name} {found.stage} {found.at}" for found in value)
            case _:
                yield _field_statement(plan, name)


def _statements(plan: MmaPlan) -> Iterator[str]:
    if plan.header.kernel:
        yield f"kernel {plan.header.kernel}"
    yield f"target {plan.header.target}"
    yield f"arch {plan.arch}"
    yield "; ".join(f"split {a} {n}" for a, n in zip("mnk", plan.tile, strict=True))
    yield f"reorder {' '.join(LOOPS)}"
    yield from (f"bind {axis} {where}" for axis, where in plan.bind.items())
    yield f"pipeline k.i stages={plan.stages}"
    for read in plan.cache:
        options = f"at={read.at} pingpong={_show_value(read.pingpong)}"
        yield f"cache_read {read.tensor} {read.where} {options}"
    if plan.vectorize is not None:
        yield f"vectorize {plan.vectorize.axis} {plan.vectorize.width}"
    if plan.predicate_tail:
        yield f"predicate_tail {' '.join(plan.predicate_tail)}"
    if plan.epilogue:
        yield f"epilogue {' '.join(plan.epilogue)}"
    yield from (f"algo_choice {key} {value}" for key, value in plan.algo_choice.items())
    yield from _further_words(plan)


def _further_words(plan: MmaPlan) -> Iterator[str]:
    for name in _PLAIN:
        if name == "split_k":
            orders = zip("AB", plan.operand_layouts, strict=False)
            yield from (f"layout {tensor} {order}" for tensor, order in orders)
        yield _field_statement(plan, name)
    for name, value in plan.layout_hints.items():
        yield f"layout_hint {name} {_show_value(value)}"
    yield from map(_edge, plan.local_edges)


def _field_statement(plan: Plan, name: str) -> str:
    """A field whose value is all that its statement says."""
    value = getattr(plan, name)
    parts = map(_show_value, value if isinstance(value, tuple) else [value])
    return f"{name} {('x' if name == 'warp_tile' else ' ').join(parts)}"


def _edge(edge: LocalEdge) -> str:
    depth = "" if edge.depth is None else f" depth={edge.depth}"
    return f"local_edge {edge.source} {edge.to} {edge.buffer}{depth}"


def _show_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# -- parsing -------------------------------------------------------------------------------------


class Statement(NamedTuple):
    """The words of a statement, and where it begins."""

    words: tuple[str, ...]
    tokens: TokenStream
    offset: int


def statements_of(text: str) -> list[Statement]:
    """The statements of a text."""
    tokens, found = TokenStream(text, CODE, token=_TOKEN), []
    while not tokens.at_end:
        words, offset = [], tokens.current.offset
        while tokens.current.kind == "word":
            words.append(tokens.take().text)
        tokens.accept(";")
        found.append(Statement(tuple(words), tokens, offset))
    return found


def parse_plan(text: str) -> MmaPlan:
    """The plan that a program of statements describes."""
    return plan_of(statements_of(text), {})


def plan_of(statements: Sequence[Statement], defaults: Mapping[str, Any]) -> MmaPlan:
    """The plan that statements describe; `defaults` are fields that they may leave out."""
    draft = _Draft(defaults=defaults)
    for word, rest in draft.each(statements):
        if word not in STATEMENTS:
            draft.fail(f"{word!r} is not a statement")
        STATEMENTS[word](draft, rest)
    return draft.plan()


@dataclass
class Words:
    """The statement at hand, and how its words are read."""

    statement: Statement | None = None
    number: int = 0

    def each(self, statements: Sequence[Statement]) -> Iterator[tuple[str, Sequence[str]]]:
        """One statement after the other: its first word, and the others."""
        for self.number, self.statement in enumerate(statements, 1):
            if not self.statement.words:
                self.fail("it is empty")
            yield self.statement.words[0], self.statement.words[1:]
        self.number, self.statement = len(statements) + 1, None

    def fail(self, why: str, hint: str = "") -> NoReturn:
        where = f"statement {self.number}"
        if self.statement is not None:
            where += f", {self.statement.tokens.where(self.statement.offset)}"
        raise SpecViolation(CODE, why, hint, where)

    def counted(self, words: Sequence[str], count: int) -> Sequence[str]:
        if len(words) != count:
            needed = f"{in_words(count, 'word')} {'is' if count == 1 else 'are'} needed"
            self.fail(f"{needed}, not {len(words)}")
        return words

    def axis(self, word: str) -> str:
        return self._matching(_AXIS, word, "an axis")

    def name(self, word: str) -> str:
        return self._matching(_NAME, word, "a name")

    def _matching(self, pattern: re.Pattern[str], word: str, what: str) -> str:
        if pattern.fullmatch(word) is None:
            self.fail(f"{word!r} is not {what}")
        return word

    def whole(self, word: str) -> int:
        if not word.isdecimal():
            self.fail(f"{word!r} is not a whole number")
        found = read_whole(word)
        if found is None:
            self.fail(f"{clipped(word, 40)} is beyond 64 bits")
        return found

    def flag(self, word: str) -> bool:
        if word not in _BOOLS:
            self.fail(f"{word!r} is neither true nor false")
        return _BOOLS[word]

    def value(self, before: Any, words: Sequence[str]) -> Any:
        """A value of the type of the one before."""
        if isinstance(before, tuple):
            return tuple(self.whole(word) for word in self.counted(words, len(before)))
        (word,) = self.counted(words, 1)
        if isinstance(before, bool):
            return self.flag(word)
        return self.whole(word) if isinstance(before, int) else self.name(word)

    def option(self, word: str, name: str) -> str:
        key, equals, value = word.partition("=")
        if key != name or not equals:
            self.fail(f"{name}= is needed in place of {word!r}")
        return value

    def edge(self, words: Sequence[str]) -> LocalEdge:
        if len(words) not in (3, 4):
            self.fail("from, to, a buffer and perhaps depth= are needed")
        depth = self.whole(self.option(words[3], "depth")) if len(words) == 4 else None
        source, to, buffer = (self.name(word) for word in words[:3])
        return LocalEdge(source, to, buffer, depth)


@dataclass
class _Draft(Words):
    """A plan under construction. Statements that say one thing may stand once."""

    defaults: Mapping[str, Any] = field(kw_only=True)
    tile: dict[str, int] = field(default_factory=dict)
    layouts: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    def once(self, name: str, value: Any) -> None:
        if name in self.values:
            self.fail(f"{name} is given twice")
        self.values[name] = value

    def plan(self) -> MmaPlan:
        missing = [axis for axis in "mnk" if axis not in self.tile]
        if missing:
            self.fail(f"no statement splits {missing[0]}")
        values = {**self.defaults, **self.values}
        arch = values.get("arch", MmaPlan.arch)
        header = Header(values.pop("target", arch), values.pop("kernel", ""))
        if self.layouts:
            values["operand_layouts"] = tuple(self.layouts.get(t, "row") for t in "AB")
        for name in _LISTS:
            values[name] = tuple(values.get(name, ()))
        values["tile"] = (self.tile["m"], self.tile["n"], self.tile["k"])
        return MmaPlan(header, **following(values))


Reader = Callable[[_Draft, Sequence[str]], None]


def _read_split(draft: _Draft, words: Sequence[str]) -> None:
    name, size = draft.counted(words, 2)
    if name not in ("m", "n", "k"):
        draft.fail(f"{name!r} is not an axis of a contraction: m, n or k")
    if name in draft.tile:
        draft.fail(f"{name} is split twice")
    draft.tile[name] = draft.whole(size)


def _reorder(draft: _Draft, words: Sequence[str]) -> None:
    loops = [draft.axis(word) for word in words]
    if tuple(loops) != LOOPS:
        hint = "order says which tiles come first: rows, grouped:N or hilbert"
        draft.fail(f"the template's loops have one order: {' '.join(LOOPS)}", hint)


def _bind(draft: _Draft, words: Sequence[str]) -> None:
    name, where = draft.counted(words, 2)
    if where not in TARGETS:
        draft.fail(f"{where!r} is not one of {', '.join(TARGETS)}")
    draft.values.setdefault("bind", {})[draft.axis(name)] = where


def _pipeline(draft: _Draft, words: Sequence[str]) -> None:
    name, stages = draft.counted(words, 2)
    if draft.axis(name) != "k.i":
        draft.fail(f"the template pipelines k.i, not {name}")
    draft.once("stages", draft.whole(draft.option(stages, "stages")))


def _cache_read(draft: _Draft, words: Sequence[str]) -> None:
    if len(words) not in (3, 4):
        draft.fail("a tensor, smem, at= and perhaps pingpong= are needed")
    pingpong = draft.flag(draft.option(words[3], "pingpong")) if len(words) == 4 else True
    at = draft.axis(draft.option(words[2], "at"))
    read = CacheRead(draft.name(words[0]), draft.name(words[1]), at, pingpong)
    draft.values.setdefault("cache", []).append(read)


def _vectorize(draft: _Draft, words: Sequence[str]) -> None:
    name, width = draft.counted(words, 2)
    draft.once("vectorize", Vectorize(draft.axis(name), draft.whole(width)))


def _predicate_tail(draft: _Draft, words: Sequence[str]) -> None:
    draft.once("predicate_tail", [draft.axis(word) for word in words])


def _epilogue(draft: _Draft, words: Sequence[str]) -> None:
    draft.once("epilogue", [draft.name(word) for word in words])


def _algo_choice(draft: _Draft, words: Sequence[str]) -> None:
    key, value = draft.counted(words, 2)
    if key not in ("matmul", "conv", "attention"):
        draft.fail(f"{key!r} is not one of matmul, conv, attention")
    draft.values.setdefault("algo_choice", {})[key] = draft.name(value)


def _fuse(draft: _Draft, words: Sequence[str]) -> None:
    if len(words) != 4 or words[2] != "->":
        draft.fail("fuse is written: fuse axis axis -> axis")
    hint = "leave it out: blocks number the tiles of both axes as one, in the order of order"
    draft.fail("tiles of a matrix instruction are not fused", hint)


def _unroll(draft: _Draft, words: Sequence[str]) -> None:
    draft.axis(draft.counted(words, 2)[0])
    hint = "warp_tile says how much that is"
    draft.fail("everything inside a tile is always unrolled", hint)


def _warp_tile(draft: _Draft, words: Sequence[str]) -> None:
    (word,) = draft.counted(words, 1)
    match = re.fullmatch(r"(\d+)x(\d+)", word)
    if match is None:
        draft.fail(f"{word!r} is not ROWSxCOLUMNS")
    draft.once("warp_tile", (draft.whole(match[1]), draft.whole(match[2])))


def _read_layout(draft: _Draft, words: Sequence[str]) -> None:
    tensor, order = draft.counted(words, 2)
    if tensor not in ("A", "B") or order not in ("row", "col"):
        draft.fail("layout is written: layout A|B row|col")
    draft.layouts[tensor] = order


def _layout_hint(draft: _Draft, words: Sequence[str]) -> None:
    name, value = draft.counted(words, 2)
    draft.values.setdefault("layout_hints", {})[name] = _BOOLS.get(value, value)


def _local_edge(draft: _Draft, words: Sequence[str]) -> None:
    draft.values.setdefault("local_edges", []).append(draft.edge(words))


def _refuse(why: str, hint: str) -> Reader:
    def statement(draft: _Draft, words: Sequence[str]) -> None:
        draft.fail(why, hint)

    return statement


def _read_value(name: str, like: Any) -> Reader:
    def statement(draft: _Draft, words: Sequence[str]) -> None:
        draft.once(name, draft.value(like, words))

    return statement


def _read_word(name: str) -> Reader:
    def statement(draft: _Draft, words: Sequence[str]) -> None:
        draft.once(name, draft.counted(words, 1)[0])

    return statement


STATEMENTS: Final[Mapping[str, Reader]] = {
    "split": _read_split,
    "reorder": _reorder,
    "fuse": _fuse,
    "bind": _bind,
    "pipeline": _pipeline,
    "cache_read": _cache_read,
    "vectorize": _vectorize,
    "unroll": _unroll,
    "predicate_tail": _predicate_tail,
    "epilogue": _epilogue,
    "algo_choice": _algo_choice,
    **{name: _read_value(name, getattr(MmaPlan, name)) for name in ("arch", *_PLAIN)},
    "target": _read_value("target", ""),
    "kernel": _read_word("kernel"),
    "warp_tile": _warp_tile,
    "precision": _read_word("precision"),
    "layout": _read_layout,
    "layout_hint": _layout_hint,
    "local_edge": _local_edge,
    "compute_at": _refuse(
        "a product has no stages: its factors are copied where they are multiplied",
        "cache_read says where copies wait; what comes before is a kernel of the region stage",
    ),
    "store_at": _refuse(
        "a product has no stages: its sums stay in registers until they are stored",
        "cache_read says where copies of factors wait",
    ),
    "parallel": _refuse(
        "all tiles of m and n are computed at once already, and sums over k are not",
        "split says how large tiles are, and split_k cuts sums",
    ),
    "slide": _refuse(
        "the rows of a product do not overlap, so that nothing is left of one for the next",
        "order says which tiles come first",
    ),
}
