"""`weft scale`: estimates of training on many GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final

import typer

from weft.cli.tables import new_table, print_table
from weft.foundation.errors import UserError
from weft.target.cluster import MODELS, Cluster, Model, Step, step_of

_COLUMNS: Final = (
    "GPUs", "compute ms", "exchange ms", "tensor ms", "efficiency", "with overlap", "M tokens/s",
    "state GB/GPU",
)  # fmt: skip
_MOST: Final = 1 << 20


def scale_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"{', '.join(MODELS)}.")],
    gpus: Annotated[str, typer.Option(help="How many GPUs, as in 8,64,1024.")] = "8,64,1024",
    tensor: Annotated[int, typer.Option(min=1, help="GPUs that share each layer.")] = 1,
    tokens: Annotated[int, typer.Option(min=0, help="Tokens a GPU takes in a step.")] = 0,
    sharded: Annotated[bool, typer.Option(help="Split the optimiser's state over ranks.")] = False,
) -> None:
    """Estimate a training step on many GPUs: compute, communication, memory, efficiency."""
    found, cluster = _model(model, tokens), Cluster()
    table = new_table()
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for count in _counts(gpus, tensor, cluster):
        step = step_of(found, cluster, count, split=tensor, sharded=sharded)
        table.add_row(*_table_row(count, step, found))
    print_table(table)


def _table_row(count: int, step: Step, model: Model) -> list[str]:
    whole = step.compute + step.tensor + step.exposed
    return [
        str(count),
        *(f"{1e3 * seconds:.1f}" for seconds in (step.compute, step.exchange, step.tensor)),
        f"{step.efficiency_without_overlap:.0%}",
        f"{step.efficiency:.0%}",
        f"{count * model.tokens / whole / 1e6:.2f}",
        f"{step.state / 1e9:.1f}",
    ]


def _model(name: str, tokens: int) -> Model:
    if name not in MODELS:
        raise UserError(f"there is no model {name!r}; there are {', '.join(MODELS)}")
    return replace(MODELS[name], tokens=tokens) if tokens else MODELS[name]


def _counts(text: str, tensor: int, cluster: Cluster) -> list[int]:
    if cluster.per_node % tensor:
        raise UserError(f"--tensor is {tensor}; it divides the {cluster.per_node} GPUs of a node")
    found = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    for count in found:
        if not 0 < count <= _MOST or count % tensor:
            raise UserError(
                f"--gpus is {text!r}; give numbers up to {_MOST:,}, as in 8,64,1024, each a "
                f"multiple of the {tensor} that share a layer"
            )
        if count > cluster.per_node and count % cluster.per_node:
            raise UserError(f"{count} GPUs do not fill nodes of {cluster.per_node}")
    return found
