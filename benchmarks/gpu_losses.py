"""Lines of the GPU benchmark for cross-entropy: those of `rows_backward` in `gpu2.json`, of given
logits and of the product that makes them.

Peers are torch's own loss (eager or through its derivatives) and torch.compile of the loss written
out, which reads the logits as rarely as that compiler can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.gpu_line import Line, Tensor
from weft.ptir import Builder, Program, Value
from weft.ptir.gradient import gradient

SHAPES: Final = ((8192, 50304), (16384, 128256))
"""Rows and classes."""
PRODUCT: Final = (16384, 768, 50304)
"""Rows, summed axis and classes of the product before the loss."""


@dataclass(frozen=True)
class LossLine(Line):
    """A line whose program gives a loss and its gradients."""

    of: tuple[int, ...] = (0,)

    def program(self) -> Program:
        return gradient(super().program(), wrt=self.of)


def loss(b: Builder, logits: Value, target: Value) -> Value:
    """The mean of `-log softmax(logits)[target]`, as `F.cross_entropy` computes it."""
    wide = b.cast(logits, "f32")
    largest = b.stop_gradient(b.reduce_max(wide, [1], keepdims=True))
    scores = wide - b.broadcast_to(largest, wide.shape)
    above = b.log(b.reduce_sum(b.exp(scores), [1]))
    rows = scores.type.static_shape[0]  # type: ignore[union-attr]
    numbers = b.reshape(b.cast(target, "si32"), [rows, 1])
    wanted = b.broadcast_to(numbers, wide.shape)
    chosen = b.compare(b.iota("si32", wide.shape, 1), wanted, "equal")
    picked = b.reduce_sum(b.select(chosen, wide, 0.0), [1])
    loss = above + (b.reshape(largest, [rows]) - picked)
    return b.reduce_sum(loss, [0]) * (1.0 / rows)


def product_loss(b: Builder, x: Value, w: Value, target: Value) -> Value:
    """Of logits rounded as torch's are, so that the ways back are products of narrow floats."""
    logits = b.dot_general(x, w, contract=([1], [1]), accum_dtype="f32", out_dtype=x.dtype)
    return loss(b, logits, target)


def _torch_loss(torch: Any, logits: Any, target: Any) -> Any:
    return torch.nn.functional.cross_entropy(logits.float(), target)


def _both(torch: Any, logits: Any, target: Any) -> Any:
    """The loss and the gradient of the logits, written out."""
    wide = logits.float()
    total = torch.logsumexp(wide, 1, keepdim=True)
    picked = wide.gather(1, target[:, None])
    here = torch.arange(wide.shape[1], device=wide.device) == target[:, None]
    slope = (torch.exp(wide - total) - here.float()) / wide.shape[0]
    return (total - picked).mean(), slope.to(logits.dtype)


def _derived(forward: Callable[..., Any], torch: Any, *given: Any) -> Any:
    """A loss and the gradients of all inputs but the last, by torch's derivatives."""
    *inputs, target = given
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in inputs]
        found = forward(torch, *leaves, target)
        slopes = torch.autograd.grad(found, leaves)
    return (found.detach(), *slopes)


def _torch_product_loss(torch: Any, x: Any, w: Any, target: Any) -> Any:
    return torch.nn.functional.cross_entropy((x @ w.t()).float(), target)


def _product_both(torch: Any, x: Any, w: Any, target: Any) -> Any:
    found, slope = _both(torch, x @ w.t(), target)
    return found, slope @ w, slope.t() @ x


def _of_logits() -> Iterator[Line]:
    for rows, classes in SHAPES:
        name = f"{rows}x{classes}"
        inputs = (Tensor((rows, classes), "bf16"), Tensor((rows,), "si64", below=classes))
        yield Line(
            "rows_backward", f"cross entropy forward {name}", "bf16", inputs, loss, _torch_loss,
            {"bf16": lambda t, x, y: t.nn.functional.cross_entropy(x, y)},
        )  # fmt: skip
        yield LossLine(
            "rows_backward", f"cross entropy forward+backward {name}", "bf16", inputs, loss, _both,
            {"derived": lambda t, *given: _derived(_torch_loss, t, *given)},
        )  # fmt: skip


def _of_products() -> Iterator[Line]:
    rows, depth, classes = PRODUCT
    inputs = (
        Tensor((rows, depth), "bf16"), Tensor((classes, depth), "bf16", scale=depth**-0.5),
        Tensor((rows,), "si64", below=classes),
    )  # fmt: skip
    flops = 2.0 * rows * depth * classes
    name = f"{rows}x{depth} by {classes}"
    yield Line(
        "rows_backward", f"product + cross entropy {name}", "bf16", inputs, product_loss,
        _torch_product_loss, {}, flops,
    )  # fmt: skip
    yield LossLine(
        "rows_backward", f"product + cross entropy forward+backward {name}", "bf16", inputs,
        product_loss, _product_both,
        {"derived": lambda t, *given: _derived(_torch_product_loss, t, *given)}, 3 * flops,
        of=(0, 1),
    )  # fmt: skip


def loss_lines() -> Iterator[Line]:
    yield from _of_logits()
    yield from _of_products()
