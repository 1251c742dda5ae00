"""Schedule plans: a tagged union with one header.

    Plan   = MmaPlan | RowPlan | MapPlan | AttentionPlan | StagedPlan
    Header = target, kernel key          in each of them

A plan decides everything about *how*: tiles, pipeline depth, vector widths, loop order, threads,
the split of a reduction. It never decides *what*. Code generation is a function of (kernel,
buffers, plan); every field has an effect on the emitted code or is refused with a reason by the
template's `accepts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields
from typing import Annotated, Any, Final, TypeAlias

from weft.foundation.json_records import SAID, called
from weft.foundation.records import dataclass

ONLINE: Final = "online_softmax"
"""Attention in one pass over the keys, whose sums are rescaled when a greater score turns up."""
STREAMING: Final = "streaming_softmax_2pass"
"""Attention that knows the greatest score and the sum of exponentials before it mixes values: in
one kernel with two passes over the keys, or by a kernel each for the scores, for their softmax, and
for the mixed values."""
Tile: TypeAlias = Annotated[tuple[int, int], "ROWSxCOLUMNS"]
"""Rows and columns, which a text has as one word."""
REFUSED: Final = "PlanRefused"
"""The code of a plan that a kernel cannot be carried out by."""


@dataclass(frozen=True)
class Header:
    """Which target and which kernel structure a plan is for."""

    target: str
    kernel: str


@dataclass(frozen=True)
class CacheRead:
    """A tensor staged in shared memory (GPU) or packed (CPU) at a loop level."""

    tensor: str
    where: str
    at: str
    pingpong: bool = True


@dataclass(frozen=True)
class Vectorize:
    """An axis carried by vector instructions."""

    axis: str
    width: int


@dataclass(frozen=True)
class LocalEdge:
    """An intermediate that never reaches global memory, and where it is kept (`plan.edges`): in
    registers, or in a ring of `depth` slices in shared memory."""

    source: str = field(metadata=called("from"))
    to: str
    buffer: str
    depth: int | None = None


@dataclass(frozen=True)
class MmaPlan:
    """A contraction, or a convolution as one (document 2's plan, extended). `arch` is the template:
    matrix instructions of SM80 or SM90, those of SM80 for groups of few channels (groups),
    multiply-adds of single numbers (fma), or loops (cpu)."""

    header: Header
    tile: tuple[int, int, int]
    stages: int = 2
    bind: dict[str, str] = field(default_factory=dict, hash=False)
    warp_tile: Tile = (64, 64)
    cache: tuple[CacheRead, ...] = ()
    vectorize: Vectorize | None = None
    predicate_tail: tuple[str, ...] = ()
    epilogue: tuple[str, ...] = ()
    arch: str = "sm80"
    layout_hints: dict[str, bool | str] = field(default_factory=dict, hash=False)
    algo_choice: dict[str, str] = field(default_factory=dict, hash=False)
    local_edges: tuple[LocalEdge, ...] = ()
    cluster: tuple[int, int] = (1, 1)
    order: str = "grouped:8"
    """Tile order: rows, grouped:N (bands of N rows of tiles, or of all there are), or hilbert."""
    operand_layouts: tuple[str, ...] = ("row", "row")
    """Layout of A and B as stored: row (last axis contiguous) or col; empty where a text leaves it
    to the kernel."""
    split_k: int = 1
    swap_ab: bool = False
    roles: str = "cooperative"
    """cooperative, pingpong, or single (no specialised warps)."""
    deferred_epilogue: bool = False
    consumers: int = 2
    """Consumer warpgroups (SM90)."""
    in_flight: int = 1
    """Groups of matrix instructions still running when the next group is issued (SM90): 0 or 1."""
    store_buffers: int = 2
    """Shared-memory buffers that each consumer stages its result through (SM90)."""
    registers: tuple[int, int] = (40, 232)
    """Registers per thread of the producer and of the consumers (SM90)."""
    batch: int = 1
    """Batch entries that one tile covers."""
    precision: str = "full"
    """How products are made: full, promoted (8-bit floats: sums of a k step with some 14 bits), or
    3xtf32 (f32 as two numbers of 11 bits)."""


@dataclass(frozen=True)
class MapPlan:
    """Elementwise over the output axes."""

    header: Header
    vector: int
    unroll: int = 1
    threads: int = 256
    grain: int = 4096
    """Elements per piece of work."""
    block: int = 1
    """Edge of the blocks of two axes that are a piece, where operands lie across results."""


@dataclass(frozen=True)
class RowPlan:
    """Reductions along the last axes, one row (or several) at a time."""

    header: Header
    vector: int
    rows_per_block: int = 1
    threads: int = 256
    accumulators: int = 4
    """Independent partial results; their number is part of the result's bits."""
    keep_row: bool = True
    """Whether a row stays on chip between passes."""
    blocks_per_row: int = 1
    """Blocks, a cluster, that share a row (GPU)."""
    rows_per_thread: int = 1
    """Rows that each thread takes at once, with what all rows share read once (GPU)."""
    ring: int = 0
    """Vectors of each thread, of the rows that come next, that wait in shared memory: blocks then
    stay and take one row after the other (GPU)."""
    across: bool = False
    """Whether vectors run across rows, which lie side by side in memory. On a GPU `rows_per_block`
    then counts vectors of rows; on a CPU the totals of all rows are kept in memory of the thread,
    and `accumulators` vectors are added to them at a time."""
    walks: bool = False
    """Whether a block takes the rows of a part one after the other, `rows_per_block` and
    `rows_per_thread` of them at a time, and adds up their columns (GPU)."""
    lines: int = 0
    """Lines of results whose windows are summed together, over a copy of what they see (CPU);
    `accumulators` then counts vectors of a line. 0 where rows are no windows."""


@dataclass(frozen=True)
class AttentionPlan:
    """Contraction, fold, contraction without the score matrix in memory."""

    header: Header
    tile_q: int
    tile_kv: int
    stages: int = 2
    algo: str = ONLINE
    register_tile: tuple[int, int] = (8, 12)
    """Keys, or elements of a value, by queries that registers hold at once (CPU)."""
    vector: int = 4
    """Queries that one vector carries (CPU)."""
    consumers: int = 2
    """Consumer warpgroups, of 64 queries each (SM90); warps, of 16 or 32 queries each (SM80)."""
    registers: tuple[int, int] = (24, 240)
    """Registers per thread of the producer and of the consumers (SM90); 0 and 0 where threads have
    as many as they are given at launch."""
    parts: int = 0
    """Blocks that the keys of few queries are shared among, which single warps multiply; 0 where
    warpgroups have all keys of many queries (SM90)."""


@dataclass(frozen=True)
class StageAt:
    """A stage, and the loop inside of which it is computed, or kept."""

    stage: str
    at: str


@dataclass(frozen=True)
class StagedPlan:
    """Stages that follow one another row by row. Axes and stages are called by their place
    (`plan.staged`)."""

    header: Header
    vector: int
    unroll: int = 1
    """Vectors of a row, or steps, that are taken together; in rings of a GPU the rows of a step."""
    tile: dict[str, int] = field(default_factory=dict, hash=False, metadata=SAID)
    """Rows of the results that a piece computes, by the axis that slides, and columns, by another
    one: on a GPU those of a block, on a CPU where it does not compute whole rows."""
    slide: str = field(default="i0", metadata=SAID)
    local_edges: tuple[LocalEdge, ...] = ()
    """How many rows of each stage are kept for those who read it; what is left out is derived."""
    compute_at: tuple[StageAt, ...] = ()
    """Stages that are computed at the strip, all their rows first, not row by row."""
    store_at: tuple[StageAt, ...] = ()
    """Where stages are kept: at the strip, all of them."""


Plan: TypeAlias = MmaPlan | MapPlan | RowPlan | AttentionPlan | StagedPlan


_ON_CPU: Final[Mapping[type[Plan], frozenset[str]]] = {
    MmaPlan: frozenset(
        {"tile", "warp_tile", "vectorize", "cache", "epilogue", "arch", "algo_choice"}
        | {"local_edges"}
    ),
    MapPlan: frozenset({"vector", "unroll", "block"}),
    RowPlan: frozenset({"vector", "accumulators", "keep_row", "across", "lines"}),
    AttentionPlan: frozenset({"tile_q", "tile_kv", "algo", "register_tile", "vector"}),
}


def effective_fields(plan: Plan) -> list[str]:
    """The fields that mean something on the plan's target, in order."""
    names = [known.name for known in fields(plan) if known.name != "header"]
    if plan.header.target == "cpu":
        used = _ON_CPU.get(type(plan), frozenset(names))
        return [name for name in names if name in used]
    return names


def idle_fields(plan: Plan) -> list[str]:
    """The fields that mean nothing on the plan's target, but were given a value of their own."""
    used = {*effective_fields(plan), "header"}
    rest = [known for known in fields(plan) if known.name not in used]
    return [f.name for f in rest if getattr(plan, f.name) != _default(f, plan.header.target)]


def _default(known: Field[Any], target: str) -> Any:
    if (target, known.name) == ("cpu", "roles"):
        return "single"
    return known.default if known.default_factory is MISSING else known.default_factory()


@dataclass(frozen=True)
class PlanSet:
    """The plans of a module: `kernels` gives each kernel its structure key, `plans` each key its
    plan. Kernels that are carried out whole by the host have none."""

    kernels: dict[str, str]
    plans: dict[str, Plan]
    notes: tuple[str, ...] = field(default=(), compare=False)
    """Plans that were tried before and why they were not taken, a sentence each."""
    origins: dict[str, str] = field(default_factory=dict, compare=False)
    """By key, where the tiles of matrix kernels come from that no note tells of."""
    own: frozenset[str] = field(default=frozenset(), compare=False)
    """The keys of plans that are the planner's own, and may move on where their machine code is
    bad; what was given or measured stays."""
    built: dict[str, tuple[Plan, Any]] = field(default_factory=dict, compare=False, repr=False)
    """By kernel, what was last made of it, and by which plan: it is made in order to choose a plan,
    and again where other kernels' plans move, but only once by the same plan."""

    def of(self, kernel: str) -> Plan:
        """The plan of a kernel, by the kernel's name."""
        return self.plans[self.kernels[kernel]]
