"""Hostile and clumsy use of the command line: one sentence on standard error, an exit code, nothing lost."""

from __future__ import annotations

import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from cli_host import host_target

from kforge.backends import templates
from kforge.backends.cpp.build import build
from kforge.core.kernel import KernelRecord, KernelState
from kforge.core.trial import Artifact
from kforge.core.workload import Problem
from kforge.models.synth import synth
from kforge.operators import get
from kforge.registry.database import Registry

ROOT = Path(__file__).resolve().parents[2]
Kforge = Callable[..., "subprocess.CompletedProcess[str]"]
TUNE = ("--budget", "4s", "--batch", "1", "--prefill", "1", "--workload", "argmax")
LINEAR = ("lookup", "linear", "K=576", "N=960", "weight=q4_1")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    synth("tiny-llama-test", "q4_0", path)
    return path


def refused(done: subprocess.CompletedProcess[str], *says: str, code: int = 2) -> None:
    """One sentence on standard error that says all of this, the exit code, no traceback."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("kforge: ")]
    assert "Traceback" not in done.stderr and len(lines) == 1, done.stderr
    assert done.returncode == code, done.stderr
    for text in says:
        assert text in lines[0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("frobnicate",), "No such command 'frobnicate'"),
        (("tune", "--frob"), "No such option: --frob; see: kforge tune --help"),
        (("lookup", "linear"), "linear lacks K=..., N=..., weight=..., M=..."),
        (("lookup", "convolution", "K=1"), "no operator 'convolution'"),
        ((*LINEAR, "Q=1"), "no axis Q"),
        (LINEAR, "lacks M="),
        ((*LINEAR, "M=--1"), "M=--1"),
        ((*LINEAR, "M=0"), "at least 1"),
        ((*LINEAR, "M=1", "M=2"), "given twice"),
        ((*LINEAR[:3], "N=960", "weight=q9", "M=1"), "q9"),
        ((*LINEAR, "M=1", "--target", "nowhere"), "unknown target 'nowhere'"),
        (("runs", "show", "nothing"), "names no run"),
        (("kernels", "show", "abcd"), "names no kernel"),
        (("model", "show", "gpt-9"), "neither a file, a folder, nor a known model"),
        (("model", "synth", "tiny-llama-test", "--out", "/dev/null"), "not a plain file"),
        (("model", "synth", "tiny-llama-test", "--layers", "0"), "1 to 2"),
        (("tune", "gpt-9"), "neither a file"),
        (("tune", "--resume", "nothing"), "is not a run folder"),
        (("tune", "--target", "zen4"), "not this machine"),
    ],
)
def test_what_does_not_exist_is_named(kforge: Kforge, words: tuple[str, ...], says: str) -> None:
    refused(kforge(*words), says)


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--budget", "soon", "not a time"),
        ("--budget", "inf", "come to an end"),
        ("--budget", "-5s", "more than nothing"),
        ("--batch", "0", "--batch '0'"),
        ("--batch", "100000", "above 512"),
        ("--context", "99999", "at most 2048"),
        ("--prefill", "-1", "at least 0"),
        ("--threads", "-1", "--threads -1"),
        ("--act", "int3", "int3"),
        ("--kv", "int3", "int3"),
        ("--workload", "nothing(", "contains 'nothing('"),
    ],
)
def test_a_tune_that_cannot_be_makes_no_run(
    kforge: Kforge, tiny: Path, tmp_path: Path, option: str, value: str, says: str
) -> None:
    refused(kforge("tune", tiny, "--runs-dir", tmp_path / "runs", option, value), says)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--max-tokens", "0", "at least 1"),
        ("--temperature", "nan", "temperature"),
        ("--top-p", "0", "top_p"),
        ("--threads", "0", "--threads"),
        ("--threads", "100000", "100000 threads"),
        ("--kv-tokens", "99999999999", "memory is free"),
        ("--act", "int3", "int3"),
        ("--kv", "int3", "f32, i8"),
        ("--kernels", "best", "none, default or tuned"),
        ("--prompt", os.fsdecode(b"\xff\xfe"), "not valid UTF-8"),
        ("--prompt", "hello " * 3000, "takes at most 2047"),
    ],
)
def test_a_request_that_cannot_be_is_named(kforge: Kforge, tiny: Path, option: str, value: str, says: str) -> None:
    refused(kforge("generate", tiny, "-p", "hi", "--kernels", "none", option, value), says)


def test_an_answer_longer_than_the_cache_names_the_option(kforge: Kforge, tiny: Path) -> None:
    done = kforge("generate", tiny, "-p", "hello " * 100, "--kernels", "none", "--kv-tokens", "64")
    refused(done, "KV cache holds 64", "--kv-tokens")


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda data: data[:4], "corrupt or truncated"),
        (lambda data: data[:100000], "truncated"),
        (lambda data: b"", "cannot be read"),
        (lambda data: b"hello" + data[5:], "not a GGUF file"),
        (lambda data: data.replace(b"llama", b"mamba"), "'mamba' are not supported"),
    ],
)
def test_a_file_that_is_no_model_is_named(kforge: Kforge, tiny: Path, tmp_path: Path, harm, says: str) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(harm(tiny.read_bytes()))
    refused(kforge("model", "show", broken), str(broken), says)


def test_an_empty_model_folder_is_named(kforge: Kforge, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(kforge("model", "show", tmp_path / "empty"), "config.json: no such file")


def test_a_broken_target_names_file_and_field(kforge: Kforge, tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text('name = "x"\n')
    refused(kforge("target", "show", tmp_path / "t.toml"), "t.toml: field")


def test_no_compiler(kforge: Kforge, tiny: Path, tmp_path: Path) -> None:
    refused(kforge("tune", tiny, PATH=str(tmp_path)), "no C++ compiler found", "install g++ >= 12")


def test_an_old_compiler_is_named(kforge: Kforge, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "g++").write_text("#!/bin/sh\necho 'g++ (Debian 9.1.0) 9.1.0'\n")
    (tmp_path / "g++").chmod(0o755)
    refused(kforge("tune", tiny, PATH=str(tmp_path)), "g++ 9.1.0, which is too old")


def test_a_data_folder_that_is_a_file(kforge: Kforge, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused(kforge("kernels", "verify", KFORGE_HOME=str(tmp_path / "file")), "KFORGE_HOME")


def test_a_cache_that_is_a_file(kforge: Kforge, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = kforge("model", "synth", "tiny-llama-test", KFORGE_CACHE=str(tmp_path / "file"))
    refused(done, str(tmp_path / "file"))


def test_a_registry_of_a_newer_version_is_left_alone(kforge: Kforge, home: Path) -> None:
    assert kforge("kernels", "verify").returncode == 0
    with sqlite3.connect(home / "registry.db") as database:
        database.execute("update alembic_version set version_num = '9999'")
    for words in (("kernels", "verify"), (*LINEAR, "M=1")):
        refused(kforge(*words), "newer kforge (schema 9999)", "upgrade")
    with sqlite3.connect(home / "registry.db") as database:
        assert database.execute("select version_num from alembic_version").fetchall() == [("9999",)]


def test_a_registry_that_is_no_database_is_left_alone(kforge: Kforge, home: Path) -> None:
    (home / "registry.db").write_bytes(b"not a database " * 100)
    for words in (("kernels", "verify"), ("kernels", "list")):
        refused(kforge(*words), "registry.db", "move it away or restore it")
    assert (home / "registry.db").read_bytes() == b"not a database " * 100


def test_a_kernel_whose_bytes_changed_is_named_then_quarantined(kforge: Kforge, home: Path, tiny: Path) -> None:
    artifact = _promoted_argmax(home)
    artifact.write_bytes(artifact.read_bytes()[:-1] + b"?")
    command = ("generate", tiny, "-p", "hi", "--kernels", "tuned", "--max-tokens", "2")
    refused(kforge(*command), artifact.name, "kforge kernels verify")
    verified = kforge("kernels", "verify")
    assert verified.returncode == 1 and "quarantined" in verified.stdout
    assert kforge(*command).returncode == 0  # the default serves meanwhile


def _promoted_argmax(home: Path) -> Path:
    """Promotes a kernel for the tiny model's argmax in a new registry; its file in the store."""
    target, problem = host_target(), Problem.of("argmax", V=1024)
    template = templates.load("argmax")[0]
    candidate = template.render(problem, target, template.defaults(problem, target))
    built = build(candidate, target)
    assert isinstance(built, Artifact)
    with Registry.open(home / "registry.db") as registry:
        registry.begin_run("r", "tiny", target.identity, home)
        bucket = tuple(sorted(get("argmax").bucket(problem, {"R": 1}).items()))
        kernel = KernelRecord(
            candidate.hash, problem, bucket, target.identity, target.name, get("argmax").version, 1,
            candidate.numerics, candidate.layouts, "cpp", candidate.template, candidate.template_hash,
            candidate.params, registry.store.put(candidate.source.encode()), built.hash, built.report.compiler,
            1e-6, 2e-6, 1.0, 0.9, "r",
        )
        registry.set_state(registry.accept(kernel, built.data, candidate.source, {}), KernelState.PROMOTED, "test")
        return registry.store.path(built.hash)


def test_a_registry_that_another_process_writes_to_answers(kforge: Kforge, home: Path) -> None:
    assert kforge("kernels", "verify").returncode == 0
    holder = sqlite3.connect(home / "registry.db", isolation_level=None)
    holder.execute("begin exclusive")
    try:
        assert kforge(*LINEAR, "M=1").returncode == 0
    finally:
        holder.close()


def test_standard_output_that_is_full_or_gone(home: Path) -> None:
    command = f"{sys.executable} -m kforge.cli.main target list"
    env = {**os.environ, "KFORGE_HOME": str(home), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    full = subprocess.run(f"{command} > /dev/full", shell=True, env=env, capture_output=True, text=True, check=False)
    refused(full, "standard output: No space left on device")
    gone = subprocess.run(f"{command} | true", shell=True, env=env, capture_output=True, text=True, check=False)
    assert gone.stderr == ""


class Tuning:
    """A tune of the tiny model in a process group of its own."""

    def __init__(self, home: Path, runs: Path, *words: str | Path, limit: int | None = None) -> None:
        env = {**os.environ, "KFORGE_HOME": str(home), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "kforge.cli.main", "tune", *map(str, words), "--runs-dir", str(runs)]
        self.runs = runs
        self.process = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        if limit is not None:
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (limit, limit))

    def wait_for_trials(self, count: int) -> None:
        until = time.monotonic() + 200
        while time.monotonic() < until and self.process.poll() is None:
            if sum(self.trials().values()) >= count:
                return
            time.sleep(0.1)
        pytest.fail(f"no {count} trials: {self.end().stderr}")

    def trials(self) -> dict[str, int]:
        found = self.runs.glob("*/journal.jsonl")
        return {path.parent.name: path.read_text().count('"kind": "trial"') for path in found}

    def hold(self, registry: Path) -> None:
        """Stops it for a while, at a moment when it does not write to the registry."""
        for _ in range(100):
            self.process.send_signal(signal.SIGSTOP)
            with closing(sqlite3.connect(registry, timeout=1)) as database:
                try:
                    database.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError:
                    self.process.send_signal(signal.SIGCONT)
                    time.sleep(0.05)
                else:
                    return
        raise AssertionError("it never stops writing")

    def end(self) -> subprocess.CompletedProcess[str]:
        out, err = self.process.communicate(timeout=200)
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, out, err)

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "whole_group"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_a_stopped_tune_keeps_its_trials_and_goes_on(
    home: Path, tiny: Path, tmp_path: Path, kforge: Kforge, number: signal.Signals, whole_group: bool
) -> None:
    tuning = Tuning(home, tmp_path / "runs", tiny, "--budget", "60s", "--batch", "1")
    tuning.wait_for_trials(3)
    started = tuning.descendants()
    assert started
    (os.killpg if whole_group else os.kill)(tuning.process.pid, number)
    done = tuning.end()
    (run, count), = tuning.trials().items()
    refused(done, "everything measured is kept", f"--resume {tmp_path / 'runs' / run}", code=130)
    assert count >= 3
    assert psutil.wait_procs(started, timeout=60)[1] == []
    failed = [
        line for line in (tmp_path / "runs" / run / "journal.jsonl").read_text().splitlines()
        if json.loads(line)["kind"] == "trial" and json.loads(line)["data"]["trial"]["failure"]
    ]
    assert failed == []  # the signal that reached candidates is not their fault
    assert kforge("runs", "show", tmp_path / "runs" / run).returncode == 0


@pytest.mark.slow
def test_a_finished_run_is_shown_again_and_two_tunes_do_not_meet(
    home: Path, tiny: Path, tmp_path: Path, kforge: Kforge
) -> None:
    first = Tuning(home, tmp_path / "runs", tiny, *TUNE)
    first.wait_for_trials(1)
    (run,) = first.trials()
    first.hold(home / "registry.db")  # it has its locks, however long the others take to start
    refused(kforge("tune", tiny, *TUNE, "--runs-dir", tmp_path / "other"), "another tune (process")
    refused(kforge("tune", "--resume", tmp_path / "runs" / run), "another process is working on the run")
    assert not list((tmp_path / "other").glob("*"))  # a run that never began leaves nothing
    first.process.send_signal(signal.SIGCONT)
    assert first.end().returncode == 0
    journal = (tmp_path / "runs" / run / "journal.jsonl").read_bytes()
    again = kforge("tune", "--resume", tmp_path / "runs" / run)
    assert again.returncode == 0 and "is finished" in again.stderr and run in again.stdout
    assert (tmp_path / "runs" / run / "journal.jsonl").read_bytes() == journal


@pytest.mark.slow
def test_a_full_disk_ends_a_tune_with_the_way_to_go_on(home: Path, tiny: Path, tmp_path: Path, kforge: Kforge) -> None:
    tuning = Tuning(home, tmp_path / "runs", tiny, "--budget", "60s", "--batch", "1", limit=400_000)
    done = tuning.end()
    refused(done)
    assert "free" in done.stderr or "raise the limit" in done.stderr
    assert kforge("kernels", "verify").returncode == 0


def test_a_model_of_the_cache_is_written_anew_and_its_path_printed_again(tmp_path: Path, kforge: Kforge) -> None:
    words = ("model", "synth", "tiny-llama-test", "--format", "w8a8")
    first, again = (kforge(*words, KFORGE_CACHE=str(tmp_path / "cache")) for _ in range(2))
    assert (first.returncode, again.returncode) == (0, 0), again.stderr
    assert first.stdout == again.stdout and (Path(first.stdout.strip()) / "config.json").is_file()
    refused(kforge(*words, "--out", first.stdout.strip()), "is already there")
