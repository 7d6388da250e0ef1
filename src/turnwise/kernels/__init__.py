"""Fused implementations: streaming code for CPUs and Triton kernels for GPUs."""
