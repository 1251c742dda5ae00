"""Recognising the forms of kernels that have plans and templates of their own."""
