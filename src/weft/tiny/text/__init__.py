"""Tiny as JSON, both ways without loss: document 2's section 12.1, extended.

A document is `{"ops": [...], "values": {name: {"dtype", "shape"}}}`. Dtypes are written as in
every other stage (f16, bf16, f32) and read under the document's names (fp16, fp32) too. A size is a
number, or a string: a name for a symbol, digits for a number. Beside the document's fields there
are

- `inputs` and `outputs` (`{result name: value name}`). Without them every value that no op makes is
  an input, and every value that no op reads is a result under its own name;
- `constants`: the data of inputs that are not handed in, in base64, row-major, little-endian;
- ops `Leaf` (kinds `const` and `iota`), `Gather`, `Check`, `Words` and `Opaque` (written by the
  caller's codec); movements `flip`, `dynamic_shrink`, `dynamic_update` and `barrier`; `Unary`
  `cast`; `Reduce` with attribute `acc`.

What a file may leave out is put in when it is read: types in `values`; broadcasts of operands
(aligned at the right) and leading axes of `expand`; the accumulator of a reduction (f32 for floats
under 32 bits, cast back). `axes` of a reduction are numbers or names of symbols. Names of ops and
values are kept beside the graph; values without one are v0, v1, ... in topological order.
"""

from weft.tiny.text.parser import from_json, loads
from weft.tiny.text.printer import dumps, to_json

__all__ = ["dumps", "from_json", "loads", "to_json"]
