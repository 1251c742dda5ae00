"""The array namespace: the functions of the Python array API standard, on tensors.

One file per category of the standard. Every function is captured as PTIR instructions, and is a
method of `Tensor` too where its first argument is one. What a result's shape depends on (`nonzero`,
`unique_values`, a boolean mask) is read.
"""
