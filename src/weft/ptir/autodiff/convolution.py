"""The gradient of a convolution written as patches times a matrix: it goes back to the image in one
step, past the patches.

    y = dot_general(extract_patches(x), w)        dx = dot_general(extract_patches(dy...), w turned)

Where zeros were put between the elements of x before, it goes back past them: the gradients of a
transposed convolution are those of a convolution in steps.

Op by op, the way back would store the cotangents of all patches, as many times the image as a
window has elements, and add them up in the dtype they are stored in.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.ptir.autodiff.definitions import Definitions, definition
from weft.ptir.convolution import back_to_image, back_to_kernel
from weft.ptir.ir import Instruction, Operand
from weft.ptir.ops.contraction import DotGeneral, wider
from weft.ptir.ops.movement import Pad, Reshape
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
    apart: tuple[int, ...] = ()
    """How far elements of the image were set apart before, with zeros between them, as for a
    transposed convolution; empty where they were not."""

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
        g = g.cast(wide)
        found = back_to_image(self.taken, g, kernel, groups, image, accum, self.apart)
        if not self.apart:
            return found, self.op.vjp(at)[1]
        back = back_to_kernel(self.taken, g, groups, image.cast(wide), accum, self.apart)
        return found, back.reshape(matrix.shape).cast(matrix.dtype)


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
    image, apart = _set_apart(patches.operands[0], made)
    return Convolution(op, patches.op, image, instruction.operands[1], grouped, apart)


def _set_apart(image: Operand, made: Definitions) -> tuple[Operand, tuple[int, ...]]:
    """The image before zeros were put between its elements, and how far apart they are then; the
    image itself where there are none."""
    found = definition(image, made)
    if found is None or not isinstance(found.op, Pad):
        return image, ()
    (first, *between, last), shape = found.op.interior, _output_shape(found)
    alone = not any((*found.op.low, *found.op.high, first, last)) and any(between)
    known = all(isinstance(dim, int) for dim in shape[1:])
    if not alone or not known or found.op.pad_value.value:
        return image, ()
    return found.operands[0], tuple(step + 1 for step in between)


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
