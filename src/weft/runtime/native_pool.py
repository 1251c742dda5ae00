"""The thread pool of the native executor, as LLVM IR.

A worker waits for work by spinning for a moment and then on a condition variable. A launch has a
gate: workers that come while it is open take part, and its caller, when no piece is left to take,
closes it and waits for those inside. A worker that the system did not run in time, because threads
of other libraries or processes hold its processor, is so not waited for: the others do its share.
Two callers cannot use one pool at a time: the second runs its kernels alone.

Where the scheduler wakes a worker on the caller's own processor, as seen on a virtual machine after
a pause, the worker moves away from it: it forbids itself that processor and at once allows it
again. Else the two would take turns on one of them.
"""

from __future__ import annotations

import sys

_SPINS = 4_000
"""How often a worker looks for work before it sleeps: a look with its pause takes 20 to 60 ns on
x86-64, so that it sleeps after about a tenth of a millisecond to two tenths."""
_ISB = ("declare void @llvm.aarch64.isb(i32)", "call void @llvm.aarch64.isb(i32 15)")
_RESTS = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": _ISB,
    "arm64": _ISB,
}
"""What a thread does between two looks, by processor: it leaves the units of its core to the other
thread on it. ARM's own hint, `yield`, does nothing on most; `isb` waits a little."""
_LOOKS_BEFORE_YIELDING = 1_000
"""How often a caller looks whether the last worker is done before it offers its processor at each
look: that worker may be the one that waits for it."""
_AFFINITY_BYTES = 128
_STOP_PLACE = "STOP_PLACE"
"""Where the text names the place of the word that says to stop."""

_SHARE_BYTES = 128
"""Between the counters of two threads: processors fetch two lines of a cache together."""

# The pool: 0 generation, 8 workers, 16 gate (twice the workers inside, and one while it is open),
# 24 shares, 32 pieces, 40 grab, 48 kernel, 56 args, 64 error, 72 stop, 80 busy, 88 sleepers, 96 the
# caller's processor, 104 state, 112 workers that have begun, 128 mutex, 192 condition, 256 thread
# handles, and then the shares: for each thread, the caller first, how many grabs of the launch are
# taken up to the next of its own.
_PLACES_OF_LINUX = f"""
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)

define internal void @note_place(ptr %pool) {{
entry:
  %place.at = getelementptr i8, ptr %pool, i64 96
  %place = call i32 @sched_getcpu()
  store i32 %place, ptr %place.at
  ret void
}}

define internal void @move_away(ptr %pool) {{
entry:
  %allowed = alloca [{_AFFINITY_BYTES} x i8], align 8
  %others = alloca [{_AFFINITY_BYTES} x i8], align 8
  %place.at = getelementptr i8, ptr %pool, i64 96
  %place = load i32, ptr %place.at
  %here = call i32 @sched_getcpu()
  %apart = icmp ne i32 %here, %place
  %known = icmp ult i32 %place, {_AFFINITY_BYTES * 8}
  %unknown = xor i1 %known, true
  %stay = or i1 %apart, %unknown
  br i1 %stay, label %done, label %ask
ask:
  %got = call i32 @sched_getaffinity(i32 0, i64 {_AFFINITY_BYTES}, ptr %allowed)
  %refused = icmp ne i32 %got, 0
  br i1 %refused, label %done, label %move
move:
  %copied = call ptr @memcpy(ptr %others, ptr %allowed, i64 {_AFFINITY_BYTES})
  %byte = lshr i32 %place, 3
  %bit = and i32 %place, 7
  %byte.at = getelementptr i8, ptr %others, i32 %byte
  %old = load i8, ptr %byte.at
  %bit.byte = trunc i32 %bit to i8
  %one = shl i8 1, %bit.byte
  %but = xor i8 %one, -1
  %new = and i8 %old, %but
  store i8 %new, ptr %byte.at
  %moved = call i32 @sched_setaffinity(i32 0, i64 {_AFFINITY_BYTES}, ptr %others)
  %failed = icmp ne i32 %moved, 0
  br i1 %failed, label %done, label %restore
restore:
  %restored = call i32 @sched_setaffinity(i32 0, i64 {_AFFINITY_BYTES}, ptr %allowed)
  br label %done
done:
  ret void
}}
"""
_PLACES_ELSEWHERE = """
define internal void @note_place(ptr %pool) {
  ret void
}

define internal void @move_away(ptr %pool) {
  ret void
}
"""
_ON_LINUX = sys.platform == "linux"

_POOL = f"""
{_PLACES_OF_LINUX if _ON_LINUX else _PLACES_ELSEWHERE}
declare ptr @calloc(i64, i64)
declare void @free(ptr)
declare ptr @memcpy(ptr, ptr, i64)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @pthread_cond_signal(ptr)
declare i32 @sched_yield()

define internal i64 @share_start(i64 %thread, i64 %threads, i64 %grabs) {{
  %product = mul i64 %thread, %grabs
  %start = udiv i64 %product, %threads
  ret i64 %start
}}

define internal void @grab(ptr %pool, i64 %own) {{
entry:
  %workers.at = getelementptr i8, ptr %pool, i64 8
  %shares.at = getelementptr i8, ptr %pool, i64 24
  %pieces.at = getelementptr i8, ptr %pool, i64 32
  %grab.at = getelementptr i8, ptr %pool, i64 40
  %kernel.at = getelementptr i8, ptr %pool, i64 48
  %args.at = getelementptr i8, ptr %pool, i64 56
  %error.at = getelementptr i8, ptr %pool, i64 64
  %workers = load i64, ptr %workers.at
  %shares = load ptr, ptr %shares.at
  %pieces = load i64, ptr %pieces.at
  %grab = load i64, ptr %grab.at
  %kernel = load ptr, ptr %kernel.at
  %args = load ptr, ptr %args.at
  %error = load ptr, ptr %error.at
  %state.at = getelementptr i8, ptr %pool, i64 104
  %state = load ptr, ptr %state.at
  %halt.at = getelementptr i8, ptr %state, i64 {_STOP_PLACE}
  %threads = add i64 %workers, 1
  %filled = add i64 %pieces, %grab
  %rounded = sub i64 %filled, 1
  %grabs = udiv i64 %rounded, %grab
  br label %share
share:
  %visited = phi i64 [ 0, %entry ], [ %visited.next, %onward ]
  %beyond = icmp uge i64 %visited, %threads
  br i1 %beyond, label %done, label %open
open:
  %sum = add i64 %own, %visited
  %thread = urem i64 %sum, %threads
  %after = add i64 %thread, 1
  %stop = call i64 @share_start(i64 %after, i64 %threads, i64 %grabs)
  %offset = mul i64 %thread, {_SHARE_BYTES}
  %next = getelementptr i8, ptr %shares, i64 %offset
  br label %again
again:
  %halt = load atomic i64, ptr %halt.at monotonic, align 8
  %going = icmp eq i64 %halt, 0
  br i1 %going, label %take, label %done
take:
  %number = atomicrmw add ptr %next, i64 1 monotonic
  %some = icmp ult i64 %number, %stop
  br i1 %some, label %work, label %onward
work:
  %first = mul i64 %number, %grab
  %end = add i64 %first, %grab
  %over = icmp sgt i64 %end, %pieces
  %last = select i1 %over, i64 %pieces, i64 %end
  call void %kernel(ptr %args, ptr %error, i64 %first, i64 %last)
  br label %again
onward:
  %visited.next = add i64 %visited, 1
  br label %share
done:
  ret void
}}

define internal ptr @worker(ptr %pool) {{
entry:
  %gate = getelementptr i8, ptr %pool, i64 16
  %stop.at = getelementptr i8, ptr %pool, i64 72
  %sleepers = getelementptr i8, ptr %pool, i64 88
  %begun = getelementptr i8, ptr %pool, i64 112
  %mutex = getelementptr i8, ptr %pool, i64 128
  %cond = getelementptr i8, ptr %pool, i64 192
  %before = atomicrmw add ptr %begun, i64 1 monotonic
  %own = add i64 %before, 1
  br label %wait
wait:
  %seen = phi i64 [ 0, %entry ], [ %now, %finish ]
  br label %spin
spin:
  %turn = phi i64 [ 0, %wait ], [ %turn.next, %spin.more ]
  %generation = load atomic i64, ptr %pool acquire, align 8
  %changed = icmp ne i64 %generation, %seen
  br i1 %changed, label %awake, label %spin.more
spin.more:
  %turn.next = add i64 %turn, 1
  call void @rest()
  %tired = icmp sgt i64 %turn.next, {_SPINS}
  br i1 %tired, label %sleep, label %spin
sleep:
  %locked = call i32 @pthread_mutex_lock(ptr %mutex)
  %more = atomicrmw add ptr %sleepers, i64 1 seq_cst
  br label %check
check:
  %fresh = load atomic i64, ptr %pool seq_cst, align 8
  %ready = icmp ne i64 %fresh, %seen
  br i1 %ready, label %rise, label %doze
doze:
  %waited = call i32 @pthread_cond_wait(ptr %cond, ptr %mutex)
  br label %check
rise:
  %fewer = atomicrmw sub ptr %sleepers, i64 1 seq_cst
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %awake
awake:
  %now = load atomic i64, ptr %pool acquire, align 8
  %stop = load atomic i64, ptr %stop.at acquire, align 8
  %ending = icmp ne i64 %stop, 0
  br i1 %ending, label %leave, label %run
run:
  %came = atomicrmw add ptr %gate, i64 2 acquire
  %bit = and i64 %came, 1
  %open = icmp ne i64 %bit, 0
  br i1 %open, label %take.part, label %finish
take.part:
  call void @move_away(ptr %pool)
  call void @grab(ptr %pool, i64 %own)
  br label %finish
finish:
  %left = atomicrmw sub ptr %gate, i64 2 release
  br label %wait
leave:
  ret ptr null
}}

define internal void @announce(ptr %pool, i64 %helpers) {{
entry:
  %sleepers = getelementptr i8, ptr %pool, i64 88
  %mutex = getelementptr i8, ptr %pool, i64 128
  %cond = getelementptr i8, ptr %pool, i64 192
  %old = atomicrmw add ptr %pool, i64 1 seq_cst
  %asleep = load atomic i64, ptr %sleepers seq_cst, align 8
  %any = icmp ne i64 %asleep, 0
  br i1 %any, label %wake, label %done
wake:
  %locked = call i32 @pthread_mutex_lock(ptr %mutex)
  %all = icmp uge i64 %helpers, %asleep
  br i1 %all, label %wake.all, label %wake.some
wake.all:
  %told = call i32 @pthread_cond_broadcast(ptr %cond)
  br label %woken
wake.some:
  %turn = phi i64 [ 0, %wake ], [ %turn.next, %wake.some ]
  %told.one = call i32 @pthread_cond_signal(ptr %cond)
  %turn.next = add i64 %turn, 1
  %more = icmp ult i64 %turn.next, %helpers
  br i1 %more, label %wake.some, label %woken
woken:
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %done
done:
  ret void
}}

define ptr @weft_pool_new(i64 %workers) {{
entry:
  %handles = mul i64 %workers, 8
  %head.bytes = add i64 %handles, 256
  %lines = add i64 %workers, 2
  %share.bytes = mul i64 %lines, {_SHARE_BYTES}
  %bytes = add i64 %head.bytes, %share.bytes
  %pool = call ptr @calloc(i64 1, i64 %bytes)
  %workers.at = getelementptr i8, ptr %pool, i64 8
  %lacking = icmp eq ptr %pool, null
  br i1 %lacking, label %none, label %begin
none:
  ret ptr null
begin:
  %place = ptrtoint ptr %pool to i64
  %handles.end = add i64 %place, %head.bytes
  %filled = add i64 %handles.end, {_SHARE_BYTES - 1}
  %line = and i64 %filled, {-_SHARE_BYTES}
  %shares.at = getelementptr i8, ptr %pool, i64 24
  store i64 %line, ptr %shares.at
  br label %head
head:
  %i = phi i64 [ 0, %begin ], [ %next, %made ]
  %more = icmp slt i64 %i, %workers
  br i1 %more, label %make, label %done
make:
  %offset = mul i64 %i, 8
  %from = add i64 %offset, 256
  %handle = getelementptr i8, ptr %pool, i64 %from
  %failed = call i32 @pthread_create(ptr %handle, ptr null, ptr @worker, ptr %pool)
  %bad = icmp ne i32 %failed, 0
  br i1 %bad, label %done, label %made
made:
  %next = add i64 %i, 1
  br label %head
done:
  store i64 %i, ptr %workers.at
  ret ptr %pool
}}

define void @weft_pool_free(ptr %pool) {{
entry:
  %workers.at = getelementptr i8, ptr %pool, i64 8
  %stop.at = getelementptr i8, ptr %pool, i64 72
  %workers = load i64, ptr %workers.at
  store atomic i64 1, ptr %stop.at release, align 8
  call void @announce(ptr %pool, i64 %workers)
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %join ]
  %more = icmp slt i64 %i, %workers
  br i1 %more, label %join, label %done
join:
  %offset = mul i64 %i, 8
  %from = add i64 %offset, 256
  %handle.at = getelementptr i8, ptr %pool, i64 %from
  %handle = load i64, ptr %handle.at
  %joined = call i32 @pthread_join(i64 %handle, ptr null)
  %next = add i64 %i, 1
  br label %head
done:
  call void @free(ptr %pool)
  ret void
}}

define internal void @share(ptr %pool, ptr %state, ptr %kernel, ptr %args, ptr %error, i64 %pieces,
                            i64 %grab)
{{ entry:
  %workers.at = getelementptr i8, ptr %pool, i64 8
  %gate = getelementptr i8, ptr %pool, i64 16
  %shares.at = getelementptr i8, ptr %pool, i64 24
  %pieces.at = getelementptr i8, ptr %pool, i64 32
  %grab.at = getelementptr i8, ptr %pool, i64 40
  %kernel.at = getelementptr i8, ptr %pool, i64 48
  %args.at = getelementptr i8, ptr %pool, i64 56
  %error.at = getelementptr i8, ptr %pool, i64 64
  %workers = load i64, ptr %workers.at
  store i64 %pieces, ptr %pieces.at
  store i64 %grab, ptr %grab.at
  store ptr %kernel, ptr %kernel.at
  store ptr %args, ptr %args.at
  store ptr %error, ptr %error.at
  %state.at = getelementptr i8, ptr %pool, i64 104
  store ptr %state, ptr %state.at
  %shares = load ptr, ptr %shares.at
  %threads = add i64 %workers, 1
  %filled = add i64 %pieces, %grab
  %rounded = sub i64 %filled, 1
  %grabs = udiv i64 %rounded, %grab
  br label %deal
deal:
  %thread = phi i64 [ 0, %entry ], [ %thread.next, %deal ]
  %start = call i64 @share_start(i64 %thread, i64 %threads, i64 %grabs)
  %offset = mul i64 %thread, {_SHARE_BYTES}
  %next = getelementptr i8, ptr %shares, i64 %offset
  store atomic i64 %start, ptr %next monotonic, align 8
  %thread.next = add i64 %thread, 1
  %more = icmp ult i64 %thread.next, %threads
  br i1 %more, label %deal, label %ready
ready:
  call void @note_place(ptr %pool)
  %opened = atomicrmw or ptr %gate, i64 1 release
  %helpers = sub i64 %grabs, 1
  call void @announce(ptr %pool, i64 %helpers)
  call void @grab(ptr %pool, i64 0)
  %closed = atomicrmw and ptr %gate, i64 -2 acq_rel
  br label %wait
wait:
  %look = phi i64 [ 0, %ready ], [ %look.next, %rest ], [ %look.next, %yield ]
  %left = load atomic i64, ptr %gate acquire, align 8
  %busy = icmp ne i64 %left, 0
  %look.next = add i64 %look, 1
  br i1 %busy, label %longer, label %done
longer:
  %long = icmp ugt i64 %look, {_LOOKS_BEFORE_YIELDING}
  br i1 %long, label %yield, label %rest
rest:
  call void @rest()
  br label %wait
yield:
  %yielded = call i32 @sched_yield()
  br label %wait
done:
  ret void
}}
"""


def pool_source(triple: str, stop_word: int) -> str:
    """The functions of the pool for the processors of a triple; `stop_word` of the state says that
    no further piece is to be taken."""
    found = [rest for name, rest in _RESTS.items() if triple.startswith(name)]
    declared, rest = found[0] if found else ("", "")
    resting = f"{declared}\ndefine internal void @rest() {{\n  {rest}\n  ret void\n}}\n"
    return _POOL.replace(_STOP_PLACE, str(8 * stop_word)) + resting


POOL_EXTERNAL = (
    "calloc", "free", "memcpy", "pthread_create", "pthread_join", "pthread_mutex_lock",
    "pthread_mutex_unlock", "pthread_cond_wait", "pthread_cond_broadcast", "pthread_cond_signal",
    "sched_yield",
    *(("sched_getcpu", "sched_getaffinity", "sched_setaffinity") if _ON_LINUX else ()),
)  # fmt: skip
