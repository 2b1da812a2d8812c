"""The backend ``opencl``: kernels in OpenCL C for a device that shares this machine's memory."""
