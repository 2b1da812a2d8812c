// kforge-opencl-executor: executor.cc with an OpenCL device beside the team. Its current folder must be an empty one of its own.
#define KFORGE_OPENCL
#include "executor.cc"
