"""A confined child that is asked line by line, and memory that it shares and cannot change the size of."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from kforge.core.trial import Failure, FailureClass
from kforge.core.workload import Problem, Workload
from kforge.harness.fenced import FencedMemory
from kforge.harness.sandbox import Limits, Served
from kforge.operators import get
from kforge.operators.base import Distribution

LIMITS = Limits(20, 1 << 30, 1 << 20)
NORM = Workload.of(Problem.of("rms_norm", H=5, residual=0), T=3)


def shell(work: Path, script: str, fds: tuple[int, ...] = ()) -> Served:
    return Served(("/bin/sh", "-c", script), work, LIMITS, (), fds)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def test_it_answers_line_by_line_and_ends_when_it_is_closed(work: Path) -> None:
    with shell(work, "while read line; do echo said $line; done") as child:
        assert child.ask(b"one", 10) == b"said one"
        assert child.ask(b"two", 10) == b"said two"


def test_a_dead_child_is_told_from_a_late_one(work: Path) -> None:
    with shell(work, "read line; echo last words >&2; exit 3") as dead:
        assert dead.ask(b"go", 10) is None
        outcome = dead.end()
        assert (outcome.code, outcome.timed_out, outcome.text) == (3, False, "last words\n")
    with shell(work, "read line; sleep 30") as late:
        assert late.ask(b"go", 0.3) is None
        assert late.end().timed_out


def test_it_is_confined_as_a_compiler_is(work: Path) -> None:
    (work.parent / "secret").write_text("hidden")
    with shell(work, "read line; cat ../secret >/dev/null 2>&1 && echo read || echo kept out") as child:
        assert child.ask(b"go", 10) == b"kept out"


def test_shared_memory_cannot_be_shrunk_by_the_child(work: Path) -> None:
    with FencedMemory() as memory:
        script = f"import os; input()\ntry:\n    os.ftruncate({memory.fd}, 0); print('shrunk')\n" \
                 "except OSError:\n    print('sealed')"
        python = str(Path(sys.executable).resolve())
        readable = (sys.base_prefix,)
        with Served((python, "-I", "-S", "-c", script), work, LIMITS, readable, (memory.fd,)) as child:
            assert child.ask(b"go", 20) == b"sealed"


def call(memory: FencedMemory):
    inputs = get("rms_norm").inputs(NORM, 1, Distribution.NORMAL)
    return memory.call(get("rms_norm"), NORM, inputs, 64, 0xFF, 7, True), inputs


def test_outputs_come_back_and_what_was_not_written_is_poison() -> None:
    with FencedMemory() as memory:
        first, _ = call(memory)
        view = {form.spec.name: form.elements(memory.slots.view(place)) for form, place in first.tensors}
        view["out"][0] = 1.5
        found = first.outputs()
        assert not isinstance(found, Failure)
        assert np.array_equal(found["out"][0], np.full(5, 1.5, np.float32)) and np.isnan(found["out"][1:]).all()
        del view
        assert not isinstance(call(memory)[0].outputs(), Failure)


@pytest.mark.parametrize(("tensor", "offset", "kind"), [
    ("out", -1, FailureClass.FENCE), ("weight", 5 * 4, FailureClass.FENCE), ("scratch", -1, FailureClass.FENCE),
    ("x", 0, FailureClass.INPUT_MODIFIED), ("out", 5 * 4, FailureClass.FENCE),
], ids=["in front", "behind", "scratch", "input", "between rows"])
def test_a_write_beside_a_tensor_is_found(tensor: str, offset: int, kind: FailureClass) -> None:
    with FencedMemory() as memory:
        made, _ = call(memory)
        places = {form.spec.name: place for form, place in made.tensors} | {"scratch": made.scratch}
        place = places[tensor]
        at = place.slot.file_offset + place.start + offset
        os.pwrite(memory.fd, bytes([os.pread(memory.fd, 1, at)[0] ^ 0x55]), at)
        found = made.outputs()
        assert isinstance(found, Failure) and found.kind is kind
