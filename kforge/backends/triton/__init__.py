"""Triton ahead of time: for NVIDIA and AMD GPUs that need not be here, checked by Triton's interpreter."""
