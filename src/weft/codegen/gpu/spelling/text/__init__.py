"""The dialect as text, a statement a line; `parse_module` reads it back.

    launch row0 = k_5c1d(0, 1, 2)
    host map1 "there is no GPU code for a product of i1"

    kernel k_5c1d grid=6 threads=128 reports {
      buffers (in0, in1, t3)
      partial0 = shared_tile(offset=0, bytes=32)
      let row = ((block * 4) + (thread / 32))
      v1 : f32 = load_element(buffer=0, offset=wide(row), guard=(row < 24))
      v2 : f32 = exp(v1)
      if (lane == 0) {
        store_element(buffer=2, dtype=f32, offset=wide(row), guard=1, source=v2)
      }
    }

A record is written by its own name: the class in lower case and its fields in order, those left out
that have their defaults. What a record names stands in front, with its dtype: `v1 : f32 = ...`.
`let`, `set`, `for`, `if`, `roles`, functions of elements and element programs have forms of their
own. Numbers of the thread are written with every parenthesis, so that operators need no order.
Comments run from `#` to the end of the line.
"""

from weft.codegen.gpu.spelling.text.parser import parse_module
from weft.codegen.gpu.spelling.text.printer import print_kernel, print_module, spelling

__all__ = ["parse_module", "print_kernel", "print_module", "spelling"]
