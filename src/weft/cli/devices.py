"""`weft devices`: the processor and the GPUs of this machine."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from weft.cli.report import printable
from weft.cli.tables import new_table, print_table
from weft.driver.devices import Devices, devices


def devices_command() -> None:
    """List the processor and the GPUs that programs can run on; if no GPU is found, say why."""
    found = devices()
    print_table(_device_table(found))
    if found.no_gpu:
        print(printable(found.no_gpu))


def _device_table(found: Devices) -> Table:
    table = new_table()
    # Names of processors are long: they may be cut into lines, but not to nothing.
    for title, narrowest in (("device", 14), ("units", 0), ("memory", 12), ("what it has", 24)):
        if title == "device":
            table.add_column("backend", no_wrap=True)
        table.add_column(title, no_wrap=title == "units", min_width=narrowest or None)
    cpu = found.cpu
    features = ", ".join(sorted(cpu.target.features)) or "nothing special"
    vectors = f"vectors of {cpu.target.limits.vector_bits} bits; {features}"
    caches = " + ".join(_size_text(size) for size in cpu.target.limits.cache_bytes)
    units = f"{cpu.target.limits.units} cores, {cpu.threads} threads"
    table.add_row("cpu", Text(printable(cpu.name)), units, f"caches {caches}", Text(vectors))
    for gpu in found.gpus:
        has = f"{gpu.sm}; the driver supports CUDA up to {found.driver}"
        name = Text(printable(gpu.name))
        table.add_row("cuda", name, f"{gpu.multiprocessors} SMs", _size_text(gpu.memory_bytes), has)
    return table


def _size_text(count: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count / 1024:.3g} KiB"
