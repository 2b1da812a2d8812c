"""What was probably meant is told: names that nobody knows, sources in the place of models, batches nobody tuned."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from cli_host import host_target
from typer.testing import CliRunner

from kforge.cli.main import app
from kforge.cli.nearest import near, require_operator
from kforge.cli.watching import told
from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelState
from kforge.registry.database import Registry
from kforge.tuner.progress import Progress
from tests.cli.test_kernels import RECORD

sys.path.insert(0, str(Path(__file__).parents[1] / "tuner"))
from imported_operators import NAME, stored


@pytest.fixture(autouse=True)
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFORGE_HOME", str(home))
    monkeypatch.setenv("COLUMNS", "80")


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """What it prints. Raises what it raises."""
    monkeypatch.setattr("sys.argv", ["kforge", *words])
    return CliRunner().invoke(app, list(words), catch_exceptions=False).stdout


def test_names_that_are_spelled_nearly_so_are_told() -> None:
    assert near("silu_mull", ["silu_mul", "linear"]) == " (did you mean silu_mul?)"
    assert near("gelu", ["level1_26_gelu", "linear"]) == " (did you mean level1_26_gelu?)"
    assert near("xyz", ["linear"]) == near("", ["linear"]) == near("x", []) == ""
    with pytest.raises(KforgeError, match=r"no operator 'linaer' \(did you mean linear or moe_linear\?\); there are"):
        require_operator("linaer")
    require_operator("forgotten", also=["forgotten"])


@pytest.mark.parametrize(("words", "says"), [
    (("lookup", "row_softmix"), "did you mean row_softmax?"),
    (("try", "x.cc", "--op", "row_softmix"), "did you mean row_softmax?"),
    (("operator", "show", "row_softmix"), "did you mean row_softmax?"),
    (("operator", "rm", "row_softmix"), "did you mean row_softmax?"),
    (("kernels", "list", "--operator", "row_softmix"), "did you mean row_softmax?"),
])
def test_commands_tell_the_operator_that_was_meant(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...],
                                                   says: str) -> None:
    stored()
    with pytest.raises(KforgeError) as told_:
        run(monkeypatch, *words)
    assert says in str(told_.value) and "\n" not in str(told_.value)


@pytest.mark.parametrize(("name", "says"), [
    ("mine.py", "mine.py is Python source, not a model: make an operator of it (kforge operator import mine.py)"),
    ("mine.py:swish", "kforge operator import mine.py:swish"),
    ("row_softmix", "neither a file, a folder, a known model nor an imported operator (did you mean row_softmax?)"),
    ("smollm-135m", "did you mean smollm2-135m?"),
])
def test_tune_tells_what_it_takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, says: str) -> None:
    from kforge.cli.tune import _require_subject

    stored()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("x = 1\n")
    with pytest.raises(KforgeError) as told_:
        _require_subject(name)
    assert says in str(told_.value)
    for known in (NAME, "smollm2-135m", str(tmp_path)):
        _require_subject(known)


def test_an_unknown_command_is_told_with_the_one_that_was_meant(kforge) -> None:
    done = kforge("tuen")
    assert done.returncode == 2 and "No such command 'tuen' (did you mean tune?); see: kforge --help" in done.stderr


def test_a_lookup_at_a_batch_that_nobody_tuned_names_those_that_were(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    operator = stored()
    assert f"kforge tune {NAME} --batch 24 tunes it here" in run(monkeypatch, "lookup", NAME)
    own = dataclasses.replace(RECORD, problem=operator.problem, bucket=(("B", 24),), template=f"cpp/{NAME}/plain.cc.j2",
                              target_identity=host_target().identity)
    with Registry.open() as registry:
        registry.begin_run("r1", NAME, own.target_identity, Path("."))
        registry.set_state(registry.accept(own, b"code", "src", {}), KernelState.PROMOTED, "for the test")
    away = run(monkeypatch, "lookup", NAME, "B=2")
    assert "no tuned kernel; the default serves" in away
    assert "tuned on this target at B=24, not at B=2" in away and f"kforge tune {NAME} --batch 2 tunes it" in away
    assert "tuned on this target" not in run(monkeypatch, "lookup", NAME)
    assert json.loads(run(monkeypatch, "lookup", NAME, "B=2", "--json"))["tuned"] == ["B=24"]


def test_a_kernel_above_its_limit_casts_doubt_on_the_limit() -> None:
    def line(best: float) -> str:
        return told(Progress("t", "p", "B=1", 1e-6, "", best, 2e-6, 1, 0.0, 1.0))

    assert "(200 % of the limit, which was measured too low: kforge target probe)" in line(1e-6)
    assert line(4e-6).endswith("(50 % of the limit)")
