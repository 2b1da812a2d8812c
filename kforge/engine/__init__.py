"""The reference decoding engine: control in Python, data in programs of registry kernels."""
