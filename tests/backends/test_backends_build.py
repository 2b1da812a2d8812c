"""Source to artifact: what compiles, what fails and how, what the cache keeps."""

from __future__ import annotations

import platform
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from backends_cpp import SILU, candidate, host, kernel, target

from kforge.backends import templates
from kforge.backends.cpp import build as build_module
from kforge.backends.cpp import headers
from kforge.backends.cpp.admission import admit
from kforge.backends.cpp.build import BuildLimits, build
from kforge.core.errors import KforgeError
from kforge.core.image import Image
from kforge.core.target import Compiler
from kforge.core.trial import Artifact, Failure, FailureClass
from kforge.native.compilers import find_compilers

COMPILERS = find_compilers()
each_compiler = pytest.mark.parametrize("compiler", COMPILERS, ids=lambda c: c.name)
x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="admission knows x86-64")
pytestmark = x86


@pytest.fixture(autouse=True, scope="module")
def _own_artifacts(tmp_path_factory: pytest.TempPathFactory) -> object:
    """A cache of this module's own; the launcher's stays where it is."""
    folder = tmp_path_factory.mktemp("cache")
    patch = pytest.MonkeyPatch()
    patch.setattr(build_module, "cache_dir", lambda: folder)
    yield folder
    patch.undo()


@each_compiler
def test_the_compiled_prelude_changes_the_time_and_not_the_code(compiler: Compiler,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    source = kernel("auto *x = static_cast<float *>(launch->tensors[0].data);\n"
                    "for (long i = 0; i < 77; ++i) x[i] += 0.5f; kf_barrier(launch);", "#include <immintrin.h>")
    make, preludes = headers._compiled, []
    monkeypatch.setattr(headers, "_compiled", lambda *given: preludes.append(make(*given)) or preludes[-1])
    quick = made(build(source, host(), compiler=compiler))
    monkeypatch.setattr(headers, "_compiled", lambda *_: None)
    monkeypatch.setattr(build_module.store, "load", lambda *_: None)
    slow = made(build(source, host(), compiler=compiler))
    assert slow.data == quick.data
    if preludes == [None]:
        pytest.skip(f"{compiler.name} {compiler.version} wants the headers of a prelude where they were: it gets none")
    assert slow.report.seconds > quick.report.seconds


@each_compiler
def test_an_unwritable_cache_is_an_error_that_says_what_to_do(compiler: Compiler, tmp_path: Path,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(build_module, "cache_dir", lambda: tmp_path / "file")
    with pytest.raises(KforgeError, match="KFORGE_CACHE"):
        build(kernel(""), host(), compiler=compiler)


def test_a_full_disk_is_no_failure_of_the_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = kernel("nonsense;")
    assert isinstance(build(wrong, host()), Failure)
    monkeypatch.setattr(build_module.shutil, "disk_usage", lambda _: SimpleNamespace(free=4096))
    with pytest.raises(KforgeError, match=r"cannot build in .*: it is full; free some space, or set TMPDIR"):
        build(wrong, host())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(headers, "place", full)
    with pytest.raises(KforgeError, match=r"cannot build in .*: No space left on device; .* set TMPDIR"):
        build(wrong, host())


def made(found: Artifact | Failure) -> Artifact:
    assert isinstance(found, Artifact), found
    return found


MEETING = """
    float *out = static_cast<float *>(launch->tensors[0].data);
    int *seen = static_cast<int *>(launch->scratch);
    seen[launch->thread] = launch->thread + 1;
    kf_barrier(launch);
    int sum = 0;
    for (int t = 0; t < launch->threads; ++t) sum += seen[t];
    out[launch->thread] = sum;
"""


@each_compiler
def test_a_kernel_that_meets_its_team_builds_is_admitted_and_runs(compiler: Compiler) -> None:
    from kforge.native.program import Kernel, Program
    from kforge.native.team import Team

    source = kernel(MEETING, "int64_t kforge_scratch_bytes(const int64_t *, int32_t threads) { return 64 * threads; }")
    artifact = made(build(source, host(), compiler=compiler))
    image = admit(artifact.data)
    assert isinstance(image, Image)
    assert image.scratch_entry >= 0
    out = np.zeros(32, np.float32)
    out = out[-out.ctypes.data % 64 // 4:][:2]  # kernels get 64-byte aligned tensors
    with Team(2) as team, Program(team) as program:
        program.add(Kernel(image), [out], np.zeros(1, np.int64), np.zeros(0), "meeting")
        program.run()
    assert out.tolist() == [3, 3]


@each_compiler
def test_copies_fills_tables_and_pointers_need_no_library(compiler: Compiler) -> None:
    source = kernel("""
        float *out = static_cast<float *>(launch->tensors[0].data);
        char room[3000];
        for (int i = 0; i < 3000; ++i) room[i] = 0;
        for (long i = 0; i < launch->axes[0]; ++i) room[i] = names[i & 1][0];
        __builtin_memmove(room + 1, room, launch->axes[0]);
        __builtin_memcpy(out, room, launch->axes[0]);
        switch (launch->axes[0]) { case 1: out[1] = 3; break; case 2: out[2] = 4; break; case 3: out[7] = 1; break;
                                   case 4: out[3] = 9; break; case 5: out[4] = 8; break; case 6: out[9] = 2; break; }
    """, 'static const char *const names[] = {"a", "b"};')
    image = admit(made(build(source, host(), compiler=compiler)).data)
    assert isinstance(image, Image)
    assert compiler.name != "g++" or image.relocations


@each_compiler
def test_another_x86_target_gets_its_own_instructions(compiler: Compiler) -> None:
    source = kernel("float *x = static_cast<float *>(launch->tensors[0].data);\n"
                    "for (long i = 0; i < 4096; ++i) x[i] = x[i] * x[i];")
    codes = [made(build(source, t, compiler=compiler)) for t in
             (target(), target("avx", "avx2"), target("avx", "avx2", "avx512f", "avx512vl", "avx512bw", "avx512dq"))]
    assert len({artifact.data for artifact in codes}) == 3
    assert "-mavx512f" in codes[2].report.flags
    assert "-mtune=native" not in codes[2].report.flags
    assert "-mtune=native" in made(build(source, host(), compiler=compiler)).report.flags


def test_the_compiler_parameter_chooses_and_an_absent_compiler_is_replaced_with_a_note() -> None:
    source = "#include <kforge/abi.h>\nvoid kforge_kernel(const kf_launch *) {}\n"
    names = {"gcc": "g++", "clang": "clang++"}
    for family, name in names.items():
        present = [c for c in COMPILERS if c.name == name]
        report = made(build(candidate(source, compiler=family), host())).report
        assert report.compiler.startswith(name) if present else "there is no" in report.warnings
        others = tuple(c for c in COMPILERS if c.name != name)
        if others:
            report = made(build(candidate(source, compiler=family), target("avx2", compilers=others))).report
            assert f"there is no {family} here" in report.warnings


def test_the_same_candidate_comes_from_the_cache_and_a_damaged_entry_is_built_again(
        _own_artifacts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = kernel("static_cast<float *>(launch->tensors[0].data)[123] = 456;")
    first = made(build(source, host()))
    with monkeypatch.context() as patch:
        patch.setattr(build_module, "run", None)  # nothing may be compiled
        assert build(source, host()) == first
    entry = next(f for f in (_own_artifacts / "artifacts").glob("*.so") if f.read_bytes() == first.data)
    entry.write_bytes(first.data[:-1] + b"x")
    assert made(build(source, host())).data == first.data
    assert entry.read_bytes() == first.data


@each_compiler
def test_a_compile_error_shows_the_first_error_and_the_lines_around_it(compiler: Compiler) -> None:
    failure = build(kernel("int a = 1;\nint b = 2;\nundeclared(a);\nint c = 3;"), host(), compiler=compiler)
    assert isinstance(failure, Failure)
    assert failure.kind is FailureClass.COMPILE
    assert "kernel.cc:6" in failure.reason
    assert "undeclared" in failure.reason
    assert ">    6 undeclared(a);" in failure.detail
    assert "int b = 2;" in failure.detail


def test_calling_a_library_function_is_a_compile_failure_that_names_it() -> None:
    failure = build(kernel("puts(0);", 'extern "C" int puts(const char *);'), host())
    assert isinstance(failure, Failure)
    assert failure.kind is FailureClass.COMPILE
    assert "puts" in failure.reason + failure.detail


ENDLESS = """
template <int depth, int which> struct Tree {
    static constexpr long sum() { return Tree<depth - 1, 2 * which>::sum() + Tree<depth - 1, 2 * which + 1>::sum(); }
};
template <int which> struct Tree<0, which> { static constexpr long sum() { return which; } };
"""


@each_compiler
def test_an_endless_instantiation_hits_a_limit(compiler: Compiler) -> None:
    source = kernel("static_cast<float *>(launch->tensors[0].data)[0] = Tree<28, 1>::sum();", ENDLESS)
    failure = build(source, host(), compiler=compiler, limits=BuildLimits(seconds=2))
    assert isinstance(failure, Failure)
    assert failure.kind is FailureClass.COMPILE_LIMIT


def test_a_flood_of_memory_hits_a_limit() -> None:
    macros = "#define A0 1+1+1+1+1+1+1+1+1+1\n" + "\n".join(
        f"#define A{n} {'+'.join([f'A{n - 1}'] * 10)}" for n in range(1, 10))
    failure = build(kernel("launch->axes[A9];", macros), host(), limits=BuildLimits(seconds=30, memory_bytes=256 << 20))
    assert isinstance(failure, Failure)
    assert failure.kind is FailureClass.COMPILE_LIMIT, failure


@each_compiler
def test_a_flood_of_output_hits_a_limit(compiler: Compiler) -> None:
    source = kernel('asm(".pushsection .rodata\\n.fill 50000000,1,1\\n.popsection\\n");')
    failure = build(source, host(), compiler=compiler, limits=BuildLimits(output_bytes=16 << 20))
    assert isinstance(failure, Failure)
    assert failure.kind is FailureClass.COMPILE_LIMIT, failure


@each_compiler
def test_a_source_cannot_read_files_outside_the_toolchain(compiler: Compiler, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("top_secret_word\n")
    for path in ("/etc/shadow", "/etc/passwd", "/proc/self/environ", str(secret), str(Path.home() / ".profile")):
        for source in (candidate(f'#include "{path}"\nvoid kforge_kernel(const kf_launch *) {{}}\n'),
                       kernel(f'asm(".pushsection .rodata\\n.incbin \\"{path}\\"\\n.popsection\\n");')):
            failure = build(source, host(), compiler=compiler)
            assert isinstance(failure, Failure), path
            assert failure.kind is FailureClass.COMPILE, failure
            assert "top_secret_word" not in failure.reason + failure.detail
            assert "root:" not in failure.reason + failure.detail


@pytest.mark.parametrize("compiler", COMPILERS[:1], ids=lambda c: c.name)
def test_shipped_templates_without_a_weight_build_and_are_admitted_with_their_defaults(compiler: Compiler) -> None:
    for template in templates.load("silu_mul"):
        if template.applies(SILU, host()) is None:
            made(build(template.render(SILU, host(), template.defaults(SILU, host())), host(), compiler=compiler))
