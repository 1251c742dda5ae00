"""An interpreter of the GPU dialect in NumPy: it runs a kernel over all threads of its blocks.

Each warp is a strand: a generator that runs until it must wait. Values of a warp's lanes are
vectors of 32; numbers that are the same for all lanes are plain integers. Strands run one at a
time, as far as they get, in an order that a seed decides. Asynchronous statements take effect as
late as their waits allow (`Timing.LATE`), or at once (`Timing.EARLY`): a kernel that is right in
both, for several orders, has its waits and barriers in place. Touching what an asynchronous
statement still owns, and waiting for ever, are `Hazard`s.

Shared memory is modelled byte by byte, with the permutations of the copy engine and of the matrix
instructions applied to addresses, independently of the layouts that the templates use.
"""

from weft.codegen.gpu.interp.blocks import Spent, Timing
from weft.codegen.gpu.interp.machine import run
from weft.codegen.gpu.interp.races import Hazard

__all__ = ["Hazard", "Spent", "Timing", "run"]
