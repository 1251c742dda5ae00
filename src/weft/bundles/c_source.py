"""A model as C: the tables of its compiled programs, and around them the runtime that plays them.

One file holds all of it, with static functions: only what the header declares is seen from outside,
and two models never meet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePath
from typing import Final

from weft.bundles import cubins
from weft.bundles.c_text import c_array, c_string
from weft.bundles.layout import Layout, Tensor
from weft.bundles.manifest import ABI, CODE
from weft.bundles.variants import Variant
from weft.bundles.versions import Follower, Version
from weft.bundles.weights import Weights
from weft.foundation.errors import InternalError
from weft.runtime import native, threads
from weft.runtime.artifact import (
    Again,
    Artifact,
    BufferSlot,
    CopyBuffer,
    Enter,
    Jump,
    JumpUnless,
    Launch,
    Leave,
    Reset,
    Site,
    Step,
)

_INCLUDES: Final = (
    "dlfcn", "errno", "fcntl", "inttypes", "stdarg", "stdio", "stdlib", "string", "sys/auxv",
    "sys/mman", "sys/stat", "unistd",
)  # fmt: skip
_RUNTIME: Final = {
    "cpu": ("base.c", "cpu_program.c", "sizes.c", "checks.c", "cpu_context.c", "cpu_run.c"),
    "cuda": (
        "base.c", "cuda_driver.c", "cuda_program.c", "sizes.c", "checks.c", "cuda_context.c",
        "cuda_run.c",
    ),
}  # fmt: skip
_API: Final = {"cpu": ("api.c",), "cuda": ("api.c", "api_cuda.c")}
_HIDDEN: Final = '__attribute__((visibility("hidden")))'


def runtime_text(name: str) -> str:
    """A file of the runtime."""
    return resources.files("weft.bundles").joinpath("c", name).read_text()


def c_source(layout: Layout) -> str:
    """The file of a model."""
    home = "cpu" if layout.cubins is None else "cuda"
    parts = [
        f"/* {layout.name}, built by {layout.made_by} for {layout.target}. Do not edit. */",
        "#define _POSIX_C_SOURCE 200809L",
        f'#include "{layout.name}.h"',
        "\n".join(f"#include <{name}.h>" for name in _INCLUDES),
        *map(runtime_text, ("records.h", f"{home}_kernel.h")),
        *_write_needs(layout),
        *_signature(layout),
        *(text for tables in _tables(layout) for text in tables),
        *_write_shared(layout),
        *_models(layout),
        *map(runtime_text, _RUNTIME[home]),
        *(runtime_text(name).replace("@NAME@", layout.name) for name in _API[home]),
    ]
    return "\n\n".join(parts)


def linked_symbol(name: str, symbol: str) -> str:
    """What a function that is linked to a model is called, so that no other has its name."""
    return f"{name}_w_{symbol.removeprefix('weft_')}"


def kernel_symbol(layout: Layout, variant: Variant, symbol: str) -> str:
    """What a kernel is called: variants have kernels of one name, each with code of its own."""
    return linked_symbol(layout.name, f"{layout.variants.index(variant)}_{symbol}")


def _write_needs(layout: Layout) -> Iterator[str]:
    """What a processor must have, the executor and the kernels; those of a GPU are in a file."""
    if layout.cubins is not None:
        return
    for number, variant in enumerate(layout.variants):
        yield _write_missing(number, variant.required)
    yield "\n".join(f"#define WEFT_{name} {value}" for name, value in threads.SHARING.items())
    for symbol in native.SYMBOLS:
        yield f"#define {symbol} {linked_symbol(layout.name, symbol)}"
    yield (
        f"{_HIDDEN} void *weft_pool_new(int64_t);\n{_HIDDEN} void weft_pool_free(void *);\n"
        f"{_HIDDEN} int64_t weft_execute(void *, int64_t, int64_t, int64_t, void *, void *, "
        "int64_t);"
    )
    symbols = dict.fromkeys(
        kernel_symbol(layout, variant, kernel.symbol)
        for variant in layout.variants
        for version in variant.compiled.versions
        for kernel in version.artifact.kernels
    )
    yield "\n".join(
        f"{_HIDDEN} void {symbol}(void *, void *, int64_t, int64_t);" for symbol in symbols
    )


# -- what the caller sees ------------------------------------------------------------------------


def _signature(layout: Layout) -> Iterator[str]:
    sides = {"inputs": layout.inputs, "results": layout.results, "states": layout.states}
    for side, tensors in sides.items():
        for number, tensor in enumerate(tensors):
            yield c_array("int64_t", f"{side}_shape_{number}", map(str, tensor.shape))
        types = [_type_initialiser(tensor, f"{side}_shape_{n}") for n, tensor in enumerate(tensors)]
        yield c_array("weft_type", side, types, '{"", "", 0, 0, 0, 0, NULL}')
    ranges = layout.ranges.items()
    sizes = [f"{{{c_string(name)}, {least}, {most}}}" for name, (least, most) in ranges]
    yield c_array("weft_size", "sizes", sizes, '{"", 0, 0}')
    texts = ", ".join(map(c_string, (layout.name, layout.target, layout.made_by)))
    counts = ", ".join(str(len(each)) for each in (*sides.values(), layout.ranges))
    yield (
        "static const weft_signature signature = {\n"
        f"    {ABI}, {texts}, {counts}, inputs, results, states, sizes,\n}};"
    )


def _type_initialiser(tensor: Tensor, shape: str) -> str:
    texts = f"{c_string(tensor.name)}, {c_string(tensor.dtype.name)}"
    code, bits = tensor.dlpack
    numbers = f"{code}, {bits}, {tensor.dtype.storage_bytes}, {len(tensor.shape)}"
    return f"{{{texts}, {numbers}, {shape}}}"


def _write_shared(layout: Layout) -> Iterator[str]:
    """What all variants have: the weights, and the sizes that follow from others."""
    yield c_array("int64_t", "weight_offsets", map(str, layout.weights.offsets))
    sizes = (str(array.nbytes) for array in layout.stored.values())
    yield c_array("int64_t", "weight_bytes", sizes)
    yield c_array("int64_t", "first_states", map(str, layout.first_states))
    for number, follower in enumerate(layout.followers.values()):
        yield c_array("weft_term", f"terms_{number}", _terms(layout, follower), "{0, 0}")
    followers = [
        f"{{terms_{n}, {len(each.terms)}, {each.over}}}"
        for n, each in enumerate(layout.followers.values())
    ]
    yield c_array("weft_follower", "followers", followers, "{NULL, 0, 1}")


def _models(layout: Layout) -> Iterator[str]:
    """The model in all its variants."""
    first, records = 0, []
    files = ",\n    ".join([_weights(layout.weights), _code(layout.cubins)])
    for number, variant in enumerate(layout.variants):
        own = variant.compiled.versions
        numbered = enumerate(own, first)
        listed = (_version_initialiser(layout, n, version) for n, version in numbered)
        yield c_array("weft_version", f"versions_{number}", listed)
        missing = "NULL" if layout.cubins is not None else f"missing_{number}"
        capability = ", ".join(map(str, variant.capability))
        records.append(
            f"{{\n    &signature, {c_string(variant.name)}, {missing}, {{{capability}}},\n"
            f"    {files},\n"
            f"    weight_offsets, weight_bytes, {len(layout.stored)}, first_states,\n"
            f"    followers, {len(layout.followers)}, versions_{number}, {len(own)}, "
            f"{layout.loop_steps},\n}}"
        )
        first += len(own)
    yield c_array("weft_model", "models", records)
    yield f"enum {{ model_count = {len(records)} }};"


def _weights(weights: Weights) -> str:
    digests = f"{_byte_list(weights.table_digest)}, {_byte_list(weights.digest)}"
    return f"{{{c_string(weights.file)}, {weights.size}, {weights.table_size}, {digests}}}"


def _code(code: cubins.Cubins | None) -> str:
    if code is None:
        return "{NULL, 0, 0, {0}, {0}}"
    digest = _byte_list(code.digest)
    return f"{{{c_string(CODE)}, {code.size}, {code.size}, {digest}, {digest}}}"


def _byte_list(data: bytes) -> str:
    return "{" + ", ".join(map(str, data)) + "}"


def _terms(layout: Layout, follower: Follower) -> Iterator[str]:
    places = list(layout.ranges)
    for times, names in follower.terms:
        # The sizes of a product as bits: none is in it twice.
        yield f"{{{times}, {sum(1 << places.index(name) for name in names)}u}}"


def _version_initialiser(layout: Layout, number: int, version: Version) -> str:
    artifact = version.artifact
    count = sum(len(step.buffers) for step in artifact.steps if isinstance(step, Launch))
    names = f"sizes_{number}, filled_{number}, told_{number}, {len(version.told)}"
    slots = f"slots_{number}, {len(artifact.buffers)}"
    kernels = f"kernels_{number}, {len(artifact.kernels)}"
    steps = f"steps_{number}, {len(artifact.steps)}, arguments_{number}, {count}"
    rest = f"results_{number}, {artifact.arena_bytes}, {artifact.bodies}, {artifact.counters}"
    sections = "NULL" if layout.cubins is None else f"sections_{number}"
    return f"{{{names}, {slots}, {kernels}, {steps}, {rest}, {sections}}}"


# -- what is compiled ----------------------------------------------------------------------------


def _tables(layout: Layout) -> Iterator[_Version]:
    """The tables of all versions, numbered through."""
    variants = [variant for variant in layout.variants for _ in variant.compiled.versions]
    for number, (variant, version) in enumerate(zip(variants, layout.versions, strict=True)):
        yield _Version(layout, variant, number, version)


@dataclass
class _Version:
    """The tables of one compiled program."""

    layout: Layout
    variant: Variant
    number: int
    version: Version

    def __iter__(self) -> Iterator[str]:
        layout, number, version = self.layout, self.number, self.version
        artifact = version.artifact
        names = [*layout.ranges, *layout.followers]
        yield c_array("int64_t", f"sizes_{number}", (str(version.sizes[n]) for n in layout.ranges))
        filled = (str(int(name in version.filled)) for name in layout.ranges)
        yield c_array("uint8_t", f"filled_{number}", filled)
        yield c_array("int32_t", f"told_{number}", (str(names.index(n)) for n in version.told))
        yield c_array(
            "weft_slot", f"slots_{number}", map(self._slot, artifact.buffers), "{0, 0, 0}"
        )
        if layout.cubins is not None:
            yield from cubins.c_kernels(layout.cubins, number, version)
            yield cubins.c_sections(number, artifact)
        else:
            yield c_array("weft_kernel", f"kernels_{number}", self._kernels(), "{NULL, 0, 0}")
        yield from self._steps(artifact)
        ends = [artifact.output_slots[n] for n in layout.ends]
        yield c_array("int32_t", f"results_{number}", map(str, ends))

    def _slot(self, slot: BufferSlot) -> str:
        space, number = self.layout.place(slot, self.version)
        return f"{{{space}, {number}, {slot.offset}}}"

    def _kernels(self) -> Iterator[str]:
        for kernel in self.version.artifact.kernels:
            symbol = kernel_symbol(self.layout, self.variant, kernel.symbol)
            yield f"{{{symbol}, {max(1, kernel.work_items)}, {kernel.work}}}"

    def _steps(self, artifact: Artifact) -> Iterator[str]:
        arguments: list[int] = []
        steps = []
        for place, step in enumerate(artifact.steps):
            told = self._list_sentences(step)
            named = f"told_{self.number}_{place}" if told else "NULL"
            if told:
                yield c_array("char *const", named, map(c_string, told))
            kind, of, other, *numbers = _step_numbers(step, arguments)
            numbers += [0] * (4 - len(numbers))
            listed = ", ".join(map(str, numbers))
            steps.append(f"{{{kind}, {of}, {other}, {{{listed}}}, {named}}}")
        yield c_array("int32_t", f"arguments_{self.number}", map(str, arguments))
        yield c_array("weft_step", f"steps_{self.number}", steps, "{0, 0, 0, {0, 0, 0, 0}, NULL}")

    def _list_sentences(self, step: Step) -> list[str]:
        """The sentences of a step that may fail."""
        if isinstance(step, Enter):
            return [_name_site(step.where[0]) if step.where else step.label]
        if not isinstance(step, Launch):
            return []
        checks = self.version.artifact.kernels[step.kernel].checks
        sites = step.where or (Site(step.label),) * len(checks)
        return [
            f"{site.code or code} at {_name_site(site) or step.label}: {site.why or why}"
            for (code, why), site in zip(checks, sites, strict=True)
        ]


def _name_site(site: Site) -> str:
    """An instruction and its line, without the folders of the machine that built it."""
    file, colon, line = site.line.rpartition(":")
    return str(Site(site.what, f"{PurePath(file).name}{colon}{line}" if site.line else ""))


def _step_numbers(step: Step, arguments: list[int]) -> Sequence[int]:
    """The kind of a step, and what that kind needs."""
    match step:
        case Launch(kernel=kernel, buffers=buffers):
            start = len(arguments)
            arguments += buffers
            return native.LAUNCH, kernel, start, len(buffers)
        case CopyBuffer():
            moves = step.target_step, step.source_step
            return native.COPY, step.target, step.source, step.bytes, step.counter, *moves
        case Enter(body=body):
            return native.ENTER, body, 0
        case Jump(target=target):
            return native.JUMP, 0, 0, target
        case JumpUnless(buffer=buffer, target=target):
            return native.UNLESS, buffer, 0, target
        case Reset(counter=counter):
            return native.RESET, counter, 0
        case Leave(counter=counter, limit=limit, target=target):
            return native.LEAVE, counter, 0, limit, target
        case Again(counter=counter, target=target):
            return native.AGAIN, counter, 0, target
        case _:
            raise InternalError(f"the step {step.label} cannot be in a bundle")


def _write_missing(number: int, required: Sequence[tuple[str, str]]) -> str:
    """A function that names what the processor lacks of a variant."""
    lines = [f"    if (!({test})) return {c_string(what)};" for what, test in required]
    head = f"static const char *missing_{number}(void) {{"
    return "\n".join([head, *lines, "    return NULL;", "}"])
