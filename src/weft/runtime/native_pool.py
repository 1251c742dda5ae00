"""The thread pool of the native executor, as LLVM IR.

A launch says how many threads it is for, the caller being the first of them: a short kernel is done
sooner by few. Workers that are not asked for do not touch what the others write. A worker waits for
work by spinning for a moment and then on a condition variable of its own. A launch is open for a
while: workers that come meanwhile take part, and its caller, when no piece is left to take, closes
it and waits for those inside. A worker that the system did not run in time, because threads of
other libraries or processes hold its processor, is so not waited for: the others do its share.
Two callers cannot use one pool at a time: the second runs its kernels alone.

To wake a thread takes its waker microseconds. So the caller wakes a few, each of those a few
others, and a launch that is over before they come wakes nobody.

Where the scheduler wakes a worker on the caller's own processor, as seen on a virtual machine after
a pause, the worker moves away from it: it forbids itself that processor and at once allows it
again. Else the two would take turns on one of them.
"""

from __future__ import annotations

import sys

_SPINS = 20_000
"""How often a worker looks for work before it sleeps: a look with its pause takes 20 to 60 ns on
x86-64, so that it sleeps after half a millisecond to one. Python takes up to two tenths between two
calls when a kernel has emptied its caches; a sleeper costs the next call as much again (16 threads,
calls 0.15 ms apart: a layer norm takes 94 us where workers that slept after 0.1 ms made it 127)."""
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

_WOKEN = 4
"""Threads that one thread wakes."""
_TAKEN_BITS = 20
"""Of a counter, those that say how many grabs of a share are taken; the others say of which launch,
so that a counter from an earlier one counts as nothing taken, and nobody has to clear it."""

# The pool lies at a multiple of 128 bytes, and so does each thread's part after its head:
# processors fetch two lines of a cache together.
#
# What a launch says: 0 its word, 8 kernel, 16 args, 24 error, 32 pieces, 40 grab, 48 state, 56 the
# caller's processor. Then 128 workers, 136 workers that have begun, 144 stop, 152 sleepers, 160 the
# memory to free, 168 where thread handles are, 192 busy.
_OPEN, _WAKES = 1, 2
_THREADS_SHIFT, _NUMBER_SHIFT = 2, 17
"""The word of a launch: its number, how many threads it is for, whether it is worth waking them,
and whether it is open."""
_ALL_THREADS = (1 << _NUMBER_SHIFT - _THREADS_SHIFT) - 1
_LINES_BYTES = 128
_HEAD_BYTES = 256
# A thread's: 0 how many grabs of its share are taken, 128 whether it is inside, 192 whether it
# sleeps, 200 condition, 256 mutex.
_THREAD_BYTES = 384
WORKERS_AT, SLEEPERS_AT, BUSY_AT = 128, 152, 192
"""Where a pool says how many workers it has, how many of them sleep, and whether it is in use."""

_PLACES_OF_LINUX = f"""
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)

define internal void @note_place(ptr %pool) {{
entry:
  %place.at = getelementptr i8, ptr %pool, i64 56
  %place = call i32 @sched_getcpu()
  store i32 %place, ptr %place.at
  ret void
}}

define internal void @move_away(ptr %pool) {{
entry:
  %allowed = alloca [{_AFFINITY_BYTES} x i8], align 8
  %others = alloca [{_AFFINITY_BYTES} x i8], align 8
  %place.at = getelementptr i8, ptr %pool, i64 56
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

# How caller and workers do without a lock. Pieces. `grab` takes one grab of pieces by a
# compare-and-swap of a share's counter. The counter has the launch's number above the count: one
# that is left from an earlier launch does not have this number and counts as nothing taken, so a
# launch begins without writing to any of them. Shares begin at thread * grabs / threads, rounded
# down: they differ by one grab at most, and thread t has the same one in every launch of as many
# grabs for as many threads. The end. A worker writes `inside` and then reads the launch's word; the
# caller closes the word and then reads `inside`. All four are sequentially consistent, so at least
# one of them sees what the other wrote: either the worker finds the launch closed and does not
# touch it, or the caller waits for it. Sleep. A worker writes `asleep` and counts itself, and then
# reads the word, all while it holds its mutex; whoever opens a launch writes the word and then
# reads the count and `asleep`. Again one of them sees the other. A waker that sees `asleep` takes
# the mutex once before it signals: by then the worker either waits for the signal or has seen the
# word. Waking. Thread t wakes those from 4 t + 1 to 4 t + 4: each thread has one waker, and the
# last of n comes after log n of them.
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
declare i32 @pthread_cond_signal(ptr)
declare i32 @sched_yield()

define internal ptr @part_of(ptr %pool, i64 %thread) {{
  %offset = mul i64 %thread, {_THREAD_BYTES}
  %from = add i64 %offset, {_HEAD_BYTES}
  %part = getelementptr i8, ptr %pool, i64 %from
  ret ptr %part
}}

define internal i64 @threads_of(i64 %word) {{
  %moved = lshr i64 %word, {_THREADS_SHIFT}
  %threads = and i64 %moved, {_ALL_THREADS}
  ret i64 %threads
}}

define internal i64 @share_start(i64 %thread, i64 %threads, i64 %grabs) {{
  %product = mul i64 %thread, %grabs
  %start = udiv i64 %product, %threads
  ret i64 %start
}}

define internal void @grab(ptr %pool, i64 %own, i64 %word) {{
entry:
  %kernel.at = getelementptr i8, ptr %pool, i64 8
  %args.at = getelementptr i8, ptr %pool, i64 16
  %error.at = getelementptr i8, ptr %pool, i64 24
  %pieces.at = getelementptr i8, ptr %pool, i64 32
  %grab.at = getelementptr i8, ptr %pool, i64 40
  %state.at = getelementptr i8, ptr %pool, i64 48
  %kernel = load ptr, ptr %kernel.at
  %args = load ptr, ptr %args.at
  %error = load ptr, ptr %error.at
  %pieces = load i64, ptr %pieces.at
  %grab = load i64, ptr %grab.at
  %state = load ptr, ptr %state.at
  %halt.at = getelementptr i8, ptr %state, i64 {_STOP_PLACE}
  %threads = call i64 @threads_of(i64 %word)
  %number = lshr i64 %word, {_NUMBER_SHIFT}
  %none.taken = shl i64 %number, {_TAKEN_BITS}
  %launch = lshr i64 %none.taken, {_TAKEN_BITS}
  %filled = add i64 %pieces, %grab
  %rounded = sub i64 %filled, 1
  %grabs = udiv i64 %rounded, %grab
  %own.start = call i64 @share_start(i64 %own, i64 %threads, i64 %grabs)
  br label %share
share:
  %visited = phi i64 [ 0, %entry ], [ %visited.next, %onward ]
  %thread = phi i64 [ %own, %entry ], [ %thread.next, %onward ]
  %start = phi i64 [ %own.start, %entry ], [ %start.next, %onward ]
  %beyond = icmp uge i64 %visited, %threads
  br i1 %beyond, label %done, label %open
open:
  %after = add i64 %thread, 1
  %stop = call i64 @share_start(i64 %after, i64 %threads, i64 %grabs)
  %size = sub i64 %stop, %start
  %counter = call ptr @part_of(ptr %pool, i64 %thread)
  br label %again
again:
  %halt = load atomic i64, ptr %halt.at monotonic, align 8
  %going = icmp eq i64 %halt, 0
  br i1 %going, label %look, label %done
look:
  %counted = load atomic i64, ptr %counter monotonic, align 8
  br label %try
try:
  %seen = phi i64 [ %counted, %look ], [ %found, %take ]
  %seen.launch = lshr i64 %seen, {_TAKEN_BITS}
  %this = icmp eq i64 %seen.launch, %launch
  %from = select i1 %this, i64 %seen, i64 %none.taken
  %taken = sub i64 %from, %none.taken
  %some = icmp ult i64 %taken, %size
  br i1 %some, label %take, label %onward
take:
  %counting = add i64 %from, 1
  %swapped = cmpxchg ptr %counter, i64 %seen, i64 %counting monotonic monotonic
  %found = extractvalue {{ i64, i1 }} %swapped, 0
  %got = extractvalue {{ i64, i1 }} %swapped, 1
  br i1 %got, label %work, label %try
work:
  %place = add i64 %start, %taken
  %first = mul i64 %place, %grab
  %end = add i64 %first, %grab
  %over = icmp sgt i64 %end, %pieces
  %last = select i1 %over, i64 %pieces, i64 %end
  call void %kernel(ptr %args, ptr %error, i64 %first, i64 %last)
  br label %again
onward:
  %visited.next = add i64 %visited, 1
  %around = icmp eq i64 %after, %threads
  %thread.next = select i1 %around, i64 0, i64 %after
  %start.next = select i1 %around, i64 0, i64 %stop
  br label %share
done:
  ret void
}}

define internal i1 @calls(i64 %own, i64 %word, i64 %seen) {{
  %other = icmp ne i64 %word, %seen
  %bit = and i64 %word, {_OPEN}
  %open = icmp ne i64 %bit, 0
  %threads = call i64 @threads_of(i64 %word)
  %asked = icmp ult i64 %own, %threads
  %fresh = and i1 %other, %open
  %called = and i1 %fresh, %asked
  ret i1 %called
}}

define internal ptr @worker(ptr %pool) {{
entry:
  %begun = getelementptr i8, ptr %pool, i64 136
  %stop.at = getelementptr i8, ptr %pool, i64 144
  %sleepers = getelementptr i8, ptr %pool, i64 {SLEEPERS_AT}
  %before = atomicrmw add ptr %begun, i64 1 monotonic
  %own = add i64 %before, 1
  %part = call ptr @part_of(ptr %pool, i64 %own)
  %inside = getelementptr i8, ptr %part, i64 128
  %asleep = getelementptr i8, ptr %part, i64 192
  %cond = getelementptr i8, ptr %part, i64 200
  %mutex = getelementptr i8, ptr %part, i64 256
  br label %wait
wait:
  %seen = phi i64 [ 0, %entry ], [ %now, %finish ]
  br label %spin
spin:
  %turn = phi i64 [ 0, %wait ], [ %turn.next, %spin.more ]
  %word = load atomic i64, ptr %pool acquire, align 8
  %called = call i1 @calls(i64 %own, i64 %word, i64 %seen)
  br i1 %called, label %awake, label %spin.more
spin.more:
  %turn.next = add i64 %turn, 1
  call void @rest()
  %tired = icmp sgt i64 %turn.next, {_SPINS}
  br i1 %tired, label %sleep, label %spin
sleep:
  %locked = call i32 @pthread_mutex_lock(ptr %mutex)
  store atomic i64 1, ptr %asleep seq_cst, align 8
  %more = atomicrmw add ptr %sleepers, i64 1 seq_cst
  br label %check
check:
  %word.asleep = load atomic i64, ptr %pool seq_cst, align 8
  %ready = call i1 @calls(i64 %own, i64 %word.asleep, i64 %seen)
  br i1 %ready, label %rise, label %doze
doze:
  %waited = call i32 @pthread_cond_wait(ptr %cond, ptr %mutex)
  br label %check
rise:
  %fewer = atomicrmw sub ptr %sleepers, i64 1 seq_cst
  store atomic i64 0, ptr %asleep seq_cst, align 8
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %awake
awake:
  %stop = load atomic i64, ptr %stop.at acquire, align 8
  %ending = icmp ne i64 %stop, 0
  br i1 %ending, label %leave, label %enter
enter:
  ; Whoever has come inside before a launch is closed is waited for: one of the two sees the other.
  %outside = atomicrmw xchg ptr %inside, i64 1 seq_cst
  %now = load atomic i64, ptr %pool seq_cst, align 8
  %welcome = call i1 @calls(i64 %own, i64 %now, i64 %seen)
  br i1 %welcome, label %take.part, label %finish
take.part:
  call void @wake(ptr %pool, i64 %own, i64 %now)
  call void @move_away(ptr %pool)
  call void @grab(ptr %pool, i64 %own, i64 %now)
  br label %finish
finish:
  store atomic i64 0, ptr %inside release, align 8
  br label %wait
leave:
  ret ptr null
}}

define internal void @wake(ptr %pool, i64 %own, i64 %word) {{
entry:
  %bit = and i64 %word, {_WAKES}
  %worth = icmp ne i64 %bit, 0
  br i1 %worth, label %ask, label %done
ask:
  %sleepers = getelementptr i8, ptr %pool, i64 {SLEEPERS_AT}
  %asleep.count = load atomic i64, ptr %sleepers seq_cst, align 8
  %any = icmp ne i64 %asleep.count, 0
  br i1 %any, label %begin, label %done
begin:
  %threads = call i64 @threads_of(i64 %word)
  %before = mul i64 %own, {_WOKEN}
  %first = add i64 %before, 1
  %end = add i64 %before, {_WOKEN + 1}
  br label %head
head:
  %thread = phi i64 [ %first, %begin ], [ %thread.next, %onward ]
  %thread.next = add i64 %thread, 1
  %in.turn = icmp ult i64 %thread, %end
  %asked = icmp ult i64 %thread, %threads
  %more = and i1 %in.turn, %asked
  br i1 %more, label %look, label %done
look:
  %part = call ptr @part_of(ptr %pool, i64 %thread)
  %asleep = getelementptr i8, ptr %part, i64 192
  %flag = load atomic i64, ptr %asleep seq_cst, align 8
  %sleeps = icmp ne i64 %flag, 0
  br i1 %sleeps, label %call, label %onward
call:
  %cond = getelementptr i8, ptr %part, i64 200
  %mutex = getelementptr i8, ptr %part, i64 256
  %locked = call i32 @pthread_mutex_lock(ptr %mutex)
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  %told = call i32 @pthread_cond_signal(ptr %cond)
  br label %onward
onward:
  br label %head
done:
  ret void
}}

define ptr @weft_pool_new(i64 %workers) {{
entry:
  %threads = add i64 %workers, 1
  %parts.bytes = mul i64 %threads, {_THREAD_BYTES}
  %handles.bytes = mul i64 %workers, 8
  %handles.from = add i64 %parts.bytes, {_HEAD_BYTES}
  %used = add i64 %handles.from, %handles.bytes
  %bytes = add i64 %used, {_LINES_BYTES}
  %memory = call ptr @calloc(i64 1, i64 %bytes)
  %lacking = icmp eq ptr %memory, null
  br i1 %lacking, label %none, label %begin
none:
  ret ptr null
begin:
  %place = ptrtoint ptr %memory to i64
  %filled = add i64 %place, {_LINES_BYTES - 1}
  %aligned = and i64 %filled, {-_LINES_BYTES}
  %pool = inttoptr i64 %aligned to ptr
  %memory.at = getelementptr i8, ptr %pool, i64 160
  store ptr %memory, ptr %memory.at
  %handles = getelementptr i8, ptr %pool, i64 %handles.from
  %handles.at = getelementptr i8, ptr %pool, i64 168
  store ptr %handles, ptr %handles.at
  %workers.at = getelementptr i8, ptr %pool, i64 {WORKERS_AT}
  br label %head
head:
  %i = phi i64 [ 0, %begin ], [ %next, %made ]
  %more = icmp slt i64 %i, %workers
  br i1 %more, label %make, label %done
make:
  %offset = mul i64 %i, 8
  %handle = getelementptr i8, ptr %handles, i64 %offset
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
  %workers.at = getelementptr i8, ptr %pool, i64 {WORKERS_AT}
  %stop.at = getelementptr i8, ptr %pool, i64 144
  %memory.at = getelementptr i8, ptr %pool, i64 160
  %handles.at = getelementptr i8, ptr %pool, i64 168
  %workers = load i64, ptr %workers.at
  %memory = load ptr, ptr %memory.at
  %handles = load ptr, ptr %handles.at
  store atomic i64 1, ptr %stop.at seq_cst, align 8
  %last = load atomic i64, ptr %pool monotonic, align 8
  %called = or i64 %last, {_ALL_THREADS << _THREADS_SHIFT | _OPEN}
  %ending = add i64 %called, {1 << _NUMBER_SHIFT}
  store atomic i64 %ending, ptr %pool seq_cst, align 8
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %thread, %join ]
  %more = icmp slt i64 %i, %workers
  br i1 %more, label %join, label %done
join:
  %thread = add i64 %i, 1
  %part = call ptr @part_of(ptr %pool, i64 %thread)
  %cond = getelementptr i8, ptr %part, i64 200
  %mutex = getelementptr i8, ptr %part, i64 256
  %locked = call i32 @pthread_mutex_lock(ptr %mutex)
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  %told = call i32 @pthread_cond_signal(ptr %cond)
  %offset = mul i64 %i, 8
  %handle.at = getelementptr i8, ptr %handles, i64 %offset
  %handle = load i64, ptr %handle.at
  %joined = call i32 @pthread_join(i64 %handle, ptr null)
  br label %head
done:
  call void @free(ptr %memory)
  ret void
}}

define internal void @share(ptr %pool, ptr %state, ptr %kernel, ptr %args, ptr %error, i64 %pieces,
                            i64 %wanted.grab, i64 %wanted.threads, i64 %wakes)
{{ entry:
  %kernel.at = getelementptr i8, ptr %pool, i64 8
  %args.at = getelementptr i8, ptr %pool, i64 16
  %error.at = getelementptr i8, ptr %pool, i64 24
  %pieces.at = getelementptr i8, ptr %pool, i64 32
  %grab.at = getelementptr i8, ptr %pool, i64 40
  %state.at = getelementptr i8, ptr %pool, i64 48
  %workers.at = getelementptr i8, ptr %pool, i64 {WORKERS_AT}
  %workers = load i64, ptr %workers.at
  %most.threads = add i64 %workers, 1
  %fewer = icmp ult i64 %wanted.threads, %most.threads
  %threads = select i1 %fewer, i64 %wanted.threads, i64 %most.threads
  ; A counter has room for so many grabs, and no more.
  %least.before = lshr i64 %pieces, {_TAKEN_BITS - 1}
  %least.grab = add i64 %least.before, 1
  %enough = icmp ugt i64 %wanted.grab, %least.grab
  %grab = select i1 %enough, i64 %wanted.grab, i64 %least.grab
  store ptr %kernel, ptr %kernel.at
  store ptr %args, ptr %args.at
  store ptr %error, ptr %error.at
  store i64 %pieces, ptr %pieces.at
  store i64 %grab, ptr %grab.at
  store ptr %state, ptr %state.at
  call void @note_place(ptr %pool)
  %old = load atomic i64, ptr %pool monotonic, align 8
  %number.old = lshr i64 %old, {_NUMBER_SHIFT}
  %number = add i64 %number.old, 1
  %high = shl i64 %number, {_NUMBER_SHIFT}
  %middle = shl i64 %threads, {_THREADS_SHIFT}
  %worth = icmp ne i64 %wakes, 0
  %low = select i1 %worth, i64 {_WAKES}, i64 0
  %high.middle = or i64 %high, %middle
  %closed.word = or i64 %high.middle, %low
  %word = or i64 %closed.word, {_OPEN}
  %before = atomicrmw xchg ptr %pool, i64 %word seq_cst
  call void @wake(ptr %pool, i64 0, i64 %word)
  call void @grab(ptr %pool, i64 0, i64 %word)
  %opened = atomicrmw xchg ptr %pool, i64 %closed.word seq_cst
  br label %each
each:
  %thread = phi i64 [ 1, %entry ], [ %thread.next, %out ]
  %thread.next = add i64 %thread, 1
  %more = icmp ult i64 %thread, %threads
  br i1 %more, label %part, label %done
part:
  %of = call ptr @part_of(ptr %pool, i64 %thread)
  %inside = getelementptr i8, ptr %of, i64 128
  br label %wait
wait:
  %look = phi i64 [ 0, %part ], [ %look.next, %rest ], [ %look.next, %yield ]
  %left = load atomic i64, ptr %inside seq_cst, align 8
  %busy = icmp ne i64 %left, 0
  %look.next = add i64 %look, 1
  br i1 %busy, label %longer, label %out
longer:
  %long = icmp ugt i64 %look, {_LOOKS_BEFORE_YIELDING}
  br i1 %long, label %yield, label %rest
rest:
  call void @rest()
  br label %wait
yield:
  %yielded = call i32 @sched_yield()
  br label %wait
out:
  br label %each
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
    "pthread_mutex_unlock", "pthread_cond_wait", "pthread_cond_signal",
    "sched_yield",
    *(("sched_getcpu", "sched_getaffinity", "sched_setaffinity") if _ON_LINUX else ()),
)  # fmt: skip
