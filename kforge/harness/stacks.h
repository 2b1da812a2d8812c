// Stacks that a candidate runs on: small, apart from the executor's, between guards, in memory that the parent wipes before
// each command. A call starts with empty registers, so that neither leads a candidate to the executor's own frames or back
// to what it left there in an earlier call.
#pragma once

#include "protocol.h"

#include "kforge/abi.h"

#include <cstddef>
#include <cstdint>

#include <sys/mman.h>

// function(argument) on the stack that ends at `top` (aligned to 16). The executor's stack pointer waits in thread-local
// storage, which admitted code cannot reach; all other registers that a function must keep are emptied before the call.
extern "C" void kf_call_on_stack(void (*function)(const void *), const void *argument, void *top);
extern "C" {
inline thread_local void *kf_waiting_stack __attribute__((tls_model("local-exec"), used)) = nullptr;
}

#if defined(__x86_64__)
asm(R"(
.pushsection .text
.globl kf_call_on_stack
.type kf_call_on_stack, @function
kf_call_on_stack:
    pushq %rbx
    pushq %rbp
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, %fs:kf_waiting_stack@tpoff
    movq %rdx, %rsp
    movq %rdi, %rax
    movq %rsi, %rdi
    xorl %ebx, %ebx
    xorl %ecx, %ecx
    xorl %edx, %edx
    xorl %esi, %esi
    xorl %ebp, %ebp
    xorl %r8d, %r8d
    xorl %r9d, %r9d
    xorl %r10d, %r10d
    xorl %r11d, %r11d
    xorl %r12d, %r12d
    xorl %r13d, %r13d
    xorl %r14d, %r14d
    xorl %r15d, %r15d
    call *%rax
    movq %fs:kf_waiting_stack@tpoff, %rsp
    cld
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbp
    popq %rbx
    ret
.size kf_call_on_stack, . - kf_call_on_stack
.popsection
)");
#elif defined(__aarch64__)
asm(R"(
.pushsection .text
.globl kf_call_on_stack
.type kf_call_on_stack, %function
kf_call_on_stack:
    stp x29, x30, [sp, #-160]!
    stp x19, x20, [sp, #16]
    stp x21, x22, [sp, #32]
    stp x23, x24, [sp, #48]
    stp x25, x26, [sp, #64]
    stp x27, x28, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mrs x9, tpidr_el0
    add x9, x9, #:tprel_hi12:kf_waiting_stack
    add x9, x9, #:tprel_lo12_nc:kf_waiting_stack
    mov x10, sp
    str x10, [x9]
    mov sp, x2
    mov x9, x0
    mov x0, x1
    mov x1, #0
    mov x2, #0
    mov x10, #0
    mov x19, #0
    mov x20, #0
    mov x21, #0
    mov x22, #0
    mov x23, #0
    mov x24, #0
    mov x25, #0
    mov x26, #0
    mov x27, #0
    mov x28, #0
    mov x29, #0
    blr x9
    mrs x9, tpidr_el0
    add x9, x9, #:tprel_hi12:kf_waiting_stack
    add x9, x9, #:tprel_lo12_nc:kf_waiting_stack
    ldr x10, [x9]
    mov sp, x10
    ldp x19, x20, [sp, #16]
    ldp x21, x22, [sp, #32]
    ldp x23, x24, [sp, #48]
    ldp x25, x26, [sp, #64]
    ldp x27, x28, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    ldp x29, x30, [sp], #160
    ret
.size kf_call_on_stack, . - kf_call_on_stack
.popsection
)");
#endif

namespace kforge_harness {

// Empties the vector and mask registers.
class Registers {
  public:
    Registers() {
#if defined(__x86_64__)
        __builtin_cpu_init();
        clear_ = __builtin_cpu_supports("avx512f") ? clear_avx512 : __builtin_cpu_supports("avx") ? clear_avx : clear_sse;
#endif
    }

    void clear() const { clear_(); }

  private:
#if defined(__x86_64__)
    static void clear_sse() {
        asm volatile("pxor %%xmm0, %%xmm0; pxor %%xmm1, %%xmm1; pxor %%xmm2, %%xmm2; pxor %%xmm3, %%xmm3;"
                     "pxor %%xmm4, %%xmm4; pxor %%xmm5, %%xmm5; pxor %%xmm6, %%xmm6; pxor %%xmm7, %%xmm7;"
                     "pxor %%xmm8, %%xmm8; pxor %%xmm9, %%xmm9; pxor %%xmm10, %%xmm10; pxor %%xmm11, %%xmm11;"
                     "pxor %%xmm12, %%xmm12; pxor %%xmm13, %%xmm13; pxor %%xmm14, %%xmm14; pxor %%xmm15, %%xmm15"
                     ::: "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
                         "xmm12", "xmm13", "xmm14", "xmm15");
    }

    __attribute__((target("avx"))) static void clear_avx() { __builtin_ia32_vzeroall(); }

    __attribute__((target("avx512f"))) static void clear_avx512() {
        __builtin_ia32_vzeroall();
        asm volatile("vpxord %%zmm16, %%zmm16, %%zmm16; vpxord %%zmm17, %%zmm17, %%zmm17; vpxord %%zmm18, %%zmm18, %%zmm18;"
                     "vpxord %%zmm19, %%zmm19, %%zmm19; vpxord %%zmm20, %%zmm20, %%zmm20; vpxord %%zmm21, %%zmm21, %%zmm21;"
                     "vpxord %%zmm22, %%zmm22, %%zmm22; vpxord %%zmm23, %%zmm23, %%zmm23; vpxord %%zmm24, %%zmm24, %%zmm24;"
                     "vpxord %%zmm25, %%zmm25, %%zmm25; vpxord %%zmm26, %%zmm26, %%zmm26; vpxord %%zmm27, %%zmm27, %%zmm27;"
                     "vpxord %%zmm28, %%zmm28, %%zmm28; vpxord %%zmm29, %%zmm29, %%zmm29; vpxord %%zmm30, %%zmm30, %%zmm30;"
                     "vpxord %%zmm31, %%zmm31, %%zmm31;"
                     "kxorw %%k1, %%k1, %%k1; kxorw %%k2, %%k2, %%k2; kxorw %%k3, %%k3, %%k3; kxorw %%k4, %%k4, %%k4;"
                     "kxorw %%k5, %%k5, %%k5; kxorw %%k6, %%k6, %%k6; kxorw %%k7, %%k7, %%k7" ::: "memory");
    }

    void (*clear_)() = clear_sse;
#else
    // Those that a function must keep are stored and loaded by kf_call_on_stack.
    static void clear_neon() {
        asm volatile("movi v0.2d, #0; movi v1.2d, #0; movi v2.2d, #0; movi v3.2d, #0; movi v4.2d, #0; movi v5.2d, #0;"
                     "movi v6.2d, #0; movi v7.2d, #0; movi v16.2d, #0; movi v17.2d, #0; movi v18.2d, #0; movi v19.2d, #0;"
                     "movi v20.2d, #0; movi v21.2d, #0; movi v22.2d, #0; movi v23.2d, #0; movi v24.2d, #0; movi v25.2d, #0;"
                     "movi v26.2d, #0; movi v27.2d, #0; movi v28.2d, #0; movi v29.2d, #0; movi v30.2d, #0; movi v31.2d, #0"
                     ::: "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20", "v21",
                         "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
    }

    void (*clear_)() = clear_neon;
#endif
};

// What a launch points to, at the top of the thread's stack: beside nothing of the executor's.
struct LaunchPage {
    kf_launch launch;
    kf_tensor tensors[max_tensors];
    int64_t strides[max_tensors][max_rank];
    int64_t axes[max_axes];
    double scalars[max_scalars];
};

// One stack per thread, `stack_bytes` of a memory file each from `offset` on.
class Stacks {
  public:
    Stacks() = default;

    // Errors leave no stacks.
    Stacks(int file, int64_t offset, int threads) {
        const size_t each = stack_guard + stack_bytes;
        void *got = mmap(nullptr, threads * each, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (got == MAP_FAILED) return;
        begin_ = reinterpret_cast<uintptr_t>(got);
        for (int thread = 0; thread < threads; ++thread) {
            void *at = reinterpret_cast<void *>(top(thread) - stack_bytes);
            const off_t where = offset + thread * static_cast<int64_t>(stack_bytes);
            if (mmap(at, stack_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, where) == MAP_FAILED) {
                begin_ = 0;
                return;
            }
        }
        end_ = begin_ + threads * each;
    }

    bool made() const { return begin_ != 0; }
    uintptr_t begin() const { return begin_; }
    uintptr_t end() const { return end_; }

    LaunchPage *page(int thread) const { return reinterpret_cast<LaunchPage *>(top(thread) - page_bytes); }

    // Where the thread's stack starts, downwards.
    void *start(int thread) const { return page(thread); }

  private:
    static constexpr size_t page_bytes = (sizeof(LaunchPage) + 63) / 64 * 64;

    uintptr_t top(int thread) const { return begin_ + (static_cast<size_t>(thread) + 1) * (stack_guard + stack_bytes); }

    uintptr_t begin_ = 0, end_ = 0;
};

}  // namespace kforge_harness
