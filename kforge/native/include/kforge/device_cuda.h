/* The half of device.h that speaks CUDA, under NVRTC or nvcc. */
#ifndef KFORGE_DEVICE_CUDA_H
#define KFORGE_DEVICE_CUDA_H

#define KFORGE_DEVICE 1
#define KF_INLINE static __device__ __forceinline__
#define KF_CONSTEXPR __host__ __device__ constexpr
#define KF_KERNEL(most_threads) extern "C" __global__ void __launch_bounds__(most_threads)
#define KF_SHARED(type, name, count) __shared__ type name[count]
#define KF_WARP 32

#if defined(__CUDACC_RTC__) /* which has no <stdint.h> */
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif
#define __builtin_memcpy memcpy

namespace kf {

KF_INLINE uint32_t bits(float x) { return __float_as_uint(x); }
KF_INLINE float from_bits(uint32_t u) { return __uint_as_float(u); }
KF_INLINE float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
KF_INLINE float sqrt(float x) { return __fsqrt_rn(x); }

KF_INLINE int32_t thread() { return static_cast<int32_t>(threadIdx.x); }
KF_INLINE int32_t group_x() { return static_cast<int32_t>(blockIdx.x); }
KF_INLINE int32_t group_y() { return static_cast<int32_t>(blockIdx.y); }
KF_INLINE int32_t group_z() { return static_cast<int32_t>(blockIdx.z); }
KF_INLINE int32_t groups_z() { return static_cast<int32_t>(gridDim.z); }

KF_INLINE void sync() { __syncthreads(); }
KF_INLINE uint32_t exchange(uint32_t v, int32_t lane) { return __shfl_sync(0xffffffffu, v, lane); }
KF_INLINE int32_t dot4(uint32_t a, uint32_t b, int32_t c) {
    return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
}

}  // namespace kf

#endif
