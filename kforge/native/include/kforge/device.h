/* What a kernel of a GPU is written in: one source for CUDA, for HIP, and for the CPU that checks it (fibers.h).
 *
 *   KF_KERNEL(256) scale(const float *x, float *out, int32_t T) { ... }     an entry, of at most 256 threads a group
 *   KF_SHARED(float, sums, 16);                                            float *sums: shared by a group; undefined at first
 *   kf::thread(), kf::group_x(), _y, _z, kf::groups_z()                    groups are one-dimensional
 *   kf::sync()                                                             all threads of a group, all of them
 *   kf::shuffle(v, lane), kf::shuffle_xor(v, mask)                         all lanes of a warp of KF_WARP, all of them
 *   kf::dot4(a, b, c)                                                      c + the sum of four products of signed bytes
 *
 * and kforge/math.h.  Every operation rounds once, as IEEE has it, and nothing is contracted or flushed: a kernel that keeps an
 * order specification returns the same bits on every GPU and under the check.  Name constants by enumerators: of constexpr
 * variables NVRTC makes variables in the device's memory, which are refused.
 */
#ifndef KFORGE_DEVICE_H
#define KFORGE_DEVICE_H

#if defined(KF_FIBERS)
#include "kforge/fibers.h"
#elif defined(__HIP__)
#include "kforge/device_hip.h"
#else
#include "kforge/device_cuda.h"
#endif

#include "kforge/math.h"

namespace kf {

KF_INLINE int32_t smaller(int32_t a, int32_t b) { return b < a ? b : a; }
KF_INLINE int32_t larger(int32_t a, int32_t b) { return a < b ? b : a; }
KF_INLINE uint32_t larger(uint32_t a, uint32_t b) { return a < b ? b : a; }
KF_INLINE float larger(float a, float b) { return a < b ? b : a; } /* a where one is NaN */

/* What lane `lane` of the warp gives, and the lane whose number differs in the bits of `mask`. */
KF_INLINE float shuffle(float v, int32_t lane) { return from_bits(exchange(bits(v), lane)); }
KF_INLINE uint32_t shuffle_xor(uint32_t v, int32_t mask) { return exchange(v, (thread() ^ mask) & (KF_WARP - 1)); }
KF_INLINE int32_t shuffle_xor(int32_t v, int32_t mask) {
    return static_cast<int32_t>(shuffle_xor(static_cast<uint32_t>(v), mask));
}
KF_INLINE float shuffle_xor(float v, int32_t mask) { return from_bits(shuffle_xor(bits(v), mask)); }

/* Four consecutive bytes at an address that is a multiple of four. */
KF_INLINE uint32_t load_word(const void *p) { return *static_cast<const uint32_t *>(p); }

/* An element of a cache or weight as float32: exact. */
KF_INLINE float widen(const float *p) { return *p; }
KF_INLINE float widen(const int8_t *p) { return static_cast<float>(*p); }

}  // namespace kf

#endif
