"""Compilation tasks that a worker process can do as well: the plan of a kernel class, and the CUDA
text of its kernels.

Everything that it depends on is part of the task, so that whoever does it finds the same. Tasks go
to other processes in the forms of the stages' texts, and so do plans that come back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.verify import verify
from weft.driver.code.gpu_lowering import Lowering
from weft.driver.code.plans import Built, Choice, choose_plan
from weft.foundation.errors import WeftError
from weft.foundation.json_fields import reading
from weft.memory import text as memory_text
from weft.memory.ir import BufferMap, MemRef, lie_alike
from weft.plan.text import plan_from_json, plan_to_json
from weft.region import text as region_text
from weft.region.ir import Kernel, Module
from weft.region.structure import buffers
from weft.target.known import GPUS, target_named
from weft.target.target import Target

_MARK: Final = b"{"
"""How tasks begin, and no source does."""


@dataclass(frozen=True)
class Task:
    """Kernels of one structure: of those that are the same but for names, one."""

    key: str
    """Of their plan."""
    module: Module
    """They and their tensors alone."""
    places: BufferMap
    """Where these lie."""
    settled: frozenset[str]
    """Tensors in buffers that no kernel of the program writes."""
    inside: frozenset[str]
    """Kernels whose text is wanted; there are others before and behind them."""
    target: Target


@dataclass(frozen=True)
class Done:
    """What was made of a task."""

    choice: Choice
    texts: dict[str, str]
    """CUDA texts by symbols, of kernels that were verified."""


def task_of(
    key: str,
    kernels: Sequence[Kernel],
    module: Module,
    buffer_map: BufferMap,
    target: Target,
    is_settled: Callable[[MemRef], bool],
    is_held: bool,
) -> Task:
    """The task of all kernels of a structure; those that are `held` are written by others."""
    ends = {module.kernels[0].name, module.kernels[-1].name}
    found: dict[Hashable, Kernel] = {}
    inside: set[str] = set()
    for kernel in kernels:
        own = [buffer_map.refs[name] for name in buffers(kernel)]
        local = buffer_map.refs_of(buffers(kernel)).values()
        # All that kernels of one structure may differ in: how their tensors lie, which of them
        # overlap, and which are read through the cache for what nobody writes.
        lies = lie_alike(own), tuple(ref.noalias for ref in local), tuple(map(is_settled, own))
        first = found.setdefault(lies, kernel)
        if not is_held and kernel.name not in ends:
            inside.add(first.name)
    names = dict.fromkeys(name for kernel in found.values() for name in buffers(kernel))
    places = BufferMap({name: buffer_map.refs[name] for name in names}, 0)
    settled = frozenset(name for name in names if is_settled(places.refs[name]))
    tensors = {name: module.tensors[name] for name in names}
    part = Module(tensors, tuple(found.values()), (), ())
    return Task(key, part, places, settled, frozenset(inside), target)


def do(task: Task, built: Built) -> Done:
    """The work. What is made of kernels on the way is `built`."""
    module = task.module
    choice = choose_plan(task.key, module.kernels, module, task.places, task.target, built)
    return Done(choice, dict(_texts(task, choice, built)) if choice.fits else {})


def _texts(task: Task, choice: Choice, built: Built) -> Iterator[tuple[str, str]]:
    is_settled = lambda ref: ref.tensor in task.settled  # noqa: E731
    lowering = Lowering(task.module, task.places, task.target, is_settled)
    kernels = [kernel for kernel in task.module.kernels if kernel.name in task.inside]
    try:
        for kernel in lowering.inside(kernels, choice.plan, built):
            verify(kernel, task.target)
            yield kernel.name, cuda(kernel)
    except WeftError:
        # The stage that is for it comes upon it as well, and says so.
        return


# -- between processes ---------------------------------------------------------------------------


def can_send(target: Target) -> bool:
    """Whether tasks for a target can go to other processes: they know it by its name."""
    return any(target == known for known in map(target_named, GPUS))


def is_task(message: bytes) -> bool:
    """Whether a message is a task, and not something else for the same processes."""
    return message.startswith(_MARK)


def answer(message: bytes) -> bytes:
    """What a process makes of the message of a task."""
    return pack_done(do(_read_task(message), {}))


def pack_task(task: Task) -> bytes:
    """The message of a task."""
    document = {
        "key": task.key,
        "target": task.target.name,
        "settled": sorted(task.settled),
        "inside": sorted(task.inside),
        "region": region_text.to_json(task.module),
        "memory": memory_text.to_json(task.places),
    }
    return json.dumps(document).encode()


def _read_task(message: bytes) -> Task:
    with reading(json.loads(message), "task") as fields:
        return Task(
            fields.text("key"),
            region_text.from_json(fields.take("region")),
            memory_text.from_json(fields.take("memory")),
            frozenset(fields.texts("settled")),
            frozenset(fields.texts("inside")),
            target_named(fields.text("target")),
        )


def pack_done(done: Done) -> bytes:
    """The answer to a task."""
    choice = done.choice
    document = {
        "plan": plan_to_json(choice.plan),
        "notes": choice.notes,
        "origin": choice.origin or "",
        "fits": choice.fits,
        "symbols": [*done.texts],
        "texts": [*done.texts.values()],
    }
    return json.dumps(document).encode()


def read_done(message: bytes) -> Done:
    """What was made of a task."""
    with reading(json.loads(message), "answer") as fields:
        choice = Choice(
            plan_from_json(fields.take("plan")),
            fields.texts("notes"),
            fields.text("origin") or None,
            fields.flag("fits"),
        )
        symbols, texts = fields.texts("symbols"), fields.texts("texts")
        return Done(choice, dict(zip(symbols, texts, strict=True)))
