"""What every op means, written a second time: plain NumPy on wide numbers, Python integers, index
arithmetic. Nothing here runs an op, the reference backend, or the arithmetic that they share; of
Weft only the list of dtypes is known."""
