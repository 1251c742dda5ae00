"""The names of the ops layer that `weft` hands out: tensors, functions and dtypes."""

from __future__ import annotations

from collections.abc import Sequence

from weft.driver.backends import default_backend
from weft.driver.programs.shape_sets import ShapeSet
from weft.foundation.mesh import Mesh
from weft.foundation.tracebacks import ending_outside
from weft.ops import data, debug, functional, nn, optim, random, tree
from weft.ops.array import (
    beyond,
    constants,
    conversion,
    creation,
    cumulative,
    data_types,
    elementwise,
    fft,
    indexing,
    inspection,
    linalg,
    linear_algebra,
    manipulation,
    numpy_protocol,
    operators,
    searching,
    sets,
    sorting,
    special,
    statistics,
    utility,
    windows,
)
from weft.ops.array.beyond import *  # noqa: F403
from weft.ops.array.constants import *  # noqa: F403
from weft.ops.array.conversion import *  # noqa: F403
from weft.ops.array.creation import *  # noqa: F403
from weft.ops.array.cumulative import *  # noqa: F403
from weft.ops.array.data_types import *  # noqa: F403
from weft.ops.array.elementwise import *  # noqa: F403
from weft.ops.array.indexing import *  # noqa: F403
from weft.ops.array.inspection import *  # noqa: F403
from weft.ops.array.linear_algebra import *  # noqa: F403
from weft.ops.array.manipulation import *  # noqa: F403
from weft.ops.array.searching import *  # noqa: F403
from weft.ops.array.sets import *  # noqa: F403
from weft.ops.array.sorting import *  # noqa: F403
from weft.ops.array.statistics import *  # noqa: F403
from weft.ops.array.utility import *  # noqa: F403
from weft.ops.array.windows import *  # noqa: F403
from weft.ops.autocast import autocast
from weft.ops.caches import CacheInfo, cache_info, clear_caches, gpu_memory
from weft.ops.callbacks import pure_callback
from weft.ops.control_flow import cond, scan, while_loop
from weft.ops.custom_rules import custom_jvp, custom_vjp
from weft.ops.default_backend import graph, set_default_backend
from weft.ops.differentiate import (
    checkpoint,
    grad,
    hessian,
    jacobian,
    jvp,
    linearize,
    stop_gradient,
    value_and_grad,
    vjp,
)
from weft.ops.eval_shape import eval_shape
from weft.ops.functional.contraction import einsum
from weft.ops.functional.linear import matmul
from weft.ops.jit import jit
from weft.ops.loops import associative_scan, fori_loop, switch
from weft.ops.mesh.batches import shard_batches
from weft.ops.mesh.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    collective_broadcast,
    collective_permute,
    rank,
    reduce_scatter,
)
from weft.ops.mesh.mesh import mesh
from weft.ops.mesh.parallel import parallel, reshard
from weft.ops.mesh.sharded import Sharded, replicate, shard
from weft.ops.mesh.spmd import spmd
from weft.ops.other_names import function_advice
from weft.ops.pytree import pytree, register_pytree
from weft.ops.random.default import rand, randn
from weft.ops.tensor import Tensor, eval  # noqa: A004
from weft.ops.trace import TraceConfig, profile, trace
from weft.ops.trace.config import watch_process
from weft.ops.vectorise import vmap


def missing(name: str, known: Sequence[str]) -> AttributeError:
    """What is raised for a name that `weft` does not have: it says what to write instead. `known`
    are the names it has."""
    parts = {"optim": optim, "nn": nn}
    parts |= {"special": special, "linalg": linalg, "functional": functional}
    apart = {
        each: f"weft.{home}.{each}" for home, module in parts.items() for each in module.__all__
    }
    found = apart.get(name)
    advice = f"; here it is {found}" if found else function_advice(name, known, apart)
    error = AttributeError(f"module 'weft' has no attribute {name!r}{advice}", name=name)
    return ending_outside(error)


operators.install()
numpy_protocol.install()
watch_process()
__all__ = [
    "CacheInfo",
    "Mesh",
    "ShapeSet",
    "Sharded",
    "Tensor",
    "TraceConfig",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "associative_scan",
    "autocast",
    "cache_info",
    "checkpoint",
    "clear_caches",
    "collective_broadcast",
    "collective_permute",
    "cond",
    "custom_jvp",
    "custom_vjp",
    "data",
    "debug",
    "default_backend",
    "einsum",
    "eval",
    "eval_shape",
    "fft",
    "fori_loop",
    "functional",
    "gpu_memory",
    "grad",
    "graph",
    "hessian",
    "jacobian",
    "jit",
    "jvp",
    "linalg",
    "linearize",
    "matmul",
    "mesh",
    "nn",
    "optim",
    "parallel",
    "profile",
    "pure_callback",
    "pytree",
    "rand",
    "randn",
    "random",
    "rank",
    "reduce_scatter",
    "register_pytree",
    "replicate",
    "reshard",
    "scan",
    "set_default_backend",
    "shard",
    "shard_batches",
    "special",
    "spmd",
    "stop_gradient",
    "switch",
    "trace",
    "tree",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
]
__all__ += (
    beyond.__all__ + constants.__all__ + conversion.__all__ + creation.__all__ + data_types.__all__
)
__all__ += elementwise.__all__ + indexing.__all__ + inspection.__all__
__all__ += linear_algebra.__all__ + manipulation.__all__ + cumulative.__all__
__all__ += searching.__all__ + sets.__all__ + sorting.__all__ + statistics.__all__
__all__ += utility.__all__ + windows.__all__
