"""`import weft.fft`: the module that `weft.fft` is, also as a statement."""

from __future__ import annotations

import sys

from weft.ops import namespace
from weft.ops.array.fft import *  # noqa: F403

sys.modules[__name__] = namespace.fft
