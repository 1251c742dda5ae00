"""The CUDA prelude of a kernel: the device functions that its statements call."""

from typing import Final

from weft.codegen.gpu.spelling.prelude.angles import ANGLES
from weft.codegen.gpu.spelling.prelude.elements import (
    ELEMENTS,
    FORMATS,
    philox,
    philox_side_by_side,
)
from weft.codegen.gpu.spelling.prelude.instructions import (
    ACROSS,
    CHAINS,
    CLUSTERS,
    COMBINING,
    COMMON,
    PARTS_OF_PIECES,
    SM80,
    SM90,
    THREADS,
)
from weft.codegen.gpu.spelling.prelude.partial_sums import PARTS
from weft.codegen.gpu.spelling.prelude.rows import ROWS
from weft.codegen.gpu.spelling.prelude.sorting import SORTING

TEXTS: Final = (
    *(COMMON, THREADS, COMBINING, ACROSS, SM80, PARTS_OF_PIECES, SM90),
    *(CLUSTERS, CHAINS, ELEMENTS, FORMATS, SORTING, PARTS, ROWS, philox(), ANGLES),
    philox_side_by_side(),
)
"""Every text, those apart that are made for one kernel's matrices and boxes."""
