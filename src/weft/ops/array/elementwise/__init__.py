"""Elementwise functions. Operands are promoted and broadcast; of two at least one is a tensor, the
other may be a Python number."""

from weft.ops.array.elementwise import arithmetic, functions, logic
from weft.ops.array.elementwise.arithmetic import *  # noqa: F403
from weft.ops.array.elementwise.functions import *  # noqa: F403
from weft.ops.array.elementwise.logic import *  # noqa: F403

__all__ = arithmetic.__all__ + functions.__all__ + logic.__all__
