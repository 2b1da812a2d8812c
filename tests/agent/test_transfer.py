"""What another target or backend has for the same operator: which kernel is shown, and that replays show it again."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from scripted import Script, plain, settle
from situations import LINEAR, NORM, linear_story, norm_story, shipped_template

from kforge.agent.calls import CallFailure, Reply, Request, Role
from kforge.agent.loop import ModelProposer
from kforge.agent.replaying import replay
from kforge.agent.transcripts import Transcript, Transcripts
from kforge.agent.transfer import MOST_SOURCE, Abroad, differences
from kforge.core.kernel import KernelRecord
from kforge.core.target import Target
from kforge.core.trial import NumericsClass
from kforge.core.workload import Problem, Workload
from kforge.operators import get
from kforge.registry.database import Registry
from kforge.targets import load_target, save_target
from kforge.targets.roofline import time_limit

INTEL, ARM, AMD = (load_target(name) for name in ("sapphire-rapids", "neoverse-v2", "zen4"))
SOURCE = "// a kernel of its own\n" * 10


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def registry(tmp_path: Path):
    with Registry.open(tmp_path / "registry.db") as opened:
        opened.begin_run("r", "m", "t", tmp_path)
        yield opened


def accept(registry: Registry, target: Target, reached: float, problem: Problem = NORM, source: str = SOURCE,
           template_hash: str = "", name: str = "own", **bucket: int) -> KernelRecord:
    """A kernel that reaches this share of the target's limit at ``bucket`` (default: T=32)."""
    axes = bucket or {"T": 32}
    limit = time_limit(get(problem.operator).cost(Workload.of(problem, **axes)), target).seconds
    artifact = f"{name} {target.name} {axes} {source}".encode()
    kernel = KernelRecord(
        hashlib.sha256(artifact).hexdigest()[:12], problem, tuple(sorted(axes.items())), target.identity, "host", 1, 1,
        NumericsClass.EXACT, (), "cpp", f"cpp/{problem.operator}/{name}.cc.j2", template_hash or f"hash of {name}",
        (("tokens", 8),), hashlib.sha256(source.encode()).hexdigest(), hashlib.sha256(artifact).hexdigest(), "g++ 12",
        limit / reached, 2 * limit / reached, 0.1, 0.05, "r")
    registry.accept(kernel, artifact, source, {})
    return kernel


def test_the_kernel_nearest_to_the_limit_of_its_own_target_is_shown_with_its_buckets(registry: Registry) -> None:
    accept(registry, INTEL, 0.5, name="slow")
    accept(registry, ARM, 0.8, name="fast", source="// fast\n")
    accept(registry, ARM, 0.6, name="fast", source="// fast\n", T=8)
    found = Abroad(registry).best(norm_story().situation)
    assert found is not None and (found.template, found.target, found.backend) == ("fast", ARM, "cpp")
    assert [(m.bucket, pytest.approx(m.reached)) for m in found.measured] == [("T=32", 0.8), ("T=8", 0.6)]
    assert found.source == "// fast\n" and not found.cut and found.params == (("tokens", 8),)


def test_own_kernels_those_of_unknown_targets_and_those_for_other_formats_are_not_shown(registry: Registry) -> None:
    accept(registry, AMD, 0.9)  # the situation's own target
    accept(registry, replace(INTEL, cores=7), 0.9)
    other = Problem.of("linear", **{**dict(LINEAR.static), "weight": "q8_0"}).with_rows(32)
    accept(registry, INTEL, 0.9, other, M=8)
    assert Abroad(registry).best(norm_story().situation) is None
    unmeasured = Abroad(registry).best(linear_story().situation)  # a shipped template for other processors
    assert unmeasured is not None and SOURCE not in unmeasured.source and unmeasured.template == "a8_i8mm"


def test_a_target_that_the_user_wrote_down_is_known(registry: Registry) -> None:
    mine = replace(INTEL, name="the-other-box", cores=7)
    save_target(mine)
    accept(registry, mine, 0.9)
    found = Abroad(registry).best(norm_story().situation)
    assert found is not None and found.target == mine


def test_other_sizes_of_the_same_kind_of_problem_count(registry: Registry) -> None:
    other = Problem.of("linear", **{**dict(LINEAR.static), "K": 4096}).with_rows(16)
    accept(registry, INTEL, 0.7, other, M=8)
    found = Abroad(registry).best(linear_story().situation)
    assert found is not None and dict(found.static)["K"] == 4096


def test_a_template_that_competes_here_is_named_without_its_source(registry: Registry) -> None:
    template = shipped_template("rms_norm")
    accept(registry, INTEL, 0.7, name="portable", template_hash=template.hash)
    found = Abroad(registry).best(norm_story().situation)
    assert found is not None and found.template == "portable" and found.source == ""


def test_a_long_source_is_cut_at_a_line(registry: Registry) -> None:
    accept(registry, INTEL, 0.7, source=SOURCE * 100)
    found = Abroad(registry).best(norm_story().situation)
    assert found is not None and found.cut and len(found.source) <= MOST_SOURCE
    assert found.source.endswith("// a kernel of its own")


def test_a_kernel_whose_source_is_damaged_gives_way_to_the_next(registry: Registry) -> None:
    best = accept(registry, INTEL, 0.9, name="gone", source="// gone\n")
    accept(registry, ARM, 0.4, name="there")
    registry.store.path(best.source_hash).write_bytes(b"damaged")
    found = Abroad(registry).best(norm_story().situation)
    assert found is not None and found.template == "there"


def test_a_shipped_template_that_does_not_serve_here_is_shown_for_a_target_that_it_serves(registry: Registry) -> None:
    plain_avx2 = replace(linear_story().situation, target=load_target("x86-64-v3"))
    found = Abroad(registry).best(plain_avx2)
    assert found is not None and found.template == "a8_vnni" and found.measured == ()
    assert found.target.has("avx512_vnni") and found.source.startswith("{#- kforge")


def test_only_rows_that_differ_are_told() -> None:
    rows = {row.what: (row.here, row.there) for row in differences(AMD, INTEL)}
    assert rows["L2"] == ("1.00 MiB", "2.00 MiB") and "architecture" not in rows and "widest vectors" not in rows
    here, there = rows["features that the other lacks"]
    assert here == "none" and "avx512_fp16" in there and "amx" not in there
    assert differences(AMD, AMD) == ()


class Recorded:
    """A script's answers, each call on the disk."""

    def __init__(self, script: Script, run: Path) -> None:
        self.script, self._transcripts = script, Transcripts(run)

    def call(self, request: Request, cancel: threading.Event) -> Reply | CallFailure:
        answer = self.script.call(request, cancel)
        self._transcripts.write(Transcript(request, "script", "model-1", answer, None, None, datetime.now(UTC), 0.1))
        return answer


def test_what_was_shown_of_another_target_is_in_both_prompts_and_replayed_to_the_byte(
        registry: Registry, tmp_path: Path) -> None:
    accept(registry, ARM, 0.8, name="fast")
    run = tmp_path / "run"
    caller = Recorded(plain(), run)
    proposer = ModelProposer(caller, run, abroad=Abroad(registry))
    proposer.ask(norm_story().situation)
    settle(proposer)
    proposer.close()
    for role in (Role.ANALYST, Role.GENERATOR):
        (request,) = caller.script.of(role)
        assert "// a kernel of its own" in request.messages[0].text
    accept(registry, INTEL, 0.99, name="later")  # which a replay must not see
    assert [one.difference for one in replay(run)] == [""]
