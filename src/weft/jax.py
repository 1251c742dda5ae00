"""`import weft.jax`: JAX's functions in Weft, Weft's programs in JAX. Needs the package jax."""

from __future__ import annotations

from weft.foundation.errors import UserError

try:
    from weft.interop.jax import from_function, to_function
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("jax", "jaxlib"):
        raise
    raise UserError(
        "weft.jax needs JAX, which is not installed; pip install 'weft[jax]'", "PackageMissing"
    ) from None

__all__ = ["from_function", "to_function"]
