"""`import weft.tree`: the module that `weft.tree` is, also as a statement."""

from __future__ import annotations

import sys

from weft.ops import namespace
from weft.ops.tree import *  # noqa: F403

sys.modules[__name__] = namespace.tree
