"""Programs of one instruction that break a rule, by the code of the rule.

Each line reads `name: parameter types => instruction : declared type`, in the syntax of PTIR text.
"""

from __future__ import annotations

DOT = "dot_general(%0, %1)"
PLAIN = "batch_lhs=[], batch_rhs=[], contract_lhs=[1], contract_rhs=[0]"
POOL = "base_dilation=[1], window_dilation=[1], reduce=max"
SORTED = "indices_are_sorted=false, unique=false"
WINDOW = "strides=[1], dilation=[1], padding=[(0, 0)], pad_value=float 0.0"
ROWS = "update_window_dims=[1], inserted_window_dims=[0], scatter_dims_to_operand_dims=[0]"
HUGE = "18446744073709551615"

LINES: dict[str, list[str]] = {
    "ArityMismatch": [
        "unary-none: => neg() : f32[2]",
        "unary-two: f32[2] => neg(%0, %0) : f32[2]",
        "binary-one: f32[2] => add(%0) : f32[2]",
        "select-two: i1[2], f32[2] => select(%0, %1) : f32[2]",
        f"dot-one: f32[2, 3] => dot_general(%0) {{{PLAIN}}} : f32[2, 4]",
        "concat-none: => concat() {axis=0} : f32[2]",
        "iota-one: f32[2] => iota(%0) {shape=[2], dtype=f32, axis=0} : f32[2]",
        "take-one: f32[3] => take(%0) : f32[3]",
        "quantize-one: f32[3] => quantize(%0) {output_dtype=si8} : si8[3]",
        "requantize-one: si8[3] => requantize(%0) {output_dtype=ui8} : ui8[3]",
        "layer-norm-two: f32[2, 3], f32[3] => layer_norm(%0, %1) "
        "{epsilon=0.1, feature_axis=1} : f32[2, 3]",
        "clamp-two: f32[2] => clamp(%0, %0) : f32[2]",
    ],
    "TensorExpected": [
        "unary: (f32[2], f32[2]) => neg(%0) : f32[2]",
        "transpose: (f32[2]) => transpose(%0) {perm=[0]} : f32[2]",
        "concat: f32[2], (f32[2]) => concat(%0, %1) {axis=0} : f32[4]",
    ],
    "TupleElementInvalid": [
        "too-far: (f32[2], f32[2]) => neg(%0[2]) : f32[2]",
        "tensor: f32[2] => neg(%0[0]) : f32[2]",
    ],
    "UseBeforeDefinition": [
        "operand: f32[2] => neg(%5) : f32[2]",
        "itself: f32[2] => neg(%1) : f32[2]",
    ],
    "DoubleDefinition": ["parameter: f32[2] => %0 = neg(%0) : f32[2]"],
    "OutputTypeMismatch": [
        "shape: f32[2] => neg(%0) : f32[3]",
        "dtype: f32[2] => neg(%0) : f64[2]",
        "rank: f32[2] => reduce_sum(%0) {axes=[0], keepdims=true} : f32[]",
        "tuple: f32[4] => top_k(%0) {k=2, axis=0, largest=true, indices_dtype=si32} : f32[2]",
        "cast: f32[2] => cast(%0) {dtype=si8} : si16[2]",
        "dynamic: f32[?B] => neg(%0) : f32[?C]",
    ],
    "DTypeMismatch": [
        "add: f32[2], f64[2] => add(%0, %1) : f32[2]",
        "select: i1[2], f32[2], f64[2] => select(%0, %1, %2) : f32[2]",
        f"dot: f32[2, 3], f64[3, 4] => {DOT} {{{PLAIN}}} : f32[2, 4]",
        "concat: f32[2], f64[2] => concat(%0, %1) {axis=0} : f32[4]",
        "scatter-reduce: f32[5], si32[3], f16[3] => scatter_reduce(%0, %1, %2) "
        "{axis=0, reduce=max} : f32[5]",
        f"scatter-add: f32[5, 4], si32[3, 1], f64[3, 4] => scatter_add(%0, %1, %2) "
        f"{{{ROWS}, index_vector_dim=1}} : f32[5, 4]",
        "update: f32[3], f16[2], si32[1] => dynamic_update_slice(%0, %1, %2) {sizes=[2]} : f32[3]",
        "layer-norm: f32[2, 3], f16[3], f32[3] => layer_norm(%0, %1, %2) "
        "{epsilon=0.1, feature_axis=1} : f32[2, 3]",
        "clamp: f32[2], f64[2], f32[2] => clamp(%0, %1, %2) : f32[2]",
        "scale: f32[2], f16[] => quantize(%0, %1) {output_dtype=si8} : si8[2]",
        "zero-point: f32[2], f32[], ui8[] => quantize(%0, %1, %2) {output_dtype=si8} : si8[2]",
        "out-zero-point: si8[2], f32[], si8[], f32[], si8[] => requantize(%0, %1, %2, %3, %4) "
        "{output_dtype=ui8} : ui8[2]",
        "searchsorted: f32[3], f64[2] => searchsorted(%0, %1) "
        "{side=left, output_dtype=si64} : si64[2]",
        "pow: f32[2], f64[2] => pow(%0, %1) : f32[2]",
        "shift: si8[2], si16[2] => shift_left(%0, %1) : si8[2]",
        "complex: f32[2], f64[2] => complex(%0, %1) : cf32[2]",
        "solve: f32[2, 2], f64[2, 1] => triangular_solve(%0, %1) "
        "{lower=true, transpose=false, unit_diagonal=false} : f32[2, 1]",
    ],
    "ShapeMismatch": [
        "add: f32[2], f32[3] => add(%0, %1) : f32[2]",
        "no-broadcasting: f32[2, 3], f32[3] => mul(%0, %1) : f32[2, 3]",
        "ones: f32[2, 3], f32[1, 3] => sub(%0, %1) : f32[2, 3]",
        "select: i1[3], f32[2], f32[2] => select(%0, %1, %2) : f32[2]",
        f"contract: f32[2, 3], f32[2, 4] => {DOT} {{{PLAIN}}} : f32[2, 4]",
        f"batch: f32[2, 3, 4], f32[3, 4, 5] => {DOT} {{batch_lhs=[0], batch_rhs=[0], "
        "contract_lhs=[2], contract_rhs=[1]} : f32[2, 3, 5]",
        "reshape: f32[2, 3] => reshape(%0) {new_shape=[4, 2]} : f32[4, 2]",
        "reshape-infer: f32[2, 3] => reshape(%0) {new_shape=[4, infer]} : f32[4, 1]",
        "reshape-empty: f32[2] => reshape(%0) {new_shape=[0]} : f32[0]",
        "concat: f32[2, 3], f32[4, 3] => concat(%0, %1) {axis=1} : f32[2, 6]",
        "gather: f32[2, 3], si32[5, 4] => gather(%0, %1) {axis=0} : f32[5, 4]",
        "scatter: f32[5], si32[3], f32[4] => scatter_reduce(%0, %1, %2) "
        "{axis=0, reduce=add} : f32[5]",
        "scatter-other: f32[5, 2], si32[4, 3], f32[4, 3] => scatter_reduce(%0, %1, %2) "
        "{axis=1, reduce=add} : f32[5, 2]",
        f"scatter-vector: f32[5, 4], si32[3, 2], f32[3, 4] => scatter_add(%0, %1, %2) "
        f"{{{ROWS}, index_vector_dim=1}} : f32[5, 4]",
        f"scatter-window: f32[5, 4], si32[3, 1], f32[3, 5] => scatter_add(%0, %1, %2) "
        f"{{{ROWS}, index_vector_dim=1}} : f32[5, 4]",
        "start: f32[2, 3], si32[3] => dynamic_slice(%0, %1) {sizes=[1, 1]} : f32[1, 1]",
        "update: f32[5], f32[3], si32[1] => dynamic_update_slice(%0, %1, %2) {sizes=[2]} : f32[5]",
        f"segments: f32[2, 3], si32[3] => segment_sum(%0, %1) {{num_segments=3, {SORTED}}} "
        ": f32[3, 3]",
        "scale: f32[2, 3], f32[3] => quantize(%0, %1) {output_dtype=si8, axis=0} : si8[2, 3]",
        "zero-point: f32[2, 3], f32[3], si8[] => quantize(%0, %1, %2) "
        "{output_dtype=si8, axis=1} : si8[2, 3]",
        "layer-norm: f32[2, 3], f32[2], f32[3] => layer_norm(%0, %1, %2) "
        "{epsilon=0.1, feature_axis=1} : f32[2, 3]",
        "cholesky: f32[2, 3] => cholesky(%0) {upper=false} : f32[2, 3]",
        "eigh: f32[2, 3] => eigh(%0) : (f32[3], f32[2, 3])",
        "solve: f32[2, 2], f32[3, 1] => triangular_solve(%0, %1) "
        "{lower=true, transpose=false, unit_diagonal=false} : f32[3, 1]",
        "atan2: f32[2], f32[3] => atan2(%0, %1) : f32[2]",
        "clamp: f32[2], f32[], f32[2] => clamp(%0, %1, %2) : f32[2]",
    ],
    "RankMismatch": [
        "concat: f32[2], f32[2, 2] => concat(%0, %1) {axis=0} : f32[2]",
        "take: f32[], si32[] => take(%0, %1) : f32[]",
        "gather: f32[2, 3], si32[2] => gather(%0, %1) {axis=0} : f32[2]",
        "scatter: f32[5], si32[3, 1], f32[3, 1] => scatter_reduce(%0, %1, %2) "
        "{axis=0, reduce=max} : f32[5]",
        f"scatter-add: f32[5, 4], si32[3, 1], f32[3, 4, 1] => scatter_add(%0, %1, %2) "
        f"{{{ROWS}, index_vector_dim=1}} : f32[5, 4]",
        "start: f32[3], si32[] => dynamic_slice(%0, %1) {sizes=[1]} : f32[1]",
        "update: f32[3], f32[], si32[1] => dynamic_update_slice(%0, %1, %2) {sizes=[1]} : f32[3]",
        f"segments: f32[], si32[2] => segment_sum(%0, %1) {{num_segments=3, {SORTED}}} : f32[3]",
        f"segment-ids: f32[2], si32[2, 1] => segment_max(%0, %1) {{num_segments=3, {SORTED}}} "
        ": f32[3]",
        f"patches: f32[4] => extract_patches(%0) {{window=[3], {WINDOW}}} : f32[4]",
        "scale: f32[2, 3], f32[3] => quantize(%0, %1) {output_dtype=si8} : si8[2, 3]",
        "scale-along: si8[2, 3], f32[] => dequantize(%0, %1) {axis=1} : f32[2, 3]",
        "layer-norm: f32[2, 3], f32[1, 3], f32[3] => layer_norm(%0, %1, %2) "
        "{epsilon=0.1, feature_axis=1} : f32[2, 3]",
        "searchsorted: f32[2, 3], f32[2] => searchsorted(%0, %1) "
        "{side=left, output_dtype=si64} : si64[2]",
        "qr: f32[3] => qr(%0) {mode=reduced} : (f32[3], f32[3])",
        "solve: f32[2, 2], f32[2] => triangular_solve(%0, %1) "
        "{lower=true, transpose=false, unit_diagonal=false} : f32[2]",
    ],
    "DynamicDimensionMismatch": [
        "add: f32[?A], f32[?B] => add(%0, %1) : f32[?A]",
        "add-static: f32[?A], f32[2] => add(%0, %1) : f32[?A]",
        f"dot: f32[2, ?K], f32[3, 4] => {DOT} {{{PLAIN}}} : f32[2, 4]",
        "concat: f32[?A, 3], f32[?B, 3] => concat(%0, %1) {axis=1} : f32[?A, 6]",
        "gather: f32[2, ?B], si32[5, 4] => gather(%0, %1) {axis=0} : f32[5, 4]",
        "unbound-broadcast: f32[2] => broadcast_to(%0) {result_shape=[?N, 2]} : f32[?N, 2]",
        "unbound-iota: => iota() {shape=[?N], dtype=f32, axis=0} : f32[?N]",
        "unbound-random: => rng_uniform() {shape=[?N], dtype=f32} : f32[?N]",
        f"segments: f32[?B, 3], si32[?N] => segment_sum(%0, %1) {{num_segments=3, {SORTED}}} "
        ": f32[3, 3]",
        "scale: f32[?B, 3], f32[3] => quantize(%0, %1) {output_dtype=si8, axis=0} : si8[?B, 3]",
        "cholesky: f32[?A, ?B] => cholesky(%0) {upper=false} : f32[?A, ?B]",
    ],
    "CompareOperandsMustMatchShape": [
        "less: f32[2], f32[3] => compare(%0, %1) {op=less} : i1[2]",
        "no-broadcasting: f32[2, 3], f32[3] => compare(%0, %1) {op=equal} : i1[2, 3]",
    ],
    "CompareDTypePromotionInvalid": [
        "less: f32[2], f64[2] => compare(%0, %1) {op=less} : i1[2]",
        "equal: si8[2], ui8[2] => compare(%0, %1) {op=equal} : i1[2]",
    ],
    "BroadcastRankMismatch": [
        "fewer-axes: f32[2, 3] => broadcast_to(%0) {result_shape=[3]} : f32[3]",
        "scalar: f32[1] => broadcast_to(%0) {result_shape=[]} : f32[]",
    ],
    "BroadcastDimsInvalid": [
        "larger: f32[2] => broadcast_to(%0) {result_shape=[3]} : f32[3]",
        "smaller: f32[3] => broadcast_to(%0) {result_shape=[1]} : f32[1]",
        "to-nothing: f32[2] => broadcast_to(%0) {result_shape=[0]} : f32[0]",
        "from-nothing: f32[0] => broadcast_to(%0) {result_shape=[2]} : f32[2]",
        "aligned-left: f32[2] => broadcast_to(%0) {result_shape=[2, 3]} : f32[2, 3]",
        "symbol: f32[?B] => broadcast_to(%0) {result_shape=[4]} : f32[4]",
    ],
    "InvalidAccumDTypeOverride": [
        "sum-narrower: f32[2] => reduce_sum(%0) {axes=[0], keepdims=false, accum_dtype=f16} "
        ": f32[]",
        "sum-same-width: f16[2] => reduce_sum(%0) {axes=[0], keepdims=false, accum_dtype=bf16} "
        ": f16[]",
        "sum-class: f32[2] => reduce_sum(%0) {axes=[0], keepdims=false, accum_dtype=si32} : f32[]",
        "sum-sign: si8[2] => reduce_sum(%0) {axes=[0], keepdims=false, accum_dtype=ui32} : si8[]",
        "sum-complex: cf32[2] => reduce_sum(%0) {axes=[0], keepdims=false, accum_dtype=f64} "
        ": cf32[]",
        "max: f32[2] => reduce_max(%0) {axes=[0], keepdims=false, accum_dtype=f16} : f32[]",
        "prod: si32[2] => reduce_prod(%0) {axes=[0], keepdims=false, accum_dtype=si8} : si32[]",
        f"dot: f32[2, 3], f32[3, 4] => {DOT} {{{PLAIN}, accum_dtype=f16}} : f32[2, 4]",
        f"dot-class: si8[2, 3], si8[3, 4] => {DOT} {{{PLAIN}, accum_dtype=f32}} : si8[2, 4]",
        f"segments: f32[2], si32[2] => segment_sum(%0, %1) "
        f"{{num_segments=3, accum_dtype=f16, {SORTED}}} : f32[3]",
        "window: f32[5] => reduce_window(%0) {window_dims=[3], strides=[1], padding=[(0, 0)], "
        f"{POOL}, accum_dtype=f16}} : f32[3]",
    ],
    "EmptyReduction": [
        "arg-max: f32[2, 0] => arg_max(%0) {axis=1, keepdims=false, output_dtype=si32} : si32[2]",
        "argmin: f32[0] => argmin(%0) {axis=-1, keepdims=true, output_dtype=si64} : si64[1]",
    ],
    "DTypeNotSupported": [
        "less-complex: cf32[2] => compare(%0, %0) {op=less} : i1[2]",
        "greater-complex: cf64[2] => compare(%0, %0) {op=greater_equal} : i1[2]",
        "sum-i1: i1[2] => reduce_sum(%0) {axes=[0], keepdims=false} : i1[]",
        "sum-i1-float: i1[2] => reduce_sum(%0) {axes=[0], keepdims=false, accum_dtype=f32} : i1[]",
        "scatter-add-i1: i1[5], si32[3], i1[3] => scatter_reduce(%0, %1, %2) "
        "{axis=0, reduce=add} : i1[5]",
        "scatter-max-complex: cf32[5], si32[3], cf32[3] => scatter_reduce(%0, %1, %2) "
        "{axis=0, reduce=max} : cf32[5]",
        "window-max-complex: cf32[5] => reduce_window(%0) {window_dims=[3], strides=[1], "
        f"padding=[(0, 0)], {POOL}}} : cf32[3]",
        "window-sum-i1: i1[5] => reduce_window(%0) {window_dims=[3], strides=[1], "
        "padding=[(0, 0)], base_dilation=[1], window_dilation=[1], reduce=sum} : i1[3]",
    ],
    "UnknownCustomCall": [
        'version: f32[2] => custom_call(%0) {target="weft.sqrt.v9", attrs={}} : f32[2]',
        'name: f32[2] => custom_call(%0) {target="weft.no_such_op.v1", attrs={}} : f32[2]',
    ],
    "NegativeDimension": ["type: f32[2] => neg(%0) : f32[-2]"],
    "RankTooLarge": [
        f"result: f32[] => broadcast_to(%0) {{result_shape={[1] * 65}}} : f32{[1] * 65}"
    ],
    "ElementCountOverflow": [
        "result: f32[] => broadcast_to(%0) {result_shape=[4294967296, 4294967296]} "
        ": f32[4294967296, 4294967296]",
        f"tile: f32[1] => tile(%0) {{repeats=[{HUGE}]}} : f32[{HUGE}]",
    ],
    "LiteralInvalid": [
        "bytes: => neg(f32[2]<0x00000000>) : f32[2]",
        "dynamic: => neg(f32[?B]<>) : f32[?B]",
        "i1-byte: => stop_gradient(i1[2]<0x0002>) : i1[2]",
        "si4-byte: => neg(si4[2]<0x017f>) : si4[2]",
    ],
    "InvalidAttributeValue": [
        "axis-high: f32[2, 3] => reduce_sum(%0) {axes=[2], keepdims=false} : f32[2]",
        "axis-low: f32[2, 3] => reduce_sum(%0) {axes=[-3], keepdims=false} : f32[2]",
        "axis-twice: f32[2, 3] => reduce_max(%0) {axes=[1, 1], keepdims=false} : f32[2]",
        "axis-of-scalar: f32[] => reduce_min(%0) {axes=[0], keepdims=false} : f32[]",
        "arg-max-axis: f32[2] => arg_max(%0) {axis=1, keepdims=false, output_dtype=si32} : si32[]",
        "arg-max-low: f32[2] => arg_max(%0) {axis=-9223372036854775808, keepdims=false, "
        "output_dtype=si32} : si32[]",
        f"dot-axis: f32[2, 3], f32[3, 4] => {DOT} {{batch_lhs=[], batch_rhs=[], contract_lhs=[2], "
        "contract_rhs=[0]} : f32[2, 4]",
        f"dot-twice: f32[2, 3], f32[3, 4] => {DOT} {{batch_lhs=[], batch_rhs=[], "
        "contract_lhs=[1, 1], contract_rhs=[0, 1]} : f32[2]",
        f"dot-both: f32[5, 2, 3], f32[5, 3, 4] => {DOT} {{batch_lhs=[0], batch_rhs=[0], "
        "contract_lhs=[0], contract_rhs=[1]} : f32[5, 2, 4]",
        f"dot-lengths: f32[2, 3], f32[3, 4] => {DOT} {{batch_lhs=[], batch_rhs=[], "
        "contract_lhs=[0, 1], contract_rhs=[0]} : f32[4]",
        "perm-short: f32[2, 3] => transpose(%0) {perm=[0]} : f32[2]",
        "perm-twice: f32[2, 3] => transpose(%0) {perm=[0, 0]} : f32[2, 2]",
        f"perm-huge: f32[2, 3] => transpose(%0) {{perm=[1, {HUGE}]}} : f32[3, 2]",
        "two-inferred: f32[6] => reshape(%0) {new_shape=[infer, infer]} : f32[2, 3]",
        "inferred-beside-0: f32[0] => reshape(%0) {new_shape=[0, 0, infer]} : f32[0, 0, 1]",
        "slice-lengths: f32[2, 3] => slice(%0) {starts=[0], sizes=[1, 1]} : f32[1, 1]",
        "slice-outside: f32[2, 3] => slice(%0) {starts=[0, 2], sizes=[1, 2]} : f32[1, 2]",
        f"slice-huge: f32[4] => slice(%0) {{starts=[{HUGE}], sizes=[1]}} : f32[1]",
        "concat-axis: f32[2, 3] => concat(%0) {axis=-3} : f32[2, 3]",
        "concat-scalar: f32[] => concat(%0) {axis=0} : f32[]",
        "pad-lengths: f32[2, 3] => pad(%0) {low=[1], high=[1, 1], interior=[0, 0], "
        "pad_value=float 0.0} : f32[4, 5]",
        "pad-class: si8[2] => pad(%0) {low=[1], high=[0], interior=[0], pad_value=float 0.0} "
        ": si8[3]",
        "pad-range: si8[2] => pad(%0) {low=[1], high=[0], interior=[0], pad_value=signed 200} "
        ": si8[3]",
        "pad-sign: ui8[2] => pad(%0) {low=[1], high=[0], interior=[0], pad_value=signed 1} "
        ": ui8[3]",
        "tile-lengths: f32[2, 3] => tile(%0) {repeats=[2]} : f32[4, 3]",
        "iota-axis: => iota() {shape=[2, 3], dtype=f32, axis=2} : f32[2, 3]",
        "iota-range: => iota() {shape=[129], dtype=si8, axis=0} : si8[129]",
        "iota-range-4: => iota() {shape=[2, 9], dtype=si4, axis=1} : si4[2, 9]",
        "gather-axis: f32[2, 3], si32[2, 3] => gather(%0, %1) {axis=2} : f32[2, 3]",
        "scatter-axis: f32[5], si32[3], f32[3] => scatter_reduce(%0, %1, %2) "
        "{axis=-2, reduce=add} : f32[5]",
        "scatter-order: f32[5, 4], si32[3, 1], f32[3] => scatter_add(%0, %1, %2) "
        "{update_window_dims=[], inserted_window_dims=[1, 0], scatter_dims_to_operand_dims=[0], "
        "index_vector_dim=1} : f32[5, 4]",
        f"scatter-vector-dim: f32[5, 4], si32[3, 1], f32[3, 4] => scatter_add(%0, %1, %2) "
        f"{{{ROWS}, index_vector_dim=3}} : f32[5, 4]",
        "dynamic-slice-lengths: f32[2, 3], si32[2] => dynamic_slice(%0, %1) {sizes=[1]} : f32[1]",
        "dynamic-slice-larger: f32[2], si32[1] => dynamic_slice(%0, %1) {sizes=[3]} : f32[3]",
        "update-larger: f32[2], f32[3], si32[1] => dynamic_update_slice(%0, %1, %2) {sizes=[3]} "
        ": f32[2]",
        f"patches-lengths: f32[1, 5, 5, 2] => extract_patches(%0) {{window=[3], {WINDOW}}} "
        ": f32[1, 3, 5, 6]",
        f"patches-window-0: f32[1, 5, 2] => extract_patches(%0) {{window=[0], {WINDOW}}} "
        ": f32[1, 6, 0]",
        "patches-stride-0: f32[1, 5, 2] => extract_patches(%0) {window=[3], strides=[0], "
        "dilation=[1], padding=[(0, 0)], pad_value=float 0.0} : f32[1, 3, 6]",
        f"patches-larger: f32[1, 2, 4] => extract_patches(%0) {{window=[3], {WINDOW}}} "
        ": f32[1, 0, 12]",
        f"patches-fill: si8[1, 5, 2] => extract_patches(%0) {{window=[3], {WINDOW}}} "
        ": si8[1, 3, 6]",
        "window-lengths: f32[5, 5] => reduce_window(%0) {window_dims=[3], strides=[1], "
        f"padding=[(0, 0)], {POOL}}} : f32[3, 5]",
        "window-0: f32[5] => reduce_window(%0) {window_dims=[0], strides=[1], padding=[(0, 0)], "
        f"{POOL}}} : f32[6]",
        "window-larger: f32[2] => reduce_window(%0) {window_dims=[3], strides=[1], "
        f"padding=[(0, 0)], {POOL}}} : f32[0]",
        "k-larger: f32[4] => top_k(%0) {k=5, axis=0, largest=true, indices_dtype=si32} "
        ": (f32[5], si32[5])",
        "top-k-axis: f32[4] => top_k(%0) {k=1, axis=1, largest=true, indices_dtype=si32} "
        ": (f32[1], si32[1])",
        "sort-axis: f32[4] => sort(%0) {axis=1, descending=false} : f32[4]",
        "cumulative-axis: f32[] => cumulative_sum(%0) {axis=0, reverse=false} : f32[]",
        "quantize-axis: f32[2, 3], f32[3] => quantize(%0, %1) {output_dtype=si8, axis=2} "
        ": si8[2, 3]",
        "epsilon: f32[2, 3], f32[3], f32[3] => layer_norm(%0, %1, %2) "
        "{epsilon=-1.0, feature_axis=1} : f32[2, 3]",
        "feature-axis: f32[2, 3], f32[3], f32[3] => layer_norm(%0, %1, %2) "
        "{epsilon=0.1, feature_axis=2} : f32[2, 3]",
        "stream: => rng_uniform() {shape=[2], dtype=f32, stream=4294967296} : f32[2]",
        'call-attribute: f32[2] => custom_call(%0) {target="weft.sqrt.v1", '
        "attrs={fast=bool true}} : f32[2]",
    ],
    "UnknownOp": ["name: f32[2] => frobnicate(%0) : f32[2]"],
}  # fmt: skip
