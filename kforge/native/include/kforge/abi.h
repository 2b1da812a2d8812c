/* The kernel ABI of kforge, version 1.
 *
 * A kernel is pure computation in the SPMD style of a GPU grid: the executor calls kforge_kernel on every thread of a
 * team with the same kf_launch but for `thread`, and the kernel takes its slice.  It owns no threads, calls no library
 * and keeps no state between calls.
 *
 * A thread has 60 KiB of stack; what needs more takes scratch.  Registers but those of the arguments, the stack below the
 * call and scratch hold nothing that an earlier call has left: they may be wiped at any time between two calls.
 *
 * tensors, axes and scalars follow the order in which the operator declares them (kforge/operators).  Strides are in
 * elements.  Axes are read again at every call.  Static axes (head_dim, K, N, ...) are compiled in.
 */
#ifndef KFORGE_ABI_H
#define KFORGE_ABI_H

#include <stdint.h>

#define KFORGE_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

struct kf_tensor {
    void *data;             /* 64-byte aligned */
    const int64_t *strides; /* elements, one per dimension, innermost last (always 1) */
};

struct kf_launch {
    uint32_t abi_version; /* KFORGE_ABI_VERSION of the caller */
    uint32_t size;        /* sizeof(struct kf_launch) of the caller */
    const struct kf_tensor *tensors;
    const int64_t *axes;    /* dynamic axes, declared order */
    const double *scalars;  /* eps, scale, ... */
    void *scratch;          /* 64-byte aligned, shared by the team, contents undefined; null when none was asked for */
    int64_t scratch_bytes;
    int32_t thread;         /* 0 .. threads-1 */
    int32_t threads;
    void *team;
    void (*barrier)(void *team); /* call it with kf_barrier(launch) of kforge/freestanding.h, and every thread of the team
                                    the same number of times: admission refuses any other indirect call */
};

/* Required.  Called once on every thread of the team. */
void kforge_kernel(const struct kf_launch *launch);

/* Optional.  Bytes of scratch for a call with these axes and threads; pure. */
int64_t kforge_scratch_bytes(const int64_t *axes, int32_t threads);

#ifdef __cplusplus
}
#endif
#endif
