"""What prompts say of asm, pragmas, attributes and builtins, each held against a real build and admission."""

from __future__ import annotations

import platform

import pytest
from situations import NORM

from kforge.backends.cpp.build import build
from kforge.backends.cpp.disassembly import disassemble
from kforge.core.trial import Artifact, Candidate, Failure, NumericsClass
from kforge.native import find_compilers
from kforge.targets import host

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="builds x86-64 code")

INCLUDES = "#include <kforge/abi.h>\n#include <kforge/freestanding.h>\n#include <kforge/math.h>\n"
KERNEL = """
extern "C" void kforge_kernel(const kf_launch *launch) {
    float *x = static_cast<float *>(launch->tensors[0].data);
    %s
}
"""
BEFORE = """
__attribute__((target("prfchw"), noinline)) static void ahead(float *p) { __builtin_prefetch(p + 64, 1, 3), p[0] = 1; }
template <int N> constexpr int twice = 2 * N;
typedef float Four __attribute__((vector_size(16), aligned(4)));
__attribute__((noinline)) static void unrolled(float *x, long n) {
    float s = 0;
#pragma GCC unroll 16
    for (long i = 0; i < n; ++i) s = kf::fma(s, x[i], 1.0f);
    x[0] = s;
}
"""
ALLOWED = """
    const __m128 v = _mm_loadu_ps(x);
    __m128 sum = v;
    asm("addps %1, %0" : "+x"(sum) : "x"(v));
    asm volatile("prefetchw %0" ::"m"(x[64]));
    ahead(x + 128);
    _mm_prefetch(reinterpret_cast<const char *>(x + 256), _MM_HINT_NTA);
    __builtin_prefetch(x + 512, 0, 3);
    _mm_stream_ps(x, sum);
    _mm_sfence();
    _mm_pause();
    unrolled(x, launch->axes[0]);
    const auto square = [](float a) __attribute__((always_inline)) { return a * a; };
    float *aligned = static_cast<float *>(__builtin_assume_aligned(x, 64));
    if (__builtin_expect(launch->axes[0] < 0, 0)) __builtin_unreachable();
    __builtin_memcpy(aligned + 16, aligned, 32);
    aligned[1] = __builtin_fmaf(square(aligned[2]), twice<4>, aligned[3]);
    *reinterpret_cast<Four *>(x + 4) *= *reinterpret_cast<Four *>(x + 8);
"""
REFUSED = {
    "a builtin that calls a library": ("", "x[0] = __builtin_expf(x[0]);"),
    "a builtin that asks the processor": ("", 'x[0] = __builtin_cpu_supports("avx2") ? 1.0f : 2.0f;'),
    "clones by target": ('__attribute__((target_clones("avx2", "default"))) float f(float a) { return 2 * a; }',
                         "x[0] = f(x[0]);"),
    "a clock in asm": ("", 'asm volatile("rdtsc" ::: "eax", "edx");'),
    "a computed jump in asm": ("", 'asm volatile("jmp *%0" ::"r"(x));'),
}


def built(source: str, compiler: str = "gcc") -> Artifact | Failure:
    params, source = (("compiler", compiler),), INCLUDES + source
    return build(Candidate(NORM, "cpp", "file:test", "hash", params, source, NumericsClass.EXACT, ()), host())


def code(source: str, compiler: str) -> str:
    artifact = built(source, compiler)
    assert isinstance(artifact, Artifact), artifact
    return "\n".join(line.text for line in disassemble(artifact.data).lines)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_what_is_said_to_be_allowed_is_built_admitted_and_does_what_is_said(compiler: str) -> None:
    if {"gcc": "g++", "clang": "clang++"}[compiler] not in {found.name for found in find_compilers()}:
        pytest.skip(f"no {compiler} here")
    text = code(BEFORE + KERNEL % ALLOWED, compiler)
    for needed in ("addps", "prefetchnta", "prefetcht0", "movntps", "sfence", "pause"):
        assert needed in text, needed
    assert text.count("prefetchw") == 2  # asm, and the builtin where the function may
    assert sum("fmadd" in line and "ss " in line for line in text.splitlines()) >= 16  # the pragma
    assert "prefetchw" not in code(KERNEL % "__builtin_prefetch(x, 1, 3);", compiler)


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_said_to_be_refused_is(what: str) -> None:
    before, body = REFUSED[what]
    assert isinstance(built(before + KERNEL % body), Failure)


def test_nobody_checks_that_a_kernels_instructions_exist() -> None:
    half = '__attribute__((target("avx512fp16"), noinline)) static void f(float *x) {\n' \
           "    _mm512_storeu_ph(x, _mm512_add_ph(_mm512_loadu_ph(x), _mm512_loadu_ph(x)));\n}\n"
    assert isinstance(built(half + KERNEL % "f(x);"), Artifact)
