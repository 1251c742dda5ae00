"""`import weft.optim`: the module that `weft.optim` is, also as a statement."""

from __future__ import annotations

import sys

from weft.ops import namespace
from weft.ops.optim import *  # noqa: F403

sys.modules[__name__] = namespace.optim
