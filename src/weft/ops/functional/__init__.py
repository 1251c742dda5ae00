"""`weft.functional`: the ops that models are written in, and the registry of their implementations.

Every op is written the same way: `check_<op>` validates the arguments and answers a `Checked`
record, `capture_<op>` writes the instructions into a session, and the public function does one
after the other. Nothing is computed until a tensor is read.
"""

from weft.ops.functional.activation import log_softmax, softmax
from weft.ops.functional.registry import (
    configure,
    functional,
    implementations,
    implements,
    overrides,
    register,
)

__all__ = [
    "configure",
    "functional",
    "implementations",
    "implements",
    "log_softmax",
    "overrides",
    "register",
    "softmax",
]
