"""`import weft.data`: the module that `weft.data` is, also as a statement."""

from __future__ import annotations

import sys

from weft.ops import namespace
from weft.ops.data import *  # noqa: F403

sys.modules[__name__] = namespace.data
