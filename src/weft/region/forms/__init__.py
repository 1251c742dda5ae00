"""Recognising forms of kernels for which plans and templates have something better."""
