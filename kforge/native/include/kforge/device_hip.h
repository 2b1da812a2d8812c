/* The half of device.h that speaks HIP: clang alone, without AMD's headers and libraries. */
#ifndef KFORGE_DEVICE_HIP_H
#define KFORGE_DEVICE_HIP_H

#define KFORGE_DEVICE 1
#define __device__ __attribute__((device))
#define KF_INLINE static __device__ inline __attribute__((always_inline, unused))
#define KF_CONSTEXPR constexpr
#define KF_KERNEL(most_threads) \
    extern "C" __attribute__((global)) void __attribute__((amdgpu_flat_work_group_size(1, most_threads)))
#define KF_SHARED(type, name, count) __attribute__((shared)) type name[count]
#if defined(__GFX9__)
#define KF_WARP 64
#else
#define KF_WARP 32
#endif

typedef __INT8_TYPE__ int8_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __INT16_TYPE__ int16_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __INT32_TYPE__ int32_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT64_TYPE__ uint64_t;

namespace kf {

KF_INLINE uint32_t bits(float x) { return __builtin_bit_cast(uint32_t, x); }
KF_INLINE float from_bits(uint32_t u) { return __builtin_bit_cast(float, u); }
KF_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
KF_INLINE float sqrt(float x) { return __builtin_sqrtf(x); }

KF_INLINE int32_t thread() { return static_cast<int32_t>(__builtin_amdgcn_workitem_id_x()); }
KF_INLINE int32_t group_x() { return static_cast<int32_t>(__builtin_amdgcn_workgroup_id_x()); }
KF_INLINE int32_t group_y() { return static_cast<int32_t>(__builtin_amdgcn_workgroup_id_y()); }
KF_INLINE int32_t group_z() { return static_cast<int32_t>(__builtin_amdgcn_workgroup_id_z()); }
/* The packet counts work-items, of which a group has one in z. */
KF_INLINE int32_t groups_z() { return static_cast<int32_t>(__builtin_amdgcn_grid_size_z()); }

KF_INLINE void sync() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

KF_INLINE uint32_t exchange(uint32_t v, int32_t lane) {
    return static_cast<uint32_t>(__builtin_amdgcn_ds_bpermute(4 * lane, static_cast<int>(v)));
}

KF_INLINE int32_t dot4(uint32_t a, uint32_t b, int32_t c) {
#if defined(__GFX9__)
    return __builtin_amdgcn_sdot4(static_cast<int>(a), static_cast<int>(b), c, false);
#else
    return __builtin_amdgcn_sudot4(true, static_cast<int>(a), true, static_cast<int>(b), c, false);
#endif
}

}  // namespace kf

#endif
