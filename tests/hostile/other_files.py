"""Damaged files that are neither programs of Weft's nor weights: StableHLO, bundles, the indices of
checkpoints, plans. What each is read by is beside it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

import weft
from examples.make_programs import mlp, softmax_layernorm
from tests.hostile.judge import inputs
from tests.hostile.mutations import damaged
from weft.interop import stablehlo
from weft.ptir import Builder, Program, verify


@dataclass(frozen=True)
class Kind:
    """A kind of file: one to be damaged, its form, and what reads one in a folder."""

    name: str
    form: str
    original: Callable[[Path, random.Random], bytes]
    read: Callable[[Path, bytes], object]


def outcome(kind: Kind, folder: Path, seed: int) -> object:
    """Read the file with the damage that the seed stands for."""
    rng = random.Random(seed)
    return kind.read(folder, damaged(rng, kind.original(folder, rng), kind.form))


# -- StableHLO -------------------------------------------------------------------------------------


def _counting() -> Program:
    b = Builder("counting")
    n, x = b.param("si32"), b.param("f32", [4])
    step = b.while_(lambda r, i: (i < 9, r.add(i, 0)), lambda r, i: r.add(i, 1), n)
    return b.build(step, b.reduce_sum(b.select(x > 0.5, b.exp(x), b.neg(x)), [0]))


@cache
def _modules() -> list[bytes]:
    small = [mlp(batch=2, width=3, hidden=4, out=2), softmax_layernorm(rows=2, columns=3)]
    return [stablehlo.dumps(program).encode() for program in (*small, _counting())]


def _run_module(folder: Path, data: bytes) -> None:
    program = stablehlo.loads(data)
    if not verify(program, collect=True):
        weft.run(program, inputs(program), backend="reference")


# -- bundles ---------------------------------------------------------------------------------------


def _bundle(folder: Path) -> Path:
    made = folder / "small"
    if not made.exists():
        b = Builder("small")
        x = b.param("f32", [3, 4])
        table = b.constant(np.arange(400, dtype=np.float32).reshape(4, 100))
        weft.build(b.build(b.matmul(x, table)), out=made)
    return made


def _load_bundle(part: str, check: bool) -> Callable[[Path, bytes], None]:
    def load(folder: Path, data: bytes) -> None:
        copy = folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(_bundle(folder), copy)
        (copy / part).write_bytes(data)
        weft.load_bundle(copy, verify=check)(np.ones((3, 4), np.float32))

    return load


# -- checkpoints -----------------------------------------------------------------------------------


def _checkpoint(folder: Path) -> Path:
    made = folder / "saved"
    if not made.exists():
        made.mkdir()
        mesh = weft.mesh(data=2, simulated=True)
        whole = np.arange(24, dtype=np.float32).reshape(4, 6)
        tree = {"w": weft.shard(whole, mesh, {0: "data"}), "b": weft.asarray([1.0]), "step": 3}
        weft.save(made / "step.safetensors", tree, mesh=mesh)
    return made


def _part(folder: Path, pattern: str) -> Path:
    """A file of the checkpoint."""
    return min(_checkpoint(folder).glob(pattern))


def _load_checkpoint(pattern: str) -> Callable[[Path, bytes], None]:
    def load(folder: Path, data: bytes) -> None:
        copy = folder / "copied"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(_checkpoint(folder), copy)
        (copy / _part(folder, pattern).name).write_bytes(data)
        for tensor in weft.load(copy / "step.safetensors").values():
            tensor.numpy() if hasattr(tensor, "numpy") else tensor

    return load


# -- plans -----------------------------------------------------------------------------------------


@cache
def _planned() -> Program:
    return mlp(batch=2, width=3, hidden=4, out=2)


@cache
def _plan() -> bytes:
    return weft.compile(_planned()).stages["plan"].encode()


def _compile_with(folder: Path, data: bytes) -> None:
    weft.compile(_planned(), overrides={"plan": data.decode(errors="replace")})


_INDEX, _PART = "*.index.json", "step-*.safetensors"
_MANIFEST = "manifest.json"
KINDS = {
    kind.name: kind
    for kind in (
        Kind("StableHLO", "text", lambda f, rng: rng.choice(_modules()), _run_module),
        Kind(
            "manifest", "json", lambda f, rng: (_bundle(f) / _MANIFEST).read_bytes(),
            _load_bundle(_MANIFEST, check=True),
        ),
        Kind(
            "unchecked weights", "bincode",
            lambda f, rng: (_bundle(f) / "weights.safetensors").read_bytes(),
            _load_bundle("weights.safetensors", check=False),
        ),
        Kind(
            "index", "json", lambda f, rng: _part(f, _INDEX).read_bytes(),
            _load_checkpoint(_INDEX),
        ),
        Kind(
            "part", "bincode", lambda f, rng: _part(f, _PART).read_bytes(),
            _load_checkpoint(_PART),
        ),
        Kind("plan", "json", lambda f, rng: _plan(), _compile_with),
    )
}  # fmt: skip
