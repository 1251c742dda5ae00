"""The names of the ops layer that `weft` hands out: tensors, functions and dtypes."""

from __future__ import annotations

from weft.ops.array import (
    constants,
    conversion,
    creation,
    data_types,
    elementwise,
    functions,
    indexing,
    inspection,
    linear_algebra,
    manipulation,
    operators,
    searching,
    sets,
    sorting,
    statistics,
    utility,
)
from weft.ops.array.constants import *  # noqa: F403
from weft.ops.array.conversion import *  # noqa: F403
from weft.ops.array.creation import *  # noqa: F403
from weft.ops.array.data_types import *  # noqa: F403
from weft.ops.array.elementwise import *  # noqa: F403
from weft.ops.array.functions import *  # noqa: F403
from weft.ops.array.indexing import *  # noqa: F403
from weft.ops.array.inspection import *  # noqa: F403
from weft.ops.array.linear_algebra import *  # noqa: F403
from weft.ops.array.manipulation import *  # noqa: F403
from weft.ops.array.searching import *  # noqa: F403
from weft.ops.array.sets import *  # noqa: F403
from weft.ops.array.sorting import *  # noqa: F403
from weft.ops.array.statistics import *  # noqa: F403
from weft.ops.array.utility import *  # noqa: F403
from weft.ops.graph.context import default_backend, graph, set_default_backend
from weft.ops.tensor import Tensor
from weft.ops.tensor import evaluate_all as eval  # noqa: A004

__all__ = ["Tensor", "default_backend", "eval", "graph", "set_default_backend"]
for _module in (
    constants, conversion, creation, data_types, elementwise, functions, indexing, inspection,
    linear_algebra, manipulation, searching, sets, sorting, statistics, utility,
):  # fmt: skip
    __all__ += _module.__all__
_ = operators
