"""Building kernels: from blocks of Poly-View to axes and a body."""
