/* What the build puts ahead of every kernel source, once compiled: parsing the intrinsics costs more than most kernels. */
#ifndef KFORGE_PRELUDE_H
#define KFORGE_PRELUDE_H

#include "freestanding.h"

#include "abi.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#endif
