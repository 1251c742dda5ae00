"""A check that output files can be written, before the work whose results go there."""

from __future__ import annotations

import os
from pathlib import Path

from weft.foundation.errors import UserError


def check_writable(path: Path) -> None:
    """Refuse a path that could not be written, before the work whose results go there."""
    why = None
    if path.is_dir():
        why = "it is a folder"
    elif not path.parent.is_dir():
        why = f"there is no folder {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        why = "permission denied"
    if why is not None:
        raise UserError(f"cannot write {path}: {why}")
