"""The problem of a contraction is worked out once for a kernel and its tensors."""

from __future__ import annotations

from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.foundation.records import replace
from weft.ptir import Builder
from weft.region.forms.problem import find_problem
from weft.region.ir import Module, problem_of
from weft.target.known import target_named


def test_a_kernel_keeps_its_problem_for_the_tensors_that_it_was_asked_about() -> None:
    b = Builder()
    x, w = b.param("bf16", [128, 256]), b.param("bf16", [256, 64])
    made = Compilation(program := b.build(x @ w), target_named("sm90"), make_signature(program))
    module: Module = run_pipeline(made, "region")["region"]
    (kernel,) = module.kernels
    found = find_problem(kernel, module.tensors)
    assert found is not None
    assert found == problem_of(kernel)
    assert find_problem(kernel, dict(module.tensors)) is found
    odd = {
        name: replace(t, shape=(t.shape[0], t.shape[1] + 1)) for name, t in module.tensors.items()
    }
    assert find_problem(kernel, odd) != found
    assert find_problem(kernel, module.tensors) is found
