"""The doctor names what is amiss and what to do, and fails only for what tuning needs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from cli_host import host_target

from kforge.cli.checks import State, examine
from kforge.harness import proof
from kforge.harness.sandbox.cgroup import CgroupLimits, limits
from kforge.targets.files import save_target


def findings(done, check: str) -> list[dict]:
    return [f for f in json.loads(done.stdout)["findings"] if f["check"] == check]


def test_a_machine_that_can_tune_has_no_problem(kforge):
    done = kforge("doctor", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 0, document
    assert document["ok"]
    wanted = {"python", "compiler", "torch", "cache", "data", "sandbox", "cgroup", "target", "registry", "memory"}
    wanted |= {"judge", "load"}
    assert {f["check"] for f in document["findings"]} == wanted
    assert {f["text"].split(": ")[1] for f in findings(done, "sandbox")} >= {"seccomp", "landlock", "rlimits", "uid"}
    assert all(f["advice"] for f in document["findings"] if f["state"] != "ok")


def test_a_sandbox_without_its_minimum_is_a_problem_and_a_layer_less_is_a_warning(monkeypatch):
    real = proof.proven()
    lacking = dataclasses.replace(real, build=dataclasses.replace(real.build, landlock=False, namespaces=False))
    monkeypatch.setattr(proof, "proven", lambda: lacking)
    state = {f.text.partition(" ")[0] + f.text.split()[1]: f for f in examine() if f.check == "sandbox"}
    assert state["build:landlock"].state is State.PROBLEM
    assert "--trust-candidates" in state["build:landlock"].advice
    assert state["build:namespaces"].state is State.WARNING


def test_limits_of_a_control_group_are_read_in_both_versions(tmp_path: Path):
    group = tmp_path / "fs" / "memory" / "box"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("1073741824\n")
    (tmp_path / "cgroup").write_text("4:memory:/box\n0::/\n")
    assert limits(tmp_path / "cgroup", tmp_path / "fs") == CgroupLimits("/box", 1 << 30, 0)
    (tmp_path / "fs" / "box").mkdir()
    (tmp_path / "fs" / "box" / "memory.max").write_text("max\n")
    (tmp_path / "fs" / "box" / "pids.max").write_text("512\n")
    (tmp_path / "cgroup").write_text("0::/box\n")
    assert limits(tmp_path / "cgroup", tmp_path / "fs") == CgroupLimits("/box", 0, 512)
    assert limits(tmp_path / "none", tmp_path / "fs") == CgroupLimits("", 0, 0)


def test_no_compiler_is_a_problem_with_advice_and_exit_code_1(kforge):
    done = kforge("doctor", "--json", PATH="/nonexistent", CXX="")
    assert done.returncode == 1
    (compiler,) = findings(done, "compiler")
    assert compiler["state"] == "problem"
    assert "install g++" in compiler["advice"]


def test_a_folder_that_cannot_be_written_is_a_problem_that_names_the_variable(kforge):
    done = kforge("doctor", KFORGE_HOME="/proc/kforge")
    assert done.returncode == 1
    assert "/proc/kforge cannot be written" in done.stdout
    assert "set KFORGE_HOME" in done.stdout


def test_a_changed_machine_is_a_warning(kforge, home: Path):
    save_target(host_target(cores=3), home / "targets" / "host.toml")
    done = kforge("doctor", "--json")
    assert done.returncode == 0
    (target,) = findings(done, "target")
    assert (target["state"], "cores changed" in target["text"]) == ("warning", True)


def test_a_machine_that_was_not_probed_is_told_how(kforge, home: Path):
    (home / "targets" / "host.toml").unlink()
    done = kforge("doctor", "--json")
    assert done.returncode == 0
    assert "kforge target probe" in findings(done, "target")[0]["advice"]
    assert not (home / "targets" / "host.toml").exists()  # looking does not probe


def test_a_damaged_registry_is_a_problem(kforge, home: Path):
    (home / "registry.db").write_text("not a database, but long enough to be taken for one " * 30)
    done = kforge("doctor", "--json")
    assert done.returncode == 1
    assert findings(done, "registry")[0]["state"] == "problem"
