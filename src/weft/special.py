"""`import weft.special`: the module that `weft.special` is, also as a statement."""

from __future__ import annotations

import sys

from weft.ops import namespace
from weft.ops.array.special import *  # noqa: F403

sys.modules[__name__] = namespace.special
