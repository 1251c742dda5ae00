"""What tests share: inputs and oracles, programs and kernels, the GPU dialect's interpreter with
faults planted into its kernels, and other ways to run things."""
