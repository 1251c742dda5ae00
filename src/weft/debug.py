"""`import weft.debug`: the module that `weft.debug` is, also as a statement."""

from __future__ import annotations

import sys

from weft.ops import namespace
from weft.ops.debug import *  # noqa: F403

sys.modules[__name__] = namespace.debug
