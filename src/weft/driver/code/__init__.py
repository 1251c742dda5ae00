"""Machine code of planned kernels: a generator and a linker for each kind of target."""
