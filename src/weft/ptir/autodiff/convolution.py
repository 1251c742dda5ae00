"""The gradient of a convolution written as patches times a matrix: it goes back to the image in one
step, past the patches.

    y = dot_general(extract_patches(x), w)        dx = dot_general(extract_patches(dy...), w turned)

Op by op, the way back would store the cotangents of all patches, as many times the image as a
window has elements, and add them up in the dtype they are stored in.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.ptir.autodiff.definitions import Definitions, definition
from weft.ptir.convolution import back_to_image
from weft.ptir.ir import Instruction, Operand
from weft.ptir.ops.contraction import DotGeneral, wider
from weft.ptir.ops.movement import Reshape
from weft.ptir.ops.window import ExtractPatches
from weft.ptir.term import Cotangents, Pullback, Term
from weft.ptir.types import Shape, TensorType


@dataclass(frozen=True)
class Convolution:
    """A product of patches of an image with a matrix: `[window * C, O]`, or with groups
    `[window, C / groups, groups, O / groups]`."""

    op: DotGeneral
    taken: ExtractPatches
    image: Operand
    matrix: Operand
    grouped: bool

    @property
    def sources(self) -> tuple[Operand, ...]:
        """What the way back leads to."""
        return self.image, self.matrix

    def pulled_back(self, image: Term, at: Pullback) -> Cotangents:
        """The cotangents of the image and of the matrix."""
        (_, matrix), g = at.operands, at.cotangent
        wide = wider(image.dtype, g.dtype)
        share, outputs, groups = image.shape[-1], matrix.shape[-1], 1
        if self.grouped:
            _, share, groups, each = matrix.tensor.static_shape
            outputs = groups * each
            # A product with a batch of groups has the groups first. Beside the outputs of each they
            # are the channels of the image.
            g = g.move_axis(0, g.rank - 2)
            g = g.reshape((*g.shape[:-2], outputs))
        kernel = matrix.cast(wide).reshape((*self.taken.window, share, outputs))
        accum = self.op.accum_dtype if wide is image.dtype else None
        found = back_to_image(self.taken, g.cast(wide), kernel, groups, image, accum)
        return found, self.op.vjp(at)[1]


def convolution(instruction: Instruction, made: Definitions) -> Convolution | None:
    """The instruction as a product of patches of known sizes, if that is what it is."""
    op = instruction.op
    rows = definition(instruction.operands[0], made) if isinstance(op, DotGeneral) else None
    if not isinstance(op, DotGeneral) or rows is None:
        return None
    grouped = isinstance(rows.op, Reshape)
    patches = definition(rows.operands[0], made) if grouped else rows
    if patches is None or not isinstance(patches.op, ExtractPatches):
        return None
    sizes, cut = _output_shape(patches), _output_shape(rows)
    # All but the number of images, which no index depends on.
    known = [*sizes[1:], *_output_shape(instruction)[1:]]
    if not all(isinstance(dim, int) for dim in known) or not _is_product(op, sizes, cut, grouped):
        return None
    return Convolution(op, patches.op, patches.operands[0], instruction.operands[1], grouped)


def _output_shape(instruction: Instruction) -> Shape:
    kind = instruction.output
    return kind.shape if isinstance(kind, TensorType) else ()


def _is_product(op: DotGeneral, patches: Shape, cut: Shape, grouped: bool) -> bool:
    """Whether rows of patches, perhaps cut into groups, meet the columns of a matrix."""
    last = len(patches) - 1
    axes = op.batch_lhs, op.batch_rhs, op.contract_lhs, op.contract_rhs
    if not grouped:
        return axes == ((), (), (last,), (0,))
    fits = len(cut) == last + 3 and cut[:last] == patches[:last]
    return fits and axes == ((last + 1,), (2,), (last, last + 2), (0, 1))
