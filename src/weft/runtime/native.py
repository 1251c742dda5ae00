"""The native executor and its thread pool, as LLVM IR compiled once per process.

    weft_pool_new(workers) -> pool              threads besides the caller's; they sleep when idle
    weft_pool_free(pool)
    weft_execute(steps, count, pool)            carries out a table of steps

A step is six 64-bit words: kernel, argument table, error word, pieces, pieces per grab, source of a
copy. A kernel is `void(ptr args, ptr error, i64 first, i64 last)`; its pieces are handed out by an
atomic counter, so any thread may run any piece and no result depends on how many threads there are.
A step without a kernel copies `pieces` bytes from its source to its argument table.

A worker waits for work by spinning for a moment and then on a condition variable. Two callers
cannot use one pool at a time: the second runs its kernels alone.
"""

from __future__ import annotations

STEP_WORDS = 6
_SPINS = 4000

# The pool: 0 generation, 8 workers, 16 pending, 24 next piece, 32 pieces, 40 grab, 48 kernel, 56
# args, 64 error, 72 stop, 80 busy, 88 sleepers, 128 mutex, 192 condition, 256 thread handles.
SOURCE = f"""
declare ptr @calloc(i64, i64)
declare void @free(ptr)
declare ptr @memcpy(ptr, ptr, i64)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)

define internal void @grab(ptr %pool) {{
entry:
  %next = getelementptr i8, ptr %pool, i64 24
  %pieces.at = getelementptr i8, ptr %pool, i64 32
  %grab.at = getelementptr i8, ptr %pool, i64 40
  %kernel.at = getelementptr i8, ptr %pool, i64 48
  %args.at = getelementptr i8, ptr %pool, i64 56
  %error.at = getelementptr i8, ptr %pool, i64 64
  %pieces = load i64, ptr %pieces.at
  %grab = load i64, ptr %grab.at
  %kernel = load ptr, ptr %kernel.at
  %args = load ptr, ptr %args.at
  %error = load ptr, ptr %error.at
  br label %again
again:
  %first = atomicrmw add ptr %next, i64 %grab monotonic
  %some = icmp slt i64 %first, %pieces
  br i1 %some, label %work, label %done
work:
  %end = add i64 %first, %grab
  %over = icmp sgt i64 %end, %pieces
  %last = select i1 %over, i64 %pieces, i64 %end
  call void %kernel(ptr %args, ptr %error, i64 %first, i64 %last)
  br label %again
done:
  ret void
}}

define internal ptr @worker(ptr %pool) {{
entry:
  %pending = getelementptr i8, ptr %pool, i64 16
  %stop.at = getelementptr i8, ptr %pool, i64 72
  %sleepers = getelementptr i8, ptr %pool, i64 88
  %mutex = getelementptr i8, ptr %pool, i64 128
  %cond = getelementptr i8, ptr %pool, i64 192
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
  call void @grab(ptr %pool)
  br label %finish
finish:
  %left = atomicrmw sub ptr %pending, i64 1 release
  br label %wait
leave:
  ret ptr null
}}

define internal void @announce(ptr %pool) {{
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
  %told = call i32 @pthread_cond_broadcast(ptr %cond)
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %done
done:
  ret void
}}

define ptr @weft_pool_new(i64 %workers) {{
entry:
  %handles = mul i64 %workers, 8
  %bytes = add i64 %handles, 256
  %pool = call ptr @calloc(i64 1, i64 %bytes)
  %workers.at = getelementptr i8, ptr %pool, i64 8
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %made ]
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
  call void @announce(ptr %pool)
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

define internal void @share(ptr %pool, ptr %kernel, ptr %args, ptr %error, i64 %pieces, i64 %grab)
{{ entry:
  %workers.at = getelementptr i8, ptr %pool, i64 8
  %pending = getelementptr i8, ptr %pool, i64 16
  %next = getelementptr i8, ptr %pool, i64 24
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
  store atomic i64 0, ptr %next monotonic, align 8
  store atomic i64 %workers, ptr %pending monotonic, align 8
  call void @announce(ptr %pool)
  call void @grab(ptr %pool)
  br label %wait
wait:
  %left = load atomic i64, ptr %pending acquire, align 8
  %busy = icmp ne i64 %left, 0
  br i1 %busy, label %wait, label %done
done:
  ret void
}}

define void @weft_execute(ptr %steps, i64 %count, ptr %pool) {{
entry:
  %none = icmp eq ptr %pool, null
  br i1 %none, label %head, label %try
try:
  %busy.at = getelementptr i8, ptr %pool, i64 80
  %taken = cmpxchg ptr %busy.at, i64 0, i64 1 acquire monotonic
  %mine = extractvalue {{ i64, i1 }} %taken, 1
  br label %head
head:
  %shared = phi i1 [ false, %entry ], [ %mine, %try ], [ %shared, %after ]
  %i = phi i64 [ 0, %entry ], [ 0, %try ], [ %next, %after ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %step, label %done
step:
  %offset = mul i64 %i, {STEP_WORDS * 8}
  %at = getelementptr i8, ptr %steps, i64 %offset
  %args.at = getelementptr i8, ptr %at, i64 8
  %error.at = getelementptr i8, ptr %at, i64 16
  %pieces.at = getelementptr i8, ptr %at, i64 24
  %grab.at = getelementptr i8, ptr %at, i64 32
  %source.at = getelementptr i8, ptr %at, i64 40
  %kernel = load ptr, ptr %at
  %args = load ptr, ptr %args.at
  %error = load ptr, ptr %error.at
  %pieces = load i64, ptr %pieces.at
  %grab = load i64, ptr %grab.at
  %is.copy = icmp eq ptr %kernel, null
  br i1 %is.copy, label %copy, label %launch
copy:
  %source = load ptr, ptr %source.at
  %copied = call ptr @memcpy(ptr %args, ptr %source, i64 %pieces)
  br label %after
launch:
  %many = icmp sgt i64 %pieces, %grab
  %parallel = and i1 %many, %shared
  br i1 %parallel, label %together, label %alone
together:
  call void @share(ptr %pool, ptr %kernel, ptr %args, ptr %error, i64 %pieces, i64 %grab)
  br label %after
alone:
  call void %kernel(ptr %args, ptr %error, i64 0, i64 %pieces)
  br label %after
after:
  %next = add i64 %i, 1
  br label %head
done:
  br i1 %shared, label %release, label %leave
release:
  %busy.out = getelementptr i8, ptr %pool, i64 80
  store atomic i64 0, ptr %busy.out release, align 8
  br label %leave
leave:
  ret void
}}
"""
SYMBOLS = ("weft_pool_new", "weft_pool_free", "weft_execute")
EXTERNAL = (
    "calloc", "free", "memcpy", "pthread_create", "pthread_join", "pthread_mutex_lock",
    "pthread_mutex_unlock", "pthread_cond_wait", "pthread_cond_broadcast",
)  # fmt: skip
"""The only symbols of the process that native code refers to."""
