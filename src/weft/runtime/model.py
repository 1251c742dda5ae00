"""A compiled program as three C functions over a parameter block.

    void *model_init(int64_t threads)            a block; null where there is no memory for it
    int64_t model_run(void *model, void *const *inputs, void *const *outputs, int64_t seed)
                                                 0, or what went wrong
    void model_free(void *model)

The block holds everything one run at a time needs: the table of steps with the arguments of every
kernel, counters, error words, the arena, and the state, which begins as zeros and stays from run to
run. `model_init` fills in all addresses that stay; `model_run` those of its inputs and outputs, and
then hands the table to the executor. An output that is an updated state or input is copied to its
place at the end, unless it is there already. Blocks are independent of each other.

`model_run` answers 1 + position for a step that reported a violation, and -1 where loops went on
for too long.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from weft.foundation import limits
from weft.foundation.dtypes import BY_NAME
from weft.foundation.errors import Unimplemented
from weft.runtime import native
from weft.runtime.artifact import (
    Again,
    Artifact,
    BufferSlot,
    CopyBuffer,
    Enter,
    HostCall,
    Jump,
    JumpUnless,
    Launch,
    Leave,
    Reset,
    Step,
    TensorSpec,
)
from weft.runtime.blocks import ALIGNMENT
from weft.runtime.jit import Library, object_code

SYMBOLS: Final = ("model_init", "model_run", "model_free")
DECLARATIONS: Final = """\
void *model_init(int64_t threads);
int64_t model_run(void *model, void *const *inputs, void *const *outputs, int64_t seed);
void model_free(void *model);
"""
_POOL, _RAW, _STATE = 0, 8, 16
"""Places of the block: the thread pool, the memory it was made in, the state of the executor."""
_HEAD: Final = 64
_STEP: Final = native.STEP_WORDS * 8
_ERROR: Final = native.ERROR_WORDS * 8


class NativeModel:
    """The functions of a program, linked into this process: `init`, `run` and `free` are their
    addresses, good while this object lives."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        own, _ = object_code(source_of(artifact))
        executor, _ = object_code(native.SOURCE)
        kernels = {kernel.symbol: kernel.code for kernel in artifact.kernels}
        self.objects = {**kernels, "model": own, "executor": executor}
        self._library = Library(list(self.objects.values()), list(SYMBOLS))
        self.init, self.run, self.free = map(self._library.address, SYMBOLS)

    @property
    def header(self) -> str:
        """The functions declared in C, with what they take and give."""
        sides = (("inputs", self.artifact.inputs), ("outputs", self.artifact.outputs))
        lines = [
            f"/* {side}[{number}]: {spec.dtype}{list(spec.shape)} */"
            for side, specs in sides
            for number, spec in enumerate(specs)
        ]
        return "\n".join(["#include <stdint.h>", *lines, DECLARATIONS])

    def write(self, folder: Path) -> list[Path]:
        """Object files and `model.h`, to be linked into a program with pthreads."""
        folder.mkdir(parents=True, exist_ok=True)
        files = {f"{name}.o": code for name, code in self.objects.items()}
        files["model.h"] = self.header.encode()
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return [folder / name for name in files]


def source_of(artifact: Artifact) -> str:
    """The three functions as LLVM IR; kernels and executor are linked to them."""
    if artifact.target != "cpu":
        raise Unimplemented(artifact.target, "only programs for the CPU become C functions")
    hosts = [step.label for step in artifact.steps if isinstance(step, HostCall)]
    if hosts:
        raise Unimplemented(hosts[0], "it runs on the host, and C code has no host to call")
    return _Writer(artifact).module()


@dataclass
class _Layout:
    """Where the parts of a block begin, in bytes."""

    artifact: Artifact
    state: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        steps = self.artifact.steps
        launches = [step for step in steps if isinstance(step, Launch)]
        self.errors = _HEAD
        self.runs = self.errors + _ERROR * len(steps)
        self.counters = self.runs + 24 * self.artifact.bodies
        self.arguments = self.counters + 8 * max(1, self.artifact.counters)
        self.steps = self.arguments + 8 * sum(len(launch.buffers) for launch in launches)
        self.arena = _up(self.steps + _STEP * len(steps))
        end = _up(self.arena + self.artifact.arena_bytes)
        for number, size in sorted(_state_bytes(self.artifact).items()):
            self.state[number] = end
            end = _up(end + size)
        self.bytes = end


class _Writer:
    """Writes the functions, statement by statement."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self.at = _Layout(artifact)
        self.lines: list[str] = []
        self.changing: list[tuple[int, BufferSlot]] = []
        """Words of the block that point to inputs and outputs."""
        self.count = 0

    def module(self) -> str:
        functions = [self._init(), self._run(), _FREE]
        constants = [
            f"@constant{number} = internal constant [{max(1, len(data))} x i8] "
            f'c"{_escaped(data or bytes(1))}", align {ALIGNMENT}'
            for number, data in enumerate(self.artifact.constants)
        ]
        symbols = dict.fromkeys(kernel.symbol for kernel in self.artifact.kernels)
        kernels = [f"declare void @{symbol}(ptr, ptr, i64, i64)" for symbol in symbols]
        return "\n".join([_DECLARED, *kernels, *constants, *functions])

    # -- lines -----------------------------------------------------------------------------------

    def value(self, text: str) -> str:
        self.count += 1
        self.lines.append(f"  %v{self.count} = {text}")
        return f"%v{self.count}"

    def place(self, offset: int) -> str:
        return self.value(f"getelementptr i8, ptr %model, i64 {offset}")

    def number(self, offset: int, value: int | str) -> None:
        self.lines.append(f"  store i64 {value}, ptr {self.place(offset)}")

    def pointer(self, offset: int, value: str) -> None:
        self.lines.append(f"  store ptr {value}, ptr {self.place(offset)}")

    # -- model_init ------------------------------------------------------------------------------

    def _init(self) -> str:
        self.lines = []
        self.number(_STATE + 16, limits.current().loop_steps)
        self.number(_STATE + 8 * native.STOP_WORD, 0)
        places = iter(range(self.at.arguments, self.at.steps, 8))
        for number, step in enumerate(self.artifact.steps):
            self.number(self.at.errors + _ERROR * number, -1)
            self.pointer(self.at.errors + _ERROR * number + 8, self.place(_STATE))
            self.number(self.at.errors + _ERROR * number + 8 * native.LOCK_WORD, 0)
            self._step(number, step, places)
        return _INIT.format(size=self.at.bytes + ALIGNMENT, body="\n".join(self.lines))

    def _step(self, number: int, step: Step, places: Iterator[int]) -> None:
        """The words of one step."""
        at, slots = self.at.steps + _STEP * number, self.artifact.buffers
        match step:
            case Launch():
                self._launch(number, step, at, places)
            case CopyBuffer():
                self._words(at, native.COPY)
                self._words(at + 24, step.bytes)
                self.pointer(at + 32, self._counter(step.counter))
                self._words(at + 40, step.target_step, step.source_step)
                self._point(at + 8, slots[step.target])
                self._point(at + 16, slots[step.source])
            case Enter(body=body):
                self._words(at, native.ENTER)
                self.pointer(at + 8, self.place(self.at.runs + 24 * body))
            case Jump(target=target):
                self._words(at, native.JUMP, target)
            case JumpUnless(buffer=buffer, target=target):
                self._words(at, native.UNLESS)
                self._words(at + 16, target)
                self._point(at + 8, slots[buffer])
            case Reset(counter=counter):
                self._counted(at, native.RESET, counter)
            case Leave(counter=counter, limit=limit, target=target):
                self._counted(at, native.LEAVE, counter, limit, target)
            case Again(counter=counter, target=target):
                self._counted(at, native.AGAIN, counter, target)

    def _words(self, offset: int, *values: int) -> None:
        for place, value in enumerate(values):
            self.number(offset + 8 * place, value)

    def _counted(self, at: int, kind: int, counter: int, *values: int) -> None:
        self._words(at, kind)
        self.pointer(at + 8, self._counter(counter))
        self._words(at + 16, *values)

    def _counter(self, number: int) -> str:
        return self.place(self.at.counters + 8 * number)

    def _launch(self, number: int, launch: Launch, at: int, places: Iterator[int]) -> None:
        kernel = self.artifact.kernels[launch.kernel]
        own = [next(places) for _ in launch.buffers]
        self._words(at, native.LAUNCH)
        self.pointer(at + 8, f"@{kernel.symbol}")
        self.pointer(at + 16, self.place(own[0] if own else self.at.arguments))
        self.pointer(at + 24, self.place(self.at.errors + _ERROR * number))
        self._words(at + 32, kernel.work_items)
        together = self.value(f"udiv i64 {kernel.work_items}, %share")
        some = self.value(f"call i64 @llvm.umax.i64(i64 {together}, i64 1)")
        self.number(at + 40, max(1, kernel.work_items) if kernel.small else some)
        for place, buffer in zip(own, launch.buffers, strict=True):
            self._point(place, self.artifact.buffers[buffer])

    def _point(self, offset: int, slot: BufferSlot) -> None:
        """Make a word point to a buffer: now if its address stays, else in every run."""
        if slot.space in ("input", "output"):
            self.changing.append((offset, slot))
        else:
            self.pointer(offset, self._address(slot))

    def _address(self, slot: BufferSlot) -> str:
        """Where a buffer of a run begins."""
        match slot.space:
            case "arena":
                return self.place(self.at.arena + slot.offset)
            case "run":
                return self.place(self.at.runs + 24 * slot.number)
            case "state":
                return self.place(self.at.state[slot.number] + slot.offset)
            case "constant":
                return self.value(
                    f"getelementptr i8, ptr @constant{slot.number}, i64 {slot.offset}"
                )
        given = self._given(slot.space, slot.number)
        return self.value(f"getelementptr i8, ptr {given}, i64 {slot.offset}")

    def _given(self, space: str, number: int) -> str:
        entry = self.value(f"getelementptr ptr, ptr %{space}s, i64 {number}")
        return self.value(f"load ptr, ptr {entry}")

    # -- model_run -------------------------------------------------------------------------------

    def _run(self) -> str:
        self.lines = []
        self._words(_STATE, 0, 0)
        for number in range(self.artifact.bodies):
            self.number(self.at.runs + 24 * number, "%seed")
            self._words(self.at.runs + 24 * number + 8, 0, 0)
        for offset, slot in self.changing:
            self.pointer(offset, self._address(slot))
        steps, state = self.place(self.at.steps), self.place(_STATE)
        pool = self.value(f"load ptr, ptr {self.place(_POOL)}")
        count = len(self.artifact.steps)
        position = self.value(
            f"call i64 @weft_execute(ptr {steps}, i64 0, i64 {count}, i64 -1, ptr {state}, "
            f"ptr {pool}, i64 0)"
        )
        answer = self._answer(position)
        for number, spec in enumerate(self.artifact.outputs):
            self._deliver(number, spec)
        return _RUN.format(body="\n".join(self.lines), answer=answer)

    def _answer(self, position: str) -> str:
        """0, -1 where the limit of loops was reached, or 1 + the first step that reported."""
        beyond = self.value(f"icmp slt i64 {position}, {native.STOPPED}")
        answer = self.value(f"select i1 {beyond}, i64 -1, i64 0")
        for number, step in reversed(list(enumerate(self.artifact.steps))):
            if isinstance(step, Launch) and self.artifact.kernels[step.kernel].checks:
                word = self.place(self.at.errors + _ERROR * number)
                report = self.value(f"load i64, ptr {word}")
                self.lines.append(f"  store i64 -1, ptr {word}")
                told = self.value(f"icmp ne i64 {report}, -1")
                answer = self.value(f"select i1 {told}, i64 {number + 1}, i64 {answer}")
        return answer

    def _deliver(self, number: int, spec: TensorSpec) -> None:
        """Copy an output that lies elsewhere to where it is wanted."""
        slot = self.artifact.buffers[self.artifact.output_slots[number]]
        if slot.space != "output":
            wanted, there = self._given("output", number), self._address(slot)
            size = math.prod(spec.shape) * BY_NAME[spec.dtype].storage_bytes
            self.value(f"call ptr @memmove(ptr {wanted}, ptr {there}, i64 {size})")


def _state_bytes(artifact: Artifact) -> dict[int, int]:
    """The size of every state, by number."""
    found: dict[int, int] = {}
    for slot in artifact.buffers:
        if slot.space == "state":
            found[slot.number] = max(found.get(slot.number, 0), slot.offset + slot.bytes)
    return found


def _up(offset: int) -> int:
    """The offset, at the next multiple of the alignment."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _escaped(data: bytes) -> str:
    return "".join(f"\\{byte:02X}" for byte in data)


_DECLARED = """\
declare ptr @calloc(i64, i64)
declare void @free(ptr)
declare ptr @memmove(ptr, ptr, i64)
declare i64 @llvm.umax.i64(i64, i64)
declare ptr @weft_pool_new(i64)
declare void @weft_pool_free(ptr)
declare i64 @weft_execute(ptr, i64, i64, i64, ptr, ptr, i64)
"""
_INIT = f"""
define ptr @model_init(i64 %threads) {{{{
entry:
  %raw = call ptr @calloc(i64 1, i64 {{size}})
  %none = icmp eq ptr %raw, null
  br i1 %none, label %lacking, label %made
lacking:
  ret ptr null
made:
  %address = ptrtoint ptr %raw to i64
  %above = add i64 %address, {ALIGNMENT - 1}
  %aligned = and i64 %above, -{ALIGNMENT}
  %model = inttoptr i64 %aligned to ptr
  %raw.at = getelementptr i8, ptr %model, i64 {_RAW}
  store ptr %raw, ptr %raw.at
  %some = call i64 @llvm.umax.i64(i64 %threads, i64 1)
  %share = mul i64 %some, 4
{{body}}
  %several = icmp sgt i64 %threads, 1
  br i1 %several, label %pool, label %done
pool:
  %workers = sub i64 %threads, 1
  %own = call ptr @weft_pool_new(i64 %workers)
  %pool.at = getelementptr i8, ptr %model, i64 {_POOL}
  store ptr %own, ptr %pool.at
  br label %done
done:
  ret ptr %model
}}}}
"""
_RUN = """
define i64 @model_run(ptr %model, ptr %inputs, ptr %outputs, i64 %seed) {{
entry:
{body}
  ret i64 {answer}
}}
"""
_FREE = f"""
define void @model_free(ptr %model) {{
entry:
  %pool.at = getelementptr i8, ptr %model, i64 {_POOL}
  %raw.at = getelementptr i8, ptr %model, i64 {_RAW}
  %pool = load ptr, ptr %pool.at
  %raw = load ptr, ptr %raw.at
  %alone = icmp eq ptr %pool, null
  br i1 %alone, label %done, label %stop
stop:
  call void @weft_pool_free(ptr %pool)
  br label %done
done:
  call void @free(ptr %raw)
  ret void
}}
"""
