"""Compiling on first use: cached by content, atomic, and clear when it cannot be done."""

from __future__ import annotations

import concurrent.futures
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kforge.core.errors import KforgeError
from kforge.core.target import Compiler
from kforge.native import build_library, build_program, default_compiler, find_compilers, include_dir
from kforge.native.build import executor_sources, source_dir


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("KFORGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path) -> Path:
    path = tmp_path / "source" / "seven.cc"
    path.parent.mkdir()
    path.write_text('#include "number.h"\n#include <cstdio>\nint main() { std::printf("%d", NUMBER); }\n')
    (path.parent / "number.h").write_text("#define NUMBER 7\n")
    return path


def output(program: Path) -> str:
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout


def test_a_program_is_compiled_once_and_again_when_a_header_changes(cache, source):
    first = build_program("seven", [source])
    made = first.stat().st_mtime_ns
    assert output(first) == "7" and cache in first.parents
    assert build_program("seven", [source]) == first and first.stat().st_mtime_ns == made
    (source.parent / "number.h").write_text("#define NUMBER 8\n")
    second = build_program("seven", [source])
    assert second != first and output(second) == "8"
    assert build_program("seven", [source], ["-O3"]) != second
    assert not [left for left in (cache / "native").iterdir() if left.name.startswith(".making")]


def test_many_builders_at_once_agree(cache, source):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        paths = {made.result() for made in [pool.submit(build_program, "seven", [source]) for _ in range(4)]}
    assert len(paths) == 1 and output(paths.pop()) == "7"


def test_a_compile_error_names_the_compiler_and_the_line(cache, source):
    source.write_text("int main() { return nonsense; }\n")
    with pytest.raises(KforgeError, match=r"cannot compile seven: .*seven.cc:1:.*error: .*nonsense"):
        build_program("seven", [source])
    assert list((cache / "native").iterdir()) == []


def test_a_cache_that_cannot_be_written_falls_back_to_a_private_folder(cache, source, caplog):
    cache.write_text("a file where the folder should be")
    made = build_program("seven", [source])
    assert output(made) == "7" and cache not in made.parents
    assert stat.S_IMODE(made.parent.parent.stat().st_mode) == 0o700
    assert "cannot write the cache" in caplog.text and str(cache) in caplog.text
    assert build_program("seven", [source]) == made


def test_a_fallback_that_others_can_write_is_not_used(cache, source, tmp_path):
    cache.write_text("a file where the folder should be")
    (tmp_path / f"kforge-native-{os.getuid()}").mkdir()
    (tmp_path / f"kforge-native-{os.getuid()}").chmod(0o777)
    with pytest.raises(KforgeError, match="set KFORGE_CACHE"):
        build_program("seven", [source])


def test_no_compiler_is_one_clear_sentence(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_compilers() == ()
    with pytest.raises(KforgeError, match=r"no C\+\+ compiler found: install g\+\+ >= 12"):
        default_compiler()


def fake_compiler(path: Path, version_line: str) -> Path:
    path.write_text(f"#!/bin/sh\necho '{version_line}'\n")
    path.chmod(0o755)
    return path


def test_an_old_compiler_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    fake_compiler(tmp_path / "g++", "g++ (Ubuntu 9.4.0-1ubuntu1~20.04.2) 9.4.0")
    with pytest.raises(KforgeError, match=r"g\+\+ 9.4.0, which is too old"):
        default_compiler()


@pytest.mark.parametrize(("line", "name", "version"), [
    ("g++ (Debian 12.2.0-14+deb12u1) 12.2.0", "g++", "12.2.0"),
    ("g++ (GCC) 13.3.1 20240611 (Red Hat 13.3.1-2)", "g++", "13.3.1"),
    ("Ubuntu clang version 18.1.3 (1ubuntu1)", "clang++", "18.1.3"),
    ("Apple clang version 16.0.0 (clang-1600.0.26.4)", "clang++", "16.0.0"),
])
def test_cxx_is_preferred_and_its_version_read(monkeypatch, tmp_path, line, name, version):
    path = fake_compiler(tmp_path / "my-compiler", line)
    monkeypatch.setenv("CXX", str(path))
    assert find_compilers()[0] == Compiler(str(path), name, version)


def test_a_cxx_that_does_not_run_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(KforgeError, match="CXX='no-such-compiler'"):
        find_compilers()


def test_every_installed_compiler_builds_the_executor(cache):
    for compiler in find_compilers():
        library = build_library("executor", [*executor_sources(), source_dir() / "capi.cc"], ["-Werror"],
                                compiler=compiler)
        assert library.is_file()
    assert (include_dir() / "kforge" / "abi.h").is_file()


def test_two_processes_build_the_executor_at_once(cache):
    code = "from kforge.native import Team\nwith Team(2) as t: t.barrier_seconds(10)"
    jobs = [subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "KFORGE_CACHE": str(cache)})
            for _ in range(2)]
    assert [job.wait(120) for job in jobs] == [0, 0]
