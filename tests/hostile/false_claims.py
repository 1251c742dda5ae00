"""Ranks, lengths and sizes that a file cannot keep, or that nobody can."""

from __future__ import annotations

from tests.hostile.entries import (
    MANY,
    MEGABYTE,
    Entries,
    X,
    instruction_json,
    main,
    program_json,
    static,
    string,
    tensor_json,
    u32,
    u64,
)

CLAIMS = Entries()


@CLAIMS.entry("RankTooLarge")
def a_type_of_very_high_rank() -> str:
    return main([], "%0", X, f"%0: f32[{', '.join(['1'] * MANY)}]")


@CLAIMS.entry("RankTooLarge")
def very_many_uses_of_a_type_of_very_high_rank() -> str:
    dims = ", ".join(["18446744073709551615"] * 20_000)
    lines = (f"%{i} = reshape(%0) {{new_shape=[infer]}} : {X}" for i in range(1, 5_000))
    return main(lines, "%1", X, f"%0: f32[{dims}]")


@CLAIMS.entry("RankTooLarge")
def a_constant_of_very_high_rank() -> str:
    dims = [2**64 - 1] * 20_000
    value = {"spec": {"dtype": "F32", "shape": static(*dims)}, "bytes": []}
    return program_json([instruction_json(1, {"Constant": value}, output=tensor_json(2))])


@CLAIMS.entry("RankTooLarge")
def a_literal_of_very_high_rank() -> str:
    dims = [2**64 - 1] * 20_000
    value = {"spec": {"dtype": "F32", "shape": static(*dims)}, "bytes": []}
    inst = instruction_json(1, {"ElementwiseUnary": "Neg"})
    inst["operands"] = [{"Literal": value}]
    return program_json([inst])


@CLAIMS.entry("MalformedBincode")
def a_list_that_claims_all_the_bytes_after_it() -> bytes:
    tail = b"\0" * (2 * MEGABYTE)
    return string("ptir.v0.4") + string("main") + u64(len(tail)) + tail


@CLAIMS.entry("MalformedBincode")
def lists_of_empty_tuples() -> bytes:
    """Every item is twelve bytes in the file and an object in memory."""
    kinds = (u32(1) + u64(0)) * MANY
    return string("ptir.v0.4") + string("main") + u64(1) + string("main") + u64(MANY) + kinds


@CLAIMS.entry("ok")
def dead_values_that_take_memory() -> str:
    """Each is dropped after its last use: together they would need 2 GB."""
    size = "[1500000]"
    lines = []
    for i in range(1, 400):
        lines.append(f"%{i} = broadcast_to(%0) {{result_shape={size}}} : f32{size}")
        lines.append(f"%{MANY + i} = neg(%{i}) : f32{size}")
    return main(lines, "%0", "f32[1]", "%0: f32[1]")
