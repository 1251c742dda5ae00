"""Fused attention kernels: scores and softmax weights stay in registers and shared memory."""
