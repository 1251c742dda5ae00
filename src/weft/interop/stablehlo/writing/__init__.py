"""PTIR into StableHLO: one file for each family of ops, and the walk that uses them.

What is written is MLIR's generic form, which has one syntax for all operations; the face of the
package hands it to MLIR, which verifies it and prints it as people know it.
"""
