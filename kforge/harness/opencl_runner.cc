// kforge-opencl-runner: the zygote of runner.cc for kernels that run on an OpenCL device which shares this machine's memory.
//
// The zygote never opens the device: a driver's threads do not survive a fork. Its current folder must be an empty one of its own.
#define KFORGE_OPENCL
#include "runner.cc"
