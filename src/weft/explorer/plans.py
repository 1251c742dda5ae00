"""Explanations of plan fields, for people who never saw a plan."""

from __future__ import annotations

import json
from typing import Any, Final

from weft.plan.ir import Plan, effective_fields
from weft.plan.text import plan_to_json

MEANINGS: Final = {
    "tile": "Rows, columns and depth of the piece of the result that is worked on at once.",
    "stages": "How many slices of the operands are on their way from memory at a time.",
    "bind": "Which loops are the blocks and threads of a GPU.",
    "warp_tile": "The part of a tile that one warp, or the registers of one thread, hold.",
    "cache": "Operands that are packed, or copied to shared memory, before they are used.",
    "vectorize": "The axis that vector instructions run along, and how many elements they carry.",
    "predicate_tail": "Axes whose last piece is not whole and is masked.",
    "epilogue": "What is done to the result before it is stored, in the same kernel.",
    "arch": "The instructions that multiply: those of SM80 or SM90, single numbers, or a CPU's.",
    "layout_hints": "How operands lie best.",
    "algo_choice": "The algorithm, where there are several with the same meaning.",
    "local_edges": "Values between fused parts that never reach memory, and where they are kept.",
    "cluster": "Blocks that share what they load (SM90).",
    "order": "The order in which tiles are computed: neighbours share what is in the cache.",
    "operand_layouts": "Whether the operands are stored by rows or by columns.",
    "split_k": "Into how many parts the sum is cut, to be added up at the end.",
    "swap_ab": "Whether the transposed product is computed instead.",
    "roles": "How warps share the work: some that load and some that multiply, or all alike.",
    "deferred_epilogue": "Whether a tile is finished while the next one is being multiplied.",
    "consumers": "Groups of warps that multiply (SM90).",
    "parts": "Blocks that share the keys of few queries; 0 where queries are many (SM90).",
    "in_flight": "Matrix instructions still running when the next are issued (SM90).",
    "store_buffers": "Buffers that results go through on their way out (SM90).",
    "registers": "Registers of each thread that loads, and of each that computes (SM90).",
    "batch": "How many matrices of a batch one tile covers.",
    "precision": "How products are made: in full, or from numbers with fewer bits.",
    "vector": "Elements that one vector instruction carries.",
    "unroll": "How many vectors one turn of the innermost loop works on.",
    "threads": "Threads of a block (GPU).",
    "grain": "Elements of one piece of work.",
    "block": "Edge of the square blocks in which an array that is turned round is read.",
    "rows_per_block": "Rows that one block takes at once (GPU).",
    "accumulators": "Sums kept side by side; their number is part of the result's bits.",
    "keep_row": "Whether a row stays on chip while it is gone through again.",
    "blocks_per_row": "Blocks that share one row (GPU).",
    "rows_per_thread": "Rows that each thread takes at once (GPU).",
    "ring": "Vectors of the next rows that are on their way already (GPU).",
    "across": "Whether vectors run across rows, which lie side by side, and not along them.",
    "walks": "Whether a block goes through many rows and adds up their columns (GPU).",
    "tile_q": "Queries that are worked on at once.",
    "tile_kv": "Keys and values that are worked on at once.",
    "algo": "One pass over the keys with running sums, or two passes.",
    "slide": "The axis that stages move along, row by row.",
    "compute_at": "Stages whose rows of a strip are all computed first.",
    "store_at": "Where stages are kept.",
    "register_tile": "Keys by queries that registers hold at once.",
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
