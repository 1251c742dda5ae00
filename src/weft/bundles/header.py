"""What a bundle says to those who use it from C and C++: a header, an example, and how to build."""

from __future__ import annotations

from typing import Final

from weft.bundles.c_source import runtime_text
from weft.bundles.c_text import comment
from weft.bundles.layout import Layout, Tensor

_C_TYPES: Final = {
    "f32": "float", "f64": "double", "si64": "int64_t", "si32": "int32_t", "si16": "int16_t",
    "si8": "int8_t", "ui64": "uint64_t", "ui32": "uint32_t", "ui16": "uint16_t", "ui8": "uint8_t",
    "i1": "uint8_t", "si4": "int8_t", "ui4": "uint8_t", "bf16": "uint16_t", "f16": "uint16_t",
    "fp8_e4m3": "uint8_t", "fp8_e5m2": "uint8_t", "cf32": "float", "cf64": "double",
}  # fmt: skip
"""What holds an element; of a complex number a part."""


def header(layout: Layout) -> str:
    """`name.h`."""
    name, guard = layout.name, f"{layout.name.upper()}_H"
    api = f"{name.upper()}_API"
    sides = (("inputs", layout.inputs), ("results", layout.results), ("states", layout.states))
    lines = [
        f"   {side}[{number}]  {comment(tensor.name)}: {tensor.dtype}{_shape_text(layout, tensor)}"
        for side, tensors in sides
        for number, tensor in enumerate(tensors)
    ]
    lines += [f"   {size} is from {a} to {b}" for size, (a, b) in layout.ranges.items()]
    counts = [f"#define {name.upper()}_{side.upper()} {len(tensors)}" for side, tensors in sides]
    return "\n".join(
        [
            f"/* {name}, built by {layout.made_by} for {layout.target}.\n",
            *lines,
            "*/",
            f"#ifndef {guard}\n#define {guard}\n",
            "#include <stddef.h>\n#include <stdint.h>\n",
            "#ifdef __cplusplus",
            'extern "C" {',
            "#endif\n",
            runtime_text("abi.h"),
            f'#define {api} __attribute__((visibility("default")))\n',
            *counts,
            "",
            *(
                runtime_text(file).replace("@NAME@", name).replace("@API@", api)
                for file in (("api.h",) if layout.cubins is None else ("api.h", "api_cuda.h"))
            ),
            "#ifdef __cplusplus",
            "}",
            "#endif\n",
            f"#endif /* {guard} */\n",
        ]
    )


def _shape_text(layout: Layout, tensor: Tensor) -> str:
    names = [*layout.ranges, *layout.followers]
    dims = [names[-1 - size] if size < 0 else str(size) for size in tensor.shape]
    return f"[{', '.join(dims)}]"


def example(layout: Layout) -> str:
    """`example.c`: a run on zeros, and the first element of every result."""
    name = layout.name
    inputs = "\n".join(_input_example(layout, n, tensor) for n, tensor in enumerate(layout.inputs))
    listed = ",\n                            ".join(
        _write_given(n, tensor) for n, tensor in enumerate(layout.inputs)
    )
    shown = "\n".join(_show_tensor(n, tensor) for n, tensor in enumerate(layout.results))
    given = f"    weft_tensor inputs[] = {{{listed}}};\n" if listed else ""
    return _EXAMPLE.format(
        name=name,
        inputs=inputs,
        given=given,
        of="inputs" if listed else "NULL",
        results=max(1, len(layout.results)),
        shown=shown,
    )


def _input_example(layout: Layout, number: int, tensor: Tensor) -> str:
    most = list(layout.ranges.values())
    sizes = [max(1, most[-1 - s][0]) if s < 0 else s for s in tensor.shape]
    count = 1
    for size in sizes:
        count *= size
    parts = 2 if tensor.dtype.is_complex else 1
    shape = f"    int64_t shape{number}[] = {{{', '.join(map(str, sizes)) or '0'}}};"
    kind = _C_TYPES[tensor.dtype.name]
    return f"{shape}\n    static {kind} data{number}[{max(1, count) * parts}];"


def _write_given(number: int, tensor: Tensor) -> str:
    code, bits = tensor.dlpack
    return f"{{data{number}, 1, 0, {len(tensor.shape)}, {code}, {bits}, 1, shape{number}, NULL, 0}}"


def _show_tensor(number: int, tensor: Tensor) -> str:
    kind = _C_TYPES[tensor.dtype.name]
    value = f"(double)((const {kind} *)results[{number}].data)[0]"
    return f'    printf("{_printable_name(tensor.name)}[0] = %g\\n", {value});'


def _printable_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "_.[]" else "_" for c in name)


_EXAMPLE: Final = """\
/* Runs {name} on zeros. The argument is the folder of the bundle. */
#include <stdio.h>
#include "{name}.h"

int main(int count, char **arguments) {{
{inputs}
{given}    weft_tensor results[{results}] = {{{{NULL, 0, 0, 0, 0, 0, 0, NULL, NULL, 0}}}};
    weft_options options = {{sizeof(weft_options), 1, 0, NULL, NULL, NULL, 0, 0, NULL}};
    weft_error error;
    {name}_program *program = NULL;
    {name}_context *context = NULL;
    int failed = {name}_open(count > 1 ? arguments[1] : ".", &options, &program, &error);
    if (!failed) failed = {name}_context_new(program, &context, &error);
    if (!failed) failed = {name}_run(context, {of}, results, 0, &error);
    if (failed) {{
        fprintf(stderr, "error %d: %s\\n", failed, error.text);
        {name}_context_free(context);
        {name}_close(program);
        return 1;
    }}
{shown}
    {name}_context_free(context);
    {name}_close(program);
    return 0;
}}
"""


def cmake(name: str, several: bool) -> str:
    """`CMakeLists.txt`: the library as a target, and the example. The libraries for several kinds
    of machines are in folders of their names."""
    folder = "${CMAKE_SYSTEM_PROCESSOR}/" if several else ""
    return _CMAKE.replace("@NAME@", name).replace("@FOLDER@", folder)


_CMAKE: Final = """\
cmake_minimum_required(VERSION 3.13)
project(@NAME@ C)
find_package(Threads REQUIRED)

# target_link_libraries(yours @NAME@), or @NAME@_static for one file.
add_library(@NAME@ SHARED IMPORTED GLOBAL)
set_target_properties(@NAME@ PROPERTIES
  IMPORTED_LOCATION "${CMAKE_CURRENT_SOURCE_DIR}/@FOLDER@lib@NAME@.so"
  INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_SOURCE_DIR}")
add_library(@NAME@_static STATIC IMPORTED GLOBAL)
set_target_properties(@NAME@_static PROPERTIES
  IMPORTED_LOCATION "${CMAKE_CURRENT_SOURCE_DIR}/@FOLDER@lib@NAME@.a"
  INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_SOURCE_DIR}"
  INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS}")

add_executable(example example.c)
target_link_libraries(example @NAME@_static)
"""
