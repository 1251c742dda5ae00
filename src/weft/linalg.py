"""`import weft.linalg`: the module that `weft.linalg` is, also as a statement."""

from __future__ import annotations

import sys

from weft.ops import namespace
from weft.ops.array.linalg import *  # noqa: F403

sys.modules[__name__] = namespace.linalg
