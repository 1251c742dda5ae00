"""The constants of the array API."""

from __future__ import annotations

import math
from typing import Final

from weft.ops.tensor import API_VERSION

__all__ = ["__array_api_version__", "e", "inf", "nan", "newaxis", "pi"]

__array_api_version__: Final = API_VERSION
e: Final = math.e
inf: Final = math.inf
nan: Final = math.nan
pi: Final = math.pi
newaxis: Final = None
