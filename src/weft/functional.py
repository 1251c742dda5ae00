"""`import weft.functional`: the module that `weft.functional` is, also as a statement."""

from __future__ import annotations

import sys

from weft.ops import namespace
from weft.ops.functional import *  # noqa: F403

sys.modules[__name__] = namespace.functional
