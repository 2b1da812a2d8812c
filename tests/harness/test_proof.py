"""What confines candidates is proven by children that try; what is missing bars untrusted ones, by name."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from kforge.core.errors import KforgeError
from kforge.core.target import Target
from kforge.harness import Harness, proof
from kforge.harness.binaries import runner
from kforge.harness.proof import Confinement, Layer, Provenance, RunFacts, proven, require
from kforge.harness.sandbox import Facts
from kforge.harness.sandbox.remembered import remembered
from kforge.harness.zygote import Zygote

ALL = Layer.FILTER | Layer.FILES | Layer.PRIVILEGES | Layer.LIMITS | Layer.LANDLOCK
WHOLE = Confinement(Facts(*[True] * 6), RunFacts(ALL, 26, ()))


def without(name: str) -> Confinement:
    """A machine on which one thing does not hold."""
    if name in Facts.__dataclass_fields__:
        return dataclasses.replace(WHOLE, build=dataclasses.replace(WHOLE.build, **{name: False}))
    lost = Layer[name]
    survived = ("to open a file",) if lost is Layer.FILTER else ()
    return dataclasses.replace(WHOLE, run=RunFacts(ALL & ~lost, 26, survived))


def test_every_forbidden_call_of_a_worker_ends_its_process_and_an_allowed_one_does_not() -> None:
    with Zygote.empty(4096) as zygote:
        allowed = zygote.attempt(0, [0])
        calls = [zygote.attempt(n, [0]) for n in range(2, allowed.attempts)]
    assert allowed.survived and not allowed.forbidden
    assert len(calls) >= 20
    assert [call.name for call in calls if not call.forbidden] == []
    assert len({call.name for call in calls}) == len(calls)


@pytest.mark.skipif(os.geteuid() != 0, reason="already an ordinary user: the tests around this one are the same")
@pytest.mark.parametrize("options", ["--reuid=1234 --regid=1234 --clear-groups", "--bounding-set=-all --inh-caps=-all"])
def test_the_runner_confines_as_a_user_and_as_root_of_a_container_without_privileges(monkeypatch, options: str) -> None:
    """Without the right to change its uid root cannot become nobody: that must be seen, not passed over."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # the user's own may be out of another user's reach
        (base := Path(name)).chmod(0o755)
        shutil.copy(runner(), base / "runner")
        (start := base / "start").write_text(f'#!/bin/sh\nexec /usr/bin/setpriv {options} {base}/runner "$@"\n')
        start.chmod(0o755)
        monkeypatch.setattr("kforge.harness.zygote.runner_of", lambda backend: start)
        facts = proof._prove_run([0])
    assert facts.survived == () and Layer.FILTER in facts.layers
    user = "reuid" in options
    assert facts.layers | Layer.LANDLOCK == (ALL if user else ALL & ~Layer.PRIVILEGES)


def test_this_machine_holds_the_minimum_by_trial() -> None:
    facts = proven()
    assert facts.missing == ()
    assert facts.run.tried >= 20 and facts.run.survived == ()
    assert {Layer.FILTER, Layer.FILES, Layer.PRIVILEGES, Layer.LIMITS} <= set(facts.run.layers)


@pytest.mark.parametrize("name", ["landlock", "seccomp", "rlimits", "privileges", "FILTER", "FILES", "PRIVILEGES",
                                  "LIMITS"])
def test_a_missing_part_of_the_minimum_bars_untrusted_candidates_and_is_named(name: str) -> None:
    lacking = without(name)
    (promise,) = lacking.missing
    with pytest.raises(KforgeError, match=rf"{promise.rests_on} does not hold in the {promise.step} step.*"
                                          "--trust-candidates"):
        require(lacking, trust_candidates=False)
    require(lacking, trust_candidates=True)
    assert Provenance.of(lacking, True) == Provenance(True, (f"{promise.step}: {promise.rests_on}",))


@pytest.mark.parametrize("name", ["namespaces", "unprivileged", "LANDLOCK"])
def test_what_is_not_of_the_minimum_may_be_missing(name: str) -> None:
    assert without(name).missing == ()
    require(without(name), trust_candidates=False)


def test_where_nothing_is_missing_trust_changes_nothing() -> None:
    assert Provenance.of(WHOLE, True) == Provenance.of(WHOLE, False) == Provenance(False, ())


def test_a_harness_refuses_where_the_minimum_is_missing(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    monkeypatch.setattr("kforge.harness.harness.proven", lambda: without("landlock"))
    with pytest.raises(KforgeError, match="landlock does not hold"):
        Harness(target, 1)
    with Harness(target, 1, trust_candidates=True) as harness:
        assert harness.provenance == Provenance(True, ("build: landlock",))


def test_what_was_seen_to_hold_is_needed_from_then_on() -> None:
    assert WHOLE.build.needed == 7
    assert without("landlock").build.needed == 5
    assert without("LANDLOCK").run.needed == ALL & ~Layer.LANDLOCK


def test_a_proof_is_kept_for_the_same_programs_and_made_anew_for_others(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KFORGE_CACHE", str(tmp_path))
    made: list[int] = []

    def prove() -> dict[str, object]:
        made.append(1)
        return {"holds": True, "n": len(made)}

    def ask(program: str, holds: bool = True) -> object:
        return remembered("x", [Path(program)], prove, {"holds": holds})["n"]

    assert [ask("/a") for _ in range(3)] == [1, 1, 1]
    assert ask("/b") == 2
    (kept,) = (f for f in (tmp_path / "sandbox").glob("*.json") if json.loads(f.read_text())["n"] == 1)
    for damage in ("{", "[]", '{"holds": false}'):
        kept.write_text(damage)
        assert ask("/a") == len(made)
    assert len(made) == 5
    assert [ask("/c", holds=False) for _ in range(2)] == [6, 7], "what does not hold may hold another time"


def test_a_runner_that_cannot_be_tried_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Zygote.attempt
    monkeypatch.setattr(Zygote, "attempt",
                        lambda self, n, cpus: dataclasses.replace(real(self, n, cpus), status=31))  # all die: no proof
    with pytest.raises(KforgeError, match="cannot be proven"):
        proof._prove_run([0])
