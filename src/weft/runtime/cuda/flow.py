"""Branches and loops in CUDA graphs: the two small kernels that set their conditions, and the
memory of those.

Before a branch, and after the head of a loop, a kernel reads the flag and tells the graph. When a
body is entered, another one counts it: a loop that has entered too many bodies is ended by the
first kernel, which leaves the number of the loop's step behind, and random numbers of a body depend
on how often it was entered before. A loop in which a kernel has reported a violation ends, too.

Both are in PTX, which the driver compiles: only it knows the function that tells a graph.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from weft.runtime.cuda.driver import Device, Stream, call, pointer_table
from weft.runtime.cuda.memory import Block, Pool
from weft.runtime.cuda.sections import Branch, Loop

_OVERRUN: Final = 0
_TOTAL: Final = 8
_NOWHERE: Final = 16
_MOST: Final = 24
_ANY: Final = 32
_COUNTS: Final = 40
"""Where in the memory of a program: the step of a loop that was ended, which stays until somebody
reads it; bodies entered, a word that nobody reads, how many bodies may be entered, a number that is
never reached, and how often each body was entered, in 32 bits."""
# `weft_tell` decides in this order: a false flag ends; an error word of the part's own steps that
# is not 0 ends; more bodies than are allowed end, and leave the step's number behind if no other
# loop has left its own. For a branch the limit is a number that is never reached, and there are no
# error words: it only tells.
_PTX: Final = """
.version 8.4
.target sm_80
.address_size 64

.extern .func cudaGraphSetConditional (.param .b64 handle, .param .b32 value);

.visible .entry weft_tell(.param .u64 handle, .param .u64 flag, .param .u64 total,
                          .param .u64 most, .param .u64 overrun, .param .u64 step,
                          .param .u64 errors, .param .u64 count)
{
    .reg .pred %p<6>;
    .reg .b16 %h<2>;
    .reg .b32 %r<3>;
    .reg .b64 %d<14>;
    ld.param.u64 %d1, [handle];
    ld.param.u64 %d2, [flag];
    ld.param.u64 %d3, [total];
    ld.param.u64 %d4, [most];
    ld.param.u64 %d5, [overrun];
    ld.param.u64 %d6, [step];
    ld.param.u64 %d10, [errors];
    ld.param.u64 %d11, [count];
    cvta.to.global.u64 %d2, %d2;
    cvta.to.global.u64 %d3, %d3;
    cvta.to.global.u64 %d4, %d4;
    cvta.to.global.u64 %d5, %d5;
    cvta.to.global.u64 %d10, %d10;
    ld.global.u8 %h1, [%d2];
    setp.ne.u16 %p1, %h1, 0;
    selp.u32 %r1, 1, 0, %p1;
    @!%p1 bra done;
look:
    setp.eq.u64 %p4, %d11, 0;
    @%p4 bra looked;
    ld.global.u64 %d12, [%d10];
    add.u64 %d10, %d10, 8;
    sub.u64 %d11, %d11, 1;
    setp.eq.u64 %p5, %d12, 0;
    @%p5 bra look;
    mov.u32 %r1, 0;
    bra done;
looked:
    ld.global.u64 %d7, [%d3];
    ld.global.u64 %d9, [%d4];
    setp.lt.u64 %p2, %d7, %d9;
    @%p2 bra done;
    mov.u32 %r1, 0;
    ld.global.u64 %d8, [%d5];
    setp.ne.u64 %p3, %d8, 0;
    @%p3 bra done;
    st.global.u64 [%d5], %d6;
done:
    {
        .param .b64 first;
        .param .b32 second;
        st.param.b64 [first], %d1;
        st.param.b32 [second], %r1;
        call.uni cudaGraphSetConditional, (first, second);
    }
    ret;
}

.visible .entry weft_enter(.param .u64 total, .param .u64 count, .param .u64 before)
{
    .reg .b32 %r<3>;
    .reg .b64 %d<6>;
    ld.param.u64 %d1, [total];
    ld.param.u64 %d2, [count];
    ld.param.u64 %d3, [before];
    cvta.to.global.u64 %d1, %d1;
    cvta.to.global.u64 %d2, %d2;
    cvta.to.global.u64 %d3, %d3;
    ld.global.u64 %d4, [%d1];
    add.u64 %d5, %d4, 1;
    st.global.u64 [%d1], %d5;
    ld.global.u32 %r1, [%d2];
    add.u32 %r2, %r1, 1;
    st.global.u32 [%d2], %r2;
    st.global.u32 [%d3], %r1;
    ret;
}
"""


@dataclass
class Turns:
    """What the branches and loops of one program need on a device."""

    device: Device
    memory: Block
    module: Any
    tell: Any
    enter: Any
    side: list[Stream]
    """Streams to record bodies with, one for each level of nesting."""

    def begin(self, stream: Stream, most: int) -> None:
        """No body was entered yet, and so many may be."""
        words = np.zeros(self.memory.bytes // 8, np.uint64)
        words[_MOST // 8], words[_ANY // 8] = most, (1 << 64) - 1
        # All but the first word, which says that an earlier run's loop was ended until somebody has
        # read it.
        stream.upload(self.memory.address + _TOTAL, words[_TOTAL // 8 :])

    def forget(self, stream: Stream) -> None:
        """No loop was ended."""
        stream.fill(self.overrun, _TOTAL - _OVERRUN)

    @property
    def overrun(self) -> int:
        """The address of the number of the step at which a loop was ended, and 0 otherwise."""
        return self.memory.address + _OVERRUN

    def put_tell(
        self, stream: Stream, value: Any, part: Branch | Loop, flag: int, errors: int, count: int
    ) -> None:
        """The flag at an address becomes the value that a branch or loop looks at; a loop ends at
        any of so many error words at another address."""
        base = self.memory.address
        # One kernel for both: a branch is never ended for the number of bodies.
        most = base + (_MOST if isinstance(part, Loop) else _ANY)
        words = (int(value), flag, base + _TOTAL, most, base + _OVERRUN, part.step)
        self._launch_one(stream, self.tell, (*words, errors, count))

    def put_enter(self, stream: Stream, body: int, before: int | None) -> None:
        """A body is entered; `before` is where its random numbers look for how often it was."""
        base = self.memory.address
        words = (base + _TOTAL, base + _COUNTS + 4 * body, before or base + _NOWHERE)
        self._launch_one(stream, self.enter, words)

    def _launch_one(self, stream: Stream, function: Any, words: tuple[int, ...]) -> None:
        storage = [ctypes.c_uint64(word) for word in words]
        table = pointer_table([ctypes.addressof(part) for part in storage])
        one, where = (1, 1, 1), ctypes.addressof(table)
        driver = self.device.driver
        call(driver, "cuLaunchKernel", function, *one, *one, 0, stream.handle, where, 0)

    def stream_at(self, depth: int) -> Stream:
        """The stream that bodies at a level of nesting are recorded with."""
        while len(self.side) <= depth:
            self.side.append(self.device.stream())
        return self.side[depth]

    def close(self) -> None:
        """Give everything back."""
        self.memory.free()
        with self.device.current():
            for stream in self.side:
                stream.close()
            call(self.device.driver, "cuModuleUnload", self.module)


def load_turns(device: Device, pool: Pool, bodies: int) -> Turns:
    """The kernels on a device, and memory for a program of so many bodies."""
    driver = device.driver
    module = call(driver, "cuModuleLoadData", _PTX.encode() + b"\0")
    tell, enter = (
        call(driver, "cuModuleGetFunction", module, name) for name in (b"weft_tell", b"weft_enter")
    )
    memory = pool.take(_COUNTS + 4 * bodies, "counters of loops")
    return Turns(device, memory, module, tell, enter, [])
