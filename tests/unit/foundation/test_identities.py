"""Which objects lists hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from weft.foundation import identities as home
from weft.foundation.identities import identities


class Many(list[Any]):
    __slots__ = ("__weakref__",)


@pytest.mark.parametrize("ask", [identities, home._ids_by_asking, home._looked_up])
@pytest.mark.parametrize("kind", [list, Many])
def test_lists_of_the_same_objects(
    ask: Callable[[list[Any]], object], kind: Callable[..., list[Any]]
) -> None:
    items = [np.zeros(3), np.zeros(3), 1.5, "a", None, np.zeros(3)]
    first = kind(items)
    assert ask(first) == ask(list(items))
    assert ask(first) != ask(list(reversed(items)))
    assert ask(first) != ask(items[:-1])
    assert ask([*items[:2], *items[3:]]) != ask(items)
    before = ask(first)
    first[1] = np.zeros(3)
    assert ask(first) != before
    first.append(first.pop(0))
    assert ask(first) != before
    assert ask(kind()) == ask([])
