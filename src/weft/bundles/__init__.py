"""Ahead-of-time bundles: a folder with a compiled model, its weights, and all that C, C++ and
Python need to run it without Weft's compiler.

    build.py      weft.build: a model, its compiled programs, and the files of a bundle
    model.py      what is built: a program, with its weights and states by name
    versions.py   the compiled programs of a model, one or a shape set of them
    variants.py   the same for each target of a bundle, of which a machine runs the best that it can
    c_source.py   a compiled program as tables in C; c/ has the runtime that plays its steps
    cubins.py     the machine code of GPUs, and how its kernels are launched
    library.py    object code to a shared library and an archive
    load.py       weft.load_bundle, which needs NumPy alone; wheel.py packs it without the compiler
"""
