/* What a kernel without a C library needs.  The build includes this file ahead of every kernel source.
 *
 *  - the two entry points are exported, everything else is hidden;
 *  - memcpy, memmove and memset exist, because compilers call them even for freestanding code;
 *  - kf_barrier(launch) is the one way to meet the rest of the team.
 */
#ifndef KFORGE_FREESTANDING_H
#define KFORGE_FREESTANDING_H

#include <stddef.h>
#include <stdint.h>

/* <immintrin.h> of gcc pulls in <stdlib.h> for _mm_malloc, which no kernel can link. */
#define _MM_MALLOC_H_INCLUDED 1
#define __MM_MALLOC_H 1

extern "C" {
struct kf_launch;
__attribute__((visibility("default"))) void kforge_kernel(const struct kf_launch *launch);
__attribute__((visibility("default"))) int64_t kforge_scratch_bytes(const int64_t *axes, int32_t threads);

/* Internal: calls launch->barrier(launch->team).  Written as bytes that never change, because admission knows this
 * sequence and refuses every other indirect jump or call.  Offsets are those of kf_launch in abi.h. */
__attribute__((visibility("hidden"))) void kf_barrier_gate(const struct kf_launch *launch);

#if defined(__x86_64__)
asm(".pushsection .text.kf_barrier_gate,\"ax\",@progbits\n"
    ".hidden kf_barrier_gate\n"
    ".globl kf_barrier_gate\n"
    ".type kf_barrier_gate,@function\n"
    ".balign 16\n"
    "kf_barrier_gate:\n"
    ".byte 0x48,0x8b,0x47,0x40\n" /* mov rax, [rdi+64]   launch->barrier */
    ".byte 0x48,0x8b,0x7f,0x38\n" /* mov rdi, [rdi+56]   launch->team */
    ".byte 0xff,0xe0\n"           /* jmp rax */
    ".size kf_barrier_gate,.-kf_barrier_gate\n"
    ".popsection\n");
#elif defined(__aarch64__)
asm(".pushsection .text.kf_barrier_gate,\"ax\",%progbits\n"
    ".hidden kf_barrier_gate\n"
    ".globl kf_barrier_gate\n"
    ".type kf_barrier_gate,%function\n"
    ".balign 16\n"
    "kf_barrier_gate:\n"
    "ldr x1, [x0, #64]\n"
    "ldr x0, [x0, #56]\n"
    "br x1\n"
    ".size kf_barrier_gate,.-kf_barrier_gate\n"
    ".popsection\n");
#endif

/* The empty asm keeps a compiler from recognising the loops and turning them into calls to themselves. */
__attribute__((visibility("hidden"), noinline)) void *memcpy(void *__restrict to, const void *__restrict from,
                                                             size_t bytes) {
    char *t = static_cast<char *>(to);
    const char *f = static_cast<const char *>(from);
    for (; bytes >= 8; bytes -= 8, t += 8, f += 8) {
        uint64_t word;
        __builtin_memcpy(&word, f, 8);
        __builtin_memcpy(t, &word, 8);
        asm volatile("" ::: "memory");
    }
    for (; bytes > 0; --bytes) {
        *t++ = *f++;
        asm volatile("" ::: "memory");
    }
    return to;
}

__attribute__((visibility("hidden"), noinline)) void *memmove(void *to, const void *from, size_t bytes) {
    char *t = static_cast<char *>(to);
    const char *f = static_cast<const char *>(from);
    if (t < f) {
        for (size_t i = 0; i < bytes; ++i) {
            t[i] = f[i];
            asm volatile("" ::: "memory");
        }
    } else {
        for (size_t i = bytes; i > 0; --i) {
            t[i - 1] = f[i - 1];
            asm volatile("" ::: "memory");
        }
    }
    return to;
}

__attribute__((visibility("hidden"), noinline)) void *memset(void *to, int value, size_t bytes) {
    char *t = static_cast<char *>(to);
    const uint64_t word = 0x0101010101010101ull * static_cast<unsigned char>(value);
    for (; bytes >= 8; bytes -= 8, t += 8) {
        __builtin_memcpy(t, &word, 8);
        asm volatile("" ::: "memory");
    }
    for (; bytes > 0; --bytes) {
        *t++ = static_cast<char>(value);
        asm volatile("" ::: "memory");
    }
    return to;
}
}

/* Waits until every thread of the team has arrived.  All threads must call it the same number of times. */
static inline __attribute__((always_inline)) void kf_barrier(const struct kf_launch *launch) { kf_barrier_gate(launch); }

#endif
