"""`import weft.nn`: the module that `weft.nn` is, also as a statement."""

from __future__ import annotations

import sys

from weft.ops import namespace
from weft.ops.nn import *  # noqa: F403

sys.modules[__name__] = namespace.nn
