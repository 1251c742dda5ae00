"""`import weft.random`: the module that `weft.random` is, also as a statement."""

from __future__ import annotations

import sys

from weft.ops import namespace
from weft.ops.random import *  # noqa: F403

sys.modules[__name__] = namespace.random
