"""The cpu backend with its choices drawn at random: what is fused, how kernels are cut, how many
threads run them, how much LLVM optimises. No choice may change what a program means."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from numpy.typing import NDArray

from weft.codegen.cpu.accept import BLOCKED, PACKED
from weft.codegen.cpu.compile import accepts
from weft.driver.code import cpu_generator, cpu_kernels
from weft.driver.cpu import CpuBackend, CpuExecutable
from weft.foundation.errors import InternalError, WeftError
from weft.plan import verify as plan_verify
from weft.plan.from_region import plan_module
from weft.plan.ir import (
    ONLINE,
    STREAMING,
    AttentionPlan,
    MapPlan,
    MmaPlan,
    Plan,
    PlanSet,
    RowPlan,
    Vectorize,
)
from weft.ptir.interp import Observer
from weft.ptir.ir import Program
from weft.region.fusion.greedy import Fusion
from weft.region.ir import Kernel, Module
from weft.runtime.jit import compile_object
from weft.target.target import Target

Array = NDArray[Any]
_TRIES = 4


@dataclass(frozen=True)
class Configuration:
    """One drawn way to compile and run."""

    fuses: bool
    draws_plans: bool
    threads: int
    level: int
    seed: int

    @classmethod
    def drawn(cls, seed: int) -> Configuration:
        rng = random.Random(seed)
        level = 3 if rng.random() < 0.06 else 0
        return cls(rng.random() < 0.7, rng.random() < 0.7, rng.choice((1, 2)), level, seed)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Compiling as drawn. Every kernel is worth sharing, and nothing is kept on disk: what is
        there was compiled another way."""
        rng = random.Random(self.seed)

        def plans(module: Module, target: Target) -> PlanSet:
            chosen = plan_module(module, target)
            return drawn_plans(chosen, module, target, rng) if self.draws_plans else chosen

        def machine_code(texts: Sequence[str], code: Any) -> list[tuple[bytes, bool]]:
            assert code is None
            return [(compile_object(text, level=self.level), True) for text in texts]

        decide = Fusion._decide if self.fuses else _store
        with (
            mock.patch.dict("os.environ", {"WEFT_CACHE": "off"}),
            mock.patch.object(Fusion, "_decide", decide),
            mock.patch.object(cpu_generator, "plan_module", plans),
            mock.patch.object(cpu_kernels, "object_codes", machine_code),
            mock.patch.object(cpu_kernels, "work_of", return_value=1_000_000),
        ):
            yield


def _store(fusion: Fusion, name: str) -> None:
    """No block becomes part of another's kernel but a number."""
    if fusion.view.blocks[name].fn == "const" and fusion.is_number_anywhere(fusion.readers[name]):
        fusion.inlined.add(name)


class ConfiguredBackend(CpuBackend):
    """The cpu backend as drawn. It runs everything twice, with one thread and with those drawn, and
    refuses results that are not the same bits."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration

    def compile_donating(self, program: Program, donated: frozenset[int]) -> CpuExecutable:
        with self.configuration.in_force():
            made = super().compile_donating(program, donated)
        return _Twice(made.executable, self.configuration)


class _Twice(CpuExecutable):
    def __init__(self, executable: Any, configuration: Configuration) -> None:
        super().__init__(executable)
        self.configuration = configuration

    def execute(
        self, inputs: Sequence[Array], *, seed: int = 0, observer: Observer | None = None
    ) -> list[Array]:
        with self.configuration.in_force():
            alone, shared = (
                self.executable.run([a.copy() for a in inputs], seed=seed, threads=threads)
                for threads in (1, self.configuration.threads)
            )
        if [a.tobytes() for a in alone] != [a.tobytes() for a in shared]:
            raise InternalError(f"two runs differ: {self.configuration}")
        return alone

    def execute_held(
        self, inputs: Sequence[Array], holder: object, data: Sequence[int], *, seed: int = 0
    ) -> list[Array]:
        return self.execute(inputs, seed=seed)


# -- plans ---------------------------------------------------------------------------------------


def drawn_plans(chosen: PlanSet, module: Module, target: Target, rng: random.Random) -> PlanSet:
    """Plans that the kernels accept, one drawn for each structure."""
    plans = dict(chosen.plans)
    for key, plan in chosen.plans.items():
        kernels = [k for k in module.kernels if chosen.kernels.get(k.name) == key]
        for _ in range(_TRIES):
            drawn = _drawn(plan, rng)
            if _is_legal(drawn, kernels, module, target):
                plans[key] = drawn
                break
    return replace(chosen, plans=plans)


def _is_legal(plan: Plan, kernels: Sequence[Kernel], module: Module, target: Target) -> bool:
    try:
        plan_verify.verify(plan, target)
    except WeftError:
        return False
    return all(accepts(kernel, module.tensors, plan) == [] for kernel in kernels)


def _drawn(plan: Plan, rng: random.Random) -> Plan:
    lanes = rng.choice((1, 2, 4, 8, 16))
    match plan:
        case MapPlan():
            unroll = rng.choice((1, 2, 3, 4))
            block = rng.choice((1, 1, 2 * unroll * lanes))
            return replace(plan, vector=lanes, unroll=unroll, block=block)
        case RowPlan():
            keep = rng.random() < 0.5
            return replace(plan, vector=lanes, accumulators=rng.randint(1, 5), keep_row=keep)
        case MmaPlan():
            return _drawn_contraction(plan, lanes, rng)
        case AttentionPlan():
            return _drawn_attention(plan, lanes, rng)
    return plan


def _drawn_contraction(plan: MmaPlan, lanes: int, rng: random.Random) -> MmaPlan:
    rows, vectors = rng.randint(1, 5), rng.randint(1, 3)
    tile = (rows, vectors * lanes)
    cache = rng.choice(((), PACKED, BLOCKED))
    depth = rng.choice((plan.tile[2], 2, 5)) if cache == BLOCKED else plan.tile[2]
    blocks = (rows * rng.randint(1, 3), tile[1] * rng.randint(1, 2), depth)
    return replace(
        plan,
        tile=blocks if cache else (*tile, depth),
        warp_tile=tile,
        cache=cache,
        vectorize=Vectorize(rng.choice(("n", "n", "k")), lanes),
    )


def _drawn_attention(plan: AttentionPlan, lanes: int, rng: random.Random) -> AttentionPlan:
    rows, columns = rng.randint(1, 5), lanes * rng.randint(1, 3)
    return replace(
        plan,
        tile_q=columns * rng.randint(1, 3),
        tile_kv=rows * rng.randint(1, 3),
        algo=rng.choice((ONLINE, STREAMING)),
        register_tile=(rows, columns),
        vector=lanes,
    )
