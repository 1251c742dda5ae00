"""The tracer: writes what is compiled into a folder and times and inspects what runs.

DIR/NNNNN_kind/program.txt    the program as it ran, lossless text
               program.json   the same in the wire form
               meta.json      backend, kind, signature, compile time
               stats.json     instructions by op before and after the passes, bytes
DIR/executions.jsonl          one line per run: program, seconds
DIR/passes.jsonl              one line per rule that fired
DIR/profile.json              every instruction of every run, for chrome://tracing or Perfetto
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.driver.execute import Prepared
from weft.foundation.errors import UserError
from weft.foundation.forks import new_lock
from weft.ops.trace.debug import TensorReport, inspect
from weft.ops.trace.profile import Profile, profiled, unshared
from weft.ptir.files import dumps
from weft.ptir.ir import Program
from weft.ptir.passes.log import PassLog
from weft.ptir.types import leaves


class ProgramTracer:
    """Watches compiles and runs. `profile` and `reports` hold what it saw."""

    def __init__(self, folder: Path | None, profile: bool, debug: bool) -> None:
        self.folder = folder
        self.profile = Profile() if profile else None
        self.debug = debug
        self.reports: list[TensorReport] = []
        self.programs: list[Program] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[Prepared] = []
        self._lock = new_lock()
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(
                    f"cannot make the trace folder {folder}: {error.strerror}"
                ) from None

    # -- what it is told -------------------------------------------------------------------------

    def compiled(
        self, kind: str, source: Program, made: Prepared, log: PassLog, seconds: float
    ) -> None:
        with self._lock:
            number = self._number(made)
            if self.folder is not None:
                self._dump(number, kind, source, made, seconds)
                for fired in log.fired:
                    line = {"program": number, "rule": fired.rule, "place": fired.place}
                    self._append("passes.jsonl", line)

    def execute(self, compiled: Prepared, inputs: Sequence[Any], seed: int) -> list[Any]:
        looked_at = unshared(compiled, inputs) if self.debug else inputs
        started = time.perf_counter()
        if self.profile is None:
            results = compiled.execute(inputs, seed=seed)
        else:
            results = profiled(compiled, inputs, seed, self.profile)
        seconds = time.perf_counter() - started
        with self._lock:
            number = self._number(compiled)
            if self.folder is not None:
                self._append("executions.jsonl", {"program": number, "seconds": seconds})
        if self.debug:
            self.reports.append(inspect(compiled, looked_at, seed, number))
            print(self.reports[-1], file=sys.stderr)
        return results

    def close(self) -> None:
        """Write what is written last: the profile."""
        if self.folder is not None and self.profile is not None:
            text = json.dumps(self.profile.chrome(), indent=1)
            file = self.folder / "profile.json"
            file.write_text(text)
            self.note_profile(file)

    def note_profile(self, file: Path) -> None:
        """Let `explain` of what ran name the file that its profile is in."""
        for compiled in self._kept:
            compiled.note_file(f"its profile is {file}, which weft explore shows")

    # -- writing ---------------------------------------------------------------------------------

    def _number(self, compiled: Prepared) -> int:
        """Programs are numbered in the order in which they are first seen."""
        key = id(compiled)
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            self._kept.append(compiled)
            self.programs.append(compiled.program)
        return self._numbers[key]

    def _dump(
        self, number: int, kind: str, source: Program, made: Prepared, seconds: float
    ) -> None:
        assert self.folder is not None
        folder = self.folder / f"{number:05d}_{kind}"
        folder.mkdir(exist_ok=True)
        program = made.program
        (folder / "program.txt").write_text(str(dumps(program, format="text")))
        (folder / "program.json").write_text(str(dumps(program, format="json")))
        meta = {
            "backend": made.backend.name,
            "kind": kind,
            "compile_seconds": seconds,
            "inputs": [str(leaf) for p in program.main.parameters for leaf in leaves(p)],
            "outputs": [str(leaf) for r in program.main.results for leaf in leaves(r)],
        }
        (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
        (folder / "stats.json").write_text(json.dumps(_stats(source, program), indent=1) + "\n")

    def _append(self, name: str, line: dict[str, Any]) -> None:
        assert self.folder is not None
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(line) + "\n")


def _stats(source: Program, program: Program) -> dict[str, Any]:
    return {
        "captured": _ops(source),
        "after_passes": _ops(program),
        "bytes": sum(
            leaf.bytes
            for instruction in program.main.body
            for leaf in leaves(instruction.output)
            if leaf.is_static
        ),
    }


def _ops(program: Program) -> dict[str, int]:
    counts = Counter(i.op.mnemonic for body in program.bodies for i in body.body)
    return dict(sorted(counts.items()))
