"""Explanations of plan fields, for people who never saw a plan."""

from __future__ import annotations

import json
from typing import Any, Final

from weft.plan.ir import Plan, effective_fields
from weft.plan.text import plan_to_json

MEANINGS: Final = {
    "tile": "The tile of the result (rows, columns) and the step along the sum that a block "
    "works on at a time.",
    "stages": "How many slices of the operands are loaded ahead at a time.",
    "bind": "Which loops are mapped to the blocks and threads of a GPU.",
    "warp_tile": "The part of a tile that one warp, or the registers of one thread, compute.",
    "cache": "Operands that are packed, or copied to shared memory, before they are used.",
    "vectorize": "The axis along which vector instructions run, and how many elements they hold.",
    "predicate_tail": "Axes whose last tile is partial, so that it is masked.",
    "epilogue": "Operations on the result before it is stored, in the same kernel.",
    "arch": "The multiply instructions: matrix instructions of SM80 or SM90, scalar FMA, or "
    "those of a CPU.",
    "layout_hints": "Preferred layouts of the operands.",
    "algo_choice": "The algorithm, if several compute the same.",
    "local_edges": "Values between fused parts that are never stored in global memory, and where "
    "they are kept.",
    "cluster": "Blocks that share the data they load (SM90).",
    "order": "The order in which tiles are computed: neighbouring tiles share data in the cache.",
    "operand_layouts": "Whether the operands are stored by rows or by columns.",
    "split_k": "Into how many parts the sum is split (split-K), which are added at the end.",
    "swap_ab": "Whether the transposed product is computed instead.",
    "roles": "How warps share the work: separate producers and consumers, or all alike.",
    "deferred_epilogue": "Whether the epilogue of a tile overlaps with the products of the next "
    "one.",
    "consumers": "Warpgroups that multiply (SM90).",
    "parts": "Blocks that share the keys of few queries; 0 for many queries (SM90).",
    "in_flight": "Matrix instructions still running when the next ones are issued (SM90).",
    "store_buffers": "Staging buffers in shared memory for the results (SM90).",
    "registers": "Registers of each producer thread and of each consumer thread (SM90).",
    "batch": "How many matrices of a batch one tile covers.",
    "precision": "How products are computed: in full precision, or from numbers with fewer bits.",
    "vector": "Elements of one vector access.",
    "unroll": "How many vectors one iteration of the innermost loop computes.",
    "threads": "Threads of a block (GPU).",
    "grain": "Elements of one piece of work.",
    "block": "Side of the square blocks in which a transposed operand is read.",
    "rows_per_block": "Rows that one block computes at a time (GPU).",
    "accumulators": "Independent partial sums; their number affects the bits of the result.",
    "keep_row": "Whether a row stays on chip between the passes over it.",
    "blocks_per_row": "Blocks that share one row (GPU).",
    "rows_per_thread": "Rows that each thread computes at a time (GPU).",
    "ring": "Vectors of the next rows that are prefetched (GPU).",
    "across": "Whether vectors run across neighbouring rows instead of along a row.",
    "walks": "Whether a block computes many rows in turn and sums their columns (GPU).",
    "lines": "Lines of results whose windows are summed together over a copy of the image (CPU).",
    "tile_q": "Queries of a tile.",
    "tile_kv": "Keys and values of a tile.",
    "algo": "One pass over the keys (online softmax), or two passes.",
    "slide": "The axis along which stages slide, row by row.",
    "compute_at": "Stages whose rows of a strip are all computed first.",
    "store_at": "Where stages are kept.",
    "register_tile": "Keys by queries of a register tile.",
}


def explained(plan: Plan) -> list[list[Any]]:
    """Every field that has an effect on the plan's target: name, value, meaning."""
    return [[name, text, MEANINGS.get(name, "")] for name, text in shown_fields(plan).items()]


def shown_fields(plan: Plan) -> dict[str, str]:
    """The same fields, name and value."""
    values = plan_to_json(plan)
    return {name: _short(values[name]) for name in effective_fields(plan) if name in values}


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
