"""The runner's processes: what they may do, what they share, and that nothing of them is left."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
from harness_kernels import WORKLOAD, after, candidate

from kforge.backends.cpp.admission import admit
from kforge.backends.cpp.build import build
from kforge.core.image import Image, Segment
from kforge.core.target import Target
from kforge.core.trial import Artifact, Failure, FailureClass, NumericsClass
from kforge.harness import Harness
from kforge.harness.control import State
from kforge.harness.process import Process
from kforge.harness.session import Session, TimedInputs, rotation_copies, walking_step
from kforge.harness.slots import STACK_BYTES, SlotFile, SlotRequest
from kforge.harness.timing import Stopwatch
from kforge.operators import get
from kforge.operators.base import Role


def image_of(target: Target) -> Image:
    artifact = build(candidate(), target)
    assert isinstance(artifact, Artifact)
    image = admit(artifact.data)
    assert isinstance(image, Image)
    return image


@pytest.fixture(scope="module")
def session(target: Target) -> Session:
    timed = TimedInputs(get("linear"), WORKLOAD, 1, target.llc_bytes)
    with Session(timed, (), sorted(os.sched_getaffinity(0))[:2]) as made:
        yield made
    timed.close()


def test_a_child_is_locked_down_before_the_kernel_runs(session: Session, target: Target) -> None:
    process = session.start(image_of(target))
    assert isinstance(process, Process)
    try:
        for task in Path(f"/proc/{process.child.pid}/task").iterdir():
            seen = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
            assert seen["Seccomp"] == "2" and seen["NoNewPrivs"] == "1"
            assert int(seen["CapEff"], 16) == int(seen["CapPrm"], 16) == 0
            if os.geteuid() == 0:
                assert set(seen["Uid"].split()) == {"65534"} and int(seen["CapBnd"], 16) == 0
        if os.geteuid() == 0:  # otherwise the folder cannot be listed: the child is not dumpable
            assert not list(Path(f"/proc/{process.child.pid}/fd").iterdir())
            assert Path(f"/proc/{process.child.pid}/environ").read_bytes() == b""
        assert os.getpgid(process.child.pid) == process.child.pid
    finally:
        process.close()


def test_a_child_that_tampers_with_the_command_number_still_has_to_work(session: Session, target: Target) -> None:
    process = session.start(image_of(target))
    assert isinstance(process, Process)
    try:
        stopwatch = Stopwatch(session, process, len(session.cpus))
        assert stopwatch.prepare() is None
        for offset in (-1, 0, 1):  # as if a next number one higher had been done already
            process.child.page.posted = (process.child.page.done + offset) % (1 << 32)
            assert isinstance(stopwatch.batch(1), float)
            assert stopwatch.verify(session.timed.expected(NumericsClass.EXACT)) is None
    finally:
        process.close()


def test_a_child_that_feigns_death_is_killed(session: Session, target: Target) -> None:
    process = session.start(image_of(target))
    assert isinstance(process, Process)
    try:
        stopwatch = Stopwatch(session, process, len(session.cpus))
        assert stopwatch.prepare() is None
        process.child.page.state = State.DEAD
        assert isinstance(stopwatch.batch(1 << 20), Failure)
        assert not Path(f"/proc/{process.child.pid}").exists()
    finally:
        process.close()


def test_two_children_share_the_input_pages(session: Session, target: Target) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may read another user's page tables")
    processes = [session.start(image_of(target)) for _ in range(2)]
    try:
        frames = []
        for process in processes:
            assert isinstance(process, Process)
            with open(f"/proc/{process.child.pid}/pagemap", "rb") as pages:
                pages.seek(session.zygote.arena_address // 4096 * 8)
                frames.append(int.from_bytes(pages.read(8), "little") & ((1 << 55) - 1))
        assert frames[0] == frames[1] != 0
    finally:
        for process in processes:
            assert isinstance(process, Process)
            process.close()


def test_a_damaged_image_is_refused_by_the_loader(session: Session) -> None:
    result = session.start(Image(1 << 30, -1, (Segment(0, b"\xc3", 4096, True),), ()))
    assert not isinstance(result, Process)
    assert result.kind is FailureClass.LOAD


def test_streamed_tensors_rotate_beyond_the_last_level_cache(target: Target) -> None:
    specs = [spec for spec in get("linear").tensors(WORKLOAD) if spec.role is Role.IN]
    weight = next(spec for spec in specs if spec.name == "w")
    assert rotation_copies(specs, target.llc_bytes) * weight.bytes >= 2 * target.llc_bytes


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_nothing_is_left_behind(target: Target, threads: int) -> None:
    processes, files = children(), len(os.listdir("/proc/self/fd"))
    with Harness(target, threads) as harness:
        assert harness.evaluate(candidate(), WORKLOAD).ok
        assert not harness.evaluate(after("*(volatile int *)0 = 1;"), WORKLOAD).ok
        zygote = (children() - processes).pop()
        assert not Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()
    assert children() == processes
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_runner_that_goes_away_costs_one_trial(target: Target, threads: int) -> None:
    with Harness(target, threads) as harness:
        assert harness.evaluate(candidate(), WORKLOAD).ok
        os.kill(harness._session(WORKLOAD).zygote.pid, 9)
        lost = harness.evaluate(candidate(), WORKLOAD)
        assert lost.failure is not None and lost.failure.kind is FailureClass.HARNESS
        assert harness.evaluate(candidate(), WORKLOAD).ok


def test_children_that_live_together_have_stacks_of_their_own() -> None:
    slots = SlotFile([SlotRequest("out", 100, True)], 2)
    mine, theirs = slots.stacks_offset(4), slots.stacks_offset(5)
    assert abs(theirs - mine) >= 2 * STACK_BYTES and max(mine, theirs) + 2 * STACK_BYTES <= len(slots.memory.map)
    slots.memory.map[mine] = slots.memory.map[theirs] = 1
    slots.wipe_stacks(4)
    assert slots.memory.map[mine] == 0 and slots.memory.map[theirs] == 1
    slots.close()


def test_no_two_copies_of_a_streamed_tensor_are_equal_and_calls_read_theirs(target: Target, session: Session) -> None:
    timed = session.timed
    assert timed.period == timed.tensors["w"].copies > 64
    weights = [timed.inputs(number)["w"].tobytes() for number in range(timed.period)]
    assert len(set(weights)) == timed.period and timed.inputs(timed.period + 3)["w"].tobytes() == weights[3]
    assert all(np.isfinite(np.frombuffer(w, np.float32)).all() for w in weights)
    process = session.start(image_of(target))
    assert isinstance(process, Process)
    stopwatch = Stopwatch(session, process, 2)
    assert stopwatch.prepare() is None
    for draw in (0, 1, 0):
        assert isinstance(stopwatch.batch(5, draw, keep=True), float)
        assert stopwatch.verify(timed.expected(NumericsClass.EXACT)) is None
    process.close()


@pytest.mark.parametrize("period", [2, 4, 30, 86, 1466, 65536])
def test_the_copy_that_the_next_call_reads_is_not_told_by_this_ones(period: int) -> None:
    steps = {walking_step(period) for _ in range(40)}
    assert all(math.gcd(step, period) == 1 and 0 < step < period for step in steps)
    assert len(steps) >= (1 if period == 2 else 2)
    if period >= 30:  # so many calls after a copy its neighbour is read
        after = {pow(step, -1, period) for step in steps}
        assert all(min(calls, period - calls) >= period / 8 for calls in after)
