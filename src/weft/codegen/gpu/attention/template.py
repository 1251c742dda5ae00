"""The template for attention plans: forward attention, attention of few queries (decoding), and the
gradients.
"""

from __future__ import annotations

from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.attention.few_layout import FewLayout, few_refusals, packed
from weft.codegen.gpu.attention.few_sm80 import FewSm80Builder, FewSm80Layout
from weft.codegen.gpu.attention.few_sm90 import FewBuilder
from weft.codegen.gpu.attention.layout import Layout, refusals
from weft.codegen.gpu.attention.problem import analyse
from weft.codegen.gpu.attention.sm80 import Sm80Builder
from weft.codegen.gpu.attention.sm80_layout import Sm80Layout, sm80_refusals
from weft.codegen.gpu.attention.sm90 import AttentionBuilder
from weft.codegen.gpu.attention.stream_layout import StreamLayout, stream_refusals
from weft.codegen.gpu.attention.stream_problem import analyse_stream
from weft.codegen.gpu.attention.stream_sm80 import (
    StreamSm80Builder,
    StreamSm80Layout,
    stream_sm80_refusals,
)
from weft.codegen.gpu.attention.stream_sm90 import StreamBuilder
from weft.codegen.gpu.body.accept import kernel_refusals
from weft.codegen.gpu.products.operand import Refusal
from weft.codegen.gpu.template import Job
from weft.foundation.errors import Finding
from weft.plan.ir import AttentionPlan, Plan
from weft.region.form import Stream
from weft.region.ir import form_of


class AttentionTemplate:
    """Attention in one kernel, of many queries or of few; its gradients in two."""

    name: Final = "attention"

    def takes(self, plan: Plan) -> bool:
        return isinstance(plan, AttentionPlan)

    def accepts(self, job: Job[AttentionPlan]) -> list[Finding]:
        found = kernel_refusals(job.kernel, job.tensors)
        try:
            layout = _make_layout(job)
        except Refusal as refusal:
            return [*found, refusal.finding]
        if isinstance(layout, StreamSm80Layout):
            return [*found, *stream_sm80_refusals(layout)]
        if isinstance(layout, StreamLayout):
            return [*found, *stream_refusals(layout)]
        if isinstance(layout, FewLayout):
            return [*found, *few_refusals(layout)]
        if isinstance(layout, Sm80Layout):
            return [*found, *sm80_refusals(layout)]
        return [*found, *refusals(layout)]

    def build(self, job: Job[AttentionPlan], name: str) -> ir.Kernel:
        layout = _make_layout(job)
        if isinstance(layout, StreamSm80Layout):
            return StreamSm80Builder(layout, name).kernel()
        if isinstance(layout, StreamLayout):
            return StreamBuilder(layout, name).kernel()
        if isinstance(layout, FewSm80Layout):
            return FewSm80Builder(layout, name).kernel()
        if isinstance(layout, FewLayout):
            return FewBuilder(layout, name).kernel()
        if isinstance(layout, Sm80Layout):
            return Sm80Builder(layout, name).kernel()
        return AttentionBuilder(layout, name).kernel()


def _make_layout(job: Job[AttentionPlan]) -> Layout | StreamLayout:
    warpgroups = job.target.has("wgmma")
    if isinstance(form_of(job.kernel), Stream):
        stream = StreamLayout if warpgroups else StreamSm80Layout
        return stream(analyse_stream(job.kernel, job.refs), job.plan, job.target)
    problem = analyse(job.kernel, job.refs, ends=job.plan.parts > 0)
    if job.plan.parts:
        few = FewLayout if warpgroups else FewSm80Layout
        return few(packed(problem, job.plan.tile_q), job.plan, job.target)
    kind = Layout if warpgroups else Sm80Layout
    return kind(problem, job.plan, job.target)


TEMPLATE: Final = AttentionTemplate()
