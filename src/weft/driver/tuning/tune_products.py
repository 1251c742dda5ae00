"""Tuning of matrix products by size, and measured times of their tile shapes as data for the
planner.

The file that is written is what `weft.target.measured_forms` reads. It grows by a product at a
time, so a tuner that is stopped leaves what it has measured; what is in the file is not measured
again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.driver.tuning.products import Product
from weft.driver.tuning.tune import KernelClass, Trial, Tuning, tune
from weft.foundation.errors import UserError
from weft.plan.ir import MmaPlan
from weft.plan.tensor_cores import sm90_contraction
from weft.region.ir import problem_of
from weft.target.matrix_tiles import Form
from weft.target.matrix_time import Contraction
from weft.target.measured_forms import Table, Times, parse_table, table_text
from weft.target.target import Target


class FormFile:
    """A file with the times of forms on a device."""

    def __init__(self, path: Path, device: str, target: Target) -> None:
        self.path = path
        self.table = Table(device, target.name, {})
        if path.exists():
            self.table = _read_table(path)
        if (self.table.device, self.table.target) != (device, target.name):
            raise UserError(
                f"{path} holds times of {self.table.device} ({self.table.target}), not of {device} "
                f"({target.name}): name another file"
            )

    def lacks(self, kernels: KernelClass) -> bool:
        """Whether the times of a contraction are not in the file yet."""
        found = _forms(kernels, dict.fromkeys(range(len(kernels.plans)), 0.0))
        return found is not None and found[0] not in self.table.products

    def add(self, kernels: KernelClass, times: dict[int, float]) -> None:
        """Add what was measured of a class, if it is a contraction in forms."""
        found = _forms(kernels, times)
        if found is None:
            return
        contraction, forms = found
        products = {**self.table.products, contraction: forms}
        self.table = Table(self.table.device, self.table.target, products)
        try:
            self.path.write_text(table_text(self.table))
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror or error}") from None


def _read_table(path: Path) -> Table:
    try:
        return parse_table(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from None


def _forms(kernels: KernelClass, times: dict[int, float]) -> tuple[Contraction, Times] | None:
    """The problem of a class, and the microseconds of its forms: of several plans in one form, the
    first, which has what the planner would choose beside it."""
    problem = problem_of(kernels.kernel)
    forms: dict[Form, float] = {}
    for place, seconds in sorted(times.items()):
        plan = kernels.plans[place]
        if isinstance(plan, MmaPlan) and plan.arch == "sm90":
            forms.setdefault(form_of_plan(plan), 1e6 * seconds)
    if problem is None or not forms:
        return None
    return sm90_contraction(problem), forms


def form_of_plan(plan: MmaPlan) -> Form:
    """The form that a plan has."""
    rows, columns, _ = plan.tile
    paired = plan.cluster != (1, 1)
    return Form(rows, columns, plan.warp_tile, plan.roles, plan.swap_ab, paired)


def tune_products(
    products: Sequence[Product],
    target: Target,
    watch: Callable[[Trial], None],
    begin: Callable[[Tuning], None],
    *,
    again: bool = False,
    into: FormFile | None = None,
) -> list[tuple[Product, Tuning]]:
    """Tune the programs of products one after the other; Ctrl-C ends with the one at hand."""
    done: list[tuple[Product, Tuning]] = []
    for product in products:
        source = product.program()
        compilation = Compilation(source, target, make_signature(source))
        tuning = tune(compilation, watch, begin, again=lambda c: again or _lacks(into, c))
        done.append((product, tuning))
        if into is not None:
            for kernels in tuning.classes:
                into.add(kernels, tuning.times.get(kernels.key, {}))
        if tuning.interrupted:
            break
    return done


def _lacks(into: FormFile | None, kernels: KernelClass) -> bool:
    return into is not None and into.lacks(kernels)
