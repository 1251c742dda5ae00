"""The commands of `weft`: where each is, and what it does in a sentence.

A command is loaded when it is asked for: many need the whole compiler, and those that do not, and
the list of them all, are there at once. The sentence is the beginning of the command's own help.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import typer
from typer.core import TyperGroup

from weft.driver.loading.lazy_modules import load_part


@dataclass(frozen=True)
class Entry:
    """A function or a typer of its own, in a module of this folder."""

    module: str
    name: str
    summary: str
    gpu: tuple[str, ...] = ()
    """Words that, one after the other, ask for a GPU."""
    passes_on: bool = False
    """Whether what follows its first argument is for somebody else."""

    def needs_gpu(self, args: Sequence[str]) -> bool:
        """Whether a GPU is asked for, and not only help or machine code."""
        words = [word for arg in args for word in arg.split("=", 1)]
        places = range(len(words) if self.gpu else 0)
        asked = any(tuple(words[n : n + len(self.gpu)]) == self.gpu for n in places)
        return asked and not {"--help", "--prepare"} & set(words)


_CUDA: Final = ("--backend", "cuda")
COMMANDS: Final = {
    "verify": Entry(
        "verify", "verify_command",
        "Check FILE against every rule of PTIR or Core IR and list all violations, one a line.",
    ),
    "show": Entry("show", "show_command", "Print FILE. It need not verify."),
    "convert": Entry(
        "convert", "app",
        "Write the program IN as OUT; the extension of OUT determines the format.",
    ),
    "run": Entry(
        "run", "run_command",
        "Run FILE. bf16, fp8 and 4-bit arrays are stored as bits under names such as 'arr_0:bf16'.",
        gpu=_CUDA,
    ),
    "compare": Entry(
        "compare", "compare_command",
        "Run FILE on a backend and on the reference; report the first instruction that differs.",
        gpu=_CUDA,
    ),
    "compile": Entry(
        "compile", "compile_command",
        "Compile FILE for a target, and write the output of each stage.",
    ),
    "build": Entry(
        "build", "build_command",
        "Compile FILE into a bundle: a folder that C, C++ and Python run without the compiler.",
    ),
    "conformance": Entry(
        "conformance", "conformance_command",
        "Run the conformance cases on a backend; exit code 1 if any fails, or if it refuses all.",
        gpu=_CUDA,
    ),
    "devices": Entry(
        "devices", "devices_command",
        "List the processor and the GPUs that programs can run on; if no GPU is found, say why.",
    ),
    "bench": Entry(
        "bench", "bench_command",
        "Measure how long a run of each FILE takes on made-up inputs: many runs in a row, the "
        "median of five rounds.",
        gpu=("--gpu",),
    ),
    "explore": Entry(
        "explore", "explore_command",
        "Write an HTML page that shows every stage of FILE: source, graphs, kernels, plans, "
        "machine code, times.",
    ),
    "profile": Entry(
        "profile", "profile_command",
        "Run SCRIPT and print where its time went: kernel, op, line and layer.",
        passes_on=True,
    ),
    "tune": Entry(
        "tune", "tune_command",
        "Measure 10 to 20 plans for each kernel of FILE that differs, and keep the best ones.",
        gpu=("--gpu",),
    ),
    "log": Entry(
        "tune", "log_command",
        "Report how well the estimates in a log rank the plans of each kernel.",
    ),
    "launch": Entry(
        "launch", "launch_command",
        "Run a Python script on N ranks of this machine, which communicate through MPI "
        "(weft[mpi]).",
        passes_on=True,
    ),
    "scale": Entry(
        "scale", "scale_command",
        "Estimate a training step on many GPUs: compute, communication, memory, efficiency.",
    ),
    "core": Entry("core", "app", "Core IR modules: expressions, gradients, canonical forms."),
}  # fmt: skip


class Commands(TyperGroup):
    """The group of all commands, which loads the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name not in COMMANDS:
            return name, command, rest
        if COMMANDS[name].needs_gpu(rest):
            load_part("weft.driver.devices").need_gpu()
        return name, load_command(name), rest


def load_command(name: str) -> Any:
    """A command, ready to be called."""
    entry = COMMANDS[name]
    found = getattr(load_part(f"weft.cli.{entry.module}"), entry.name)
    if not isinstance(found, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode="rich")
        settings = {"allow_interspersed_args": False} if entry.passes_on else {}
        app.command(name, context_settings=settings)(found)
        found = app
    return typer.main.get_command(found)


def work_of(module: str) -> Any:
    """The module of this folder that does what a command says, where its help does without it."""
    return load_part(f"weft.cli.{module}")


def list_in(app: typer.Typer) -> None:
    """Give an app the names and sentences of all commands, which its group then loads."""
    for name, entry in COMMANDS.items():
        app.command(name, help=entry.summary)(_loaded_when_called)


def _loaded_when_called() -> None:
    """Stands in the list for a command."""
