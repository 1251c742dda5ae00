"""The native executor and its thread pool, as LLVM IR compiled once per process.

    weft_pool_new(workers) -> pool              threads besides the caller's; they sleep when idle;
                                                null where there is no memory for them
    weft_pool_free(pool)
    weft_execute(steps, first, count, turns, state, pool, pauses) -> position
                                                carries out a table of steps from a position on
    weft_run(call) -> position                  the same; `call` points to the seven words

A step is eight 64-bit words: its kind and what that kind needs.

    launch   kernel, argument table, error record, pieces, pieces per grab, threads, whether to wake
             those that sleep
    copy     target, source, bytes, counter, bytes the target moves a turn, bytes the source moves
    enter    run record: seed, how often it was entered before (in the upper half), times entered
    jump     position
    unless   i1, position
    reset    counter
    leave    counter, limit, position
    again    counter, position
    host     nothing: the caller carries it out

A kernel is `void(ptr args, ptr error, i64 first, i64 last)`. Each thread has a share of its pieces,
the same in every launch for as many threads, so that what it wrote is still in its caches when it
comes to read it; whoever is done with its own goes on with the shares of the threads after it.
Atomic counters hand pieces out: any thread may run any piece, and no result depends on how many
threads there are. An error record is four words: the least of what a kernel has to report, a
pointer to the state's first word, which it then sets, a lock on the record, and the value that is
reported.

The state is four words: whether something failed, how many bodies were entered, how many may be,
and whether somebody wants it all to stop. Long kernels look at the last word now and then, as
whoever hands out pieces does; what a stopped kernel leaves is worth nothing. The answer is the
position of the first step that was not carried out: `count` at the end, that of a host step, or
that of any step after `turns` steps; -1 where a body was entered after a failure or it was to stop,
and -2 - position where one body too many was. With `pauses` it may be any position: about once a
second the call returns between two steps, so that its caller can look whether it is still wanted.

The thread pool is in `native_pool`.
"""

from __future__ import annotations

from weft.runtime.native_pool import BUSY_AT, POOL_EXTERNAL, pool_source

MOST_THREADS = 4096
STEP_WORDS = 8
LAUNCH, COPY, ENTER, JUMP, UNLESS, RESET, LEAVE, AGAIN, HOST = range(9)
STOPPED = -1
ERROR_WORDS = 4
LOCK_WORD, VALUE_WORD = 2, 3
"""Words of an error record."""
STATE_WORDS = 4
STOP_WORD = 3
"""The word of the state that says to stop."""
_STEPS_BETWEEN_LOOKS = 64
"""A look at the clock costs as much as a small step, so it is taken after large kernels only, and
now and then."""
# `weft_execute` is one loop over steps. At its head it has to know whether the pool is its own: the
# word BUSY goes from 0 to 1 for one caller at a time, and whoever finds it taken runs kernels with
# its own thread (`shared` is false) instead of waiting. Between two steps it looks whether to stop,
# and, where it pauses, whether the second has changed since it began. The record of a body
# (`enter`) has the count in the upper half of its second word, because random numbers take that
# word as the upper half of their counter as it is.
_EXECUTOR = f"""
declare i64 @time(ptr)

define i64 @weft_execute(ptr %steps, i64 %first, i64 %count, i64 %turns, ptr %state, ptr %pool,
                         i64 %pauses) {{
entry:
  %halt.at = getelementptr i8, ptr %state, i64 {STOP_WORD * 8}
  %restless = icmp ne i64 %pauses, 0
  br i1 %restless, label %look, label %begin
look:
  %began.now = call i64 @time(ptr null)
  br label %begin
begin:
  %began = phi i64 [ 0, %entry ], [ %began.now, %look ]
  %none = icmp eq ptr %pool, null
  br i1 %none, label %head, label %try
try:
  %busy.at = getelementptr i8, ptr %pool, i64 {BUSY_AT}
  %taken = cmpxchg ptr %busy.at, i64 0, i64 1 acquire monotonic
  %mine = extractvalue {{ i64, i1 }} %taken, 1
  br label %head
head:
  %shared = phi i1 [ false, %begin ], [ %mine, %try ], [ %shared, %after ],
    [ %shared, %look.again ]
  %i = phi i64 [ %first, %begin ], [ %first, %try ], [ %following, %after ],
    [ %following, %look.again ]
  %turn = phi i64 [ 0, %begin ], [ 0, %try ], [ %turn.next, %after ],
    [ %turn.next, %look.again ]
  %more = icmp slt i64 %i, %count
  %allowed = icmp ne i64 %turn, %turns
  %going = and i1 %more, %allowed
  br i1 %going, label %step, label %done
step:
  %halt = load atomic i64, ptr %halt.at monotonic, align 8
  %halted = icmp ne i64 %halt, 0
  br i1 %halted, label %done, label %carry.out
carry.out:
  %next = add i64 %i, 1
  %turn.next = add i64 %turn, 1
  %offset = mul i64 %i, {STEP_WORDS * 8}
  %at = getelementptr i8, ptr %steps, i64 %offset
  %at1 = getelementptr i8, ptr %at, i64 8
  %at2 = getelementptr i8, ptr %at, i64 16
  %at3 = getelementptr i8, ptr %at, i64 24
  %at4 = getelementptr i8, ptr %at, i64 32
  %at5 = getelementptr i8, ptr %at, i64 40
  %at6 = getelementptr i8, ptr %at, i64 48
  %at7 = getelementptr i8, ptr %at, i64 56
  %kind = load i64, ptr %at
  %first.pointer = load ptr, ptr %at1
  %first.number = load i64, ptr %at1
  %second.pointer = load ptr, ptr %at2
  %second.number = load i64, ptr %at2
  switch i64 %kind, label %done [
    i64 {LAUNCH}, label %launch
    i64 {COPY}, label %copy
    i64 {ENTER}, label %enter
    i64 {JUMP}, label %jump
    i64 {UNLESS}, label %unless
    i64 {RESET}, label %reset
    i64 {LEAVE}, label %leave
    i64 {AGAIN}, label %again
  ]
launch:
  %error = load ptr, ptr %at3
  %pieces = load i64, ptr %at4
  %grab = load i64, ptr %at5
  %threads = load i64, ptr %at6
  %wakes = load i64, ptr %at7
  %many = icmp sgt i64 %pieces, %grab
  %several = icmp sgt i64 %threads, 1
  %cut = and i1 %many, %several
  %parallel = and i1 %cut, %shared
  br i1 %parallel, label %together, label %alone
together:
  call void @share(ptr %pool, ptr %state, ptr %first.pointer, ptr %second.pointer, ptr %error,
                   i64 %pieces, i64 %grab, i64 %threads, i64 %wakes)
  br label %after
alone:
  call void %first.pointer(ptr %second.pointer, ptr %error, i64 0, i64 %pieces)
  br label %after
copy:
  %bytes = load i64, ptr %at3
  %copy.counter = load ptr, ptr %at4
  %target.step = load i64, ptr %at5
  %source.step = load i64, ptr %at6
  %copy.turn = load i64, ptr %copy.counter
  %target.moved = mul i64 %copy.turn, %target.step
  %source.moved = mul i64 %copy.turn, %source.step
  %target = getelementptr i8, ptr %first.pointer, i64 %target.moved
  %source = getelementptr i8, ptr %second.pointer, i64 %source.moved
  %copied = call ptr @memcpy(ptr %target, ptr %source, i64 %bytes)
  br label %after
enter:
  %failed = load atomic i64, ptr %state monotonic, align 8
  %is.failed = icmp ne i64 %failed, 0
  br i1 %is.failed, label %done, label %enter.count
enter.count:
  %entered.at = getelementptr i8, ptr %state, i64 8
  %limit.at = getelementptr i8, ptr %state, i64 16
  %entered = load i64, ptr %entered.at
  %entered.next = add i64 %entered, 1
  %entered.limit = load i64, ptr %limit.at
  %too.many = icmp sgt i64 %entered.next, %entered.limit
  br i1 %too.many, label %done, label %enter.run
enter.run:
  store i64 %entered.next, ptr %entered.at
  %before.at = getelementptr i8, ptr %first.pointer, i64 8
  %times.at = getelementptr i8, ptr %first.pointer, i64 16
  %times = load i64, ptr %times.at
  %upper = shl i64 %times, 32
  store i64 %upper, ptr %before.at
  %times.next = add i64 %times, 1
  store i64 %times.next, ptr %times.at
  br label %after
jump:
  br label %after
unless:
  %flag = load i8, ptr %first.pointer
  %is.false = icmp eq i8 %flag, 0
  %unless.next = select i1 %is.false, i64 %second.number, i64 %next
  br label %after
reset:
  store i64 0, ptr %first.pointer
  br label %after
leave:
  %leave.turn = load i64, ptr %first.pointer
  %leave.end = load i64, ptr %at3
  %reached = icmp sge i64 %leave.turn, %second.number
  %leave.next = select i1 %reached, i64 %leave.end, i64 %next
  br label %after
again:
  %again.turn = load i64, ptr %first.pointer
  %again.more = add i64 %again.turn, 1
  store i64 %again.more, ptr %first.pointer
  br label %after
after:
  %following = phi i64 [ %next, %together ], [ %next, %alone ], [ %next, %copy ],
    [ %next, %enter.run ], [ %first.number, %jump ], [ %unless.next, %unless ], [ %next, %reset ],
    [ %leave.next, %leave ], [ %second.number, %again ]
  %large = phi i1 [ true, %together ], [ %many, %alone ], [ false, %copy ], [ false, %enter.run ],
    [ false, %jump ], [ false, %unless ], [ false, %reset ], [ false, %leave ], [ false, %again ]
  %small.steps = and i64 %turn, {_STEPS_BETWEEN_LOOKS - 1}
  %rested = icmp eq i64 %small.steps, {_STEPS_BETWEEN_LOOKS - 1}
  %due = or i1 %large, %rested
  %looks = and i1 %restless, %due
  br i1 %looks, label %look.again, label %head
look.again:
  %now = call i64 @time(ptr null)
  %late = icmp ne i64 %now, %began
  br i1 %late, label %done, label %head
done:
  %limited = phi i1 [ false, %head ], [ false, %step ], [ false, %carry.out ], [ false, %enter ],
    [ true, %enter.count ], [ false, %look.again ]
  %stopped = phi i1 [ false, %head ], [ true, %step ], [ false, %carry.out ], [ true, %enter ],
    [ false, %enter.count ], [ false, %look.again ]
  %reached.step = phi i64 [ %i, %head ], [ %i, %step ], [ %i, %carry.out ], [ %i, %enter ],
    [ %i, %enter.count ], [ %following, %look.again ]
  %beyond = sub i64 -2, %reached.step
  %answer.limited = select i1 %limited, i64 %beyond, i64 %reached.step
  %answer = select i1 %stopped, i64 {STOPPED}, i64 %answer.limited
  br i1 %shared, label %release, label %finish
release:
  %busy.out = getelementptr i8, ptr %pool, i64 {BUSY_AT}
  store atomic i64 0, ptr %busy.out release, align 8
  br label %finish
finish:
  ret i64 %answer
}}

define i64 @weft_run(ptr %call) {{
entry:
  %at1 = getelementptr i8, ptr %call, i64 8
  %at2 = getelementptr i8, ptr %call, i64 16
  %at3 = getelementptr i8, ptr %call, i64 24
  %at4 = getelementptr i8, ptr %call, i64 32
  %at5 = getelementptr i8, ptr %call, i64 40
  %at6 = getelementptr i8, ptr %call, i64 48
  %steps = load ptr, ptr %call
  %first = load i64, ptr %at1
  %count = load i64, ptr %at2
  %turns = load i64, ptr %at3
  %state = load ptr, ptr %at4
  %pool = load ptr, ptr %at5
  %pauses = load i64, ptr %at6
  %position = call i64 @weft_execute(ptr %steps, i64 %first, i64 %count, i64 %turns, ptr %state,
                                     ptr %pool, i64 %pauses)
  ret i64 %position
}}
"""


def source(triple: str) -> str:
    """The module for the processors of a triple."""
    return pool_source(triple, STOP_WORD) + _EXECUTOR


SYMBOLS = ("weft_pool_new", "weft_pool_free", "weft_execute", "weft_run")
EXTERNAL = (*POOL_EXTERNAL, "time")
"""The only symbols of the process that native code refers to."""
