"""The GPU dialect: what the threads of one block do, as data from which CUDA C is printed.

    Kernel = grid, threads, buffers, maps [TensorMap], tiles [SharedTile], barriers [Barriers],
             tables, workspace, body
    Stmt   = Let | Set | TakeSet | Registers | For | If | Roles(case, ...)           control
           | LoadElement | StShared | CountShared | LoadShared | LoadSharedVector      elements
           | LoadStaged | DrawBits | Epilogue | StGlobalVec | StGlobalRow
           | statements on single values (`values.py`)                               map, row
           | CpAsync | Gather | CommitGroup | WaitGroup | LdMatrix | LdRegister
           | PackPair | PackSmall | PackSigned | ScalePair | MmaSync                 SM80
           | MbarrierInit | MbarrierInitFence | MbarrierExpectTx | MbarrierArrive | MbarrierWait
           | PrefetchMap | TmaLoad | BulkLoad | TmaStore | TmaCommit | TmaWaitRead | ProxyFence
           | Descriptor | WgmmaFence | Wgmma | WgmmaCommit | WgmmaWait
           | StMatrix | SetMaxNReg                                                   SM90
           | NamedBarrier | SyncThreads | SyncWarp | AddRegisters                    both
           | ClusterArrive | ClusterWait | StCluster | SendCluster                   clusters
           | AdmitNext | AwaitPrevious                                               chains
           | RowMax | RowSum | RowExp | RowScale                                       softmax
           | AddShifted | PoolPairs                                                  pools
           | KeepSums | AddSums | GatherSums | AwaitTurn | PassTurn | CountOff       parts of sums

Semantics. Every statement is executed by all threads that reach it, each with its own variables
and register arrays; `Roles` sends ranges of warps (whole warpgroups) to different bodies. Shared
memory is one array of bytes: a `SharedTile` is a range of it, and addresses are a tile plus a byte
offset. Register arrays are indexed by numbers: they stay in registers.

Asynchronous statements take effect late, between their issue and the wait that covers them:
`TmaLoad` writes its box (zeros outside the tensor), `BulkLoad` its elements, and then each counts
its bytes on its barrier;
`Wgmma` reads its operands and updates its accumulators by the `WgmmaWait` that covers its group;
`CpAsync` writes by the `WaitGroup` that covers its group; `TmaStore` reads by the `TmaWaitRead`
that covers its group. What an asynchronous statement reads must be written before (with a
`ProxyFence` where plain stores wrote it) and not overwritten until then; what a `BulkLoad` writes
must have been read before, with a `ProxyFence` behind each `LoadStaged`.

Blocks of a cluster run side by side. `StCluster` writes into another block's shared memory; what
was written before a `ClusterArrive` is there after the `ClusterWait` that follows in that block.
`SendCluster` writes there too, late, and then counts its bytes on a barrier of that block: nobody
waits for stores to memory meanwhile.

A kernel with an `AwaitPrevious` may be launched while the kernels before it still run: it touches
no memory that others can see before it has waited for them.

Blocks that make parts of one sum hand it on through the workspace, in an order that is the same in
every run. Words of it are read by whoever has waited for the counter, or counted off, after those
that wrote them.

A kernel of several sets of buffers does the same with each of them, as one launch. `TakeSet` says
which one a block works on; no memory is touched before it, and the buffers that statements name are
those of that set.

A barrier has a phase, which completes when all arrivals have come and all announced bytes have been
counted; `MbarrierWait(parity)` passes when the phase of that parity is complete. Waiting for a
phase more than one ahead passes by mistake: templates never do it, and the interpreter checks.
"""

from __future__ import annotations

from weft.codegen.gpu.ir.copies import (
    BulkLoad,
    CommitGroup,
    CpAsync,
    Gather,
    MbarrierArrive,
    MbarrierExpectTx,
    MbarrierInit,
    MbarrierInitFence,
    MbarrierWait,
    PrefetchMap,
    ProxyFence,
    TmaCommit,
    TmaLoad,
    TmaStore,
    TmaWaitRead,
    WaitGroup,
)
from weft.codegen.gpu.ir.elements import (
    BitElements,
    CountShared,
    DrawBits,
    ElementSource,
    Epilogue,
    Fragment,
    GlobalElements,
    IndexElements,
    LoadElement,
    LoadShared,
    LoadSharedVector,
    LoadStaged,
    RandomElements,
    RegisterElements,
    RowValues,
    SharedColumns,
    SharedStmt,
    StagedElements,
    StGlobalRow,
    StGlobalVec,
    StShared,
    StSharedVec,
)
from weft.codegen.gpu.ir.frame import (
    Address,
    BarrierAt,
    Barriers,
    RegAt,
    RegisterKind,
    SharedTile,
    Table,
    TensorMap,
    Window,
    Workspace,
)
from weft.codegen.gpu.ir.kernel import (
    For,
    If,
    Kernel,
    Let,
    Registers,
    Role,
    Roles,
    Set,
    Sm80Stmt,
    Sm90Stmt,
    Stmt,
    TakeSet,
    walk,
)
from weft.codegen.gpu.ir.matrix import (
    AddRegisters,
    Descriptor,
    LdMatrix,
    LdRegister,
    MmaSync,
    PackPair,
    PackSigned,
    PackSmall,
    ScalePair,
    SetMaxNReg,
    StMatrix,
    Wgmma,
    WgmmaCommit,
    WgmmaFence,
    WgmmaOperand,
    WgmmaWait,
)
from weft.codegen.gpu.ir.partial_sums import (
    AddSums,
    AwaitTurn,
    CountOff,
    GatherSums,
    KeepSums,
    PartStmt,
    PassTurn,
)
from weft.codegen.gpu.ir.rows import (
    AddShifted,
    PoolPairs,
    RowExp,
    RowMax,
    RowScale,
    RowStmt,
    RowSum,
)
from weft.codegen.gpu.ir.synchronisation import (
    AdmitNext,
    AwaitPrevious,
    ChainStmt,
    ClusterArrive,
    ClusterStmt,
    ClusterWait,
    NamedBarrier,
    SendCluster,
    StCluster,
    SyncThreads,
    SyncWarp,
)

__all__ = [
    "AddRegisters",
    "AddShifted",
    "AddSums",
    "Address",
    "AdmitNext",
    "AwaitPrevious",
    "AwaitTurn",
    "BarrierAt",
    "Barriers",
    "BitElements",
    "BulkLoad",
    "ChainStmt",
    "ClusterArrive",
    "ClusterStmt",
    "ClusterWait",
    "CommitGroup",
    "CountOff",
    "CountShared",
    "CpAsync",
    "Descriptor",
    "DrawBits",
    "ElementSource",
    "Epilogue",
    "For",
    "Fragment",
    "Gather",
    "GatherSums",
    "GlobalElements",
    "If",
    "IndexElements",
    "KeepSums",
    "Kernel",
    "LdMatrix",
    "LdRegister",
    "Let",
    "LoadElement",
    "LoadShared",
    "LoadSharedVector",
    "LoadStaged",
    "MbarrierArrive",
    "MbarrierExpectTx",
    "MbarrierInit",
    "MbarrierInitFence",
    "MbarrierWait",
    "MmaSync",
    "NamedBarrier",
    "PackPair",
    "PackSigned",
    "PackSmall",
    "PartStmt",
    "PassTurn",
    "PoolPairs",
    "PrefetchMap",
    "ProxyFence",
    "RandomElements",
    "RegAt",
    "RegisterElements",
    "RegisterKind",
    "Registers",
    "Role",
    "Roles",
    "RowExp",
    "RowMax",
    "RowScale",
    "RowStmt",
    "RowSum",
    "RowValues",
    "ScalePair",
    "SendCluster",
    "Set",
    "SetMaxNReg",
    "SharedColumns",
    "SharedStmt",
    "SharedTile",
    "Sm80Stmt",
    "Sm90Stmt",
    "StCluster",
    "StGlobalRow",
    "StGlobalVec",
    "StMatrix",
    "StShared",
    "StSharedVec",
    "StagedElements",
    "Stmt",
    "SyncThreads",
    "SyncWarp",
    "Table",
    "TakeSet",
    "TensorMap",
    "TmaCommit",
    "TmaLoad",
    "TmaStore",
    "TmaWaitRead",
    "WaitGroup",
    "Wgmma",
    "WgmmaCommit",
    "WgmmaFence",
    "WgmmaOperand",
    "WgmmaWait",
    "Window",
    "Workspace",
    "walk",
]
