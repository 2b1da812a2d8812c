"""What the zoo prints as it goes: a reader who has not read its headers understands each line."""

from __future__ import annotations

import pytest

from kforge.cli.zoo import _tell
from kforge.core.paths import shipped
from kforge.core.trial import FailureClass
from kforge.harness.zoo import find
from kforge.harness.zoo.keeper import Sighting

SPECIMENS = {s.name: s for s in find(shipped("tests") / "zoo")}


@pytest.mark.parametrize(
    ("name", "gate", "line"),
    [
        ("honest/plain_argmax", None, "ok     honest/plain_argmax: passes"),
        ("honest/plain_argmax", FailureClass.CRASH, "WRONG  honest/plain_argmax: stopped by crash, to be "),
    ],
)
def test_an_honest_kernel_passes_or_is_stopped(capsys: pytest.CaptureFixture[str], name, gate, line):
    _tell(Sighting(SPECIMENS[name], gate, "SIGSEGV", (), 0.1))
    assert capsys.readouterr().out.startswith(line)


def test_a_cheat_is_stopped_by_its_gate(capsys: pytest.CaptureFixture[str]):
    cheat = next(s for s in SPECIMENS.values() if s.gates and isinstance(s.gates[0], FailureClass))
    _tell(Sighting(cheat, cheat.gates[0], "", (), 0.1))
    assert capsys.readouterr().out == f"ok     {cheat.name}: stopped by {cheat.gates[0]}\n"
