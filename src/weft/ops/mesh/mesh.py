"""`weft.mesh`: ranks of a launcher, or simulated ones, as a mesh; and the mesh in force."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from weft.driver.ranks import launched_world
from weft.foundation.calls import told
from weft.foundation.errors import UserError, brief
from weft.foundation.mesh import Mesh


@told
def mesh(*, simulated: bool | int = False, **axes: int) -> Mesh:
    """The ranks of the launcher as a mesh with named axes: `mesh(data=-1, model=2)`. One axis may
    be -1: whatever is left. Without a launcher there is one rank. `simulated=True` plays as many
    ranks as the axes have in this process, and `simulated=8` eight of them: that is slow, and every
    mistake is told at once."""
    for name, size in axes.items():
        if type(size) is not int or (size < 1 and size != -1):
            raise UserError(f"the axis {name} has size {brief(size)}; give a number, or -1 once")
    if list(axes.values()).count(-1) > 1:
        raise UserError("only one axis of a mesh can be -1: whatever is left")
    if simulated is not True and (type(simulated) not in (int, bool) or simulated < 0):
        raise UserError(f"simulated is {brief(simulated)}; write True, or how many ranks")
    given = axes or {"data": -1}
    known = math.prod(size for size in given.values() if size != -1)
    if simulated is True:
        if -1 in given.values():
            raise UserError("the number of simulated ranks is not given; write simulated=8")
        return Mesh(tuple(given.items()), True)
    world = None if simulated else launched_world()
    count = int(simulated) if world is None else world.count
    if count % known or (-1 not in given.values() and count != known):
        said = ", ".join(f"{name}={size}" for name, size in given.items())
        wanted = f"a multiple of {known}" if -1 in given.values() else f"{known}"
        if world is None:
            raise UserError(f"{said} needs {wanted} ranks, but simulated={count}; write as many")
        there = "there is one" if count == 1 else f"the launcher started {count}"
        raise UserError(
            f"{said} needs {wanted} ranks, and {there}; start the script by "
            f"`weft launch -n {known} SCRIPT`, or simulate them in this process with simulated="
            f"{known if -1 in given.values() else True}"
        )
    settled = tuple((n, count // known if s == -1 else s) for n, s in given.items())
    return Mesh(settled, world is None, 0 if world is None else world.rank)


_IN_FORCE: ContextVar[Mesh | None] = ContextVar("mesh", default=None)


@contextmanager
def on_mesh(found: Mesh) -> Iterator[None]:
    """What is traced in the block is for the ranks of this mesh."""
    token = _IN_FORCE.set(found)
    try:
        yield
    finally:
        _IN_FORCE.reset(token)


def mesh_in_force_or_none() -> Mesh | None:
    """The mesh of the function that is traced, if there is one."""
    return _IN_FORCE.get()


def mesh_in_force() -> Mesh:
    """The mesh of the function that is traced."""
    found = mesh_in_force_or_none()
    if found is None:
        raise UserError(
            "there is no mesh here: ranks meet inside a function with @weft.spmd(mesh)",
            "OutsideSpmd",
        )
    return found
