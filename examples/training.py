"""What the training examples share: a loop with a progress bar, checkpoints that survive Ctrl-C,
and the loss as a curve, in the terminal and as a picture."""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

import weft
from weft import nn

MEASURED = 20
"""After so many steps it is said how long a run will take."""
BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass
class Run:
    """A training run: its model, the state of its optimiser, and the losses so far. `notes` are
    texts that the checkpoint keeps beside the model."""

    model: nn.Module
    state: Any
    folder: Path
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def step(self) -> int:
        return len(self.losses)

    # -- checkpoints -----------------------------------------------------------------------------

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.safetensors"

    def save(self) -> None:
        """Write the checkpoint, one file; an interruption leaves the one before."""
        self.folder.mkdir(parents=True, exist_ok=True)
        history = {"losses": self.losses, "seconds": self.seconds}
        notes = {"history": json.dumps(history), **self.notes}
        weft.save(self.checkpoint, {"model": self.model, "state": self.state}, notes)

    def resume(self) -> bool:
        """Go on from the checkpoint in the folder, if there is one."""
        if not self.checkpoint.exists():
            return False
        own = {"model": self.model, "state": self.state}
        try:
            found = weft.load(self.checkpoint, like=own)
            history = json.loads(weft.load_metadata(self.checkpoint)["history"])
        except (weft.WeftError, KeyError) as error:
            why = f"it has no {error.args[0]}" if isinstance(error, KeyError) else error
            raise weft.UserError(
                f"{self.checkpoint} is of another model ({why}); begin anew with --fresh, or "
                "give another --folder"
            ) from None
        self.model, self.state = found["model"], found["state"]
        self.losses, self.seconds = history["losses"], history["seconds"]
        return True


def train(
    run: Run,
    step: Callable[..., tuple[Any, Any, Any]],
    batches: Iterator[tuple[Any, ...]],
    steps: int,
    *,
    budget: float = float("inf"),
    every: int = 100,
) -> bool:
    """Up to `steps` steps, or until the budget of seconds is used. `step(model, state, *batch)`
    answers the next model and state and the loss. The clock starts after the first step, which
    compiles; how long it will take is said when some steps were measured. False: it was
    interrupted; the checkpoint holds what was reached."""
    columns = (TextColumn("step {task.fields[step]}"), BarColumn())
    extra = (TextColumn("loss {task.fields[loss]:.4f}"), TimeRemainingColumn())
    with Progress(*columns, *extra, transient=True) as progress:
        task = progress.add_task("training", total=1.0, step=run.step, loss=float("nan"))
        first, before, started = run.step, run.seconds, None
        try:
            while run.step < steps and run.seconds - before < budget:
                batch = next(batches)
                # The first step compiles, which may be interrupted; nothing is lost then.
                with nullcontext() if started is None else unbroken():
                    run.model, run.state, loss = step(run.model, run.state, *batch)
                    run.losses.append(float(loss))
                    now = time.perf_counter()
                    started = started or now
                    run.seconds = before + now - started
                    # What is used up first, the steps or the time, is what the bar counts to.
                    part = (run.step - first) / max(1, steps - first)
                    used = max(part, (run.seconds - before) / budget)
                    progress.update(task, completed=used, step=run.step, loss=run.losses[-1])
                    if run.step - first == MEASURED and used < 1.0:
                        left = (now - started) / (MEASURED - 1) * (steps - first)
                        progress.console.print(estimate(steps - first, min(left, budget)))
                    if run.step % every == 0:
                        run.save()
        except KeyboardInterrupt:
            if started is not None:
                run.save()
            return False
    run.save()
    return True


def estimate(steps: int, seconds: float) -> str:
    """How long a run will take, in words."""
    long = f"{math.ceil(seconds / 60)} min" if seconds > 90 else f"{math.ceil(seconds)} s"
    return f"{steps:,} steps: about {long}; Ctrl-C keeps what was reached"


@contextmanager
def unbroken() -> Iterator[None]:
    """Ctrl-C waits until the end: a step that is left half done has overwritten the model it began
    with. A second Ctrl-C does not wait."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[int] = []

    def note(number: int, frame: object) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if noted:
        raise KeyboardInterrupt


# -- the command line ----------------------------------------------------------------------------


def step_count(text: str) -> int:
    """A number of steps on the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number over 0")
    return int(text)


def told(main: Callable[..., None]) -> Callable[..., None]:
    """A command whose mistakes are told in a sentence, and which Ctrl-C ends quietly."""

    @wraps(main)
    def command(*args: Any, **kwargs: Any) -> None:
        try:
            main(*args, **kwargs)
        except weft.WeftError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(1)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            sys.exit(130)

    return command


# -- the loss as a curve -------------------------------------------------------------------------


def smoothed(losses: Sequence[float], points: int) -> list[float]:
    """The means of equal parts of the losses."""
    parts = np.array_split(np.asarray(losses), min(points, len(losses)) or 1)
    return [float(part.mean()) for part in parts if part.size]


def sparkline(losses: list[float], width: int = 60) -> str:
    """The curve as a line of blocks."""
    values = smoothed(losses, width)
    low, high = min(values), max(values)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value - low) * scale)] for value in values)


def show_curve(run: Run, title: str, console: Console) -> None:
    """The curve in the terminal, and as a picture where matplotlib is installed."""
    if not run.losses:
        return
    values = smoothed(run.losses, 60)
    console.print(f"loss {values[0]:.3f} {sparkline(run.losses)} {values[-1]:.3f}")
    try:
        # Here, not above: training needs no picture, and not everybody has what paints it.
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        console.print("no picture: pip install '.[plots]' for matplotlib")
        return
    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    axes.plot(run.losses, color="#c9d6e8", linewidth=0.8, label="each step")
    places = smoothed(range(run.step), 60)
    axes.plot(places, values, color="#1f4e8c", linewidth=1.8, label="smoothed")
    axes.set(xlabel="step", ylabel="loss", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    picture = run.folder / "loss.png"
    figure.savefig(picture, dpi=120)
    console.print(f"picture: {picture}")
