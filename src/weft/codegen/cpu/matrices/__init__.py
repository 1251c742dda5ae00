"""LLVM code of matrix factorisations: `module` has what others call."""
