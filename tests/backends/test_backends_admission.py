"""Admission: each way out of pure computation is refused."""

from __future__ import annotations

import dataclasses
import platform
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from backends_cpp import host, kernel
from hypothesis import given, settings
from hypothesis import strategies as st

from kforge.backends.cpp.admission import Admitted, admit, examine
from kforge.backends.cpp.build import build
from kforge.backends.cpp.code import BARRIER_GATE
from kforge.core.image import Image
from kforge.core.trial import Artifact, Failure, FailureClass
from kforge.native.compilers import default_compiler

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="admission knows x86-64")

SLED = b"\x90" * 48


@cache
def sled() -> bytes:
    """An admitted object with room for an instruction in the middle of its kernel."""
    found = build(kernel('asm volatile(".fill 48,1,0x90"); kf_barrier(launch);'), host())
    assert isinstance(found, Artifact), found
    assert isinstance(admit(found.data), Image)
    assert SLED in found.data
    return found.data


def patched(code: str) -> bytes:
    given_bytes = bytes.fromhex(code)
    return sled().replace(SLED, given_bytes + SLED[len(given_bytes):], 1)


def refusal(data: bytes) -> str:
    found = admit(data)
    assert isinstance(found, Failure), found
    assert found.kind is FailureClass.ADMISSION
    return found.reason


@pytest.mark.parametrize("code", [
    "0f05", "0f34", "cd80", "cc", "f1", "0f31", "0f01f9", "0f01ef", "0f01ee", "0f01d1", "0f01d0", "0fae10", "c5f8ae10",
    "d928", "d920", "dbe3", "d9e8", "0faed8", "f30faed0", "f3480faed0", "f3480faec0", "f3480faec8", "0fa2", "0fc7f0",
    "0fc7f8", "0f33", "ec", "ee", "6c", "f4", "c7f800000000", "ff18", "ff28", "cb", "ca0800", "48cf", "ffe0", "ffd0",
    "ff20", "ff10", "ff2500000000", "64488b042500000000", "65488b00", "8ed8", "0fa1", "0fa9", "9d", "fd", "0f6fc0",
    "0f77", "0fae00", "0fae08", "0fae28", "0f01fb", "f30fc7f8", "0f01c8", "0f01d9", "660f38f800", "0f09",
    "f30f01e8", "c4e27b4bc0", "06", "0f0b0f05",
], ids=str)
def test_instructions_that_are_not_pure_computation_are_refused(code: str) -> None:
    assert "0x" in refusal(patched(code))


@pytest.mark.parametrize("code", ["f30fb8c0", "c5fd6fc1", "62f17c4858c1", "0f18480f", "f390", "0faef0", "0faef8",
                                  "c8100000", "f0480fc100", "f3a4", "f30f1efa", "0f0b", "c4e2f5b8c2", "62f2752850c2"])
def test_computation_is_admitted(code: str) -> None:
    assert isinstance(admit(patched(code)), Image)


def test_a_branch_must_land_on_an_instruction_of_the_image() -> None:
    assert isinstance(admit(patched("eb05")), Image)
    # mov eax, 0x0f05c031 hides a syscall; the jump goes into its immediate.
    assert "does not land" in refusal(patched("b8310f0590ebfb"))
    assert "does not land" in refusal(patched("e900100000"))
    assert "does not land" in refusal(patched("0f8400f0ffff"))


@pytest.mark.parametrize("code", ["66e900000000", "66e800000000", "66c3", "660f8400000000", "2e66e900000000", "66eb00"])
def test_branches_whose_length_depends_on_the_vendor_are_refused(code: str) -> None:
    assert "0x" in refusal(patched(code))


def test_a_prefix_byte_inside_a_branchs_offset_is_no_prefix() -> None:
    found = build(kernel('asm volatile("jmp 1f\\n.fill 0x66,1,0x90\\n1:");'), host())
    assert isinstance(found, Artifact), found
    assert b"\xeb\x66" in found.data


def test_only_the_whole_aligned_barrier_gate_may_jump_through_a_register() -> None:
    data = sled()
    assert data.count(BARRIER_GATE) == 1
    assert "indirect jump" in refusal(data.replace(BARRIER_GATE, bytes.fromhex("488b4748488b7f38ffe0")))
    gate = data.index(BARRIER_GATE)
    sled_at = data.index(SLED)
    # A call that skips the gate's loads would jump to whatever rax holds; file offsets equal addresses in this segment.
    into = (gate + 8 - (sled_at + 5)).to_bytes(4, "little", signed=True)
    assert "does not land" in refusal(patched("e8" + into.hex()))
    unaligned = bytes.fromhex("90") * (-sled_at % 16 + 1) + BARRIER_GATE
    assert "indirect jump" in refusal(patched(unaligned.hex()))


def test_a_barrier_called_past_the_helper_is_refused_with_what_to_do() -> None:
    found = build(kernel("launch->barrier(launch->team); static_cast<char *>(launch->scratch)[0] = 1;"), host())
    assert isinstance(found, Failure)
    assert found.kind is FailureClass.ADMISSION
    assert "kf_barrier(launch)" in found.reason


def shared_object(folder: Path, source: str, *options: str) -> bytes:
    """What a plain compiler makes of hostile source."""
    file = folder / "bad.cc"
    file.write_text('extern "C" void kforge_kernel(const void *) ;\n' + source)
    command = [default_compiler().path, "-O1", "-shared", "-fPIC", "-nostdlib", "-fcf-protection=none",
               "-fno-asynchronous-unwind-tables", "-Wl,-z,relro,-z,now", "-Wl,--no-eh-frame-hdr", *options, str(file),
               "-o", str(folder / "bad.so")]
    subprocess.run(command, check=True, capture_output=True)
    return (folder / "bad.so").read_bytes()


EMPTY = "void kforge_kernel(const void *) {}\n"
RESOLVER = 'extern "C" { static void f() {} void *resolve() { return (void *)f; } }\n'


@pytest.mark.parametrize(("source", "options", "what"), [
    ("int state; void kforge_kernel(const void *) { ++state; }", ["-fvisibility=hidden"], "writable"),
    ("int state = 3; extern \"C\" void kforge_kernel(const void *) { ++*&state; }", [], "."),
    ("extern \"C\" int puts(const char *); void kforge_kernel(const void *) { puts(\"\"); }", [], "."),
    (EMPTY, ["-Wl,--no-as-needed", "-lc"], "library"),
    (EMPTY + "__attribute__((constructor)) static void early() { asm volatile(\"\"); }", [], "constructors|writable"),
    ("static thread_local int t; void kforge_kernel(const void *) { asm volatile(\"\" :: \"r\"(&t)); ++t; }",
     ["-ftls-model=initial-exec"], "."),
    (EMPTY + "extern \"C\" void other() {}", [], "exports other"),
    (RESOLVER + "extern \"C\" __attribute__((ifunc(\"resolve\"))) void g(); void kforge_kernel(const void *) { g(); }",
     [], "."),
    (EMPTY, ["-Wl,-z,execstack"], "stack"),
    (EMPTY, ["-Wl,-N"], "."),
    ("extern \"C\" void other(const void *) {}", [], "."),
    (EMPTY, ["-Wl,--dynamic-linker=/lib/ld.so", "-Wl,-init=kforge_kernel"], "."),
])
def test_objects_that_need_or_keep_something_are_refused(tmp_path: Path, source: str, options: list[str],
                                                         what: str) -> None:
    found = admit(shared_object(tmp_path, source, *options))
    assert isinstance(found, Failure), source
    assert re.search(what, found.reason), found.reason


def test_what_is_no_shared_object_is_refused() -> None:
    for data in (b"", b"\x7fELF", b"#!/bin/sh\n", sled()[:300], Path("/proc/self/exe").read_bytes()[:1 << 20],
                 bytes(20 << 20)):
        refusal(data)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 0x400), st.integers(0, 255)), min_size=1, max_size=6))
def test_a_damaged_object_is_a_value_never_an_exception(changes: list[tuple[int, int]]) -> None:
    data = bytearray(sled())
    for at, value in changes:
        data[at] = value
    found = admit(bytes(data))
    if isinstance(found, Image):
        assert found.memory_bytes < 1 << 26
        assert any(s.executable and s.address <= found.entry < s.address + len(s.data) for s in found.segments)
    else:
        assert found.kind is FailureClass.ADMISSION


def test_spills_and_the_instruction_mix_are_counted() -> None:
    many = "\n".join(f"__m256 a{i} = _mm256_loadu_ps(x + {8 * i});" for i in range(24))
    turns = "\n".join(f"a{i} = _mm256_add_ps(_mm256_mul_ps(a{i}, a{(i + 7) % 24}), a{(i + 1) % 24});"
                      for i in range(24))
    out = "\n".join(f"_mm256_storeu_ps(x + {8 * i}, a{i});" for i in range(24))
    source = kernel(f"float *x = static_cast<float *>(launch->tensors[0].data);\n{many}\n"
                    f"for (long n = 0; n < launch->axes[0]; ++n) {{\n{turns}\n}}\n{out}", "#include <immintrin.h>")
    avx2 = dataclasses.replace(host(), features=("avx", "avx2"))
    crowded = build(source, avx2)
    assert isinstance(crowded, Artifact), crowded
    assert crowded.report.spills >= 8
    mix = dict(crowded.report.instruction_mix)
    assert mix["vector arithmetic"] >= 48
    facts = examine(sled())
    assert isinstance(facts, Admitted)
    assert facts.facts.spills == 0
